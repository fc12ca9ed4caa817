"""The memory map says who lives where in the arena from when to when, and never two in one byte at one moment."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from pictures_support import attend, ptr_of, small
from support import on_stream, zeros

import breakgraph as bg
from breakgraph.inspect import describe


def blocks_of(graph: Any) -> list[Any]:
    return describe(graph)["memory"]["blocks"]


def test_a_block_lives_from_the_step_that_made_it_to_the_one_that_dropped_it(driver: Any, xp: Any) -> None:
    x, out = zeros(xp), zeros(xp)
    with bg.capture(arena=bg.Arena()) as graph:
        kept = x + 1
        passing = x + 2
        np.add(passing, kept, out=out)
        bg.break_graph()
        del passing
        np.add(kept, 1, out=out)
        bg.break_graph()
        np.add(kept, 1, out=out)
    lives = [(block["made_in"], block["freed_in"]) for block in blocks_of(graph)]
    assert lives == [(0, None), (0, 2)]
    assert [block["bytes"] for block in blocks_of(graph)] == [512, 512]
    assert blocks_of(graph)[0]["ptr"] == hex(ptr_of(kept, driver))


def test_what_a_break_drops_is_freed_in_the_break(driver: Any, xp: Any) -> None:
    x, held = zeros(xp), []
    with bg.capture(arena=bg.Arena()) as graph:
        held.append(x + 1)
        bg.break_here(lambda: held.clear(), bg.IN_PLACE)
        y = x + 1
    assert [(block["made_in"], block["freed_in"]) for block in blocks_of(graph)] == [(0, 1), (2, None)]
    assert y is not None


def test_the_result_of_a_break_is_named_and_made_in_the_break(driver: Any, xp: Any) -> None:
    graph, result = small(xp)
    _, block = blocks_of(graph)
    assert block["made_in"] == 1
    assert block["holds"] == "result of break 0 'attend'"
    assert block["ptr"] == hex(ptr_of(result, driver))
    assert block["end"] is block["freed_in"] is None


def test_a_block_on_pages_that_are_mapped_twice_has_the_place_of_each(driver: Any, xp: Any) -> None:
    page = driver.mem_get_allocation_granularity(0)
    x = xp.zeros(page // 2, np.float32)  # two pages
    with bg.capture(arena=bg.Arena()) as graph:
        one, other, third = (x[: page // 4] + n for n in range(3))
        del one, third
        large = x + 1
    *singles, double = blocks_of(graph)
    assert double["ptr"] == hex(ptr_of(large, driver))
    assert double["spans"] == [span for single in (singles[0], singles[2]) for span in single["spans"]]
    assert other is not None


def test_what_dies_after_the_capture_has_outlived_it(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
    del y
    assert graph.memory.live == 0
    (block,) = blocks_of(graph)
    assert block["freed_in"] is None


def test_other_captures_of_the_arena_are_not_in_it(driver: Any, xp: Any) -> None:
    arena, x, kept = bg.Arena(), zeros(xp), []
    with bg.capture(arena=arena) as first:
        kept.append(x + 1)
    before = blocks_of(first)
    with bg.capture(arena=arena) as second:
        kept.clear()  # the other capture's block dies in this one
        y = x + 1
        z = y + 1
    assert blocks_of(first) == before
    assert len(blocks_of(second)) == 2
    assert z is not None


def test_a_failed_capture_has_no_map_and_the_next_one_has_its_own(driver: Any, xp: Any) -> None:
    graph, x = bg.BreakableGraph(), zeros(xp)
    with pytest.raises(KeyError), bg.capture(graph, arena=bg.Arena()):
        x + 1
        raise KeyError
    assert blocks_of(graph) == []
    with bg.capture(graph, arena=bg.Arena()):
        y = x + 1
    assert len(blocks_of(graph)) == 1
    assert y is not None


@pytest.mark.parametrize("seed", range(8))
def test_no_two_blocks_have_a_byte_in_common_at_one_moment(driver: Any, xp: Any, seed: int) -> None:
    choose, held, side = random.Random(seed), [], driver.create_stream()
    x = xp.zeros(8 * 2048, np.float32)
    driver.synchronize()
    with bg.capture(arena=bg.Arena(), aux_streams=[side]) as graph:
        for _ in range(60):
            what = choose.random()
            if what < 0.5:
                held.append(x[: 512 * choose.randint(1, 32)] + 1)
            elif what < 0.6:
                with on_stream(x, side):
                    held.append(x[: 512 * choose.randint(1, 32)] + 1)
            elif what < 0.9 and held:
                del held[choose.randrange(len(held))]
            elif held:
                held.append(attend(held[-1], 2.0))
    described = describe(graph)
    blocks, steps = described["memory"]["blocks"], len(described["steps"])
    assert len(blocks) == sum(segment.allocations for segment in graph.segments) + len(graph.breaks)
    for block in blocks:
        end = steps if block["end"] is None else block["end"]
        assert block["made_in"] <= block["start"] < end <= steps
        assert block["freed_in"] is None or block["freed_in"] <= block["end"] < block["freed_in"] + 1
        assert min(offset for offset, _ in block["spans"]) >= 0
        assert sum(nbytes for _, nbytes in block["spans"]) >= block["bytes"]
    for one, other in combinations(blocks, 2):
        apart = (one["end"] or steps) <= other["start"] or (other["end"] or steps) <= one["start"]
        assert apart or not overlap(one["spans"], other["spans"])


def overlap(one: list[list[int]], other: list[list[int]]) -> bool:
    return any(a < c + d and c < a + b for a, b in one for c, d in other)
