"""Every call is in the log, in order, with what it was given and what it answered; marks stand between them (S6)."""

from __future__ import annotations

import threading

import pytest

from breakgraph.errors import DriverError

from .world import World, floats


@pytest.fixture
def world() -> World:
    return World()


def test_calls_and_marks_are_in_the_order_in_which_they_were_made(world: World) -> None:
    start = len(world.driver.log)
    world.driver.mark("before")
    stream = world.driver.stream_create(flags=1)
    world.driver.mark("between")
    world.driver.stream_destroy(stream)
    entries = world.driver.log[start:]
    assert [(entry.name, entry.args, entry.result) for entry in entries] == [
        ("mark", ("before",), None),
        ("stream_create", (1,), stream),
        ("mark", ("between",), None),
        ("stream_destroy", (stream,), None),
    ]


def test_calls_are_counted_and_marks_and_questions_to_the_simulator_are_not(world: World) -> None:
    before = world.driver.calls.copy()
    world.driver.mark("mark")
    world.driver.live()
    assert world.driver.thread_capture_mode == 0
    assert world.driver.context_depth == 1
    assert world.driver.calls - before == {}
    world.driver.event_create()
    world.driver.event_create()
    assert world.driver.calls - before == {"event_create": 2}


def test_a_refused_call_is_in_the_log_with_its_code(world: World) -> None:
    with pytest.raises(DriverError):
        world.driver.stream_destroy(12345)
    assert (world.driver.log[-1].name, world.driver.log[-1].error) == ("stream_destroy", 400)
    with world.driver.fail("event_create", code=901), pytest.raises(DriverError):
        world.driver.event_create()
    assert (world.driver.log[-1].name, world.driver.log[-1].error) == ("event_create", 901)


def test_an_entry_knows_its_thread(world: World) -> None:
    world.driver.device_get_count()
    assert world.driver.log[-1].thread == threading.get_ident()
    other = world.elsewhere(lambda: (world.driver.device_get_count(), threading.get_ident())[1])
    assert world.driver.log[-1].thread == other != threading.get_ident()


def test_a_kernel_is_logged_by_name_and_the_log_keeps_no_function_alive(world: World) -> None:
    world.driver.launch(world.stream, lambda a: None, writes=[floats(world.memory, 1)], name="mine")
    assert (world.driver.log[-1].name, world.driver.log[-1].args) == ("launch", (world.stream, "mine"))


def test_several_threads_may_call_at_once(world: World) -> None:
    def work() -> None:
        world.driver.ctx_set_current(world.context)
        for _ in range(50):
            stream = world.driver.stream_create()
            world.begin(stream=stream)
            world.add_node(stream)
            made = world.driver.graph_instantiate(world.end(stream)[1])
            world.driver.graph_exec_destroy(made)
            world.driver.stream_destroy(stream)

    before = world.driver.calls.copy()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = world.driver.calls - before
    assert made["stream_begin_capture"] == made["stream_end_capture"] == made["graph_exec_destroy"] == 200
