"""How far the host may run ahead of the device while it keeps the interpreter lock.

A launch waits while the driver's queue is full. Whoever waits with the lock stops every Python thread; and for ever,
if the device in turn waits for a host function in Python. So every `HALF` launches an event is recorded, and the one
before the last is waited for, without the lock if it has not come. At most three halves are in flight then, which the
queue has room for (probes/queue.py).

    launches    --- half ---|--- half ---|--- half ---|--- half ---
    events                  a            b       wait for a,
                                                 record it again
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext

from breakgraph import driver as drivers
from breakgraph.driver import Driver, Event
from breakgraph.memory import Arena
from breakgraph.segments.collector import open_captures

__all__ = ["HALF", "Backlog", "backlog_of"]

HALF = 256  #: launches between two events


class Backlog:
    """The launches of the graphs of one arena, whose replays follow one another on the device (C25)."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._newer, self._older = (Event(driver.event_create(), driver.event_destroy) for _ in range(2))
        self._launches = 0

    def add(self, launches: int, stream: int) -> None:
        """So many more are about to be made."""
        self._launches += launches
        if self._launches >= HALF:
            self.wait(stream)

    def wait(self, stream: int) -> None:
        """Let the device come within two halves of what is launched so far."""
        driver = self._driver
        self._launches = 0
        self._newer, self._older = self._older, self._newer
        # Where another thread captures in global mode, asking would harm it (C8).
        with drivers.relaxed(driver) if open_captures else nullcontext():
            if not driver.event_query(self._newer.handle):
                driver.event_synchronize(self._newer.handle)
        driver.event_record(self._newer.handle, stream)


_backlogs: weakref.WeakKeyDictionary[Arena, Backlog] = weakref.WeakKeyDictionary()


def backlog_of(driver: Driver, arena: Arena) -> Backlog:
    """The one backlog of an arena; made in its context, which is current."""
    found = _backlogs.get(arena)
    return found if found is not None else _backlogs.setdefault(arena, Backlog(driver))
