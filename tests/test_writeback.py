"""Every break's result lands where the later segments read it, whole or not at all.

Proves C12 to C17: the form a break has (a destination, INFER, IN_PLACE, NO_WRITEBACK, ``out=``,
``writes=``), the branch that ``copy_output`` takes and its order, what is refused and that nothing was copied
then, which places may not be shared, and that a destination outlives the frame that declared it.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import every_schedule, floats, holds, not_refused, nothing_captured, refill, zeros

import breakgraph as bg
from breakgraph.errors import AliasedDestination, DTypeMismatch, NotCopyable, ShapeMismatch


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Output:
    hidden: Any
    label: str = "new"


class Record:
    def __init__(self, hidden: Any, label: str) -> None:
        self.hidden = hidden
        self.label = label


COPIES = ("memcpy_dtod", "memcpy_dtod_async", "memcpy_htod", "memcpy_htod_async", "launch", "kernel_launch")


def copies(driver: Any) -> int:
    """Copies that the simulated driver was asked for, strided ones (kernels) included."""
    return sum(driver.calls[name] for name in COPIES)


# --- copy_output by itself (C14) ------------------------------------------------------------------------------


def test_copying_an_array_fills_the_destination_and_returns_it(driver: Any, xp: Any) -> None:
    dst, src = zeros(xp), floats(xp, 5, 5, 5, 5)
    assert bg.copy_output(dst, src) is dst
    assert holds(dst, 5)


def test_copying_a_thing_to_itself_copies_nothing(sim: Any, xp: Any) -> None:
    dst = floats(xp, 5, 5)
    before = copies(sim)
    assert bg.copy_output(dst, dst) is dst
    assert copies(sim) == before
    assert holds(dst, 5)


def test_copying_over_a_view_of_the_same_elements_copies_nothing(sim: Any, xp: Any) -> None:
    dst = floats(xp, 5, 5)
    before = copies(sim)
    bg.copy_output(dst, dst[:])
    assert copies(sim) == before


def test_copying_a_mapping_fills_its_arrays_and_returns_it(driver: Any, xp: Any) -> None:
    dst = {"a": zeros(xp), "b": zeros(xp), "note": "old"}
    a, b = dst["a"], dst["b"]
    assert bg.copy_output(dst, {"a": floats(xp, *[1] * 4), "b": floats(xp, *[2] * 4), "note": "new"}) is dst
    assert dst["a"] is a
    assert dst["b"] is b
    assert holds(a, 1)
    assert holds(b, 2)
    assert dst["note"] == "new"


@pytest.mark.parametrize("kind", [Record, Output, lambda hidden, label: SimpleNamespace(hidden=hidden, label=label)])
def test_copying_an_object_fills_its_arrays_in_place_and_sets_its_other_attributes(
    driver: Any, xp: Any, kind: Callable[..., Any]
) -> None:
    hidden = zeros(xp)
    dst = kind(hidden=hidden, label="old")
    assert bg.copy_output(dst, kind(hidden=floats(xp, 3, 3, 3, 3), label="new")) is dst
    assert dst.hidden is hidden
    assert holds(hidden, 3)
    assert dst.label == "new"


@pytest.mark.parametrize("kind", [lambda a, b: (a, b), lambda a, b: [a, b], Pair], ids=["tuple", "list", "namedtuple"])
def test_copying_a_sequence_fills_each_of_its_arrays(driver: Any, xp: Any, kind: Callable[..., Any]) -> None:
    dst = kind(zeros(xp), zeros(xp))
    first, second = dst
    held = bg.copy_output(dst, kind(floats(xp, 1, 1, 1, 1), floats(xp, 2, 2, 2, 2)))
    assert held[0] is first
    assert held[1] is second
    assert type(held) is type(dst)
    assert holds(first, 1)
    assert holds(second, 2)


def test_copying_none_into_none_is_nothing(driver: Any, xp: Any) -> None:
    dst = (zeros(xp), None)
    held = bg.copy_output(dst, (floats(xp, 1, 1, 1, 1), None))
    assert held[1] is None
    assert holds(dst[0], 1)


def test_a_plain_value_has_no_way_into_a_plain_value(driver: Any, xp: Any) -> None:
    with pytest.raises(NotCopyable, match="42"):
        bg.copy_output(42, 99)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda xp: xp.zeros(5, np.float32), ShapeMismatch),
        (lambda xp: xp.zeros((4, 1), np.float32), ShapeMismatch),
        (lambda xp: xp.zeros((2, 2), np.float32), ShapeMismatch),
        (lambda xp: xp.zeros(4, np.float64), DTypeMismatch),
        (lambda xp: xp.zeros(4, np.int32), DTypeMismatch),
        (lambda xp: np.zeros(4, np.float32), NotCopyable),
        (lambda xp: 3.0, NotCopyable),
        (lambda xp: None, NotCopyable),
        (lambda xp: "text", NotCopyable),
    ],
    ids=["longer", "2-D", "square", "float64", "int32", "host array", "number", "None", "string"],
)
@pytest.mark.parametrize("container", [False, True], ids=["alone", "second of a pair"])
def test_the_whole_tree_is_checked_before_anything_is_copied(
    sim: Any, xp: Any, wrong: Callable[[Any], Any], error: type[Exception], container: bool
) -> None:
    first, second, bad = zeros(xp), zeros(xp), wrong(xp)
    dst, src = ((first, second), (floats(xp, 9, 9, 9, 9), bad)) if container else (second, bad)
    before = copies(sim)
    with pytest.raises(error):
        bg.copy_output(dst, src)
    assert copies(sim) == before
    assert holds(first, 0)
    assert holds(second, 0)


@pytest.mark.parametrize(
    ("dst", "src"),
    [
        (lambda a: (a, a), lambda a: (a,)),
        (lambda a: {"a": a}, lambda a: {"b": a}),
        (lambda a: {"a": a}, lambda a: {"a": a, "b": a}),
        (lambda a: Output(a), lambda a: {"hidden": a}),
        (lambda a: {"hidden": a}, lambda a: (a,)),
    ],
    ids=["lengths", "keys", "more keys", "object from mapping", "mapping from tuple"],
)
def test_trees_of_different_form_are_refused(sim: Any, xp: Any, dst: Any, src: Any) -> None:
    into, source = zeros(xp), floats(xp, 9, 9, 9, 9)
    before = copies(sim)
    with pytest.raises((NotCopyable, ShapeMismatch)):
        bg.copy_output(dst(into), src(source))
    assert copies(sim) == before
    assert holds(into, 0)


def test_a_shorter_first_axis_fills_the_leading_rows_and_leaves_the_rest(driver: Any, xp: Any) -> None:
    dst = xp.asarray(np.full((4, 2), 7, np.float32))
    bg.copy_output(dst, xp.asarray(np.ones((3, 2), np.float32)))
    assert dst.get().tolist() == [[1, 1], [1, 1], [1, 1], [7, 7]]


def test_no_rows_at_all_leave_the_destination_as_it_was(driver: Any, xp: Any) -> None:
    dst = xp.asarray(np.full((4, 2), 7, np.float32))
    bg.copy_output(dst, xp.zeros((0, 2), np.float32))
    assert holds(dst, 7)


@pytest.mark.parametrize("shape", [(5, 2), (4, 1), (4, 3), (4,)], ids=str)
def test_a_longer_first_axis_or_another_width_is_refused(sim: Any, xp: Any, shape: tuple[int, ...]) -> None:
    """Byte counts enter from both sides: neither alone would refuse all of these."""
    dst = xp.asarray(np.full((4, 2), 7, np.float32))
    src = xp.zeros(shape, np.float32)
    before = copies(sim)
    with pytest.raises(ShapeMismatch):
        bg.copy_output(dst, src)
    assert copies(sim) == before
    assert holds(dst, 7)


def test_strided_destinations_and_sources_are_copied_element_by_element(driver: Any, xp: Any) -> None:
    grid = zeros(xp, 4, 4)
    bg.copy_output(grid[:, 1], floats(xp, 1, 2, 3, 4))
    bg.copy_output(grid[0], xp.asarray(np.arange(8, dtype=np.float32))[::2])
    expected = np.zeros((4, 4), np.float32)
    expected[:, 1] = [1, 2, 3, 4]
    expected[0] = [0, 2, 4, 6]
    assert np.array_equal(grid.get(), expected)


def test_a_registered_type_is_copied_by_its_handler_after_all_checks(driver: Any, xp: Any) -> None:
    class Paged:
        def __init__(self, pages: Any) -> None:
            self.pages = pages

    handled = []

    @bg.copy_output.register(Paged)
    def copy_paged(dst: Paged, src: Paged) -> Paged:
        handled.append((dst, src))
        bg.copy_output(dst.pages, src.pages)
        return dst

    dst, src = Paged(zeros(xp)), Paged(floats(xp, 4, 4, 4, 4))
    assert bg.copy_output(dst, src) is dst
    assert handled == [(dst, src)]
    assert holds(dst.pages, 4)
    handled.clear()
    with pytest.raises(ShapeMismatch):
        bg.copy_output((dst, zeros(xp)), (src, zeros(xp, 9)))
    assert not handled


# --- the forms of a break, captured and replayed (C12, C13) ---------------------------------------------------


@every_schedule
def test_a_fresh_result_of_each_replay_reaches_the_address_that_the_next_segment_baked(driver: Any, xp: Any) -> None:
    x, cell, out = floats(xp, *[10] * 4), bg.Cell((4,), np.float32), zeros(xp)
    addresses, kept = set(), []

    def fresh(a: Any) -> Any:
        made = a + 1
        kept.append(made)  # so that each is another allocation
        return made

    with bg.capture() as graph:
        landed = bg.break_here(fresh, cell, x)
        addresses.add(cell.ptr)
        np.multiply(cell.array, 1, out=out)
    assert landed is cell or landed is cell.array
    assert holds(out, 11)
    for value in (21, 32, 43):
        refill(x, value)
        graph.replay()
        addresses.add(cell.ptr)
        assert holds(cell.array, value + 1)
        assert holds(out, value + 1)
    assert len(addresses) == 1
    assert len(kept) == 4


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "array": lambda a, b: a,
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "namedtuple": Pair,
    "dict": lambda a, b: {"a": a, "b": b},
    "dataclass": lambda a, b: Output(a),
    "object": lambda a, b: Record(a, "new"),
    "nested": lambda a, b: {"pair": Pair(a, [b]), "none": None},
}


def arrays_of(tree: Any) -> list[Any]:
    """The arrays of a tree in order."""
    if tree is None or isinstance(tree, str):
        return []
    if isinstance(tree, (tuple, list)):
        return [array for item in tree for array in arrays_of(item)]
    if isinstance(tree, dict):
        return arrays_of(list(tree.values()))
    return arrays_of(list(vars(tree).values())) if isinstance(tree, (Output, Record)) else [tree]


@every_schedule
@pytest.mark.parametrize("form", FORMS)
def test_inferred_destinations_take_any_form_and_later_segments_read_them(driver: Any, xp: Any, form: str) -> None:
    x, kept = zeros(xp), []

    @bg.break_point
    def work(a: Any) -> Any:
        made = FORMS[form](a * 2, a * 3)
        kept.append(made)
        return made

    with bg.capture() as graph:
        result = work(x + 1)
        arrays = arrays_of(result)
        outs = [array + 0 for array in arrays]
    assert type(result) is type(kept[0])
    assert not {id(array) for array in arrays} & {id(array) for array in arrays_of(kept[0])}
    for value in (10, 20):
        refill(x, value)
        graph.replay()
        for out, factor in zip(outs, (2, 3), strict=False):
            assert holds(out, (value + 1) * factor)


@every_schedule
@pytest.mark.parametrize("form", FORMS)
def test_a_destination_given_by_the_caller_may_have_any_form(driver: Any, xp: Any, form: str) -> None:
    x, dst = zeros(xp), FORMS[form](zeros(xp), zeros(xp))
    with bg.capture() as graph:
        held = bg.break_here(lambda a: FORMS[form](a * 2, a * 3), dst, x + 1)
        outs = [array + 0 for array in arrays_of(held)]
    assert [id(array) for array in arrays_of(held)] == [id(array) for array in arrays_of(dst)]
    refill(x, 10)
    graph.replay()
    for array, out, factor in zip(arrays_of(dst), outs, (2, 3), strict=False):
        assert holds(array, 11 * factor)
        assert holds(out, 11 * factor)


def test_a_result_of_none_means_that_the_function_wrote_its_arguments(driver: Any, xp: Any) -> None:
    x, scratch, out = zeros(xp), zeros(xp), zeros(xp)

    @bg.break_point
    def into(a: Any, dst: Any) -> None:
        np.multiply(a, 2, out=dst)

    with bg.capture() as graph:
        assert into(x + 1, scratch) is None
        np.add(scratch, 3, out=out)
    refill(x, 10)
    graph.replay()
    assert holds(out, 25)


def test_in_place_writes_arguments_and_returns_what_the_function_returned(driver: Any, xp: Any) -> None:
    x, scratch = zeros(xp), zeros(xp)

    def into(a: Any, dst: Any) -> Any:
        np.multiply(a, 2, out=dst)
        return dst

    with bg.capture() as graph:
        assert bg.break_here(into, bg.IN_PLACE, x + 1, scratch) is scratch
        out = scratch + 3
    refill(x, 10)
    graph.replay()
    assert holds(out, 25)


def test_written_arguments_named_by_the_break_point_are_its_destinations(driver: Any, xp: Any) -> None:
    x, scratch, rest = zeros(xp), zeros(xp), zeros(xp)

    @bg.break_point(dst=bg.IN_PLACE, writes=("dst", "rest"))
    def into(a: Any, dst: Any, *, rest: Any) -> None:
        np.multiply(a, 2, out=dst)
        np.multiply(a, 3, out=rest)

    with bg.capture() as graph:
        into(x + 1, scratch, rest=rest)
        out = scratch + rest
    refill(x, 10)
    graph.replay()
    assert holds(out, 55)
    graph.replay(valid_rows=3)
    assert rest.get().tolist() == [33, 33, 33, 0]
    assert out.get().tolist() == [55, 55, 55, 0]


def test_out_gives_the_function_its_destination_to_write_itself(sim: Any, xp: Any) -> None:
    x, dst, given = zeros(xp), zeros(xp), []

    def work(a: Any, *, out: Any) -> Any:
        given.append(out)
        return np.multiply(a, 2, out=out)

    broken = bg.break_point(dst=dst, out="out")(work)
    with bg.capture() as graph:
        held = broken(x + 1)
        result = held + 3
    assert held is dst
    refill(x, 10)
    before = sim.calls["memcpy_dtod_async"]
    graph.replay()
    assert sim.calls["memcpy_dtod_async"] == before, "written in place, so nothing is copied"
    assert holds(result, 25)
    assert all(one is dst for one in given)
    assert len(given) == 2


def test_no_writeback_hands_the_value_on_and_replay_writes_nothing(sim: Any, xp: Any) -> None:
    x, values = zeros(xp), iter([42, 99, 100])
    with bg.capture() as graph:
        value = bg.break_here(lambda a: next(values), bg.NO_WRITEBACK, x + 1)
    assert value == 42
    before = copies(sim)
    graph.replay()
    assert next(values) == 100, "the function ran at replay"
    assert value == 42
    assert copies(sim) == before


def test_no_writeback_hands_on_arrays_too_and_they_keep_the_capture_time_values(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        handed = bg.break_here(lambda a: a + 1, bg.NO_WRITEBACK, x)
        out = handed + x
    refill(x, 10)
    graph.replay()
    assert holds(handed, 1)
    assert holds(out, 11)


def test_a_plain_value_of_an_inferred_result_is_handed_on_and_listed_as_frozen(driver: Any, xp: Any) -> None:
    x, counts = zeros(xp), iter([1, 2])
    with bg.capture() as graph:
        hidden, count = bg.break_here(lambda a: (a * 2, next(counts)), bg.INFER, x + 1)
        out = hidden + count
    assert count == 1
    assert any("1" in str(entry) for entry in graph.breaks[0].frozen)
    refill(x, 10)
    graph.replay()
    assert holds(out, 23)


def test_attributes_and_entries_of_a_given_destination_are_set_each_time(driver: Any, xp: Any) -> None:
    x, labels = zeros(xp), iter(["capture", "first", "second"])
    record, mapping = Record(zeros(xp), "none"), {"hidden": zeros(xp), "label": "none"}

    def both(a: Any) -> Any:
        label = next(labels)
        return Record(a * 2, label), {"hidden": a * 3, "label": label}

    with bg.capture() as graph:
        bg.break_here(both, (record, mapping), x + 1)
    for label in ("first", "second"):
        graph.replay()
        assert (record.label, mapping["label"]) == (label, label)
    assert holds(record.hidden, 2)
    assert holds(mapping["hidden"], 3)


@nothing_captured
def test_a_result_that_swaps_its_destinations_is_copied_as_if_at_once(driver: Any, xp: Any) -> None:
    """The source of one landing is the destination of another: each must get the value from before."""
    a, b = floats(xp, 1, 1, 1, 1), floats(xp, 2, 2, 2, 2)
    with bg.capture() as graph:
        bg.break_here(lambda: (b, a), (a, b))
    assert holds(a, 2)
    assert holds(b, 1)
    graph.replay()
    assert holds(a, 1)
    assert holds(b, 2)


@nothing_captured
def test_a_result_that_overlaps_its_destination_is_copied_as_if_at_once(driver: Any, xp: Any) -> None:
    line = floats(xp, 1, 2, 3, 4, 5)
    with bg.capture() as graph:
        bg.break_here(lambda: line[:4], line[1:])
    assert line.get().tolist() == [1, 1, 2, 3, 4]
    graph.replay()
    assert line.get().tolist() == [1, 1, 1, 2, 3]


def test_a_shorter_result_lands_in_the_leading_rows_at_replay(driver: Any, xp: Any) -> None:
    x, dst, rows = zeros(xp, 4, 2), zeros(xp, 4, 2), iter([4, 2])
    with bg.capture() as graph:
        bg.break_here(lambda a: (a + 1)[: next(rows)], dst, x)
        out = dst + 0
    refill(x, 9)
    graph.replay()
    assert out.get().tolist() == [[10, 10], [10, 10], [1, 1], [1, 1]]


def test_a_break_whose_replay_returns_another_shape_stops_the_replay(sim: Any, xp: Any) -> None:
    x, dst, widths = zeros(xp, 4, 2), zeros(xp, 4, 2), iter([2, 3, 2])

    def work(a: Any) -> Any:
        return xp.zeros((4, next(widths)), np.float32)

    with bg.capture() as graph:
        bg.break_here(work, dst, x + 1)
    refill(dst, 5)
    before = sim.calls["memcpy_dtod_async"]
    with pytest.raises(ShapeMismatch) as raised:
        graph.replay()
    assert "work" in str(raised.value) + "".join(raised.value.__notes__)
    assert sim.calls["memcpy_dtod_async"] == before
    assert holds(dst, 5)
    graph.replay()
    assert holds(dst, 0)


def test_a_destination_may_be_strided_and_slices_of_one_buffer_are_two_places(driver: Any, xp: Any) -> None:
    x, grid = floats(xp, 1, 1, 1, 1), zeros(xp, 4, 4)
    with bg.capture() as graph:
        bg.break_here(lambda a: a * 2, grid[:, 0], x + 0)
        bg.break_here(lambda a: a * 3, grid[:, 1], x + 0)
        bg.break_here(lambda a: a * 4, grid[:2, 2:], grid[:2, :2])
        out = grid + 0
    assert len(graph.breaks) == 3
    refill(x, 10)
    graph.replay()
    assert out.get().tolist() == [[20, 30, 80, 120], [20, 30, 80, 120], [20, 30, 0, 0], [20, 30, 0, 0]]


# --- which branch it took (C14) -------------------------------------------------------------------------------


def _landings(xp: Any) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    array, record = zeros(xp), Record(zeros(xp), "")
    return {
        "same": (array, lambda a: np.multiply(a, 2, out=array)),
        "array": (zeros(xp), lambda a: a * 2),
        "sequence": ((zeros(xp), zeros(xp)), lambda a: (a * 2, a * 3)),
        "mapping": ({"a": zeros(xp)}, lambda a: {"a": a * 2}),
        "object": (record, lambda a: Record(a * 2, "")),
        "registered": (Registered(zeros(xp)), lambda a: Registered(a * 2)),
        "in_place": (bg.IN_PLACE, lambda a: None),
        "no_writeback": (bg.NO_WRITEBACK, lambda a: 42),
    }


class Registered:
    def __init__(self, pages: Any) -> None:
        self.pages = pages


@bg.copy_output.register(Registered)
def _copy_registered(dst: Registered, src: Registered) -> Registered:
    bg.copy_output(dst.pages, src.pages)
    return dst


@pytest.mark.parametrize(
    "landing",
    ["same", "array", "sequence", "mapping", "object", "registered", "in_place", "no_writeback"],
)
def test_a_break_tells_which_branch_its_landing_took(driver: Any, xp: Any, landing: str) -> None:
    dst, work = _landings(xp)[landing]
    x = zeros(xp)
    with bg.capture() as graph:
        bg.break_here(work, dst, x + 1)
    assert graph.breaks[0].landing == landing
    graph.replay()
    assert graph.breaks[0].landing == landing


# --- refused landings: the break is named, nothing is copied (C14, C15) ---------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda xp: xp.zeros(5, np.float32), ShapeMismatch),
        (lambda xp: xp.zeros(4, np.float64), DTypeMismatch),
        (lambda xp: "text", NotCopyable),
        (lambda xp: 99, NotCopyable),
    ],
    ids=["shape", "dtype", "string", "number"],
)
def test_a_result_that_does_not_fit_names_the_break_and_copies_nothing(
    sim: Any, xp: Any, wrong: Callable[[Any], Any], error: type[Exception]
) -> None:
    x, dst = zeros(xp), zeros(xp)
    result = wrong(xp)

    def misfit(a: Any) -> Any:
        return result

    before = copies(sim)
    with pytest.raises(error) as raised, bg.capture() as graph:
        bg.break_here(misfit, dst, x)
    assert copies(sim) == before
    assert "misfit" in str(raised.value) + "".join(getattr(raised.value, "__notes__", ()))
    assert graph.state == "failed"
    assert graph.error is raised.value
    assert holds(dst, 0)


# --- whose bytes (C16, C17) -----------------------------------------------------------------------------------


@nothing_captured
def test_one_destination_for_two_breaks_is_refused_and_nothing_is_captured(sim: Any, xp: Any) -> None:
    x, dst = zeros(xp), zeros(xp)
    with pytest.raises(AliasedDestination) as raised, bg.capture() as graph:
        bg.break_here(lambda a: a + 5, dst, x)
        bg.break_here(lambda a: a + 50, dst, x)
    assert graph.state == "failed"
    assert not graph.segments
    assert "break" in str(raised.value)


def test_two_destinations_are_two_places(driver: Any, xp: Any) -> None:
    x, first, second = zeros(xp), zeros(xp), zeros(xp)
    with bg.capture() as graph:
        bg.break_here(lambda a: a + 5, first, x + 0)
        bg.break_here(lambda a: a + 50, second, x + 0)
    assert (len(graph.segments), len(graph.breaks)) == (3, 2)
    graph.replay()
    assert holds(first, 5)
    assert holds(second, 50)


@nothing_captured
def test_a_destination_may_serve_again_in_a_later_capture(driver: Any, xp: Any) -> None:
    x, dst = zeros(xp), zeros(xp)
    with bg.capture() as first:
        bg.break_here(lambda a: a + 5, dst, x)
    with not_refused(), bg.capture() as second:
        bg.break_here(lambda a: a + 6, dst, x)
    first.replay()
    assert holds(dst, 5)
    second.replay()
    assert holds(dst, 6)


@pytest.mark.parametrize(
    "places",
    [
        lambda buffer: (buffer[:3], buffer[2:5]),
        lambda buffer: (buffer, buffer[7:]),
        lambda buffer: (buffer.reshape(2, 4)[1], buffer[4:6]),
        lambda buffer: (buffer[::2], buffer[2:3]),
    ],
    ids=["overlapping slices", "whole and last", "row and its part", "strided and an element of it"],
)
@nothing_captured
def test_overlapping_bytes_of_one_allocation_are_one_place_whatever_python_object_names_them(
    driver: Any, xp: Any, places: Callable[[Any], tuple[Any, Any]]
) -> None:
    first, second = places(zeros(xp, 8))
    with pytest.raises(AliasedDestination), bg.capture() as graph:
        bg.break_here(lambda: first + 1, first)
        bg.break_here(lambda: second + 1, second)
    assert graph.state == "failed"


@pytest.mark.parametrize(
    "places",
    [lambda buffer: (buffer[:4], buffer[4:]), lambda buffer: (buffer[::2], buffer[1::2])],
    ids=["halves", "interleaved"],
)
@nothing_captured
def test_disjoint_slices_of_one_buffer_are_two_places(
    driver: Any, xp: Any, places: Callable[[Any], tuple[Any, Any]]
) -> None:
    first, second = places(zeros(xp, 8))
    with bg.capture() as graph:
        bg.break_here(lambda: first + 1, first)
        bg.break_here(lambda: second + 2, second)
    graph.replay()
    assert holds(first, 2)
    assert holds(second, 4)


@nothing_captured
def test_a_cell_for_two_breaks_is_refused_unless_it_is_shared(driver: Any, xp: Any) -> None:
    x, alone, shared = zeros(xp), bg.Cell((4,), np.float32), bg.Cell((4,), np.float32, shared=True)
    with pytest.raises(AliasedDestination), bg.capture():
        bg.break_here(lambda a: a + 5, alone, x)
        bg.break_here(lambda a: a + 50, alone, x)
    with bg.capture() as graph:
        bg.break_here(lambda a: a + 5, shared, x + 0)
        first = shared.array + 0
        bg.break_here(lambda a: a + 50, shared, x + 0)
        second = shared.array + 0
    graph.replay()
    assert holds(first, 5)
    assert holds(second, 50)


def test_a_shared_cell_inside_a_tree_is_shared_too(driver: Any, xp: Any) -> None:
    x, shared = zeros(xp), bg.Cell((4,), np.float32, shared=True)
    with bg.capture() as graph:
        outs = []
        for n in (5, 50):
            bg.break_here(lambda a, n=n: {"a": a + n}, {"a": shared}, x + 0)
            outs.append(shared.array + 0)
    graph.replay()
    assert [float(out.get()[0]) for out in outs] == [5, 50]


@nothing_captured
def test_in_place_breaks_may_write_one_place_twice(driver: Any, xp: Any) -> None:
    x = zeros(xp)

    @bg.break_point(dst=bg.IN_PLACE, writes=("a",))
    def bump(a: Any) -> None:
        np.add(a, 1, out=a)

    with bg.capture() as graph:
        bump(x)
        bump(x)
    graph.replay()
    assert holds(x, 4)


def test_an_address_reused_after_its_owner_died_is_another_place(driver: Any, xp: Any) -> None:
    """Per-layer locals: each layer's result dies with the layer, and the next may get its address."""
    x = zeros(xp)

    @bg.break_point
    def bump(a: Any) -> Any:
        return a + 1

    def layer(a: Any, total: Any) -> None:
        np.add(total, bump(a + 0), out=total)

    total = zeros(xp)
    with not_refused(), bg.capture() as graph:
        for _ in range(4):
            layer(x, total)
    assert len(graph.breaks) == 4
    assert holds(total, 4)
    refill(total, 0)
    refill(x, 1)
    graph.replay()
    assert holds(total, 8)


def test_a_destination_made_in_a_segment_that_has_died_frees_its_place_for_another(driver: Any, xp: Any) -> None:
    x = zeros(xp)

    def layer(a: Any, n: int) -> Any:
        dst = a + 0
        landed = bg.break_here(lambda b: b + n, dst, a)
        return landed + 0

    with not_refused(), bg.capture() as graph:
        outs = [layer(x, n) for n in range(4)]
    refill(x, 1)
    graph.replay()
    assert [float(out.get()[0]) for out in outs] == [1, 2, 3, 4]


@pytest.mark.parametrize("where", ["outside", "in a segment", "in a break"])
def test_a_destination_outlives_the_frame_that_declared_it(driver: Any, xp: Any, where: str) -> None:
    x, made = floats(xp, 7, 7, 7, 7), []

    def declare() -> None:
        made.append(zeros(xp))

    def forward() -> Any:
        if where == "in a break":
            bg.break_here(declare, bg.IN_PLACE)
        elif where == "in a segment":
            declare()
        dst = made.pop()
        bg.break_here(lambda a: a * 1, dst, x)
        return dst + 0

    if where == "outside":
        declare()
    with bg.capture() as graph:
        out = forward()
    assert holds(out, 7)
    gc.collect()
    others = [floats(xp, -1, -1, -1, -1) for _ in range(16)]  # would take the freed bytes
    refill(x, 99)
    graph.replay()
    assert holds(out, 99)
    assert all(holds(other, -1) for other in others)


def test_a_destination_dies_with_the_graph_that_owns_it(driver: Any, xp: Any) -> None:
    x, made = zeros(xp), [zeros(xp)]

    def forward() -> Any:
        dst = made.pop()
        bg.break_here(lambda a: a * 1, dst, x + 0)
        return weakref.ref(dst)

    with bg.capture() as graph:
        alive = forward()
    gc.collect()
    assert alive() is not None
    graph.close()
    gc.collect()
    assert alive() is None


# --- Cell -----------------------------------------------------------------------------------------------------


def test_a_cell_is_storage_at_one_address(driver: Any, xp: Any) -> None:
    cell = bg.Cell((2, 3), np.float32)
    ptr = cell.ptr
    assert cell.nbytes == 24
    assert cell.array.shape == (2, 3)
    assert cell.array.dtype == np.float32
    source = xp.asarray(np.full((2, 3), 4, np.float32))
    cell.write(source)
    assert holds(cell.array, 4)
    assert cell.ptr == ptr
    stream = driver.create_stream()
    refill(source, 5)
    driver.synchronize()
    cell.write(source, stream=stream)
    driver.stream_synchronize(int(stream))
    assert holds(cell.array, 5)
    with pytest.raises(ShapeMismatch):
        cell.write(zeros(xp))
    with pytest.raises(DTypeMismatch):
        cell.write(xp.zeros((2, 3), np.float64))


def test_cells_may_stand_in_a_destination_tree(driver: Any, xp: Any) -> None:
    x, a, b = zeros(xp), bg.Cell((4,), np.float32), bg.Cell((4,), np.float32)
    with bg.capture() as graph:
        bg.break_here(lambda v: {"a": v * 2, "b": v * 3}, {"a": a, "b": b}, x + 1)
        out = a.array + b.array
    refill(x, 1)
    graph.replay()
    assert holds(out, 10)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_break_that_returns_nothing_at_replay_where_it_returned_an_array_is_refused(
    driver: Any, xp: Any, explicit: bool
) -> None:
    """Going on would leave the last replay's value where the next segment reads this one's."""
    x, out, results = zeros(xp), zeros(xp), [lambda a: a * 2, lambda a: None, lambda a: a * 2]

    def forgetful(a: Any) -> Any:
        return results.pop(0)(a)

    with bg.capture() as graph:
        np.add(bg.break_here(forgetful, zeros(xp) if explicit else bg.INFER, x + 1), 3, out=out)
    with pytest.raises(NotCopyable, match="None"):
        graph.replay()
    refill(x, 10)
    graph.replay()
    assert holds(out, 25)


def test_a_host_array_alone_has_no_way_into_a_segment(driver: Any, xp: Any) -> None:
    """A segment would bake its values, and every replay would show those of the capture."""
    x = zeros(xp)
    with pytest.raises(NotCopyable, match="device array") as raised, bg.capture():
        bg.break_here(lambda a: np.asarray(a.get().max()), bg.INFER, x + 1)
    assert "test_writeback.py" in str(raised.value), "the error names the call"


def test_no_later_break_may_land_in_an_inferred_destination_that_is_still_alive(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with pytest.raises(AliasedDestination, match=r"break 1 .* break 0"), bg.capture():
        inferred = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        bg.break_here(lambda a: a * 3, inferred, x + 2)


def test_one_array_returned_twice_is_one_array_in_later_segments_too(driver: Any, xp: Any) -> None:
    x = zeros(xp)

    def twice(a: Any) -> tuple[Any, Any]:
        doubled = a * 2
        return doubled, doubled

    with bg.capture() as graph:
        first, second = bg.break_here(twice, bg.INFER, x + 1)
        first += 1
        total = second + 0
    assert holds(total, 3)
    refill(x, 10)
    graph.replay()
    assert holds(total, 23)


def test_an_argument_that_a_break_returns_is_not_written_at_replay(driver: Any, xp: Any) -> None:
    """What the break returns for other values is a fresh array, and the caller's input is not its destination."""
    x = zeros(xp)

    def normalised(a: Any) -> Any:
        largest = float(a.get().max())
        return a if largest <= 1 else a / largest

    with bg.capture() as graph:
        total = bg.break_here(normalised, bg.INFER, x) + 0
    refill(x, 10)
    graph.replay()
    assert holds(total, 1)
    assert holds(x, 10)


@pytest.mark.parametrize("form", [bg.NO_WRITEBACK, bg.IN_PLACE], ids=repr)
def test_an_array_that_is_handed_on_stays_allocated_as_long_as_the_capture(driver: Any, xp: Any, form: Any) -> None:
    """Segments have baked its address. Its values are those of the capture, as the form says."""
    x = zeros(xp)
    with bg.capture() as graph:
        total = bg.break_here(lambda a: a * 2, form, x + 1) + x
    refill(x, 10)
    for _ in range(2):
        graph.replay()
        assert holds(total, 12)


def test_a_partial_is_a_function_like_any_other_in_messages(driver: Any, xp: Any) -> None:
    with pytest.raises(bg.errors.BreakgraphError, match="nothing"):
        bg.break_point(writes="nothing")(functools.partial(lambda a, b: a, 1))


@pytest.mark.parametrize("kind", ["mapping", "list", "object"])
def test_a_destination_whose_entry_is_rebound_later_is_still_the_one_that_was_baked(
    driver: Any, xp: Any, kind: str
) -> None:
    x, state = zeros(xp), Labelled(zeros(xp), "old")
    if kind == "object":
        into, make = state, lambda a: Labelled(a * 2, "new")
        get, put = (lambda: state.array), (lambda value: setattr(state, "array", value))
    else:
        into = {0: state.array} if kind == "mapping" else [state.array]
        make = (lambda a: {0: a * 2}) if kind == "mapping" else (lambda a: [a * 2])
        get, put = (lambda: into[0]), (lambda value: into.__setitem__(0, value))
    with bg.capture() as graph:
        bg.break_here(make, into, x + 1)
        total = get() + 1
        put(total)
    refill(x, 10)
    graph.replay()
    assert holds(total, 23)


class Labelled:
    def __init__(self, array: Any, label: str) -> None:
        self.array, self.label = array, label


def test_a_container_argument_is_what_it_was_at_capture(driver: Any, xp: Any) -> None:
    """Wherever its arrays were allocated: a change made later would be seen at replay and not at capture."""
    x, scale = zeros(xp), [2]
    with bg.capture() as graph:
        total = bg.break_here(lambda a, s: a * s[0], bg.INFER, x + 1, scale) + 0
    scale[0] = 100
    graph.replay()
    assert holds(total, 2)
    assert [entry.value for entry in graph.breaks[0].frozen] == [2]


def test_an_inferred_cell_stays_a_cell(driver: Any, xp: Any) -> None:
    x, cell = zeros(xp), bg.Cell((4,), np.float32)

    def fill(a: Any) -> bg.Cell:
        np.multiply(a, 2, out=cell.array)
        return cell

    with bg.capture() as graph:
        total = bg.break_here(fill, bg.INFER, x + 1).array + 1
    refill(x, 10)
    graph.replay()
    assert holds(total, 23)


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "outside a capture"])
def test_what_a_break_with_out_in_a_cell_returns_is_the_cells_array(driver: Any, xp: Any, captured: bool) -> None:
    cell, x = bg.Cell(4, np.float32), zeros(xp)

    @bg.break_point(out="out")
    def fill(a: Any, *, out: Any) -> None:
        np.add(a, 7, out=out)

    with bg.capture() if captured else nullcontext():
        x + 1
        assert fill(x, out=cell) is cell.array
    assert holds(cell.array, 7)


@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (0,)])
def test_a_cell_of_any_shape_takes_a_value_of_the_host(driver: Any, xp: Any, shape: tuple[int, ...]) -> None:
    cell = bg.Cell(shape, np.float32)
    cell.write(7)
    assert cell.array.shape == shape
    assert holds(cell.array, 7)
