"""Replay of one-kernel segments with breaks that do nothing, against a C loop that launches the same execs.

Each round starts with an idle device. "The call" is the time until ``replay()`` returns to Python, that is what the
host spends on the launches and the breaks; "with the wait" ends when the stream is done. The C loop is timed in C.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import breakgraph as bg
from benchmarks import _floor, _peers
from benchmarks._chains import MAKERS, Chain, nothing, wrong
from benchmarks._launchers import AS_INSTALLED, PLAIN, has_extension
from benchmarks._peers import BREAKABLE, CTYPES, FLOOR, present
from benchmarks._report import Report
from benchmarks._timing import Arm, Times, in_turn, ratio

__all__ = ["SEGMENTS", "floor_of", "measure"]

#: The chain of the bounds, and the long one.
SEGMENTS, LONG = 65, 2049
_CURVE = (1, 3, 9, 17, 33, SEGMENTS, 129, 257, 513, 1025, LONG)
_SMALL = (1, 3, 9)
_TO_FLOOR, _PLAIN_TO_FLOOR, _TO_PEER = 1.05, 1.40, 0.50
_MORE_WHEN_LONG = 0.05  # over what the ratio to the floor is at 65 segments

CALL, WAITED = "replay, the call", "replay, with the wait"


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add a line for each number of segments, and the rows that have a bound. 65 segments have ``rounds`` rounds."""
    with _peers.current_stream() as stream, report.part("replay of one-kernel segments", family="replay"):
        captures = present(report, MAKERS)
        calls: dict[int, dict[str, Times]] = {}
        mismatches = 0
        for segments in _SMALL if small else _CURVE:
            with ExitStack() as stack:
                chains = {arm: capture(segments) for arm, capture in captures.items()}
                for chain in chains.values():
                    stack.callback(chain.close)
                mismatches += sum(wrong(chain, segments) for chain in chains.values())
                turns = max(rounds * SEGMENTS // max(segments, SEGMENTS), 10)
                calls[segments] = _compare(report, chains, segments, stream, turns)
        report.add("mismatches, all arms", mismatches, "values", bound=0)
        _judge(report, calls)


def _compare(report: Report, chains: Mapping[str, Chain], segments: int, stream: int, rounds: int) -> dict[str, Times]:
    wait = partial(bg.driver.current().stream_synchronize, stream)
    called: dict[str, Arm] = {**floor_of(report, chains, stream, wait=False)}
    waited: dict[str, Arm] = {**floor_of(report, chains, stream, wait=True)}
    for arm, chain in chains.items():
        called[arm], waited[arm] = chain.timed(), chain.timed(wait)
    if FLOOR in called:
        execs = [segment.exec for segment in chains[AS_INSTALLED].graph.segments]
        called[CTYPES] = _floor.by_ctypes(execs, stream, nothing)
    times = in_turn(called, rounds, between=wait)
    report.compare(CALL, times, at=segments, of="segments")
    report.compare(WAITED, in_turn(waited, rounds, between=wait), at=segments, of="segments")
    return times


def floor_of(report: Report, chains: Mapping[str, Chain], stream: int, *, wait: bool = False) -> dict[str, Arm]:
    """The C loop over the execs of breakgraph's own chain."""
    if bg.driver.current().name != "cuda":
        report.skip(FLOOR, "the simulator's graphs are none of the driver's")
        return {}
    execs = [segment.exec for segment in chains[AS_INSTALLED].graph.segments]
    return present(report, {FLOOR: lambda: _floor.launches(execs, stream, wait=wait)})


def _judge(report: Report, calls: Mapping[int, Mapping[str, Times]]) -> None:
    to_floor = _TO_FLOOR if has_extension() else _PLAIN_TO_FLOOR
    bounded = (
        (AS_INSTALLED, FLOOR, to_floor),
        (PLAIN, FLOOR, _PLAIN_TO_FLOOR),
        (CTYPES, FLOOR, None),
        (AS_INSTALLED, BREAKABLE, _TO_PEER),
    )
    for arm, to, bound in bounded:
        times = calls.get(SEGMENTS, {})
        if arm in times and to in times:
            report.speed(f"{CALL}, {SEGMENTS} segments: {arm}/{to}", ratio(times[arm], times[to]), bound=bound)
    if {AS_INSTALLED, FLOOR} <= calls.get(LONG, {}).keys():
        short, long = (ratio(calls[n][AS_INSTALLED], calls[n][FLOOR]) for n in (SEGMENTS, LONG))
        name = f"{CALL}, {LONG:,} segments: {AS_INSTALLED}/{FLOOR}"
        report.speed(name, long, bound=short + _MORE_WHEN_LONG)
