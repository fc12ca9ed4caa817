"""The stream a capture runs on, and its order with the streams of the frameworks around it (C1, C24)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from breakgraph import driver as drivers
from breakgraph.driver import Driver, Event, Stream, StreamHandle, stream_handle
from breakgraph.driver.api import STREAM_LEGACY, CaptureStatus
from breakgraph.driver.order import order_streams
from breakgraph.errors import CaptureImplicit, CaptureStateError, DriverError
from breakgraph.frameworks import Framework, taking_part

__all__ = [
    "Workplace",
    "chosen_stream",
    "eager_stream",
    "framework_streams",
    "refuse_capturing",
    "refuse_foreign",
    "workplace",
]


_NOT_OF_THIS_CONTEXT = (1, 400)  # invalid value, invalid handle: what the driver answers for such a stream


@dataclass(frozen=True)
class Workplace:
    """What a thread keeps for its captures in one context: a non-blocking stream, and an event to order streams by."""

    stream: Stream
    event: Event

    def order(self, driver: Driver, before: int, after: int) -> None:
        """Let stream ``after`` wait for what is on stream ``before`` now."""
        order_streams(driver, self.event, before, after)


def workplace(driver: Driver, context: int) -> Workplace:
    """The calling thread's own for a context, made at first use."""
    places: dict[int, Workplace] = drivers.per_thread(driver).__dict__.setdefault("workplaces", {})
    key = driver.ctx_get_id(context)
    if key not in places:
        places[key] = Workplace(driver.create_stream(), Event(driver.event_create(), driver.event_destroy))
    return places[key]


def chosen_stream(driver: Driver, stream: object) -> int:
    """The handle of a stream that the caller gives for a capture.

    Raises `CaptureStateError` for the legacy default stream, which the driver cannot capture.
    """
    handle = driver.resolve_stream(stream_handle(stream))
    if handle == STREAM_LEGACY:
        raise CaptureStateError(
            "the legacy default stream was given for a capture",
            why="it synchronizes with every blocking stream, so the driver refuses to capture it (900)",
            remedy="give a stream of your own (bg.driver.current().create_stream()), or none",
        )
    return handle


def framework_streams(driver: Driver, frameworks: Iterable[Framework]) -> list[int]:
    """The current stream of each framework that has one, each stream once."""
    found: list[int] = []  # a loop, since each replay asks
    for framework in frameworks:
        stream = framework.current_stream()
        if stream is not None and (handle := driver.resolve_stream(stream)) not in found:
            found.append(handle)
    return found


def eager_stream() -> StreamHandle | None:
    """The current stream of the first framework in use, where there is one."""
    driver = drivers.current()
    streams = framework_streams(driver, taking_part(driver))
    return StreamHandle(streams[0]) if streams else None


def refuse_foreign(driver: Driver, event: int, stream: int, use: str) -> None:
    """Refuse a stream of another context than the current one, before anything is put on it.

    An event can only be recorded on a stream of its own context (CUDA driver API, cuEventRecord).
    """
    try:
        driver.event_record(event, stream)
    except DriverError as error:
        if error.code not in _NOT_OF_THIS_CONTEXT:
            raise
        raise CaptureStateError(
            f"stream {stream:#x} cannot be {use}: it is no stream of the current context",
            why=f"an event of this context cannot be recorded on it ({error.name})",
            remedy="make the stream where bg.driver.current() and the current context are those of the graph",
        ) from error


def refuse_capturing(driver: Driver, stream: int, use: str) -> None:
    """Refuse a stream that is capturing for someone else, before a call could draw ours into that capture.

    A wait on an event of a capturing stream makes the waiting stream part of its capture (DRIVER_FACTS).
    """
    try:
        status = driver.stream_is_capturing(stream)
    except CaptureImplicit as error:
        raise CaptureStateError(
            f"the default stream cannot be {use}: a blocking stream is capturing",
            why="the default stream synchronizes with blocking streams, so it would be drawn into that capture (906)",
            remedy="end that capture first, or make another stream current",
        ) from error
    if status != CaptureStatus.NONE:
        raise CaptureStateError(
            f"stream {stream:#x} cannot be {use}: it is capturing for someone else",
            why="work put on it, and streams that wait for it, would become part of that capture",
            remedy="end that capture first, or use another stream",
        )
