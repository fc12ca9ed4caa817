"""What a thread is doing: the open capture, the running replays, the published forward contexts."""

from __future__ import annotations

import enum
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from breakgraph.driver import Driver, StreamHandle
from breakgraph.segments.streams import eager_stream

if TYPE_CHECKING:
    from breakgraph.segments.aux_streams import AuxStreams
    from breakgraph.segments.open_capture import Capture

__all__ = ["Exclusive", "GraphState", "Running", "Step", "current_stream", "here", "is_capturing"]


class GraphState(enum.StrEnum):
    """Where a `BreakableGraph` is in its life."""

    EMPTY = "empty"
    CAPTURING = "capturing"
    CAPTURED = "captured"
    INERT = "inert"  #: its forward ran eagerly, because capture is switched off or impossible (C7)
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(eq=False)
class Running:
    """One replay under way."""

    driver: Driver
    stream: int
    aux: AuxStreams
    valid_rows: int | None = None
    inside: Capture | None = None  #: the capture in one of whose breaks it runs


class Exclusive:
    """A right that one owner has at a time, as long as the owner lives.

    Giving back what one does not have is nothing, so an owner can promise to give it back before it takes it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: weakref.ref[object] | None = None

    def take(self, owner: object) -> bool:
        """Whether ``owner`` has it now. Never waits."""
        with self._lock:
            holder = self._owner() if self._owner is not None else None
            if holder is None:
                self._owner = weakref.ref(owner)
            return holder is None or holder is owner

    def give(self, owner: object) -> None:
        """``owner`` has it no more, if it had it."""
        with self._lock:
            if self._owner is not None and self._owner() is owner:
                self._owner = None


class Step(Protocol):
    """One step of a replay: a segment or a break."""

    def run(self, running: Running) -> None: ...


class _Here(threading.local):
    def __init__(self) -> None:
        self.capture: Capture | None = None
        self.inert: list[object] = []  # the open scopes that only run their bodies (C7)
        self.replays: list[weakref.ref[Running]] = []  # weakly: a replay that was interrupted is under way no more
        self.contexts: list[Any] = []

    @property
    def replay(self) -> Running | None:
        """The innermost replay under way."""
        while self.replays:
            if (running := self.replays[-1]()) is not None:
                return running
            self.replays.pop()
        return None


here = _Here()  #: the calling thread's own (C4, C19)


def is_capturing() -> bool:
    """True inside a segment of this thread's capture; False inside a break, at replay and outside."""
    return here.capture is not None and here.capture.in_segment


def current_stream() -> StreamHandle | None:
    """The stream that work belongs on now: in a segment, in a break, at replay; else None.

    In a capture scope that is inert it is the current stream of the first framework, on which the body runs.
    """
    running = here.replay
    if running is not None and running.inside is here.capture:  # the replay is the inner one of the two
        return StreamHandle(running.stream)
    if here.capture is not None:
        return StreamHandle(here.capture.stream)
    return eager_stream() if here.inert else None
