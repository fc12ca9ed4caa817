"""What a captured graph says that it costs: bytes asked for, bytes used, bytes alive, and its report.

Proves the eighth point of graph memory. The arena's own accounts are in test_arena_blocks.py.
"""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest
from support import holds, zeros

import breakgraph as bg

ROWS = 1024
NBYTES = 4 * ROWS  # of each array here


def test_bytes_that_are_handed_on_count_each_time_as_allocated_and_once_as_footprint(driver: Any, xp: Any) -> None:
    x, out = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 0
        for n in range(9):
            y = y + n
        np.add(y, 0, out=out)
        del y
    memory = graph.memory
    assert memory.allocated == 10 * NBYTES
    assert memory.footprint == 2 * NBYTES
    assert memory.live == 0
    assert (graph.segments[0].allocations, graph.segments[0].allocated) == (10, 10 * NBYTES)


def test_each_segment_says_what_it_asked_for(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        a = x + 1
        bg.break_graph()
        bg.break_graph()
        b = [x + n for n in range(3)]
        c = (x + 1)[:10] * 2
    assert [segment.allocations for segment in graph.segments] == [1, 0, 5]
    assert [segment.allocated for segment in graph.segments] == [NBYTES, 0, 4 * NBYTES + 512]
    assert graph.memory.allocated == sum(segment.allocated for segment in graph.segments)
    assert len((a, *b, c)) == 5


def test_live_bytes_are_those_of_arrays_that_are_still_held(driver: Any, xp: Any) -> None:
    arena, x = bg.Arena(), zeros(xp, ROWS)
    with bg.capture(arena=arena) as other:
        of_other = x + 1
    with bg.capture(arena=arena) as graph:
        kept = [x + n for n in range(4)]
        inferred = bg.break_here(lambda a: a * 2, bg.INFER, kept[0])
    assert graph.memory.live == 5 * NBYTES
    assert other.memory.live == NBYTES
    kept.pop()
    assert graph.memory.live == 4 * NBYTES
    kept.clear()
    del inferred
    gc.collect()
    assert graph.memory.live == 0
    assert graph.memory.footprint == 5 * NBYTES, "what its replays write is what it was"
    assert holds(of_other, 1)


def test_a_breaks_temporaries_are_on_no_account(driver: Any, xp: Any) -> None:
    x, out = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        bg.break_here(lambda a: sum([a + n for n in range(20)], start=a * 0), out, x)
        np.add(out, 1, out=out)
    assert (graph.memory.allocated, graph.memory.footprint, graph.memory.live) == (0, 0, 0)


def test_replays_change_no_account(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1) + 1
        pinned = graph.output(y)
    before = graph.memory, graph.arena.used, graph.arena.peak, graph.arena.mapped
    for _ in range(3):
        graph.replay()
    assert (graph.memory, graph.arena.used, graph.arena.peak, graph.arena.mapped) == before
    assert holds(pinned, 3)


def test_graphs_that_share_an_arena_each_say_their_own_footprint(driver: Any, xp: Any) -> None:
    arena, graphs = bg.Arena(), []
    inputs = [(zeros(xp, rows), zeros(xp, rows)) for rows in (4 * ROWS, 2 * ROWS, ROWS)]
    for x, out in inputs:
        with bg.capture(arena=arena) as graph:
            np.add((x + 1) * 2, 0, out=out)
        graphs.append(graph)
    assert [graph.memory.footprint for graph in graphs] == [8 * NBYTES, 4 * NBYTES, 2 * NBYTES]
    assert arena.peak == 8 * NBYTES, "the largest, not the sum"


def test_the_account_is_a_value_that_cannot_be_changed(driver: Any, xp: Any) -> None:
    with bg.capture(arena=bg.Arena(), debug=True) as graph:
        zeros(xp, ROWS) + 1
    memory = graph.memory
    names = {field.name for field in dataclasses.fields(memory)}
    assert names == {"allocated", "footprint", "live", "outputs", "execs"}
    assert all(isinstance(value, int) and value >= 0 for value in dataclasses.asdict(memory).values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        memory.live = 1


def test_what_execs_take_is_measured_in_debug_alone(sim: Any, xp: Any) -> None:
    for debug in (False, True):
        before = sim.calls["mem_get_info"]
        with bg.capture(arena=bg.Arena(limit=4 << 20), debug=debug) as graph:
            zeros(xp, ROWS) + 1
        assert (graph.memory.execs is not None) == debug
        assert sim.calls["mem_get_info"] - before == 2 * debug
        assert ("not measured" in graph.report()) != debug


def test_a_graph_that_holds_no_capture_costs_nothing(driver: Any, xp: Any) -> None:
    graph = bg.BreakableGraph()
    empty = graph.memory
    assert set(dataclasses.asdict(empty).values()) == {0}
    with bg.capture(graph, arena=bg.Arena()):
        out = graph.output(zeros(xp, ROWS) + 1)
    assert graph.memory != empty
    graph.reset()
    assert graph.memory == empty
    assert holds(out, 1)


def test_the_report_has_a_line_for_each_step_and_the_accounts(driver: Any, xp: Any) -> None:
    def double(a: Any) -> Any:
        return a * 2

    x, cache = zeros(xp, 512 * ROWS), bg.ExecCache()
    with bg.capture(arena=bg.Arena(), execs=cache, name="decode") as graph:
        y = bg.break_here(double, bg.INFER, x + 1)
        bg.break_graph()
        out = graph.output(y + 1)
    text = graph.report()
    lines = text.splitlines()
    assert "decode" in lines[0]
    assert sum("segment" in line for line in lines) >= 3
    assert sum("double" in line for line in lines) == 1
    assert any("test_graph_accounts.py" in line and "double" in line for line in lines)
    assert "shared" in text
    assert "MiB" in text
    for word in ("arena", "outputs", "execs"):
        assert word in text
    assert holds(out, 3)
    assert isinstance(bg.BreakableGraph().report(), str)


def test_the_repr_of_a_graph_says_its_bytes(driver: Any, xp: Any) -> None:
    small, large = zeros(xp, ROWS), zeros(xp, 512 * ROWS)
    texts = []
    for x in (small, large):
        with bg.capture(arena=bg.Arena()) as graph:
            x + 1
        texts.append(repr(graph))
    assert "4 KiB" in texts[0]
    assert "2 MiB" in texts[1]
