"""What a replay takes from the present (forward context, row count) and what it froze at capture.

Proves C19, C21's stub, C22 and C26's restoring of both, the padding helpers, and a service's use of them:
one graph per padded size, captured at first sight, replayed for any smaller batch.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import (
    assert_failed_clean,
    assert_next_capture_works,
    every_schedule,
    floats,
    holds,
    nothing_captured,
    refill,
    zeros,
)

import breakgraph as bg
from breakgraph.errors import BreakgraphError, BreakgraphWarning, CaptureStateError

ROWS, WIDTH = 8, 16


@dataclass
class Context:
    scale: float = 1.0
    mode: str = "EXTEND"


def network(xp: Any) -> tuple[Any, Any, Any]:
    """An input and two weights: 8 rows, 16 wide."""
    random = np.random.default_rng(1)
    shapes = ((ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH))
    x, w0, w1 = (xp.asarray(random.standard_normal(shape).astype(np.float32)) for shape in shapes)
    return x, w0, w1


def product(a: Any, w: Any) -> Any:
    """A matrix product as a sum of products, which cupy can capture."""
    return np.sum(a[:, :, None] * w[None], axis=1)


# --- the forward context (C19) --------------------------------------------------------------------------------


@every_schedule
def test_a_break_sees_the_live_context_at_replay(driver: Any, xp: Any) -> None:
    x, w0, w1 = network(xp)

    @bg.break_point
    def scaled(a: Any, ctx: Context) -> Any:
        assert bg.current_forward() is ctx
        return np.maximum(a, 0) * ctx.scale

    def forward(a: Any, ctx: Context) -> Any:
        return scaled(product(product(a, w0), w1), ctx) + 0

    with bg.active_forward(Context(scale=2)) as captured, bg.capture() as graph:
        out = forward(x, captured)
    live = Context(scale=5)
    with bg.active_forward(live):
        assert np.array_equal(out.get(), (np.maximum(product(product(x, w0), w1), 0) * 2).get())
        graph.replay()
        assert np.array_equal(out.get(), forward(x, live).get())


@nothing_captured
def test_a_keyword_argument_that_is_the_context_is_replaced_too(driver: Any, xp: Any) -> None:
    x = floats(xp, 1, 1)
    with bg.active_forward(Context(scale=2)) as captured, bg.capture() as graph:
        out = bg.break_here(lambda a, *, ctx: a * ctx.scale, bg.INFER, x, ctx=captured)
    with bg.active_forward(Context(scale=5)):
        graph.replay()
    assert holds(out, 5)


@nothing_captured
def test_every_other_argument_keeps_its_capture_time_value_and_is_listed(driver: Any, xp: Any) -> None:
    multiplier, seen = {"EXTEND": 3.0, "MIXED": 4.0}, []

    def work(a: Any, ctx: Context, *, mode: str) -> Any:
        seen.append((mode, ctx.mode))
        return a * multiplier[ctx.mode]

    x = floats(xp, 1, 2)
    with bg.active_forward(Context(mode="EXTEND")) as captured, bg.capture() as graph:
        out = bg.break_here(work, bg.INFER, x, captured, mode=captured.mode)
    with bg.active_forward(Context(mode="MIXED")):
        graph.replay()
    assert seen == [("EXTEND", "EXTEND"), ("EXTEND", "MIXED")]
    assert out.get().tolist() == [4, 8]
    assert [(entry.name, entry.value) for entry in graph.breaks[0].frozen] == [("mode", "EXTEND")]


@nothing_captured
def test_an_equal_object_is_not_the_context(driver: Any, xp: Any) -> None:
    x, twin = floats(xp, 1, 1), Context(scale=2)
    with bg.active_forward(Context(scale=2)), bg.capture() as graph:
        out = bg.break_here(lambda a, ctx: a * ctx.scale, bg.INFER, x, twin)
    with bg.active_forward(Context(scale=5)):
        graph.replay()
    assert holds(out, 2)
    assert [entry.value for entry in graph.breaks[0].frozen] == [2, "EXTEND"], "a dataclass is frozen field by field"


@nothing_captured
def test_nothing_published_nothing_replaced(driver: Any, xp: Any) -> None:
    """None as an argument is not the absent context."""
    x, seen = floats(xp, 1, 1), []

    def work(a: Any, nothing: Any, value: Any) -> Any:
        seen.append((nothing, value.scale))
        return a + 1

    with bg.capture() as graph:
        bg.break_here(work, bg.INFER, x, None, Context(scale=2))
    with bg.active_forward(Context(scale=5)):
        graph.replay()
    graph.replay()
    assert seen == [(None, 2)] * 3


def test_a_context_published_at_capture_and_missing_at_replay_is_refused_before_any_launch(sim: Any, xp: Any) -> None:
    x = floats(xp, 1, 1)
    with bg.active_forward(Context(scale=2)) as captured, bg.capture() as graph:
        out = bg.break_here(lambda a, ctx: a * ctx.scale, bg.INFER, x + 0, captured)
    launches = sim.calls["graph_launch"]
    with pytest.raises(CaptureStateError, match="active_forward"):
        graph.replay()
    assert sim.calls["graph_launch"] == launches
    assert graph.replays == 0
    with bg.active_forward(Context(scale=3)):
        graph.replay()
    assert holds(out, 3)


def test_contexts_nest_and_belong_to_their_thread(driver: Any, xp: Any) -> None:
    outer, inner, seen = Context(), Context(), []
    assert bg.current_forward() is None
    with bg.active_forward(outer) as published:
        assert published is outer
        assert bg.current_forward() is outer
        with pytest.raises(KeyError), bg.active_forward(inner):
            assert bg.current_forward() is inner
            raise KeyError
        assert bg.current_forward() is outer
        thread = threading.Thread(target=lambda: seen.append(bg.current_forward()))
        thread.start()
        thread.join()
    assert seen == [None]
    assert bg.current_forward() is None


@pytest.mark.parametrize("how", ["warn", "refuse"])
def test_frozen_arguments_can_be_warned_about_or_refused(driver: Any, xp: Any, how: str) -> None:
    x = zeros(xp)

    def capture() -> Any:
        with bg.capture(frozen=how) as graph:
            bg.break_here(lambda a, n: a * n, bg.INFER, x + 0, 3)
        return graph

    if how == "warn":
        with pytest.warns(BreakgraphWarning, match="3"):
            assert capture().captured
    else:
        with pytest.raises(BreakgraphError, match="3"):
            capture()
    with bg.capture(frozen=how) as graph:  # nothing is frozen here
        bg.break_here(lambda a: a * 3, bg.INFER, x + 0)
    assert graph.captured
    assert_next_capture_works(xp)


# --- rows (C22) -----------------------------------------------------------------------------------------------


@every_schedule
def test_rows_that_a_break_leaves_unwritten_are_zeroed_at_replay(driver: Any, xp: Any) -> None:
    x = xp.asarray(np.ones((ROWS, WIDTH), np.float32))

    @bg.break_point
    def ragged(a: Any) -> Any:
        rows = bg.current_valid_rows()
        out = xp.full(a.shape, np.nan, np.float32)
        np.multiply(a[:rows], 3, out=out[:rows])
        return out

    with bg.capture() as graph:
        out = ragged(x + 1) + 0
    assert holds(out, 6)
    graph.replay(valid_rows=1)
    host = out.get()
    assert np.array_equal(host[0], np.full(WIDTH, 6))
    assert np.array_equal(host[1:], np.zeros((ROWS - 1, WIDTH)))
    assert bg.current_valid_rows() is None


@pytest.mark.parametrize(("rows", "kept"), [(0, 0), (1, 1), (7, 7), (8, 8), (100, 8), (None, 8)])
def test_rows_from_valid_rows_on_are_zeroed_in_each_destination(
    driver: Any, xp: Any, rows: int | None, kept: int
) -> None:
    x = xp.asarray(np.ones((ROWS, 2), np.float32))
    given, flat, grid = zeros(xp, ROWS, 2), zeros(xp, ROWS), zeros(xp, ROWS, 4)
    with bg.capture() as graph:
        inferred = bg.break_here(lambda a: a * 2, bg.INFER, x + 0)
        bg.break_here(lambda a: (a * 3, a[:, 0] * 4), (given, flat), x + 0)
        bg.break_here(lambda a: a * 5, grid[:, 1:3], x + 0)
    graph.replay(valid_rows=rows)
    expected = np.zeros(ROWS, np.float32)
    expected[:kept] = 1
    assert np.array_equal(inferred.get(), np.repeat(expected[:, None] * 2, 2, 1))
    assert np.array_equal(given.get(), np.repeat(expected[:, None] * 3, 2, 1))
    assert np.array_equal(flat.get(), expected * 4)
    assert np.array_equal(grid.get()[:, 1:3], np.repeat(expected[:, None] * 5, 2, 1))
    assert np.array_equal(grid.get()[:, [0, 3]], np.zeros((ROWS, 2)))


def test_a_break_point_can_opt_out_of_rows_and_forms_without_a_destination_have_none(driver: Any, xp: Any) -> None:
    x, written = xp.asarray(np.ones((4, 2), np.float32)), zeros(xp, 4, 2)

    @bg.break_point(rows=False)
    def table(a: Any) -> Any:
        return a * 2

    def into(a: Any, dst: Any) -> None:
        np.multiply(a, 3, out=dst)

    with bg.capture() as graph:
        kept = table(x + 0)
        bg.break_here(into, bg.IN_PLACE, x + 0, written)  # names no argument at a call site (C13)
        handed = bg.break_here(lambda a: a * 4, bg.NO_WRITEBACK, x + 0)
    graph.replay(valid_rows=1)
    assert holds(kept, 2)
    assert holds(written, 3)
    assert holds(handed, 4)


@pytest.mark.parametrize("rows", [-1, 1.5, "4", True], ids=repr)
def test_a_row_count_that_is_none_is_refused_before_any_launch(sim: Any, xp: Any, rows: Any) -> None:
    with bg.capture() as graph:
        bg.break_here(lambda a: a, bg.INFER, zeros(xp) + 0)
    launches = sim.calls["graph_launch"]
    with pytest.raises((BreakgraphError, ValueError, TypeError)):
        graph.replay(valid_rows=rows)
    assert sim.calls["graph_launch"] == launches


def test_an_output_may_be_narrower_than_any_input(driver: Any, xp: Any) -> None:
    x = xp.asarray(np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH))

    def half(a: Any) -> Any:
        return a[:, : WIDTH // 2] + a[:, WIDTH // 2 :]

    with bg.capture() as graph:
        out = bg.break_here(half, bg.INFER, x + 1) * 2
    assert out.shape == (ROWS, WIDTH // 2)
    graph.replay()
    assert np.array_equal(out.get(), (half(x + 1) * 2).get())


@nothing_captured
def test_zero_rows_pass_through(driver: Any, xp: Any) -> None:
    x, shapes = xp.zeros((0, WIDTH), np.float32), []

    def work(a: Any) -> Any:
        shapes.append(a.shape)
        return a * 2

    with bg.capture() as graph:
        out = bg.break_here(work, bg.INFER, x)
    graph.replay()
    assert shapes == [(0, WIDTH)] * 2
    assert out.shape == (0, WIDTH)


def test_a_failing_replay_restores_the_context_and_the_row_count(driver: Any, xp: Any) -> None:
    fails, seen = [False], []

    def work(a: Any, ctx: Context) -> Any:
        seen.append((bg.current_forward() is ctx, bg.current_valid_rows()))
        if fails[0]:
            raise ValueError("at replay")
        return a * ctx.scale

    x, live = floats(xp, 1, 1), Context(scale=3)
    with bg.active_forward(Context(scale=2)) as captured, bg.capture() as graph:
        out = bg.break_here(work, bg.INFER, x + 0, captured)
    with bg.active_forward(live):
        fails[0] = True
        with pytest.raises(ValueError, match="at replay"):
            graph.replay(valid_rows=1)
        assert bg.current_forward() is live
        assert bg.current_valid_rows() is None
        fails[0] = False
        graph.replay()
    assert bg.current_forward() is None
    assert seen == [(True, None), (True, 1), (True, None)]
    assert holds(out, 3)


# --- stubs (C21) ----------------------------------------------------------------------------------------------


def test_a_stub_zeroes_at_capture_and_the_body_runs_at_replay(driver: Any, xp: Any) -> None:
    x = floats(xp, 1, 2, 3, 4)

    @bg.break_point(stub=lambda a, ctx: xp.zeros(a.shape, a.dtype))
    def scaled(a: Any, ctx: Context) -> Any:
        return a * ctx.scale

    with bg.active_forward(Context()) as captured, bg.capture() as graph:
        out = scaled(x, captured) + 0
    assert holds(out, 0)
    with bg.active_forward(Context(scale=3)):
        graph.replay(valid_rows=3)
    assert out.get().tolist() == [3, 6, 9, 0]


def test_a_stub_that_raises_leaves_no_segment_behind(driver: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()

    def stub(a: Any) -> Any:
        raise ValueError("stub")

    body = bg.break_point(stub=stub)(lambda a: a * 2)
    with pytest.raises(ValueError, match="stub"), bg.active_forward(Context()), bg.capture(graph):
        body(x + 1)
    assert_failed_clean(graph, driver)
    assert bg.current_forward() is None
    assert_next_capture_works(xp)


def test_a_stub_is_not_kept_by_the_graph(driver: Any, xp: Any) -> None:
    class Stub:
        def __call__(self, a: Any) -> Any:
            return a * 0

    stub = Stub()
    alive = weakref.ref(stub)
    body = bg.break_point(stub=stub)(lambda a: a * 2)
    with bg.capture() as graph:
        body(zeros(xp) + 1)
    del stub, body
    gc.collect()
    assert alive() is None
    graph.replay()


# --- helpers --------------------------------------------------------------------------------------------------


def test_scrubbing_zeroes_the_tail_of_each_array_and_skips_none(driver: Any, xp: Any) -> None:
    square, flat, exact = (xp.asarray(np.ones(shape, np.float32)) for shape in ((6, 3), (6,), (4,)))
    assert bg.scrub_padding_tail(4, square, None, flat, exact) is None
    assert np.array_equal(square.get()[:, 0], [1, 1, 1, 1, 0, 0])
    assert np.array_equal(flat.get(), [1, 1, 1, 1, 0, 0])
    assert holds(exact, 1)


def test_scrubbing_a_strided_array_leaves_its_neighbours(driver: Any, xp: Any) -> None:
    grid = xp.asarray(np.ones((6, 4), np.float32))
    bg.scrub_padding_tail(4, grid[:, 1:3])
    expected = np.ones((6, 4))
    expected[4:, 1:3] = 0
    assert np.array_equal(grid.get(), expected)


def test_scrubbing_works_inside_a_segment(driver: Any, xp: Any) -> None:
    x = zeros(xp, 6, 2)
    with bg.capture() as graph:
        y = x + 1
        bg.scrub_padding_tail(4, y)
    assert len(graph.segments) == 1
    assert graph.segments[0].nodes == 2
    refill(x, 5)
    graph.replay()
    assert np.array_equal(y.get()[:, 0], [6, 6, 6, 6, 0, 0])


def test_slicing_keeps_none_and_an_array_that_is_already_that_long(driver: Any, xp: Any) -> None:
    long, exact = xp.asarray(np.arange(6, dtype=np.float32)), zeros(xp)
    sliced = bg.slice_to_real_rows(4, long, None, exact)
    assert sliced[0].get().tolist() == [0, 1, 2, 3]
    assert sliced[1] is None
    assert sliced[2] is exact
    refill(sliced[0], 9)
    assert long.get().tolist() == [9, 9, 9, 9, 4, 5], "a slice is a view"
    assert bg.slice_to_real_rows(4, exact) is exact


def test_ladders_end_at_the_maximum_and_waste_little() -> None:
    assert list(bg.size_ladder(2048, enabled=False)) == []
    for maximum in (8192, 2048, 1500, 257, 3, 1):
        sizes = list(bg.size_ladder(maximum))
        assert sizes[-1] == maximum
        assert sizes == sorted(set(sizes))
        for size, after in itertools.pairwise(sizes):
            assert after - size <= 512
            assert size < 256 or after - size <= max(size / 8, 16)
    assert list(bg.size_ladder(2048, [256, 1024, 4096])) == [256, 1024, 2048]


def test_a_ladder_of_no_rows_is_refused() -> None:
    for maximum in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            bg.size_ladder(maximum)


# --- a service by hand ----------------------------------------------------------------------------------------


@every_schedule
def test_sizes_captured_at_first_sight_serve_every_batch_from_one_arena(driver: Any, xp: Any) -> None:
    _, w0, w1 = network(xp)
    arena, random, graphs = bg.Arena(), np.random.default_rng(2), {}

    @bg.break_point
    def normalized(a: Any, ctx: Any) -> Any:
        return np.maximum(a, 0) * ctx.scale

    def forward(a: Any, ctx: Any) -> Any:
        return normalized(product(normalized(product(a, w0), ctx), w1), ctx) + 1

    sizes = list(bg.size_ladder(16, [4, 8, 16]))
    for scale, n in enumerate((3, 4, 5, 8, 11, 16, 1), start=1):
        batch = random.standard_normal((n, WIDTH)).astype(np.float32)
        size = next(size for size in sizes if size >= n)
        ctx = SimpleNamespace(scale=np.float32(scale))
        with bg.active_forward(ctx):
            if size not in graphs:
                x = zeros(xp, size, WIDTH)
                with bg.capture(arena=arena) as graph:
                    out = forward(x, ctx)
                graphs[size] = graph, x, out
            graph, x, out = graphs[size]
            x.set(np.concatenate([batch, np.zeros((size - n, WIDTH), np.float32)]))
            graph.replay(valid_rows=n)
            eager = forward(xp.asarray(batch), ctx)
        assert np.array_equal(bg.slice_to_real_rows(n, out).get(), eager.get())
    assert sorted(graphs) == [4, 8, 16]
    assert sum(graph.replays for graph, *_ in graphs.values()) == 7


def test_a_context_of_none_at_replay_is_a_missing_one(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.active_forward({"scale": 2}) as ctx, bg.capture() as graph:
        bg.break_here(lambda a, c: a * c["scale"], bg.INFER, x + 1, ctx)
    with bg.active_forward(None), pytest.raises(CaptureStateError, match="without one"):
        graph.replay()


@pytest.mark.parametrize("form", ["default", "positionals", "keywords"])
def test_written_arguments_are_found_however_they_are_passed(driver: Any, xp: Any, form: str) -> None:
    x, buffer = zeros(xp), zeros(xp)

    def fill(*buffers: Any, into: Any = buffer, **more: Any) -> None:
        for one in (*buffers, into, *more.values()):
            one.fill(7)

    names = {"default": "into", "positionals": "buffers", "keywords": "extra"}
    work = bg.break_point(dst=bg.IN_PLACE, writes=names[form])(fill)
    other = zeros(xp)
    with bg.capture() as graph:
        x + 1
        work(*([other] if form == "positionals" else []), **({"extra": other} if form == "keywords" else {}))
    graph.replay(valid_rows=1)
    assert (buffer if form == "default" else other).get().tolist() == [7, 0, 0, 0]
