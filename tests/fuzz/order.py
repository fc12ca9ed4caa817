"""Which arrays of a forward may be touched where: every stream has a clock, every allocation remembers who touched it.

One segment is looked at; when it ends, all of it comes before whatever follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Order", "Root", "Var"]


class _Touch(NamedTuple):
    mask: int
    stream: int
    time: int
    write: bool


@dataclass(eq=False)
class Root:
    """One allocation. ``bound`` is that of its values, ``claimed`` the elements in which a break lands.

    ``sealed``: what is one allocation in an eager run may be two in a captured one, so nothing may be written.
    """

    bound: int
    persistent: bool = False
    claimed: int = 0
    sealed: bool = False
    touched: list[_Touch] = field(default_factory=list)


@dataclass(eq=False)
class Var:
    """An array: elements of an allocation, by number. ``mask`` has a bit for each."""

    number: int
    root: Root
    elements: np.ndarray[Any, np.dtype[np.int64]]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    @cached_property
    def mask(self) -> int:
        found = 0
        for element in self.elements.ravel().tolist():
            found |= 1 << element
        return found

    def overlaps(self, other: Var) -> bool:
        return self.root is other.root and bool(self.mask & other.mask)

    def same(self, other: Var) -> bool:
        """Whether both are the same elements in the same places."""
        return self.root is other.root and np.array_equal(self.elements, other.elements)


class Order:
    """What comes before what in the segment under way. Streams 0 and ``always`` are part of each from its beginning."""

    def __init__(self, streams: int, always: tuple[int, ...]) -> None:
        self._streams = streams
        self._always = always
        self._roots: list[Root] = []  # touched in this segment
        self.begin()

    def begin(self) -> None:
        """A segment begins: everything so far comes before all of it."""
        for root in self._roots:
            root.touched.clear()
        self._roots.clear()
        self._clocks = [[0] * (self._streams + 1) for _ in range(self._streams + 1)]
        self.active = [0, *self._always]
        self.events: dict[int, list[int]] = {}

    def wait(self, stream: int, clock: list[int]) -> None:
        """The stream's next work comes after whatever lies before ``clock``; the stream is part of the segment."""
        self._clocks[stream] = list(map(max, self._clocks[stream], clock))
        if stream not in self.active:
            self.active.append(stream)

    def clock(self, stream: int) -> list[int]:
        return list(self._clocks[stream])

    def readable(self, var: Var, stream: int) -> bool:
        clock = self._clocks[stream]
        return all(
            not one.write or not one.mask & var.mask or clock[one.stream] >= one.time for one in var.root.touched
        )

    def writable(self, var: Var, stream: int) -> bool:
        clock = self._clocks[stream]
        return not var.root.sealed and all(
            not one.mask & var.mask or clock[one.stream] >= one.time for one in var.root.touched
        )

    def work(self, stream: int, reads: list[Var], writes: list[Var]) -> None:
        """The stream does something with arrays."""
        clock = self._clocks[stream]
        clock[stream] += 1
        for write, arrays in ((False, reads), (True, writes)):
            for var in arrays:
                self._roots.append(var.root)
                var.root.touched.append(_Touch(var.mask, stream, clock[stream], write))
