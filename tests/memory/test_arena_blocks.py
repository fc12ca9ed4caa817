"""The arena alone: which bytes an allocation gets, when they serve again, and what the accounts say.

Proves best fit with coalescing, alignment, generations that are never used twice (C16's identity), limits, blocks
that die on any thread and in the middle of an allocation, and that running out of memory changes nothing. A random
sequence of allocations, drops, sleeps and wakes is held against a model of a few lines.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from memory_support import GRANULE, MIB, round_up
from support import all_well, assert_next_capture_works, holds, in_threads, zeros

import breakgraph as bg
from breakgraph.errors import CaptureStateError, DriverError, OutOfMemory

ALIGNMENT = 512


def spread(arena: Any, *sizes: int) -> tuple[list[Any], list[Any]]:
    """Blocks of these sizes with a small live one after each, so that no two of them are neighbours."""
    blocks, between = [], []
    for size in sizes:
        blocks.append(arena.allocate(size))
        between.append(arena.allocate(ALIGNMENT))
    return blocks, between


def free_bytes(driver: Any) -> int:
    return int(driver.mem_get_info()[0])


# --- which bytes ----------------------------------------------------------------------------------------------


def test_a_block_is_aligned_to_512_bytes_and_holds_what_was_asked(driver: Any) -> None:
    arena = bg.Arena()
    blocks = [arena.allocate(nbytes) for nbytes in (0, 1, 511, 512, 513, 4097, 3 * MIB + 1)]
    for block, nbytes in zip(blocks, (0, 1, 511, 512, 513, 4097, 3 * MIB + 1), strict=True):
        assert block.ptr % ALIGNMENT == 0
        assert block.nbytes % ALIGNMENT == 0
        assert block.nbytes >= max(nbytes, 1), "an allocation of nothing has an address of its own too"
    assert arena.used == sum(block.nbytes for block in blocks)


def test_the_smallest_free_span_that_fits_is_taken(driver: Any) -> None:
    arena = bg.Arena()
    blocks, between = spread(arena, 8192, 2048, 4096, 1024)
    at = [block.ptr for block in blocks]
    del blocks
    taken = [arena.allocate(nbytes) for nbytes in (3600, 1000, 2000, 5000)]
    assert [block.ptr for block in taken] == [at[2], at[3], at[1], at[0]]
    assert len(between) == 4


def test_among_equal_spans_the_lowest_is_taken(driver: Any) -> None:
    arena = bg.Arena()
    blocks, between = spread(arena, 4096, 4096, 4096)
    at = [block.ptr for block in blocks]
    while blocks:
        blocks.pop()
    assert [arena.allocate(4096).ptr] == at[:1]
    assert len(between) == 3


def test_what_is_left_of_a_span_serves_too(driver: Any) -> None:
    arena = bg.Arena()
    blocks, between = spread(arena, 8192)
    at = blocks.pop().ptr
    parts = [arena.allocate(2048) for _ in range(4)]
    assert [block.ptr for block in parts] == [at, at + 2048, at + 4096, at + 6144]
    assert len(between) == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_neighbours_that_are_free_are_one_span_in_whatever_order_they_died(driver: Any, order: tuple[int, ...]) -> None:
    arena = bg.Arena()
    blocks: dict[int, Any] = {at: arena.allocate(1024) for at in range(3)}
    end = arena.allocate(512)
    first, mapped = blocks[0].ptr, arena.mapped
    for at in order:
        del blocks[at]
    assert arena.allocate(3072).ptr == first
    assert arena.mapped == mapped
    assert end.ptr == first + 3072


def test_growing_joins_what_was_free_at_the_end(driver: Any) -> None:
    """So a request that is larger than the free tail maps the difference only."""
    arena = bg.Arena()
    first = arena.allocate(MIB)
    assert arena.mapped == GRANULE
    second = arena.allocate(3 * MIB)
    assert second.ptr == first.ptr + MIB
    assert arena.mapped == 2 * GRANULE
    del first, second
    assert arena.allocate(2 * GRANULE).nbytes == 2 * GRANULE
    assert arena.mapped == 2 * GRANULE


def test_a_generation_is_never_used_twice_though_addresses_are(driver: Any) -> None:
    arenas = bg.Arena(), bg.Arena()
    generations, addresses = [], []
    for _ in range(50):
        for arena in arenas:
            block = arena.allocate(512)
            generations.append(block.generation)
            addresses.append(block.ptr)
            found = arena.block_at(block.ptr + 511)
            assert found is not None
            assert found.generation == block.generation
            del block
    assert len(set(addresses)) == 2
    assert len(set(generations)) == 100
    assert 0 not in generations, "0 stands for what is outside every arena"


def test_an_address_is_looked_up_in_live_blocks_only(driver: Any) -> None:
    arena = bg.Arena()
    low, high = arena.allocate(1024), arena.allocate(1024)
    for offset in (0, 1, 1023):
        assert arena.block_at(low.ptr + offset).ptr == low.ptr
    assert arena.block_at(low.ptr + 1024).ptr == high.ptr
    assert arena.block_at(low.ptr - 1) is None
    assert arena.block_at(high.ptr + 1024) is None
    gone = low.ptr
    del low
    assert arena.block_at(gone) is None
    assert arena.block_at(high.ptr) is not None


# --- accounts -------------------------------------------------------------------------------------------------


def test_the_accounts_of_an_arena_add_up(driver: Any) -> None:
    arena = bg.Arena()
    assert (arena.used, arena.peak, arena.mapped, arena.asleep) == (0, 0, 0, False)
    one = arena.allocate(1000)
    assert (arena.used, arena.peak, arena.mapped) == (1024, 1024, GRANULE)
    two = arena.allocate(GRANULE)
    assert (arena.used, arena.peak, arena.mapped) == (1024 + GRANULE, 1024 + GRANULE, 2 * GRANULE)
    assert arena.reserved >= arena.mapped
    del one
    assert (arena.used, arena.peak) == (GRANULE, 1024 + GRANULE)
    del two
    assert (arena.used, arena.peak, arena.mapped) == (0, 1024 + GRANULE, 2 * GRANULE)


def test_mapped_bytes_are_what_the_device_has_less(sim: Any) -> None:
    arena = bg.Arena()
    before = free_bytes(sim)
    blocks = [arena.allocate(3 * MIB) for _ in range(5)]
    assert before - free_bytes(sim) == arena.mapped
    assert arena.mapped == round_up(15 * MIB, GRANULE)
    del blocks
    assert before - free_bytes(sim) == arena.mapped, "what is free in the arena stays the arena's"


def test_an_arena_that_is_dropped_gives_everything_back_after_its_last_block(sim: Any) -> None:
    kinds = ("allocation", "reservation", "physical", "event")
    before = free_bytes(sim), [sim.live()[kind] for kind in kinds]
    arena = bg.Arena()
    block = arena.allocate(3 * MIB)
    del arena
    gc.collect()
    assert before[0] - free_bytes(sim) >= 2 * GRANULE, "a live block keeps the memory that it lies in"
    del block
    gc.collect()
    assert (free_bytes(sim), [sim.live()[kind] for kind in kinds]) == before


def test_the_repr_of_an_arena_says_how_much_it_holds(driver: Any) -> None:
    arena = bg.Arena()
    empty = repr(arena)
    block = arena.allocate(5 * MIB)
    assert repr(arena) != empty
    assert "used" in repr(arena)
    assert "mapped" in repr(arena)
    assert block.nbytes == 5 * MIB


# --- limits and running out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [-GRANULE, 0, 1, GRANULE - 1])
def test_a_limit_below_one_granule_is_refused(driver: Any, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        bg.Arena(limit=limit)


@pytest.mark.parametrize("limit", [GRANULE, GRANULE + 1, 5 * MIB, 3 * GRANULE])
def test_the_mapped_bytes_never_exceed_the_limit(driver: Any, limit: int) -> None:
    arena = bg.Arena(limit=limit)
    blocks = []
    with pytest.raises(OutOfMemory, match="limit"):
        while True:
            blocks.append(arena.allocate(MIB))
    assert arena.mapped == limit // GRANULE * GRANULE
    assert len(blocks) == arena.mapped // MIB, "all of what may be mapped was of use"
    last = blocks.pop().ptr
    assert arena.allocate(MIB).ptr == last, "a block that is given back serves again at the limit"


def test_a_request_beyond_the_limit_changes_nothing(driver: Any) -> None:
    arena = bg.Arena(limit=2 * GRANULE)
    kept = arena.allocate(MIB)
    before = (arena.used, arena.peak, arena.mapped)
    with pytest.raises(OutOfMemory, match="limit"):
        arena.allocate(2 * GRANULE)
    assert (arena.used, arena.peak, arena.mapped) == before
    assert arena.allocate(2 * GRANULE - MIB).ptr == kept.ptr + MIB


def test_out_of_memory_says_what_was_asked_what_is_mapped_and_what_is_left(sim: Any) -> None:
    arena = bg.Arena()
    kept = arena.allocate(MIB)
    others = free_bytes(sim) // GRANULE * GRANULE - 4 * MIB
    taken = sim.mem_create(others, 0)  # another program's memory
    left, total = sim.mem_get_info()
    with pytest.raises(OutOfMemory) as raised:
        arena.allocate(32 * MIB)
    for number in (32 * MIB, arena.mapped, left, total):
        assert str(number) in str(raised.value), f"{number} is not in: {raised.value}"
    assert (arena.used, arena.mapped, free_bytes(sim)) == (MIB, GRANULE, left)
    assert arena.allocate(3 * MIB).nbytes == 3 * MIB, "what there is can still be had"
    sim.mem_release(taken)
    assert arena.allocate(32 * MIB).nbytes == 32 * MIB
    assert kept.nbytes == MIB


def test_a_capture_that_runs_out_of_memory_is_drained_and_the_next_one_works(sim: Any, xp: Any) -> None:
    arena, x = bg.Arena(), zeros(xp, 2 * MIB)
    taken = sim.mem_create(free_bytes(sim) // GRANULE * GRANULE - 16 * MIB, 0)
    with pytest.raises(OutOfMemory) as raised, bg.capture(arena=arena, name="large") as graph:
        kept = [bg.break_here(lambda a: a, bg.INFER, x + n) for n in range(4)]
    assert graph.state == "failed"
    assert graph.error is raised.value
    assert not any(sim.live()[kind] for kind in ("graph", "graph_exec", "capture"))
    assert arena.used == 0 or arena.used % (8 * MIB) == 0, "what the error's frames hold is whole blocks"
    sim.mem_release(taken)
    del raised
    graph.reset()
    gc.collect()
    assert arena.used == 0
    with bg.capture(graph, arena=arena):
        kept = [bg.break_here(lambda a: a, bg.INFER, x + n) for n in range(4)]
    graph.replay()
    assert [holds(array, n) for n, array in enumerate(kept)] == [True] * 4
    graph.close()
    assert_next_capture_works(xp, arena=arena)


@pytest.mark.parametrize("call", ["mem_address_reserve", "mem_create", "mem_map", "mem_set_access"])
@pytest.mark.parametrize("code", [2, 999])
@pytest.mark.parametrize("first", [True, False], ids=["first growth", "later growth"])
def test_a_growth_that_fails_leaves_the_accounts_and_the_device_as_they_were(
    sim: Any, call: str, code: int, first: bool
) -> None:
    if call == "mem_address_reserve" and not first:
        pytest.skip("addresses are reserved once")
    arena = bg.Arena()
    kept = [] if first else [arena.allocate(MIB)]
    accounts, free, physical = (arena.used, arena.mapped), free_bytes(sim), sim.live()["physical"]
    with pytest.raises(DriverError), sim.fail(call, code=code):
        arena.allocate(3 * MIB)
    assert (arena.used, arena.mapped) == accounts
    assert (free_bytes(sim), sim.live()["physical"]) == (free, physical)
    block = arena.allocate(3 * MIB)
    sim.memset_d8(block.ptr, 1, block.nbytes)  # a fault, were it not mapped
    assert arena.mapped == 2 * GRANULE
    assert len(kept) == (0 if first else 1)


# --- where blocks die -----------------------------------------------------------------------------------------


def test_a_block_that_dies_on_another_thread_serves_again(driver: Any) -> None:
    arena = bg.Arena()
    blocks = {at: arena.allocate(4096) for at in range(8)}
    first = blocks[0].ptr
    all_well(in_threads(driver, *(lambda at=at: blocks.pop(at) and None for at in range(8))))
    assert arena.used == 0
    assert arena.allocate(8 * 4096).ptr == first


@pytest.mark.parametrize("call", ["mem_create", "mem_map", "mem_set_access", "mem_get_info"])
def test_a_block_may_die_in_the_middle_of_an_allocation(sim: Any, monkeypatch: Any, call: str) -> None:
    """A destructor runs wherever the collector does, so also between two steps of growing."""
    arena = bg.Arena()
    dying = [arena.allocate(MIB), arena.allocate(MIB)]
    at, genuine = dying[0].ptr, getattr(sim, call)

    def dropping(*args: Any) -> Any:
        dying.clear()
        return genuine(*args)

    monkeypatch.setattr(sim, call, dropping)
    block = arena.allocate(3 * MIB)
    monkeypatch.undo()
    dying.clear()
    assert arena.used == 3 * MIB
    assert block.ptr == at + 2 * MIB
    assert arena.allocate(2 * MIB).ptr == at
    assert arena.mapped == 3 * GRANULE


def test_a_block_may_die_in_a_collection_that_an_allocation_sets_off(driver: Any) -> None:
    arena = bg.Arena()
    threshold = gc.get_threshold()
    live: list[Any] = []
    try:
        gc.set_threshold(1, 1, 1)
        for _ in range(300):
            cycle: list[Any] = [arena.allocate(1536)]
            cycle.append(cycle)
            live.append(arena.allocate(512))
            del cycle
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    starts = sorted(block.ptr for block in live)
    assert all(after - before >= 512 for before, after in itertools.pairwise(starts))
    assert arena.used == 300 * 512


def test_threads_may_allocate_and_drop_at_the_same_time(driver: Any) -> None:
    arena, start = bg.Arena(), threading.Barrier(4)

    def work(seed: int) -> list[Any]:
        draw, held = random.Random(seed), []
        start.wait(20)
        for _ in range(300):
            if held and draw.random() < 0.5:
                held.pop(draw.randrange(len(held)))
            else:
                held.append(arena.allocate(draw.choice([1, 700, 5000, 300_000])))
        return held

    held = list(itertools.chain(*all_well(in_threads(driver, *(lambda seed=seed: work(seed) for seed in range(4))))))
    assert_disjoint(held)
    assert arena.used == sum(block.nbytes for block in held)
    held.clear()
    assert arena.used == 0
    whole = arena.allocate(arena.mapped)
    assert arena.mapped == whole.nbytes, "all of it is one span again"


def assert_disjoint(blocks: list[Any]) -> None:
    spans = sorted((block.ptr, block.ptr + block.nbytes) for block in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


# --- against a model ------------------------------------------------------------------------------------------

LIMIT = 16 * MIB


class Model:
    """Live spans of one range of pages that grows at its end.

    The smallest gap that fits serves, the lowest of equals. Where none does, whole free pages from anywhere serve as
    one, if that maps less anew than growing at the end.
    """

    def __init__(self) -> None:
        self.mapped = 0
        self.live: dict[int, list[tuple[int, int]]] = {}  # by generation: (offset, bytes) of each span

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """(bytes, offset) of each free span."""
        found, at = [], 0
        for offset, nbytes in sorted(itertools.chain(*self.live.values())):
            found.append((offset - at, at))
            at = offset + nbytes
        found.append((self.mapped - at, at))
        return [gap for gap in found if gap[0]]

    def where(self, size: int) -> int | None:
        """Offset of the gap that serves ``size`` bytes, if one is large enough."""
        return min((gap for gap in self.gaps if gap[0] >= size), default=(0, None))[1]

    def growth(self, size: int) -> int:
        """Bytes to be mapped for ``size`` bytes that no gap has room for."""
        tail = next((gap for gap, at in self.gaps if at + gap == self.mapped), 0)
        pages = sum(max((at + gap) // GRANULE * GRANULE - round_up(at, GRANULE), 0) for gap, at in self.gaps)
        return min(round_up(size - tail, GRANULE), round_up(max(size - pages, 0), GRANULE))

    def is_free(self, offset: int, nbytes: int) -> bool:
        return any(at <= offset and offset + nbytes <= at + gap for gap, at in self.gaps)


class Rig:
    """An arena and its model, side by side. Each block is filled with a byte of its own."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.arena, self.model = bg.Arena(limit=LIMIT), Model()
        self.base = self.peak = 0
        self.blocks: dict[int, Any] = {}  # by generation
        self.known: set[int] = set()  # generations of those whose contents have not been lost in a sleep
        self.free = free_bytes(driver)

    def allocate(self, nbytes: int) -> None:
        if self.arena.asleep:
            with pytest.raises(CaptureStateError):
                self.arena.allocate(nbytes)
            return
        model, size = self.model, max(round_up(nbytes, ALIGNMENT), ALIGNMENT)
        wanted = model.where(size)
        growth = 0 if wanted is not None else model.growth(size)
        if model.mapped + growth > LIMIT:
            with pytest.raises(OutOfMemory):
                self.arena.allocate(nbytes)
            return
        block = self.arena.allocate(nbytes)
        assert block.generation not in self.known
        self.base = self.base or block.ptr
        model.mapped += growth
        spans = [(ptr - self.base, nbytes) for ptr, nbytes in self.arena.block_at(block.ptr).spans]
        if wanted is not None:
            assert spans == [(wanted, size)]
        assert sum(nbytes for _, nbytes in spans) >= size
        for span in spans:
            assert model.is_free(*span), "it was somebody else's"
        model.live[block.generation] = spans
        self.blocks[block.generation] = block
        self.driver.memset_d8(block.ptr, block.generation % 255, block.nbytes)
        self.known.add(block.generation)

    def drop(self, at: int, *, elsewhere: bool) -> None:
        generation = sorted(self.blocks)[at % len(self.blocks)]
        self.check_contents(generation)
        del self.model.live[generation]
        self.known.discard(generation)
        if elsewhere:
            all_well(in_threads(self.driver, lambda: self.blocks.pop(generation) and None))
        else:
            del self.blocks[generation]

    def sleep(self, *, backup: bool) -> None:
        if not backup and not self.arena.asleep:
            self.known.clear()
        self.arena.sleep(backup=backup)

    def check(self) -> None:
        used = sum(block.nbytes for block in self.blocks.values())
        self.peak = max(self.peak, used)
        assert (self.arena.used, self.arena.peak) == (used, self.peak)
        assert self.arena.mapped == (0 if self.arena.asleep else self.model.mapped)
        taken = self.free - free_bytes(self.driver)
        assert abs(taken - self.arena.mapped) <= ALIGNMENT, "but for the allocation that it waits for the device with"
        for generation, block in self.blocks.items():
            found = self.arena.block_at(block.ptr + block.nbytes - 1)
            assert found is not None
            assert (found.ptr, found.nbytes, found.generation) == (block.ptr, block.nbytes, generation)
            del block

    def check_contents(self, generation: int) -> None:
        if generation in self.known and not self.arena.asleep:
            block = self.blocks[generation]
            host = np.empty(block.nbytes, np.uint8)
            self.driver.memcpy_dtoh(host.ctypes.data, block.ptr, block.nbytes)
            assert np.all(host == generation % 255)

    def check_end(self) -> None:
        """With all blocks gone, all that is mapped is one span again: nothing leaked."""
        self.arena.wake()
        for generation in self.blocks:
            self.check_contents(generation)
        self.blocks.clear()
        assert self.arena.used == 0
        if mapped := self.arena.mapped:
            assert self.arena.allocate(mapped).ptr == self.base
            assert self.arena.mapped == mapped


STEPS = st.one_of(
    st.tuples(st.just("allocate"), st.sampled_from([0, 1, 512, 513, 4096, 100_000, MIB, 3 * MIB, 5 * MIB + 1])),
    st.tuples(st.just("allocate"), st.sampled_from([GRANULE, 2 * GRANULE, 3 * GRANULE, 3 * GRANULE - 512])),
    st.tuples(st.just("allocate"), st.integers(1, 3 * MIB)),
    st.tuples(st.sampled_from(["drop", "drop", "drop", "drop elsewhere"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["sleep", "wake"]), st.booleans()),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(steps=st.lists(STEPS, max_size=30))
@example(
    steps=[
        ("allocate", 2 * GRANULE),
        ("allocate", GRANULE),
        ("allocate", 2 * GRANULE),
        ("drop", 0),
        ("drop", 1),
        ("allocate", 3 * GRANULE),
        ("allocate", 512),
        ("sleep", True),
        ("wake", True),
        ("drop", 1),
        ("allocate", GRANULE + 512),
        ("drop elsewhere", 0),
        ("allocate", 3 * GRANULE),
        ("allocate", 5 * MIB + 1),
    ]
)
def test_any_sequence_of_allocations_drops_and_sleeps_does_as_the_model_does(steps: list[tuple[str, int]]) -> None:
    with bg.driver.use("sim", schedule="fifo") as driver:
        driver.synchronize()
        rig = Rig(driver)
        for name, value in steps:
            if name == "allocate":
                rig.allocate(value)
            elif name == "sleep":
                rig.sleep(backup=bool(value))
            elif name == "wake":
                rig.arena.wake()
            elif rig.blocks:
                rig.drop(value, elsewhere=name == "drop elsewhere")
            rig.check()
        rig.check_end()
