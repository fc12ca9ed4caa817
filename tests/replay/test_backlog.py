"""The host runs ahead of the device, but never further than the driver's queue is long.

A launch that finds the queue full waits, and it waits with the interpreter lock. So at no time may there be more than
three times `HALF` launches and copies behind the last event that is known to have come. Proves that for graphs short
and long, with and without landings, for graphs that share an arena and for the capture pass; that the wait gives the
lock up, and is not made more often than it must be; and that it harms neither a capture elsewhere, nor a replay that
is refused or comes from another context.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cuda_driver.simulated_bindings import simulated_bindings
from in_flight import WITHOUT_LOCK, InFlight
from replay_support import WAYS, chain, go, names_of
from support import all_well, holds, in_threads, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.driver.api import CaptureMode, CaptureStatus, NodeType
from breakgraph.driver.cuda import CudaDriver
from breakgraph.driver.sim import SimDriver
from breakgraph.errors import CaptureStateError, DriverError
from breakgraph.memory.backlog import HALF, Backlog
from breakgraph.segments import steps


def nothing() -> None:
    bg.break_graph()


def landing(at: Any) -> Callable[[], None]:
    return lambda: bg.break_here(lambda a: a * 1, at, at)


def three_landings(at: Any) -> Callable[[], None]:
    return lambda: bg.break_here(lambda a: (a[0] * 1, a[1] * 1, a[2] * 1), (at[0], at[1], at[2]), at)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("segments", "replays"), [(1, 2000), (20, 120), (65, 40), (255, 12), (256, 12), (257, 12), (511, 8), (2000, 4)]
)
def test_never_more_is_in_flight_than_the_queue_holds(sim: Any, xp: Any, segments: int, replays: int, way: str) -> None:
    x, start = zeros(xp), len(sim.log)
    graph = go(chain(x, segments), way)
    for _ in range(replays):
        graph.replay()
    found = InFlight(sim.log[start:])
    assert found.enqueued == segments * (replays + 1)
    assert HALF < found.most <= 3 * HALF, "and it does run ahead"
    assert found.waits <= 2 * found.enqueued / HALF + 1
    assert holds(x, segments * (replays + 1))


@pytest.mark.parametrize(("copies", "arrays"), [(landing, 1), (three_landings, 3)])
@pytest.mark.parametrize("rows", [None, 2])
def test_copies_and_zeroed_rows_count_as_launches_do(
    sim: Any, xp: Any, copies: Callable[[Any], Callable[[], None]], arrays: int, rows: int | None
) -> None:
    x = zeros(xp)
    places = iter([xp.zeros((3, 4), np.float32) if arrays == 3 else zeros(xp) for _ in range(400)])
    graph = chain(x, 301, lambda: copies(next(places))())
    start = len(sim.log)
    for _ in range(6):
        graph.replay(valid_rows=rows)
    found = InFlight(sim.log[start:])
    assert found.enqueued == 6 * (301 + 300 * arrays * (1 if rows is None else 2))
    assert HALF < found.most <= 3 * HALF


def test_a_break_with_more_copies_than_there_is_room_for_is_waited_for_by_itself(sim: Any, xp: Any) -> None:
    many = HALF + 44
    x, places = zeros(xp), [zeros(xp) for _ in range(many)]
    graph = chain(x, 2, lambda: bg.break_here(lambda: [place * 1 for place in places], places))
    start = len(sim.log)
    for _ in range(5):
        graph.replay()
    assert InFlight(sim.log[start:]).most <= 3 * (many + 2)


@pytest.fixture
def marked(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The simulated driver with a mark in its log where a launch gives the lock up."""
    launch = sim.graph_launch_yielding

    def noted(graph_exec: int, stream: int) -> None:
        sim.mark(WITHOUT_LOCK)
        launch(graph_exec, stream)

    monkeypatch.setattr(sim, "graph_launch_yielding", noted)
    return sim


def long_chain(x: Any, kernels: list[int], **options: Any) -> tuple[Any, dict[int, int]]:
    """A graph of segments of so many kernels, each after a break that lands; and the nodes of its execs."""
    place = x + 0
    with bg.capture(**options) as graph:
        for at, count in enumerate(kernels):
            if at:
                bg.break_here(lambda a: a * 1, bg.Cell(x.shape, x.dtype, shared=True), place)
            for _ in range(count):
                np.add(x, 1, out=x)
    return graph, {segment.exec: segment.nodes for segment in graph.segments}


@pytest.mark.parametrize(
    "kernels",
    [
        [20] * 40,
        [100, 1, 1] * 8,
        [HALF] * 6,
        [HALF + 1] * 6,
        [2 * HALF, 5] * 4,
        [2 * HALF + 1, 5] * 4,
        [1100, 1, 1, 1, 250, 250, 1100, 3],
    ],
    ids=str,
)
def test_the_nodes_of_graphs_count_and_a_long_one_goes_without_the_lock(
    marked: Any, xp: Any, kernels: list[int]
) -> None:
    x = zeros(xp)
    graph, nodes = long_chain(x, kernels)
    start = len(marked.log)
    for _ in range(4):
        graph.replay()
    log = marked.log[start:]
    assert InFlight(log, nodes).most <= 3 * HALF
    without_lock = [after.args[0] for mark, after in pairwise(log) if mark.name == "mark"]
    assert without_lock == [segment.exec for segment in graph.segments if segment.nodes > HALF] * 4
    assert holds(x, 5 * sum(kernels))


def test_long_graphs_alone_are_not_waited_for(marked: Any, xp: Any) -> None:
    """The driver itself keeps whoever launches them from running too far ahead, and nobody has to wait for that."""
    x = zeros(xp)
    with bg.capture() as graph:
        for at in range(3):
            if at:
                bg.break_graph()
            for _ in range(HALF + 50):
                np.add(x, 1, out=x)
    assert "event_query" not in names_of(marked, lambda: [graph.replay() for _ in range(5)])


@pytest.mark.parametrize("kind", [NodeType.GRAPH, NodeType.CONDITIONAL], ids=lambda kind: kind.name)
def test_what_graphs_within_graphs_hold_is_waited_for_before_the_lock_is_kept_again(
    marked: Any, xp: Any, kind: NodeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator has none: sets take their place."""
    assert kind in steps._NESTED
    monkeypatch.setattr(steps, "_NESTED", {NodeType.MEMSET})
    monkeypatch.setattr(steps, "_MAY_CALL_HOST", {NodeType.MEMSET})
    x = zeros(xp)
    with bg.capture() as graph:
        np.add(x, 1, out=x)
        bg.break_graph()
        marked.memset_d8_async(x.region.ptr, 0, x.nbytes, int(bg.current_stream()))
        bg.break_graph()
        np.add(x, 1, out=x)
    hidden = graph.segments[1].exec
    graph.replay()
    start = len(marked.log)
    for _ in range(3):
        graph.replay()
    assert InFlight(marked.log[start:], {hidden: 3 * HALF + 1}).most <= 3
    assert holds(x, 1)


def test_graphs_that_share_an_arena_have_one_backlog(sim: Any, xp: Any) -> None:
    x, arena, start = zeros(xp), bg.Arena(), len(sim.log)
    graphs = [chain(x, segments, arena=arena) for segments in (100, 7, 300)]
    for _ in range(10):
        for graph in graphs:
            graph.replay()
    assert HALF < InFlight(sim.log[start:]).most <= 3 * HALF
    assert holds(x, 11 * 407)


def test_the_capture_pass_is_counted_too(sim: Any, xp: Any) -> None:
    x, start = zeros(xp), len(sim.log)
    chain(x, 1500).replay()
    assert HALF < InFlight(sim.log[start:]).most <= 3 * HALF


@pytest.mark.parametrize("sim", ["fifo"], indirect=True)
def test_a_device_that_keeps_up_is_not_waited_for(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    graph = chain(x, 600)
    made = names_of(sim, lambda: [graph.replay() for _ in range(3)])
    assert "event_query" in made
    assert "event_synchronize" not in made


def test_the_wait_is_made_by_the_bindings_which_give_the_lock_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else a replay asks goes by address, with the lock; nothing that waits may."""
    sim = SimDriver(schedule="lazy")
    bindings, waited = simulated_bindings(sim), []
    synchronize = bindings.cuEventSynchronize
    monkeypatch.setattr(bindings, "cuEventSynchronize", lambda event: waited.append(event) or synchronize(event))
    driver = CudaDriver(bindings)
    driver.synchronize()
    stream, backlog = driver.create_stream(), Backlog(driver)
    for _ in range(4):
        sim.launch(stream, lambda: None)
        backlog.make_room(HALF, int(stream))
    assert len(waited) == 1, "the event before the last one had not come"
    assert not [name for name in vars(driver._entries) if "synchronize" in name]


# --- whom it must not harm ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(CaptureMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("where", ["this thread", "another thread"])
def test_a_capture_that_somebody_else_has_open_is_not_given_up(
    sim: Any, xp: Any, mode: CaptureMode, where: str
) -> None:
    x, stream = zeros(xp), sim.create_stream()
    graph = chain(x, 100)
    sim.stream_begin_capture(int(stream), mode)

    def replay() -> None:
        for _ in range(12):
            graph.replay()

    if where == "this thread":
        replay()
    else:
        all_well(in_threads(sim, replay))
    assert sim.stream_is_capturing(int(stream)) is CaptureStatus.ACTIVE
    sim.graph_destroy(sim.stream_end_capture(int(stream)))
    assert holds(x, 1300)


def test_replays_that_are_refused_on_a_capturing_stream_leave_the_next_ones_good(sim: Any, xp: Any) -> None:
    x, stream = zeros(xp), sim.create_stream()
    graph = chain(x, 100)
    sim.stream_begin_capture(int(stream), CaptureMode.THREAD_LOCAL)
    before = sim.stream_get_capture_info(int(stream))
    for _ in range(10):
        with on_stream(x, stream), pytest.raises(CaptureStateError, match="is capturing"):
            graph.replay()
    assert sim.stream_get_capture_info(int(stream)) == before
    sim.graph_destroy(sim.stream_end_capture(int(stream)))
    for _ in range(10):
        graph.replay()
    assert holds(x, 1100)


def test_a_graph_of_another_context_is_replayed_again_and_again(sim: Any, xp: Any) -> None:
    x, mine = zeros(xp), sim.ctx_get_current()
    graph = chain(x, 100)
    other = sim.ctx_create(0)
    for _ in range(10):
        graph.replay()
        assert sim.ctx_get_current() == other
    sim.ctx_pop_current()
    sim.ctx_destroy(other)
    assert sim.ctx_get_current() == mine
    assert holds(x, 1100)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["event_query", "event_synchronize", "event_record"])
def test_a_wait_that_fails_is_raised_and_the_next_replays_are_good(sim: Any, xp: Any, call: str, way: str) -> None:
    x, arena = zeros(xp), bg.Arena()
    graph = go(chain(x, 100, arena=arena), way)
    failed = []
    for at in (1, 3, 5):
        with sim.fail(call, at=at, code=719):
            for _ in range(12):
                try:
                    graph.replay()
                except DriverError as error:
                    failed.append(error.call)
    assert failed == [call] * 3
    assert graph.replays == 33
    start = len(sim.log)
    for _ in range(12):
        graph.replay()
    assert InFlight(sim.log[start:]).most <= 3 * HALF
    arena.sleep()  # nobody has it
    arena.wake()


def test_a_long_graph_that_is_closed_keeps_nothing_alive(sim: Any, xp: Any) -> None:
    x, kept = zeros(xp), [zeros(xp)]
    gone = weakref.ref(kept[0])
    graph = chain(x, 2 * HALF, lambda: bg.break_here(lambda a: None, bg.IN_PLACE, kept[0]))
    graph.replay()
    graph.replay(valid_rows=1)
    gc.disable()
    try:
        kept.clear()
        graph.close()
        assert gone() is None
    finally:
        gc.enable()


def test_a_driver_whose_graphs_were_replayed_can_go() -> None:
    with bg.driver.use("sim") as driver:
        x = bg.array_namespace().zeros(4, np.float32)
        graph = chain(x, 300)
        graph.replay()
        graph.close()
        gone = weakref.ref(driver)
    del driver, graph, x
    gc.collect()
    assert gone() is None


def test_threads_that_share_an_arena_keep_within_its_backlog(sim: Any, xp: Any) -> None:
    arena = bg.Arena()
    inputs = [zeros(xp) for _ in range(3)]
    start = len(sim.log)
    graphs = [chain(x, 90, arena=arena) for x in inputs]
    begin = threading.Barrier(3)

    def work(graph: Any) -> None:
        begin.wait(20)
        for _ in range(12):
            graph.replay()

    all_well(in_threads(sim, *(lambda graph=graph: work(graph) for graph in graphs), seconds=60))
    assert InFlight(sim.log[start:]).most <= 3 * HALF
    for x in inputs:
        assert holds(x, 13 * 90)
        refill(x, 0)
