"""Measure the library on the simulator: what its steps make Python and the driver do, and how many a second there are.

    python -m benchmarks.simulator

The counts are the same on every machine, so it is they that show when the library has become slower: each has a bound,
and a test holds it. The rate depends on the machine and on the simulator itself, and has none. Exit 0: every bound
holds. Exit 1: one does not.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import breakgraph as bg
from benchmarks._chains import Capture, ours
from benchmarks._counting import FUNCTIONS, INSTRUCTIONS, count, line
from benchmarks._report import Report
from benchmarks._timing import in_turn, timed

__all__ = ["BOUNDS", "counts", "main", "measure"]

_SEGMENTS, _TIMED = (8, 16, 32), 65
_REPEATS = 32  # so that what is done once in so many launches (breakgraph/memory/backlog.py) is in each count alike

EACH_REPLAYED, REPLAY = "replay, a segment and a break", "replay, beside them"
EACH_CAPTURED, CAPTURE = "capture, a segment and a break", "capture and close, beside them"
CALL = "call through a break point outside a capture"

#: Functions and instructions of the library without its extension (Python 3.11 has the most), and driver calls.
BOUNDS = {
    EACH_REPLAYED: (0.05, 25, 1.02),
    REPLAY: (15, 450, 5),
    EACH_CAPTURED: (60, 1400, 13.1),
    CAPTURE: (170, 3900, 25),
    CALL: (1, 15, 0),
}


def counts() -> dict[str, dict[str, float]]:
    """What there is a bound for, by name. The current driver is the simulator."""
    capture = ours()
    replays, captures = {}, {}
    for segments in _SEGMENTS:
        chain = capture(segments)
        replays[segments] = count(chain.replay, _REPEATS)
        chain.close()
        captures[segments] = count(partial(_capture_and_close, capture, segments), _REPEATS)
    call = {name: float(value) for name, value in count(partial(bg.break_point(lambda x: x), 1)).items()}
    return dict(zip(BOUNDS, (*line(replays, _REPEATS), *line(captures, _REPEATS), call), strict=True))


def measure(report: Report, *, rounds: int) -> None:
    """Add the counts with their bounds, and the rates."""
    for what, found in counts().items():
        with report.part(what):
            functions, instructions = found.pop(FUNCTIONS, 0), found.pop(INSTRUCTIONS, 0)
            measured = {FUNCTIONS: functions, INSTRUCTIONS: instructions, "driver calls": sum(found.values())}
            for (name, value), bound in zip(measured.items(), BOUNDS[what], strict=True):
                report.add(f"{what}: {name}", value, "count", bound=bound)
    with report.part("rates"):
        capture = ours()
        chain = capture(_TIMED)
        arms = {"replay": timed(chain.replay), "capture": timed(partial(_capture_and_close, capture, _TIMED))}
        times = in_turn(arms, rounds, between=bg.driver.current().synchronize)
        chain.close()
        for what, spent in times.items():
            report.add(f"{what}: segments and breaks", (2 * _TIMED - 1) / spent.median * 1e6, "1/s")


def _capture_and_close(capture: Capture, segments: int) -> None:
    capture(segments).close()


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write what was found. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="benchmarks.simulator", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="of what is timed (default 50)")
    args = parser.parse_args(arguments)
    with bg.driver.use("sim"):
        report = Report("simulator", ["python", "-m", "benchmarks.simulator", *arguments])
        measure(report, rounds=args.rounds)
        report.print()
        if args.json:
            report.write(args.json)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
