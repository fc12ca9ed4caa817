"""Free pages that lie apart serve a large request: they are mapped a second time, one after the other.

So sizes captured in any order take hardly more than the largest, whatever small blocks lie between the large ones. Here
the same bytes have two addresses: proves that no two live blocks share a byte by either, that values survive, that a
fork withholds pages too (C28), that what is overwritten is known by its bytes and not by its address (C18), and that a
sleeping arena keeps second addresses as it keeps the first (C30).
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from memory_support import GRANULE, MIB, address
from support import Order, every_schedule, holds, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.errors import DriverError, OutOfMemory


class Apart:
    """An arena of five pages, of which the middle one is taken and the two on either side of it are free.

    A request of three pages fits neither side.
    """

    def __init__(self, **options: Any) -> None:
        self.arena = bg.Arena(**options)
        low, self.middle, high = (self.arena.allocate(pages * GRANULE) for pages in (2, 1, 2))
        self.low, self.high = low.ptr, high.ptr
        self.end = high.ptr + high.nbytes
        assert self.arena.mapped == 5 * GRANULE


def fill(driver: Any, block: Any, value: int) -> None:
    driver.memset_d8(block.ptr, value, block.nbytes)


def filled_with(driver: Any, block: Any, value: int) -> bool:
    host = np.empty(block.nbytes, np.uint8)
    driver.memcpy_dtoh(host.ctypes.data, block.ptr, block.nbytes)
    return bool(np.all(host == value))


# --- blocks ---------------------------------------------------------------------------------------------------


def test_a_request_that_fits_no_span_is_served_by_pages_that_lie_apart(driver: Any) -> None:
    apart = Apart()
    block = apart.arena.allocate(3 * GRANULE)
    assert apart.arena.mapped == 5 * GRANULE
    assert block.nbytes == 3 * GRANULE
    assert block.ptr % 512 == 0
    assert apart.arena.used == 4 * GRANULE
    found = apart.arena.block_at(block.ptr + 3 * GRANULE - 1)
    assert found is not None
    assert (found.ptr, found.generation) == (block.ptr, block.generation)


def test_its_bytes_are_nobody_elses(driver: Any) -> None:
    apart = Apart()
    fill(driver, apart.middle, 1)
    large = apart.arena.allocate(3 * GRANULE)
    fill(driver, large, 2)
    rest = apart.arena.allocate(GRANULE)  # the one page that is left
    fill(driver, rest, 3)
    assert apart.arena.mapped == 5 * GRANULE
    for block, value in ((apart.middle, 1), (large, 2), (rest, 3)):
        assert filled_with(driver, block, value)
    more = apart.arena.allocate(512)
    assert apart.arena.mapped == 6 * GRANULE, "nothing was left"
    fill(driver, more, 4)
    assert filled_with(driver, large, 2)


def test_its_pages_serve_small_requests_again_when_it_is_gone(driver: Any) -> None:
    apart = Apart()
    for _ in range(3):
        large = apart.arena.allocate(3 * GRANULE)
        fill(driver, large, 9)
        del large
        halves = [apart.arena.allocate(2 * GRANULE) for _ in range(2)]
        assert sorted(block.ptr for block in halves) == [apart.low, apart.high]
        for value, block in enumerate(halves):
            fill(driver, block, value)
        assert [filled_with(driver, block, value) for value, block in enumerate(halves)] == [True, True]
        del halves, block
    assert apart.arena.mapped == 5 * GRANULE


def test_the_same_request_again_needs_no_further_addresses(sim: Any) -> None:
    apart = Apart()
    first = apart.arena.allocate(3 * GRANULE)
    at, before = first.ptr, sim.calls["mem_address_reserve"]
    del first
    for _ in range(5):
        again = apart.arena.allocate(3 * GRANULE)
        assert again.ptr == at
        del again
    assert sim.calls["mem_address_reserve"] == before


def test_a_page_that_is_free_in_part_is_no_part_of_it(driver: Any) -> None:
    apart = Apart()
    small = apart.arena.allocate(512)
    fill(driver, small, 7)
    fill(driver, apart.middle, 5)
    large = apart.arena.allocate(3 * GRANULE)
    fill(driver, large, 2)
    assert apart.arena.mapped == 5 * GRANULE, "three whole pages are left"
    assert filled_with(driver, small, 7)
    assert filled_with(driver, apart.middle, 5)


def test_what_is_missing_is_mapped_and_no_more(driver: Any) -> None:
    apart = Apart()
    block = apart.arena.allocate(6 * GRANULE)
    fill(driver, block, 2)
    assert apart.arena.mapped == 7 * GRANULE, "four free pages and two new ones"
    assert filled_with(driver, block, 2)


def test_it_serves_an_arena_at_its_limit(driver: Any) -> None:
    apart = Apart(limit=5 * GRANULE)
    with pytest.raises(OutOfMemory, match="limit"):
        apart.arena.allocate(4 * GRANULE + 512)
    block = apart.arena.allocate(4 * GRANULE)
    fill(driver, block, 3)
    assert (apart.arena.mapped, apart.arena.used) == (5 * GRANULE, 5 * GRANULE)
    assert filled_with(driver, block, 3)


@pytest.mark.parametrize("call", ["mem_address_reserve", "mem_map", "mem_set_access"])
@pytest.mark.parametrize("code", [2, 999])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_second_mapping_that_fails_changes_nothing(sim: Any, call: str, code: int, at: int) -> None:
    apart = Apart()
    accounts, free = (apart.arena.used, apart.arena.mapped), sim.mem_get_info()[0]
    with sim.fail(call, at=at, code=code) as plan:
        try:
            block = apart.arena.allocate(3 * GRANULE)
        except DriverError:
            block = None
    assert (block is None) == plan.struck
    if block is None:
        assert (apart.arena.used, apart.arena.mapped, sim.mem_get_info()[0]) == (*accounts, free)
        block = apart.arena.allocate(3 * GRANULE)
    fill(sim, block, 2)
    assert apart.arena.mapped == 5 * GRANULE
    del block
    arena = apart.arena
    del apart
    gc.collect()
    assert arena.allocate(5 * GRANULE).nbytes == arena.mapped == 5 * GRANULE, "all of it is one span again"


def test_an_arena_with_second_mappings_gives_everything_back(sim: Any) -> None:
    kinds = ("reservation", "physical", "allocation", "event")
    before = sim.mem_get_info()[0], [sim.live()[kind] for kind in kinds]
    apart = Apart()
    large = apart.arena.allocate(3 * GRANULE)
    larger = apart.arena.allocate(4 * GRANULE)
    del apart, large, larger
    gc.collect()
    assert (sim.mem_get_info()[0], [sim.live()[kind] for kind in kinds]) == before


@pytest.mark.parametrize("backup", [False, True])
def test_second_addresses_are_kept_in_its_sleep(driver: Any, backup: bool) -> None:
    apart = Apart()
    large = apart.arena.allocate(3 * GRANULE)
    fill(driver, large, 2)
    fill(driver, apart.middle, 1)
    for _ in range(2):
        apart.arena.sleep(backup=backup)
        assert apart.arena.mapped == 0
        apart.arena.wake()
        assert apart.arena.mapped == 5 * GRANULE
        if not backup:
            fill(driver, large, 2)
            fill(driver, apart.middle, 1)
        assert filled_with(driver, large, 2)
        assert filled_with(driver, apart.middle, 1)
    if driver.name == "sim":
        apart.arena.sleep()
        assert not driver.live()["physical"]


# --- graphs ---------------------------------------------------------------------------------------------------

PAGE = GRANULE // 4  # floats


def captured(xp: Any, arena: Any, rows: int, name: str) -> tuple[Any, Any, Any]:
    """A graph of (x + 1) * 2 + 3 with temporaries as large as its input; x and the result lie outside the arena."""
    x, sink = zeros(xp, rows), zeros(xp, rows)
    with bg.capture(arena=arena, name=name) as graph:
        t = x + 1
        t = bg.break_here(lambda a: a * 2, bg.INFER, t)
        np.add(t, 3, out=sink)
        del t
    return graph, x, sink


def check(driver: Any, one: tuple[Any, Any, Any], value: float, stream: Any) -> None:
    graph, x, sink = one
    with on_stream(x, stream):
        refill(x, value)
        refill(sink, -1)
        graph.replay()
        assert np.all(sink.get() == (value + 1) * 2 + 3)


@every_schedule
def test_graphs_that_use_the_same_bytes_by_different_addresses_replay_right(driver: Any, xp: Any) -> None:
    apart = Apart()
    small = captured(xp, apart.arena, PAGE, "small")
    large = captured(xp, apart.arena, 2 * PAGE + 1000, "large")
    assert apart.arena.mapped <= 7 * GRANULE
    streams = [driver.create_stream() for _ in range(2)]
    driver.synchronize()
    for n in range(4):
        check(driver, large, n, streams[n % 2])
        check(driver, small, n + 10, streams[1 - n % 2])


@every_schedule
def test_replays_that_nobody_waits_for_are_ordered_by_the_arena(driver: Any, xp: Any) -> None:
    apart = Apart()
    graphs = [captured(xp, apart.arena, rows, str(rows)) for rows in (PAGE, 2 * PAGE + 1000, 3 * PAGE)]
    streams = [driver.create_stream() for _ in graphs]
    for n, (_, x, _) in enumerate(graphs):
        refill(x, n)
    driver.synchronize()
    for n in range(9):
        graphs[n % 3][0].replay(stream=streams[n * 5 % 3])
    driver.synchronize()
    for n, (_, _, sink) in enumerate(graphs):
        assert np.all(sink.get() == (n + 1) * 2 + 3)


@every_schedule
def test_a_page_that_a_fork_still_reads_is_no_part_of_a_second_mapping(driver: Any, xp: Any) -> None:
    """The block that dies is a small one at a first address, the request a large one at a second."""
    apart, side, order = Apart(), driver.create_stream(), Order(driver)
    x, wide = zeros(xp, PAGE), zeros(xp, 3 * PAGE)
    side_out, main_out = zeros(xp, PAGE), zeros(xp, 3 * PAGE)
    driver.synchronize()
    with bg.capture(arena=apart.arena) as graph:
        a = x + 1
        order(bg.current_stream(), side)
        with on_stream(x, side):
            np.multiply(a, 2, out=side_out)
        del a
        large = wide + 100  # three whole pages are free without that of a
        np.add(large, 1, out=main_out)
        larger_needs_it = wide + 200
        np.add(larger_needs_it, main_out, out=main_out)
        order(side, bg.current_stream())
        del large, larger_needs_it
    refill(x, 3)
    refill(wide, 4)
    driver.synchronize()
    graph.replay()
    driver.synchronize()
    assert holds(side_out, 8)
    assert holds(main_out, 4 + 101 + 4 + 200)


@every_schedule
def test_pages_of_a_second_mapping_that_a_fork_still_reads_are_withheld(driver: Any, xp: Any) -> None:
    """And the other way round: a large block at a second address dies, and small ones are asked for."""
    apart, side, order = Apart(), driver.create_stream(), Order(driver)
    x, wide = zeros(xp, PAGE), zeros(xp, 3 * PAGE)
    side_out, main_out = zeros(xp, 3 * PAGE), zeros(xp, PAGE)
    driver.synchronize()
    with bg.capture(arena=apart.arena) as graph:
        large = wide + 1
        order(bg.current_stream(), side)
        with on_stream(x, side):
            np.multiply(large, 2, out=side_out)
        del large
        smalls = [x + n for n in range(4)]
        for small in smalls:
            np.add(main_out, small, out=main_out)
        order(side, bg.current_stream())
        del smalls, small
        mapped = apart.arena.mapped
        again = wide + 5
        np.add(side_out, again, out=side_out)
        del again
        assert apart.arena.mapped == mapped, "after the join they serve again"
    refill(x, 3)
    refill(wide, 4)
    refill(main_out, 0)
    driver.synchronize()
    graph.replay()
    driver.synchronize()
    assert holds(side_out, 10 + 9)
    assert holds(main_out, 4 * 3 + 6)


def test_what_an_earlier_graph_overwrites_is_known_by_its_bytes(driver: Any, xp: Any) -> None:
    apart, kept = Apart(), []
    first, x, _ = captured(xp, apart.arena, 2 * PAGE, "first")
    wide = zeros(xp, 3 * PAGE)
    later = keep_a_table(apart.arena, wide, kept)
    (survivor,) = later.survivors
    assert survivor.ptr == address(kept[0][0])
    assert not apart.low <= survivor.ptr < apart.end, "it lies at a second address"
    assert list(survivor.overwritten_by) == ["first"]
    refill(x, 5)
    first.replay()
    driver.synchronize()
    assert not holds(kept[0][0], 3)


def keep_a_table(arena: Any, x: Any, kept: list[Any]) -> Any:
    """Capture a forward that keeps what it made where no variable of a frame shows it."""
    graph = bg.BreakableGraph()
    with bg.capture(graph, arena=arena):
        hide(kept, x + 3)
    return graph


class _Shelf:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, _: int) -> Any:
        return self.array


def hide(kept: list[Any], array: Any) -> None:
    kept.append(_Shelf(array))


@every_schedule
def test_outputs_at_second_addresses_outlive_graph_and_arena(driver: Any, xp: Any) -> None:
    apart = Apart()
    wide = zeros(xp, 3 * PAGE)
    with bg.capture(arena=apart.arena) as graph:
        out = wide + 7
    graph.close()
    del apart, graph
    gc.collect()
    assert holds(out, 7)
    del out
    gc.collect()
    if driver.name == "sim":
        assert not driver.live()["physical"]
        assert not driver.live()["reservation"]


@pytest.mark.parametrize("order", [(6, 5, 4, 3), (3, 4, 5, 6), (4, 6, 3, 5), (5, 3, 6, 4)], ids=str)
def test_sizes_in_any_order_take_little_more_than_the_largest(driver: Any, xp: Any, order: tuple[int, ...]) -> None:
    """Each forward leaves a small output behind, between the large temporaries of the next."""
    arena, held = bg.Arena(), []
    inputs = [zeros(xp, mib * MIB // 4) for mib in order]
    for x in inputs:
        with bg.capture(arena=arena) as graph:
            t = x + 1
            t = t * 2
            t = t + 3
            small = t[:100] * 1
            del t
        held.append((graph, x, small))
    assert arena.mapped <= 2 * 6 * MIB + 2 * GRANULE
    for n, (graph, x, _) in enumerate(held):
        refill(x, n)
        graph.replay()
        assert holds(held[n][2], (n + 1) * 2 + 3)
