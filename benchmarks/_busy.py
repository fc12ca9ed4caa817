"""Replay of 65 segments beside Python threads that never stop computing.

A launch that gives up the interpreter lock waits a whole switch interval to get it back. The device is idle when a
round begins, and the wait for that has given up the lock once: a replay begins at the beginning of its thread's turn,
as it does in a service that has just waited for its results. "At any point of the turn" computes in Python for a
random part of the switch interval first, so the turn may end in the middle of a replay, whoever launches.

The C loop shows what of this is the machine's: a thread that has slept wakes on a core with cold caches, and nothing of
Python is in the loop.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter

import breakgraph as bg
from benchmarks import _peers
from benchmarks._chains import MAKERS
from benchmarks._launchers import AS_INSTALLED, PLAIN
from benchmarks._peers import FLOOR, present
from benchmarks._replay import SEGMENTS, floor_of
from benchmarks._report import Report
from benchmarks._timing import Times, in_turn

__all__ = ["measure"]

_OURS = (AS_INSTALLED, PLAIN)
_BOUND = 3  # the 99th percentile over the quiet median
_LEAST = 500  # rounds that a 99th percentile is taken of
_OF = "busy threads"
_OF_PEERS = 20  # rounds of the peers, whose replay may take half a second


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add the lines of no, one and two busy threads."""
    segments = 3 if small else SEGMENTS
    with (
        _peers.current_stream() as stream,
        ExitStack() as stack,
        report.part(f"replay of {segments} segments beside busy Python threads", family="busy"),
    ):
        chains = {arm: capture(segments) for arm, capture in present(report, MAKERS).items()}
        for chain in chains.values():
            stack.callback(chain.close)
        wait = partial(bg.driver.current().stream_synchronize, stream)
        ours = {arm: chains[arm].timed() for arm in _OURS if arm in chains}
        arms = {**floor_of(report, chains, stream), **ours}
        peers = {arm: chain.timed() for arm, chain in chains.items() if arm not in ours}
        turns = rounds if small else max(rounds, _LEAST)
        quiet: dict[str, Times] = {}
        for threads in (0, 1, 2):
            with _counting(threads):
                times = in_turn(arms, turns, between=wait)
                times |= in_turn(peers, _OF_PEERS, between=wait, warm=1)
                anywhere = in_turn(ours, turns, between=lambda: _begin_anywhere(wait))
            quiet = quiet or times
            _show(report, threads, times, quiet)
            report.compare("99th percentile at any point of the turn", anywhere, at=threads, of=_OF, value="p99")


def _show(report: Report, threads: int, times: Mapping[str, Times], quiet: Mapping[str, Times]) -> None:
    report.compare("median", times, at=threads, of=_OF)
    report.compare("99th percentile", times, at=threads, of=_OF, value="p99")
    if not threads:
        return
    ratios = {arm: busy.p99 / quiet[arm].median for arm, busy in times.items()}
    report.compare("99th percentile/quiet median", ratios, "ratio", at=threads, of=_OF)
    for arm, found in ratios.items():
        if arm in _OURS or arm == FLOOR:
            name = f"99th percentile beside {threads} busy threads/quiet median: {arm}"
            report.speed(name, found, bound=_BOUND if arm in _OURS else None)


def _begin_anywhere(wait: Callable[[], object]) -> None:
    wait()
    until = perf_counter() + random.random() * sys.getswitchinterval()
    while perf_counter() < until:
        pass


@contextmanager
def _counting(threads: int) -> Iterator[None]:
    """Beside this many threads, each of which counts."""
    going = True

    def count() -> None:
        counted = 0
        while going:
            counted += 1

    running = [threading.Thread(target=count, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        going = False
        for thread in running:
            thread.join()
