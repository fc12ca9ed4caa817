"""Measure what it costs, at the end of a segment, to join whatever was forked in it.

    python -m benchmarks.joins --json benchmarks/records/joins-h200-580.json

Each row is the median host time of `Forks.join` on an open capture: of segments of several lengths on one stream, of
segments whose forks the forward has joined itself, and of some whose forks it has not. Beside it the time to begin
and end the same capture, which every segment pays. Exit 0 always: nothing here has a bound.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import breakgraph as bg
from benchmarks._report import Report
from breakgraph.driver.api import CaptureMode
from breakgraph.driver.forks import Forks

__all__ = ["main", "measure"]

_NODES = (1, 20, 200)
_BRANCHES = (1, 3, 8)
_BYTES = 4096


class Bench:
    """An origin, side streams, and work to put on them."""

    def __init__(self, rounds: int) -> None:
        self._driver = bg.driver.current()
        self._driver.synchronize()  # a context is current
        self._rounds = rounds
        self._origin, *self._sides = (self._driver.create_stream() for _ in range(1 + max(_BRANCHES)))
        self._event = self._driver.event_create()
        self._ptr = self._driver.mem_alloc(_BYTES)

    def segment(self, nodes: int, branches: int, *, joined: bool) -> tuple[float, float, int]:
        """Microseconds of the join, and of beginning and ending the capture around it; branches that it joined."""
        joins, ends, counts = [], [], set()
        for _ in range(self._rounds):
            start = time.perf_counter()
            self._driver.stream_begin_capture(self._origin.handle, CaptureMode.THREAD_LOCAL)
            begun = time.perf_counter()
            self._work(nodes, branches, joined=joined)
            before = time.perf_counter()
            _, count = Forks(self._driver, self._origin.handle).join()
            after = time.perf_counter()
            graph = self._driver.stream_end_capture(self._origin.handle)
            ended = time.perf_counter()
            self._driver.graph_destroy(graph)
            joins.append(after - before)
            ends.append((begun - start) + (ended - after))
            counts.add(count)
        (count,) = counts
        return statistics.median(joins) * 1e6, statistics.median(ends) * 1e6, count

    def _work(self, nodes: int, branches: int, *, joined: bool) -> None:
        for _ in range(nodes):
            self._fill(self._origin.handle)
        for side in self._sides[:branches]:
            self._order(self._origin.handle, side.handle)
            self._fill(side.handle)
            if joined:
                self._order(side.handle, self._origin.handle)

    def _fill(self, stream: int) -> None:
        self._driver.memset_d8_async(self._ptr, 0, _BYTES, stream)

    def _order(self, before: int, after: int) -> None:
        self._driver.event_record(self._event, before)
        self._driver.stream_wait_event(after, self._event)


def measure(report: Report, *, rounds: int, small: bool = False) -> None:
    """Add the rows; ``small`` measures the same in fewer rounds."""
    bench = Bench(min(rounds, 5) if small else rounds)
    add: Callable[..., None] = report.add
    with report.part("join at the end of a segment"):
        for nodes in _NODES:
            join, around, _ = bench.segment(nodes, 0, joined=True)
            add(f"{nodes} nodes on one stream: join", join, "us")
            add(f"{nodes} nodes on one stream: begin and end", around, "us")
        for joined, how in ((True, "joined by the forward"), (False, "left open")):
            for branches in _BRANCHES:
                join, around, count = bench.segment(20, branches, joined=joined)
                name = f"20 nodes and {branches} branches {how}"
                add(f"{name}: join", join, "us")
                add(f"{name}: branches joined by the library", count, "count")
                add(f"{name}: begin and end", around, "us")


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write the record. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="benchmarks.joins", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    parser.add_argument("--rounds", type=int, default=500, metavar="N", help="of each segment (default 500)")
    args = parser.parse_args(arguments)
    report = Report("joins", ["python", "-m", "benchmarks.joins", *arguments])
    measure(report, rounds=args.rounds)
    report.print()
    if args.json:
        report.write(args.json)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
