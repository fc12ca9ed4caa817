"""Any driver call can be made to fail, by name and occurrence, and then has no effect (S5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakgraph.driver.api import CaptureMode, Driver
from breakgraph.driver.sim import SimDriver
from breakgraph.driver.sim.call import call_names
from breakgraph.errors import CaptureImplicit, DriverError

from .world import SUCCESS, World, answer


@pytest.fixture
def world() -> World:
    return World()


def test_the_nth_occurrence_fails_counted_from_entering_the_block(world: World) -> None:
    world.driver.stream_create()
    with world.driver.fail("stream_create", at=2, code=906) as plan:
        world.driver.stream_create()
        assert not plan.struck
        with pytest.raises(CaptureImplicit) as caught:
            world.driver.stream_create()
        assert plan.struck
        world.driver.stream_create()
    assert (caught.value.call, caught.value.code, caught.value.name) == (
        "stream_create",
        906,
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
    )
    world.driver.stream_create()


def test_a_code_that_nobody_has_heard_of_is_a_plain_driver_error(world: World) -> None:
    with world.driver.fail("ctx_synchronize", code=12345), pytest.raises(DriverError) as caught:
        world.driver.ctx_synchronize()
    assert (type(caught.value), caught.value.code) == (DriverError, 12345)


def test_a_name_that_is_no_call_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="not a driver call"):
        world.driver.fail("stream_craete")


def test_plans_are_independent_and_end_with_their_blocks(world: World) -> None:
    with world.driver.fail("event_create", at=1, code=1), world.driver.fail("event_create", at=2, code=2):
        codes = []
        for _ in range(3):
            try:
                world.driver.event_create()
            except DriverError as error:
                codes.append(error.code)
    assert codes == [1, 2]
    assert answer(world.driver.event_create) == SUCCESS


def test_a_sticky_code_given_to_a_call_does_not_lose_the_context(world: World) -> None:
    with world.driver.fail("ctx_synchronize", code=700), pytest.raises(DriverError) as caught:
        world.driver.ctx_synchronize()
    assert caught.value.sticky
    assert answer(world.driver.ctx_synchronize) == SUCCESS


def test_every_call_of_the_protocol_can_be_made_to_fail(world: World) -> None:
    conveniences = {"synchronize", "create_stream", "ensure_context", "resolve_stream", "finalize"}
    conveniences |= {"graph_launch_yielding", "sequence", "round", "ending"}
    calls = {
        name
        for name, member in vars(Driver).items()
        if callable(member) and not name.startswith("_") and name not in conveniences
    }
    assert calls <= call_names(SimDriver)
    assert call_names(SimDriver) - calls == {"launch"}


EFFECTS: dict[str, Callable[[World], object]] = {
    "mem_alloc": lambda w: w.driver.mem_alloc(64),
    "mem_free": lambda w: w.driver.mem_free(w.spare),
    "mem_alloc_async": lambda w: w.driver.mem_alloc_async(64, w.other),
    "mem_host_alloc": lambda w: w.driver.mem_host_alloc(64),
    "mem_free_host": lambda w: w.driver.mem_free_host(w.pinned),
    "mem_address_reserve": lambda w: w.driver.mem_address_reserve(2 << 20),
    "mem_address_free": lambda w: w.driver.mem_address_free(w.reserved, 2 << 20),
    "mem_create": lambda w: w.driver.mem_create(2 << 20, 0),
    "stream_create": lambda w: w.driver.stream_create(),
    "stream_destroy": lambda w: w.driver.stream_destroy(w.other),
    "event_create": lambda w: w.driver.event_create(),
    "event_destroy": lambda w: w.driver.event_destroy(w.event),
    "stream_begin_capture": lambda w: w.driver.stream_begin_capture(w.other, CaptureMode.RELAXED),
    "stream_end_capture": lambda w: w.driver.stream_end_capture(w.stream),
    "graph_instantiate": lambda w: w.driver.graph_instantiate(w.graph),
    "graph_destroy": lambda w: w.driver.graph_destroy(w.graph),
    "graph_exec_destroy": lambda w: w.driver.graph_exec_destroy(w.exec),
    "module_load_data": lambda w: w.driver.module_load_data(b""),
    "module_unload": lambda w: w.driver.module_unload(w.module),
    "ctx_create": lambda w: w.driver.ctx_create(0),
    "thread_exchange_stream_capture_mode": lambda w: w.driver.thread_exchange_stream_capture_mode(CaptureMode.GLOBAL),
    "ctx_push_current": lambda w: w.driver.ctx_push_current(w.context),
    "ctx_pop_current": lambda w: w.driver.ctx_pop_current(),
    "memset_d8_async": lambda w: w.add_node(),
    "launch": lambda w: w.driver.launch(w.stream, lambda: None),
}


def state(world: World) -> object:
    driver = world.driver
    nodes = driver.stream_get_capture_info(world.stream).dependencies
    return driver.live(), driver.mem_get_info(), driver.thread_capture_mode, driver.context_depth, nodes


@pytest.mark.parametrize("call", EFFECTS)
def test_a_call_made_to_fail_has_no_effect_and_works_afterwards(world: World, call: str) -> None:
    world.begin(CaptureMode.RELAXED)
    world.driver.thread_exchange_stream_capture_mode(CaptureMode.THREAD_LOCAL)
    before = state(world)
    with world.driver.fail(call, code=999), pytest.raises(DriverError, match=call):
        EFFECTS[call](world)
    assert state(world) == before
    assert world.status() == "ACTIVE"
    EFFECTS[call](world)
    if call == "ctx_pop_current":
        world.driver.ctx_set_current(world.context)
    else:
        assert state(world) != before
