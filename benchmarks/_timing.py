"""Times of things that are measured in turn, so that what changes on the machine changes for all of them."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter_ns

import numpy as np

__all__ = ["Arm", "Times", "in_turn", "per_call", "ratio", "timed"]

#: One of the things compared: does its work once and returns how long that took, in nanoseconds.
Arm = Callable[[], float]

_WARM = 3  # rounds before those that count


@dataclass(frozen=True)
class Times:
    """What one arm took in each round, in microseconds and in the order of the rounds."""

    us: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.us)

    @property
    def p99(self) -> float:
        """The 99th percentile: the smallest time that 99 of 100 rounds do not exceed."""
        return self.quantile(0.99)

    def quantile(self, fraction: float) -> float:
        return float(np.quantile(self.us, fraction, method="inverted_cdf"))

    def minus(self, other: Times) -> Times:
        """What this took more than the other, round by round."""
        return Times([mine - theirs for mine, theirs in zip(self.us, other.us, strict=True)])

    def over(self, count: int) -> Times:
        """The part of each round that falls to one of ``count`` equal pieces."""
        return Times([us / count for us in self.us])


def in_turn(
    arms: Mapping[str, Arm], rounds: int, *, between: Callable[[], object] = lambda: None, warm: int = _WARM
) -> dict[str, Times]:
    """Run every arm once a round, and ``between`` before each, untimed.

    Each round begins with another arm, so that none always follows the same one. The garbage collector is off.
    """
    names = list(arms)
    spent: dict[str, list[float]] = {name: [] for name in names}
    with _no_collections():
        for number in range(-warm, rounds):
            for at in range(len(names)):
                name = names[(number + at) % len(names)]
                between()
                nanoseconds = arms[name]()
                if number >= 0:
                    spent[name].append(nanoseconds / 1e3)
    return {name: Times(us) for name, us in spent.items()}


def timed(*calls: Callable[[], object]) -> Arm:
    """An arm that times these calls, one after the other."""
    if len(calls) == 1:
        (call,) = calls

        def run_one() -> float:
            start = perf_counter_ns()
            call()
            return perf_counter_ns() - start

        return run_one

    def run() -> float:
        start = perf_counter_ns()
        for call in calls:
            call()
        return perf_counter_ns() - start

    return run


def per_call(call: Callable[[], object], count: int) -> Arm:
    """An arm that times a loop of ``count`` calls and returns the time of one."""

    def loop() -> float:
        start = perf_counter_ns()
        for _ in repeat(None, count):
            call()
        return (perf_counter_ns() - start) / count

    return loop


def ratio(times: Times, to: Times) -> float:
    """The median over the rounds of one time over another of the same round.

    Not the ratio of two medians: a host that changes its clock half-way would move one median and not the other.
    """
    return statistics.median(mine / theirs for mine, theirs in zip(times.us, to.us, strict=True))


@contextmanager
def _no_collections() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
