"""Capture sequences that no record holds and that the rules decide; and that what nothing decides is said so (S1).

The rules are those of `breakgraph.driver.sim.capture`: work, waits, potentially unsafe calls, the legacy stream.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakgraph.driver.api import (
    STREAM_LEGACY,
    STREAM_PER_THREAD,
    CaptureMode,
    CaptureStatus,
    DependencyUpdate,
    Edge,
    EdgeData,
    EventFlag,
    NodeType,
    StreamFlag,
)
from breakgraph.errors import Unrecorded

from .world import MODES, SUCCESS, World, answer, floats

UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
INVALIDATED = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
IMPLICIT = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"
ILLEGAL_STATE = "CUDA_ERROR_ILLEGAL_STATE"


@pytest.fixture
def world() -> World:
    return World()


# potentially unsafe calls -----------------------------------------------------------------------------------
def test_an_invalidated_capture_still_forbids_until_it_is_ended(world: World) -> None:
    world.begin()
    for _ in range(2):
        assert answer(lambda: world.driver.mem_alloc(64)) == UNSUPPORTED
    assert world.end() == (INVALIDATED, 0)
    assert answer(lambda: world.driver.mem_alloc(64)) == SUCCESS


@pytest.mark.parametrize("own_mode", list(CaptureMode), ids=lambda mode: mode.name.lower())
def test_a_global_capture_forbids_other_threads_unless_they_exchange_their_mode(
    world: World, own_mode: CaptureMode
) -> None:
    def allocate() -> str:
        world.driver.thread_exchange_stream_capture_mode(own_mode)
        return answer(lambda: world.driver.mem_alloc(64))

    world.begin(CaptureMode.GLOBAL)
    forbidden = own_mode is CaptureMode.GLOBAL
    assert world.elsewhere(allocate) == (UNSUPPORTED if forbidden else SUCCESS)
    assert world.status() == ("INVALIDATED" if forbidden else "ACTIVE")
    world.end()


def test_a_thread_local_exchange_does_not_lift_a_global_capture_of_the_same_thread(world: World) -> None:
    world.begin(CaptureMode.GLOBAL)
    before = world.driver.thread_exchange_stream_capture_mode(CaptureMode.THREAD_LOCAL)
    assert before is CaptureMode.GLOBAL
    assert answer(lambda: world.driver.mem_alloc(64)) == UNSUPPORTED
    world.end()


def test_captures_of_different_threads_do_not_see_each_other(world: World) -> None:
    def capture_and_allocate() -> tuple[str, str]:
        world.begin(stream=world.other)
        world.add_node(world.other)
        return answer(lambda: world.driver.mem_alloc(64)), world.end(world.other)[0]

    world.begin()
    world.add_node()
    assert world.elsewhere(capture_and_allocate) == (UNSUPPORTED, INVALIDATED)
    assert world.status() == "ACTIVE"
    assert world.end()[0] == SUCCESS


def test_the_exchange_returns_the_mode_before_and_belongs_to_the_thread(world: World) -> None:
    exchange = world.driver.thread_exchange_stream_capture_mode
    assert exchange(CaptureMode.RELAXED) is CaptureMode.GLOBAL
    assert world.elsewhere(lambda: exchange(CaptureMode.THREAD_LOCAL)) is CaptureMode.GLOBAL
    assert exchange(CaptureMode.GLOBAL) is CaptureMode.RELAXED


# waits ------------------------------------------------------------------------------------------------------
def test_a_context_synchronize_invalidates_every_capture_of_the_context_and_no_other(world: World) -> None:
    driver = world.driver
    away = driver.ctx_create(0)
    far = driver.stream_create()
    driver.stream_begin_capture(far, CaptureMode.RELAXED)
    driver.ctx_pop_current()
    world.begin(CaptureMode.RELAXED)
    world.begin(CaptureMode.RELAXED, stream=world.other)
    assert answer(driver.ctx_synchronize) == UNSUPPORTED
    assert (world.status(), world.status(world.other)) == ("INVALIDATED", "INVALIDATED")
    driver.ctx_push_current(away)
    assert driver.stream_is_capturing(far) is CaptureStatus.ACTIVE
    driver.stream_end_capture(far)


@pytest.mark.parametrize("mode", MODES)
def test_the_time_of_a_captured_event_is_refused_and_does_no_harm(world: World, mode: str) -> None:
    world.begin(MODES[mode])
    world.driver.event_record(world.event, world.stream)
    assert answer(lambda: world.driver.event_elapsed_time(world.event, world.before)) == "CUDA_ERROR_CAPTURED_EVENT"
    assert world.end()[0] == SUCCESS


def test_an_event_recorded_again_outside_is_an_ordinary_one_again(world: World) -> None:
    world.begin()
    world.driver.event_record(world.event, world.stream)
    world.end()
    assert answer(lambda: world.driver.event_synchronize(world.event)) == INVALID_VALUE
    world.driver.event_record(world.event, world.stream)
    assert answer(lambda: world.driver.event_synchronize(world.event)) == SUCCESS


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w.add_node(),
        lambda w: w.driver.event_record(w.event, w.stream),
        lambda w: w.driver.stream_wait_event(w.stream, w.event),
        lambda w: w.driver.launch(w.stream, lambda: None),
        lambda w: w.driver.stream_synchronize(w.stream),
        lambda w: w.driver.graph_launch(w.exec, w.stream),
    ],
    ids=["memset", "record", "wait", "kernel", "synchronize", "launch"],
)
def test_an_invalidated_stream_answers_901(world: World, use: Callable[[World], object]) -> None:
    world.begin()
    answer(lambda: world.driver.stream_query(world.stream))
    assert answer(lambda: use(world)) == INVALIDATED
    assert world.status() == "INVALIDATED"
    assert world.end() == (INVALIDATED, 0)
    world.begin()
    assert world.end()[0] == SUCCESS


# forks and joins --------------------------------------------------------------------------------------------
def test_a_fork_of_a_fork_is_joined_through_it(world: World) -> None:
    driver = world.driver
    third = driver.stream_create()
    world.begin()
    world.fork(world.other)
    driver.event_record(world.event, world.other)
    driver.stream_wait_event(third, world.event)
    world.add_node(third)
    driver.event_record(world.joined, third)
    driver.stream_wait_event(world.other, world.joined)
    world.add_node(world.other)
    world.join(world.other)
    result, graph = world.end()
    assert result == SUCCESS
    first, second = driver.graph_get_nodes(graph)
    assert driver.graph_get_edges(graph) == (Edge(first, second),)
    assert driver.stream_is_capturing(third) is CaptureStatus.NONE


def test_setting_the_origin_to_the_leaf_nodes_joins_every_fork(world: World) -> None:
    driver = world.driver
    world.begin()
    world.add_node()
    world.fork(world.other)
    world.add_node(world.other)
    world.add_node()
    info = driver.stream_get_capture_info(world.stream)
    nodes = driver.graph_get_nodes(info.graph)
    tails = {edge.tail for edge in driver.graph_get_edges(info.graph)}
    driver.stream_update_capture_dependencies(world.stream, [node for node in nodes if node not in tails])
    result, graph = world.end()
    assert result == SUCCESS
    assert len(driver.graph_get_nodes(graph)) == 3
    assert world.status(world.other) == "NONE"


def test_nodes_taken_out_of_a_dependency_set_need_not_be_joined(world: World) -> None:
    world.begin()
    world.add_node()
    world.driver.stream_update_capture_dependencies(world.stream, [])
    world.add_node()
    result, graph = world.end()
    assert result == SUCCESS
    assert world.driver.graph_get_edges(graph) == ()


def test_a_fork_whose_dependencies_were_cleared_need_not_be_joined(world: World) -> None:
    world.begin()
    world.fork(world.other)
    world.add_node(world.other)
    world.driver.stream_update_capture_dependencies(world.stream, [])
    world.add_node(world.other)
    world.driver.stream_update_capture_dependencies(world.other, [])
    assert world.end()[0] == SUCCESS


def test_a_node_taken_out_on_one_stream_need_not_be_joined_from_another(world: World) -> None:
    world.begin()
    world.add_node()
    world.fork(world.other)  # the side stream has the origin's node as its last one
    world.driver.stream_update_capture_dependencies(world.stream, [])
    assert world.end()[0] == SUCCESS


def test_dependencies_can_be_added_with_their_edge_data_kept(world: World) -> None:
    driver = world.driver
    world.begin()
    world.add_node()
    (first,) = driver.stream_get_capture_info(world.stream).dependencies
    driver.stream_update_capture_dependencies(world.stream, [])
    world.add_node()
    data = EdgeData(1, 0, 1)
    driver.stream_update_capture_dependencies(world.stream, [first], [data], DependencyUpdate.ADD)
    info = driver.stream_get_capture_info(world.stream)
    assert info.dependencies[-1] == first
    assert info.edges == (EdgeData(), data)
    world.add_node()
    _, graph = world.end()
    nodes = driver.graph_get_nodes(graph)
    assert set(driver.graph_get_edges(graph)) == {Edge(nodes[0], nodes[2], data), Edge(nodes[1], nodes[2])}


def test_a_dependency_of_another_graph_is_refused_and_so_is_a_stream_that_does_not_capture(world: World) -> None:
    driver = world.driver
    (foreign,) = driver.graph_get_nodes(world.graph)
    update = driver.stream_update_capture_dependencies
    assert answer(lambda: update(world.stream, [])) == ILLEGAL_STATE
    world.begin()
    assert answer(lambda: update(world.stream, [foreign])) == INVALID_VALUE
    assert world.end()[0] == SUCCESS


def test_an_end_in_the_wrong_thread_lets_every_stream_go(world: World) -> None:
    world.begin()
    world.fork(world.other)
    world.add_node(world.other)
    assert world.elsewhere(world.end)[0] == "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"
    assert (world.status(), world.status(world.other)) == ("NONE", "NONE")
    assert not world.driver.live()["capture"]


def test_a_failed_end_leaves_neither_graph_nor_nodes(world: World) -> None:
    graphs = world.driver.live()["graph"]
    world.begin()
    world.fork(world.other)
    world.add_node(world.other)
    (node,) = world.driver.stream_get_capture_info(world.other).dependencies
    assert world.end() == ("CUDA_ERROR_STREAM_CAPTURE_UNJOINED", 0)
    assert world.driver.live()["graph"] == graphs
    assert answer(lambda: world.driver.graph_node_get_type(node)) == "CUDA_ERROR_INVALID_HANDLE"


def test_destroying_the_origin_ends_the_capture_and_its_events(world: World) -> None:
    graphs = world.driver.live()["graph"]
    world.begin()
    world.driver.event_record(world.event, world.stream)
    world.driver.stream_destroy(world.stream)
    assert not world.driver.live()["capture"]
    assert world.driver.live()["graph"] == graphs
    assert answer(lambda: world.driver.event_query(world.event)) == INVALID_VALUE
    assert answer(lambda: world.driver.mem_alloc(64)) == SUCCESS


# the legacy stream ------------------------------------------------------------------------------------------
def test_the_legacy_stream_touches_blocking_captures_only(world: World) -> None:
    driver = world.driver
    blocking = driver.stream_create(StreamFlag.DEFAULT)
    world.begin(CaptureMode.RELAXED)
    world.begin(CaptureMode.RELAXED, stream=blocking)
    assert answer(lambda: driver.launch(0, lambda: None)) == IMPLICIT
    assert (world.status(), world.status(blocking)) == ("ACTIVE", "INVALIDATED")
    assert world.end(blocking)[0] == INVALIDATED
    assert answer(lambda: driver.launch(0, lambda: None)) == SUCCESS
    assert world.end()[0] == SUCCESS


def test_the_per_thread_stream_is_a_blocking_one_and_each_thread_has_its_own(world: World) -> None:
    driver = world.driver
    world.begin(stream=STREAM_PER_THREAD)
    assert world.elsewhere(lambda: driver.stream_is_capturing(STREAM_PER_THREAD)) is CaptureStatus.NONE
    assert answer(lambda: driver.memset_d8(world.memory, 0, 4)) == IMPLICIT
    assert world.end(STREAM_PER_THREAD)[0] == INVALIDATED


def test_a_fork_may_be_a_blocking_stream_and_then_the_legacy_stream_touches_it(world: World) -> None:
    blocking = world.driver.stream_create(StreamFlag.DEFAULT)
    world.begin()
    world.fork(blocking)
    assert answer(lambda: world.driver.stream_is_capturing(STREAM_LEGACY)) == IMPLICIT
    assert world.status() == "ACTIVE"
    assert answer(lambda: world.driver.memset_d8(world.memory, 0, 4)) == IMPLICIT
    assert world.status() == "INVALIDATED"
    world.end()


def test_an_external_record_or_wait_outside_a_capture_is_refused(world: World) -> None:
    driver, external = world.driver, EventFlag.EXTERNAL
    assert answer(lambda: driver.event_record_with_flags(world.event, world.stream, external)) == INVALID_VALUE
    assert answer(lambda: driver.stream_wait_event(world.stream, world.before, external)) == INVALID_VALUE


def test_capture_info_tells_the_graph_and_what_the_next_node_depends_on(world: World) -> None:
    driver = world.driver
    assert driver.stream_get_capture_info(world.stream).status is CaptureStatus.NONE
    world.begin()
    world.add_node()
    driver.launch(world.stream, lambda a: None, writes=[floats(world.memory, 4)])
    info = driver.stream_get_capture_info(world.stream)
    _, graph = world.end()
    nodes = driver.graph_get_nodes(graph)
    assert (info.status, info.graph, info.dependencies) == (CaptureStatus.ACTIVE, graph, nodes[1:])
    assert [driver.graph_node_get_type(node) for node in nodes] == [NodeType.MEMSET, NodeType.KERNEL]


def test_a_driver_that_cannot_capture_refuses_to_begin() -> None:
    driver = World().driver
    driver.can_capture = False
    assert answer(lambda: driver.stream_begin_capture(2, CaptureMode.RELAXED)) == "CUDA_ERROR_NOT_SUPPORTED"


# what nothing decides ---------------------------------------------------------------------------------------
def _in_two_captures(w: World) -> None:
    w.begin(stream=w.other)
    w.driver.mem_alloc(64)


def _destroy_a_fork(w: World) -> None:
    w.fork(w.other)
    w.driver.stream_destroy(w.other)


def _query_an_event_of_an_ended_capture(w: World) -> None:
    w.driver.stream_begin_capture(w.other, CaptureMode.RELAXED)
    w.driver.event_record(w.event, w.other)
    w.driver.stream_end_capture(w.other)
    w.driver.event_query(w.event)


def _external_wait_on_a_captured_event(w: World) -> None:
    w.driver.event_record(w.event, w.stream)
    w.driver.stream_wait_event(w.stream, w.event, EventFlag.EXTERNAL)


@pytest.mark.parametrize(
    "ask",
    [
        _in_two_captures,
        _destroy_a_fork,
        _query_an_event_of_an_ended_capture,
        _external_wait_on_a_captured_event,
        lambda w: w.driver.mem_free_async(w.spare, w.other),
        lambda w: w.driver.mem_free_async(w.spare, w.stream),
        lambda w: w.driver.graph_destroy(w.driver.stream_get_capture_info(w.stream).graph),
        lambda w: w.driver.device_primary_ctx_release(0),
    ],
    ids=[
        "unsafe-in-two-captures",
        "destroy-a-fork",
        "query-event-of-ended-capture",
        "external-wait-on-captured",
        "free-async-on-another-stream",
        "free-async-of-plain-memory",
        "destroy-the-captures-graph",
        "release-the-context",
    ],
)
def test_what_nothing_decides_is_unrecorded_and_changes_nothing(world: World, ask: Callable[[World], object]) -> None:
    world.begin()
    world.add_node()
    with pytest.raises(Unrecorded):
        ask(world)
    assert world.status() == "ACTIVE"
    assert world.end()[0] == SUCCESS
