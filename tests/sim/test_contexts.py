"""Contexts: which calls need one, the stack of each thread, and what goes with a context that is destroyed (C31)."""

from __future__ import annotations

import pytest

from breakgraph.driver.api import CaptureMode

from .world import World, answer, in_thread


@pytest.fixture
def world() -> World:
    return World()


def test_calls_that_need_a_context_are_refused_without_one(world: World) -> None:
    def ask() -> None:
        assert world.driver.ctx_get_current() == 0
        for question in (
            lambda: world.driver.mem_alloc(64),
            lambda: world.driver.stream_create(),
            lambda: world.driver.graph_launch(world.exec, world.stream),
            world.driver.ctx_synchronize,
            world.driver.ctx_pop_current,
        ):
            assert answer(question) == "CUDA_ERROR_INVALID_CONTEXT"
        assert world.driver.ensure_context() == world.context

    in_thread(ask)


def test_contexts_are_stacked_per_thread_and_their_ids_never_come_again(world: World) -> None:
    driver = world.driver
    first, second = world.context, driver.ctx_create(0)
    assert (driver.ctx_get_current(), driver.context_depth) == (second, 2)
    assert world.elsewhere(driver.ctx_get_current) == first
    ids = {driver.ctx_get_id(first), driver.ctx_get_id(second), driver.ctx_get_id(0), World().driver.ctx_get_id(0)}
    assert len(ids) == 3
    assert driver.ctx_pop_current() == second
    driver.ctx_destroy(second)
    assert answer(lambda: driver.ctx_push_current(second)) == "CUDA_ERROR_INVALID_CONTEXT"
    assert driver.context_depth == 1


def test_a_destroyed_context_takes_its_objects_with_it(world: World) -> None:
    driver = world.driver
    before = {kind: len(handles) for kind, handles in driver.live().items()}
    context = driver.ctx_create(0)
    driver.mem_alloc(64)
    driver.event_create()
    stream = driver.stream_create()
    driver.stream_begin_capture(stream, CaptureMode.RELAXED)
    graph = driver.stream_end_capture(stream)
    made = driver.graph_instantiate(graph)
    driver.graph_destroy(graph)
    driver.ctx_destroy(context)
    assert {kind: len(handles) for kind, handles in driver.live().items()} == before
    assert answer(lambda: driver.graph_exec_destroy(made)) == "CUDA_ERROR_INVALID_HANDLE"


def test_work_on_a_stream_of_another_context_is_refused(world: World) -> None:
    world.driver.ctx_create(0)
    assert answer(lambda: world.driver.launch(world.stream, lambda: None)) == "CUDA_ERROR_INVALID_HANDLE"
    event = world.driver.event_create()
    assert answer(lambda: world.driver.event_record(event, world.stream)) == "CUDA_ERROR_INVALID_HANDLE"
