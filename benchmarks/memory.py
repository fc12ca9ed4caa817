"""Measure the memory of graphs: arenas that sizes share, execs that they share, sleep, and no growth over time.

    python -m benchmarks.memory --json benchmarks/records/memory-h200-580.json

Needs a GPU, cupy, and (for a table with lines) rich; ``BREAKGRAPH_DRIVER=sim`` with ``--small`` shows on the
simulator that the benchmark itself works. Exit 0: every bound holds. Exit 1: one does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import _churn, _execs, _sharing, _sleeping
from benchmarks._report import Report

__all__ = ["main", "measure"]


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add the rows of every part; ``rounds`` is of capture, replay, drop."""
    _sharing.measure(report, small=small)
    _execs.measure(report, small=small, rounds=5 if small else 100)
    _sleeping.measure(report, small=small, rounds=8 if small else 100)
    _churn.measure(report, rounds=rounds)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write the record. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="of capture, replay, drop (default 1000)")
    parser.add_argument("--small", action="store_true", help="small sizes, for the simulator")
    parser.add_argument("--exec-memory", choices=_execs.ARMS, help=argparse.SUPPRESS)  # what a child is asked
    args = parser.parse_args(arguments)
    if args.exec_memory:
        print(_execs.device_memory(args.exec_memory))
        return 0
    report = Report("memory", ["python", "-m", "benchmarks.memory", *arguments])
    measure(report, rounds=args.rounds, small=args.small)
    report.print()
    if args.json:
        report.write(args.json)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
