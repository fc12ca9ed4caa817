"""Call a graphed function over and over with random numbers of rows: nothing grows, each size is captured once.

    python -m benchmarks.graphed --json benchmarks/records/graphed-h200-580.json

Every hundredth result is compared, bit for bit, with the eager forward's. Then calls of a few sizes are timed, beside
the replay alone and the eager forward. ``--driver sim --small`` shows without a GPU that the benchmark itself works.
Exit 0: every bound holds. Exit 1: one does not.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

import breakgraph as bg
from benchmarks._report import Report
from benchmarks._timing import Arm, in_turn, ratio, timed
from benchmarks._values import Comparison

__all__ = ["main", "measure"]

_MAXIMUM, _WIDTH = 256, 64
_LAYERS, _KERNELS = 4, 6  # kernels of each layer
_CALLS = 100_000
_PARTS, _SETTLED = 20, 2  # of the calls, and after how many of them nothing may grow any more
_COMPARED = 100  # one call in so many
_TIMED = (1, 7, 64, 256)  # rows
_HOST_GROWTH = 4 << 20  # bytes that the allocators of Python and C may shuffle
_WARM = 10_000  # calls, before which host memory may still grow: libraries fill their caches

GRAPHED, REPLAY, EAGER = "graphed call", "its replay alone", "eager"


class Forward:
    """Layers of small kernels on (rows, width) float32, an eager break between each two."""

    def __init__(self) -> None:
        rng, put = np.random.default_rng(0), bg.array_namespace().asarray
        self._signs = put(rng.choice([-1.0, 1.0], _WIDTH).astype(np.float32))
        self._steps = put(rng.standard_normal(_WIDTH, np.float32))

    def __call__(self, x: Any) -> Any:
        for layer in range(_LAYERS):
            if layer:
                x = bg.break_here(np.negative, bg.INFER, x)
            for kernel in range(_KERNELS):
                x = x * self._signs if kernel % 2 else x + self._steps
        return x


def measure(report: Report, *, rounds: int, small: bool, calls: int = _CALLS) -> None:
    """Add the rows of so many calls, and of ``rounds`` rounds of timed ones, both fewer where it is ``small``."""
    calls, rounds, block = (400, 2, 2) if small else (calls, rounds, 50)
    forward = Forward()
    service = bg.graphed(forward, buckets=bg.size_ladder(_MAXIMUM), fallback="refuse")
    host = np.random.default_rng(1).standard_normal((_MAXIMUM, _WIDTH), np.float32)
    source = bg.array_namespace().asarray(host)
    with report.part(f"{calls:,} calls of random sizes"):
        _call(report, service, forward, source, calls)
    with report.part("time of a call, many back to back, and the device's work"):
        for rows in _TIMED:
            _time(report, service, forward, source[:rows], rounds, block)


def _call(report: Report, service: Any, forward: Forward, source: Any, calls: int) -> None:
    compared, rng, usage = Comparison(), np.random.default_rng(2), []
    every_size = rng.permutation(bg.size_ladder(_MAXIMUM))
    for number, rows in enumerate((*every_size, *rng.integers(1, _MAXIMUM + 1, calls - len(every_size)))):
        y = service(source[:rows])
        if number % _COMPARED == 0:
            compared.compare(y, forward(source[:rows]))
        del y
        if (number + 1) % (calls // _PARTS) == 0:
            usage.append(_usage(service))
    stats, buckets = service.stats, len(bg.size_ladder(_MAXIMUM))
    report.add("calls", stats.calls, "count")
    report.add("captures", stats.captures, "count", bound=buckets, holds=stats.captures == buckets)
    report.add("calls that ran the function itself", sum(stats.fallbacks.values()), "count", bound=0)
    report.add("values compared with eager", compared.values, "values")
    report.add("mismatches", compared.mismatches, "values", bound=0)
    on_gpu = bg.driver.current().name == "cuda"  # the simulator keeps a log, in host memory
    for what, bound in (
        ("device memory in use", 0),
        ("the arena", 0),
        ("host memory", _HOST_GROWTH if on_gpu and stats.calls > _WARM else None),
    ):
        settled, *later = (part[what] for part in usage[_SETTLED - 1 :])
        report.add(f"growth of {what}, after the first tenth", max(later) - settled, "bytes", bound=bound)
    report.add("mapped by the arena", service.arena.mapped, "bytes")
    report.add("padding", 100 * stats.padding, "% of rows")


def _usage(service: Any) -> dict[str, int]:
    """Bytes in use now, by what they are. What the array library keeps for later arrays is nobody's."""
    gc.collect()
    driver = bg.driver.current()
    driver.synchronize()
    if driver.name == "cuda":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
    else:
        bg.array_namespace().empty(1)  # the simulator's arrays give back what has died when one is made
        driver.synchronize()
    free, total = driver.mem_get_info()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"device memory in use": total - free, "the arena": service.arena.mapped, "host memory": resident}


def _time(report: Report, service: Any, forward: Forward, x: Any, rounds: int, block: int) -> None:
    rows, wait = len(x), bg.driver.current().synchronize
    size = next(size for size in bg.size_ladder(_MAXIMUM) if size >= rows)
    (graph,) = (graph for graph in service.graphs if graph.name == f"Forward[{size}]")

    def arm(call: Callable[[], object]) -> Arm:
        def calls() -> None:
            for _ in repeat(None, block):
                call()

        return timed(calls, wait)

    replay = partial(graph.replay, valid_rows=rows)
    arms = {GRAPHED: arm(partial(service, x)), REPLAY: arm(replay), EAGER: arm(partial(forward, x))}
    times = {name: taken.over(block) for name, taken in in_turn(arms, rounds, between=wait).items()}
    report.compare("one call", times, at=rows, of="rows")
    report.speed(f"{rows} rows: {GRAPHED}/{EAGER}", ratio(times[GRAPHED], times[EAGER]))


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write the record. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="benchmarks.graphed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    parser.add_argument("--calls", type=int, default=_CALLS, metavar="N", help=f"of random sizes (default {_CALLS:,})")
    parser.add_argument("--rounds", type=int, default=200, metavar="N", help="of timed calls (default 200)")
    parser.add_argument("--small", action="store_true", help="few of both, for the simulator")
    parser.add_argument("--driver", choices=("cuda", "sim"), help="by default that of BREAKGRAPH_DRIVER, or cuda")
    args = parser.parse_args(arguments)
    fewest = len(bg.size_ladder(_MAXIMUM)) * _PARTS // _SETTLED
    if args.calls < fewest:
        parser.error(f"--calls is at least {fewest}, so that every size is captured in the first tenth of them")
    if args.driver:
        bg.driver.use(args.driver)
    bg.driver.current().synchronize()
    report = Report("graphed", ["python", "-m", "benchmarks.graphed", *arguments])
    measure(report, rounds=args.rounds, small=args.small, calls=args.calls)
    report.print()
    if args.json:
        report.write(args.json)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
