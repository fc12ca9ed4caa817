"""Host memory: pinned memory is read and written when the copy runs, pageable memory when the call is made (S2, S3)."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from .world import SUCCESS, World, answer

ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"


@pytest.fixture
def world() -> World:
    return World()


def host(world: World, ptr: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Pinned memory as an array."""
    return np.frombuffer((ctypes.c_char * (4 * count)).from_address(ptr), np.float32)


def test_pinned_memory_is_read_when_the_copy_runs(world: World) -> None:
    values = host(world, world.pinned, 2)
    values[:] = 1
    world.driver.memcpy_htod_async(world.memory, world.pinned, 8, world.stream)
    values[:] = 2
    assert world.values(world.memory, 2) == [2, 2]


def test_pageable_memory_is_read_when_the_call_is_made(world: World) -> None:
    values = np.ones(2, np.float32)
    world.driver.memcpy_htod_async(world.memory, values.ctypes.data, 8, world.stream)
    values[:] = 2
    assert world.values(world.memory, 2) == [1, 1]


def test_pageable_memory_in_a_graph_is_read_when_the_node_runs(world: World) -> None:
    values = np.ones(2, np.float32)
    world.begin()
    world.driver.memcpy_htod_async(world.memory, values.ctypes.data, 8, world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    values[:] = 2
    world.driver.graph_launch(made, world.stream)
    assert world.values(world.memory, 2) == [2, 2]


def test_a_copy_to_pageable_memory_waits_and_one_to_pinned_memory_does_not(world: World) -> None:
    pinned, pageable = host(world, world.pinned, 1), np.zeros(1, np.float32)
    pinned[:] = 0
    world.fill(world.memory, 5)
    world.driver.memcpy_dtoh_async(world.pinned, world.memory, 4, world.stream)
    assert pinned[0] == 0
    world.driver.memcpy_dtoh_async(pageable.ctypes.data, world.memory, 4, world.stream)
    assert pinned[0] == pageable[0] == 5


def test_a_graph_that_copies_from_freed_pinned_memory_faults(world: World) -> None:
    world.begin()
    world.driver.memcpy_htod_async(world.memory, world.pinned, 16, world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    world.driver.mem_free_host(world.pinned)
    world.driver.graph_launch(made, world.stream)
    assert answer(world.driver.synchronize) == ILLEGAL_ADDRESS


def test_a_copy_past_a_pinned_block_faults(world: World) -> None:
    world.driver.memcpy_htod_async(world.memory, world.pinned + 4090, 16, world.stream)
    assert answer(world.driver.synchronize) == ILLEGAL_ADDRESS


def test_a_copy_of_no_bytes_asks_nothing_of_its_addresses(world: World) -> None:
    world.driver.memcpy_htod(0, 0, 0)
    world.driver.memcpy_htod_async(0, 0, 0, world.stream)
    world.driver.memcpy_dtod_async(0, 0, 0, world.stream)
    world.driver.memset_d8(0, 0, 0)
    assert answer(world.driver.synchronize) == SUCCESS
