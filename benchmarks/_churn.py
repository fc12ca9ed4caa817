"""Capture, replay, drop, over and over: the device's free memory has to stay where it is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

import breakgraph as bg
from benchmarks._report import Report

__all__ = ["measure"]

_SETTLED = 20  # rounds after which nothing may grow any more
_ROWS, _WIDTH = 512, 512


def measure(report: Report, *, rounds: int) -> None:
    """Add the rows of ``rounds`` rounds in one arena, and of a tenth as many with an arena and a cache each."""
    with report.part("capture, replay, drop"):
        arena = bg.Arena()
        _measure(report, "one arena", rounds, lambda: {"arena": arena})
    with report.part("capture, replay, drop, each with an arena and a cache of its own"):
        fresh = max(rounds // 10, 2 * _SETTLED)
        _measure(report, "new arenas", fresh, lambda: {"arena": bg.Arena(), "execs": bg.ExecCache()})


def _measure(report: Report, name: str, rounds: int, options: Callable[[], dict[str, Any]]) -> None:
    xp = bg.array_namespace()
    x, out = (xp.zeros((_ROWS, _WIDTH), np.float32) for _ in range(2))
    wrong = settled = pooled = pool = grown = 0
    for number in range(1, rounds + 1):
        x.fill(number)
        with bg.capture(**options()) as graph:
            _forward(x, out)
        x.fill(number + 1)
        graph.replay()
        wrong += int(np.count_nonzero(out != _expected(number + 1)))
        del graph
        if number >= _SETTLED and (number % 100 == 0 or number in (_SETTLED, rounds)):
            taken, pool = _taken()
            if number == _SETTLED:
                settled, pooled = taken, pool
            grown = max(grown, taken - settled)
    report.add(f"{name}: rounds", rounds, "count")
    report.add(f"{name}: growth of device memory in use, from round {_SETTLED} on", grown, "bytes", bound=0)
    if bg.driver.current().name == "cuda":
        report.add(f"{name}: growth of cupy's pool, which the above contains", pool - pooled, "bytes")
    report.add(f"{name}: mismatches", wrong, "values", bound=0)


def _forward(x: Any, out: Any) -> None:
    """3 segments and 2 breaks, one of which lands in the arena."""
    doubled = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
    hidden = doubled + 3
    bg.break_graph()
    np.add(hidden, doubled + x, out=out)


def _expected(value: int) -> int:
    return 5 * value + 7


def _taken() -> tuple[int, int]:
    """Bytes of the device in use by anyone, and those that cupy's pool has."""
    gc.collect()
    driver = bg.driver.current()
    driver.synchronize()
    free, total = driver.mem_get_info()
    pool = 0
    if driver.name == "cuda":
        import cupy

        pool = int(cupy.get_default_memory_pool().total_bytes())
    return total - free, pool
