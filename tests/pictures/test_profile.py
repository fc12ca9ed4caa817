"""`BreakableGraph.profile` measures each step in whole replays, and leaves nothing behind.

Proves what its rows are and that its parts add up, that it replays as often as it says and computes what a replay
does, that it is refused where a replay is, and that after a failed one too no event is left and a plain replay makes
the calls that it made before. What the numbers are made of is proved in test_timeline.py.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from pictures_support import attend, small
from support import every_schedule, holds, in_threads, live, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.errors import CaptureStateError
from breakgraph.inspect.profile import measure


def replayed(n: int) -> int:
    """How many replays a profile of ``n`` makes."""
    return 3 * (n + 2)


def counted(xp: Any, calls: list[int], **options: Any) -> tuple[Any, Any]:
    """A graph of +1, a break that notes its stream and doubles, +3, and its output."""

    def double(a: Any) -> Any:
        calls.append(int(bg.current_stream()))
        return a * 2

    x, out = zeros(xp), zeros(xp)
    with bg.capture(arena=bg.Arena(), **options) as graph:
        np.add(bg.break_here(double, bg.INFER, x + 1), 3, out=out)
    graph.keep(x, out)
    calls.clear()
    return graph, out


# --- what it says ---------------------------------------------------------------------------------------------


def test_it_has_a_row_for_each_step_in_order(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    profile = graph.profile(3)
    assert [(row.at, row.kind, row.index) for row in profile.steps] == [
        (0, "segment", 0),
        (1, "break", 0),
        (2, "segment", 1),
    ]
    first, step, _ = profile.steps
    assert (first.name, first.site, first.tag, first.nodes) == ("", "", None, graph.segments[0].nodes)
    assert (step.name, step.site, step.tag, step.nodes) == ("attend", graph.breaks[0].site, "attention", 0)
    assert (profile.name, profile.rounds, profile.replays) == ("small", 3, replayed(3))
    assert profile.simulated == (driver.name == "sim")


def test_no_time_is_negative_and_percentiles_rise(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    profile = graph.profile(20)
    spreads = [profile.wall_us, profile.before_us, profile.after_us]
    for row in profile.steps:
        spreads += [row.cpu_us, row.gap_us, row.gpu_us]
    for spread in spreads:
        assert 0 <= spread.p50 <= spread.p90 <= spread.p99
        assert 0 <= spread.typical <= spread.p99 * 20
    assert profile.wall_us.p50 > 0


def test_the_parts_add_up(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    profile = graph.profile(20)
    edges = profile.before_us.typical + profile.after_us.typical
    inner = sum(row.gap_us.typical + row.gpu_us.typical for row in profile.steps)
    assert profile.sum_us == pytest.approx(edges + inner)
    assert sum(row.share for row in profile.steps) == pytest.approx(inner / profile.sum_us)
    assert profile.coverage == pytest.approx(profile.sum_us / profile.wall_us.typical)


@pytest.mark.parametrize("driver", ["sim-fifo", "cuda"], indirect=True)
def test_a_break_that_takes_long_has_the_time(driver: Any, xp: Any) -> None:
    x, out = zeros(xp), zeros(xp)

    def slow(a: Any) -> Any:
        driver.stream_synchronize(int(bg.current_stream()))
        time.sleep(0.02)
        return a

    with bg.capture() as graph:
        np.add(bg.break_here(slow, bg.INFER, x + 1), 1, out=out)
    profile = graph.profile(5)
    _, step, _ = profile.steps
    assert step.cpu_us.p50 >= 20_000
    assert step.gap_us.p50 >= 20_000 - 2_000, "while it slept the device had nothing to do"
    assert step.share > 0.5
    assert profile.coverage == pytest.approx(1, abs=0.2)
    (advice, *_) = profile.advice
    assert (advice.action, advice.breaks) == ("deselect", (0,))
    assert advice.saves_us >= step.gap_us.typical
    assert "slow" in advice.text


def test_its_times_go_into_a_trace_and_all_of_it_is_json(driver: Any, xp: Any, tmp_path: Any) -> None:
    graph, _ = small(xp)
    profile = graph.profile(2)
    graph.save_trace(tmp_path / "graph.json", times=profile.times)
    steps = bg.inspect.load(tmp_path / "graph.json")["steps"]
    assert [step["times"]["cpu_us"] for step in steps] == [row.cpu_us.typical for row in profile.steps]
    found = json.loads(json.dumps(profile.to_dict()))
    assert found["sum_us"] == profile.sum_us
    assert found["steps"][1]["cpu_us"]["p90"] == profile.steps[1].cpu_us.p90


def test_its_table_is_text_of_at_most_120_columns(driver: Any, xp: Any) -> None:
    graph, _ = small(xp, name="n" * 300)
    lines = str(graph.profile(2)).splitlines()
    assert max(map(len, lines)) <= 120
    assert sum(line[:1].isdigit() for line in lines) == 3
    assert any(" of the wall time;" in line for line in lines)
    assert any("simulated" in line and "not times of a device" in line for line in lines) == (driver.name == "sim")


# --- what it does ---------------------------------------------------------------------------------------------


@every_schedule
def test_it_replays_as_often_as_it_says_and_each_replay_computes(driver: Any, xp: Any) -> None:
    calls: list[int] = []
    x, out = zeros(xp), zeros(xp)

    def double(a: Any) -> Any:
        calls.append(1)
        return a * 2

    with bg.capture() as graph:
        np.add(bg.break_here(double, bg.INFER, x + 1), out, out=out)  # counts the replays on the device too
    calls.clear()
    driver.synchronize()
    refill(x, 1)
    refill(out, 0)
    profile = graph.profile(4)
    assert len(calls) == profile.replays == graph.replays == replayed(4)
    assert holds(out, 4 * replayed(4))


@every_schedule
def test_it_runs_on_the_stream_given_and_breaks_see_it(driver: Any, xp: Any) -> None:
    calls: list[int] = []
    graph, out = counted(xp, calls)
    stream = driver.create_stream()
    driver.synchronize()
    graph.profile(2, stream=stream)
    assert set(calls) == {int(stream)}
    assert holds(out, 5)


def test_it_runs_on_the_current_stream(driver: Any, xp: Any) -> None:
    calls: list[int] = []
    graph, out = counted(xp, calls)
    stream = driver.create_stream()
    driver.synchronize()
    with on_stream(out, stream):
        graph.profile(2)
    assert set(calls) == {int(stream)}


def test_it_zeroes_the_padding_that_a_replay_would(driver: Any, xp: Any) -> None:
    x, rows = zeros(xp, 4), []

    def one(a: Any) -> Any:
        rows.append(bg.current_valid_rows())
        return a + 1

    with bg.capture() as graph:
        out = bg.break_here(one, bg.INFER, x + 1) + 1
    graph.profile(2, valid_rows=3)
    assert out.get().tolist() == [3, 3, 3, 1]
    assert rows[1:] == [3] * replayed(2)


def test_aux_streams_are_waited_for(driver: Any, xp: Any) -> None:
    side, x, out = driver.create_stream(), zeros(xp), zeros(xp)
    driver.synchronize()

    def on_the_side(a: Any) -> None:
        with on_stream(a, side):
            np.add(a, 2, out=a)

    with bg.capture(aux_streams=[side]) as graph:
        y = x + 1
        bg.break_here(on_the_side, bg.IN_PLACE, y)
        np.add(y, 1, out=out)
    refill(x, 10)
    graph.profile(2)
    assert holds(out, 14)


def test_a_context_of_the_forward_is_seen(driver: Any, xp: Any) -> None:
    seen: list[Any] = []
    x = zeros(xp)
    with bg.active_forward("captured"), bg.capture() as graph:
        out = bg.break_here(lambda a: seen.append(bg.current_forward()) or a, bg.INFER, x + 1) + 1
    with pytest.raises(CaptureStateError, match="without one"):
        graph.profile(1)
    with bg.active_forward("live"):
        graph.profile(1)
    assert seen == ["captured", *["live"] * replayed(1)]
    assert holds(out, 2)


def test_a_segment_without_nodes_has_a_row(driver: Any, xp: Any) -> None:
    x, out = zeros(xp), zeros(xp)
    with bg.capture() as graph:
        np.add(bg.break_here(lambda a: a * 2, bg.INFER, x), 1, out=out)
    profile = graph.profile(2)
    assert [row.nodes for row in profile.steps] == [0, 0, 1]


def test_segments_with_shared_execs_and_host_functions_are_timed(sim: Any, xp: Any) -> None:
    execs = bg.ExecCache()
    x, outs = zeros(xp), [zeros(xp), zeros(xp)]
    graphs = []
    for out in outs:
        with bg.capture(execs=execs) as graph:
            np.add(bg.break_here(lambda a: a * 2, bg.INFER, x + 1), 1, out=out)
        graphs.append(graph)
    for graph in graphs:
        graph.profile(1)
    assert all(holds(out, 3) for out in outs)


# --- where it is refused, and what it leaves --------------------------------------------------------------------


def test_it_is_refused_where_a_replay_is(driver: Any, xp: Any) -> None:
    graph, out = counted(xp, calls := [])
    with pytest.raises(CaptureStateError, match="cannot be replayed"):
        bg.BreakableGraph().profile()
    with bg.capture(arena=bg.Arena()), pytest.raises(CaptureStateError, match="inside a segment"):
        np.add(out, 1, out=out)
        graph.profile()
    for n in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            graph.profile(n)
    assert not calls
    graph.close()
    with pytest.raises(CaptureStateError, match="closed"):
        graph.profile()


def test_no_event_is_left_and_a_replay_makes_the_calls_it_made_before(sim: Any, xp: Any) -> None:
    graph, _ = small(xp)

    def calls_of_a_replay() -> list[Any]:
        start = len(sim.log)
        graph.replay()
        return [(entry.name, entry.args) for entry in list(sim.log)[start:]]

    graph.replay()
    before, events = calls_of_a_replay(), live(sim, "event")
    graph.profile(3)
    assert live(sim, "event") == events
    assert calls_of_a_replay() == before


@pytest.mark.parametrize("at", [1, 2, 3, 5, 8])
def test_what_a_break_raises_ends_it_and_leaves_the_graph_replayable(driver: Any, xp: Any, at: int) -> None:
    calls: list[int] = []
    x, out = zeros(xp), zeros(xp)

    def fragile(a: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 + at:
            raise RuntimeError("planted")
        return a * 2

    with bg.capture() as graph:
        np.add(bg.break_here(fragile, bg.INFER, x + 1), 3, out=out)
    events = live(driver, "event") if driver.name == "sim" else 0
    with pytest.raises(RuntimeError, match="planted") as caught:
        graph.profile(3)
    assert any("fragile" in note for note in caught.value.__notes__)
    assert graph.replays == at - 1
    if driver.name == "sim":
        assert live(driver, "event") == events
    refill(x, 10)
    graph.replay()
    assert holds(out, 25)
    assert graph.profile(1).replays == replayed(1)


def test_whichever_driver_call_fails_no_event_is_left(sim: Any, xp: Any) -> None:
    graph, out = counted(xp, [])
    graph.replay()
    sim.synchronize()
    for name in ("event_create", "event_record", "event_elapsed_time", "stream_synchronize", "graph_launch"):
        for at in (1, 2, 3):
            events = live(sim, "event")
            with pytest.raises(bg.errors.DriverError), sim.fail(name, at=at, code=999):
                graph.profile(2)
            assert live(sim, "event") == events, (name, at)
            graph.replay()
            assert holds(out, 5), (name, at)


def test_another_thread_may_replay_the_graph_meanwhile(driver: Any, xp: Any) -> None:
    graph, out = counted(xp, calls := [])

    x, result = zeros(xp), zeros(xp)
    with bg.capture(arena=graph.arena) as other:
        np.add(bg.break_here(lambda a: a * 3, bg.INFER, x + 1), 3, out=result)
    profile, _ = in_threads(driver, lambda: graph.profile(5), lambda: [other.replay() for _ in range(20)])
    assert profile.replays == replayed(5) == len(calls)
    driver.synchronize()
    assert holds(result, 6)
    assert holds(out, 5)


def test_a_graph_that_is_captured_anew_meanwhile_is_not_timed_with_its_old_steps(
    driver: Any, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, out = counted(xp, [])
    wait, x = measure._Bench._wait, zeros(xp)

    def captured_anew(bench: Any) -> None:
        wait(bench)
        if graph.replays == 1:  # as another thread would, between two replays
            graph.reset()
            with bg.capture(graph):
                np.add(bg.break_here(lambda a: a * 5, bg.INFER, x + 1), 3, out=out)

    monkeypatch.setattr(measure._Bench, "_wait", captured_anew)
    with pytest.raises(CaptureStateError, match="was reset while it was profiled"):
        graph.profile(2)
    graph.replay()
    assert holds(out, 8)
    graph.close()  # what stands in place of the wait holds it longer than the test


def test_the_context_that_is_current_stays_so(sim: Any, xp: Any) -> None:
    graph, out = counted(xp, [])
    own = sim.ctx_get_current()
    other = sim.ctx_create(0)
    stream = graph.capture_stream
    graph.profile(1, stream=stream)
    assert sim.ctx_get_current() == other
    sim.ctx_destroy(other)
    assert sim.ctx_get_current() == own
    assert holds(out, 5)


def test_a_decorated_break_keeps_its_name_and_tag(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        y = attend(x + 1, 2.0) + 1
    assert graph.profile(1).steps[1].tag == "attention"
    assert holds(y, 3)
