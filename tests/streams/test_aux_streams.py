"""Streams that a forward works on beside its origin are part of every segment, and in order around every break.

Proves C11's second half, item by item: an aux stream is forked again after each break, without a call of the forward's;
what a break leaves on it is joined before the next segment, at capture and at every replay; eager work on it before and
after keeps its place; that costs records and waits of events, which the log counts. What is not declared and took part
all the same is named, by a warning or, on request, an error. Values under every schedule, and the race finder.

       origin  --[segment 0]--+---break 0--^--[segment 1]--      waits only; replay makes the same ones
       aux     --[         ]--v---its work-+--[         ]--
"""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from streams_support import Scene, full_text
from support import (
    ROOT,
    Order,
    all_well,
    assert_failed_clean,
    assert_next_capture_works,
    child,
    every_schedule,
    holds,
    in_threads,
    on_stream,
    zeros,
)

import breakgraph as bg
from breakgraph.driver.api import CaptureMode, CaptureStatus
from breakgraph.errors import BreakgraphError, BreakgraphWarning, CaptureFailed, CaptureStateError, DriverError

# --- forked again, and joined -----------------------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("execute", [True, False])
def test_an_aux_stream_is_part_of_every_segment_without_a_call_of_the_forward(
    driver: Any, xp: Any, execute: bool
) -> None:
    scene, status = Scene(driver, xp, sides=2), []

    def look(a: Any, b: Any) -> Any:
        status.append([driver.stream_is_capturing(int(side)) for side in scene.sides])
        return a + b

    scene.put(1)
    with bg.capture(aux_streams=scene.sides, execute=execute) as graph:
        t = scene.x
        for _ in range(3):
            assert all(driver.stream_is_capturing(int(side)) == CaptureStatus.ACTIVE for side in scene.sides)
            for at in (0, 1):
                with scene.on(at):
                    np.multiply(t, at + 2, out=scene.outs[at])
            t = bg.break_here(look, bg.INFER, *scene.outs)
        np.add(t, 1, out=scene.main)
    assert [segment.joined for segment in graph.segments] == [2, 2, 2, 0]
    if execute:
        assert scene.values == [126, 50, 75]
    for x in (2, 3):
        scene.replay(graph, x)
        assert scene.values == [125 * x + 1, 50 * x, 75 * x]
    assert status == [[CaptureStatus.NONE] * 2] * 9
    scene.check_sides_usable()


@every_schedule
def test_what_a_break_leaves_on_an_aux_stream_comes_before_the_next_segment(driver: Any, xp: Any) -> None:
    """The origin of the next segment reads it, and nobody but the library can wait for it."""
    scene = Scene(driver, xp)

    def leaves_work(a: Any) -> None:
        with scene.on():
            np.multiply(a, 2, out=scene.outs[0])

    scene.put(1)
    with bg.capture(aux_streams=scene.sides) as graph:
        for _ in range(3):
            t = scene.x + 1
            bg.break_here(leaves_work, bg.IN_PLACE, t)
            np.add(scene.outs[0], t, out=scene.main)
    assert scene.values == [6, 4]
    for x in (2, 3):
        scene.replay(graph, x)
        assert scene.values == [(x + 1) * 3, (x + 1) * 2]


@every_schedule
def test_what_a_break_leaves_on_an_aux_stream_comes_before_that_streams_own_next_segment(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=2)

    def leaves_work(a: Any) -> None:
        with scene.on(0):
            np.add(a, 1, out=scene.outs[0])

    with bg.capture(aux_streams=scene.sides) as graph:
        bg.break_here(leaves_work, bg.IN_PLACE, scene.x)
        for at in (0, 1):  # the other one reads it too: all of them wait for all of them
            with scene.on(at):
                np.multiply(scene.outs[0], 10, out=scene.outs[1] if at else scene.main)
    scene.replay(graph, 3)
    assert scene.values == [40, 4, 40]


@every_schedule
def test_a_break_on_an_aux_stream_sees_the_segment_before_it(driver: Any, xp: Any) -> None:
    """Of the origin and of the other aux stream, without a wait of its own."""
    scene, read = Scene(driver, xp, sides=2), zeros(xp)

    def reads() -> None:
        with scene.on(0):
            np.add(scene.main, scene.outs[1], out=read)

    with bg.capture(aux_streams=scene.sides) as graph:
        np.add(scene.x, 1, out=scene.main)
        with scene.on(1):
            np.add(scene.x, 2, out=scene.outs[1])
        bg.break_here(reads, bg.IN_PLACE)
        np.multiply(read, 10, out=scene.main)
    for x in (2, 3):
        scene.replay(graph, x)
        assert scene.values[0] == (2 * x + 3) * 10


@every_schedule
def test_a_result_that_a_break_makes_on_an_aux_stream_is_landed_after_it(driver: Any, xp: Any) -> None:
    scene, cell = Scene(driver, xp), zeros(xp)

    def on_the_side(a: Any) -> Any:
        with scene.on():
            return a * 2

    with bg.capture(aux_streams=scene.sides) as graph:
        t = bg.break_here(on_the_side, bg.INFER, scene.x + 1)
        u = bg.break_here(on_the_side, cell, t + 1)
        np.add(u, 1, out=scene.main)
    for x in (2, 3):
        scene.replay(graph, x)
        assert scene.values[0] == ((x + 1) * 2 + 1) * 2 + 1


@every_schedule
def test_padding_that_a_break_writes_on_an_aux_stream_is_zeroed_after_it(driver: Any, xp: Any) -> None:
    scene, dst = Scene(driver, xp), zeros(xp)

    @bg.break_point(dst=bg.IN_PLACE, writes=("dst",))
    def on_the_side(a: Any, dst: Any) -> None:
        with scene.on():
            np.add(a, 1, out=dst)

    with bg.capture(aux_streams=scene.sides) as graph:
        on_the_side(scene.x, dst)
        np.multiply(dst, 10, out=scene.main)
    scene.put(3)
    graph.replay(valid_rows=1)
    driver.synchronize()
    assert np.array_equal(scene.main.get(), [40, 0, 0, 0])


@every_schedule
def test_a_fork_across_a_break_needs_no_more_than_the_declaration(driver: Any, xp: Any) -> None:
    """Forked before the break and joined after it, as in eager code: both halves are in the capture."""
    scene = Scene(driver, xp)
    with bg.capture(aux_streams=scene.sides) as graph:
        t = scene.x + 1
        with scene.fork():
            np.multiply(t, 2, out=scene.outs[0])
        bg.break_graph()
        with scene.on():
            np.add(scene.outs[0], 5, out=scene.outs[0])
        scene.join()
        np.add(scene.outs[0], t, out=scene.main)
    assert [segment.joined for segment in graph.segments] == [1, 0]
    scene.replay(graph, 3)
    assert scene.values == [17, 13]


def test_aux_streams_that_are_not_used_change_no_graph(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=3)
    shapes = []
    for aux in ((), scene.sides):
        with bg.capture(aux_streams=aux) as graph:
            t = bg.break_here(lambda a: a * 2, bg.INFER, scene.x + 1)
            np.add(t, 3, out=scene.main)
        assert [segment.joined for segment in graph.segments] == [0, 0]
        shapes.append([segment.nodes for segment in graph.segments])
        scene.replay(graph, 10)
        assert scene.values[0] == 25
    assert shapes[0] == shapes[1]


def test_outputs_made_with_aux_work_open_have_that_work_in_them(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    with bg.capture(aux_streams=scene.sides) as graph:
        bg.break_graph()
        with scene.on():
            np.multiply(scene.x, 2, out=scene.outs[0])
        copy = graph.output(scene.outs[0])
    scene.replay(graph, 3)
    assert holds(copy, 6)


@every_schedule
def test_a_nested_replay_in_a_break_may_use_the_same_aux_streams(driver: Any, xp: Any) -> None:
    scene, arena = Scene(driver, xp), bg.Arena()
    with bg.capture(aux_streams=scene.sides, arena=arena) as inner, scene.on():
        np.add(scene.x, 1, out=scene.outs[0])
    with bg.capture(aux_streams=scene.sides) as outer:
        np.add(scene.x, 0, out=scene.main)
        bg.break_here(inner.replay, bg.IN_PLACE)
        with scene.on():
            np.add(scene.outs[0], 10, out=scene.main)
    for x in (2, 3):
        scene.replay(outer, x)
        assert scene.values == [x + 11, x + 1]
    assert inner.replays == 3


@every_schedule
def test_a_blocking_stream_may_be_an_aux_stream(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    scene.sides[0] = driver.create_stream(blocking=True)
    with bg.capture(aux_streams=scene.sides) as graph:
        for n in range(2):
            with scene.on():
                np.add(scene.x, n, out=scene.outs[0])
            bg.break_graph()
        np.add(scene.outs[0], 1, out=scene.main)
    scene.replay(graph, 3)
    assert scene.values == [5, 4]


# --- in order with what is before and after -----------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("use", ["capture", "replay"])
def test_eager_work_on_an_aux_stream_keeps_its_place_before_and_after(driver: Any, xp: Any, use: str) -> None:
    """As if the forward had run eagerly: nothing else orders the aux stream with the callers."""
    scene, source, after = Scene(driver, xp), zeros(xp), zeros(xp)

    def forward() -> None:
        np.add(scene.x, 1, out=scene.main)
        bg.break_graph()
        with scene.on():
            np.add(scene.x, 2, out=scene.outs[0])

    with bg.capture(aux_streams=scene.sides) as graph:
        forward()
    for x in (3, 4):
        if use == "capture":
            graph.reset()
        scene.put(0)
        source.set(np.full(4, x, np.float32))
        driver.synchronize()
        with scene.on():
            np.add(source, 0, out=scene.x)
        if use == "replay":
            graph.replay()
        else:
            with bg.capture(aux_streams=scene.sides) as graph:  # kept: to destroy it is to wait for it
                forward()
        with scene.on():
            np.add(scene.main, scene.outs[0], out=after)
            np.add(scene.main, 500, out=scene.main)
        driver.synchronize()
        assert scene.values == [x + 501, x + 2]
        assert holds(after, 2 * x + 3)


@every_schedule
def test_a_failed_capture_keeps_the_aux_streams_in_order_too(driver: Any, xp: Any) -> None:
    scene, after = Scene(driver, xp), zeros(xp)

    def leaves_work() -> None:
        with scene.on():
            np.add(scene.main, 10, out=scene.outs[0])
        raise ValueError("planned")

    scene.put(3)
    with pytest.raises(ValueError, match="planned"), bg.capture(aux_streams=scene.sides) as graph:
        np.add(scene.x, 1, out=scene.main)
        bg.break_here(leaves_work, bg.IN_PLACE)
    np.add(scene.outs[0], 100, out=after)  # on the caller's stream
    with scene.on():
        np.add(scene.main, 1000, out=scene.main)
    driver.synchronize()
    assert scene.values == [1004, 14]
    assert holds(after, 114)
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


@every_schedule
def test_the_callers_stream_may_be_an_aux_stream(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    scene.put(2)
    with scene.on():
        np.add(scene.x, 1, out=scene.x)
        with bg.capture(aux_streams=scene.sides) as graph:
            np.add(scene.x, 1, out=scene.main)
            bg.break_graph()
            with scene.on():
                np.add(scene.main, 1, out=scene.outs[0])
        np.add(scene.main, 10, out=scene.main)
    assert scene.values == [14, 5]
    scene.put(2)
    with scene.on():
        np.add(scene.x, 5, out=scene.x)
        graph.replay()
        np.add(scene.main, 10, out=scene.main)
    assert scene.values == [18, 9]


@every_schedule
@pytest.mark.parametrize("where", ["another stream", "an aux stream", "another thread", "a stream of another thread"])
def test_a_replay_may_run_anywhere(driver: Any, xp: Any, where: str) -> None:
    scene, elsewhere = Scene(driver, xp, sides=2), driver.create_stream()

    def leaves_work(a: Any) -> None:
        with scene.on(0):
            np.multiply(a, 2, out=scene.outs[0])

    with bg.capture(aux_streams=scene.sides) as graph:
        t = scene.x + 1
        bg.break_here(leaves_work, bg.IN_PLACE, t)
        with scene.on(1):
            np.add(scene.outs[0], 1, out=scene.outs[1])
        np.add(scene.outs[0], 100, out=scene.main)
    options = {"another stream": elsewhere, "an aux stream": scene.sides[1]}
    stream = options.get(where, elsewhere if where == "a stream of another thread" else None)
    for x in (2, 3):
        scene.put(x)
        if "thread" in where:
            all_well(in_threads(driver, lambda: graph.replay(stream=stream)))
        else:
            graph.replay(stream=stream)
        driver.synchronize()
        assert scene.values == [(x + 1) * 2 + 100, (x + 1) * 2, (x + 1) * 2 + 1]
    assert graph.replays == 2


@every_schedule
def test_two_graphs_on_the_same_aux_streams_take_turns(driver: Any, xp: Any) -> None:
    """Each has an arena of its own, so nothing but the aux streams orders them."""
    scene, streams = Scene(driver, xp), [driver.create_stream(), driver.create_stream()]

    def capture(factor: int) -> Any:
        def leaves_work() -> None:
            with scene.on():
                np.multiply(scene.outs[0], factor, out=scene.outs[0])

        with bg.capture(aux_streams=scene.sides, arena=bg.Arena()) as graph:
            with scene.on():
                np.add(scene.outs[0], 1, out=scene.outs[0])
            bg.break_here(leaves_work, bg.IN_PLACE)
        return graph

    graphs = [capture(2), capture(3)]
    scene.put(0)
    value = -1
    for at in (0, 1, 1, 0, 1):
        graphs[at].replay(stream=streams[at])
        value = (value + 1) * (at + 2)
    driver.synchronize()
    assert scene.values[1] == value


# --- what it costs ------------------------------------------------------------------------------------------------


def told(driver: Any, names: dict[int, str], start: int) -> list[str]:
    """The log from an index on, as ``record origin``, ``aux waits``, ``launch`` and the marks."""
    steps = []
    for entry in list(driver.log)[start:]:
        if entry.name == "event_record":
            steps.append(f"record {names[entry.args[1]]}")
        elif entry.name == "stream_wait_event":
            steps.append(f"{names[entry.args[0]]} waits")
        elif entry.name == "graph_launch":
            steps.append("launch")
        elif entry.name == "mark":
            steps.append(entry.args[0])
    return steps


def with_breaks(scene: Scene, breaks: int, **options: Any) -> Any:
    """A graph of so many breaks, each of which marks the log."""
    with bg.capture(execute=False, **options) as graph:
        for at in range(breaks):
            np.add(scene.x, at, out=scene.main)
            bg.break_here(lambda at=at: scene.driver.mark(f"break {at}"), bg.IN_PLACE)
        np.add(scene.x, breaks, out=scene.main)
    return graph


def test_around_each_break_of_a_replay_there_are_records_and_waits_in_this_order(sim: Any, xp: Any) -> None:
    scene, stream = Scene(sim, xp, sides=2), sim.create_stream()
    graph = with_breaks(scene, 2, aux_streams=scene.sides)
    names = {int(stream): "origin", int(scene.sides[0]): "a", int(scene.sides[1]): "b"}
    start = len(sim.log)
    graph.replay(stream=stream)
    before = ["record origin", "a waits", "b waits"]
    after = ["record a", "origin waits", "record b", "origin waits"]
    around = [*before, *after]
    steps = told(sim, names, start)
    assert steps[: steps.index("launch")][-4:] == after
    body = steps[steps.index("launch") : len(steps) - steps[::-1].index("launch")]
    assert body == [
        "launch",
        *before,
        "break 0",
        *after,
        "launch",
        *before,
        "break 1",
        *after,
        "launch",
    ]
    assert steps[len(steps) - steps[::-1].index("launch") :][:3] == before
    assert len(around) == 7


@pytest.mark.parametrize("sides", [0, 1, 3])
def test_a_break_costs_so_many_records_and_waits_and_nothing_else(sim: Any, xp: Any, sides: int) -> None:
    """Per break: one record of the origin and a wait of each stream, then a record of each and a wait of the origin."""
    scene = Scene(sim, xp, sides=sides)
    costs = []
    for breaks in (1, 2, 5):
        graph = with_breaks(scene, breaks, aux_streams=scene.sides)
        scene.put(1)
        before = Counter(sim.calls)
        graph.replay()
        costs.append(Counter(sim.calls) - before)
    one_more = costs[1] - costs[0]
    assert one_more == Counter(
        {
            name: count
            for name, count in {
                "graph_launch": 1,
                "event_record": sides and 1 + sides,
                "stream_wait_event": 2 * sides,
            }.items()
            if count
        }
    )
    assert costs[2] - costs[1] == Counter({name: 3 * count for name, count in one_more.items()})


@pytest.mark.parametrize("sides", [0, 1, 3])
def test_a_break_of_a_capture_costs_a_fork_more(sim: Any, xp: Any, sides: int) -> None:
    scene = Scene(sim, xp, sides=sides)
    costs = []
    with_breaks(scene, 1)
    for breaks in (1, 2):
        before = Counter(sim.calls)
        with_breaks(scene, breaks, aux_streams=scene.sides)
        costs.append(Counter(sim.calls) - before)
    one_more = costs[1] - costs[0]
    assert (one_more["event_record"], one_more["stream_wait_event"]) == (sides and 2 + sides, 3 * sides)
    assert one_more["event_create"] == 0


@pytest.mark.parametrize("sides", [1, 3])
def test_a_replay_makes_no_event_and_destroys_none(sim: Any, xp: Any, sides: int) -> None:
    scene = Scene(sim, xp, sides=sides)
    graph = with_breaks(scene, 2, aux_streams=scene.sides)
    graph.replay()
    before = Counter(sim.calls)
    graph.replay()
    made = Counter(sim.calls) - before
    assert not {"event_create", "event_destroy", "stream_create", "event_synchronize", "stream_synchronize"} & set(made)


def test_the_events_of_a_graph_go_with_it(sim: Any, xp: Any) -> None:
    scene = Scene(sim, xp, sides=2)
    with_breaks(scene, 1).close()
    gc.collect()
    events = len(sim.live()["event"])
    graph = with_breaks(scene, 1, aux_streams=scene.sides)
    graph.replay()
    assert len(sim.live()["event"]) > events
    graph.close()
    del graph
    gc.collect()
    assert len(sim.live()["event"]) == events


def test_a_stream_given_twice_is_one_entry(sim: Any, xp: Any) -> None:
    scene = Scene(sim, xp)
    (side,) = scene.sides
    costs = []
    for aux in ((side,), (side, side, int(side))):
        graph = with_breaks(scene, 2, aux_streams=aux)
        scene.put(1)
        before = Counter(sim.calls)
        graph.replay()
        costs.append(Counter(sim.calls) - before)
    assert costs[0] == costs[1]


# --- what is not declared -----------------------------------------------------------------------------------------


@contextmanager
def one_that_is_not_declared(match: str = "not in aux_streams") -> Iterator[Any]:
    """The block warns, and of nothing else."""
    with pytest.warns(BreakgraphWarning, match=match) as caught:
        yield caught
    assert all("aux_streams" in str(one.message) for one in caught)


def allocates(scene: Scene) -> None:
    """Forks, and allocates on the side stream."""
    with scene.fork():
        np.multiply(scene.x + 1, 2, out=scene.outs[0])


@pytest.mark.parametrize("form", ["break_here", "break_point", "break_graph"])
def test_a_stream_that_was_allocated_on_and_left_open_is_named_at_the_break(driver: Any, xp: Any, form: str) -> None:
    scene = Scene(driver, xp)
    work = bg.break_point(dst=bg.IN_PLACE)(lambda: None)
    with one_that_is_not_declared() as caught, bg.capture() as graph:
        allocates(scene)
        if form == "break_here":
            bg.break_here(lambda: None, bg.IN_PLACE)
        elif form == "break_point":
            work()
        else:
            bg.break_graph()
        np.add(scene.x, 5, out=scene.main)
    (warning,) = caught
    said = str(warning.message)
    assert hex(int(scene.sides[0])) in said
    assert "segment 0" in said
    assert warning.filename == __file__, "the warning is about the forward's line"
    scene.replay(graph, 3)
    assert scene.values == [8, 8]


def test_a_stream_that_is_current_at_the_break_and_took_part_is_named(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    with one_that_is_not_declared(hex(int(scene.sides[0]))), bg.capture() as graph:
        with scene.fork():
            np.multiply(scene.x, 2, out=scene.outs[0])
            bg.break_graph()
        np.add(scene.outs[0], 5, out=scene.main)
    scene.replay(graph, 3)
    assert scene.values == [11, 6]


def test_all_that_took_part_are_named_at_once_and_each_once(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=3)
    with one_that_is_not_declared() as caught, bg.capture(aux_streams=scene.sides[:1]):
        for _ in range(3):
            for at in range(3):
                with scene.fork(at):
                    np.multiply(scene.x + 1, 2, out=scene.outs[at])
            bg.break_graph()
    (warning,) = caught
    said = str(warning.message)
    assert [hex(int(side)) in said for side in scene.sides] == [False, True, True]


def test_a_stream_that_joins_later_is_named_at_a_later_break(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=2)
    with one_that_is_not_declared() as caught, bg.capture():
        for at in (0, 1):
            with scene.fork(at):
                np.multiply(scene.x + 1, 2, out=scene.outs[at])
            bg.break_graph()
    first, second = (str(one.message) for one in caught)
    assert hex(int(scene.sides[0])) in first
    assert hex(int(scene.sides[1])) in second
    assert "segment 1" in second


@pytest.mark.parametrize(
    "what",
    [
        "declared",
        "joined",
        "joined beside a declared one",
        "no break",
        "another stream is current",
        "another capture is current",
        "in the last segment",
        "whole graph",
        "in a break",
    ],
)
def test_nothing_is_named_where_nothing_is_wrong(driver: Any, xp: Any, what: str) -> None:
    """The suite makes every warning an error, and debug=True would make one too."""
    scene, idle = Scene(driver, xp, sides=2), driver.create_stream()
    aux = {"declared": scene.sides, "joined beside a declared one": scene.sides[1:]}.get(what, ())
    with bg.capture(aux_streams=aux, debug=True, break_on=() if what == "whole graph" else None):
        np.add(scene.x, 1, out=scene.main)
        if what == "joined beside a declared one":
            with scene.on(1):  # left open, as an aux stream may be
                np.multiply(scene.x, 2, out=scene.outs[1])
        if what in ("declared", "no break", "whole graph") or what.startswith("joined"):
            allocates(scene)
        if what.startswith("joined"):
            scene.join()
        if what.startswith("another"):
            if "capture" in what:
                driver.stream_begin_capture(int(idle), CaptureMode.RELAXED)
            with on_stream(scene.x, idle):
                bg.break_graph()
            if "capture" in what:
                driver.graph_destroy(driver.stream_end_capture(int(idle)))
        elif what == "in a break":
            bg.break_here(lambda: np.multiply(scene.x + 1, 2, out=scene.outs[0]), bg.IN_PLACE)
            bg.break_graph()
        elif what != "no break":
            bg.break_graph()
        if what == "in the last segment":
            allocates(scene)


def test_debug_makes_it_an_error_that_names_the_stream_the_rule_and_the_mend(driver: Any, xp: Any) -> None:
    scene, reached = Scene(driver, xp), []
    with pytest.raises(CaptureStateError) as raised, bg.capture(debug=True) as graph:
        allocates(scene)
        bg.break_here(lambda: reached.append("break"), bg.IN_PLACE)
        reached.append("after")
    said = full_text(raised.value)
    assert hex(int(scene.sides[0])) in said
    assert "aux_streams" in said
    assert raised.value.why
    assert raised.value.remedy
    assert reached == []
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp, debug=True)


def test_an_undeclared_stream_whose_error_is_swallowed_poisons_the_capture(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    graph = bg.BreakableGraph()
    with pytest.raises(CaptureFailed) as raised, bg.capture(graph, debug=True):
        allocates(scene)
        with pytest.raises(CaptureStateError):
            bg.break_graph()
        np.add(scene.x, 5, out=scene.main)
    assert isinstance(raised.value.__cause__, CaptureStateError)
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


def test_a_warning_that_a_filter_makes_an_error_fails_the_capture_clean(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    with (
        warnings.catch_warnings(),
        pytest.raises(BreakgraphWarning),
        bg.capture() as graph,
    ):
        warnings.simplefilter("error", BreakgraphWarning)
        allocates(scene)
        bg.break_graph()
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


# --- what is refused ----------------------------------------------------------------------------------------------


def _refused(driver: Any, xp: Any, **options: Any) -> CaptureStateError:
    """A capture with these options is refused, changes nothing, and the next one is good."""
    graph = bg.BreakableGraph()
    begun = driver.calls["stream_begin_capture"] if driver.name == "sim" else 0
    with pytest.raises(CaptureStateError) as raised, bg.capture(graph, **options):
        pytest.fail("the body of a refused capture ran")
    assert graph.state == "empty"
    assert graph.error is None
    assert gc.isenabled()
    if driver.name == "sim":
        assert driver.calls["stream_begin_capture"] == begun
    assert raised.value.why
    assert raised.value.remedy
    assert_next_capture_works(xp)
    return raised.value


@pytest.mark.parametrize("handle", [0, 1])
def test_the_legacy_stream_is_refused_as_an_aux_stream(driver: Any, xp: Any, handle: int) -> None:
    side = driver.create_stream()
    said = str(_refused(driver, xp, aux_streams=(side, handle)))
    assert "legacy" in said
    assert "aux_streams" in said
    assert driver.stream_is_capturing(int(side)) == CaptureStatus.NONE


@pytest.mark.parametrize("given", ["by the caller", "by the library"])
def test_the_origin_is_refused_as_an_aux_stream(driver: Any, xp: Any, given: str) -> None:
    if given == "by the caller":
        origin = driver.create_stream()
        said = str(_refused(driver, xp, stream=origin, aux_streams=(int(origin),)))
    else:
        with bg.capture() as graph:
            zeros(xp)
            np.add(zeros(xp), 1)
        said = str(_refused(driver, xp, aux_streams=(graph.capture_stream,)))
    assert "origin" in said


def test_a_stream_that_captures_for_someone_else_is_refused_as_an_aux_stream_and_left_alone(
    driver: Any, xp: Any
) -> None:
    scene, order = Scene(driver, xp), Order(driver)
    theirs = driver.create_stream()
    for aux in (theirs, scene.sides[0]):
        driver.stream_begin_capture(int(theirs), CaptureMode.RELAXED)
        order(theirs, scene.sides[0])  # one of their forks is no better than their origin
        with on_stream(scene.x, scene.sides[0]):
            np.add(scene.x, 1, out=scene.outs[0])
        seen = driver.stream_get_capture_info(int(aux))
        assert hex(int(aux)) in str(_refused(driver, xp, aux_streams=(aux,)))
        assert driver.stream_get_capture_info(int(aux)) == seen
        order(scene.sides[0], theirs)
        graph = driver.stream_end_capture(int(theirs))
        assert driver.graph_get_node_count(graph) == 1
        driver.graph_destroy(graph)


def test_a_replay_is_refused_while_an_aux_stream_captures_for_someone_else(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    with bg.capture(aux_streams=scene.sides) as graph:
        np.add(scene.x, 1, out=scene.main)
        bg.break_graph()
    driver.stream_begin_capture(int(scene.sides[0]), CaptureMode.RELAXED)
    launches = driver.calls["graph_launch"] if driver.name == "sim" else 0
    with pytest.raises(CaptureStateError, match=hex(int(scene.sides[0]))):
        graph.replay()
    if driver.name == "sim":
        assert driver.calls["graph_launch"] == launches
    assert driver.stream_is_capturing(int(scene.sides[0])) == CaptureStatus.ACTIVE
    driver.graph_destroy(driver.stream_end_capture(int(scene.sides[0])))
    assert graph.replays == 0
    scene.replay(graph, 3)
    assert scene.values[0] == 4


@pytest.mark.parametrize("wrong", [None, "stream", 1.5, True, object()], ids=repr)
def test_what_is_no_stream_is_refused_and_nothing_is_left_behind(driver: Any, xp: Any, wrong: Any) -> None:
    scene = Scene(driver, xp)
    with pytest.raises(TypeError), bg.capture(aux_streams=(scene.sides[0], wrong)):
        pytest.fail("the body of a refused capture ran")
    assert gc.isenabled()
    scene.check_sides_usable()
    assert_next_capture_works(xp)


# --- failures -----------------------------------------------------------------------------------------------------


@every_schedule
def test_a_break_that_raises_at_replay_leaves_the_aux_streams_in_order_and_the_graph_good(driver: Any, xp: Any) -> None:
    scene, broken, after, elsewhere = Scene(driver, xp), [], zeros(xp), driver.create_stream()

    def leaves_work(a: Any) -> None:
        with scene.on():
            np.multiply(a, 2, out=scene.outs[0])
        if broken:
            np.add(a, 50, out=scene.main)  # on the current stream, and then no step follows
            raise ValueError("planned")

    with bg.capture(aux_streams=scene.sides) as graph:
        t = scene.x + 1
        bg.break_here(leaves_work, bg.IN_PLACE, t)
        np.add(scene.outs[0], 1, out=scene.main)
    scene.put(3)
    broken.append(True)
    with pytest.raises(ValueError, match="planned") as raised:
        graph.replay()
    assert any("leaves_work" in note for note in raised.value.__notes__)
    np.add(scene.outs[0], 100, out=after)  # on the caller's stream, which waits for what the break left
    driver.synchronize()
    assert scene.values == [54, 8]
    assert holds(after, 108)
    scene.put(5)
    with pytest.raises(ValueError, match="planned"):
        graph.replay(stream=elsewhere)
    with scene.on():  # and the other way round: it waits for what the replay did
        np.add(scene.main, 0, out=after)
    driver.synchronize()
    assert holds(after, 56)
    broken.clear()
    scene.replay(graph, 4)
    assert scene.values == [11, 10]
    assert graph.replays == 1


@pytest.mark.parametrize("use", ["capture", "replay"])
def test_a_break_that_raises_while_its_join_fails_too_raises_its_own_exception(sim: Any, xp: Any, use: str) -> None:
    scene, plan, planned = Scene(sim, xp), sim.fail("event_record"), ExitStack()

    def raises() -> None:
        if use == "capture" or graphs:
            planned.enter_context(plan)
            raise ValueError("planned")

    graphs: list[Any] = []
    with planned, pytest.raises(ValueError, match="planned") as raised:
        with bg.capture(aux_streams=scene.sides) as graph:
            np.add(scene.x, 1, out=scene.main)
            bg.break_here(raises, bg.IN_PLACE)
        graphs.append(graph)
        graph.replay()
    assert plan.struck
    assert isinstance(raised.value, ValueError)
    assert graph.state == ("failed" if use == "capture" else "captured")
    if graphs:
        assert any("raises" in note for note in raised.value.__notes__)
        scene.put(3)
        graphs.clear()
        graph.replay()
        assert scene.values[0] == 4
    assert_next_capture_works(xp)


@pytest.mark.parametrize(
    ("name", "at"), [*(("event_record", at) for at in (1, 2, 3)), *(("stream_wait_event", at) for at in (1, 2))]
)
def test_a_call_that_fails_once_after_a_break_raised_leaves_the_next_replay_in_order(
    sim: Any, xp: Any, name: str, at: int
) -> None:
    """On another stream, where only the arena's event orders it; a closing call that fails is made once more (C5)."""
    scene, elsewhere, plan, planned = Scene(sim, xp), sim.create_stream(), sim.fail(name, at=at), ExitStack()
    broken: list[bool] = []

    def raises() -> None:
        if broken:
            np.add(scene.main, 5, out=scene.main)
            planned.enter_context(plan)
            raise ValueError("planned")

    with bg.capture(aux_streams=scene.sides) as graph:
        np.add(scene.x, 1, out=scene.main)
        bg.break_here(raises, bg.IN_PLACE)
        with scene.on():
            np.multiply(scene.main, 2, out=scene.outs[0])
    scene.put(3)
    broken.append(True)
    with planned, pytest.raises(ValueError, match="planned"):
        graph.replay(stream=elsewhere)
    assert plan.struck
    broken.clear()
    graph.replay()
    assert scene.values == [4, 8]
    assert not sim.races
    assert graph.replays == 1


def test_whatever_record_or_wait_of_a_capture_fails_it_fails_clean() -> None:
    def work(scene: Scene, graph: Any, arena: Any) -> None:
        with bg.capture(graph, arena=arena, aux_streams=scene.sides):
            for at in (0, 1):
                with scene.on(at):
                    np.add(scene.x, at, out=scene.outs[at])
                bg.break_graph()
            np.add(scene.outs[0], scene.outs[1], out=scene.main)

    with bg.driver.use("sim") as driver:
        scene = Scene(driver, bg.array_namespace(), sides=2)
        before = Counter(driver.calls)
        work(scene, bg.BreakableGraph(), bg.Arena())
        made = Counter(driver.calls) - before
    for name in ("event_create", "event_record", "stream_wait_event", "stream_is_capturing"):
        assert made[name] > 2
        for at in range(1, made[name] + 1):
            where = f"{name} #{at} of {made[name]}"
            with bg.driver.use("sim") as driver:
                scene = Scene(driver, bg.array_namespace(), sides=2)
                graph, arena = bg.BreakableGraph(), bg.Arena()
                raised = None
                try:
                    with driver.fail(name, at=at):
                        work(scene, graph, arena)
                except BreakgraphError as error:
                    raised = error
                assert not driver.live()["capture"], where
                if raised is not None:
                    assert "999" in full_text(raised), where
                    assert graph.state == "failed", where
                    assert not driver.live()["graph"], where
                    assert not driver.live()["graph_exec"], where
                    del raised
                    graph.reset()
                    scene.check_sides_usable()
                    work(scene, graph, arena)
                scene.replay(graph, 3)
                assert scene.values == [7, 3, 4], where
                scene.check_sides_usable()
                assert not driver.races, where
                graph.close()


def test_whatever_record_or_wait_of_a_replay_fails_the_graph_replays_again(sim: Any, xp: Any) -> None:
    scene = Scene(sim, xp, sides=2)

    def leaves_work() -> None:
        with scene.on(0):
            np.add(scene.main, 1, out=scene.outs[0])

    with bg.capture(aux_streams=scene.sides) as graph:
        np.add(scene.x, 1, out=scene.main)
        bg.break_here(leaves_work, bg.IN_PLACE)
        with scene.on(1):
            np.add(scene.outs[0], 1, out=scene.outs[1])
    scene.put(0)
    before = Counter(sim.calls)
    graph.replay()
    made = Counter(sim.calls) - before
    for name in ("event_record", "stream_wait_event"):
        assert made[name] > 4
        for at in range(1, made[name] + 1):
            scene.put(0)
            with pytest.raises(DriverError), sim.fail(name, at=at):
                graph.replay()
            scene.check_sides_usable()
            scene.replay(graph, 3)
            assert scene.values == [4, 5, 6]


# --- its life -----------------------------------------------------------------------------------------------------


def test_a_graph_keeps_the_aux_streams_that_it_was_given(driver: Any, xp: Any) -> None:
    """A stream that is dropped is destroyed, and replay uses it."""
    scene = Scene(driver, xp)
    sides, scene.sides = scene.sides, []
    with bg.capture(aux_streams=sides) as graph:
        with on_stream(scene.x, sides[0]):
            np.multiply(scene.x, 2, out=scene.outs[0])
        bg.break_graph()
        with on_stream(scene.x, sides[0]):
            np.add(scene.outs[0], 1, out=scene.outs[0])
    sides.clear()
    gc.collect()
    for x in (2, 3):
        scene.replay(graph, x)
        assert scene.values[1] == 2 * x + 1


def test_an_aux_stream_that_is_destroyed_under_a_graph_is_an_error_of_the_driver(sim: Any, xp: Any) -> None:
    """The simulator says so; a real driver need not notice the use of a handle that is gone."""
    scene = Scene(sim, xp)
    handle = sim.stream_create()
    graph = with_breaks(scene, 1, aux_streams=(handle,))
    sim.stream_destroy(handle)
    with pytest.raises(DriverError) as raised:
        graph.replay()
    assert raised.value.code == 400
    graph.close()
    assert_next_capture_works(xp)


def test_a_graph_that_is_reset_takes_other_aux_streams(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=2)
    graph = bg.BreakableGraph()
    for at in (0, 1):
        with bg.capture(graph, aux_streams=(scene.sides[at],)):
            bg.break_graph()
            with scene.on(at):
                np.multiply(scene.x, at + 2, out=scene.outs[at])
        scene.replay(graph, 3)
        assert scene.values[at + 1] == 3 * (at + 2)
        graph.reset()


def test_where_capture_is_switched_off_the_same_program_runs_eagerly() -> None:
    """With the order of its streams its own, as any eager code has it: aux_streams adds nothing to that."""
    done = child(
        """
        import numpy as np
        import breakgraph as bg
        from support import holds, on_stream, refill, zeros
        from streams_support import Order

        driver = bg.driver.use("sim", schedule="random", seed=3).driver
        xp = bg.array_namespace()
        x, out, side = zeros(xp), zeros(xp), driver.create_stream()
        order = Order(driver)
        driver.synchronize()

        def forward(a):
            here = bg.current_stream() or 0
            order(here, side)
            with on_stream(a, side):
                doubled = a * 2
            order(side, here)
            return doubled

        refill(x, 4)
        with bg.capture(aux_streams=(side,), debug=True) as graph:
            y = bg.break_here(lambda a: a + 1, bg.INFER, forward(x))
            np.add(y, 1, out=out)
        driver.synchronize()
        assert holds(out, 10), out.get()
        assert not driver.races, driver.races
        begun = driver.calls["stream_begin_capture"]
        print(graph.state, begun)
        """,
        BREAKGRAPH_DISABLE="1",
        PYTHONPATH=os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "streams"))),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["inert", "0"]


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.races
def test_a_stream_that_is_used_in_a_segment_without_a_fork_is_named(sim: Any, xp: Any, debug: bool) -> None:
    """Its work runs once, and replay leaves it out: the commonest way to lose part of a forward."""
    x, main, beside, side = zeros(xp), zeros(xp), zeros(xp), sim.create_stream()
    sim.synchronize()
    told = pytest.raises(CaptureFailed, match="was not forked") if debug else pytest.warns(match="was not forked")
    with told, bg.capture(debug=debug) as graph:
        np.add(x, 1, out=main)
        bg.break_graph()
        np.add(x, 2, out=main)
        with on_stream(x, side):
            np.add(x * 7, 0, out=beside)
    assert graph.state == ("failed" if debug else "captured")
    sim.synchronize()


def test_what_comes_after_a_swallowed_error_has_memory_of_its_own(sim: Any, xp: Any) -> None:
    """The rest of the body runs eagerly, so the arena's rules are not those it needs (C6)."""
    x, arena, found = zeros(xp), bg.Arena(), []

    def fails() -> None:
        raise KeyError("planned")

    with pytest.raises(CaptureFailed), bg.capture(arena=arena) as graph:
        try:
            bg.break_here(fails, bg.IN_PLACE)
        except KeyError:
            found.append(arena.used)
            y = x + 1
            found.append(arena.used)
    assert found == [0, 0]
    assert holds(y, 1)
    assert graph.state == "failed"


def test_one_aux_stream_need_not_be_in_a_tuple(driver: Any, xp: Any) -> None:
    x, out, side = zeros(xp), zeros(xp), driver.create_stream()
    driver.synchronize()
    with bg.capture(aux_streams=side) as graph, on_stream(x, side):
        np.add(x, 1, out=out)
    x.set(np.full(4, 4, np.float32))
    driver.synchronize()
    graph.replay()
    driver.synchronize()
    assert holds(out, 5)
