"""Graphs bake addresses and order; execs are copies that can be updated, launched, and destroyed once."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest

from breakgraph.driver.api import EventFlag, NodeType
from breakgraph.errors import DriverError

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


def test_an_update_takes_the_new_nodes_for_later_launches_only(world: World) -> None:
    driver = world.driver
    made = driver.graph_instantiate(captured(world, 1, 2))
    driver.graph_launch(made, world.stream)
    driver.graph_exec_update(made, captured(world, 3, 4))
    assert world.values(world.memory, 2) == [1, 2]
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 2) == [3, 4]


def _other_types(world: World) -> int:
    world.begin()
    world.add_node()
    world.add_node()
    return world.end()[1]


def _other_edges(world: World) -> int:
    world.begin()
    world.driver.launch(world.stream, lambda: None)
    world.driver.stream_update_capture_dependencies(world.stream, [])
    world.driver.launch(world.stream, lambda: None)
    return world.end()[1]


@pytest.mark.parametrize(
    "other",
    [lambda w: captured(w, 1, 2, 3), _other_types, _other_edges],
    ids=["more-nodes", "other-types", "other-edges"],
)
def test_an_update_with_another_topology_is_refused_and_changes_nothing(
    world: World, other: Callable[[World], int]
) -> None:
    made = world.driver.graph_instantiate(captured(world, 1, 2))
    graph = other(world)
    assert answer(lambda: world.driver.graph_exec_update(made, graph)) == "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"
    world.driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 2) == [1, 2]


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
