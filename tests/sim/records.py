"""What each row of the data files does, in the simulator's calls.

A row opens a capture on a fresh stream, adds one memset node, does this, reads the capture status and ends
the capture. What is listed in ``NOT_IN_PROTOCOL`` asks of a call that the driver protocol does not have.
"""

from __future__ import annotations

from collections.abc import Callable

from breakgraph.driver.api import STREAM_LEGACY, STREAM_PER_THREAD, CaptureMode, EventFlag, StreamFlag

from .world import World, answer

Step = Callable[[World], object]

NOT_IN_PROTOCOL = {
    "cuMemcpyDtoDAsync v1 symbol (self)",
    "cuMemcpyDtoDAsync_v1_dlsym(capturing)",
    "cuMemcpyDtoDAsync_v2_dlsym(capturing)",
    "cuFuncGetAttribute",
    "cuPointerGetAttribute",
    "cuStreamWriteValue32(capturing)",
    "cuStreamWaitValue32(capturing)",
}


def _begin_and_end_other(w: World) -> None:
    w.driver.stream_begin_capture(w.other, CaptureMode.THREAD_LOCAL)
    w.driver.stream_end_capture(w.other)


def _record_then(ask: Callable[[World, int], object]) -> Step:
    def step(w: World) -> None:
        w.driver.event_record(w.event, w.stream)
        ask(w, w.event)

    return step


def _fork_join(w: World) -> None:
    w.fork(w.other)
    w.add_node(w.other)
    w.join(w.other)


def _fork_unjoined(w: World) -> None:
    w.fork(w.other)
    w.add_node(w.other)


def _fork_then(ask: Callable[[World], object]) -> Step:
    def step(w: World) -> None:
        w.fork(w.other)
        ask(w)

    return step


def _destroy_recorded_event(w: World) -> None:
    w.driver.event_record(w.event, w.stream)
    w.driver.event_destroy(w.event)


def _map(w: World) -> None:
    d = w.driver
    d.mem_map(w.reserved, 2 << 20, d.mem_create(2 << 20, 0))
    d.mem_set_access(w.reserved, 2 << 20, 0)


def _relaxed(step: Step) -> Step:
    def guarded(w: World) -> None:
        before = w.driver.thread_exchange_stream_capture_mode(CaptureMode.RELAXED)
        try:
            step(w)
        finally:
            w.driver.thread_exchange_stream_capture_mode(before)

    return guarded


def _elsewhere(step: Step) -> Step:
    return lambda w: w.elsewhere(lambda: step(w))


def _dtod(stream: Callable[[World], int]) -> Step:
    return lambda w: w.driver.memcpy_dtod_async(w.memory, w.source, 16, stream(w))


#: The calls of capture_legality: "self" is the capturing stream.
LEGALITY: dict[str, Step] = {
    "cuStreamSynchronize(self)": lambda w: w.driver.stream_synchronize(w.stream),
    "cuStreamQuery(self)": lambda w: w.driver.stream_query(w.stream),
    "cuStreamSynchronize(other idle nonblocking)": lambda w: w.driver.stream_synchronize(w.other),
    "cuStreamQuery(other idle nonblocking)": lambda w: w.driver.stream_query(w.other),
    "cuStreamSynchronize(legacy)": lambda w: w.driver.stream_synchronize(STREAM_LEGACY),
    "cuCtxSynchronize": lambda w: w.driver.ctx_synchronize(),
    "cuEventQuery(uncaptured)": lambda w: w.driver.event_query(w.before),
    "cuEventSynchronize(uncaptured)": lambda w: w.driver.event_synchronize(w.before),
    "cuMemAlloc": lambda w: w.driver.mem_alloc(64),
    "cuMemAllocHost": lambda w: w.driver.mem_host_alloc(64),
    "cuMemFree(0)": lambda w: w.driver.mem_free(0),
    "cuMemAllocAsync(other nonblocking)": lambda w: w.driver.mem_alloc_async(64, w.other),
    "cuMemcpyHtoD (sync)": lambda w: w.driver.memcpy_htod(w.memory, w.host.ctypes.data, 16),
    "cuMemsetD8 (sync)": lambda w: w.driver.memset_d8(w.memory, 1, 16),
    "cuMemcpyHtoDAsync(self, pageable)": lambda w: w.driver.memcpy_htod_async(
        w.memory, w.host.ctypes.data, 16, w.stream
    ),
    "cuMemcpyDtoDAsync v2 (self)": _dtod(lambda w: w.stream),
    "cuMemsetD8Async(other nonblocking)": lambda w: w.driver.memset_d8_async(w.spare, 1, 16, w.other),
    "cuMemsetD8Async(legacy)": lambda w: w.driver.memset_d8_async(w.spare, 1, 16, STREAM_LEGACY),
    "cuModuleLoadData": lambda w: w.driver.module_load_data(b""),
    "cuModuleUnload": lambda w: w.driver.module_unload(w.module),
    "cuEventCreate": lambda w: w.driver.event_create(),
    "cuStreamCreate": lambda w: w.driver.stream_create(),
    "cuMemGetInfo": lambda w: w.driver.mem_get_info(),
    "cuMemPoolGetAttribute": lambda w: w.driver.mem_pool_get_attribute(w.pool, 5),
    "cuGraphExecDestroy(other graph)": lambda w: w.driver.graph_exec_destroy(w.exec),
    "cuGraphDestroy(other graph)": lambda w: w.driver.graph_destroy(w.graph),
    "cuGraphLaunch(other exec, other stream)": lambda w: w.driver.graph_launch(w.exec, w.other),
    "cuGraphLaunch(other exec, self)": lambda w: w.driver.graph_launch(w.exec, w.stream),
    "cuStreamBeginCapture(self again)": lambda w: w.driver.stream_begin_capture(w.stream, CaptureMode.GLOBAL),
    "cuStreamDestroy(self)": lambda w: w.driver.stream_destroy(w.stream),
}

#: The cases of capture_cases: "capturing" is the capturing stream.
CASES: dict[str, Step] = {
    "kernel_on_capturing": lambda w: w.driver.launch(w.stream, lambda: None),
    "cuMemAlloc": lambda w: w.driver.mem_alloc(64),
    "cuMemFree": lambda w: w.driver.mem_free(w.spare),
    "cuMemHostAlloc": lambda w: w.driver.mem_host_alloc(64),
    "cuMemAllocAsync(capturing)": lambda w: w.driver.mem_alloc_async(64, w.stream),
    "cuMemAllocAsync(other)": lambda w: w.driver.mem_alloc_async(64, w.other),
    "cuMemcpyDtoD": lambda w: w.driver.memcpy_dtod(w.memory, w.source, 16),
    "cuMemcpyHtoD_pageable": lambda w: w.driver.memcpy_htod(w.memory, w.host.ctypes.data, 16),
    "cuMemcpyDtoH": lambda w: w.driver.memcpy_dtoh(w.host.ctypes.data, w.memory, 16),
    "cuMemcpyDtoDAsync(capturing)": _dtod(lambda w: w.stream),
    "cuMemcpyHtoDAsync(capturing,pinned)": lambda w: w.driver.memcpy_htod_async(w.memory, w.pinned, 16, w.stream),
    "cuMemcpyHtoDAsync(capturing,pageable)": lambda w: w.driver.memcpy_htod_async(
        w.memory, w.host.ctypes.data, 16, w.stream
    ),
    "cuMemcpyDtoHAsync(capturing,pinned)": lambda w: w.driver.memcpy_dtoh_async(w.pinned, w.memory, 16, w.stream),
    "cuMemcpyDtoHAsync(capturing,pageable)": lambda w: w.driver.memcpy_dtoh_async(
        w.host.ctypes.data, w.memory, 16, w.stream
    ),
    "cuMemcpyDtoDAsync(other)": _dtod(lambda w: w.other),
    "cuMemcpyDtoDAsync(legacy0)": _dtod(lambda w: 0),
    "cuMemcpyDtoDAsync(per_thread)": _dtod(lambda w: STREAM_PER_THREAD),
    "cuMemcpyDtoDAsync(blocking_other)": lambda w: _dtod(lambda _: w.driver.stream_create(StreamFlag.DEFAULT))(w),
    "cuMemsetD8": lambda w: w.driver.memset_d8(w.memory, 1, 16),
    "cuMemsetD8Async(capturing)": lambda w: w.add_node(),
    "cuStreamSynchronize(capturing)": lambda w: w.driver.stream_synchronize(w.stream),
    "cuStreamSynchronize(other)": lambda w: w.driver.stream_synchronize(w.other),
    "cuStreamSynchronize(legacy0)": lambda w: w.driver.stream_synchronize(0),
    "cuStreamQuery(capturing)": lambda w: w.driver.stream_query(w.stream),
    "cuStreamQuery(other)": lambda w: w.driver.stream_query(w.other),
    "cuCtxSynchronize": lambda w: w.driver.ctx_synchronize(),
    "cuEventRecord(capturing)+Query": _record_then(lambda w, event: w.driver.event_query(event)),
    "cuEventRecord(capturing)+Synchronize": _record_then(lambda w, event: w.driver.event_synchronize(event)),
    "cuEventRecord(capturing)+ElapsedTime": _record_then(lambda w, event: w.driver.event_elapsed_time(w.before, event)),
    "cuEventQuery(precapture)": lambda w: w.driver.event_query(w.before),
    "cuEventSynchronize(precapture)": lambda w: w.driver.event_synchronize(w.before),
    "cuStreamWaitEvent(capturing,precapture_event)": lambda w: w.driver.stream_wait_event(w.stream, w.before),
    "cuStreamWaitEvent(capturing,precapture_event,EXTERNAL)": lambda w: w.driver.stream_wait_event(
        w.stream, w.before, EventFlag.EXTERNAL
    ),
    "cuEventRecordWithFlags(capturing,EXTERNAL)": lambda w: w.driver.event_record_with_flags(
        w.before, w.stream, EventFlag.EXTERNAL
    ),
    "cuEventCreate": lambda w: w.driver.event_create(),
    "cuStreamCreate": lambda w: w.driver.stream_create(),
    "cuStreamDestroy(other2)": lambda w: w.driver.stream_destroy(w.driver.stream_create()),
    "cuStreamBeginCapture(again)": lambda w: w.driver.stream_begin_capture(w.stream, CaptureMode.GLOBAL),
    "cuStreamBeginCapture(other)+End": _begin_and_end_other,
    "cuStreamEndCapture(not_capturing_other)": lambda w: w.driver.stream_end_capture(w.other),
    "cuStreamEndCapture(from_other_thread)": _elsewhere(lambda w: w.driver.stream_end_capture(w.stream)),
    "cuStreamBeginCapture(legacy0)": lambda w: w.driver.stream_begin_capture(0, CaptureMode.GLOBAL),
    "cuMemAlloc(from_other_thread)": _elsewhere(lambda w: w.driver.mem_alloc(64)),
    "cuMemcpyDtoDAsync(capturing,from_other_thread)": _elsewhere(_dtod(lambda w: w.stream)),
    "cuCtxSynchronize(from_other_thread)": _elsewhere(lambda w: w.driver.ctx_synchronize()),
    "legacy0_launch(from_other_thread)": _elsewhere(lambda w: w.driver.launch(0, lambda: None)),
    "cuGraphInstantiate": lambda w: w.driver.graph_instantiate(w.unlaunched),
    "cuGraphLaunch(capturing)": lambda w: w.driver.graph_launch(w.exec, w.stream),
    "cuGraphLaunch(other)": lambda w: w.driver.graph_launch(w.exec, w.other),
    "cuGraphExecDestroy": lambda w: w.driver.graph_exec_destroy(w.exec),
    "cuGraphUpload(other)": lambda w: w.driver.graph_upload(w.exec, w.other),
    "cuGraphUpload(capturing)": lambda w: w.driver.graph_upload(w.exec, w.stream),
    "cuMemPoolTrimTo": lambda w: w.driver.mem_pool_trim_to(w.pool, 0),
    "cuModuleLoadData": lambda w: w.driver.module_load_data(b""),
    "cuModuleUnload": lambda w: w.driver.module_unload(w.module),
    "cuMemGetInfo": lambda w: w.driver.mem_get_info(),
    "cuMemCreate(VMM)": lambda w: w.driver.mem_create(2 << 20, 0),
    "cuMemAddressReserve": lambda w: w.driver.mem_address_reserve(2 << 20),
    "cuMemMap+SetAccess(VMM)": _map,
    "relaxed_guard(cuMemAlloc)": _relaxed(lambda w: w.driver.mem_alloc(64)),
    "relaxed_guard(cuCtxSynchronize)": _relaxed(lambda w: w.driver.ctx_synchronize()),
    "relaxed_guard(cuMemFree)": _relaxed(lambda w: w.driver.mem_free(w.spare)),
    "fork_join": _fork_join,
    "fork_unjoined": _fork_unjoined,
    "fork_empty_unjoined": lambda w: w.fork(w.other),
    "fork_to_legacy0": lambda w: w.fork(0),
    "fork_end_on_child": _fork_then(lambda w: w.driver.stream_end_capture(w.other)),
    "fork_sync_child": _fork_then(lambda w: w.driver.stream_synchronize(w.other)),
    "cuStreamGetCaptureInfo": lambda w: w.driver.stream_get_capture_info(w.stream),
    "cuStreamIsCapturing(legacy0)": lambda w: w.driver.stream_is_capturing(0),
    "cuStreamDestroy(capturing)": lambda w: w.driver.stream_destroy(w.stream),
    "cuEventDestroy(captured)": _destroy_recorded_event,
}


def ask(world: World, step: Step, *, elsewhere: bool = False) -> str:
    """The result of a step, asked from the capturing thread or from another one."""
    if elsewhere:
        result = world.elsewhere(lambda: answer(lambda: step(world)))
        assert isinstance(result, str)
        return result
    return answer(lambda: step(world))
