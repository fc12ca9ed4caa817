"""How far the host runs ahead of the device while it keeps the interpreter lock.

A launch waits while the driver's queue is full: of kernels, those in graphs one by one, and of copies. Whoever waits
with the lock stops every Python thread; and for ever, if the device in turn waits for a host function in Python. So at
least every `HALF` entries an event is recorded, and the one before the last is waited for, without the lock if it has
not come. At most three halves are in flight then, which the queue has room for (probes/queue.py); and a graph with more
nodes than a half is launched without the lock.

    entries    --- half ---|--- half ---|--- half ---|--- half ---
    events                 a            b       wait for a,
                                                record it again
"""

from __future__ import annotations

from breakgraph import driver as drivers
from breakgraph.driver import Driver, Event

__all__ = ["HALF", "Backlog"]

HALF = 256  #: entries of the queue between two events


class Backlog:
    """The launches of what uses one arena, which follow one another on the device (C25); made in its context."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._newer, self._older = (Event(driver.event_create(), driver.event_destroy) for _ in range(2))
        self._entries = 0  # since the newer event was recorded

    def make_room(self, entries: int, stream: int) -> None:
        """So many more are about to be put on ``stream``, whose user has the arena: at most `HALF`, if it can be."""
        if self._entries + entries > HALF:
            self._wait(stream)
        self._entries += entries

    def _wait(self, stream: int) -> None:
        """Let the device come within two halves of what is launched so far."""
        driver, due = self._driver, self._older.handle
        with drivers.relaxed(driver):  # a capture elsewhere, in global mode, must not be harmed (C8)
            if not driver.event_query(due):
                driver.event_synchronize(due)
        driver.event_record(due, stream)
        self._newer, self._older = self._older, self._newer
        self._entries = 0
