"""Sizes: every batch is padded to one of few, and nothing of the padding is seen.

Proves that each size is captured once and serves every smaller batch as the function itself would; that rows left by
a larger call are scrubbed; that breaks know the real rows at capture as at replay; that which inputs and outputs have
rows is never guessed where it could be guessed wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from graphed_support import WIDTH, Forward, batch, same
from support import every_schedule, floats, holds, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, BreakgraphWarning, ShapeMismatch

SIZES = (4, 8, 16)
ROWS = (3, 4, 5, 8, 11, 16, 1)


@every_schedule
def test_every_batch_equals_the_eager_one_and_each_size_is_captured_once(driver: Any, xp: Any) -> None:
    forward, eager = Forward(xp), Forward(xp)
    service = bg.graphed(forward, buckets=SIZES)
    for seed, rows in enumerate(ROWS):
        x = batch(xp, rows, seed)
        assert same(service(x), eager(x)), rows
    assert [graph.name for graph in service.graphs] == ["Forward[4]", "Forward[8]", "Forward[16]"]
    assert (service.stats.captures, service.stats.hits, forward.bodies) == (3, 4, 3)


@every_schedule
def test_the_padding_is_zeros_whatever_was_there_before(driver: Any, xp: Any) -> None:
    """A large batch, then small ones: a row that was left would be in the column sums."""
    service = bg.graphed(lambda x: x.sum(axis=0), buckets=SIZES, slice_outputs=False)
    for rows in (16, 1, 8, 16, 9, 3, 4, 2, 16, 15, 0):
        x = batch(xp, rows) + 7
        assert same(service(x), x.sum(axis=0)), rows
    assert service.stats.captures == 3


def test_breaks_see_the_real_rows_at_capture_and_at_replay(driver: Any, xp: Any) -> None:
    forward = Forward(xp)
    service = bg.graphed(forward, buckets=SIZES)
    for rows in (3, 2, 4, 1):
        service(batch(xp, rows))
    assert forward.rows == [3, 2, 4, 1]
    assert bg.current_valid_rows() is None


def test_a_segment_is_not_told_the_rows_which_it_would_bake(driver: Any, xp: Any) -> None:
    told = []

    def forward(x: Any) -> Any:
        told.append(bg.current_valid_rows())
        y = bg.break_here(lambda a: a + 1, bg.INFER, x * 2)
        told.append(bg.current_valid_rows())
        return y[: told[-1]] + 0

    service = bg.graphed(forward, buckets=SIZES)
    for rows in (2, 3, 4):
        assert service(xp.ones((rows, 2), np.float32)).shape == (rows, 2)
    assert told == [None, None]


@every_schedule
def test_what_a_break_leaves_in_the_padding_is_zeroed_in_the_capture_pass_too(driver: Any, xp: Any) -> None:
    @bg.break_point
    def ragged(a: Any) -> Any:
        rows = bg.current_valid_rows()
        out = xp.full(a.shape, np.nan, np.float32)
        np.multiply(a[:rows], 3, out=out[:rows])
        return out

    def forward(x: Any) -> Any:
        y = ragged(x + 1)
        return y + y.sum(axis=0)

    service = bg.graphed(forward, buckets=SIZES)
    for rows in (1, 3, 2):
        x = batch(xp, rows)
        y = (x + 1) * 3
        assert same(service(x), y + y.sum(axis=0))


def test_a_break_point_can_opt_out_of_that(driver: Any, xp: Any) -> None:
    table = bg.break_point(rows=False)(lambda a: xp.ones(8, np.float32) + a[0, 0] * 0)
    service = bg.graphed(lambda x: x + table(x + 0).sum(), buckets=[4])
    for _ in range(2):
        assert holds(service(zeros(xp, 1, 2)), 8)


def test_any_input_with_rows_is_padded_and_the_others_are_copied_as_they_are(driver: Any, xp: Any) -> None:
    @bg.graphed(buckets=SIZES, batched=("tokens", "extra"))
    def embed(table: Any, tokens: Any, extra: Any = ()) -> Any:
        return np.take(table, tokens, axis=0) + sum(extra)

    for rows, seed in ((3, 0), (8, 1), (8, 2), (5, 3)):  # the table has 8 rows, and is not a batch for that
        table = batch(xp, 8, seed)
        tokens = xp.asarray(np.arange(rows, dtype=np.int32)[::-1] % 8)
        extra = [batch(xp, rows, seed + 1), batch(xp, rows, seed + 2)]
        expected = table.get()[tokens.get()] + extra[0].get() + extra[1].get()
        assert np.array_equal(embed(table, tokens, extra).get(), expected)
    assert embed.stats.captures == 2


def test_which_of_several_arrays_have_rows_must_be_said(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x, y: x + y, buckets=SIZES)
    with pytest.raises(BreakgraphError, match=r"2 arrays are given(.|\n)*batched="):
        service(zeros(xp, 4), zeros(xp, 4))
    with pytest.raises(BreakgraphError, match="no array is given"):
        service(1, 2)
    assert holds(service(zeros(xp, 3), 1), 1), "with one array there is no question"


def test_batched_inputs_that_disagree_are_refused(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x, y: x + y, buckets=SIZES, batched=("x", "y"))
    for other in (zeros(xp, 4), zeros(xp, 1), zeros(xp, 5, 3)[0, 0]):
        with pytest.raises(BreakgraphError, match=r"no common number of rows: x \(3,\), y"):
            service(zeros(xp, 3), other)
    with pytest.raises(BreakgraphError, match=r"no common number of rows: x \(\)"):
        service(zeros(xp, 3)[0], zeros(xp, 3))
    x = zeros(xp, 3)
    with pytest.raises(BreakgraphError, match="only one of them is batched"):
        bg.graphed(lambda x, y: x + y, buckets=SIZES, batched="x")(x, x)
    assert holds(service(x, x), 0)


def test_no_rows_at_all_are_padded_like_any_number(driver: Any, xp: Any) -> None:
    service = bg.graphed(Forward(xp), buckets=SIZES)
    for rows in (0, 2, 0):
        assert service(batch(xp, rows)).shape == (rows, WIDTH)
    assert service.stats.by_size == {4: 3}


def test_more_rows_than_the_largest_size_run_the_function_with_one_warning(driver: Any, xp: Any) -> None:
    forward, eager = Forward(xp), Forward(xp)
    service = bg.graphed(forward, buckets=SIZES)
    x = batch(xp, 17)
    with pytest.warns(BreakgraphWarning, match="17 rows are more than its largest bucket 16") as warned:
        y = service(x)
    assert same(y, eager(x))
    assert [warning.filename for warning in warned] == [__file__]
    for rows in (40, 16):
        x = batch(xp, rows)
        assert same(service(x), eager(x))
    assert service.stats.fallbacks == {"larger": 2}
    assert forward.rows == [None, None, 16]


def test_no_sizes_at_all_is_the_function_itself_without_a_word(sim: Any, xp: Any) -> None:
    """What `size_ladder(..., enabled=False)` gives."""
    service = bg.graphed(lambda x: x + 1, buckets=bg.size_ladder(64, enabled=False))
    assert holds(service(zeros(xp)), 1)
    assert service.stats.fallbacks == {"disabled": 1}
    assert not sim.calls["stream_begin_capture"]


# --- outputs ----------------------------------------------------------------------------------------------------


@dataclass
class Found:
    rows: Any
    total: Any
    label: str = "found"


def test_outputs_are_cut_to_the_real_rows_where_they_have_any(driver: Any, xp: Any) -> None:
    both = lambda x: (x + 1, x.sum(axis=0))  # noqa: E731
    as_mapping = lambda x: {"rows": x + 1, "total": x.sum(axis=0)}  # noqa: E731
    as_object = lambda x: Found(x + 1, x.sum(axis=0))  # noqa: E731
    deep = lambda x: ([x + 1, (x * 2,)], x.sum(axis=0))  # noqa: E731
    for forward, spec in (
        (both, (True, False)),
        (as_mapping, {"rows": True, "total": False}),
        (as_object, {"rows": True, "total": False, "label": False}),
        (deep, (True, False)),
    ):
        service = bg.graphed(forward, buckets=SIZES, slice_outputs=spec)
        for rows in (3, 4, 16, 9):  # 16 rows and 16 columns: no shape tells them apart
            x = batch(xp, rows)
            found, expected = service(x), forward(x)
            assert type(found) is type(expected)
            for one, other in zip(arrays(found), arrays(expected), strict=True):
                assert same(one, other)


def arrays(value: Any) -> list[Any]:
    if isinstance(value, Found):
        value = vars(value)
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in arrays(item)]
    return [] if isinstance(value, str) else [value]


def test_an_output_without_rows_is_an_error_that_says_how_to_declare_it(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: (x, x.sum(axis=0)), buckets=SIZES)
    with pytest.raises(ShapeMismatch, match=r"shape \(16,\), at a size of 4 rows(.|\n)*slice_outputs=\(True, False\)"):
        service(batch(xp, 3))
    with pytest.raises(ShapeMismatch, match=r"shape \(\)"):
        bg.graphed(lambda x: x.sum(), buckets=SIZES)(batch(xp, 3))
    assert not bg.is_capturing()


@pytest.mark.parametrize("spec", [(True,), (True, False, False), {"a": True}, "rows", None], ids=repr)
def test_a_declaration_of_outputs_that_does_not_fit_is_refused(driver: Any, xp: Any, spec: Any) -> None:
    service = bg.graphed(lambda x: (x, x.sum(axis=0)), buckets=SIZES, slice_outputs=spec)
    with pytest.raises(BreakgraphError, match="does not have the form of the result, a tuple"):
        service(batch(xp, 3))


def test_outputs_of_the_full_size_are_copied_whole(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: x + 1, buckets=SIZES, slice_outputs=False)
    y = service(floats(xp, 5, 6))
    assert y.get().tolist() == [6, 7, 1, 1]


# --- ladders ----------------------------------------------------------------------------------------------------


def test_every_number_of_rows_up_to_the_maximum_has_its_size(sim: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: x + 1, buckets=bg.size_ladder(40))
    for rows in range(41):
        assert service(zeros(xp, rows)).shape == (rows,)
    assert sorted(service.stats.by_size) == list(bg.size_ladder(40))
    assert service.stats.captures == len(bg.size_ladder(40))
    assert not service.stats.fallbacks
