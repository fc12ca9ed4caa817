"""Table three: what spans captures, threads and guards, each case with the fields that tell its story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._legality_bench import NBYTES, SUCCESS, Bench, Row
from .rebegin import Asker, Refused

__all__ = ["HOW", "ROWS", "measure"]

HOW = "thread_local mode on a non-blocking stream unless said; cuda.bindings.driver"

Sequence = Callable[[Bench], Row]
SEQUENCES: dict[str, Sequence] = {}


def sequence(name: str) -> Callable[[Sequence], Sequence]:
    """Register a case under its name."""

    def register(function: Sequence) -> Sequence:
        SEQUENCES[name] = function
        return function

    return register


def must(result: str) -> None:
    """Stop the case where a step that only prepares it is refused."""
    if result != SUCCESS:
        raise RuntimeError(f"preparing the case: {result}")


def after(b: Bench, result: str) -> Row:
    """The result, the origin's status after it, and its end."""
    return {"result": result, "origin_status_after": b.status(b.stream), "end_capture": b.end(b.stream)[0]}


# --- forks --------------------------------------------------------------------------------------------


@sequence("fork: side stream waits on an event recorded in the capture")
def _(b: Bench) -> Row:
    b.open()
    return {"result": b.fork(), "side_status": b.status(b.other)}


@sequence("end capture on the forked stream")
def _(b: Bench) -> Row:
    b.open()
    must(b.fork())
    result = b.end(b.other)[0]
    row = after(b, result)
    return {
        "result": row["result"],
        "origin_status_after": row["origin_status_after"],
        "origin_end_capture": row["end_capture"],
        "origin_status_at_last": b.status(b.stream),
    }


@sequence("origin ends with unjoined side work")
def _(b: Bench) -> Row:
    b.open()
    must(b.fork())
    must(b.work(b.other))
    end, graph = b.end(b.stream)
    return {
        "end_capture": end,
        "graph_returned": graph is not None,
        "origin_status_after": b.status(b.stream),
        "side_status_after": b.status(b.other),
    }


@sequence("origin ends, side stream forked but holds no node of its own")
def _(b: Bench) -> Row:
    b.open()
    must(b.fork())
    end, graph = b.end(b.stream)
    return {"end_capture": end, "graph_returned": graph is not None, "side_status_after": b.status(b.other)}


@sequence("side work added after its join, then origin ends")
def _(b: Bench) -> Row:
    b.open()
    must(b.fork())
    must(b.work(b.other))
    must(b.join())
    must(b.work(b.other))
    end, graph = b.end(b.stream)
    return {"end_capture": end, "graph_returned": graph is not None}


@sequence("begin capture on the forked stream")
def _(b: Bench) -> Row:
    b.open()
    must(b.fork())
    return after(b, b.begin(b.other))


# --- events -------------------------------------------------------------------------------------------


def _open_and_record(b: Bench) -> None:
    b.open()
    must(b.answer("cuEventRecord", b.event, b.stream))


def _record_and_end(b: Bench) -> None:
    _open_and_record(b)
    must(b.end(b.stream)[0])


@sequence("event query on an event recorded in the live capture")
def _(b: Bench) -> Row:
    _open_and_record(b)
    return after(b, b.answer("cuEventQuery", b.event))


@sequence("event synchronize on an event recorded in the live capture")
def _(b: Bench) -> Row:
    _open_and_record(b)
    return after(b, b.answer("cuEventSynchronize", b.event))


@sequence("after end: idle stream waits on an event last recorded in the ended capture")
def _(b: Bench) -> Row:
    _record_and_end(b)
    return {"result": b.answer("cuStreamWaitEvent", b.other, b.event, 0)}


@sequence("after end: query of that event")
def _(b: Bench) -> Row:
    _record_and_end(b)
    return {"result": b.answer("cuEventQuery", b.event)}


@sequence("after end: synchronize of that event")
def _(b: Bench) -> Row:
    _record_and_end(b)
    return {"result": b.answer("cuEventSynchronize", b.event)}


@sequence("next capture on the same stream waits on an event last recorded in the previous one")
def _(b: Bench) -> Row:
    _record_and_end(b)
    b.open()
    return after(b, b.answer("cuStreamWaitEvent", b.stream, b.event, 0))


@sequence("capturing stream waits on an event recorded outside any capture")
def _(b: Bench) -> Row:
    b.open()
    return after(b, b.answer("cuStreamWaitEvent", b.stream, b.before, 0))


@sequence("capturing stream waits on a never-recorded event")
def _(b: Bench) -> Row:
    b.open()
    return after(b, b.answer("cuStreamWaitEvent", b.stream, b.never, 0))


@sequence("capturing stream waits with the external flag on an event recorded outside")
def _(b: Bench) -> Row:
    b.open()
    return after(b, b.answer("cuStreamWaitEvent", b.stream, b.before, 1))


@sequence("second capture waits on an event of the first (merge)")
def _(b: Bench) -> Row:
    _open_and_record(b)
    must(b.begin(b.other))
    must(b.work(b.other))
    result = b.answer("cuStreamWaitEvent", b.other, b.event, 0)
    origin, other = b.status(b.stream), b.status(b.other)
    return {
        "result": result,
        "origin_status_after": origin,
        "other_status_after": other,
        "end_capture": b.end(b.stream)[0],
        "other_end_capture": b.end(b.other)[0],
    }


# --- ends, threads and special streams ----------------------------------------------------------------


@sequence("end capture on a stream that is not capturing")
def _(b: Bench) -> Row:
    return {"result": b.end(b.stream)[0]}


@sequence("end capture from another thread, thread_local")
def _(b: Bench) -> Row:
    b.open()
    return after(b, b.elsewhere(lambda: b.end(b.stream))[0])


@sequence("end capture from another thread, relaxed")
def _(b: Bench) -> Row:
    b.open("relaxed")
    return {"result": b.elsewhere(lambda: b.end(b.stream))[0], "origin_status_after": b.status(b.stream)}


@sequence("begin capture on handle 0")
def _(b: Bench) -> Row:
    return {"result": b.begin(0)}


@sequence("begin capture on the legacy handle 1")
def _(b: Bench) -> Row:
    return {"result": b.begin(1)}


@sequence("begin and end capture on the per-thread handle 2")
def _(b: Bench) -> Row:
    return {"result": b.begin(2), "end_capture": b.end(2)[0]}


@sequence("work submitted to an invalidated stream")
def _(b: Bench) -> Row:
    b.open()
    b.answer("cuMemAlloc", NBYTES)  # refused in thread_local mode, and invalidates the capture
    row = after(b, b.work(b.stream))
    last = b.status(b.stream)
    return row | {"origin_status_at_last": last, "synchronize_after": b.answer("cuStreamSynchronize", b.stream)}


@sequence("empty capture")
def _(b: Bench) -> Row:
    must(b.begin(b.stream))
    end, graph = b.end(b.stream)
    return {"end_capture": end, "graph_returned": graph is not None}


@sequence("status query of the legacy stream while a blocking stream captures")
def _(b: Bench) -> Row:
    must(b.begin(b.blocking))
    must(b.work(b.blocking))
    result = b.answer("cuStreamIsCapturing", 1)
    return {"result": result, "origin_status_after": b.status(b.blocking), "end_capture": b.end(b.blocking)[0]}


@sequence("status query of the legacy stream while a non-blocking stream captures")
def _(b: Bench) -> Row:
    b.open()
    return after(b, b.answer("cuStreamIsCapturing", 1))


@sequence("work on the capturing stream from another thread")
def _(b: Bench) -> Row:
    b.open()
    result, status = b.elsewhere(lambda: b.work(b.stream)), b.status(b.stream)
    end, graph = b.end(b.stream)
    note = "the node is in the graph" if graph is not None and b.nodes(graph) == 2 else "the node is not in the graph"
    return {"result": result, "origin_status_after": status, "end_capture": end, "note": note}


@sequence("caller's stream is capturing; our idle stream waits on its event; begin on ours")
def _(b: Bench) -> Row:
    must(b.begin(b.other))
    must(b.work(b.other))
    must(b.answers(("cuEventRecord", b.event, b.other), ("cuStreamWaitEvent", b.stream, b.event, 0)))
    drawn_in = b.status(b.stream) == "ACTIVE"
    result = b.begin(b.stream)
    end = b.end(b.other)[0]
    ours = "our stream was drawn into the caller's capture" if drawn_in else "our stream was left alone"
    return {"result": result, "note": f"{ours}; the caller's end {'succeeds' if end == SUCCESS else f'answers {end}'}"}


# --- one call under a guard, from another thread, from the same ---------------------------------------

CALLS: dict[str, Callable[[Bench], str]] = {
    "exec destroy": lambda b: b.answer("cuGraphExecDestroy", b.exec),
    "instantiate": lambda b: b.answer("cuGraphInstantiate", b.graph, 0),
    "stream synchronize of another stream": lambda b: b.answer("cuStreamSynchronize", b.other),
    "event query of a pre-capture event": lambda b: b.answer("cuEventQuery", b.before),
    "memory pool trim": lambda b: b.answer("cuMemPoolTrimTo", b.pool, 0),
    "mem alloc": lambda b: b.answer("cuMemAlloc", NBYTES),
    "mem free": lambda b: b.answer("cuMemFree", b.spare),
    "stream query of the capturing stream": lambda b: b.answer("cuStreamQuery", b.stream),
    "context synchronize": lambda b: b.answer("cuCtxSynchronize"),
    "exec update": lambda b: b.answer("cuGraphExecUpdate", b.exec, b.graph),
    "launch on another stream": lambda b: b.answer("cuGraphLaunch", b.exec, b.other),
    "stream get priority": lambda b: b.answer("cuStreamGetPriority", b.stream),
    "context get id": lambda b: b.answer("cuCtxGetId", b.asker.context),
    "mem unmap": lambda b: b.answer("cuMemUnmap", b.mapped, b.page),
    "mem release": lambda b: b.answer("cuMemRelease", b.physical),
}
RELAXED = list(CALLS)[:9]
ANOTHER_THREAD = ["instantiate", "exec destroy", "exec update", "launch on another stream", "mem alloc", "mem free"]
SAME_THREAD = ["exec update", "stream get priority", "context get id", "mem unmap", "mem release"]


def _one_call(call: Callable[[Bench], str], around: Callable[[Bench, Callable[[], str]], str]) -> Sequence:
    def run(b: Bench) -> Row:
        b.open()
        return after(b, around(b, lambda: call(b)))

    return run


for _name in RELAXED:
    _case = f"thread_local capture, relaxed exchange around: {_name}"
    SEQUENCES[_case] = _one_call(CALLS[_name], lambda b, call: b.relaxed(call))
for _name in ANOTHER_THREAD:
    _case = f"thread_local capture, another thread: {_name}"
    SEQUENCES[_case] = _one_call(CALLS[_name], lambda b, call: b.elsewhere(call))
for _name in SAME_THREAD:
    _case = f"thread_local capture, same thread: {_name}"
    SEQUENCES[_case] = _one_call(CALLS[_name], lambda _, call: call())


@sequence("stream-ordered allocation left in a captured graph: instantiate, launch, launch again")
def _(b: Bench) -> Row:
    must(b.begin(b.stream))
    must(b.answer("cuMemAllocAsync", NBYTES, b.stream))
    end, graph = b.end(b.stream)
    must(end)
    results: list[Any] = []
    try:
        graph_exec = b.do("cuGraphInstantiate", graph, 0)
    except Refused as refused:
        return {"results": [refused.name]}
    results.append(SUCCESS)
    results += [b.answer("cuGraphLaunch", graph_exec, b.stream) for _ in range(2)]
    return {"results": results}


ROWS: list[Row] = [{"case": case} for case in SEQUENCES]


def measure(asker: Asker, row: Row) -> Row:
    """Measure one case: its name, and the answers."""
    return row | SEQUENCES[row["case"]](Bench(asker))
