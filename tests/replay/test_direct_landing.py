"""A result of its destination's type and layout lands by one copy of the driver's; anything else goes the long way.

Proves that the copy is one driver call and no allocation, for each kind of destination; that a result which lies there
already costs none; that whatever is of another form is copied right or refused as at capture, with the destination
untouched; and that replay asks a framework for an address alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_support import names_of
from support import floats, holds, nothing_captured, on_stream, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.errors import BreakgraphError, DTypeMismatch, NotCopyable, ShapeMismatch
from breakgraph.frameworks.base import Framework
from breakgraph.memory import copying
from breakgraph.segments import destinations


class Landing:
    """A graph that reads where a break lands, and what that break returns at replay."""

    def __init__(self, xp: Any, destination: Any, first: Any, **options: Any) -> None:
        self.returned = [first]
        self.seen = xp.zeros((4,), np.float32)
        with bg.capture() as self.graph:
            y = bg.break_here(lambda: self.returned[0], destination, **options)
            self.landed = y
            np.add(y, 0, out=self.seen)

    def replay(self, result: Any) -> None:
        self.returned[0] = result
        self.graph.replay()


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The results that a plan was made for."""
    planned: list[object] = []
    plan = destinations.plan_copy

    def plan_copy(dst: Any, src: Any, **options: Any) -> Any:
        planned.append(src)
        return plan(dst, src, **options)

    monkeypatch.setattr(destinations, "plan_copy", plan_copy)
    return planned


KINDS = {
    "an array": lambda xp: zeros(xp),
    "a cell": lambda xp: bg.Cell((4,), np.float32),
    "inferred": lambda xp: bg.INFER,
    "rows of an array": lambda xp: xp.zeros((3, 4), np.float32)[1],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_fits_lands_by_one_copy_and_no_allocation(sim: Any, xp: Any, kind: str, long_way: list[object]) -> None:
    first = floats(xp, 1, 2, 3, 4)
    landing = Landing(xp, KINDS[kind](xp), first)
    for value in (7, 8):
        result = zeros(xp) + value
        names = names_of(sim, lambda result=result: landing.replay(result))
        assert names.count("memcpy_dtod_async") == 1
        assert not [name for name in names if "alloc" in name or name in ("mem_create", "launch")]
        assert holds(landing.seen, value)
        assert holds(landing.landed, value)
    assert not long_way


@pytest.mark.parametrize("schedule", ["given stream", "current stream"])
def test_the_copy_is_on_the_stream_of_the_replay(sim: Any, xp: Any, schedule: str) -> None:
    stream, landing = sim.create_stream(), Landing(xp, zeros(xp), zeros(xp))
    landing.returned[0] = result = zeros(xp) + 5
    sim.synchronize()
    start = len(sim.log)
    with on_stream(result, stream if schedule.startswith("current") else 0):
        landing.graph.replay(stream=stream if schedule.startswith("given") else None)
    (copied,) = [entry for entry in list(sim.log)[start:] if entry.name == "memcpy_dtod_async"]
    assert copied.args[-1] == int(stream)
    sim.synchronize()
    assert holds(landing.seen, 5)


@nothing_captured
@pytest.mark.parametrize("what", ["itself", "a view of it", "the array of the cell"])
def test_what_lies_there_already_costs_no_call(driver: Any, xp: Any, what: str) -> None:
    destination = bg.Cell((4,), np.float32) if what == "the array of the cell" else zeros(xp)
    array = destination.array if what == "the array of the cell" else destination
    landing = Landing(xp, destination, array[:] if what == "a view of it" else array)
    refill(array, 6)
    if driver.name == "sim":
        names = names_of(driver, landing.graph.replay)
        assert "memcpy_dtod_async" not in names
        assert not [name for name in names if "alloc" in name]
    else:
        landing.graph.replay()
    assert holds(landing.seen, 6)


def test_a_function_that_writes_its_destination_may_return_it_nothing_or_another_array(driver: Any, xp: Any) -> None:
    returns: list[Callable[[Any, Any], Any]] = [lambda a, out: None]

    @bg.break_point(out="out")
    def double(a: Any, *, out: Any) -> Any:
        np.multiply(a, 2, out=out)
        return returns[0](a, out)

    x, dst, seen = zeros(xp), zeros(xp), zeros(xp)
    with bg.capture() as graph:
        np.add(double(x, out=dst), 0, out=seen)
    for value, (function, expected) in enumerate(
        [(lambda a, out: None, 2), (lambda a, out: out, 2), (lambda a, out: out[:], 2), (lambda a, out: a * 3, 3)], 1
    ):
        returns[0] = function
        refill(x, value)
        graph.replay()
        assert holds(seen, expected * value)


def shifted(xp: Any) -> tuple[Any, Any, Any]:
    base = xp.asarray(np.arange(6, dtype=np.float32))
    return base[1:5], base[:4], [0, 1, 2, 3]


def shorter(xp: Any) -> tuple[Any, Any, Any]:
    return xp.ones((4,), np.float32), floats(xp, 8, 9), [8, 9, 1, 1]


def strided(xp: Any) -> tuple[Any, Any, Any]:
    return zeros(xp), xp.asarray(np.arange(8, dtype=np.float32))[::2], [0, 2, 4, 6]


def backwards(xp: Any) -> tuple[Any, Any, Any]:
    return zeros(xp), floats(xp, 1, 2, 3, 4)[::-1], [4, 3, 2, 1]


def into_strides(xp: Any) -> tuple[Any, Any, Any]:
    return xp.zeros((8,), np.float32)[::2], floats(xp, 1, 2, 3, 4), [1, 2, 3, 4]


def a_cell(xp: Any) -> tuple[Any, Any, Any]:
    cell = bg.Cell((4,), np.float32)
    refill(cell.array, 5)
    return zeros(xp), cell, [5, 5, 5, 5]


@pytest.mark.parametrize("form", [shifted, shorter, strided, backwards, into_strides, a_cell])
def test_what_is_of_another_form_lands_the_long_way(
    driver: Any, xp: Any, form: Callable[[Any], tuple[Any, Any, Any]], long_way: list[object]
) -> None:
    destination, result, expected = form(xp)
    landing = Landing(xp, destination, destination + 0)
    landing.replay(result)
    assert landing.seen.get().tolist() == expected
    assert destination.get().tolist() == expected
    assert [one is result for one in long_way] == [True]


@pytest.mark.parametrize("overlap", [-4, -1, 1, 4])
def test_a_result_that_overlaps_or_touches_its_destination_lands_whole(driver: Any, xp: Any, overlap: int) -> None:
    base = xp.asarray(np.arange(12, dtype=np.float32))
    landing = Landing(xp, base[4:8], zeros(xp))
    base.set(np.arange(12, dtype=np.float32))
    landing.replay(base[4 + overlap : 8 + overlap])
    assert landing.seen.get().tolist() == [float(4 + overlap + at) for at in range(4)]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (lambda xp: xp.zeros((4,), np.int32), DTypeMismatch),
        (lambda xp: xp.zeros((5,), np.float32), ShapeMismatch),
        (lambda xp: xp.zeros((4, 1), np.float32), ShapeMismatch),
        (lambda xp: np.zeros(4, np.float32), NotCopyable),
        (lambda xp: (zeros(xp),), NotCopyable),
        (lambda xp: None, NotCopyable),
        (lambda xp: 5, NotCopyable),
    ],
    ids=["dtype", "longer", "more axes", "of the host", "tuple", "nothing", "number"],
)
@pytest.mark.parametrize("kind", ["an array", "a cell", "inferred"])
def test_what_does_not_fit_is_refused_as_at_capture_and_nothing_is_written(
    driver: Any, xp: Any, kind: str, result: Callable[[Any], Any], error: type[BreakgraphError]
) -> None:
    landing = Landing(xp, KINDS[kind](xp), zeros(xp) + 3)
    with pytest.raises(error) as raised:
        landing.replay(result(xp))
    assert any("<Break 0 " in note for note in raised.value.__notes__)
    assert holds(landing.landed, 3)
    landing.replay(zeros(xp) + 4)
    assert holds(landing.seen, 4)
    assert landing.graph.replays == 1


def test_a_tree_lands_the_long_way(driver: Any, xp: Any, long_way: list[object]) -> None:
    made = [zeros(xp) + 1, zeros(xp) + 2]
    places, seen = {"a": zeros(xp), "b": [zeros(xp)]}, zeros(xp)
    with bg.capture() as graph:
        y = bg.break_here(lambda: {"a": made[0], "b": [made[1]]}, places)
        np.add(y["a"], y["b"][0], out=seen)
    made[:] = [zeros(xp) + 10, zeros(xp) + 20]
    graph.replay()
    assert holds(seen, 30)
    assert len(long_way) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_type_with_a_handler_of_its_own_is_landed_by_it(
    sim: Any, xp: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = []
    monkeypatch.setitem(copying._handlers, type(zeros(xp)), lambda dst, src: handled.append(src))
    landing, result = Landing(xp, KINDS[kind](xp), zeros(xp)), zeros(xp)
    handled.clear()
    assert "memcpy_dtod_async" not in names_of(sim, lambda: landing.replay(result))
    assert [one is result for one in handled] == [True]


def test_a_result_that_another_type_of_array_holds_lands_the_long_way(
    sim: Any, xp: Any, long_way: list[object]
) -> None:
    class Tagged(type(zeros(xp))):  # type: ignore[misc]
        pass

    landing = Landing(xp, zeros(xp), zeros(xp))
    source = zeros(xp) + 9
    landing.replay(Tagged(sim, source.region, source))
    assert holds(landing.seen, 9)
    assert len(long_way) == 1


# --- what replay asks of a framework ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "same"),
    [
        (lambda xp: zeros(xp), True),
        (lambda xp: zeros(xp)[:], True),
        (lambda xp: zeros(xp)[:3], False),
        (lambda xp: xp.zeros((8,), np.float32)[::2], False),
        (lambda xp: xp.zeros((4,), np.int32), False),
        (lambda xp: xp.zeros((4, 1), np.float32), False),
    ],
    ids=["another", "view", "shorter", "strided", "dtype", "axes"],
)
def test_a_framework_tells_the_address_of_what_is_laid_out_alike_and_0_of_anything_else(
    driver: Any, xp: Any, array: Callable[[Any], Any], same: bool
) -> None:
    framework = frameworks.of(zeros(xp), driver)
    assert framework is not None
    asked, like = array(xp), framework.view(zeros(xp))
    expected = framework.view(asked).ptr if same else 0
    assert framework.address(asked, like) == expected
    assert Framework.address(framework, asked, like) == expected, "as the protocol's own default does"
    assert Framework.address(framework, object(), like) == 0
