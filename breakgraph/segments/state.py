"""What a thread is doing: whether it is in a segment, what it replays, and on which stream work belongs."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from breakgraph.driver import StreamHandle
from breakgraph.driver.here import here
from breakgraph.errors import CaptureStateError
from breakgraph.memory.turn import Owner
from breakgraph.segments.streams import eager_stream

if TYPE_CHECKING:
    from breakgraph.segments.landing import Place
    from breakgraph.segments.open_capture import Capture
    from breakgraph.segments.rehearsal import Rehearsal

__all__ = ["GraphState", "Running", "current_stream", "inert_scope", "is_capturing", "replay_under_way"]


class GraphState(enum.StrEnum):
    """Where a `BreakableGraph` is in its life."""

    EMPTY = "empty"
    CAPTURING = "capturing"
    CAPTURED = "captured"
    INERT = "inert"  #: its forward ran eagerly, because capture is switched off or impossible (C7)
    FAILED = "failed"
    CLOSED = "closed"


class Running(Owner):
    """One replay under way.

    Attributes
    ----------
    place
        That of the graph that it replays; None where the turn was taken for more than that, and it is not under way.
    inside
        The capture in one of whose breaks it runs.
    """

    __slots__ = ("inside", "place", "stream", "valid_rows")

    def __init__(
        self,
        place: Place | None,
        stream: int,
        valid_rows: int | None = None,
        inside: Capture | Rehearsal | None = None,
    ) -> None:
        self.place = place
        self.stream = stream
        self.valid_rows = valid_rows
        self.inside = inside

    def check(self, holder: Owner) -> None:
        if self.place is not None and isinstance(holder, Running) and holder.place is self.place:
            raise CaptureStateError(
                "the graph is being replayed by another thread",
                why="both would write the same arrays (C24)",
                remedy="replay it in turn, or capture one graph for each thread",
            )


def replay_under_way() -> Running | None:
    """The innermost replay of the calling thread."""
    replays = here.replays
    while replays:
        running: Running | None = replays[-1]()
        if running is not None:
            return running
        replays.pop()
    return None


@contextmanager
def inert_scope() -> Iterator[None]:
    """A forward runs here without being captured, and `current_stream` tells it where."""
    scope = object()
    here.inert.append(scope)
    try:
        yield
    finally:
        here.inert = [one for one in here.inert if one is not scope]


def is_capturing() -> bool:
    """True inside a segment of this thread's capture; False inside a break, at replay and outside."""
    return here.capture is not None and here.capture.in_segment


def current_stream() -> StreamHandle | None:
    """The stream that work belongs on now: in a segment, in a break, at replay; else None.

    In a capture scope that is inert it is the current stream of the first framework, on which the body runs.
    """
    running = replay_under_way()
    if running is not None and running.inside is here.capture:  # the replay is the inner one of the two
        return StreamHandle(running.stream)
    if here.capture is not None:
        return StreamHandle(here.capture.stream)
    return eager_stream() if here.inert else None
