"""Streams that a forward works on beside its origin, declared with ``capture(aux_streams=...)`` (C11).

    origin   --[ segment 0 ]-----.--- break 0 ---.--[ segment 1 ]--
                 |       ^       |               ^     |       ^
                fork    join   follow           lead  fork    join
                 v       |       v               |     v       |
    aux      ----------------    --- its work ---      ----------

Inside a segment they are part of the capture, and the segment's end joins them. The driver lets go of them then, so
around a break they are ordered by an event, at capture and at every replay.
"""

from __future__ import annotations

from collections.abc import Iterable

from breakgraph.driver import Driver, Event, stream_handle
from breakgraph.driver.api import STREAM_LEGACY, STREAM_PER_THREAD
from breakgraph.driver.order import order_streams
from breakgraph.errors import CaptureStateError

__all__ = ["AuxStreams"]


_NEVER = {
    STREAM_LEGACY: ("the legacy default stream", "the driver cannot capture it (900)"),
    STREAM_PER_THREAD: ("the per-thread default stream", "it is another stream where another thread replays"),
}


class AuxStreams:
    """The aux streams of one graph, each once. They are the caller's to keep free of other threads' work (C1).

    Raises `CaptureStateError` for a default stream, and for the origin.
    """

    def __init__(self, driver: Driver, streams: Iterable[object], origin: int) -> None:
        self._driver = driver
        self._kept = tuple(streams)  # a stream that is dropped is destroyed
        self.handles = tuple(dict.fromkeys(driver.resolve_stream(stream_handle(one)) for one in self._kept))
        for handle in self.handles:
            if handle in _NEVER or handle == origin:
                which, why = _NEVER.get(handle, ("the origin stream", "an aux stream is forked from the origin"))
                raise CaptureStateError(
                    f"{which} was given in aux_streams",
                    why=why,
                    remedy="give streams of your own: bg.driver.current().create_stream()",
                )
        if self.handles:
            # Two of them: one that was recorded in a segment that has ended cannot be waited on.
            self._captured = Event(driver.event_create(), driver.event_destroy)
            self._eager = Event(driver.event_create(), driver.event_destroy)

    def fork(self, origin: int) -> None:
        """Draw them into the capture that has begun on ``origin``."""
        if self.handles:
            order_streams(self._driver, self._captured, origin, *self.handles)

    def follow(self, stream: int) -> None:
        """They wait for what is on ``stream`` now."""
        if self.handles:
            order_streams(self._driver, self._eager, stream, *self.handles)

    def lead(self, stream: int) -> None:
        """``stream`` waits for what is on them now."""
        for handle in self.handles:
            order_streams(self._driver, self._eager, handle, stream)
