"""The flat list of launches and calls that a replay is, in the making; with room made for what it puts on its stream.

room for the next     launches and calls      room for the next     ...
half at most          of so many entries      half at most
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from breakgraph.driver import Driver
from breakgraph.driver.quick import Room, Sequence
from breakgraph.memory.backlog import HALF, Backlog
from breakgraph.segments.landing import Place
from breakgraph.segments.steps import Step

__all__ = ["Call", "FlatList"]

Call: TypeAlias = Callable[[], object]


class FlatList:
    """Launches and calls, and the steps that they belong to.

    Attributes
    ----------
    steps
        Two for each pair of the sequence: that of its launch, and that of its call; None for what is no step's.
    """

    def __init__(self, backlog: Backlog, place: Place) -> None:
        self._backlog, self._place = backlog, place
        self._pairs: list[tuple[int, Call | None]] = []
        self.steps: list[Step | None] = []
        self._room = self._new_room()
        self._left = 0  # of the room
        self._entries = 0  # of all rooms

    def make_room(self, entries: int) -> None:
        """What is added next puts so many entries into the driver's queue, with the interpreter lock."""
        if entries > self._left:
            self._room, self._left = self._new_room(), HALF
            self.add(self._room)
        self._room.entries += entries
        self._entries += entries
        self._left -= entries

    def launch(self, graph_exec: int, step: Step) -> None:
        """Launch an exec; 0 is none."""
        if graph_exec:
            self._pairs.append((graph_exec, None))
            self.steps += (step, step)

    def add(self, call: Call, step: Step | None = None) -> None:
        """Call something."""
        if self._pairs and self._pairs[-1][1] is None:
            self._pairs[-1], self.steps[-1] = (self._pairs[-1][0], call), step
        else:
            self._pairs.append((0, call))
            self.steps += (step, step)

    def add_without_lock(self, call: Call, step: Step, entries: int) -> None:
        """Call something that puts any number of entries into the queue, without the lock."""
        self.add(call, step)
        self.add(partial(self._backlog.add, entries))
        self._left = 0  # what comes next keeps the lock again

    def sequence(self, driver: Driver) -> Sequence:
        """What runs it."""
        sequence = driver.sequence(self._pairs, self._place)
        sequence.entries = self._entries
        return sequence

    def _new_room(self) -> Room:
        place = self._place
        return self._backlog.room(lambda: place.stream)
