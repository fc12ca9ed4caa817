"""What a thread is doing: the open capture, the running replays, the published forward contexts."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from breakgraph.driver import Driver, StreamHandle

if TYPE_CHECKING:
    from breakgraph.segments.capture import Capture

__all__ = ["GraphState", "Running", "Step", "current_stream", "here", "is_capturing"]


class GraphState(enum.StrEnum):
    """Where a `BreakableGraph` is in its life."""

    EMPTY = "empty"
    CAPTURING = "capturing"
    CAPTURED = "captured"
    INERT = "inert"  #: its forward ran eagerly, because capture is switched off or impossible (C7)
    FAILED = "failed"
    CLOSED = "closed"


@dataclass
class Running:
    """One replay under way."""

    driver: Driver
    stream: int
    valid_rows: int | None = None
    inside: Capture | None = None  #: the capture in one of whose breaks it runs


class Step(Protocol):
    """One step of a replay: a segment or a break."""

    def run(self, running: Running) -> None: ...


class _Here(threading.local):
    def __init__(self) -> None:
        self.capture: Capture | None = None
        self.replays: list[Running] = []
        self.contexts: list[Any] = []


here = _Here()  #: the calling thread's own (C4, C19)


def is_capturing() -> bool:
    """True inside a segment of this thread's capture; False inside a break, at replay and outside."""
    return here.capture is not None and here.capture.in_segment


def current_stream() -> StreamHandle | None:
    """The stream that work belongs on now: in a segment, in a break, at replay; else None."""
    if here.replays and here.replays[-1].inside is here.capture:  # the replay is the inner one of the two
        return StreamHandle(here.replays[-1].stream)
    return None if here.capture is None else StreamHandle(here.capture.stream)
