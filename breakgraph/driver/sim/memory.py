"""S2: an address space of bytes. What may be touched is tracked; anything else is a fault.

Device addresses lie far above anything a process can map, so that one is never mistaken for a host address;
dereferencing it on the host crashes at once.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

from breakgraph.driver.region import Region
from breakgraph.driver.sim.backing import ANONYMOUS, Backing, map_anonymous
from breakgraph.driver.sim.ranges import FreeRanges
from breakgraph.driver.sim.results import Refuse, Result

__all__ = [
    "ALIGNMENT",
    "GRANULARITY",
    "POISON",
    "AddressSpace",
    "Area",
    "Bytes",
    "Fault",
    "HostMemory",
    "is_device_address",
]

Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 512  #: bytes; what cuMemAlloc aligns to, at least
GRANULARITY = 2 << 20  #: bytes; of physical memory and of address reservations, as on an H200

# Non-canonical on x86-64 and arm64 with 5-level page tables, and still positive as a signed 64-bit integer.
_FIRST = 0x0D00_0000_0000_0000
_LAST = 0x0E00_0000_0000_0000

POISON = 0xFF  #: as a float of any width NaN, so that what was computed from it shows; as an integer -1


def is_device_address(ptr: int) -> bool:
    """Whether ``ptr`` is, or ever was, an address on a simulated device."""
    return _FIRST <= ptr < _LAST


class Fault(Exception):
    """An operation touched bytes that it may not touch."""


class Area:
    """A run of addresses with one run of host addresses behind it, so that any region inside it is one array.

    Host memory is taken when it is touched. All goes when the area and the last array over it are gone.
    """

    def __init__(self, base: int, nbytes: int) -> None:
        self.base = base
        self.nbytes = nbytes
        self._memory = mmap.mmap(-1, nbytes, ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def at(self, ptr: int, nbytes: int) -> Bytes:
        """The bytes at ``ptr``, unchecked."""
        return np.ndarray((nbytes,), np.uint8, self._memory, ptr - self.base)

    def view(self, region: Region) -> npt.NDArray[Any]:
        """The region as an array, unchecked."""
        return np.ndarray(region.shape, region.dtype, self._memory, region.ptr - self.base, region.strides)

    def poison(self, ptr: int, nbytes: int) -> None:
        """Overwrite, so that reading before writing shows."""
        self.at(ptr, nbytes).fill(POISON)

    def show(self, ptr: int, backing: Backing, offset: int, nbytes: int) -> None:
        """Let the bytes at ``ptr`` be those of the backing. OSError where the host refuses; then they are as before."""
        backing.show(self.address + ptr - self.base, nbytes, offset)

    def forget(self, ptr: int, nbytes: int) -> None:
        """Let these bytes be the area's own again, without host memory. OSError as in `show`."""
        map_anonymous(self.address + ptr - self.base, nbytes)


class _Span:
    """Addresses that may be touched, by the devices named."""

    __slots__ = ("area", "devices", "end", "joins", "start")

    def __init__(self, start: int, end: int, area: Area, devices: frozenset[int], joins: bool) -> None:
        self.start, self.end, self.area, self.devices, self.joins = start, end, area, devices, joins


class AddressSpace:
    """Which addresses exist, and which of them may be touched."""

    def __init__(self) -> None:
        self._free = FreeRanges(_FIRST, _LAST)
        self._starts: list[int] = []
        self._spans: list[_Span] = []

    # areas ----------------------------------------------------------------------------------------------
    def new_area(self, nbytes: int) -> Area:
        """New addresses, none of which may be touched yet. ``nbytes`` is a multiple of the granularity."""
        base = self._free.take(nbytes)
        if base is None:
            raise Refuse(Result.OUT_OF_MEMORY, "no addresses are left")
        try:
            return Area(base, nbytes)
        except (OSError, ValueError, OverflowError) as error:
            self._free.give(base, nbytes)
            raise Refuse(Result.OUT_OF_MEMORY, f"the host has no addresses left: {error}") from error

    def drop_area(self, area: Area) -> None:
        """Let the addresses be handed out again."""
        self._free.give(area.base, area.nbytes)

    # what may be touched --------------------------------------------------------------------------------
    def open(self, start: int, nbytes: int, area: Area, devices: frozenset[int], *, joins: bool = False) -> None:
        """Allow touching; ``joins`` lets an access run on into an adjacent range that joins too."""
        end = start + nbytes
        at = bisect_right(self._starts, start)
        if joins and at and self._fits(self._spans[at - 1], area, devices) and self._spans[at - 1].end == start:
            at -= 1
            start = self._spans[at].start
            del self._starts[at], self._spans[at]
        if joins and at < len(self._spans) and self._fits(self._spans[at], area, devices) and self._starts[at] == end:
            end = self._spans[at].end
            del self._starts[at], self._spans[at]
        self._starts.insert(at, start)
        self._spans.insert(at, _Span(start, end, area, devices, joins))

    def close(self, start: int, nbytes: int) -> None:
        """Forbid touching the bytes, of which some may be forbidden already."""
        end = start + nbytes
        at = max(bisect_right(self._starts, start) - 1, 0)
        while at < len(self._spans) and self._spans[at].start < end:
            span = self._spans[at]
            if span.end <= start:
                at += 1
                continue
            del self._starts[at], self._spans[at]
            for low, high in ((span.start, start), (end, span.end)):
                if low < high:
                    self._starts.insert(at, low)
                    self._spans.insert(at, _Span(low, high, span.area, span.devices, span.joins))
                    at += 1

    def devices_at(self, ptr: int) -> frozenset[int]:
        """The devices that may touch the byte at ``ptr``."""
        at = bisect_right(self._starts, ptr) - 1
        return self._spans[at].devices if at >= 0 and ptr < self._spans[at].end else frozenset()

    def locate(self, low: int, high: int, device: int | None = None) -> Area:
        """The area that holds the bytes from ``low`` to ``high`` (exclusive), all of which may be touched.

        ``device`` is the one that touches; None for a copy engine, which reaches every device. Raises
        `Fault`.
        """
        at = bisect_right(self._starts, low) - 1
        if at >= 0:
            span = self._spans[at]
            if high <= span.end:
                if device is None or device in span.devices:
                    return span.area
                raise Fault(f"device {device} has no access to the {high - low} bytes at {low:#x}")
        if not is_device_address(low):
            raise Fault(f"{low:#x} is not a device address")
        raise Fault(
            f"the {high - low} bytes at {low:#x} are not allocated and mapped, or are so only in part;"
            " if they were freed, keep every array alive that a segment reads"
        )

    def bytes(self, ptr: int, nbytes: int, device: int | None = None) -> Bytes:
        """The bytes at ``ptr``, checked. Raises `Fault`."""
        return self.locate(ptr, ptr + nbytes, device).at(ptr, nbytes)

    def view(self, region: Region, device: int) -> npt.NDArray[Any]:
        """The region as an array, checked. Raises `Fault`."""
        low, high = region.bounds
        if low == high:
            return np.empty(region.shape, region.dtype)
        return self.locate(low, high, device).view(region)

    @staticmethod
    def _fits(span: _Span, area: Area, devices: frozenset[int]) -> bool:
        return span.joins and span.area is area and span.devices == devices


class HostMemory:
    """Pinned host memory. Pageable memory is the process's own, and not tracked.

    A freed block keeps its addresses until it is handed out again: a stale address faults and does not
    crash the process.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[int, int, mmap.mmap]] = {}  # address: bytes, bytes of the block, block
        self._freed: list[tuple[int, int, mmap.mmap]] = []  # address, bytes of the block, block

    @property
    def live(self) -> tuple[int, ...]:
        """Addresses of the live blocks."""
        return tuple(self._live)

    def allocate(self, nbytes: int) -> int:
        """The address of ``nbytes`` bytes of pinned memory, poisoned."""
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        fitting = next((freed for freed in self._freed if freed[1] == size), None)
        if fitting is not None:
            self._freed.remove(fitting)
            address, _, block = fitting
        else:
            block = mmap.mmap(-1, size)
            address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        ctypes.memset(address, POISON, nbytes)
        self._live[address] = (nbytes, size, block)
        return address

    def size(self, ptr: int) -> int:
        """Bytes of the live block at ``ptr``; `Refuse` where there is none."""
        if ptr not in self._live:
            raise Refuse(Result.INVALID_VALUE, f"{ptr:#x} is not the address of pinned memory")
        return self._live[ptr][0]

    def free(self, ptr: int) -> None:
        """Give a block back."""
        _, size, block = self._live.pop(ptr)
        self._freed.append((ptr, size, block))

    def pinned(self, ptr: int) -> bool:
        """Whether the address is in a live block."""
        return any(base <= ptr < base + size for base, (_, size, _) in self._live.items())

    def check(self, ptr: int, nbytes: int) -> None:
        """Raise `Fault` unless a copy may touch these host bytes."""
        if is_device_address(ptr):
            raise Fault(f"{ptr:#x} is a device address, used as a host address")
        for base, size, _ in self._freed:
            if base < ptr + nbytes and ptr < base + size:
                raise Fault(f"the {nbytes} host bytes at {ptr:#x} are pinned memory that was freed")
        for base, (used, size, _) in self._live.items():
            if base <= ptr < base + size and ptr + nbytes > base + used:
                raise Fault(f"the {nbytes} host bytes at {ptr:#x} reach past a pinned block of {used} bytes")
