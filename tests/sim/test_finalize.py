"""A destructor's calls wait for the driver call in the middle of which it runs, and are then all made (C27)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from breakgraph.errors import DriverError

from .world import World, floats


@pytest.fixture
def world() -> World:
    return World()


class Owner:
    """Makes calls when it is dropped."""

    def __init__(self, world: World, call: Callable[[], None]) -> None:
        self.world, self.call = world, call

    def __del__(self) -> None:
        self.world.driver.finalize(self.call)


def drop_in_a_kernel(world: World, *owners: Owner) -> None:
    """Drop them while a kernel runs, and so in the middle of the call that waits for it."""
    held = list(owners)
    world.driver.launch(world.stream, held.clear, name="drop")


def give_back(world: World, context: int, ptr: int) -> Callable[[], None]:
    """What an arena does: calls in its own context, one after the other."""

    def call() -> None:
        world.driver.ctx_push_current(context)
        try:
            world.driver.mem_unmap(ptr, 2 << 20)
            world.driver.mem_address_free(ptr, 2 << 20)
        finally:
            world.driver.ctx_pop_current()

    return call


def mapped(world: World) -> int:
    ptr, handle = world.driver.mem_address_reserve(2 << 20), world.driver.mem_create(2 << 20, 0)
    world.driver.mem_map(ptr, 2 << 20, handle)
    world.driver.mem_release(handle)
    return ptr


def test_outside_a_call_they_are_made_at_once(world: World) -> None:
    made: list[str] = []
    Owner(world, lambda: made.append("call"))
    assert made == ["call"]


def test_outside_a_call_an_error_is_the_callers(world: World) -> None:
    with pytest.raises(DriverError):
        world.driver.finalize(lambda: world.driver.event_destroy(12345))


def test_in_the_middle_of_a_call_they_are_made_when_it_has_ended(world: World) -> None:
    order: list[str] = []
    owner = [Owner(world, lambda: order.append(f"finalized, {world.driver.stream_query(world.other)}"))]

    def kernel() -> None:
        owner.clear()
        order.append("kernel goes on")

    world.driver.launch(world.stream, kernel)
    world.driver.stream_synchronize(world.stream)
    assert order == ["kernel goes on", "finalized, True"]


def test_memory_dropped_in_the_middle_of_a_call_is_given_back_whole(world: World) -> None:
    free, live = world.driver.mem_get_info(), world.driver.live()
    drop_in_a_kernel(world, *(Owner(world, give_back(world, world.context, mapped(world))) for _ in range(3)))
    assert world.driver.mem_get_info() < free
    world.driver.stream_synchronize(world.stream)
    assert (world.driver.mem_get_info(), world.driver.live()) == (free, live)
    assert world.driver.context_depth == 1


def test_the_collector_may_find_them_in_the_middle_of_a_call(world: World) -> None:
    free = world.driver.mem_get_info()
    cycle: list[object] = [Owner(world, give_back(world, world.context, mapped(world)))]
    cycle.append(cycle)
    del cycle
    world.driver.launch(world.stream, gc.collect)
    world.driver.stream_synchronize(world.stream)
    assert world.driver.mem_get_info() == free


def test_one_destructor_comes_after_the_other_and_after_single_calls_that_waited_before(world: World) -> None:
    event = world.driver.event_create()
    start = len(world.driver.log)

    def calls(count: int) -> Callable[[], None]:
        return lambda: [world.driver.mem_pool_get_attribute(world.pool, count) for _ in range(2)] and None

    def kernel() -> None:
        world.driver.event_destroy(event)
        for count in (1, 2, 3):
            world.driver.finalize(calls(count))

    world.driver.launch(world.stream, kernel)
    world.driver.stream_synchronize(world.stream)
    names = [(entry.name, entry.args[-1]) for entry in world.driver.log[start:]]
    asked = [("mem_pool_get_attribute", count) for count in (1, 1, 2, 2, 3, 3)]
    assert names[-7:] == [("event_destroy", event), *asked]


def test_a_thousand_of_them_are_no_deeper_than_one(world: World) -> None:
    made: list[int] = []

    def kernel() -> None:
        for at in range(2000):
            world.driver.finalize(lambda at=at: made.append(at + 0 * world.driver.device_get_count()))

    world.driver.launch(world.stream, kernel)
    world.driver.stream_synchronize(world.stream)
    assert made == list(range(2000))


def test_what_they_raise_is_a_destructors_error_and_stops_neither_the_call_nor_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[BaseException | None] = []
    made: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda given: ignored.append(given.exc_value))

    def kernel() -> None:
        world.driver.finalize(lambda: world.driver.event_destroy(12345))
        world.driver.finalize(lambda: made.append(str(1 / 0)))
        world.driver.finalize(lambda: made.append("third"))

    world.driver.launch(world.stream, kernel)
    world.driver.stream_synchronize(world.stream)
    assert all(isinstance(*one) for one in zip(ignored, (DriverError, ZeroDivisionError), strict=True))
    assert made == ["third"]


def test_they_are_made_when_the_call_that_they_waited_for_fails(world: World) -> None:
    made: list[str] = []

    def kernel() -> None:
        world.driver.finalize(lambda: made.append("call"))
        raise RuntimeError("the kernel traps")

    world.driver.launch(world.stream, kernel)
    with pytest.raises(DriverError):
        world.driver.stream_synchronize(world.stream)
    assert made == ["call"]


def test_they_are_made_by_the_thread_that_drops_them_while_another_one_calls(world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def kernel() -> None:
        inside.set()
        assert go_on.wait(10)

    def wait_for_kernel() -> None:
        world.driver.ctx_set_current(world.context)
        world.driver.stream_synchronize(world.stream)

    world.driver.launch(world.stream, kernel)
    caller = threading.Thread(target=wait_for_kernel)
    caller.start()
    assert inside.wait(10)
    dropper = threading.Thread(target=lambda: world.driver.finalize(lambda: made.append(threading.get_ident())))
    dropper.start()
    go_on.set()
    for thread in (caller, dropper):
        thread.join(10)
    assert made == [dropper.ident]


def test_what_is_freed_so_leaves_the_work_that_is_enqueued_whole(world: World) -> None:
    drop_in_a_kernel(world, Owner(world, lambda: world.driver.mem_free(world.spare)))
    world.driver.launch(world.stream, lambda a: a.fill(4), writes=[floats(world.memory, 2)])
    assert world.values(world.memory, 2) == [4, 4]
    assert world.spare not in world.driver.live()["allocation"]
