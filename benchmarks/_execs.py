"""Execs that graphs of many sizes share: the device memory they save, and what a change of size costs.

The driver keeps the memory of a destroyed exec for later ones, so each amount is measured in a process of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import breakgraph as bg
from benchmarks._layers import Layers, LayersSize
from benchmarks._report import Report
from benchmarks._values import Comparison

__all__ = ["ARMS", "device_memory", "measure"]

#: What is captured in a process of its own: one size, every size, every size with one cache.
ARMS = ("one", "every", "cached")
_STEADY = 20  # replays of one size in a row


def measure(report: Report, *, small: bool, rounds: int) -> None:
    """Add the rows of one topology at every size, and of a mix of two."""
    layers = Layers.of(small=small)
    sizes = f"{layers.layers} layers x {len(layers.sizes)} sizes"
    if not small:
        with report.part(f"device memory of execs, {sizes}"):
            _measure_memory(report)
    with report.part(f"a cache of execs, {sizes}"):
        _measure_sharing(report, layers)
    with report.part(f"a change of size, {sizes}"):
        _measure_change(report, layers, rounds)
    with report.part(f"a cache of execs, {sizes} of two topologies"):
        _measure_mix(report, layers)


# device memory ----------------------------------------------------------------------------------------------
def _measure_memory(report: Report) -> None:
    one, every, cached = (_in_child(arm) for arm in ARMS)
    if one <= 0:
        raise RuntimeError(f"the execs of one size took {one} bytes, so nothing can be compared with them")
    report.add("device memory of execs, one size", one, "bytes")
    report.add("device memory of execs, every size, no cache", every, "bytes")
    report.add("device memory of execs, every size, one cache", cached, "bytes")
    report.add("no cache/one size", every / one, "ratio")
    report.add("one cache/one size", cached / one, "ratio", bound=1.3)


def _in_child(arm: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--exec-memory", arm], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the process that measured {arm!r} ended with {done.returncode}:\n{done.stderr}")
    return int(done.stdout)


def device_memory(arm: str) -> int:
    """Bytes that capturing, and replaying each graph once, took from the device in this process.

    Arrays, modules and streams are there before; what the arena maps is not counted.
    """
    driver, layers = bg.driver.current(), Layers.of(small=False)
    sizes = layers.every_size()
    for size in sizes:
        size.fill(size.rows)
        layers.forward(size, size.eager_out)
    warm = _one_kernel(sizes[0])  # what any first capture takes; kept, since its memory would serve again
    arena, cache = bg.Arena(), bg.ExecCache() if arm == "cached" else None
    driver.synchronize()
    free, mapped = driver.mem_get_info()[0], arena.mapped
    graphs = [layers.capture(size, arena=arena, execs=cache) for size in (sizes[:1] if arm == "one" else sizes)]
    for graph in graphs:
        graph.replay()
    driver.synchronize()
    taken = free - driver.mem_get_info()[0] - (arena.mapped - mapped)
    for graph in (*graphs, warm):
        graph.close()
    return taken


def _one_kernel(size: LayersSize) -> Any:
    with bg.capture(arena=bg.Arena()) as graph:
        size.out.fill(0)
    graph.replay()
    return graph


# sharing ----------------------------------------------------------------------------------------------------
def _measure_sharing(report: Report, layers: Layers) -> None:
    sizes, cache = layers.every_size(), bg.ExecCache()
    with _captured(layers, sizes, cache) as graphs:
        report.add("segments of one size", len(graphs[0].segments), "count")
        report.add("execs, every size, one cache", _execs(graphs), "count", bound=len(graphs[0].segments))
        compared = _replayed(layers, sizes, graphs)
        with _calls("graph_exec_update") as updates:
            for _ in range(_STEADY):
                graphs[-1].replay()  # the size that was replayed last
        report.add(f"updates in {_STEADY} more replays of one size", len(updates), "count", bound=0)
        with _calls("graph_exec_update") as updates:
            graphs[0].replay()
        made, segments = len(updates), len(graphs[0].segments)
        report.add("updates at a change of size, one a segment", made, "count", bound=segments, holds=made == segments)
    report.add("mismatches, one topology", compared.mismatches, "values", bound=0)
    report.add("values compared, one topology", compared.values, "values")


def _measure_mix(report: Report, layers: Layers) -> None:
    sizes, cache = layers.every_size(mixed=True), bg.ExecCache()
    with _captured(layers, sizes, cache) as graphs:
        segments = len(graphs[0].segments)
        # The last segment is the same in both.
        report.add("execs, every size, two topologies", _execs(graphs), "count", bound=2 * segments - 1)
        compared = _replayed(layers, sizes, graphs)
    report.add("mismatches, two topologies", compared.mismatches, "values", bound=0)
    report.add("values compared, two topologies", compared.values, "values")


@contextmanager
def _captured(layers: Layers, sizes: Sequence[LayersSize], cache: Any) -> Iterator[list[Any]]:
    arena, graphs = bg.Arena(), []
    try:
        for size in sizes:
            size.fill(size.rows)
            layers.forward(size, size.eager_out)  # its kernels are loaded
            graphs.append(layers.capture(size, arena=arena, execs=cache))
        yield graphs
    finally:
        for graph in graphs:
            graph.close()


def _replayed(layers: Layers, sizes: Sequence[LayersSize], graphs: Sequence[Any]) -> Comparison:
    """Replay all sizes down, up, and each twice, with nothing that waits in between; compare each time."""
    compared, places = Comparison(), range(len(sizes))
    for seed, order in enumerate([list(places), list(reversed(places)), [at for at in places for _ in range(2)]]):
        for size in sizes:
            size.fill(100 * seed + size.rows)
            size.out.fill(float("nan"))
        for at in order:
            graphs[at].replay()
        for size in sizes:
            layers.forward(size, size.eager_out)
            compared.compare(size.out, size.eager_out)
    return compared


def _execs(graphs: Sequence[Any]) -> int:
    return len({segment.exec for graph in graphs for segment in graph.segments})


# the cost of a change ---------------------------------------------------------------------------------------
def _measure_change(report: Report, layers: Layers, rounds: int) -> None:
    sizes = layers.every_size()[:2]
    with _captured(layers, sizes, bg.ExecCache()) as shared, _captured(layers, sizes, None) as own:
        steady = [_median_us(rounds, graph.replay, before=graph.replay) for graph in shared]
        changed = [_median_us(rounds, graph.replay, before=other.replay) for graph, other in _turns(shared)]
        changed_own = [_median_us(rounds, graph.replay, before=other.replay) for graph, other in _turns(own)]
        split: dict[str, float] = {}
        for call in ("graph_exec_update", "graph_launch"):
            for when, turns in (("right after a change", _turns(shared)), ("steady", [(g, g) for g in shared])):
                spent = [_median_call_us(call, rounds, graph, other) for graph, other in turns]
                split[f"{call}, {when}"] = statistics.mean(spent)
    report.add("replay, steady", statistics.mean(steady), "us")
    report.add("replay right after a change of size", statistics.mean(changed), "us")
    report.add("replay right after a change of size, no cache", statistics.mean(changed_own), "us")
    report.add("what a change of size adds", statistics.mean(changed) - statistics.mean(steady), "us")
    for name, microseconds in split.items():
        report.add(f"in {name}, host", microseconds, "us")


def _turns(graphs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Each graph, and the one that is replayed before it."""
    return list(pairwise([*graphs, graphs[0]]))


def _median_us(rounds: int, run: Callable[[], object], *, before: Callable[[], object]) -> float:
    driver, spent = bg.driver.current(), []
    for _ in range(rounds):
        before()
        driver.synchronize()
        start = time.perf_counter()
        run()
        driver.synchronize()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e6


def _median_call_us(call: str, rounds: int, graph: Any, before: Any) -> float:
    """Microseconds of the host that all such calls of one replay take together."""
    totals = []
    for _ in range(rounds):
        before.replay()
        bg.driver.current().synchronize()
        with _calls(call) as seconds:
            graph.replay()
        totals.append(sum(seconds))
    bg.driver.current().synchronize()
    return statistics.median(totals) * 1e6


@contextmanager
def _calls(name: str) -> Iterator[list[float]]:
    """Seconds that each call of this name to the driver takes in here, one number a call."""
    driver: Any = bg.driver.current()
    made, seconds = getattr(driver, name), []

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return made(*args)
        finally:
            seconds.append(time.perf_counter() - start)

    setattr(driver, name, timed)
    try:
        yield seconds
    finally:
        delattr(driver, name)
