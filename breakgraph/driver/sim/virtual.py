"""Virtual memory: reserved addresses, physical memory, and the mapping of one to the other.

Bytes live where they are mapped; while physical memory is mapped nowhere, its content is kept aside.
"""

from __future__ import annotations

from bisect import bisect_right, insort

from breakgraph.driver.sim.contexts import Device
from breakgraph.driver.sim.memory import GRANULARITY, AddressSpace, Area, Bytes
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.errors import Unrecorded

__all__ = ["VirtualMemory"]


class _Physical:
    """Physical memory of a device. ``content`` is None where it is poison, or lives in the mapping."""

    def __init__(self, nbytes: int, device: Device) -> None:
        self.nbytes = nbytes
        self.device = device
        self.content: Bytes | None = None
        self.mapped_at: int | None = None
        self.released = False


class _Reservation:
    def __init__(self, area: Area) -> None:
        self.area = area
        self.starts: list[int] = []  # of mappings, sorted
        self.mappings: dict[int, _Physical] = {}


class VirtualMemory:
    """cuMemAddressReserve, cuMemCreate, cuMemMap and their opposites."""

    def __init__(self, space: AddressSpace, devices: list[Device]) -> None:
        self._space = space
        self._devices = devices
        self.reservations: dict[int, _Reservation] = {}
        self.physical: dict[int, _Physical] = {}

    def reserve(self, nbytes: int) -> int:
        """Addresses with nothing behind them."""
        _check_multiple(nbytes)
        area = self._space.new_area(nbytes)
        self.reservations[area.base] = _Reservation(area)
        return area.base

    def unreserve(self, ptr: int, nbytes: int) -> None:
        """Give addresses back, all that were reserved together, with nothing mapped."""
        reservation = self.reservations.get(ptr)
        if reservation is None or reservation.area.nbytes != nbytes:
            raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes at {ptr:#x} are not what was reserved")
        if reservation.mappings:
            raise Refuse(Result.INVALID_VALUE, "memory is still mapped there")
        del self.reservations[ptr]
        self._space.drop_area(reservation.area)

    def create(self, handle: int, nbytes: int, device: Device) -> None:
        """Physical memory. Its content is poison."""
        _check_multiple(nbytes)
        if device.used + nbytes > device.memory:
            left = device.memory - device.used
            raise Refuse(Result.OUT_OF_MEMORY, f"{nbytes} bytes were asked for, the device has {left} left")
        device.used += nbytes
        self.physical[handle] = _Physical(nbytes, device)

    def release(self, handle: int) -> None:
        """Give physical memory back: at once, or when it is unmapped."""
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
        if physical.mapped_at is not None:
            raise Unrecorded("physical memory was mapped at two places at once")
        reservation = self._reservation(ptr, nbytes)
        at = bisect_right(reservation.starts, ptr)
        last = reservation.starts[at - 1] if at else None
        if (last is not None and last + reservation.mappings[last].nbytes > ptr) or (
            at < len(reservation.starts) and reservation.starts[at] < ptr + nbytes
        ):
            raise Refuse(Result.INVALID_VALUE, "memory is mapped there already")
        insort(reservation.starts, ptr)
        reservation.mappings[ptr] = physical
        physical.mapped_at = ptr
        if physical.content is None:
            reservation.area.poison(ptr, nbytes)
        else:
            reservation.area.at(ptr, nbytes)[:] = physical.content
            physical.content = None

    def unmap(self, ptr: int, nbytes: int) -> None:
        """Take whole mappings away. Touching the addresses is a fault from now on."""
        reservation = self._reservation(ptr, nbytes)
        for start in self._whole(reservation, ptr, nbytes):
            physical = reservation.mappings.pop(start)
            reservation.starts.remove(start)
            physical.mapped_at = None
            if not physical.released:
                physical.content = reservation.area.at(start, physical.nbytes).copy()
            self._settle(physical)
        self._space.close(ptr, nbytes)
        reservation.area.forget(ptr, nbytes)

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
        for reservation in self.reservations.values():
            area = reservation.area
            if area.base <= ptr and ptr + nbytes <= area.base + area.nbytes and not (ptr - area.base) % GRANULARITY:
                return reservation
        raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes at {ptr:#x} are not in one reservation")

    @staticmethod
    def _whole(reservation: _Reservation, ptr: int, nbytes: int) -> list[int]:
        """Where the mappings begin that together are exactly this range."""
        starts = [start for start in reservation.starts if ptr <= start < ptr + nbytes]
        at = ptr
        for start in starts:
            if start != at:
                break
            at += reservation.mappings[start].nbytes
        if at != ptr + nbytes:
            raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes at {ptr:#x} are not whole mappings")
        return starts

    @staticmethod
    def _settle(physical: _Physical) -> None:
        if physical.released and physical.mapped_at is None:
            physical.device.used -= physical.nbytes
            physical.content = None


def _check_multiple(nbytes: int) -> None:
    if nbytes <= 0 or nbytes % GRANULARITY:
        raise Refuse(Result.INVALID_VALUE, f"{nbytes} bytes are not a multiple of the granularity, {GRANULARITY}")
