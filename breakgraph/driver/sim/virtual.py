"""Virtual memory: reserved addresses, physical memory, and the mapping of one to the other.

Physical memory may be mapped at several addresses at once (CUDA programming guide, "Virtual Aliasing Support"): a
write through one of them is seen through the others. Its content stays until it is released and mapped nowhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from breakgraph.driver.sim.aliases import Aliases
from breakgraph.driver.sim.backing import Backing
from breakgraph.driver.sim.contexts import Device
from breakgraph.driver.sim.memory import GRANULARITY, POISON, AddressSpace, Area
from breakgraph.driver.sim.results import Refuse, Result

__all__ = ["VirtualMemory"]

_POISON = bytes([POISON]) * GRANULARITY


class _Physical:
    """Physical memory of a device: ``nbytes`` at ``offset`` of the backing."""

    def __init__(self, nbytes: int, offset: int, device: Device) -> None:
        self.nbytes = nbytes
        self.offset = offset
        self.device = device
        self.poisoned = False  # which is left for the first mapping, since it takes the host's memory
        self.mapped_at: list[int] = []  # in the order of mapping
        self.released = False


class _Reservation:
    def __init__(self, area: Area) -> None:
        self.area = area
        self.starts: list[int] = []  # of mappings, sorted
        self.mappings: dict[int, _Physical] = {}


class VirtualMemory:
    """cuMemAddressReserve, cuMemCreate, cuMemMap and their opposites.

    Where one physical memory is mapped more than once, ``aliases`` tells.
    """

    def __init__(self, space: AddressSpace, aliases: Aliases) -> None:
        self._space = space
        self._aliases = aliases
        self.backing = Backing()
        self.reservations: dict[int, _Reservation] = {}
        self._bases: list[int] = []  # of reservations, sorted
        self.physical: dict[int, _Physical] = {}

    def reserve(self, nbytes: int) -> int:
        """Addresses with nothing behind them."""
        _check_multiple(nbytes)
        area = self._space.new_area(nbytes)
        self.reservations[area.base] = _Reservation(area)
        insort(self._bases, area.base)
        return area.base

    def unreserve(self, ptr: int, nbytes: int) -> None:
        """Give addresses back, all that were reserved together, with nothing mapped."""
        reservation = self.reservations.get(ptr)
        if reservation is None or reservation.area.nbytes != nbytes:
            raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes at {ptr:#x} are not what was reserved")
        if reservation.mappings:
            raise Refuse(Result.INVALID_VALUE, "memory is still mapped there")
        del self.reservations[ptr]
        del self._bases[bisect_left(self._bases, ptr)]
        self._space.drop_area(reservation.area)

    def create(self, handle: int, nbytes: int, device: Device) -> None:
        """Physical memory. Its content is poison."""
        _check_multiple(nbytes)
        if device.used + nbytes > device.memory:
            left = device.memory - device.used
            raise Refuse(Result.OUT_OF_MEMORY, f"{nbytes} bytes were asked for, the device has {left} left")
        try:
            offset = self.backing.take(nbytes)
        except OSError as error:
            raise _refused_by_host(error) from error
        device.used += nbytes
        self.physical[handle] = _Physical(nbytes, offset, device)

    def release(self, handle: int) -> None:
        """Give physical memory back: at once, or when it is mapped nowhere any more."""
        physical = self.physical.pop(handle, None)
        if physical is None:
            raise Refuse(Result.INVALID_VALUE, f"{handle:#x} is not the handle of physical memory")
        physical.released = True
        self._settle(physical)

    def map(self, ptr: int, nbytes: int, handle: int) -> None:
        """Put physical memory behind addresses. It cannot be touched before `allow`."""
        physical = self.physical.get(handle)
        if physical is None or physical.nbytes != nbytes:
            raise Refuse(Result.INVALID_VALUE, f"{handle:#x} is not physical memory of {nbytes} bytes")
        reservation = self._reservation(ptr, nbytes)
        at = bisect_right(reservation.starts, ptr)
        last = reservation.starts[at - 1] if at else None
        if (last is not None and last + reservation.mappings[last].nbytes > ptr) or (
            at < len(reservation.starts) and reservation.starts[at] < ptr + nbytes
        ):
            raise Refuse(Result.INVALID_VALUE, "memory is mapped there already")
        try:
            self._poison(physical)
            reservation.area.show(ptr, self.backing, physical.offset, nbytes)
        except OSError as error:
            raise _refused_by_host(error) from error
        reservation.starts.insert(at, ptr)
        reservation.mappings[ptr] = physical
        if physical.mapped_at:
            self._aliases.add(ptr, nbytes, physical.mapped_at[0])
        physical.mapped_at.append(ptr)

    def unmap(self, ptr: int, nbytes: int) -> None:
        """Take whole mappings away. Touching the addresses is a fault from now on."""
        reservation = self._reservation(ptr, nbytes)
        starts = self._whole(reservation, ptr, nbytes)
        try:
            reservation.area.forget(ptr, nbytes)
        except OSError as error:
            raise _refused_by_host(error) from error
        self._space.close(ptr, nbytes)
        at = bisect_left(reservation.starts, ptr)
        del reservation.starts[at : at + len(starts)]
        for start in starts:
            physical = reservation.mappings.pop(start)
            self._leave(physical, start)
            self._settle(physical)

    def allow(self, ptr: int, nbytes: int, device: Device) -> None:
        """Let a device read and write whole mappings."""
        reservation = self._reservation(ptr, nbytes)
        for start in self._whole(reservation, ptr, nbytes):
            size = reservation.mappings[start].nbytes
            devices = self._space.devices_at(start) | {device.ordinal}
            self._space.close(start, size)
            self._space.open(start, size, reservation.area, frozenset(devices), joins=True)

    def _reservation(self, ptr: int, nbytes: int) -> _Reservation:
        _check_multiple(nbytes)
        at = bisect_right(self._bases, ptr) - 1
        if at >= 0:
            reservation = self.reservations[self._bases[at]]
            area = reservation.area
            if ptr + nbytes <= area.base + area.nbytes and not (ptr - area.base) % GRANULARITY:
                return reservation
        raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes at {ptr:#x} are not in one reservation")

    @staticmethod
    def _whole(reservation: _Reservation, ptr: int, nbytes: int) -> list[int]:
        """Where the mappings begin that together are exactly this range."""
        all_ = reservation.starts
        starts = all_[bisect_left(all_, ptr) : bisect_left(all_, ptr + nbytes)]
        at = ptr
        for start in starts:
            if start != at:
                break
            at += reservation.mappings[start].nbytes
        if at != ptr + nbytes:
            raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes at {ptr:#x} are not whole mappings")
        return starts

    def _poison(self, physical: _Physical) -> None:
        if not physical.poisoned:
            for at in range(physical.offset, physical.offset + physical.nbytes, GRANULARITY):
                self.backing.fill(at, _POISON)
            physical.poisoned = True

    def _leave(self, physical: _Physical, ptr: int) -> None:
        """It is not mapped at ``ptr`` any more; if that was its first mapping, another one is the first now."""
        first, *others = physical.mapped_at
        physical.mapped_at.remove(ptr)
        if ptr != first:
            self._aliases.remove(ptr)
            return
        for other in others:
            self._aliases.remove(other)
        for other in others[1:]:
            self._aliases.add(other, physical.nbytes, others[0])

    def _settle(self, physical: _Physical) -> None:
        if physical.released and not physical.mapped_at:
            physical.device.used -= physical.nbytes
            self.backing.give(physical.offset, physical.nbytes)


def _refused_by_host(error: OSError) -> Refuse:
    return Refuse(Result.OUT_OF_MEMORY, f"the host cannot give or map the memory: {error}")


def _check_multiple(nbytes: int) -> None:
    if nbytes <= 0 or nbytes % GRANULARITY:
        raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes are not a multiple of the granularity, {GRANULARITY}")
