"""What a replay asks of the driver is what it must: each launch, one wait and one mark for the arena, two questions.

Proves the exact list of a replay in a round, and what the slower way adds; that a segment without nodes and a bare
break add nothing; that the mark is made where a step fails; and that steps are named right whatever was prepared since.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from replay_support import WAYS, calls_of, chain, go, names_of
from support import floats, holds, refill, stream_of, zeros

import breakgraph as bg
from breakgraph.errors import DriverError


def test_a_replay_in_a_round_makes_just_these_calls(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    graph = chain(x, 3)
    stream, launches = stream_of(x) or 1, [("graph_launch", segment.exec) for segment in graph.segments]
    for _ in range(2):
        made = calls_of(sim, graph.replay)
        waited, marked = made[2], made[-2]
        assert made == [
            ("ctx_get_current",),
            ("stream_is_capturing", stream),
            ("stream_wait_event", stream, marked[1], 0),
            *((*launch, stream) for launch in launches),
            ("event_record", waited[2], stream),
            ("ctx_get_current",),
        ]
    assert holds(x, 9)


def test_step_by_step_a_replay_adds_a_look_at_the_context_and_nothing_else(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    graph = chain(x, 3)
    in_a_round = names_of(sim, graph.replay)
    step_by_step = names_of(sim, go(graph, "step by step").replay)
    assert sorted(step_by_step) == sorted(in_a_round)
    assert holds(x, 9)


def test_on_a_stream_that_was_given_it_also_asks_whether_it_is_one_of_this_context(sim: Any, xp: Any) -> None:
    x, stream = zeros(xp), sim.create_stream()
    graph = chain(x, 2)
    sim.synchronize()
    made = names_of(sim, lambda: graph.replay(stream=stream))
    assert made.count("event_record") == 2
    assert made.count("graph_launch") == 2
    assert made.index("event_record") < made.index("graph_launch")


def test_what_is_empty_costs_no_call(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        bg.break_graph()
        np.add(x, 1, out=x)
        bg.break_graph()
        bg.break_graph()
    assert [segment.nodes for segment in graph.segments] == [0, 1, 0, 0]
    assert names_of(sim, graph.replay).count("graph_launch") == 1
    assert len(names_of(sim, graph.replay)) == 6
    assert holds(x, 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["break", "launch"])
def test_where_a_step_fails_what_was_launched_is_marked_all_the_same(sim: Any, xp: Any, way: str, what: str) -> None:
    x, failing = zeros(xp), []

    def between() -> None:
        if failing and what == "break":
            raise ValueError("mine")

    graph = go(chain(x, 3, lambda: bg.break_here(between, bg.NO_WRITEBACK)), way)
    good = names_of(sim, graph.replay)
    failing.append(1)
    start = len(sim.log)
    with pytest.raises((ValueError, DriverError)), sim.fail("graph_launch", at=2, code=700):
        graph.replay()
    made = [entry.name for entry in list(sim.log)[start:]]
    assert made.count("graph_launch") == {"break": 1, "launch": 2}[what]
    assert made.count("event_record") == 1
    assert made.index("event_record") > made.index("graph_launch")
    failing.clear()
    assert names_of(sim, graph.replay) == good


def note_of(error: pytest.ExceptionInfo[BaseException]) -> str:
    (note,) = error.value.__notes__
    return note


@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_named_right_whatever_has_been_prepared_since(sim: Any, xp: Any, way: str) -> None:
    """With rows a break makes more calls, so that room is made for them at other places of the list."""
    x, failing = zeros(xp, 4), []

    def add(at: int, a: Any) -> Any:
        if at in failing:
            raise ValueError("mine")
        return a + 1

    with bg.capture() as graph:
        y = x
        for at in range(200):
            y = bg.break_here(add, bg.INFER, at, y + 1)
    go(graph, way)
    graph.replay(valid_rows=2)
    for at in (0, 85, 128, 199):
        failing[:] = [at]
        for rows in (None, 3):
            with pytest.raises(ValueError, match="mine") as raised:
                graph.replay(valid_rows=rows)
            assert f"<Break {at} " in note_of(raised)


def test_a_step_is_named_right_after_a_shared_exec_was_given_up_for_one_of_its_own(sim: Any, xp: Any) -> None:
    cache, graphs, failing = bg.ExecCache(), [], []

    def between() -> None:
        if failing:
            raise ValueError("mine")

    for value in (1.0, 2.0):
        x = zeros(xp)
        with bg.capture(execs=cache) as graph:
            np.add(x, value, out=x)
            bg.break_here(between, bg.NO_WRITEBACK)
            np.multiply(x, value, out=x)
        graphs.append(graph)
    assert graphs[1].segments[0].shared
    with sim.fail("graph_exec_update", code=910):
        graphs[0].replay()
    assert not graphs[0].segments[0].shared
    graphs[0].replay(valid_rows=1)
    failing.append(1)
    with pytest.raises(ValueError, match="mine") as raised:
        graphs[0].replay()
    assert "<Break 0 " in note_of(raised)
    with pytest.raises(DriverError) as refused, sim.fail("graph_launch", at=1, code=700):
        graphs[0].replay()
    assert refused.value.where == "segment 0"


@pytest.mark.parametrize("way", WAYS)
def test_an_error_before_the_first_step_names_none(sim: Any, xp: Any, way: str) -> None:
    x = zeros(xp)
    graph = go(chain(x, 3), way)
    with pytest.raises(DriverError) as failed, sim.fail("graph_launch", at=2, code=700):
        graph.replay()
    assert failed.value.where == "segment 1"
    with pytest.raises(DriverError) as waited, sim.fail("stream_wait_event", code=700):
        graph.replay()
    assert waited.value.where in (None, "")
    assert not getattr(waited.value, "__notes__", [])


@pytest.mark.parametrize("rows", [np.int8(2), np.int32(2), np.uint64(2)], ids=repr)
def test_a_number_of_rows_of_numpys_is_a_number_like_any_other(driver: Any, xp: Any, rows: Any) -> None:
    x, seen = floats(xp, 1, 2, 3, 4), []

    def double(a: Any) -> Any:
        seen.append(bg.current_valid_rows())
        return a * 2

    with bg.capture() as graph:
        y = bg.break_here(double, bg.INFER, x + 0)
        out = y + 0
    refill(x, 3)
    graph.replay(valid_rows=rows)
    assert out.get().tolist() == [6, 6, 0, 0]
    assert seen == [None, 2]
    assert type(seen[1]) is int
