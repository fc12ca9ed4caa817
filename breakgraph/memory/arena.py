"""The device memory that the segments of one or many graphs share.

An arena reserves addresses once and maps physical memory to them as it grows, so an address that a segment
has baked never changes, and growing is legal inside a thread-local capture (C29). Its blocks are handed on
when their arrays die.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.driver.contexts import in_context
from breakgraph.driver.forks import Forks
from breakgraph.driver.quick import Round
from breakgraph.errors import CaptureStateError, OutOfMemory
from breakgraph.memory.backlog import Backlog
from breakgraph.memory.backup import Backup
from breakgraph.memory.blocks import BlockInfo, Blocks, fewest
from breakgraph.memory.footprint import Footprint, SegmentUse
from breakgraph.memory.mapping import Mapping
from breakgraph.memory.turn import Owner, Turn

__all__ = ["Arena", "ArenaBlock", "default_arena"]

_ALIGNMENT = 512  # bytes; what cudaMalloc and cupy's pool align to, at least


class ArenaBlock:
    """Owns bytes of an arena until it is dropped.

    Its destructor may run inside an allocation and on any thread, so it does nothing but append to a queue.
    """

    __slots__ = ("_arena", "generation", "nbytes", "ptr")

    def __init__(self, arena: Arena, generation: int) -> None:
        self._arena = arena  # the memory outlives its blocks
        self.generation = generation
        self.ptr = 0
        self.nbytes = 0

    def __del__(self) -> None:
        with suppress(AttributeError):  # an interrupt came while it was made
            self._arena._blocks.dead.append(self.generation)


class Arena:
    """Device memory for segments, in the current context of the thread that makes it.

    Parameters
    ----------
    limit
        The most bytes it may map; by default the memory of the device. Addresses are reserved for the
        limit, physical memory is mapped as needed, in granules of the device (2 MiB).

    Raises
    ------
    ValueError
        The limit is less than one granule.
    TypeError
        It is no integer.

    Notes
    -----
    An arena serves one capture or replay at a time (C25). Another thread that asks for it waits for the end of
    the capture or replay, not of its work on the device; a second one in the same thread (inside a break) is
    refused, and so is one that would close a circle of waiting threads. Successive ones are ordered on the device
    by an event that the arena owns, so graphs that share it may be replayed on different streams. Your own work that
    reads the results is ordered with the next use if that is on the same stream; otherwise let that stream wait.

    What a forward returned lies in the arena too: it is valid until the next capture or replay that uses the
    arena. `BreakableGraph.output` pins it for longer.
    """

    def __init__(self, *, limit: int | None = None) -> None:
        self._driver = drivers.current()
        self._context = self._driver.ensure_context()
        self._context_id = self._driver.ctx_get_id(self._context)  # a handle may be used again
        self._mapping = Mapping(self._driver, self._context)
        self._finalizer = weakref.finalize(self, self._mapping.give_back)
        self._finalizer.atexit = False
        self._limit = None if limit is None else operator.index(limit)
        if self._limit is not None and self._limit < self._mapping.granularity:
            raise ValueError(f"limit is at least one granule of {self._mapping.granularity} bytes, not {limit!r}")
        self._lock = threading.RLock()  # a destructor in mid-allocation may re-enter through a framework
        self._blocks = Blocks()
        self._turn = Turn()
        self._footprint: Footprint | None = None  # of the capture under way
        self._forks: Forks | None = None  # of the segment that is open
        self._captured: weakref.WeakSet[Footprint] = weakref.WeakSet()
        self._backup: Backup | None = None
        self.backlog = Backlog(self._driver)

    def belongs_to(self, driver: Driver, context: int) -> bool:
        """Whether its memory is mapped for a context of a driver."""
        return self._driver is driver and self._context_id == driver.ctx_get_id(context)

    # accounts -------------------------------------------------------------------------------------------
    @property
    def reserved(self) -> int:
        """Bytes of addresses reserved."""
        return self._mapping.reserved

    @property
    def mapped(self) -> int:
        """Bytes of physical memory mapped; 0 while it sleeps."""
        return self._mapping.mapped

    @property
    def used(self) -> int:
        """Bytes in live blocks."""
        with self._lock:
            self._collect()
            return self._blocks.used

    @property
    def peak(self) -> int:
        """The most bytes that were ever in live blocks."""
        return self._blocks.peak

    @property
    def asleep(self) -> bool:
        """Whether its physical memory has been given back."""
        return not self._turn.claim.is_open

    def __repr__(self) -> str:
        asleep = "asleep, " if self.asleep else ""
        return f"<Arena {asleep}used={self.used} peak={self.peak} mapped={self.mapped} reserved={self.reserved} bytes>"

    # blocks ---------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int, stream: int | None = None) -> ArenaBlock:
        """A block of at least ``nbytes`` bytes, aligned to 512, for work on ``stream``: by default the origin's.

        Raises `OutOfMemory` when neither a freed block nor the device has room, and `CaptureStateError` while the
        arena sleeps; no block is made then.
        """
        size = max(_round_up(nbytes, _ALIGNMENT), _ALIGNMENT)
        with self._lock:
            self._refuse_asleep("asked for a block")
            blocks, forks, footprint = self._blocks, self._forks, self._footprint
            self._collect()
            origin = forks is None or stream is None or stream == forks.origin
            if origin and forks is not None and blocks.withheld and forks.joined():
                blocks.join()
            capture, segment = (footprint.capture, footprint.segment) if footprint else (0, 0)
            owner = ArenaBlock(self, blocks.new_generation())  # first, so that the block has an owner at any moment
            take = partial(blocks.take, size, owner.generation, origin=origin, capture=capture, segment=segment)
            while (info := take()) is None:  # twice, if new pages do not follow the last ones after a failed growth
                self._make_room(size, origin=origin)
            owner.ptr, owner.nbytes = info.ptr, size
            if footprint is not None:
                footprint.note(info)
            return owner

    def contains(self, ptr: int) -> bool:
        """Whether an address lies in it, whoever has the bytes now."""
        return self._mapping.contains(ptr)

    def block_at(self, ptr: int) -> BlockInfo | None:
        """The live block that holds address ``ptr``."""
        with self._lock:
            self._collect()
            return self._blocks.at(ptr)

    def blocks_of(self, capture: int) -> tuple[BlockInfo, ...]:
        """The live blocks that were made in a capture, lowest first."""
        with self._lock:
            self._collect()
            return tuple(info for info in self._blocks.live() if info.capture == capture)

    def _collect(self) -> None:
        if self._blocks.dead:
            for block in self._blocks.collect():
                if self._footprint is not None:
                    self._footprint.note_end(block)

    def _make_room(self, size: int, *, origin: bool) -> None:
        """Grow at the end, or show free pages as one span, whichever takes less from the device."""
        blocks, mapping = self._blocks, self._mapping
        failed = f"could not grow for a block of {size} bytes"
        if not mapping.base:
            room = self._limit or self._driver.mem_get_info()[1]
            with self._explained(failed):
                mapping.reserve(self._driver, room // mapping.granularity * mapping.granularity)
        blocks.adopt(mapping.pages)  # what an interrupt kept from it
        missing = _round_up(blocks.missing(size, origin=origin), mapping.granularity)
        whole = blocks.whole_pages(origin=origin)
        short = _round_up(max(size - sum(page.nbytes for page in whole), 0), mapping.granularity)
        growth = min(short, missing)
        if mapping.total + growth > mapping.reserved:
            raise self._out_of_memory(failed, "the arena's limit does not allow it")
        with self._explained(failed):
            if growth:
                mapping.grow(self._driver, growth)
                whole += blocks.adopt(mapping.pages)
            if short < missing:
                chosen = fewest(whole, size)
                blocks.second_mapping(mapping.map_again(self._driver, chosen), chosen)

    @contextmanager
    def _explained(self, failed: str) -> Iterator[None]:
        """What the driver refuses in here for want of memory is told with the arena's accounts."""
        try:
            yield
        except OutOfMemory as error:
            raise self._out_of_memory(failed) from error

    def _out_of_memory(self, failed: str, why: str = OutOfMemory.why) -> OutOfMemory:
        left, total = self._driver.mem_get_info()
        what = (
            f"an arena {failed}: {self._blocks.used} used and {self.mapped} mapped of {self.reserved} reserved;"
            f" the device has {left} of {total} left"
        )
        return OutOfMemory("CUDA_ERROR_OUT_OF_MEMORY", 2, "mem_create", what=what, why=why)

    # segments (C28) -------------------------------------------------------------------------------------
    def begin_segment(self, forks: Forks) -> None:
        """A segment is open: what dies from now on may still be in use on a fork."""
        blocks, footprint = self._blocks, self._footprint
        with self._lock:
            if blocks.dead:
                self._collect()
            self._forks = forks
            blocks.in_segment = True
            if footprint is not None:
                footprint.in_segment = True

    def end_segment(self) -> SegmentUse:
        """The segment has ended, and with it every fork. Returns what it asked for."""
        blocks, footprint = self._blocks, self._footprint
        with self._lock:
            if blocks.dead:
                self._collect()
            self._forks = None
            blocks.end_segment()
            return footprint.end_segment() if footprint is not None else SegmentUse(0, 0)

    # turns (C25) ----------------------------------------------------------------------------------------
    def acquire(self, owner: Owner, stream: int) -> None:
        """Begin a capture or a replay on ``stream``: wait for our turn, and let the stream wait for the last one.

        `release` with the same ``owner`` ends the turn, whether or not this call came to its end. Raises
        `CaptureStateError` where the calling thread already holds the arena, where waiting would never end, and while
        the arena sleeps.
        """
        self._turn.take(owner)
        if self.asleep:
            self._refuse_asleep("used by a capture or replay")
        if self._mapping.event:  # also after the same handle: it may be another stream's by now
            self._driver.stream_wait_event(stream, self._mapping.event)
        self._footprint = None

    def begin_capture(self, footprint: Footprint) -> None:
        """What is allocated from here to the end of the turn is accounted to a capture."""
        self._footprint = footprint
        footprint.begin()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is in a capture or replay that uses it."""
        return self._turn.mine

    @property
    def user(self) -> Owner | None:
        """The owner of the capture or replay under way."""
        return self._turn.owner

    def record_use(self, stream: int) -> None:
        """What is on ``stream`` now is what the next capture or replay waits for on the device."""
        self._driver.event_record(self._event(), stream)

    def round(self) -> Round:
        """A turn of a prepared replay in one go: wait for the last use, run, mark this one; then `end_round`."""
        return self._driver.round(self._context, self._event(), self._turn.claim, self.backlog.tally)

    def end_round(self) -> None:
        """A round has given the turn back."""
        self._turn.wake_waiting()

    def _event(self) -> int:
        if not self._mapping.event:
            with in_context(self._driver, self._context):
                self._mapping.event = self._driver.event_create()
        return self._mapping.event

    def release(self, owner: Owner) -> None:
        """End the turn of ``owner``, if it has it; `record_use` comes before."""
        if self._footprint is not None and self._turn.owner is owner:  # a capture's
            if self._forks is not None:
                self.end_segment()
            self._footprint = None
        self._turn.give(owner)

    def wait(self) -> None:
        """Block the calling thread until the last capture or replay on this arena is done with it."""
        if self._mapping.event:
            with drivers.relaxed(self._driver):
                self._driver.event_synchronize(self._mapping.event)

    # who else uses these bytes (C18) --------------------------------------------------------------------
    def remember(self, footprint: Footprint) -> None:
        """A capture is whole, so its replays will use its bytes as long as its footprint is alive."""
        self._captured.add(footprint)

    def captured_before(self, footprint: Footprint) -> list[Footprint]:
        """The footprints of graphs that were captured before, and may still be replayed; the oldest first."""
        return sorted((one for one in self._captured if one.capture < footprint.capture), key=lambda one: one.capture)

    # sleep (C30) ----------------------------------------------------------------------------------------
    def sleep(self, *, backup: bool = False) -> None:
        """Give the physical memory back and keep every address, until `wake`.

        Waits for its turn (C25), for the last replay, and for whatever else the device is doing. With ``backup``
        the contents of live blocks are carried through host memory; without it they are lost, which replay does
        not mind: it computes anew what its graph computes.

        Raises `CaptureStateError` inside a capture or a break of this thread that uses the arena. Does nothing
        where it sleeps already.
        """
        with self.exclusively("put to sleep") as driver:
            if self.asleep and not self._mapping.mapped:
                return
            self._mapping.wait_for_device(driver)
            with self._lock:
                self._collect()
                if backup and not self.asleep:
                    self._backup = Backup(driver, self._blocks.live())
                self._turn.claim.is_open = False
                self._mapping.empty(driver)

    def wake(self) -> None:
        """Map physical memory again at the same addresses, and put a backup's contents back.

        Raises `OutOfMemory` where the device has too little left; the arena sleeps on then, and can be woken later.
        Does nothing where it is awake.
        """
        with self.exclusively("woken") as driver, self._lock:
            if not self.asleep:
                return
            with self._explained(f"could not be woken, which takes {self._mapping.total} bytes"):
                self._mapping.fill(driver)
            if self._backup is not None:
                self._collect()
                try:
                    self._backup.restore(driver, self._blocks.live())
                except BaseException:
                    self._mapping.wait_for_device(driver)  # some of the copies may be under way
                    self._mapping.empty(driver)
                    raise
            self._backup = None
            self._turn.claim.is_open = True

    @contextmanager
    def exclusively(self, what: str) -> Iterator[Driver]:
        """Have the turn for something that is no capture or replay, in the arena's context; ``what``, for messages."""
        if self._turn.mine:
            raise CaptureStateError(
                f"an arena was {what} inside a capture or replay that uses it",
                why="later segments of that forward still read and write its bytes (C25)",
                remedy="do it after the capture or replay",
            )
        owner = Owner()
        try:
            self._turn.take(owner)
            with in_context(self._driver, self._context), drivers.relaxed(self._driver):
                yield self._driver
        finally:
            self._turn.give(owner)

    def _refuse_asleep(self, what: str) -> None:
        if self.asleep:
            raise CaptureStateError(
                f"a sleeping arena was {what}",
                why="its physical memory has been given back, so its addresses lead nowhere (C30)",
                remedy="wake it first: graph.arena.wake()",
            )


def default_arena(driver: Driver, context: int) -> Arena:
    """The calling thread's own arena for a context (C25)."""
    arenas: dict[int, Arena] = drivers.per_thread(driver).__dict__.setdefault("arenas", {})
    key = driver.ctx_get_id(context)
    if key not in arenas:
        arenas[key] = Arena()
    return arenas[key]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
