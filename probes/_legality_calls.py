"""Table one: single calls beside an open capture, by mode, calling thread and kind of capture stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from ._legality_bench import MODES, NBYTES, Bench, Row
from .rebegin import Asker

__all__ = ["HOW", "ROWS", "measure"]

HOW = (
    "cuda.bindings.driver, the two cuMemcpyDtoDAsync rows by symbol of libcuda; each row opens a capture on a fresh"
    " stream, adds one memset node, makes one call, reads the capture status, ends the capture"
)

#: Handles are those of a fresh `Bench`: "self" is its capturing stream, "legacy" is CU_STREAM_LEGACY.
CALLS: dict[str, Callable[[Bench, str], str]] = {
    "cuStreamSynchronize(self)": lambda b, _: b.answer("cuStreamSynchronize", b.stream),
    "cuStreamQuery(self)": lambda b, _: b.answer("cuStreamQuery", b.stream),
    "cuStreamSynchronize(other idle nonblocking)": lambda b, _: b.answer("cuStreamSynchronize", b.other),
    "cuStreamQuery(other idle nonblocking)": lambda b, _: b.answer("cuStreamQuery", b.other),
    "cuStreamSynchronize(legacy)": lambda b, _: b.answer("cuStreamSynchronize", 1),
    "cuCtxSynchronize": lambda b, _: b.answer("cuCtxSynchronize"),
    "cuEventQuery(uncaptured)": lambda b, _: b.answer("cuEventQuery", b.before),
    "cuEventSynchronize(uncaptured)": lambda b, _: b.answer("cuEventSynchronize", b.before),
    "cuMemAlloc": lambda b, _: b.answer("cuMemAlloc", NBYTES),
    "cuMemAllocHost": lambda b, _: b.answer("cuMemAllocHost", NBYTES),
    "cuMemFree(0)": lambda b, _: b.answer("cuMemFree", 0),
    "cuMemAllocAsync(other nonblocking)": lambda b, _: b.answer("cuMemAllocAsync", NBYTES, b.other),
    "cuMemcpyHtoD (sync)": lambda b, _: b.answer("cuMemcpyHtoD", b.a, b.pageable, 64),
    "cuMemsetD8 (sync)": lambda b, _: b.answer("cuMemsetD8", b.b, 0, 64),
    "cuMemcpyHtoDAsync(self, pageable)": lambda b, _: b.answer("cuMemcpyHtoDAsync", b.a, b.pageable, 64, b.stream),
    "cuMemcpyDtoDAsync v2 (self)": lambda b, _: b.symbol("cuMemcpyDtoDAsync_v2", b.b, b.a, 64, b.stream),
    "cuMemcpyDtoDAsync v1 symbol (self)": lambda b, _: b.symbol("cuMemcpyDtoDAsync", b.b, b.a, 64, b.stream),
    "cuMemsetD8Async(other nonblocking)": lambda b, _: b.work(b.other),
    "cuMemsetD8Async(legacy)": lambda b, _: b.work(1),
    "cuModuleLoadData": lambda b, _: b.answer("cuModuleLoadData", b.asker.image),
    "cuModuleUnload": lambda b, _: b.answer("cuModuleUnload", b.module),
    "cuEventCreate": lambda b, _: b.answer("cuEventCreate", 0),
    "cuStreamCreate": lambda b, _: b.answer("cuStreamCreate", 1),
    "cuMemGetInfo": lambda b, _: b.answer("cuMemGetInfo"),
    "cuMemPoolGetAttribute": lambda b, _: b.answer("cuMemPoolGetAttribute", b.pool, b.cu.CUmemPool_attribute(4)),
    "cuGraphExecDestroy(other graph)": lambda b, _: b.answer("cuGraphExecDestroy", b.exec),
    "cuGraphDestroy(other graph)": lambda b, _: b.answer("cuGraphDestroy", b.graph),
    "cuGraphLaunch(other exec, other stream)": lambda b, _: b.answer("cuGraphLaunch", b.exec, b.other),
    "cuGraphLaunch(other exec, self)": lambda b, _: b.answer("cuGraphLaunch", b.exec, b.stream),
    "cuStreamBeginCapture(self again)": lambda b, mode: b.begin(b.stream, mode),
    "cuStreamDestroy(self)": lambda b, _: b.answer("cuStreamDestroy", b.stream),
}

ROWS: list[Row] = [
    {"call": call, "caller": caller, "capture_stream": stream, "mode": mode}
    for caller, stream, mode, call in itertools.product(
        ("same_thread", "other_thread"), ("non_blocking", "blocking"), MODES, CALLS
    )
]


def measure(asker: Asker, row: Row) -> Row:
    """Measure one row: its four naming fields, and the answers."""
    bench = Bench(asker, blocking=row["capture_stream"] == "blocking")
    bench.open(row["mode"])
    call = partial(CALLS[row["call"]], bench, row["mode"])
    result = bench.elsewhere(call) if row["caller"] == "other_thread" else call()
    if row["call"] == "cuStreamDestroy(self)":
        return row | {"result": result}
    status = bench.status(bench.stream)
    end, graph = bench.end(bench.stream)
    return row | {"result": result, "status_after": status, "end_capture": end, "graph_returned": graph is not None}
