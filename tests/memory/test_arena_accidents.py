"""What an arena is after something went wrong: a call that fails, and whose undoing fails too, contexts left pushed,
threads and children that end at a bad moment, arguments that make no sense.
"""

from __future__ import annotations

import gc
import os
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from memory_support import address
from support import assert_next_capture_works, holds, live, refill, zeros

import breakgraph as bg
from breakgraph.driver import Driver
from breakgraph.errors import CaptureStateError, DriverError, OutOfMemory

MIB = 1 << 20


def holey_arena(xp: Any) -> tuple[bg.Arena, list[Any]]:
    """An arena of 2 MiB pages, every other one free, so that a large request needs a second mapping."""
    arena = bg.Arena()
    blocks = [arena.allocate(2 * MIB) for _ in range(8)]
    kept = blocks[1::2]
    del blocks
    return arena, kept


# --- second mappings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["mem_map", "mem_set_access", "mem_address_reserve"])
def test_a_second_mapping_that_fails_leaves_no_addresses_and_says_what_was_asked(sim: Any, xp: Any, call: str) -> None:
    arena, kept = holey_arena(xp)
    reservations = live(sim, "reservation")
    for _ in range(5):
        with pytest.raises(OutOfMemory, match=f"block of {6 * MIB} bytes"), sim.fail(call, at=1, code=2):
            arena.allocate(6 * MIB)
    assert live(sim, "reservation") == reservations
    arena.sleep()
    arena.wake()
    assert arena.allocate(6 * MIB).nbytes == 6 * MIB
    assert len(kept) == 4


def test_waking_says_what_it_needs_and_not_what_a_block_needs(sim: Any, xp: Any) -> None:
    arena, kept = holey_arena(xp)
    arena.sleep()
    told = f"could not be woken, which takes {16 * MIB} bytes"
    with pytest.raises(OutOfMemory, match=told), sim.fail("mem_create", at=3, code=2):
        arena.wake()
    arena.wake()
    assert arena.mapped == 16 * MIB
    assert kept


def test_a_growth_whose_undoing_fails_once_is_undone(sim: Any, xp: Any) -> None:
    arena = bg.Arena()
    first = arena.allocate(2 * MIB)
    left = sim.mem_get_info()[0]
    with (
        sim.fail("mem_create", at=3, code=2),
        sim.fail("mem_release", at=1, code=999),
        pytest.raises(OutOfMemory, match="could not grow"),
    ):
        arena.allocate(64 * MIB)
    assert sim.mem_get_info()[0] == left
    assert arena.allocate(64 * MIB).ptr > first.ptr


def test_a_growth_whose_undoing_fails_for_good_costs_that_page_and_nothing_else(sim: Any, xp: Any) -> None:
    arena = bg.Arena()
    first = arena.allocate(2 * MIB)
    with (
        sim.fail("mem_create", at=3, code=2),
        sim.fail("mem_unmap", at=1, code=999),
        sim.fail("mem_unmap", at=2, code=999),
        pytest.raises(OutOfMemory) as error,
    ):
        arena.allocate(64 * MIB)
    assert "giving memory of an arena back failed twice" in "".join(getattr(error.value.__cause__, "__notes__", ()))
    blocks = [arena.allocate(64 * MIB), arena.allocate(2 * MIB)]
    spans = sorted((block.ptr, block.ptr + block.nbytes) for block in (first, *blocks))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    del blocks, first, arena, error
    gc.collect()
    assert live(sim, "physical") == live(sim, "reservation") == 0


def test_an_arena_that_never_mapped_anything_leaves_nothing(sim: Any, xp: Any) -> None:
    before = live(sim, "allocation")
    for _ in range(10):
        bg.Arena()
        with pytest.raises(ValueError, match="granule"):
            bg.Arena(limit=1)
    gc.collect()
    assert live(sim, "allocation") == before


def test_a_need_of_the_origin_that_cannot_be_met_takes_nothing_from_a_stream_beside_it(sim: Any, xp: Any) -> None:
    arena, x, side = bg.Arena(limit=8 * MIB), zeros(xp), sim.create_stream()
    clean = [arena.allocate(MIB) for _ in range(6)]
    del clean
    with bg.capture(arena=arena) as graph:
        y = x + 1
        del y  # its bytes may serve the origin only, in this segment
        with pytest.raises(OutOfMemory, match="limit"):
            arena.allocate(9 * MIB, int(bg.current_stream()))
        mapped = arena.mapped
        beside = [arena.allocate(MIB, int(side)) for _ in range(5)]
        assert arena.mapped == mapped
    assert graph.captured
    assert len(beside) == 5


# --- contexts (C31) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["own again", "another", "popped", "replaced"])
def test_a_break_that_spoils_the_context_stack_and_raises_leaves_the_callers_context(
    sim: Any, xp: Any, how: str
) -> None:
    def spoil(driver: Driver) -> None:
        if how == "popped":
            driver.ctx_pop_current()
        elif how == "replaced":
            driver.ctx_set_current(other)
        else:
            driver.ctx_push_current(other if how == "another" else home)

    armed, x = [False], zeros(xp)

    def work(a: Any) -> Any:
        if armed[0]:
            spoil(sim)
            raise KeyError(how)
        return a * 2

    home = sim.ctx_get_current()
    with bg.capture() as graph:
        y = bg.break_here(work, bg.INFER, x + 1)
    other = sim.ctx_create(0)  # is current now
    armed[0] = True
    with pytest.raises(KeyError):
        graph.replay(stream=graph.capture_stream)
    assert sim.ctx_get_current() == other
    sim.ctx_pop_current()
    sim.synchronize()
    assert sim.ctx_get_current() == home
    armed[0] = False
    refill(x, 3)
    graph.replay()
    assert holds(y, 8)
    sim.ctx_destroy(other)


def test_an_arena_of_a_destroyed_context_is_not_taken_for_one_of_a_new_context_at_its_handle(sim: Any, xp: Any) -> None:
    first = sim.ctx_create(0)
    arena = bg.Arena()
    ids = sim.ctx_get_id(first)
    sim.ctx_destroy(first)
    second = sim.ctx_create(0)
    assert sim.ctx_get_id(second) != ids
    assert not arena.belongs_to(sim, second)
    sim.ctx_destroy(second)


# --- accounts ---------------------------------------------------------------------------------------------------


def test_the_destination_of_a_break_is_no_segments_allocation(driver: Any, xp: Any) -> None:
    x, out = zeros(xp, MIB), zeros(xp, MIB)
    with bg.capture(arena=bg.Arena()) as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x)
        np.add(y, 1, out=out)
    assert [(one.allocations, one.allocated) for one in graph.segments] == [(0, 0), (0, 0)]
    assert graph.memory.allocated == 0
    assert graph.memory.footprint == 4 * MIB


def test_an_exec_that_was_given_up_for_one_of_its_own_is_let_go(sim: Any, xp: Any) -> None:
    cache, x, outs = bg.ExecCache(), zeros(xp), [zeros(xp), zeros(xp)]
    graphs = []
    for out in outs:
        with bg.capture(execs=cache) as graph:
            np.add(x, 1, out=out)
        graphs.append(graph)
    assert cache.execs == 1
    with sim.fail("graph_exec_update", at=1, code=910):
        graphs[0].replay()
    graphs[1].close()
    assert (cache.execs, live(sim, "graph_exec")) == (0, 1)
    refill(x, 4)
    graphs[0].replay()
    assert holds(outs[0], 5)


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1e9, float("inf"), float("nan"), "16"])
def test_a_limit_is_an_integer(driver: Any, xp: Any, limit: Any) -> None:
    with pytest.raises(TypeError):
        bg.Arena(limit=limit)


@pytest.mark.parametrize("option", [{"arena": "x"}, {"execs": {}}, {"arena": bg.ExecCache()}])
def test_an_arena_and_a_cache_are_what_they_are_said_to_be(driver: Any, xp: Any, option: Any) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        bg.capture(**option)


# --- threads and children ---------------------------------------------------------------------------------------


def test_a_thread_that_ended_with_its_capture_open_is_named_and_is_nobody_else(sim: Any, xp: Any) -> None:
    """Thread numbers are used again, so the number alone would make the next thread the holder."""
    arena, scopes, told = bg.Arena(), [], []

    def leave_open() -> None:
        scopes.append(bg.capture(arena=arena))
        scopes[0].__enter__()

    def ask() -> None:
        try:
            with bg.capture(arena=arena):
                pass
        except CaptureStateError as error:
            told.append(error)

    for work in (leave_open, ask):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    assert "thread has ended" in told[0].what
    with pytest.raises(CaptureStateError, match="another thread"):
        scopes[0].__exit__(None, None, None)
    scopes[0]._capture.drain(RuntimeError("the test is over"))
    scopes.clear()
    assert_next_capture_works(xp, arena=arena)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_ends_although_a_lock_was_held_at_the_fork(sim: Any, xp: Any) -> None:
    cache, x, out = bg.ExecCache(), zeros(xp), zeros(xp)
    with bg.capture(execs=cache) as graph:
        np.add(x, 1, out=out)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.lock:
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    child = os.fork()
    if not child:
        del graph
        gc.collect()
        os._exit(7)
    done.set()
    thread.join(20)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    refill(x, 4)
    graph.replay()
    assert holds(out, 5)


def test_a_dropped_error_leaves_no_block(sim: Any, xp: Any) -> None:
    arena = bg.Arena(limit=4 * MIB)
    kept = arena.allocate(3 * MIB)
    with pytest.raises(DriverError, match="limit"):
        arena.allocate(2 * MIB)
    gc.collect()
    assert arena.used == kept.nbytes
    assert arena.block_at(kept.ptr) is not None
    assert address(zeros(xp)) != kept.ptr
