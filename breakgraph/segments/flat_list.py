"""The flat list of launches and calls that a replay is, in the making; with room made for what it puts on its stream.

room for the next     launches and calls      room for the next     ...
half at most          of so many entries      half at most
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
        self._room: Room | None = None
        self._left = 0  # of the room
        self._entries = 0  # of the rooms before that

    def make_room(self, entries: int, before: Collection[Call] = (), after: Collection[Call] = ()) -> None:
        """What is added next puts so many entries into the driver's queue, with the interpreter lock.

        ``before`` is called at once, ``after`` will be; each may record an event.
        """
        if before or after:
            entries += len(before) + len(after)
        if entries > self._left:
            self._close_room()
            self._room, self._left = self._backlog.room(self._place), HALF
            self.add(self._room)
        self._left -= entries
        for call in before:
            self.add(call)

    def launch(self, graph_exec: int, step: Step) -> None:
        """Launch an exec."""
        self._pairs.append((graph_exec, None))
        self.steps += (step, step)

    def add(self, call: Call, step: Step | None = None) -> None:
        """Call something."""
        pairs = self._pairs
        if pairs and pairs[-1][1] is None:
            pairs[-1], self.steps[-1] = (pairs[-1][0], call), step
        else:
            pairs.append((0, call))
            self.steps += (step, step)

    def add_without_lock(self, call: Call, step: Step, entries: int) -> None:
        """Call something that puts any number of entries into the queue, without the lock."""
        self.add(call, step)
        self.add(partial(self._backlog.add, entries))
        self._close_room()
        self._left = 0  # what comes next keeps the lock again

    def sequence(self, driver: Driver) -> Sequence:
        """What runs it."""
        self._close_room()
        sequence = driver.sequence(self._pairs, self._place)
        sequence.entries = self._entries
        return sequence

    def _close_room(self) -> None:
        """No more is put into the queue before room is made again."""
        if self._room is not None:
            self._room.entries = HALF - self._left
            self._entries += self._room.entries
            self._room = None
