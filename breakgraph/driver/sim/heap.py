"""Device memory from cuMemAlloc and from the stream-ordered pool."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from breakgraph.driver.sim.contexts import Context, Device
from breakgraph.driver.sim.memory import ALIGNMENT, GRANULARITY, AddressSpace, Area
from breakgraph.driver.sim.races import Clock, RaceFinder
from breakgraph.driver.sim.ranges import FreeRanges
from breakgraph.driver.sim.results import Refuse, Result

__all__ = ["Allocation", "Heaps"]


_MOST_RETURNED = 256  # remembered for the race finder; older ones have most likely been waited for


@dataclass(eq=False)
class Allocation:
    """``nbytes`` at ``ptr``, of which the heap holds ``size``. ``pooled``: from the stream-ordered pool."""

    ptr: int
    nbytes: int
    size: int
    area: Area
    context: Context
    pooled: bool
    of_graph: bool = False


class Heaps:
    """One heap per device. Addresses are handed out first fit; memory counts while it is allocated."""

    def __init__(self, space: AddressSpace, devices: list[Device], finder: RaceFinder) -> None:
        self._space = space
        self._finder = finder
        self._areas: list[Area | None] = [None] * len(devices)
        self._free: list[FreeRanges | None] = [None] * len(devices)
        self.live: dict[int, Allocation] = {}
        self.of_graphs: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()
        self._returned: list[tuple[int, int, Clock]] = []
        self._forgotten: Clock = {}  # lies before all that is handed out: rather miss a race than invent one

    def take(self, nbytes: int, context: Context, *, pooled: bool = False) -> Allocation:
        """Addresses and memory, which may not be touched before `open`. `Refuse` 1 for no bytes, 2 for too many."""
        if nbytes <= 0:
            raise Refuse(Result.INVALID_VALUE, "an allocation has at least one byte")
        device = context.device
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        area, free = self._of(device)
        ptr = free.take(size) if device.used + size <= device.memory else None
        if ptr is None:
            left = device.memory - device.used
            raise Refuse(Result.OUT_OF_MEMORY, f"{nbytes} bytes were asked for, the device has {left} left")
        self._charge(device, size, pooled)
        allocation = Allocation(ptr, nbytes, size, area, context, pooled)
        self.live[ptr] = allocation
        return allocation

    def take_for_graph(self, nbytes: int, context: Context) -> Allocation:
        """Addresses for an allocation node: its memory comes when the node runs, and its addresses are its own."""
        if nbytes <= 0:
            raise Refuse(Result.INVALID_VALUE, "an allocation has at least one byte")
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        area = self._space.new_area(-(-nbytes // GRANULARITY) * GRANULARITY)
        allocation = Allocation(area.base, nbytes, size, area, context, pooled=True, of_graph=True)
        self.of_graphs[area.base] = allocation
        weakref.finalize(allocation, self._space.drop_area, area)
        return allocation

    def open(self, allocation: Allocation) -> None:
        """Let it be touched. What it holds is poison."""
        if allocation.of_graph:
            self._charge(allocation.context.device, allocation.size, pooled=True)
        allocation.area.poison(allocation.ptr, allocation.nbytes)
        devices = frozenset({allocation.context.device.ordinal})
        self._space.open(allocation.ptr, allocation.nbytes, allocation.area, devices)

    def at(self, ptr: int) -> Allocation:
        """The live allocation that begins at ``ptr``; `Refuse` 1 where there is none."""
        if ptr not in self.live:
            raise Refuse(Result.INVALID_VALUE, f"no live allocation begins at {ptr:#x}")
        return self.live[ptr]

    def retire(self, allocation: Allocation) -> None:
        """It is freed for the program. Its bytes stay until `close`."""
        del self.live[allocation.ptr]

    def before(self, allocation: Allocation) -> list[Clock]:
        """What lies before the first use of bytes that came back in stream order."""
        low, high = allocation.ptr, allocation.ptr + allocation.size
        return [self._forgotten, *(clock for start, end, clock in self._returned if start < high and low < end)]

    def close(self, allocation: Allocation, clock: Clock | None = None) -> None:
        """Nothing may touch it any more; its addresses and memory serve again.

        Where they come back in stream order, whoever has them next comes after ``clock``.
        """
        if clock is not None:
            if len(self._returned) > _MOST_RETURNED:
                # An empty clock is that of a free which is running just now.
                self._returned = [one for one in self._returned if not (one[2] and self._finder.has_waited(one[2]))]
            if len(self._returned) > _MOST_RETURNED:
                for lane, time in self._returned.pop(0)[2].items():
                    self._forgotten[lane] = max(time, self._forgotten.get(lane, 0))
            self._returned.append((allocation.ptr, allocation.ptr + allocation.size, clock))
        self._space.close(allocation.ptr, allocation.nbytes)
        device = allocation.context.device
        self._charge(device, -allocation.size, allocation.pooled)
        if not allocation.of_graph:
            self._of(device)[1].give(allocation.ptr, allocation.size)

    def _of(self, device: Device) -> tuple[Area, FreeRanges]:
        area, free = self._areas[device.ordinal], self._free[device.ordinal]
        if area is None or free is None:
            room = -(-device.memory // GRANULARITY) * GRANULARITY
            area = self._areas[device.ordinal] = self._space.new_area(room)
            free = self._free[device.ordinal] = FreeRanges(area.base, area.base + room)
        return area, free

    @staticmethod
    def _charge(device: Device, nbytes: int, pooled: bool) -> None:
        device.used += nbytes
        if pooled:
            device.pool_used += nbytes
            device.pool_high = max(device.pool_high, device.pool_used)
