"""An arena that sleeps: the memory it gives back, how long that takes, and replays after it woke."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import breakgraph as bg
from benchmarks._mlp import Mlp, fresh_inputs
from benchmarks._report import Report
from benchmarks._sharing import NETWORKS, captured, sizes_of
from benchmarks._values import Comparison

__all__ = ["measure"]


def measure(report: Report, *, small: bool, rounds: int) -> None:
    """Add the rows; ``rounds`` is the number of replays after waking, over all sizes in turn."""
    with report.part("sleep and wake"):
        _measure_replays(report, small=small, rounds=rounds)
    with report.part("sleep with a backup"):
        _measure_backup(report, small=small)


def _measure_replays(report: Report, *, small: bool, rounds: int) -> None:
    driver, network = bg.driver.current(), Mlp.of_widths(*NETWORKS[0])
    sizes = sizes_of(network, small=small)
    inputs = [fresh_inputs(size.rows, network.inputs, rounds + 1) for size in sizes]
    for size, (host, *_) in zip(sizes, inputs, strict=True):
        size.x.set(host)
        network.forward(size.x, size.eager_out)
    arena, compared = bg.Arena(), Comparison()
    with captured(network, sizes, arena) as (graphs, _):
        mapped = arena.mapped
        nights = [_night(arena) for _ in range(5)]
        for number in range(rounds):
            at = number % len(sizes)
            size = sizes[at]
            size.x.set(inputs[at][1 + number])
            size.out.fill(np.nan)
            graphs[at].replay()
            network.forward(size.x, size.eager_out)
            compared.compare(size.out, size.eager_out)
        driver.synchronize()
    back = min(freed / mapped for freed, _, _ in nights)
    report.add("mapped before sleep", mapped, "bytes")
    report.add("back with the device after sleep/mapped", back, "ratio", bound=0.99, holds=back >= 0.99)
    report.add("sleep, median of 5", statistics.median(sleep for _, sleep, _ in nights) * 1e3, "ms")
    report.add("wake, median of 5", statistics.median(wake for _, _, wake in nights) * 1e3, "ms")
    report.add("replays after wake, over all sizes", rounds, "count")
    report.add("mismatches after wake", compared.mismatches, "values", bound=0)
    report.add("values compared after wake", compared.values, "values")


def _night(arena: Any, *, backup: bool = False) -> tuple[int, float, float]:
    """One sleep: bytes that the device got back, seconds until asleep, seconds until awake."""
    driver = bg.driver.current()
    driver.synchronize()
    free = driver.mem_get_info()[0]
    start = time.perf_counter()
    arena.sleep(backup=backup)
    asleep = time.perf_counter()
    freed = driver.mem_get_info()[0] - free
    waking = time.perf_counter()
    arena.wake()
    return freed, asleep - start, time.perf_counter() - waking


def _measure_backup(report: Report, *, small: bool) -> None:
    """What a forward returned lives in the arena, and is read after a night without a replay."""
    network = Mlp.of_widths(*NETWORKS[0])
    size, arena = sizes_of(network, small=small)[0], bg.Arena()
    size.x.set(fresh_inputs(size.rows, network.inputs, 1)[0])
    with bg.capture(arena=arena) as graph:
        returned = network.forward(size.x)
    network.forward(size.x, size.eager_out)
    used, mapped = arena.used, arena.mapped
    freed, sleep, wake = _night(arena, backup=True)
    compared = Comparison()
    compared.compare(returned, size.eager_out)
    graph.close()
    report.add("live in the arena", used, "bytes")
    report.add(
        "back with the device, with a backup/mapped", freed / mapped, "ratio", bound=0.99, holds=freed >= 0.99 * mapped
    )
    report.add("sleep with a backup", sleep * 1e3, "ms")
    report.add("wake with a backup", wake * 1e3, "ms")
    report.add("mismatches after a backup", compared.mismatches, "values", bound=0)
    report.add("values compared after a backup", compared.values, "values")
