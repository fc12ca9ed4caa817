"""Things are measured in turn, and ratios are of the same round.

Proves that every arm runs once a round and none always follows the same one, that what lies between is not timed, that
warm rounds do not count, that the collector is off meanwhile, and that a clock that changes half-way moves no ratio.
"""

from __future__ import annotations

import gc
import time
from collections import Counter

import pytest
import speed_support  # noqa: F401 - the benchmarks on the path

from benchmarks._timing import Times, in_turn, per_call, ratio, timed


def test_every_arm_runs_once_a_round_and_each_round_begins_with_another() -> None:
    order: list[str] = []
    arms = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    times = in_turn(arms, 6, warm=0)
    rounds = ["".join(order[at : at + 3]) for at in range(0, len(order), 3)]
    assert rounds == ["abc", "bca", "cab"] * 2
    assert {name: len(of_arm.us) for name, of_arm in times.items()} == dict.fromkeys("abc", 6)


def test_warm_rounds_do_not_count() -> None:
    spent = iter(range(100))
    times = in_turn({"a": lambda: next(spent) * 1e3}, 3, warm=2)
    assert times["a"].us == [2, 3, 4]


def test_what_lies_between_comes_before_each_arm_and_is_not_timed() -> None:
    seen: list[str] = []

    def between() -> None:
        seen.append("between")
        time.sleep(0.01)

    times = in_turn({"a": timed(lambda: seen.append("a"))}, 2, between=between, warm=0)
    assert seen == ["between", "a"] * 2
    assert max(times["a"].us) < 5_000


def test_the_collector_is_off_meanwhile_and_as_it_was_afterwards() -> None:
    states: list[bool] = []
    in_turn({"a": lambda: states.append(gc.isenabled()) or 1.0}, 2)
    assert not any(states)
    assert gc.isenabled()


def test_several_calls_are_timed_as_one_and_a_loop_as_one_of_its_calls() -> None:
    assert 19e6 < timed(lambda: time.sleep(0.01), lambda: time.sleep(0.01))() < 500e6
    calls: Counter[str] = Counter()
    assert 0.9e6 < per_call(lambda: calls.update(a=1) or time.sleep(0.001), 20)() < 100e6
    assert calls == {"a": 20}


def test_a_clock_that_changes_half_way_moves_no_ratio() -> None:
    slow_in_the_middle = [1.0] * 5 + [1.5] * 6
    mine, floor = Times([1.1 * us for us in slow_in_the_middle]), Times(slow_in_the_middle)
    assert ratio(mine, floor) == pytest.approx(1.1)


def test_times_know_their_median_their_tail_and_what_they_took_more() -> None:
    times = Times([float(us) for us in range(1, 101)])
    assert (times.median, times.p99, times.quantile(0.1)) == (50.5, 99, 10)
    assert times.minus(Times([1.0] * 100)).over(2).us[:3] == [0, 0.5, 1]
