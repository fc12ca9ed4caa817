"""The order of streams: one waits, on the device, for what is on another."""

from __future__ import annotations

from breakgraph.driver.api import Driver
from breakgraph.driver.owned import Event

__all__ = ["order_streams"]


def order_streams(driver: Driver, event: Event, before: int, *after: int) -> None:
    """Let the streams ``after`` wait for what is on stream ``before`` now. The event may serve again at once."""
    driver.event_record(event.handle, before)
    for stream in after:
        driver.stream_wait_event(stream, event.handle)
