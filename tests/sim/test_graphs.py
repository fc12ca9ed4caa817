"""Graphs bake addresses and order; execs are copies that can be updated, launched, and destroyed once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from breakgraph.driver.api import EdgeData, EventFlag, NodeType
from breakgraph.errors import DriverError, Unrecorded

from .world import SUCCESS, World, answer, floats

INVALID_HANDLE = "CUDA_ERROR_INVALID_HANDLE"


@pytest.fixture
def world() -> World:
    return World()


def captured(world: World, *values: int, stream: int = 0) -> int:
    """A graph that fills floats of memory, one after another, with values."""
    world.begin(stream=stream)
    for at, value in enumerate(values):
        world.driver.launch(
            stream or world.stream, lambda a, v=value: a.fill(v), writes=[floats(world.memory + 4 * at, 1)]
        )
    return world.end(stream)[1]


def test_captured_work_does_not_run_before_its_launch_and_runs_at_each(world: World) -> None:
    world.fill(world.memory, 0)
    world.begin()
    world.driver.launch(world.stream, _increment, writes=[floats(world.memory, 1)])
    made = world.driver.graph_instantiate(world.end()[1])
    assert world.values(world.memory, 1) == [0]
    for _ in range(3):
        world.driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 1) == [3]


def _increment(array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    array += 1


def test_a_node_tells_what_it_does_and_is_asked_of_its_own_kind_alone(world: World) -> None:
    driver = world.driver
    world.begin()
    driver.launch(world.stream, _increment, writes=[floats(world.memory, 1)], name="increment")
    driver.launch(world.stream, _increment, writes=[floats(world.memory, 1)])
    driver.launch(world.stream, _increment, writes=[floats(world.memory, 1)], name="increment")
    driver.memcpy_dtod_async(world.memory, world.memory + 64, 0, world.stream)
    driver.memset_d32_async(world.memory, 7, 4, world.stream)
    *kernels, copy, fill = driver.graph_get_nodes(world.end()[1])
    functions = [driver.graph_kernel_node_get_params(node).func for node in kernels]
    assert [driver.func_get_name(func) for func in functions] == ["increment", "_increment", "increment"]
    assert functions[0] == functions[2] != functions[1]
    assert driver.graph_memcpy_node_get_params(copy).nbytes == 0
    assert driver.graph_memset_node_get_params(fill) == (world.memory, 16)
    with pytest.raises(Unrecorded, match="MEMSET"):
        driver.graph_kernel_node_get_params(fill)
    for question in (driver.func_get_name, driver.kernel_get_name, driver.graph_memset_node_get_params):
        assert answer(partial(question, 12345)) == INVALID_HANDLE


def test_an_exec_outlives_its_graph(world: World) -> None:
    graph = captured(world, 4)
    made = world.driver.graph_instantiate(graph)
    world.driver.graph_destroy(graph)
    world.driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 1) == [4]


def test_an_exec_may_be_destroyed_while_its_launch_is_pending(world: World) -> None:
    made = world.driver.graph_instantiate(captured(world, 4))
    world.driver.graph_launch(made, world.stream)
    world.driver.graph_exec_destroy(made)
    assert world.values(world.memory, 1) == [4]


SCHEDULES = [("fifo", 0), ("lazy", 0), *(("random", seed) for seed in range(10))]
REFUSED = "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_an_update_is_for_later_launches_only(schedule: str, seed: int) -> None:
    world = World(schedule=schedule, seed=seed)
    driver = world.driver
    world.fill(world.memory, 0, 0)
    made = driver.graph_instantiate(captured(world, 1, 2))
    driver.graph_launch(made, world.stream)
    driver.memcpy_dtod_async(world.source, world.memory, 8, world.stream)  # what the first launch has left
    driver.graph_exec_update(made, captured(world, 3, 4))
    driver.graph_launch(made, world.stream)
    assert world.values(world.source, 2) == [1, 2]
    assert world.values(world.memory, 2) == [3, 4]


def _one_after_another(world: World, *, share: bool) -> list[float]:
    """Two graphs on two streams, with one exec or each with its own; the second reads what the first writes."""
    driver = world.driver
    x, y = floats(world.memory, 1), floats(world.source, 1)
    world.fill(world.memory, 0)
    world.begin()
    driver.launch(world.stream, lambda a: a.fill(1), writes=[x], name="produce")
    first = world.end()[1]
    world.begin()
    driver.launch(world.stream, _copy, reads=[x], writes=[y], name="consume")
    second = world.end()[1]
    made = driver.graph_instantiate(first)
    driver.graph_launch(made, world.stream)
    if share:
        driver.graph_exec_update(made, second)
    else:
        made = driver.graph_instantiate(second)
    driver.graph_launch(made, world.other)
    return world.values(world.source, 1)


def _copy(
    source: np.ndarray[tuple[int], np.dtype[np.float32]], out: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> None:
    out[:] = source


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_two_graphs_that_share_an_exec_are_ordered_on_whatever_streams(schedule: str, seed: int) -> None:
    world = World(schedule=schedule, seed=seed)
    assert _one_after_another(world, share=True) == [1]
    assert world.driver.races == []


@pytest.mark.filterwarnings("ignore::breakgraph.driver.sim.RaceWarning")
def test_two_graphs_with_an_exec_each_are_not_ordered() -> None:
    worlds = [World(schedule=schedule, seed=seed) for schedule, seed in SCHEDULES]
    assert {0, 1} == {value for world in worlds for value in _one_after_another(world, share=False)}
    assert all(world.driver.races for world in worlds)


def test_an_exec_outlives_the_graphs_that_it_was_updated_with(world: World) -> None:
    driver = world.driver
    made = driver.graph_instantiate(captured(world, 1))
    graph = captured(world, 2)
    driver.graph_exec_update(made, graph)
    driver.graph_destroy(graph)
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 1) == [2]
    driver.graph_exec_update(made, captured(world, 3))
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 1) == [3]


def test_an_update_may_change_functions_addresses_and_sizes(world: World) -> None:
    driver = world.driver

    def work(at: int, count: int, value: int) -> int:
        world.begin()
        driver.launch(world.stream, lambda a: a.fill(value), writes=[floats(world.memory + at, count)])
        driver.memset_d32_async(world.memory + at + 4 * count, value, 2 * count, world.stream)
        driver.memcpy_dtod_async(world.source + at, world.memory + at, 12 * count, world.stream)
        return world.end()[1]

    world.fill(world.source, *[7] * 9)
    made = driver.graph_instantiate(work(0, 1, 1))
    driver.graph_exec_update(made, work(12, 2, 0))
    driver.graph_launch(made, world.stream)
    assert world.values(world.source, 9) == [7, 7, 7, 0, 0, 0, 0, 0, 0]


def test_an_exec_without_nodes_can_be_updated_with_a_graph_without_nodes(world: World) -> None:
    driver = world.driver
    made = driver.graph_instantiate(driver.graph_create())
    driver.graph_exec_update(made, driver.graph_create())
    driver.graph_launch(made, world.stream)
    assert answer(lambda: driver.graph_exec_update(made, captured(world, 1))) == REFUSED


def _then(world: World, last: Callable[[], object]) -> int:
    """A graph of a kernel with other values, and another last node."""
    world.begin()
    world.driver.launch(world.stream, lambda a: a.fill(9), writes=[floats(world.memory, 1)])
    last()
    return world.end()[1]


def _other_edges(world: World) -> int:
    return _then(world, lambda: (_unorder(world), world.driver.launch(world.stream, lambda: None)))


def _unorder(world: World) -> None:
    """What comes next on the stream depends on nothing."""
    world.driver.stream_update_capture_dependencies(world.stream, [])


def _other_context(world: World) -> int:
    driver, home = world.driver, world.driver.ctx_get_current()
    driver.ctx_create(0)
    stream = driver.stream_create()
    world.begin(stream=stream)
    for _ in range(2):
        driver.launch(stream, lambda: None)
    graph = world.end(stream)[1]
    driver.ctx_set_current(home)
    return graph


@pytest.mark.parametrize(
    "other",
    [
        lambda w: captured(w, 8, 8, 8),
        lambda w: captured(w, 8),
        lambda w: w.driver.graph_create(),
        lambda w: _then(w, w.add_node),
        _other_edges,
        _other_context,
    ],
    ids=["more-nodes", "fewer-nodes", "no-nodes", "another-last-node", "other-edges", "another-context"],
)
def test_a_refused_update_changes_nothing(world: World, other: Callable[[World], int]) -> None:
    driver = world.driver
    world.fill(world.memory, 0, 0, 0)
    made = driver.graph_instantiate(captured(world, 1, 2))
    graph = other(world)
    driver.graph_launch(made, world.stream)
    assert answer(lambda: driver.graph_exec_update(made, graph)) == REFUSED
    assert world.values(world.memory, 3) == [1, 2, 0]
    world.fill(world.memory, 0, 0, 0)
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 3) == [1, 2, 0]
    driver.graph_exec_update(made, captured(world, 3, 4))
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 3) == [3, 4, 0]


@pytest.mark.parametrize("before", ["device", "host", "to-host"])
@pytest.mark.parametrize("after", ["device", "host", "to-host"])
def test_a_copy_stays_between_the_kinds_of_memory_that_it_was_between(world: World, before: str, after: str) -> None:
    driver = world.driver

    def copying(kind: str) -> int:
        world.begin()
        if kind == "device":
            driver.memcpy_dtod_async(world.memory, world.source, 4, world.stream)
        elif kind == "host":
            driver.memcpy_htod_async(world.memory, world.pinned, 4, world.stream)
        else:
            driver.memcpy_dtoh_async(world.pinned, world.memory, 4, world.stream)
        return world.end()[1]

    made = driver.graph_instantiate(copying(before))
    graph = copying(after)
    assert answer(lambda: driver.graph_exec_update(made, graph)) == (SUCCESS if before == after else REFUSED)


def _forked(world: World, value: int, *, side_first: bool = False, side_joins_first: bool = False) -> int:
    """A fork whose branches differ, joined: the origin's kernel, and a set and a kernel on the side."""
    driver = world.driver

    def fill(stream: int, at: int) -> None:
        driver.launch(stream, lambda a: a.fill(value), writes=[floats(world.memory + 4 * at, 1)])

    def side() -> None:
        world.add_node(world.other)
        fill(world.other, 5)

    world.begin()
    fill(world.stream, 6)
    world.fork(world.other)
    if side_first:
        side()
    fill(world.stream, 4)
    if not side_first:
        side()
    origin, other = (driver.stream_get_capture_info(one).dependencies for one in (world.stream, world.other))
    joined = (*other, *origin) if side_joins_first else (*origin, *other)
    driver.stream_update_capture_dependencies(world.stream, joined)
    fill(world.stream, 7)
    return world.end()[1]


def test_the_branches_of_a_fork_may_be_captured_in_another_order(world: World) -> None:
    driver = world.driver
    made = driver.graph_instantiate(_forked(world, 1))
    driver.graph_exec_update(made, _forked(world, 2, side_first=True))
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory + 16, 4) == [2, 2, 2, 2]


def test_the_branches_of_a_fork_may_not_be_joined_in_another_order(world: World) -> None:
    driver = world.driver
    made = driver.graph_instantiate(_forked(world, 1))
    graph = _forked(world, 2, side_joins_first=True)
    assert answer(lambda: driver.graph_exec_update(made, graph)) == REFUSED
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory + 16, 4) == [1, 1, 1, 1]


DIAMOND = [(), (0,), (0,), (2,), (1, 3)]  # the nodes that each comes after: a branch of one, a branch of two


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        (DIAMOND, [(), (0,), (1,), (0,), (3, 2)], SUCCESS),
        (DIAMOND, [(), (0,), (1,), (0,), (2, 3)], REFUSED),
        ([(), (0,), (0,), (1, 2)], [(), (0,), (0,), (2, 1)], SUCCESS),
        ([(), (), (0, 1), (0,), (2, 3)], [(), (), (0, 1), (1,), (2, 3)], REFUSED),
        ([(), (0,), (0,)], [(), (0,), (1,)], REFUSED),
    ],
    ids=["branches-swapped", "branches-and-edges-swapped", "equal-branches", "crossed", "fewer-exits"],
)
def test_nodes_are_paired_along_the_edges_in_the_order_of_the_edges(
    world: World, before: list[tuple[int, ...]], after: list[tuple[int, ...]], result: str
) -> None:
    driver = world.driver

    def kernels(edges: list[tuple[int, ...]]) -> int:
        nodes: list[int] = []
        world.begin()
        for tails in edges:
            driver.stream_update_capture_dependencies(world.stream, [nodes[tail] for tail in tails])
            driver.launch(world.stream, lambda: None)
            nodes += driver.stream_get_capture_info(world.stream).dependencies
        return world.end()[1]

    made = driver.graph_instantiate(kernels(before))
    graph = kernels(after)
    assert answer(lambda: driver.graph_exec_update(made, graph)) == result


def test_edges_of_another_kind_are_other_edges(world: World) -> None:
    driver = world.driver

    def linked(kind: int) -> int:
        world.begin()
        driver.launch(world.stream, lambda: None)
        (before,) = driver.stream_get_capture_info(world.stream).dependencies
        driver.stream_update_capture_dependencies(world.stream, [before], [EdgeData(0, 0, kind)])
        driver.launch(world.stream, lambda: None)
        return world.end()[1]

    made = driver.graph_instantiate(linked(0))
    driver.graph_exec_update(made, linked(0))
    assert answer(lambda: driver.graph_exec_update(made, linked(1))) == REFUSED


@pytest.mark.parametrize(
    "destroy",
    [
        lambda w: w.driver.graph_exec_destroy(w.exec),
        lambda w: w.driver.graph_destroy(w.graph),
        lambda w: w.driver.stream_destroy(w.other),
        lambda w: w.driver.event_destroy(w.event),
        lambda w: w.driver.module_unload(w.module),
    ],
    ids=["exec", "graph", "stream", "event", "module"],
)
def test_a_second_destruction_is_detected(world: World, destroy: Callable[[World], object]) -> None:
    assert answer(lambda: destroy(world)) == SUCCESS
    assert answer(lambda: destroy(world)) == INVALID_HANDLE


def test_a_destroyed_exec_cannot_be_launched_updated_or_uploaded(world: World) -> None:
    driver = world.driver
    driver.graph_exec_destroy(world.exec)
    assert answer(lambda: driver.graph_launch(world.exec, world.stream)) == INVALID_HANDLE
    assert answer(lambda: driver.graph_exec_update(world.exec, world.graph)) == INVALID_HANDLE
    assert answer(lambda: driver.graph_upload(world.exec, world.stream)) == INVALID_HANDLE


def test_a_handle_of_another_kind_is_refused(world: World) -> None:
    with pytest.raises(DriverError, match="not the handle of a live graph exec"):
        world.driver.graph_launch(world.graph, world.stream)


def test_an_empty_graph_can_be_made_and_launched(world: World) -> None:
    driver = world.driver
    graph = driver.graph_create()
    assert driver.graph_get_nodes(graph) == ()
    driver.graph_launch(driver.graph_instantiate(graph), world.stream)
    assert answer(driver.synchronize) == SUCCESS


def test_an_upload_runs_nothing(world: World) -> None:
    world.fill(world.memory, 0)
    made = world.driver.graph_instantiate(captured(world, 4))
    world.driver.graph_upload(made, world.stream)
    assert world.values(world.memory, 1) == [0]


def test_a_graph_that_frees_what_it_allocates_can_be_launched_again_and_one_that_does_not_cannot(world: World) -> None:
    driver = world.driver
    world.begin()
    ptr = driver.mem_alloc_async(16, world.stream)
    driver.launch(world.stream, lambda a: a.fill(6), writes=[floats(ptr, 4)])
    driver.memcpy_dtod_async(world.memory, ptr, 16, world.stream)
    driver.mem_free_async(ptr, world.stream)
    graph = world.end()[1]
    types = [driver.graph_node_get_type(node) for node in driver.graph_get_nodes(graph)]
    assert types == [NodeType.MEM_ALLOC, NodeType.KERNEL, NodeType.MEMCPY, NodeType.MEM_FREE]
    made = driver.graph_instantiate(graph)
    for _ in range(2):
        driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 4) == [6, 6, 6, 6]


def test_memory_that_a_launch_left_can_be_freed_and_then_the_graph_launches_again(world: World) -> None:
    driver = world.driver
    world.begin()
    ptr = driver.mem_alloc_async(16, world.stream)
    made = driver.graph_instantiate(world.end()[1])
    driver.graph_launch(made, world.stream)
    assert answer(lambda: driver.graph_launch(made, world.stream)) == "CUDA_ERROR_INVALID_VALUE"
    driver.mem_free_async(ptr, world.stream)
    driver.graph_launch(made, world.stream)
    assert answer(driver.synchronize) == SUCCESS


def test_an_external_record_marks_each_launch(world: World) -> None:
    driver = world.driver
    world.begin()
    driver.launch(world.stream, lambda a: a.fill(1), writes=[floats(world.memory, 1)])
    driver.event_record_with_flags(world.event, world.stream, EventFlag.EXTERNAL)
    graph = world.end()[1]
    assert driver.graph_node_get_type(driver.graph_get_nodes(graph)[1]) is NodeType.EVENT_RECORD
    made = driver.graph_instantiate(graph)
    world.fill(world.memory, 0)
    driver.graph_launch(made, world.stream)
    driver.event_synchronize(world.event)
    driver.memcpy_dtod_async(world.source, world.memory, 4, world.other)
    assert world.values(world.source, 1) == [1]
    assert driver.races == []


def test_the_time_between_events_is_told_once_both_are_reached(world: World) -> None:
    driver = world.driver
    driver.event_record(world.event, world.stream)
    driver.event_record(world.joined, world.stream)
    assert answer(lambda: driver.event_elapsed_time(world.event, world.joined)) == "CUDA_ERROR_NOT_READY"
    driver.stream_synchronize(world.stream)
    assert 0 <= driver.event_elapsed_time(world.event, world.joined) < 1000
    assert answer(lambda: driver.event_elapsed_time(world.event, driver.event_create(0))) == INVALID_HANDLE


def test_a_kernel_that_raises_loses_the_context_and_names_itself(world: World) -> None:
    def broken() -> None:
        raise ZeroDivisionError("planted")

    world.driver.launch(world.stream, broken)
    with pytest.raises(DriverError, match="broken raised ZeroDivisionError: planted") as caught:
        world.driver.synchronize()
    assert (caught.value.name, caught.value.sticky) == ("CUDA_ERROR_LAUNCH_FAILED", True)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_kernel_may_not_write_what_it_only_reads(world: World) -> None:
    world.driver.launch(world.stream, lambda a: a.fill(1), reads=[floats(world.memory, 1)])
    assert answer(world.driver.synchronize) == "CUDA_ERROR_LAUNCH_FAILED"


def test_a_kernel_may_not_make_driver_calls(world: World) -> None:
    answers: list[str] = []
    world.driver.launch(world.stream, lambda: answers.append(answer(lambda: world.driver.mem_alloc(64))))
    world.driver.synchronize()
    assert answers == ["CUDA_ERROR_NOT_PERMITTED"]


def test_what_a_destructor_frees_in_the_middle_of_a_call_is_freed_after_it(world: World) -> None:
    world.driver.launch(world.stream, lambda: world.driver.mem_free(world.spare))
    world.driver.synchronize()
    assert world.spare not in world.driver.live()["allocation"]


def test_work_that_has_run_keeps_nothing_alive(world: World) -> None:
    class Weights: ...

    weights = Weights()
    gone = weakref.ref(weights)
    world.driver.launch(world.stream, lambda kept=weights: None)
    del weights
    assert gone() is not None
    world.driver.synchronize()
    assert gone() is None
