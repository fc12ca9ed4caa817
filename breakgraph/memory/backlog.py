"""How far the host runs ahead of the device while it keeps the interpreter lock.

A launch waits while the driver's queue is full: of kernels, those in graphs one by one, and of copies. Whoever waits
with the lock stops every Python thread; and for ever, if the device in turn waits for a host function in Python. So at
least every `HALF` entries an event is recorded, and the one before the last is waited for, without the lock if it has
not come. At most three halves are in flight then, which the queue has room for (probes/queue.py). A graph with more
nodes than a half is launched without the lock, and waited for before the lock is kept again.

    entries    --- half ---|--- half ---|--- half ---|--- half ---
    events                 a            b       wait for a,
                                                record it again
"""

from __future__ import annotations

from breakgraph import driver as drivers
from breakgraph.driver import Driver, Event
from breakgraph.driver.api import HasStream
from breakgraph.driver.quick import Room, Tally

__all__ = ["HALF", "Backlog"]

HALF = 256  #: entries of the queue between two events


class Backlog:
    """The launches of what uses one arena, which follow one another on the device (C25); made in its context.

    Attributes
    ----------
    tally
        Entries since the newer event was recorded; none where the last use of the arena is known to be over.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._newer, self._older = (Event(driver.event_create(), driver.event_destroy) for _ in range(2))
        self._between = 0  # entries between the two
        self.tally = Tally(HALF)

    def add(self, entries: int) -> None:
        """So many more were put on a stream without the lock: however many, whoever keeps it comes after them."""
        self.tally.entries += entries

    def room(self, place: HasStream) -> Room:
        """A callable that makes room for as many entries as it is told, on the stream of ``place``."""
        return Room(self.tally, lambda: self._mark(place.stream))

    def make_room(self, entries: int, stream: int) -> None:
        """So many more are about to be put on ``stream`` with the lock, by the user of the arena.

        At most three halves are in flight then, if these are at most one.
        """
        if self.tally.entries + entries > HALF:
            self._mark(stream)
        self.tally.entries += entries

    def _mark(self, stream: int) -> None:
        """Record an event, and let the device come within two halves of it."""
        self._wait_for(self._older)
        self._driver.event_record(self._older.handle, stream)
        self._newer, self._older = self._older, self._newer
        before, self._between, self.tally.entries = self._between, self.tally.entries, 0
        if before + self._between > 2 * HALF:
            self._wait_for(self._older)
        if self._between > 2 * HALF:
            self._wait_for(self._newer)
            self._between = 0

    def _wait_for(self, event: Event) -> None:
        with drivers.relaxed(self._driver):  # a capture elsewhere, in global mode, must not be harmed (C8)
            if not self._driver.event_query(event.handle):
                self._driver.event_synchronize(event.handle)
