"""The times of a profile are what was noted, net of what noting costs: shown on timelines that are made up.

Proves how host and device are brought onto one clock, what is gap and what is GPU time, what is taken off for the
events, which replays count as typical, and what the advice adds up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from breakgraph.inspect.profile.advice import advise
from breakgraph.inspect.profile.timeline import Samples, Timeline, even_excess
from breakgraph.segments.timing import Spread, StepProfile


def samples(entered: Any, device: Any, *, ended: Any = None, whole: Any = None, **given: Any) -> Samples:
    """Replays whose host notes take no time, and whose events cost nothing, unless told."""
    entered, device = np.atleast_2d(np.array(entered, float)), np.atleast_2d(np.array(device, float))
    ended = entered[:, -1] + 100 if ended is None else np.atleast_1d(np.array(ended, float))
    whole = device[:, -1] if whole is None else np.atleast_1d(np.array(whole, float))
    values = {"wall": ended, "left": entered, "empty": 0.0, **given}
    return Samples(entered=entered, device=device, ended=ended, whole=whole, **values)


def typical(spreads: list[Spread]) -> list[float]:
    return [pytest.approx(spread.typical) for spread in spreads]


def test_a_device_that_waits_for_the_host_has_gaps() -> None:
    """The host needs 10 us for each step; the device 3, 0 and 4 after that."""
    found = Timeline.of(samples([5, 15, 25, 35], [0, 13, 20, 34]))
    assert typical(found.cpu) == [10, 10, 10]
    assert typical(found.gap) == [10, 7, 10]
    assert typical(found.gpu) == [3, 0, 4]
    assert found.before.typical == 5
    assert found.after.typical == pytest.approx(135 - 39)
    assert found.total == pytest.approx(135)


def test_a_device_that_is_behind_the_host_has_none() -> None:
    found = Timeline.of(samples([5, 6, 7, 8], [0, 20, 50, 60], ended=70))
    assert typical(found.cpu) == [1, 1, 1]
    assert typical(found.gap) == [1, 0, 0]
    assert typical(found.gpu) == [19, 30, 10]
    assert found.after.typical == 5


def test_the_clocks_meet_where_an_event_is_reached_soonest() -> None:
    """The first event comes late: the device was asleep for 8 us. None is reached before it is recorded."""
    found = Timeline.of(samples([5, 15, 25], [0, 2, 12], ended=40))
    assert found.before.typical == 13
    assert typical(found.gap) == [2, 10]
    assert typical(found.gpu) == [0, 0]


def test_what_noting_the_time_costs_the_host_is_no_time_of_a_step() -> None:
    found = Timeline.of(samples([5, 15, 25], [0, 10, 20], left=np.array([[7.0, 17.0, 27.0]]), empty=0.5))
    assert typical(found.cpu) == [7.5, 7.5]


def test_what_the_events_cost_is_taken_off_each_step() -> None:
    found = Timeline.of(samples([5, 15, 25, 35], [0, 13, 20, 34], whole=28))
    assert found.event_us == pytest.approx(2)
    assert typical(found.gap) == [8, 5, 8]
    assert typical(found.gpu) == [3, 0, 4]
    assert sum(one.typical for one in [*found.gap, *found.gpu]) == pytest.approx(28)


def test_what_is_more_than_a_gap_is_taken_off_the_gpu_time() -> None:
    found = Timeline.of(samples([5, 6, 7], [0, 20, 40], whole=34))
    assert found.event_us == pytest.approx(3)
    assert typical(found.gap) == [0, 0]
    assert typical(found.gpu) == [17, 17]


def test_nothing_is_taken_off_where_the_whole_takes_longer() -> None:
    found = Timeline.of(samples([5, 15], [0, 10], whole=50))
    assert found.event_us == 0
    assert typical(found.gap) == [10]


@pytest.mark.parametrize("seed", range(20))
def test_the_excess_is_even_and_leaves_the_total(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    spans = numbers.exponential(5, numbers.integers(1, 40)) * numbers.integers(0, 2, 1)
    spans = np.append(spans, 1.0)
    total = spans.sum() * numbers.uniform(0.05, 1)
    excess = even_excess(spans, total)
    assert excess >= 0
    assert np.clip(spans - excess, 0, None).sum() == pytest.approx(total)


def test_a_total_of_nothing_leaves_the_spans() -> None:
    assert even_excess(np.array([1.0, 2.0]), 0.0) == 0.0


def test_typical_is_the_mean_of_the_middle_half_and_percentiles_are_of_all() -> None:
    entered = np.array([[0.0, 10.0 + number] for number in range(8)])
    entered[7, 1] = 5000  # once another program had the processor
    found = Timeline.of(samples(entered, entered, ended=entered[:, 1] + 1))
    assert found.cpu[0].typical == np.mean([12, 13, 14, 15])
    assert (found.cpu[0].p50, found.cpu[0].p99) == (13, 5000)


# --- advice -------------------------------------------------------------------------------------------------------


def row(at: int, gap: float, **given: Any) -> StepProfile:
    spread, gpu = Spread(gap, gap, gap, gap), Spread(1, 1, 1, 1)
    kind: Any = "break" if at % 2 else "segment"
    told = {"name": "", "site": f"f.py:{at}" if at % 2 else "", "tag": None, "nodes": 0 if at % 2 else 9, **given}
    return StepProfile(at, kind, at // 2, cpu_us=Spread(3, 3, 3, 3), gap_us=spread, gpu_us=gpu, share=0, **told)


def test_breaks_of_a_tag_are_one_piece_of_advice_with_the_segments_after_them() -> None:
    steps = [row(0, 5), row(1, 10, tag="attention"), row(2, 2), row(3, 7, tag="attention"), row(4, 3)]
    (advice,) = advise(steps, 100)
    assert (advice.action, advice.breaks, advice.saves_us, advice.cpu_us) == ("deselect", (0, 1), 22, 6)
    assert advice.share == 0.22
    assert "'attention'" in advice.text
    assert "22.0 us (22%)" in advice.text


def test_breaks_without_a_tag_are_told_by_where_they_are_called() -> None:
    steps = [row(0, 0), row(1, 10, name="f"), row(2, 2), row(3, 20, name="break_graph"), row(4, 3)]
    texts = [one.text for one in advise(steps, 100)]
    assert [text.partition(":")[0] for text in texts] == ["drop the break_graph() at f.py", "let 'f' at f.py"]


def test_neighbours_with_little_between_them_can_be_merged() -> None:
    steps = [row(0, 0), row(1, 0), row(2, 4, nodes=1), row(3, 0), row(4, 50), row(5, 0), row(6, 0)]
    merged = [one for one in advise(steps, 100) if one.action == "merge"]
    assert [(one.breaks, one.saves_us) for one in merged] == [((0, 1), 4)]
    assert "f.py:1 and f.py:3" in merged[0].text


def test_what_saves_less_than_a_hundredth_is_no_advice() -> None:
    assert advise([row(0, 50), row(1, 0.5), row(2, 0.4)], 100) == ()
