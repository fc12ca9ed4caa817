"""Calls on memory: plain, stream-ordered, pinned, virtual."""

from __future__ import annotations

from functools import partial

from breakgraph.driver.api import NodeType
from breakgraph.driver.sim.call import Needs, call
from breakgraph.driver.sim.heap import Allocation
from breakgraph.driver.sim.machine import Machine
from breakgraph.driver.sim.memory import GRANULARITY
from breakgraph.driver.sim.operations import Work
from breakgraph.driver.sim.races import Access, Clock
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.streams import Stream
from breakgraph.errors import Unrecorded

__all__ = ["MemoryCalls"]


class MemoryCalls(Machine):
    """Device memory, host memory, virtual memory."""

    # plain ----------------------------------------------------------------------------------------------
    @call()
    def mem_get_info(self) -> tuple[int, int]:
        device = self.context.device
        return device.memory - device.used, device.memory

    @call(unsafe=True)
    def mem_alloc(self, nbytes: int) -> int:
        allocation = self.heaps.take(nbytes, self.context)
        for clock in self.heaps.before(allocation):
            self.finder.waited(clock)
        self.heaps.open(allocation)
        return allocation.ptr

    @call(unsafe=True, frees=True)
    def mem_free(self, ptr: int) -> None:
        if not ptr:
            return
        allocation = self.heaps.at(ptr)
        self.wait_for_context(allocation.context)
        self.refuse_lost(allocation.context)
        self.heaps.retire(allocation)
        self.heaps.close(allocation)

    # stream-ordered -------------------------------------------------------------------------------------
    @call()
    def mem_alloc_async(self, nbytes: int, stream: int) -> int:
        target = self.used_stream(stream)
        if target.capture is not None:
            allocation = self.heaps.take_for_graph(nbytes, target.context)
        else:
            self.captures.refuse_unsafe(self.thread)
            allocation = self.heaps.take(nbytes, target.context, pooled=True)
            for clock in self.heaps.before(allocation):
                self.finder.join(target.lane, clock)
        name, open_ = "mem_alloc_async", partial(self.heaps.open, allocation)
        work = Work(name, NodeType.MEM_ALLOC, open_, _touching(allocation, name), allocation=allocation)
        self.submit(target, work)
        return allocation.ptr

    @call(frees=True)
    def mem_free_async(self, ptr: int, stream: int) -> None:
        target = self.used_stream(stream)
        if target.capture is not None:
            allocation = self.heaps.of_graphs.get(ptr)
            if allocation is None:
                raise Unrecorded("memory that no allocation node made was freed inside a capture")
        else:
            if self.captures.forbidding(self.thread):
                raise Unrecorded("a stream-ordered free was made on another stream inside a capture")
            allocation = self.heaps.at(ptr)
            self.heaps.retire(allocation)
        self._free_in_order(allocation, target)

    @call()
    def device_get_default_mem_pool(self, device: int) -> int:
        return self.device(device).pool

    @call(unsafe=True)
    def mem_pool_trim_to(self, pool: int, keep: int) -> None:
        self._pool(pool)

    @call(unsafe=True)
    def mem_pool_get_attribute(self, pool: int, attribute: int) -> int:
        device = self.devices[self._pool(pool)]
        held, high = device.pool_used, device.pool_high
        # CUmemPool_attribute: three reuse policies, the release threshold, reserved and used bytes, now and at most.
        values = {1: 1, 2: 1, 3: 1, 4: 0, 5: held, 6: high, 7: held, 8: high}
        if attribute not in values:
            raise Refuse(Result.INVALID_VALUE, f"{attribute} is no attribute of a memory pool")
        return values[attribute]

    # pinned ---------------------------------------------------------------------------------------------
    @call(unsafe=True)
    def mem_host_alloc(self, nbytes: int, flags: int = 0) -> int:
        if nbytes <= 0:
            raise Refuse(Result.INVALID_VALUE, "an allocation has at least one byte")
        return self.host.allocate(nbytes)

    @call(unsafe=True, frees=True)
    def mem_free_host(self, ptr: int) -> None:
        self.host.size(ptr)
        self.wait_for_context(self.context)
        self.host.free(ptr)

    # virtual --------------------------------------------------------------------------------------------
    @call(Needs.HANDLE)
    def mem_get_allocation_granularity(self, device: int) -> int:
        self.device(device)
        return GRANULARITY

    @call(Needs.HANDLE)
    def mem_address_reserve(self, nbytes: int) -> int:
        return self.virtual.reserve(nbytes)

    @call(Needs.HANDLE, frees=True)
    def mem_address_free(self, ptr: int, nbytes: int) -> None:
        self.virtual.unreserve(ptr, nbytes)

    @call(Needs.HANDLE)
    def mem_create(self, nbytes: int, device: int) -> int:
        handle = self.new_handle()
        self.virtual.create(handle, nbytes, self.device(device))
        return handle

    @call(Needs.HANDLE, frees=True)
    def mem_release(self, handle: int) -> None:
        self.virtual.release(handle)

    @call(Needs.HANDLE)
    def mem_map(self, ptr: int, nbytes: int, handle: int) -> None:
        self.virtual.map(ptr, nbytes, handle)

    @call(Needs.HANDLE, frees=True)
    def mem_unmap(self, ptr: int, nbytes: int) -> None:
        self.virtual.unmap(ptr, nbytes)  # first, so that these addresses stand for no other mapping's bytes
        self.finder.touch_now(Access(ptr, ptr + nbytes, True, "mem_unmap"))

    @call(Needs.HANDLE)
    def mem_set_access(self, ptr: int, nbytes: int, device: int) -> None:
        self.virtual.allow(ptr, nbytes, self.device(device))

    # what they share ------------------------------------------------------------------------------------
    def _free_in_order(self, allocation: Allocation, stream: Stream) -> None:
        clock: Clock = {}
        name, close = "mem_free_async", partial(self.heaps.close, allocation, clock)
        work = Work(name, NodeType.MEM_FREE, close, _touching(allocation, name), allocation=allocation)
        self.submit(stream, work)
        if stream.capture is None:
            clock.update(self.finder.snapshot(stream.lane))

    def _pool(self, pool: int) -> int:
        for device in self.devices:
            if device.pool == pool:
                return device.ordinal
        raise Refuse(Result.INVALID_HANDLE, f"{pool:#x} is not a memory pool")


def _touching(allocation: Allocation, name: str) -> tuple[Access, ...]:
    return (Access(allocation.ptr, allocation.ptr + allocation.nbytes, True, name),)
