"""Memory is bytes at addresses: what may be touched is tracked, anything else faults; fresh memory is poison (S2)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from breakgraph.driver.api import Driver
from breakgraph.errors import DriverError, OutOfMemory

from .world import SUCCESS, World, answer, floats

CHUNK = 2 << 20
ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"
INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"


@pytest.fixture
def world() -> World:
    return World(memory=64 << 20)


def touch(world: World, ptr: int, count: int = 4) -> str:
    """The answer to waiting for a kernel that reads some floats."""
    world.driver.launch(world.stream, lambda values: values.sum(), reads=[floats(ptr, count)], name="touch")
    return answer(lambda: world.driver.stream_synchronize(world.stream))


# plain memory ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_fresh_memory_reads_as_nan(world: World, dtype: str) -> None:
    out = np.zeros(4, dtype)
    world.driver.memcpy_dtoh(out.ctypes.data, world.driver.mem_alloc(64), out.nbytes)
    assert np.isnan(out).all()


def test_a_freed_address_is_used_again_and_holds_nothing_of_the_old(world: World) -> None:
    world.fill(world.spare, 1, 2)
    world.driver.mem_free(world.spare)
    again = world.driver.mem_alloc(4096)
    assert again == world.spare
    assert all(math.isnan(value) for value in world.values(again, 2))


def test_touching_freed_memory_faults_and_every_later_call_answers_the_same(world: World) -> None:
    world.driver.mem_free(world.spare)
    assert touch(world, world.spare) == ILLEGAL_ADDRESS
    live = world.driver.live()
    for ask in (world.driver.mem_get_info, world.driver.ctx_synchronize, world.driver.stream_create):
        assert answer(ask) == ILLEGAL_ADDRESS
    assert world.driver.live() == live
    with pytest.raises(DriverError, match=r"touch.*not allocated") as caught:
        world.driver.ctx_synchronize()
    assert caught.value.sticky


def test_a_new_context_works_after_another_one_is_lost(world: World) -> None:
    assert touch(world, world.memory + (1 << 40)) == ILLEGAL_ADDRESS
    world.driver.ctx_create(0)
    ptr = world.driver.mem_alloc(64)
    world.fill(ptr, 5)
    assert world.values(ptr, 1) == [5]


def test_reaching_past_an_allocation_faults(world: World) -> None:
    assert touch(world, world.memory + 4096 - 8, 4) == ILLEGAL_ADDRESS


def test_a_host_address_given_as_a_device_address_faults(world: World) -> None:
    assert touch(world, world.host.ctypes.data) == ILLEGAL_ADDRESS


def test_no_device_address_can_be_a_host_address(world: World) -> None:
    reserved = world.driver.mem_address_reserve(CHUNK)
    assert all(ptr >> 57 for ptr in (world.memory, reserved))


def test_memory_runs_out_with_code_2_and_nothing_is_taken(world: World) -> None:
    free, total = world.driver.mem_get_info()
    for ask in (
        lambda: world.driver.mem_alloc(total),
        lambda: world.driver.mem_create(64 << 20, 0),
        lambda: world.driver.mem_alloc_async(total, world.stream),
    ):
        with pytest.raises(OutOfMemory):
            ask()
    assert world.driver.mem_get_info() == (free, total)
    assert total == 64 << 20


def test_memory_is_counted_in_allocations_and_in_physical_memory(world: World) -> None:
    free, _ = world.driver.mem_get_info()
    ptr, handle = world.driver.mem_alloc(1 << 20), world.driver.mem_create(CHUNK, 0)
    assert world.driver.mem_get_info()[0] == free - (1 << 20) - CHUNK
    world.driver.mem_free(ptr)
    world.driver.mem_release(handle)
    assert world.driver.mem_get_info()[0] == free


@pytest.mark.parametrize(
    "ask",
    [
        lambda w: w.driver.mem_alloc(0),
        lambda w: w.driver.mem_free(w.memory + 8),
        lambda w: (w.driver.mem_free(w.spare), w.driver.mem_free(w.spare)),
        lambda w: (w.driver.mem_free_async(w.spare, w.stream), w.driver.mem_free_async(w.spare, w.stream)),
        lambda w: (w.driver.mem_free_host(w.pinned), w.driver.mem_free_host(w.pinned)),
        lambda w: w.driver.memset_d32_async(w.memory + 2, 0, 1, w.stream),
        lambda w: w.driver.mem_pool_get_attribute(w.pool, 99),
    ],
    ids=["no-bytes", "inside", "twice", "twice-in-order", "twice-pinned", "unaligned-set", "no-such-attribute"],
)
def test_a_wrong_use_of_memory_is_refused(world: World, ask: Callable[[World], object]) -> None:
    assert answer(lambda: ask(world)) == INVALID_VALUE
    assert answer(world.driver.ctx_synchronize) == SUCCESS


def test_a_plain_free_waits_for_the_device(world: World) -> None:
    ran: list[str] = []
    world.driver.launch(world.stream, lambda: ran.append("kernel"))
    assert ran == []
    world.driver.mem_free(world.spare)
    assert ran == ["kernel"]


# stream-ordered memory -------------------------------------------------------------------------------------
def test_stream_ordered_memory_lives_between_its_allocation_and_its_free(world: World) -> None:
    driver = world.driver
    used = driver.mem_pool_get_attribute(world.pool, 7)
    ptr = driver.mem_alloc_async(16, world.stream)
    driver.launch(world.stream, lambda a: a.fill(3), writes=[floats(ptr, 4)])
    driver.memcpy_dtod_async(world.memory, ptr, 16, world.stream)
    driver.mem_free_async(ptr, world.stream)
    assert driver.mem_pool_get_attribute(world.pool, 7) > used
    assert world.values(world.memory, 4) == [3, 3, 3, 3]
    assert driver.mem_pool_get_attribute(world.pool, 7) == used
    assert touch(world, ptr) == ILLEGAL_ADDRESS


def test_memory_freed_in_stream_order_may_serve_another_stream_without_a_race(world: World) -> None:
    driver = world.driver
    ptr = driver.mem_alloc_async(16, world.stream)
    driver.mem_free_async(ptr, world.stream)
    assert not driver.stream_query(world.stream)  # runs it without the host having waited
    driver.stream_query(world.stream)
    again = driver.mem_alloc_async(16, world.other)
    assert again == ptr
    assert driver.races == []


# virtual memory --------------------------------------------------------------------------------------------
def map_at(world: World, ptr: int, handle: int) -> None:
    world.driver.mem_map(ptr, CHUNK, handle)
    world.driver.mem_set_access(ptr, CHUNK, 0)


def test_mapped_memory_cannot_be_touched_before_access_is_set(world: World) -> None:
    base = world.driver.mem_address_reserve(CHUNK)
    world.driver.mem_map(base, CHUNK, world.driver.mem_create(CHUNK, 0))
    assert touch(world, base) == ILLEGAL_ADDRESS


def test_reserved_addresses_cannot_be_touched(world: World) -> None:
    assert touch(world, world.reserved) == ILLEGAL_ADDRESS


def test_adjacent_mappings_are_one_run_of_bytes(world: World) -> None:
    base = world.driver.mem_address_reserve(3 * CHUNK)
    for at in (2, 0, 1):
        map_at(world, base + at * CHUNK, world.driver.mem_create(CHUNK, 0))
    across = base + CHUNK - 8
    world.fill(across, 1, 2, 3, 4)
    assert world.values(across, 4) == [1, 2, 3, 4]
    world.driver.mem_unmap(base + CHUNK, CHUNK)
    assert world.values(across, 2) == [1, 2]
    assert touch(world, across, 3) == ILLEGAL_ADDRESS


def test_addresses_between_two_mappings_cannot_be_touched(world: World) -> None:
    base = world.driver.mem_address_reserve(3 * CHUNK)
    for at in (0, 2):
        map_at(world, base + at * CHUNK, world.driver.mem_create(CHUNK, 0))
    assert touch(world, base + CHUNK) == ILLEGAL_ADDRESS


def test_physical_memory_keeps_its_content_when_it_is_mapped_elsewhere(world: World) -> None:
    base = world.driver.mem_address_reserve(2 * CHUNK)
    handle = world.driver.mem_create(CHUNK, 0)
    map_at(world, base, handle)
    world.fill(base, 7, 8)
    world.driver.mem_unmap(base, CHUNK)
    map_at(world, base + CHUNK, handle)
    assert world.values(base + CHUNK, 2) == [7, 8]


def test_new_physical_memory_at_the_same_addresses_holds_nothing_of_the_old(world: World) -> None:
    map_at(world, world.reserved, handle := world.driver.mem_create(CHUNK, 0))
    world.fill(world.reserved, 7)
    world.driver.mem_unmap(world.reserved, CHUNK)
    world.driver.mem_release(handle)
    map_at(world, world.reserved, world.driver.mem_create(CHUNK, 0))
    assert math.isnan(world.values(world.reserved, 1)[0])


def test_released_physical_memory_lives_on_until_it_is_unmapped(world: World) -> None:
    free, _ = world.driver.mem_get_info()
    map_at(world, world.reserved, handle := world.driver.mem_create(CHUNK, 0))
    world.driver.mem_release(handle)
    world.fill(world.reserved, 9)
    assert world.values(world.reserved, 1) == [9]
    assert world.driver.mem_get_info()[0] == free - CHUNK
    world.driver.mem_unmap(world.reserved, CHUNK)
    assert world.driver.mem_get_info()[0] == free


@pytest.mark.parametrize(
    "ask",
    [
        lambda d, base, spare: d.mem_map(base, CHUNK, spare),
        lambda d, base, spare: d.mem_map(base + 2 * CHUNK, CHUNK, spare),
        lambda d, base, spare: d.mem_map(base + CHUNK, 2 * CHUNK, spare),
        lambda d, base, spare: d.mem_unmap(base, 2 * CHUNK),
        lambda d, base, spare: d.mem_set_access(base, 2 * CHUNK, 0),
        lambda d, base, spare: d.mem_address_free(base, 2 * CHUNK),
        lambda d, base, spare: d.mem_address_reserve(CHUNK + 1),
        lambda d, base, spare: d.mem_create(4096, 0),
        lambda d, base, spare: (d.mem_release(spare), d.mem_release(spare)),
        lambda d, base, spare: d.mem_free(base),
    ],
    ids=[
        "map-over-a-mapping",
        "map-outside",
        "map-more-than-there-is",
        "unmap-what-is-not-mapped",
        "access-to-what-is-not-mapped",
        "free-addresses-in-use",
        "reserve-odd-bytes",
        "create-odd-bytes",
        "release-twice",
        "free-a-mapping",
    ],
)
def test_a_wrong_use_of_virtual_memory_is_refused(world: World, ask: Callable[[Driver, int, int], object]) -> None:
    base = world.driver.mem_address_reserve(2 * CHUNK)
    map_at(world, base, world.driver.mem_create(CHUNK, 0))
    spare = world.driver.mem_create(CHUNK, 0)
    world.fill(base, 3)
    assert answer(lambda: ask(world.driver, base, spare)) == INVALID_VALUE
    assert world.values(base, 1) == [3]


def test_freed_addresses_are_reserved_again(world: World) -> None:
    world.driver.mem_address_free(world.reserved, CHUNK)
    assert world.driver.mem_address_reserve(CHUNK) == world.reserved


def test_a_graph_replays_after_its_memory_was_unmapped_released_created_and_mapped_again(world: World) -> None:
    driver = world.driver
    map_at(world, world.reserved, handle := driver.mem_create(CHUNK, 0))
    world.begin()
    driver.memset_d32_async(world.reserved, 0x3F800000, 4, world.stream)
    driver.memcpy_dtod_async(world.memory, world.reserved, 16, world.stream)
    made = driver.graph_instantiate(world.end()[1])
    driver.mem_unmap(world.reserved, CHUNK)
    driver.mem_release(handle)
    map_at(world, world.reserved, driver.mem_create(CHUNK, 0))
    driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 4) == [1, 1, 1, 1]


@pytest.mark.parametrize("gone", ["freed", "unmapped"])
def test_a_replay_on_memory_that_is_gone_faults(world: World, gone: str) -> None:
    driver = world.driver
    map_at(world, world.reserved, driver.mem_create(CHUNK, 0))
    ptr = world.spare if gone == "freed" else world.reserved
    world.begin()
    driver.launch(world.stream, lambda a: a.fill(1), writes=[floats(ptr, 4)])
    made = driver.graph_instantiate(world.end()[1])
    driver.graph_launch(made, world.stream)
    driver.synchronize()
    driver.mem_free(ptr) if gone == "freed" else driver.mem_unmap(ptr, CHUNK)
    driver.graph_launch(made, world.stream)
    assert answer(driver.synchronize) == ILLEGAL_ADDRESS


def test_memory_of_one_device_is_closed_to_the_kernels_of_another() -> None:
    world = World(devices=2)
    world.driver.ctx_create(1)
    world.stream = world.driver.stream_create()
    assert touch(world, world.memory) == ILLEGAL_ADDRESS


def test_a_mapping_may_be_opened_to_several_devices() -> None:
    world = World(devices=2)
    map_at(world, world.reserved, world.driver.mem_create(CHUNK, 0))
    world.driver.mem_set_access(world.reserved, CHUNK, 1)
    assert touch(world, world.reserved) == SUCCESS
    world.driver.ctx_create(1)
    world.stream = world.driver.stream_create()
    assert touch(world, world.reserved) == SUCCESS
