"""Results in memory of the graph's own, refreshed by a copy in a segment: `BreakableGraph.output`."""

from __future__ import annotations

from typing import Any

from breakgraph import driver as drivers
from breakgraph.driver import Event
from breakgraph.driver.order import order_streams
from breakgraph.errors import NotCopyable
from breakgraph.frameworks import Array, Framework
from breakgraph.memory import Cell, is_registered, tree
from breakgraph.memory.array_copy import ArrayCopy
from breakgraph.segments.destinations import Ownership
from breakgraph.segments.holdings import Holdings
from breakgraph.segments.side_streams import SideStreams
from breakgraph.segments.streams import framework_streams

__all__ = ["Outputs"]


class Outputs:
    """Makes the outputs of one capture, which its holdings keep."""

    def __init__(self, holdings: Holdings, ownership: Ownership, sides: SideStreams, origin: int) -> None:
        self._holdings, self._ownership, self._sides, self._origin = holdings, ownership, sides, origin
        self._event: Event | None = None

    def pin(self, value: Any) -> Any:
        """The value with its arrays copied, in the open segment, into memory of the graph's own.

        Raises `NotCopyable` where there is no device array in it, or one of a type that only its own handler copies.
        """
        self._sides.join()  # they may have been written on other streams
        found = False

        def copied(leaf: Any) -> Any:
            nonlocal found
            array = leaf.array if isinstance(leaf, Cell) else leaf
            framework = self._ownership.framework(array)
            if framework is not None:
                found = True
                return self._copied(framework, array)
            if is_registered(leaf):
                raise _refused(leaf, "its handler copies into a destination, and there is none")
            return leaf

        pinned = tree.rebuild(value, copied, is_leaf=self._ownership.is_storage)
        if not found:
            raise _refused(value, "no device array was found in it")
        self._holdings.outputs.append(pinned)
        return pinned

    def _copied(self, framework: Framework, array: Array) -> Array:
        source, driver = framework.view(array), self._holdings.driver
        with framework.outside_scope(), drivers.relaxed(driver):
            memory = framework.empty(source.shape, source.dtype)
        region = framework.view(memory)
        made = framework.like(array, region, memory)
        self._holdings.kept.append(made)
        self._holdings.output_bytes += region.nbytes
        ArrayCopy(framework, made, region, array, source).run(self._origin)
        (current,) = framework_streams(driver, [framework]) or [self._origin]
        if current != self._origin and self._sides.forks.include(current):  # what comes there next is after the copy
            if self._event is None:
                self._event = Event(driver.event_create(), driver.event_destroy)
            order_streams(driver, self._event, self._origin, current)
        return made


def _refused(value: object, why: str) -> NotCopyable:
    return NotCopyable(
        f"an output of type {type(value).__name__} cannot be kept",
        why=why,
        remedy="pass arrays, or tuples, lists, mappings or dataclasses of them",
    )
