"""The device memory that the segments of one or many graphs share.

An arena reserves addresses once and maps physical memory to them as it grows, so an address that a segment
has baked never changes, and growing is legal inside a thread-local capture (C29). Its blocks are handed on
when their arrays die: on one stream, order alone makes that safe.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.errors import CaptureStateError, DriverError, OutOfMemory
from breakgraph.memory.free_list import FreeList

__all__ = ["Arena", "ArenaBlock", "BlockInfo", "default_arena"]

_ALIGNMENT = 512  # bytes; what cudaMalloc and cupy's pool align to, at least
_generations = count(1)


class BlockInfo(NamedTuple):
    """A live block: address, bytes, a ``generation`` never used twice (C16's identity), its capture or 0."""

    ptr: int
    nbytes: int
    generation: int
    capture: int


class ArenaBlock:
    """Owns bytes of an arena until it is dropped.

    Its destructor may run inside an allocation and on any thread, so it does nothing but append to a queue.
    """

    __slots__ = ("_arena", "generation", "nbytes", "ptr")

    def __init__(self, arena: Arena, ptr: int, nbytes: int, generation: int) -> None:
        self._arena = arena  # the memory outlives its blocks
        self.ptr = ptr
        self.nbytes = nbytes
        self.generation = generation

    def __del__(self) -> None:
        self._arena._dead.append(self.ptr)


class _Mapping:
    """Addresses and physical memory of one arena: what has to be given back, and nothing else."""

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver = weakref.ref(driver)  # a driver keeps default arenas; they must not keep it
        self.context = context
        self.pid = os.getpid()
        self.base = 0
        self.reserved = 0
        self.mapped = 0
        self.chunks: list[tuple[int, int, int]] = []  # address, bytes, physical handle
        self.event = 0
        with drivers.relaxed(driver):
            self.fence = driver.mem_alloc(1)  # for what freeing it does: see give_back

    def give_back(self) -> None:
        """Unmap and release everything once the device is done with all work, ours and that of the arrays' users.

        Unmapping does not wait for kernels that still use the addresses; freeing a plain allocation waits for all
        of them (probes/records/release-h200-580.json), and is harmless to captures under the relaxed exchange,
        which a context synchronize is not.
        """
        driver = self._driver()
        if driver is None or os.getpid() != self.pid or sys.is_finalizing():
            return  # a forked child's driver is its parent's; at exit the driver takes all with it (C27)
        try:
            driver.ctx_push_current(self.context)
        except DriverError:
            return  # the context is gone, and its memory with it
        try:
            with drivers.relaxed(driver):
                driver.mem_free(self.fence)
                if self.event:
                    event, self.event = self.event, 0  # a graph in the same garbage may ask afterwards
                    driver.event_destroy(event)
                while self.chunks:
                    ptr, nbytes, handle = self.chunks.pop()
                    driver.mem_unmap(ptr, nbytes)
                    driver.mem_release(handle)
                if self.base:
                    driver.mem_address_free(self.base, self.reserved)
        finally:
            driver.ctx_pop_current()


class Arena:
    """Device memory for segments, in the current context of the thread that makes it.

    Parameters
    ----------
    limit
        The most bytes it may map; by default the memory of the device. Addresses are reserved for the
        limit, physical memory is mapped as needed.

    Notes
    -----
    An arena serves one capture or replay at a time (C25): a second thread waits for the first, a second one
    in the same thread (inside a break) is refused. Successive ones are ordered on the device by an event
    that the arena owns, so graphs that share it may be replayed on different streams.
    """

    def __init__(self, *, limit: int | None = None) -> None:
        self._driver = drivers.current()
        self._context = self._driver.ensure_context()
        self._device = self._driver.ctx_get_device()
        self._limit = limit
        self._lock = threading.RLock()  # a destructor in mid-allocation may re-enter through a framework
        self._free = FreeList()
        self._starts: list[int] = []  # sorted addresses of live blocks
        self._live: dict[int, BlockInfo] = {}
        self._dead: deque[int] = deque()
        self._used = 0
        self._peak = 0
        self._turn = threading.Lock()
        self._holder: int | None = None
        self._capture = 0
        self._mapping = _Mapping(self._driver, self._context)
        self._finalizer = weakref.finalize(self, self._mapping.give_back)
        self._finalizer.atexit = False

    def belongs_to(self, driver: Driver, context: int) -> bool:
        """Whether its memory is mapped for a context of a driver."""
        return self._driver is driver and self._context == context

    # accounts -------------------------------------------------------------------------------------------
    @property
    def reserved(self) -> int:
        """Bytes of addresses reserved."""
        return self._mapping.reserved

    @property
    def mapped(self) -> int:
        """Bytes of physical memory mapped."""
        return self._mapping.mapped

    @property
    def used(self) -> int:
        """Bytes in live blocks."""
        with self._lock:
            self._collect()
            return self._used

    @property
    def peak(self) -> int:
        """The most bytes that were ever in live blocks."""
        return self._peak

    def __repr__(self) -> str:
        return f"<Arena used={self.used} peak={self.peak} mapped={self.mapped} reserved={self.reserved} bytes>"

    # blocks ---------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> ArenaBlock:
        """A block of at least ``nbytes`` bytes, aligned to 512.

        Raises `OutOfMemory` when neither a freed block nor the device has room; nothing is changed then.
        """
        size = max(_round_up(nbytes, _ALIGNMENT), _ALIGNMENT)
        with self._lock:
            self._collect()
            offset = self._free.take(size)
            if offset is None:
                self._grow(size)
                offset = self._free.take(size)
                assert offset is not None  # _grow made room for exactly this
            ptr = self._mapping.base + offset
            info = BlockInfo(ptr, size, next(_generations), self._capture)
            self._live[ptr] = info
            insort(self._starts, ptr)
            self._used += size
            self._peak = max(self._peak, self._used)
            return ArenaBlock(self, ptr, size, info.generation)

    def block_at(self, ptr: int) -> BlockInfo | None:
        """The live block that holds address ``ptr``."""
        with self._lock:
            self._collect()
            at = bisect_right(self._starts, ptr)
            if not at:
                return None
            info = self._live[self._starts[at - 1]]
            return info if ptr < info.ptr + info.nbytes else None

    def _collect(self) -> None:
        while self._dead:
            info = self._live.pop(self._dead.popleft())
            del self._starts[bisect_right(self._starts, info.ptr) - 1]
            self._used -= info.nbytes
            self._free.give(info.ptr - self._mapping.base, info.nbytes)

    def _grow(self, size: int) -> None:
        driver, mapping = self._driver, self._mapping
        granularity = driver.mem_get_allocation_granularity(self._device)
        if not mapping.base:
            room = _round_up(self._limit or driver.mem_get_info()[1], granularity)
            mapping.base = driver.mem_address_reserve(room)
            mapping.reserved = room
        missing = _round_up(size - self._free.tail(mapping.mapped), granularity)
        if mapping.mapped + missing > mapping.reserved:
            raise self._out_of_memory(size, "the arena's limit does not allow it")
        try:
            handle = driver.mem_create(missing, self._device)
        except OutOfMemory as error:
            raise self._out_of_memory(size, "the device has too little memory left") from error
        ptr = mapping.base + mapping.mapped
        try:
            driver.mem_map(ptr, missing, handle)
            driver.mem_set_access(ptr, missing, self._device)
        except BaseException:  # an interrupt may come when the mapping is made already
            with suppress(DriverError):
                driver.mem_unmap(ptr, missing)
            driver.mem_release(handle)
            raise
        mapping.chunks.append((ptr, missing, handle))
        self._free.give(mapping.mapped, missing)
        mapping.mapped += missing

    def _out_of_memory(self, size: int, why: str) -> OutOfMemory:
        left, total = self._driver.mem_get_info()
        what = (
            f"an arena could not grow for a block of {size} bytes: {self._used} used and {self.mapped} mapped of"
            f" {self.reserved} reserved; the device has {left} of {total} left"
        )
        return OutOfMemory("CUDA_ERROR_OUT_OF_MEMORY", 2, "mem_create", what=what, why=why)

    # turns (C25) ----------------------------------------------------------------------------------------
    def acquire(self, stream: int, *, capture: int = 0) -> None:
        """Begin a capture or a replay on ``stream``: wait for our turn, and let the stream wait for the last one.

        Raises `CaptureStateError` where the calling thread already holds the arena.
        """
        self.check_turn()
        self._turn.acquire()
        try:
            if self._mapping.event:  # also after the same handle: it may be another stream's by now
                self._driver.stream_wait_event(stream, self._mapping.event)
        except BaseException:
            self._turn.release()
            raise
        self._holder, self._capture = threading.get_ident(), capture

    def check_turn(self) -> None:
        """Refuse a capture or replay nested in one of this thread that holds the same arena (C25)."""
        if self._holder == threading.get_ident():
            raise CaptureStateError(
                "a capture or replay was begun inside a break of another one that uses the same arena",
                why="the inner one would overwrite what the outer one's later segments still read (C25)",
                remedy="give one of them an arena of its own: bg.capture(arena=bg.Arena())",
            )

    def record_use(self, stream: int) -> None:
        """What is on ``stream`` now is what the next capture or replay waits for on the device."""
        if not self._mapping.event:
            self._mapping.event = self._driver.event_create()
        self._driver.event_record(self._mapping.event, stream)

    def release(self) -> None:
        """End our turn; `record_use` comes before it."""
        self._holder, self._capture = None, 0
        self._turn.release()

    def wait(self) -> None:
        """Block the calling thread until the last capture or replay on this arena is done with it."""
        if self._mapping.event:
            with drivers.relaxed(self._driver):
                self._driver.event_synchronize(self._mapping.event)


def default_arena(driver: Driver, context: int) -> Arena:
    """The calling thread's own arena for a context (C25)."""
    arenas: dict[int, Arena] = drivers.per_thread(driver).__dict__.setdefault("arenas", {})
    key = driver.ctx_get_id(context)
    if key not in arenas:
        arenas[key] = Arena()
    return arenas[key]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
