"""Measure everything that the project claims about speed and memory, beside a floor and the peers.

    python -m benchmarks --out benchmarks/records
    python -m benchmarks --only replay,capture --rounds 200

Prints a table, and writes a record and a picture for each family. Needs a GPU, cupy, and of the extras `peers` and
`bench` what is to be compared and drawn: what is missing is left out, and said. ``BREAKGRAPH_DRIVER=sim`` with
``--small`` shows on the simulator that the benchmarks themselves work. Exit 0: every bound holds. Exit 1: one does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    _break_points,
    _busy,
    _captures,
    _landing,
    _profile,
    _replay,
    _transformer,
    graphed,
    joins,
    memory,
    plots,
)
from benchmarks._report import Report

__all__ = ["FAMILIES", "main"]

Measure = Callable[..., None]

#: Name of a family: the record that it belongs to, and what measures it. What has a bound on speed is one record.
FAMILIES: dict[str, tuple[str, Measure]] = {
    "replay": ("speed", _replay.measure),
    "busy": ("speed", _busy.measure),
    "landing": ("speed", _landing.measure),
    "break_points": ("speed", _break_points.measure),
    "capture": ("speed", _captures.measure),
    "transformer": ("speed", _transformer.measure),
    "profile": ("profile", _profile.measure),
    "memory": ("memory", memory.measure),
    "joins": ("joins", joins.measure),
    "graphed": ("graphed", graphed.measure),
}


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write, draw. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", type=_families, default=list(FAMILIES), metavar="FAMILY,...", help=", ".join(FAMILIES)
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write records and pictures there")
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="of the shortest arms (default 1000)")
    parser.add_argument("--small", action="store_true", help="small sizes, for the simulator")
    args = parser.parse_args(arguments)
    reports: dict[str, Report] = {}
    for family in args.only:
        record, measure = FAMILIES[family]
        report = reports.setdefault(record, Report(record, ["python", "-m", "benchmarks", *arguments]))
        measure(report, rounds=args.rounds, small=args.small)
    for report in reports.values():
        report.print()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        written = [report.write(args.out / f"{report.what}-{report.place}.json") for report in reports.values()]
        plots.main([*map(str, written)])
    return 0 if all(report.good for report in reports.values()) else 1


def _families(names: str) -> list[str]:
    chosen = names.split(",")
    for name in chosen:
        if name not in FAMILIES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(FAMILIES)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
