"""A trace of one replay in the format of chrome://tracing and Perfetto ("Trace Event Format", JSON object form)."""

from __future__ import annotations

from typing import Any

from breakgraph.inspect.report import headline, listed
from breakgraph.inspect.schema import GraphDescription, StepDescription, Times
from breakgraph.inspect.text import kinds

__all__ = ["chrome_trace"]

_PROCESS, _CPU, _GPU = 1, 1, 2


def chrome_trace(description: GraphDescription) -> dict[str, Any]:
    """The trace as data that `json.dumps` takes.

    One track has what the CPU does, one what the GPU does, and a counter the live bytes of the arena. Each track begins
    at 0: what was measured are durations, not when the GPU begins in relation to the CPU. Without times each step takes
    1 us.
    """
    steps = description["steps"]
    measured = any(step["times"] for step in steps)
    told = "measured times" if measured else "no times were measured: each step is drawn 1 us wide"
    events = [
        _name("process_name", 0, f"breakgraph {headline(description)} ({told})"),
        _name("thread_name", _CPU, "CPU: launches and breaks"),
        _name("thread_name", _GPU, "GPU"),
    ]
    cpu = gpu = 0.0
    for at, step in enumerate(steps):
        times = step["times"] or Times(cpu_us=1.0, gap_us=0.0, gpu_us=1.0)
        gpu += times["gap_us"]
        events += [_slice(step, _CPU, cpu, times["cpu_us"]), _slice(step, _GPU, gpu, times["gpu_us"])]
        events.append(_counter(gpu, _live_bytes(description, at)))
        cpu += times["cpu_us"]
        gpu += times["gpu_us"]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"schema": description["schema"]}}


def _name(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _slice(step: StepDescription, track: int, start: float, duration: float) -> dict[str, Any]:
    if step["kind"] == "segment":
        name = f"segment {step['index']}"
        args: dict[str, Any] = {"nodes": listed(kinds([step])), "allocated_bytes": step["allocated"]}
    else:
        name = f"break {step['index']} {step['name']}"
        args = {key: step[key] for key in ("site", "tag", "destination", "landing")}
        args["frozen"] = {one["name"]: one["value"] for one in step["frozen"]}
    return {
        "ph": "X",
        "name": name,
        "cat": step["kind"],
        "pid": _PROCESS,
        "tid": track,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def _counter(at: float, nbytes: int) -> dict[str, Any]:
    return {"ph": "C", "name": "arena", "pid": _PROCESS, "tid": _GPU, "ts": at, "args": {"live bytes": nbytes}}


def _live_bytes(description: GraphDescription, step: int) -> int:
    """Bytes of the arena's blocks that are alive at some moment of a step."""
    return sum(
        block["bytes"]
        for block in description["memory"]["blocks"]
        if block["made_in"] <= step and (block["freed_in"] is None or block["freed_in"] >= step)
    )
