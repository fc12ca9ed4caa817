"""However a forward forks work onto other streams, the end of the segment joins it, and adds nothing else.

Proves C11's first half and C29's refusal. Each structure of forks and joins is captured as it stands and once more with
every join made by hand: the values are the same and so are nodes and edges, and `Segment.joined` tells the two apart.
Then what surrounds it: several segments, breaks, other captures, failures, edge data.

       origin  --a--+-----b-----(end)      no call joins c: the end of the segment does, or the driver
       side         +---c-------^          would refuse it (904)
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from streams_support import WAYS, Scene, StreamWait, full_text
from support import (
    Order,
    all_well,
    assert_failed_clean,
    assert_next_capture_works,
    every_schedule,
    floats,
    holds,
    in_threads,
    live,
    on_stream,
    refill,
    steps_of,
    zeros,
)

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver.api import CaptureMode, CaptureStatus, DependencyUpdate, EdgeData
from breakgraph.errors import BreakgraphError, CaptureFailed, CaptureIsolation, CaptureMerge, DriverError

# --- structures of forks and joins ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Structure:
    """A forward on side streams: how many branches it leaves to be joined, and its outputs for an input."""

    run: Callable[[Scene], None]
    sides: int
    joined: int
    values: Callable[[float], list[float]]


STRUCTURES: dict[str, Structure] = {}


def structure(sides: int, joined: int, values: Callable[[float], list[float]]) -> Any:
    """Keep a function as a structure under its name."""

    def keep(function: Callable[[Scene], None]) -> Callable[[Scene], None]:
        STRUCTURES[function.__name__.replace("_", " ")] = Structure(function, sides, joined, values)
        return function

    return keep


@structure(1, 1, lambda x: [x + 6, (x + 1) * 2])
def never_joined(s: Scene) -> None:
    t = s.x + 1
    with s.fork():
        np.multiply(t, 2, out=s.outs[0])
    np.add(t, 5, out=s.main)


@structure(1, 0, lambda x: [(x + 1) * 2 + 5, (x + 1) * 2])
def joined_by_the_forward(s: Scene) -> None:
    t = s.x + 1
    with s.fork():
        np.multiply(t, 2, out=s.outs[0])
    s.join()
    np.add(s.outs[0], 5, out=s.main)


@structure(1, 0, lambda x: [x + 6, (x + 1) * 2])
def joined_twice_as_the_last_thing(s: Scene) -> None:
    t = s.x + 1
    with s.fork():
        np.multiply(t, 2, out=s.outs[0])
    np.add(t, 5, out=s.main)
    s.join()
    s.join()


@structure(1, 1, lambda x: [x + 1, (x + 1) * 2])
def an_origin_that_goes_no_further(s: Scene) -> None:
    np.add(s.x, 1, out=s.main)
    with s.fork():
        np.multiply(s.main, 2, out=s.outs[0])


@structure(1, 1, lambda x: [x + 5, x * 2])
def a_fork_before_any_work(s: Scene) -> None:
    with s.fork():
        np.multiply(s.x, 2, out=s.outs[0])
    np.add(s.x, 5, out=s.main)


@structure(1, 1, lambda x: [-1, x * 2])
def an_origin_without_any_work(s: Scene) -> None:
    with s.fork():
        np.multiply(s.x, 2, out=s.outs[0])


@structure(1, 0, lambda x: [x + 5, -1])
def a_fork_without_work(s: Scene) -> None:
    np.add(s.x, 1, out=s.main)
    s.fork()
    np.add(s.main, 4, out=s.main)


@structure(1, 0, lambda x: [x + 5, -1])
def a_fork_without_work_that_is_joined(s: Scene) -> None:
    np.add(s.x, 1, out=s.main)
    s.fork()
    s.join()
    np.add(s.main, 4, out=s.main)


@structure(1, 1, lambda x: [(x + 1) * 2 + 5, (x + 1) * 2 + 7])
def work_after_the_join(s: Scene) -> None:
    t = s.x + 1
    with s.fork():
        u = t * 2
    s.join()
    np.add(u, 5, out=s.main)
    with s.on():
        np.add(u, 7, out=s.outs[0])


@structure(1, 1, lambda x: [x + 6, ((x + 1) * 2 + x + 6) * 3])
def one_stream_forked_twice(s: Scene) -> None:
    t = s.x + 1
    with s.fork():
        np.multiply(t, 2, out=s.outs[0])
    np.add(t, 5, out=s.main)
    with s.fork():
        np.add(s.outs[0], s.main, out=s.outs[0])
        np.multiply(s.outs[0], 3, out=s.outs[0])


@structure(1, 1, lambda x: [x + 6, x + 1])
def one_stream_forked_twice_in_a_row(s: Scene) -> None:
    t = s.x + 1
    s.fork()
    with s.fork():
        np.add(s.x, 1, out=s.outs[0])
    np.add(t, 5, out=s.main)


@structure(3, 3, lambda x: [x + 1 + 100, (x + 1) * 2, (x + 1) * 3, (x + 1) * 4])
def three_branches(s: Scene) -> None:
    t = s.x + 1
    for at in range(3):
        with s.fork(at):
            np.multiply(t, at + 2, out=s.outs[at])
    np.add(t, 100, out=s.main)


@structure(3, 2, lambda x: [(x + 1) * 3 + 100, (x + 1) * 2, (x + 1) * 3, (x + 1) * 4])
def three_branches_one_of_them_joined(s: Scene) -> None:
    t = s.x + 1
    for at in range(3):
        with s.fork(at):
            np.multiply(t, at + 2, out=s.outs[at])
    s.join(1)
    np.add(s.outs[1], 100, out=s.main)


@structure(2, 2, lambda x: [x + 1, (x + 1) * 2 + 10, (x + 1) * 2 + 20])
def a_fork_of_a_fork_and_both_go_on(s: Scene) -> None:
    np.add(s.x, 1, out=s.main)
    with s.fork(0):
        t = s.main * 2
    with s.fork(1, source=0):
        np.add(t, 20, out=s.outs[1])
    with s.on(0):
        np.add(t, 10, out=s.outs[0])


@structure(2, 1, lambda x: [x + 6, (x + 1) * 2, (x + 1) * 2 + 20])
def a_fork_of_a_fork_that_goes_no_further_itself(s: Scene) -> None:
    t = s.x + 1
    with s.fork(0):
        np.multiply(t, 2, out=s.outs[0])
    with s.fork(1, source=0):
        np.add(s.outs[0], 20, out=s.outs[1])
    np.add(t, 5, out=s.main)


@structure(2, 1, lambda x: [x + 6, (x + 1) * 2 + 20 + 100, (x + 1) * 2 + 20])
def a_fork_of_a_fork_joined_into_its_parent_alone(s: Scene) -> None:
    t = s.x + 1
    with s.fork(0):
        u = t * 2
    with s.fork(1, source=0):
        np.add(u, 20, out=s.outs[1])
    s.join(1, into=0)
    with s.on(0):
        np.add(s.outs[1], 100, out=s.outs[0])
    np.add(t, 5, out=s.main)


@structure(2, 0, lambda x: [(x + 1) * 2 + 20 + 100, (x + 1) * 2, (x + 1) * 2 + 20])
def a_fork_of_a_fork_joined_past_its_parent(s: Scene) -> None:
    t = s.x + 1
    with s.fork(0):
        np.multiply(t, 2, out=s.outs[0])
    with s.fork(1, source=0):
        np.add(s.outs[0], 20, out=s.outs[1])
    s.join(1)
    np.add(s.outs[1], 100, out=s.main)


@structure(2, 0, lambda x: [x + 1 + 100, x + 1, (x + 2) * 3])
def a_side_joined_through_another(s: Scene) -> None:
    with s.fork(0):
        np.add(s.x, 1, out=s.outs[0])
    with s.fork(1):
        t = s.x + 2
    s.join(0, into=1)
    with s.on(1):
        np.multiply(t, 3, out=s.outs[1])
    s.join(1)
    np.add(s.outs[0], 100, out=s.main)


@structure(4, 4, lambda x: [x, x + 1, x + 2, x + 3, x + 4])
def a_chain_of_forks_each_going_on(s: Scene) -> None:
    s.fork(0)
    for at in range(1, 4):
        s.fork(at, source=at - 1)
    for at in range(4):
        with s.on(at):
            np.add(s.x, at + 1, out=s.outs[at])
    np.add(s.x, 0, out=s.main)


every_structure = pytest.mark.parametrize("what", STRUCTURES)


def shape_of(driver: Any, segment: Any) -> tuple[int, int]:
    """How many nodes and edges a segment's graph has."""
    return len(driver.graph_get_nodes(segment.graph)), len(driver.graph_get_edges(segment.graph))


@every_schedule
@every_structure
def test_every_structure_has_its_values_at_capture_and_at_each_replay(driver: Any, xp: Any, what: str) -> None:
    one = STRUCTURES[what]
    scene = Scene(driver, xp, sides=one.sides)
    scene.put(7)
    with bg.capture() as graph:
        one.run(scene)
    assert scene.values == one.values(7)
    (segment,) = graph.segments
    assert segment.joined == one.joined
    for x in (3, 100, -2):
        scene.replay(graph, x)
        assert scene.values == one.values(x)
    scene.check_sides_usable()


@every_structure
def test_joining_by_hand_makes_the_same_graph_and_leaves_nothing_to_join(driver: Any, xp: Any, what: str) -> None:
    one = STRUCTURES[what]
    scene = Scene(driver, xp, sides=one.sides)
    scene.put(7)
    with bg.capture() as left:
        one.run(scene)
    with bg.capture() as by_hand:
        one.run(scene)
        for at in range(one.sides):
            scene.join(at)
    assert (left.segments[0].joined, by_hand.segments[0].joined) == (one.joined, 0)
    assert shape_of(driver, left.segments[0]) == shape_of(driver, by_hand.segments[0])
    for graph in (by_hand, left):
        scene.replay(graph, 3)
        assert scene.values == one.values(3)


@pytest.mark.parametrize("way", WAYS)
@every_structure
def test_it_does_not_matter_which_call_makes_the_fork(driver: Any, xp: Any, what: str, way: str) -> None:
    one = STRUCTURES[what]
    scene = Scene(driver, xp, sides=one.sides, way=WAYS[way])
    with bg.capture(execute=False) as graph:
        one.run(scene)
    assert graph.segments[0].joined == one.joined
    scene.replay(graph, 3)
    assert scene.values == one.values(3)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_forks_are_joined_in_every_capture_mode(driver: Any, xp: Any, mode: Any) -> None:
    scene = Scene(driver, xp, sides=3)
    with bg.capture(mode=mode) as graph:
        STRUCTURES["three branches"].run(scene)
    assert graph.segments[0].joined == 3
    scene.replay(graph, 3)
    assert scene.values == [104, 8, 12, 16]


# --- numbers that other projects of this kind test -------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("way", WAYS)
def test_a_pair_of_adds_doubled_on_the_side_is_v_plus_1_times_2(driver: Any, xp: Any, way: str) -> None:
    scene = Scene(driver, xp, way=WAYS[way])
    with bg.capture() as graph:
        t = scene.x + 1
        with scene.fork():
            u = t * 2
        scene.join()
        np.add(u, 0, out=scene.main)
    for v in (0, 5, 20):
        scene.replay(graph, v)
        assert scene.values[0] == (v + 1) * 2


@every_schedule
@pytest.mark.parametrize("joined", [True, False])
def test_a_side_stream_before_a_break_gives_14(driver: Any, xp: Any, joined: bool) -> None:
    scene = Scene(driver, xp)
    with bg.capture() as graph:
        with scene.fork():
            np.add(scene.x, 1, out=scene.outs[0])
        if joined:
            scene.join()
        doubled = bg.break_here(lambda a: a * 2, bg.INFER, scene.outs[0])
        np.add(doubled, 10, out=scene.main)
    assert [segment.joined for segment in graph.segments] == [not joined, 0]
    scene.replay(graph, 1)
    assert scene.values[0] == 14


@every_schedule
def test_a_side_stream_that_is_never_joined_takes_3_to_8(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    with bg.capture() as graph:
        STRUCTURES["an origin that goes no further"].run(scene)
    scene.replay(graph, 3)
    assert scene.values == [4, 8]


# --- with breaks ------------------------------------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("execute", [True, False])
def test_each_segment_joins_its_own_forks_before_the_break_reads_them(driver: Any, xp: Any, execute: bool) -> None:
    scene, read = Scene(driver, xp, sides=2), []
    scene.put(1)
    with bg.capture(execute=execute) as graph:
        for at in (0, 1):
            with scene.fork(at):
                np.add(scene.x, at + 1, out=scene.outs[at])
        t = bg.break_here(lambda a, b: read.append(a.get()[0]) or a + b, bg.INFER, *scene.outs)
        with scene.fork(0):
            np.multiply(t, 10, out=scene.outs[0])
        t = bg.break_here(lambda a: a + 1, bg.INFER, scene.outs[0])
        bg.break_graph()
        with scene.fork(1):
            np.multiply(t, 2, out=scene.outs[1])
        np.add(t, 5, out=scene.main)
    assert [segment.joined for segment in graph.segments] == [2, 1, 0, 1]
    if execute:
        assert scene.values == [56, 50, 102]
    for x in (3, 4):
        scene.replay(graph, x)
        t = ((x + 1) + (x + 2)) * 10 + 1
        assert scene.values == [t + 5, t - 1, t * 2]
        assert read[-1] == x + 1
    scene.check_sides_usable()


def test_a_fork_that_was_joined_before_the_break_may_be_made_again_after_it(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    with bg.capture() as graph:
        for at in range(4):
            with scene.fork():
                np.add(scene.x if not at else scene.main, 1, out=scene.outs[0])
            scene.join()
            np.multiply(scene.outs[0], 2, out=scene.main)
            bg.break_graph()
    assert [segment.joined for segment in graph.segments] == [0, 0, 0, 0, 0]
    scene.replay(graph, 3)
    assert scene.values == [78, 39]


def test_a_join_after_the_break_of_a_fork_before_it_is_told_apart_from_a_fork_that_is_forgotten(
    driver: Any, xp: Any
) -> None:
    """The side is out of the capture by then: the driver refuses to wait for what is on it (905), nothing is lost."""
    scene = Scene(driver, xp)
    with pytest.raises(CaptureIsolation), bg.capture() as graph:
        with scene.fork():
            np.add(scene.x, 1, out=scene.outs[0])
        bg.break_graph()
        scene.join()
        np.add(scene.outs[0], 1, out=scene.main)
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


def test_a_whole_graph_capture_joins_the_forks_of_its_inline_break_points(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)

    def forks() -> None:
        with scene.fork():
            np.add(scene.x, 1, out=scene.outs[0])

    with bg.capture(break_on=()) as graph:
        bg.break_here(forks, bg.IN_PLACE)
        np.add(scene.x, 2, out=scene.main)
    assert [segment.joined for segment in graph.segments] == [1]
    scene.replay(graph, 3)
    assert scene.values == [5, 4]


def test_one_log_shows_segment_break_segment_around_forks(sim: Any, xp: Any) -> None:
    scene = Scene(sim, xp, sides=3)
    with bg.capture(execute=False) as graph:
        STRUCTURES["three branches"].run(scene)
        bg.break_here(lambda: sim.mark("break"), bg.IN_PLACE)
        STRUCTURES["a fork without work"].run(scene)
    start = len(sim.log)
    graph.replay()
    assert steps_of(sim, start) == ["segment", "break", "segment"]


# --- what the join costs, and what it keeps ---------------------------------------------------------------------


@pytest.mark.parametrize("sides", [0, 1, 4])
def test_a_segment_whose_forks_are_joined_is_not_changed(sim: Any, xp: Any, sides: int) -> None:
    scene = Scene(sim, xp, sides=sides)
    before = sim.calls["stream_update_capture_dependencies"]
    with bg.capture():
        for at in range(sides):
            with scene.fork(at):
                np.add(scene.x, at, out=scene.outs[at])
            scene.join(at)
        np.add(scene.x, 1, out=scene.main)
    assert sim.calls["stream_update_capture_dependencies"] == before


def test_a_segment_is_changed_once_however_many_forks_it_has(sim: Any, xp: Any) -> None:
    scene = Scene(sim, xp, sides=4)
    before = sim.calls["stream_update_capture_dependencies"]
    with bg.capture() as graph:
        STRUCTURES["a chain of forks each going on"].run(scene)
        bg.break_graph()
        STRUCTURES["a chain of forks each going on"].run(scene)
    assert sim.calls["stream_update_capture_dependencies"] == before + 2
    assert [segment.joined for segment in graph.segments] == [4, 4]


def test_a_replay_costs_nothing_more_for_a_join(sim: Any, xp: Any) -> None:
    scene = Scene(sim, xp)
    calls = []
    for name in ("never joined", "joined twice as the last thing"):
        with bg.capture(arena=bg.Arena()) as graph:
            STRUCTURES[name].run(scene)
        scene.put(1)
        before = Counter(sim.calls)
        graph.replay()
        calls.append(Counter(sim.calls) - before)
    assert calls[0] == calls[1]


def test_a_join_in_mid_segment_for_an_output_counts_as_the_librarys(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    with bg.capture() as graph:
        STRUCTURES["never joined"].run(scene)
        copies = graph.output([scene.main, scene.outs[0]])
    scene.replay(graph, 3)
    assert holds(copies[0], 9)
    assert holds(copies[1], 8)
    assert graph.segments[0].joined == 1


def test_edge_data_of_what_the_origin_depends_on_is_kept(sim: Any, xp: Any) -> None:
    """A programmatic dependency is a weaker one; a join that made it a full one would undo what it is for."""
    scene = Scene(sim, xp)
    weak = EdgeData(from_port=1, to_port=0, type=1)
    with bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        origin = int(bg.current_stream())
        info = sim.stream_get_capture_info(origin)
        sim.stream_update_capture_dependencies(origin, info.dependencies, [weak], DependencyUpdate.SET)
        with scene.fork():
            np.multiply(scene.x, 2, out=scene.outs[0])
        assert sim.stream_get_capture_info(origin).edges == (weak,)
        copy = graph.output(scene.outs[0])  # a node after the join: the only way to see its edges afterwards
    (segment,) = graph.segments
    nodes = sim.graph_get_nodes(segment.graph)
    into_copy = {
        nodes.index(edge.tail): edge.data for edge in sim.graph_get_edges(segment.graph) if edge.head == nodes[-1]
    }
    assert into_copy == {0: weak, 1: EdgeData()}
    scene.replay(graph, 3)
    assert holds(copy, 6)


def test_the_last_join_of_a_segment_hands_the_edge_data_on_too(sim: Any, xp: Any) -> None:
    scene = Scene(sim, xp)
    weak = EdgeData(from_port=1, to_port=0, type=1)
    with bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        origin = int(bg.current_stream())
        (node,) = sim.stream_get_capture_info(origin).dependencies
        with scene.fork():
            np.multiply(scene.x, 2, out=scene.outs[0])
        sim.stream_update_capture_dependencies(origin, [node], [weak], DependencyUpdate.SET)
    (_, *made), edges = next(
        (entry.args[:2], entry.args[2])
        for entry in reversed(sim.log)
        if entry.name == "stream_update_capture_dependencies"
    )
    assert len(edges) == 2
    assert edges[made[0].index(node)] == weak
    assert graph.segments[0].joined == 1


def test_what_the_forward_took_out_of_the_origins_order_is_joined_all_the_same(driver: Any, xp: Any) -> None:
    """The leaf is found by the graph, not by what the streams still depend on."""
    scene = Scene(driver, xp)
    with bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        with scene.fork():
            np.multiply(scene.main, 2, out=scene.outs[0])
        driver.stream_update_capture_dependencies(int(scene.sides[0]), [], None, DependencyUpdate.SET)
    assert graph.segments[0].joined == 1
    scene.replay(graph, 3)
    assert scene.values == [4, 8]


# --- captures of others -----------------------------------------------------------------------------------------


class Foreign:
    """A capture that somebody else has open, with a fork of its own that it has not joined yet."""

    def __init__(self, driver: Any, array: Any, mode: CaptureMode = CaptureMode.THREAD_LOCAL) -> None:
        self.driver, self.array = driver, array
        self.origin, self.side, self.order = driver.create_stream(), driver.create_stream(), Order(driver)
        self.one, self.two = zeros(bg.array_namespace()), zeros(bg.array_namespace())
        driver.synchronize()
        driver.stream_begin_capture(int(self.origin), mode)
        with on_stream(array, self.origin):
            np.add(array, 1, out=self.one)
        self.order(self.origin, self.side)
        with on_stream(array, self.side):
            np.add(array, 2, out=self.two)
        self.seen = self.looks()

    def looks(self) -> tuple[Any, ...]:
        """What the driver tells of the capture."""
        streams = (int(self.origin), int(self.side))
        infos = [self.driver.stream_get_capture_info(stream) for stream in streams]
        return *infos, self.driver.graph_get_node_count(infos[0].graph)

    def check_and_end(self) -> None:
        """It is as it was, and ends well."""
        assert self.looks() == self.seen
        assert self.seen[0].status is CaptureStatus.ACTIVE
        self.order(self.side, self.origin)
        graph = self.driver.stream_end_capture(int(self.origin))
        assert self.driver.graph_get_node_count(graph) == 2
        self.driver.graph_destroy(graph)


def test_a_capture_that_this_thread_has_open_elsewhere_is_left_alone(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=3)
    arena = bg.Arena()
    foreign = Foreign(driver, scene.x, CaptureMode.RELAXED)
    with bg.capture(arena=arena) as graph:
        STRUCTURES["three branches"].run(scene)
        bg.break_graph()
        STRUCTURES["never joined"].run(scene)
    assert [segment.joined for segment in graph.segments] == [3, 1]
    foreign.check_and_end()
    scene.replay(graph, 3)
    assert scene.values == [9, 8, 12, 16]


def test_a_capture_that_another_thread_has_open_is_left_alone(driver: Any, xp: Any) -> None:
    scene, arena = Scene(driver, xp, sides=3), bg.Arena()

    def work() -> Any:
        foreign = Foreign(driver, scene.x)
        all_well(in_threads(driver, capture))
        foreign.check_and_end()

    def capture() -> None:
        with bg.capture(arena=arena) as graph:
            STRUCTURES["three branches"].run(scene)
        assert graph.segments[0].joined == 3
        graphs.append(graph)

    graphs: list[Any] = []
    all_well(in_threads(driver, work))
    scene.replay(graphs[0], 3)
    assert scene.values == [104, 8, 12, 16]


def test_drawing_in_a_stream_of_a_foreign_capture_is_a_merge_that_leaves_both_threads_clean(
    driver: Any, xp: Any
) -> None:
    """902 is the driver's word; both captures are lost by it, and both streams are usable."""
    scene, arena = Scene(driver, xp), bg.Arena()
    foreign = Foreign(driver, scene.x, CaptureMode.RELAXED)
    with pytest.raises(CaptureMerge), bg.capture(arena=arena) as graph:
        np.add(scene.x, 1, out=scene.main)
        foreign.order(foreign.side, bg.current_stream())
    with pytest.raises(DriverError):
        driver.stream_end_capture(int(foreign.origin))
    assert_failed_clean(graph, driver)
    assert driver.stream_is_capturing(int(foreign.side)) == CaptureStatus.NONE
    scene.check_sides_usable()
    assert_next_capture_works(xp)


# --- stream-ordered allocations (C29) ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["origin", "side", "joined side", "second segment"])
def test_stream_ordered_memory_that_a_segment_leaves_allocated_is_refused_by_name(
    driver: Any, xp: Any, where: str
) -> None:
    scene = Scene(driver, xp)
    with pytest.raises(CaptureFailed) as raised, bg.capture(name="forward") as graph:
        np.add(scene.x, 1, out=scene.main)
        if where == "second segment":
            bg.break_graph()
        stream = bg.current_stream()
        if where.endswith("side"):
            scene.fork()
            stream = scene.sides[0]
        ptr = driver.mem_alloc_async(4096, int(stream))
        driver.memset_d8_async(ptr, 0, 4096, int(stream))
        if where == "joined side":
            scene.join()
    said = full_text(raised.value)
    assert "stream-ordered allocation" in said
    assert f"segment {int(where == 'second segment')}" in said
    assert "C29" in said
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


def test_memory_freed_in_a_later_segment_than_it_was_allocated_in_is_refused_at_the_first(driver: Any, xp: Any) -> None:
    scene, reached = Scene(driver, xp), []
    with pytest.raises(CaptureFailed, match="stream-ordered allocation"), bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        ptr = driver.mem_alloc_async(4096, int(bg.current_stream()))
        bg.break_graph()
        reached.append("second segment")
        driver.mem_free_async(ptr, int(bg.current_stream()))
    assert reached == []
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


@every_schedule
@pytest.mark.parametrize("forked", [True, False])
def test_stream_ordered_memory_that_is_freed_in_its_segment_may_be_used(driver: Any, xp: Any, forked: bool) -> None:
    scene = Scene(driver, xp)
    framework = frameworks.of(scene.x, driver)
    nbytes = framework.view(scene.x).nbytes
    with bg.capture() as graph:
        if forked:
            scene.fork()
        stream = int(scene.sides[0] if forked else bg.current_stream())
        ptr = driver.mem_alloc_async(nbytes, stream)
        driver.memset_d8_async(ptr, 0, nbytes, stream)
        driver.memcpy_dtod_async(framework.view(scene.outs[0]).ptr, ptr, nbytes, stream)
        driver.mem_free_async(ptr, stream)
        np.add(scene.x, 1, out=scene.main)
    assert graph.segments[0].joined == forked
    for x in (3, 4):
        scene.replay(graph, x)
        assert scene.values == [x + 1, 0]


# --- failures ------------------------------------------------------------------------------------------------------


def test_an_exception_with_forks_open_releases_every_stream(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=4)
    for at_break in (False, True):
        with pytest.raises(ValueError, match="planned"), bg.capture() as graph:
            STRUCTURES["a chain of forks each going on"].run(scene)
            if at_break:
                bg.break_here(_raise, bg.IN_PLACE)
            _raise()
        assert_failed_clean(graph, driver)
        scene.check_sides_usable()
    assert_next_capture_works(xp)


def _raise() -> None:
    raise ValueError("planned")


def test_a_segment_invalidated_with_forks_open_releases_every_stream(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=4)
    with pytest.raises(CaptureFailed) as raised, bg.capture() as graph:
        STRUCTURES["a chain of forks each going on"].run(scene)
        with contextlib.suppress(DriverError):
            driver.mem_alloc(1 << 20)
    assert "901" in full_text(raised.value)
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


FORKED_CALLS = (
    "stream_get_capture_info",
    "graph_get_nodes",
    "graph_get_edges",
    "stream_update_capture_dependencies",
    "stream_end_capture",
)


def _forked_capture(scene: Scene, graph: Any, arena: Any) -> None:
    with bg.capture(graph, arena=arena):
        STRUCTURES["three branches"].run(scene)
        bg.break_graph()
        t = scene.x + 1
        with scene.fork():
            np.multiply(t, 2, out=scene.outs[0])
        del t
        np.add(scene.x, 5, out=scene.main)


def test_whatever_call_of_a_join_fails_the_capture_fails_clean_or_is_whole() -> None:
    """What the join asks of the driver is learned from a clean run; each of those calls fails in turn."""
    with bg.driver.use("sim") as driver:
        scene = Scene(driver, bg.array_namespace(), sides=3)
        before = Counter(driver.calls)
        _forked_capture(scene, bg.BreakableGraph(), bg.Arena())
        made = Counter(driver.calls) - before
    runs = 0
    for name in FORKED_CALLS:
        for at in range(1, made[name] + 1):
            runs += 1
            with bg.driver.use("sim") as driver:
                scene = Scene(driver, bg.array_namespace(), sides=3)
                graph, arena = bg.BreakableGraph(), bg.Arena()
                with contextlib.suppress(BreakgraphError), driver.fail(name, at=at):
                    _forked_capture(scene, graph, arena)
                where = f"{name} #{at} of {made[name]}"
                assert not driver.live()["capture"], where
                if graph.state == "failed":
                    assert "999" in full_text(graph.error), where
                    assert (live(driver, "graph"), live(driver, "graph_exec")) == (0, 0), where
                    graph.reset()
                    scene.check_sides_usable()
                    _forked_capture(scene, graph, arena)
                scene.replay(graph, 3)
                assert scene.values == [8, 8, 12, 16], where
                assert [segment.joined for segment in graph.segments] == [3, 1], where
                scene.check_sides_usable()
                assert not driver.races, where
                graph.close()
    assert set(FORKED_CALLS) <= set(made)
    assert runs > 8


def test_the_streams_of_a_whole_capture_are_the_callers_again(driver: Any, xp: Any) -> None:
    """Each side may begin a capture of its own, and be drawn into the next one, by the same forward."""
    scene = Scene(driver, xp, sides=3)
    for x in (1, 2, 3):
        with bg.capture() as graph:
            STRUCTURES["three branches"].run(scene)
        scene.replay(graph, x)
        assert scene.values == [x + 101, (x + 1) * 2, (x + 1) * 3, (x + 1) * 4]
    for side in scene.sides:
        with bg.capture(stream=side) as own:
            y = scene.x + 1
        refill(scene.x, 9)
        own.replay()
        assert holds(y, 10)


def test_a_stream_wait_whose_event_is_gone_before_the_end_is_joined(driver: Any, xp: Any) -> None:
    """Nobody but the driver knows of such a fork."""
    scene = Scene(driver, xp, way=StreamWait)
    x = floats(xp, 1, 2, 3, 4)
    with bg.capture() as graph, scene.fork():
        np.multiply(x, 2, out=scene.outs[0])
    assert graph.segments[0].joined == 1
    x.set(np.asarray([5, 6, 7, 8], np.float32))
    graph.replay()
    assert np.array_equal(scene.outs[0].get(), [10, 12, 14, 16])
