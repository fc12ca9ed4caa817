"""Table two: events, forks, virtual memory, guards and everything a library might do inside a capture."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ._legality_bench import MODES, NBYTES, SUCCESS, Bench, Row
from .rebegin import Asker

__all__ = ["HOW", "ROWS", "measure"]

HOW = (
    "cuda.bindings.driver; capture on a fresh non-blocking stream holding one memset node, then the case, then status,"
    " then end"
)
DESTROYED = "cuStreamDestroy(capturing)"

Case = Callable[[Bench, str], str]


def _copy(name: str, source: str, target: str, stream: str | int | None = None) -> Case:
    """A copy of 64 bytes between the bench's pieces of memory, on a stream of the bench or a handle."""

    def case(b: Bench, _: str) -> str:
        on = () if stream is None else (getattr(b, stream) if isinstance(stream, str) else stream,)
        return b.answer(name, getattr(b, target), getattr(b, source), 64, *on)

    return case


def _recorded_then(name: str) -> Case:
    return lambda b, _: b.answers(("cuEventRecord", b.event, b.stream), (name, b.event))


def _elapsed(b: Bench, _: str) -> str:
    records = [("cuEventRecord", event, b.stream) for event in (b.event, b.event2)]
    return b.answers(*records, ("cuEventElapsedTime", b.event, b.event2))


def _nested_capture(b: Bench, mode: str) -> str:
    begun = b.begin(b.other, mode)
    return b.end(b.other)[0] if begun == SUCCESS else begun


def _map_and_allow(b: Bench, _: str) -> str:
    return b.answers(
        ("cuMemMap", b.reserved, b.page, 0, b.physical, 0), ("cuMemSetAccess", b.reserved, b.page, [b.access], 1)
    )


def _fork(*after: Callable[[Bench], str]) -> Case:
    """Fork onto the other stream, then the given steps; the first result that is not success."""

    def case(b: Bench, _: str) -> str:
        result = b.fork()
        for step in after:
            if result != SUCCESS:
                break
            result = step(b)
        return result

    return case


def _side_work(b: Bench) -> str:
    return b.work(b.other)


STREAMS_AND_MEMORY: dict[str, Case] = {
    "kernel_on_capturing": lambda b, _: b.kernel(b.stream),
    "cuMemAlloc": lambda b, _: b.answer("cuMemAlloc", NBYTES),
    "cuMemFree": lambda b, _: b.answer("cuMemFree", b.spare),
    "cuMemHostAlloc": lambda b, _: b.answer("cuMemHostAlloc", NBYTES, 0),
    "cuMemAllocAsync(capturing)": lambda b, _: b.answer("cuMemAllocAsync", NBYTES, b.stream),
    "cuMemAllocAsync(other)": lambda b, _: b.answer("cuMemAllocAsync", NBYTES, b.other),
    "cuMemcpyDtoD": _copy("cuMemcpyDtoD", "a", "b"),
    "cuMemcpyHtoD_pageable": _copy("cuMemcpyHtoD", "pageable", "a"),
    "cuMemcpyDtoH": _copy("cuMemcpyDtoH", "a", "pageable"),
    "cuMemcpyDtoDAsync(capturing)": _copy("cuMemcpyDtoDAsync", "a", "b", "stream"),
    "cuMemcpyHtoDAsync(capturing,pinned)": _copy("cuMemcpyHtoDAsync", "pinned", "a", "stream"),
    "cuMemcpyHtoDAsync(capturing,pageable)": _copy("cuMemcpyHtoDAsync", "pageable", "a", "stream"),
    "cuMemcpyDtoHAsync(capturing,pinned)": _copy("cuMemcpyDtoHAsync", "a", "pinned", "stream"),
    "cuMemcpyDtoHAsync(capturing,pageable)": _copy("cuMemcpyDtoHAsync", "a", "pageable", "stream"),
    "cuMemcpyDtoDAsync(other)": _copy("cuMemcpyDtoDAsync", "a", "b", "other"),
    "cuMemcpyDtoDAsync(legacy0)": _copy("cuMemcpyDtoDAsync", "a", "b", 0),
    "cuMemcpyDtoDAsync(per_thread)": _copy("cuMemcpyDtoDAsync", "a", "b", 2),
    "cuMemcpyDtoDAsync(blocking_other)": _copy("cuMemcpyDtoDAsync", "a", "b", "blocking"),
    "cuMemcpyDtoDAsync_v1_dlsym(capturing)": lambda b, _: b.symbol("cuMemcpyDtoDAsync", b.b, b.a, 64, b.stream),
    "cuMemcpyDtoDAsync_v2_dlsym(capturing)": lambda b, _: b.symbol("cuMemcpyDtoDAsync_v2", b.b, b.a, 64, b.stream),
    "cuMemsetD8": lambda b, _: b.answer("cuMemsetD8", b.b, 0, 64),
    "cuMemsetD8Async(capturing)": lambda b, _: b.work(b.stream),
    "cuStreamSynchronize(capturing)": lambda b, _: b.answer("cuStreamSynchronize", b.stream),
    "cuStreamSynchronize(other)": lambda b, _: b.answer("cuStreamSynchronize", b.other),
    "cuStreamSynchronize(legacy0)": lambda b, _: b.answer("cuStreamSynchronize", 0),
    "cuStreamQuery(capturing)": lambda b, _: b.answer("cuStreamQuery", b.stream),
    "cuStreamQuery(other)": lambda b, _: b.answer("cuStreamQuery", b.other),
    "cuCtxSynchronize": lambda b, _: b.answer("cuCtxSynchronize"),
}

EVENTS_AND_CAPTURES: dict[str, Case] = {
    "cuEventRecord(capturing)+Query": _recorded_then("cuEventQuery"),
    "cuEventRecord(capturing)+Synchronize": _recorded_then("cuEventSynchronize"),
    "cuEventRecord(capturing)+ElapsedTime": _elapsed,
    "cuEventQuery(precapture)": lambda b, _: b.answer("cuEventQuery", b.before),
    "cuEventSynchronize(precapture)": lambda b, _: b.answer("cuEventSynchronize", b.before),
    "cuStreamWaitEvent(capturing,precapture_event)": lambda b, _: b.answer("cuStreamWaitEvent", b.stream, b.before, 0),
    "cuStreamWaitEvent(capturing,precapture_event,EXTERNAL)": lambda b, _: b.answer(
        "cuStreamWaitEvent", b.stream, b.before, 1
    ),
    "cuEventRecordWithFlags(capturing,EXTERNAL)": lambda b, _: b.answer("cuEventRecordWithFlags", b.event, b.stream, 1),
    "cuEventCreate": lambda b, _: b.answer("cuEventCreate", 0),
    "cuStreamCreate": lambda b, _: b.answer("cuStreamCreate", 1),
    "cuStreamDestroy(other2)": lambda b, _: b.answer("cuStreamDestroy", b.other2),
    "cuStreamBeginCapture(again)": lambda b, mode: b.begin(b.stream, mode),
    "cuStreamBeginCapture(other)+End": _nested_capture,
    "cuStreamEndCapture(not_capturing_other)": lambda b, _: b.end(b.other)[0],
    "cuStreamEndCapture(from_other_thread)": lambda b, _: b.elsewhere(lambda: b.end(b.stream))[0],
    "cuStreamBeginCapture(legacy0)": lambda b, mode: b.begin(0, mode),
    "cuMemAlloc(from_other_thread)": lambda b, _: b.elsewhere(lambda: b.answer("cuMemAlloc", NBYTES)),
    "cuMemcpyDtoDAsync(capturing,from_other_thread)": lambda b, _: b.elsewhere(
        lambda: b.answer("cuMemcpyDtoDAsync", b.b, b.a, 64, b.stream)
    ),
    "cuCtxSynchronize(from_other_thread)": lambda b, _: b.elsewhere(lambda: b.answer("cuCtxSynchronize")),
    "legacy0_launch(from_other_thread)": lambda b, _: b.elsewhere(lambda: b.kernel(0)),
}

GRAPHS_AND_MODULES: dict[str, Case] = {
    "cuGraphInstantiate": lambda b, _: b.answer("cuGraphInstantiate", b.graph, 0),
    "cuGraphLaunch(capturing)": lambda b, _: b.answer("cuGraphLaunch", b.exec, b.stream),
    "cuGraphLaunch(other)": lambda b, _: b.answer("cuGraphLaunch", b.exec, b.other),
    "cuGraphExecDestroy": lambda b, _: b.answer("cuGraphExecDestroy", b.exec),
    "cuGraphUpload(other)": lambda b, _: b.answer("cuGraphUpload", b.exec, b.other),
    "cuGraphUpload(capturing)": lambda b, _: b.answer("cuGraphUpload", b.exec, b.stream),
    "cuMemPoolTrimTo": lambda b, _: b.answer("cuMemPoolTrimTo", b.pool, 0),
    "cuModuleLoadData": lambda b, _: b.answer("cuModuleLoadData", b.asker.image),
    "cuModuleUnload": lambda b, _: b.answer("cuModuleUnload", b.module),
    "cuFuncGetAttribute": lambda b, _: b.answer("cuFuncGetAttribute", b.cu.CUfunction_attribute(0), b.asker.kernel),
    "cuMemGetInfo": lambda b, _: b.answer("cuMemGetInfo"),
    "cuPointerGetAttribute": lambda b, _: b.answer("cuPointerGetAttribute", b.cu.CUpointer_attribute(2), b.a),
    "cuMemCreate(VMM)": lambda b, _: b.answer("cuMemCreate", b.page, b.prop, 0),
    "cuMemAddressReserve": lambda b, _: b.answer("cuMemAddressReserve", b.page, 0, 0, 0),
    "cuMemMap+SetAccess(VMM)": _map_and_allow,
    "relaxed_guard(cuMemAlloc)": lambda b, _: b.relaxed(lambda: b.answer("cuMemAlloc", NBYTES)),
    "relaxed_guard(cuCtxSynchronize)": lambda b, _: b.relaxed(lambda: b.answer("cuCtxSynchronize")),
    "relaxed_guard(cuMemFree)": lambda b, _: b.relaxed(lambda: b.answer("cuMemFree", b.spare)),
}

FORKS_AND_THE_REST: dict[str, Case] = {
    "fork_join": _fork(_side_work, Bench.join),
    "fork_unjoined": _fork(_side_work),
    "fork_empty_unjoined": _fork(),
    "fork_to_legacy0": lambda b, _: b.answers(
        ("cuEventRecord", b.event, b.stream), ("cuStreamWaitEvent", 0, b.event, 0)
    ),
    "fork_end_on_child": _fork(_side_work, lambda b: b.end(b.other)[0]),
    "fork_sync_child": _fork(_side_work, lambda b: b.answer("cuStreamSynchronize", b.other)),
    "cuStreamGetCaptureInfo": lambda b, _: b.answer("cuStreamGetCaptureInfo", b.stream),
    "cuStreamIsCapturing(legacy0)": lambda b, _: b.answer("cuStreamIsCapturing", 0),
    DESTROYED: lambda b, _: b.answer("cuStreamDestroy", b.stream),
    "cuEventDestroy(captured)": _recorded_then("cuEventDestroy"),
    "cuStreamWriteValue32(capturing)": lambda b, _: b.answer("cuStreamWriteValue32", b.stream, b.a, 1, 0),
    "cuStreamWaitValue32(capturing)": lambda b, _: b.answer("cuStreamWaitValue32", b.stream, b.a, 0, 0),
}

CASES = STREAMS_AND_MEMORY | EVENTS_AND_CAPTURES | GRAPHS_AND_MODULES | FORKS_AND_THE_REST
ROWS: list[Row] = [{"case": case, "mode": mode} for mode, case in itertools.product(MODES, CASES)]


def measure(asker: Asker, row: Row) -> Row:
    """Measure one row: its case and mode, and the answers."""
    bench = Bench(asker)
    bench.open(row["mode"])
    result = CASES[row["case"]](bench, row["mode"])
    if row["case"] == DESTROYED:
        return row | {"result": result, "status_after": "destroyed", "end_capture": "", "nodes_in_graph": None}
    status = bench.status(bench.stream)
    end, graph = bench.end(bench.stream)
    nodes = None if graph is None else bench.nodes(graph)
    return row | {"result": result, "status_after": status, "end_capture": end, "nodes_in_graph": nodes}
