"""Where the simulator's arrays get their memory from, and how it goes back.

Outside an allocator scope it is stream-ordered memory of the current stream. An array may die anywhere,
also inside a segment, where a free would invalidate the capture, and on any thread. So its destructor only
queues the memory; it is given back at the next allocation or host copy, and never onto a capturing stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from breakgraph import driver as drivers
from breakgraph.driver.api import STREAM_PER_THREAD, CaptureStatus
from breakgraph.errors import CaptureImplicit, DriverError
from breakgraph.frameworks.base import Block
from breakgraph.frameworks.sim.state import state

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["NotedMemory", "allocate", "collect", "fresh", "is_capturing"]


class _Dead(NamedTuple):
    ptr: int
    stream: int
    context: int


class StreamMemory:
    """Owns bytes of device memory, allocated in the order of one stream."""

    __slots__ = ("_dead", "context", "nbytes", "ptr", "stream")

    def __init__(self, ptr: int, nbytes: int, stream: int, context: int, dead: deque[_Dead]) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.stream = stream
        self.context = context
        self._dead = dead

    def __del__(self) -> None:
        self._dead.append(_Dead(self.ptr, self.stream, self.context))


class NotedMemory:
    """Memory, and something that is to live as long."""

    __slots__ = ("_block", "_note", "nbytes", "ptr")

    def __init__(self, block: Block, note: object) -> None:
        self.ptr, self.nbytes = block.ptr, block.nbytes
        self._block, self._note = block, note


def allocate(driver: SimDriver, nbytes: int) -> Block:
    """Memory for one array: from the thread's allocator scope, else from the driver."""
    collect(driver)
    allocator, _ = state(driver).allocators[-1]
    return fresh(driver, nbytes) if allocator is None else allocator(nbytes)


def fresh(driver: SimDriver, nbytes: int) -> Block:
    """Memory from the driver.

    On a capturing stream it is asked for plain memory, as cupy's pool asks it, and refuses (900): the capture is
    invalidated.
    """
    stream = state(driver).stream
    context = driver.ensure_context()
    plain = is_capturing(driver, stream)
    ptr = driver.mem_alloc(nbytes) if plain else driver.mem_alloc_async(nbytes, stream)
    return StreamMemory(ptr, nbytes, stream, context, _dead(driver))


def collect(driver: SimDriver) -> None:
    """Give back what died, but for memory of streams that are capturing now.

    Where the driver refuses a free, the memory stays queued and the error is raised: nothing is lost.
    """
    dead = _dead(driver)
    if not dead:
        return
    kept: list[_Dead] = []
    live, current = driver.live(), driver.ensure_context()
    try:
        with drivers.relaxed(driver):
            for _ in range(len(dead)):
                try:
                    block = dead.popleft()
                except IndexError:
                    break  # another thread collects too
                kept.append(block)
                if _give_back(driver, block, live, current):
                    kept.pop()
    finally:
        dead.extend(kept)


def is_capturing(driver: SimDriver, stream: int) -> bool:
    """Whether work given to ``stream`` now would be captured, or would harm a capture."""
    try:
        return bool(driver.stream_is_capturing(stream) != CaptureStatus.NONE)
    except CaptureImplicit:  # the legacy stream, while a blocking stream captures
        return True


def _give_back(driver: SimDriver, block: _Dead, live: Mapping[str, tuple[int, ...]], current: int) -> bool:
    """Free one block in its own context; False if it has to wait."""
    if block.context not in live["context"]:
        return True  # it went with its context
    elsewhere = block.context != current
    if elsewhere:
        driver.ctx_push_current(block.context)
    try:
        try:
            with driver.lock:  # no other thread begins a capture on the stream between the question and the free
                if is_capturing(driver, block.stream):
                    return False
                driver.mem_free_async(block.ptr, block.stream)
        except DriverError:
            if block.stream <= STREAM_PER_THREAD or block.stream in driver.live()["stream"]:
                raise
            driver.mem_free(block.ptr)  # the stream was destroyed before its memory, maybe just now by another thread
    finally:
        if elsewhere:
            driver.ctx_pop_current()
    return True


def _dead(driver: SimDriver) -> deque[_Dead]:
    queue: deque[_Dead] | None = driver.__dict__.get("_dead_arrays")
    if queue is None:
        queue = driver.__dict__.setdefault("_dead_arrays", deque())
    return queue
