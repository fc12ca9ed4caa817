"""Whose memory a captured forward uses, and how long.

Proves C16's identity with recycled addresses, C18 (what a break's arguments hold), C25's order across streams,
C28 (segments allocate from the arena, breaks do not) and that the arena grows inside a capture (C29).
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import every_schedule, floats, holds, on_stream, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.errors import OutOfMemory

MIB = 1 << 20


def address(driver: Any, array: Any) -> int:
    """First byte of a device array."""
    framework = frameworks.of(array, driver)
    assert framework is not None
    return framework.view(array).ptr


# --- where arrays come from (C28, C29) ------------------------------------------------------------------------


def test_arrays_made_in_a_segment_never_reach_the_drivers_allocator(sim: Any, xp: Any) -> None:
    x = zeros(xp, 1024)
    names = ("mem_alloc", "mem_free", "mem_alloc_async", "mem_free_async", "mem_host_alloc")
    counts: list[list[int]] = []

    def look(a: Any) -> Any:
        counts.append([sim.calls[name] for name in names])
        return a

    with bg.capture() as graph:
        before = [sim.calls[name] for name in names]
        y = x
        for _ in range(8):
            y = (y + 1) * np.float32(2)
            y = np.concatenate([y, xp.zeros(1024, np.float32)])[:1024]
        bg.break_here(look, bg.NO_WRITEBACK, y)
    assert counts == [before]
    graph.replay()
    assert [sim.calls[name] for name in names] == before
    assert graph.captured


def test_a_breaks_temporaries_are_not_in_the_arena(driver: Any, xp: Any) -> None:
    x, arena, used, inside = zeros(xp, 1024), bg.Arena(), [], []

    def work(a: Any) -> Any:
        used.append(arena.used)
        temporaries = [a + n for n in range(64)]
        used.append(arena.used)
        inside.extend(arena.block_at(address(driver, t)) for t in temporaries)
        return temporaries[-1]

    with bg.capture(arena=arena) as graph:
        y = bg.break_here(work, bg.INFER, x + 1)
    assert used[0] == used[1] > 0
    assert inside == [None] * 64
    assert arena.block_at(address(driver, y)) is not None, "the inferred destination is the arena's"
    peak = arena.peak
    graph.replay()
    assert arena.peak == peak, "a replay allocates nothing from the arena"
    assert holds(y, 64)


def test_arrays_made_outside_a_capture_are_not_in_the_arena(driver: Any, xp: Any) -> None:
    arena = bg.Arena()
    with bg.capture(arena=arena):
        inside = zeros(xp) + 1
    outside = zeros(xp)
    assert arena.block_at(address(driver, inside)) is not None
    assert arena.block_at(address(driver, outside)) is None


def test_the_arena_grows_inside_a_capture(driver: Any, xp: Any) -> None:
    arena = bg.Arena()
    x = zeros(xp, MIB)
    assert arena.mapped == 0
    with bg.capture(arena=arena) as graph:
        kept = [x + n for n in range(5)]
    assert arena.mapped >= arena.used >= 5 * 4 * MIB
    refill(x, 1)
    graph.replay()
    assert [float(array.get()[-1]) for array in kept] == [1, 2, 3, 4, 5]
    assert arena.reserved >= arena.mapped


def test_an_arena_at_its_limit_says_so_and_the_next_capture_works(driver: Any, xp: Any) -> None:
    arena = bg.Arena(limit=2 * MIB)
    x = zeros(xp, MIB)
    with pytest.raises(OutOfMemory, match="limit"), bg.capture(arena=arena) as graph:
        kept = [x + n for n in range(5)]
        del kept
    assert graph.state == "failed"
    small = zeros(xp)
    with bg.capture(arena=arena) as graph:
        y = small + 1
    graph.replay()
    assert holds(y, 1)


def test_freed_blocks_serve_later_segments(driver: Any, xp: Any) -> None:
    arena = bg.Arena()
    x = zeros(xp, MIB)
    with bg.capture(arena=arena):
        for _ in range(8):
            t = x + 1
            del t
            bg.break_graph()
        peak = arena.peak
    assert peak < 2 * 4 * MIB


# --- what a break holds (C18) ---------------------------------------------------------------------------------


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Box:
    a: Any


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a: a,
        lambda a: (a, 1),
        lambda a: [a],
        lambda a: {"a": a},
        lambda a: Pair(a, None),
        lambda a: Box(a),
        lambda a: {"deep": [Pair((a,), Box(a))]},
    ],
    ids=["array", "tuple", "list", "dict", "namedtuple", "dataclass", "nested"],
)
def test_an_argument_from_the_arena_is_not_kept_alive_by_its_break(driver: Any, xp: Any, wrap: Any) -> None:
    """Its block is free for later segments, and the replay still reads the value that an earlier segment wrote."""
    x, arena, seen = zeros(xp, 1024), bg.Arena(), []

    def first(tree: Any) -> Any:
        while not hasattr(tree, "get") or isinstance(tree, dict):
            tree = next(iter(tree.values())) if isinstance(tree, dict) else tree.a if isinstance(tree, Box) else tree[0]
        return tree

    def work(tree: Any) -> None:
        seen.append((type(tree), float(first(tree).get()[0])))

    with bg.capture(arena=arena) as graph:
        t = x + 1
        bg.break_here(work, bg.IN_PLACE, wrap(t))
        ptr, before = address(driver, t), arena.used
        del t
        gc.collect()
        assert arena.used < before, "the break held the block"
        again = x + 100
        reused = address(driver, again) == ptr
    refill(x, 5)
    graph.replay()
    assert [value for _, value in seen] == [1, 6]
    assert seen[0][0] is seen[1][0]
    assert reused
    assert holds(again, 105)


def test_an_argument_from_outside_is_held_as_long_as_the_graph(driver: Any, xp: Any) -> None:
    x, seen = zeros(xp), []

    def weights() -> Any:
        return floats(xp, 3, 3, 3, 3)

    weight = weights()
    alive = weakref.ref(weight)
    with bg.capture() as graph:
        out = bg.break_here(lambda a, w: a * w, bg.INFER, x + 1, weight)
    del weight
    gc.collect()
    assert alive() is not None
    seen.extend(floats(xp, -1, -1, -1, -1) for _ in range(8))
    graph.replay()
    assert holds(out, 3)
    graph.close()
    gc.collect()
    assert alive() is None


def test_the_views_that_a_break_is_given_have_the_arrays_own_layout(driver: Any, xp: Any) -> None:
    layouts = []

    def look(*arrays: Any) -> None:
        layouts.append([(a.shape, a.strides, a.dtype) for a in arrays])

    x = zeros(xp, 4, 6)
    with bg.capture() as graph:
        t = x + 1
        bg.break_here(look, bg.IN_PLACE, t, t.T, t[1:, ::2], t[0])
    graph.replay()
    assert layouts[0] == layouts[1]
    assert layouts[0][1][0] == (6, 4)
    assert layouts[0][2][1] == (24, 8)


def test_an_inferred_destination_is_owned_by_the_array_returned_in_its_place(driver: Any, xp: Any) -> None:
    x, arena = zeros(xp, 1024), bg.Arena()
    with bg.capture(arena=arena) as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x)
        out = y + 1
        before = arena.used
        del y
        gc.collect()
        assert arena.used < before
    refill(x, 4)
    graph.replay()
    assert holds(out, 9)


def test_what_an_inferred_result_came_from_is_not_kept(driver: Any, xp: Any) -> None:
    x, made = zeros(xp), []

    def work(a: Any) -> Any:
        result = a * 2
        made.append(weakref.ref(result))
        return result

    with bg.capture() as graph:
        out = bg.break_here(work, bg.INFER, x + 1)
    graph.replay()
    gc.collect()
    assert [ref() for ref in made] == [None, None]
    assert holds(out, 2)


def test_the_output_of_a_closed_graph_keeps_its_values(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        out = x + 7
    graph.close()
    with bg.capture() as other:
        kept = [x - n for n in range(8)]
    other.replay()
    assert holds(out, 7)
    del kept


# --- identity (C16) -------------------------------------------------------------------------------------------


def test_a_recycled_address_outside_the_arena_is_another_destination(driver: Any, xp: Any) -> None:
    """Destinations of the caller are owned by their break, so their addresses cannot recur within one capture."""
    x = zeros(xp)
    for n in range(3):
        dst = zeros(xp)
        with bg.capture() as graph:
            bg.break_here(lambda a, n=n: a + n, dst, x + 0)
        graph.replay()
        assert holds(dst, n)
        graph.close()
        del dst, graph


def test_a_block_that_was_handed_on_within_one_capture_may_be_a_destination_again(driver: Any, xp: Any) -> None:
    x, arena, addresses = zeros(xp), bg.Arena(), []
    total = zeros(xp)
    with bg.capture(arena=arena) as graph:
        for n in range(1, 4):
            y = bg.break_here(lambda a, n=n: a * n, bg.INFER, x)
            addresses.append(address(driver, y))
            np.add(total, y, out=total)
            del y
    assert len(set(addresses)) < 3, "the arena hands a freed block on, so the address recurs"
    refill(x, 1)
    refill(total, 0)
    graph.replay()
    assert holds(total, 6)


def test_two_live_blocks_are_two_destinations(driver: Any, xp: Any) -> None:
    x, arena = zeros(xp), bg.Arena()
    with bg.capture(arena=arena) as graph:
        a = bg.break_here(lambda v: v + 1, bg.INFER, x)
        b = bg.break_here(lambda v: v + 2, bg.INFER, x)
        out = a + b
    refill(x, 10)
    graph.replay()
    assert holds(out, 23)


def test_one_live_arena_block_named_twice_is_refused(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with pytest.raises(bg.errors.AliasedDestination), bg.capture():
        t = x + 1
        bg.break_here(lambda v: v + 1, t, x)
        bg.break_here(lambda v: v + 2, t[:2], x[:2])


# --- order across streams (C25) -------------------------------------------------------------------------------


@every_schedule
def test_a_capture_after_a_replay_on_another_stream_waits_for_it(driver: Any, xp: Any) -> None:
    """The capture's first segment is launched into blocks that the replay may still be reading."""
    arena, x, out = bg.Arena(), zeros(xp, 256), zeros(xp, 256)

    def forward(n: float) -> None:
        t = x + n
        np.multiply(t, 2, out=out)

    with bg.capture(arena=arena) as first:
        forward(1)
    stream, other = driver.create_stream(), driver.create_stream()
    refill(x, 1)
    driver.synchronize()
    result = zeros(xp, 256)
    driver.synchronize()
    first.replay(stream=stream)
    with on_stream(x, other):
        with bg.capture(arena=arena) as second:
            t = x + 50
            np.multiply(t, 3, out=result)
            del t
        driver.stream_synchronize(int(other))
    driver.synchronize()
    assert holds(out, 4)
    assert holds(result, 153)
    second.close()


@pytest.mark.races
def test_the_race_finder_sees_two_arenas_of_one_buffer_that_nothing_orders(sim: Any, xp: Any) -> None:
    """The control of the case above: with an arena each and one output, nothing orders the two replays."""
    x, out = zeros(xp, 256), zeros(xp, 256)
    graphs = []
    for n in (1, 2):
        with bg.capture(arena=bg.Arena()) as graph:
            np.add(x, n, out=out)
        graphs.append(graph)
    streams = sim.create_stream(), sim.create_stream()
    sim.synchronize()
    for graph, stream in zip(graphs, streams, strict=True):
        graph.replay(stream=stream)
    sim.synchronize()
    assert len(sim.races) > 0


# --- frozen listing (C19) -------------------------------------------------------------------------------------


def test_frozen_lists_each_plain_argument_by_name_and_no_array(driver: Any, xp: Any) -> None:
    x = zeros(xp)

    def work(a: Any, scale: float, *, label: str, pair: tuple[Any, int], absent: None = None) -> Any:
        return a * scale

    with bg.capture() as graph:
        bg.break_here(work, bg.INFER, x + 1, 2.0, label="text", pair=(x, 3))
        bg.break_here(lambda a: a, bg.INFER, x + 1)
    values = {entry.name: entry.value for entry in graph.breaks[0].frozen}
    assert values["scale"] == 2.0
    assert values["label"] == "text"
    assert "a" not in values
    assert 3 in values.values() or any("3" in str(value) for value in values.values())
    assert graph.breaks[1].frozen == ()


def test_an_arena_gives_its_memory_back_only_when_nothing_on_the_device_uses_it(driver: Any, xp: Any) -> None:
    """Unmapping does not wait by itself: an H200 unmapped a page under a kernel that ran for 200 ms more."""
    x, out = zeros(xp, 1024), zeros(xp, 1024)
    arena = bg.Arena()
    with bg.capture(arena=arena) as graph:
        y = x + 1
    graph.close()
    for _ in range(50):
        np.add(y, out, out=out)
    del y, graph, arena
    gc.collect()
    assert holds(out, 50)


def test_an_arena_of_another_device_is_refused_and_nothing_is_changed(sim: Any, xp: Any) -> None:
    """Two simulated devices have contexts of one handle, so the handle alone does not tell."""
    with bg.driver.use("sim"):
        foreign = bg.Arena()
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(bg.errors.CaptureStateError, match="arena"), bg.capture(graph, arena=foreign):
        x + 1
    assert graph.state == "empty"
    assert not bg.is_capturing()
