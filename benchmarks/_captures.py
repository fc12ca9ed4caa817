"""Capture of one-kernel segments, from the first call to a graph that can be replayed.

Breakgraph is timed as it comes, launching each segment as soon as it ends so that the capture is itself a forward, and
with ``execute=False``, as the peers capture. "By hand" is begin, kernel, end and instantiate over the driver's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns

import breakgraph as bg
from benchmarks import _peers
from benchmarks._chains import MAKERS, Capture, by_hand, ours, ours_on_torch
from benchmarks._launchers import AS_INSTALLED, PLAIN
from benchmarks._peers import BREAKABLE, present
from benchmarks._report import Report
from benchmarks._timing import Arm, Times, in_turn, ratio

__all__ = ["measure"]

_SEGMENTS = 65
_CURVE, _SMALL = (9, _SEGMENTS, 257, 1025), (3, 5)
_BOUND = 0.30

HAND, DEFERRED, ON_TORCH = "by hand", "breakgraph, execute=False", "breakgraph on torch"
WHAT = "capture"
_MAKERS: dict[str, Callable[[], Capture]] = {
    HAND: by_hand,
    **{arm: make for arm, make in MAKERS.items() if arm != PLAIN},
    DEFERRED: lambda: ours(execute=False),
    ON_TORCH: ours_on_torch,
}


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add a line for each number of segments, and the rows that have a bound."""
    with _peers.current_stream(), report.part("capture of one-kernel segments", family="capture"):
        captures, times = present(report, _MAKERS), {}
        for segments in _SMALL if small else _CURVE:
            turns = max(rounds // 10 * _SEGMENTS // max(segments, _SEGMENTS), 5)
            arms: dict[str, Arm] = {arm: _of(capture, segments) for arm, capture in captures.items()}
            wait = bg.driver.current().synchronize
            times[segments] = in_turn(arms, turns, between=wait)
            report.compare(WHAT, times[segments], at=segments, of="segments")
        _judge(report, times)


def _of(capture: Capture, segments: int) -> Arm:
    """The capture is timed, its end is not."""

    def run() -> float:
        start = perf_counter_ns()
        chain = capture(segments)
        spent = perf_counter_ns() - start
        chain.close()
        return spent

    return run


def _judge(report: Report, times: Mapping[int, Mapping[str, Times]]) -> None:
    at, last = times.get(_SEGMENTS, {}), max(times)
    if BREAKABLE in at:
        name = f"{WHAT}, {_SEGMENTS} segments: {AS_INSTALLED}/{BREAKABLE}"
        report.speed(name, ratio(at[AS_INSTALLED], at[BREAKABLE]), bound=_BOUND)
    if _SEGMENTS in times:
        grown = times[last][AS_INSTALLED].median / last / (at[AS_INSTALLED].median / _SEGMENTS)
        report.speed(f"{WHAT}, one segment of {last:,}/one of {_SEGMENTS}", grown)
