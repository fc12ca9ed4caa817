"""What a graphed call returns is the caller's, unless it was declared to be the graph's.

Proves that a result outlives later calls, captures and the graphs themselves; that results of any form come back in
it; that with ``copy_outputs=False`` they are where the graph writes them, without a copy, and may be the next call's
inputs; and that values of the host are refused, or stay as they were and are told.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphed_support import Forward, batch, same
from support import every_schedule, floats, holds, nothing_captured, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.errors import BreakgraphError, BreakgraphWarning, NotCopyable

SIZES = (4, 8, 16)


def address(array: Any) -> int:
    framework = frameworks.of(array, bg.driver.current())
    assert framework is not None
    return int(framework.view(array).ptr)


@every_schedule
def test_results_outlive_later_calls_of_any_size_and_the_graphs(driver: Any, xp: Any) -> None:
    service, eager = bg.graphed(Forward(xp), buckets=SIZES), Forward(xp)
    inputs = [batch(xp, rows, seed) for seed in range(2) for rows in (16, 3, 8, 1, 11)]
    results = [service(x) for x in inputs]
    service.close()
    for x, y in zip(inputs, results, strict=True):
        assert same(y, eager(x))
    assert len({address(y) for y in results}) == len(results)


def test_a_result_may_be_written_without_harm_to_others(driver: Any, xp: Any) -> None:
    service, x = bg.graphed(lambda x: x + 1), zeros(xp)
    first = service(x)
    refill(first, 99)
    assert holds(service(x), 1)
    assert holds(first, 99)


@dataclass
class Found:
    x: Any
    more: tuple[Any, ...]


@nothing_captured
@pytest.mark.parametrize(
    "form",
    [
        lambda x: (x + 1, None, x * 2),
        lambda x: [x + 1, (x * 2, {"deep": x * 3})],
        lambda x: Found(x + 1, (x * 2,)),
        lambda x: SimpleNamespace(a=x + 1, b=None),
        lambda x: None,
        lambda x: (None, ()),
        lambda x: x,
        lambda x: x[1:],
        lambda x: x[::2],
        lambda x: (x, x),
        lambda x: bg.break_here(lambda a: (a * 2, a * 3), bg.INFER, x),
    ],
    ids=[
        "tuple", "deep", "dataclass", "object", "none", "nones", "the input", "a view", "strided", "twice", "of a break"
    ],
)  # fmt: skip
def test_results_come_back_in_the_form_that_they_had(driver: Any, xp: Any, form: Any) -> None:
    service = bg.graphed(form)
    for value in (1, 2, 3):
        x = floats(xp, value, value + 1, value + 2)
        assert host(service(x)) == host(form(x))
    assert service.stats.captures == 1


def host(value: Any) -> Any:
    """A result with lists of numbers in place of arrays."""
    if hasattr(value, "get") and not isinstance(value, dict):
        return value.get().tolist()
    if isinstance(value, dict):
        return {key: host(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(host, value))
    return (type(value), host(vars(value))) if hasattr(value, "__dict__") else value


def test_one_array_returned_twice_is_one_array(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: [y := x + 1, y])
    for _ in range(2):
        one, other = service(zeros(xp))
        assert one is other


def test_a_static_array_that_is_returned_is_copied_too(driver: Any, xp: Any) -> None:
    cache = zeros(xp)

    def step(x: Any, cache: Any) -> Any:
        np.add(cache, x, out=cache)
        return cache

    service = bg.graphed(step, static="cache")
    results = [service(floats(xp, 1, 1, 1, 1), cache) for _ in range(3)]
    assert [y.get()[0] for y in results] == [1, 2, 3]
    assert holds(cache, 3)


# --- without a copy ---------------------------------------------------------------------------------------------


def test_without_copies_a_result_lies_where_the_graph_writes_it(sim: Any, xp: Any) -> None:
    service, x = bg.graphed(lambda x: x + 1, buckets=SIZES, copy_outputs=False), zeros(xp, 3, 2)
    first = service(x)
    assert service.arena.contains(address(first))
    copies, allocations = sim.calls["memcpy_dtod_async"], sim.calls["mem_alloc_async"]
    refill(x, 5)
    second = service(x)
    assert address(second) == address(first)
    assert second.shape == (3, 2)
    assert holds(first, 6), "valid until the next call, and this was one"
    assert sim.calls["memcpy_dtod_async"] == copies + 1, "of the input"
    assert sim.calls["mem_alloc_async"] == allocations


@every_schedule
def test_without_copies_a_result_may_be_the_next_input(driver: Any, xp: Any) -> None:
    """Of the same size and of others, whose cells and results may lie in the same bytes of the arena."""
    forward = lambda x: (x * 3 + x.sum(axis=0)) % 7  # noqa: E731
    service = bg.graphed(forward, buckets=SIZES, copy_outputs=False)
    x, expected = batch(xp, 16), batch(xp, 16)
    for rows in (16, 16, 8, 7, 7, 4, 3, 3, 3):
        x, expected = service(x[:rows]), forward(expected[:rows])
        assert same(x + 0, expected), rows
    assert service.stats.captures == 3


@every_schedule
def test_without_copies_two_results_may_change_places(driver: Any, xp: Any) -> None:
    """They are the places of the inputs themselves, exchanged: each is written where the other is read."""

    def forward(a: Any, b: Any) -> Any:
        np.add(a, 1, out=a)
        np.multiply(b, 2, out=b)
        return b, a

    service = bg.graphed(forward, copy_outputs=False)
    a, b = floats(xp, 1, 2), floats(xp, 10, 20)
    expected = (a.get(), b.get())
    for _ in range(5):
        a, b = service(a, b)
        expected = (expected[1] * 2, expected[0] + 1)
        assert [a.get().tolist(), b.get().tolist()] == [e.tolist() for e in expected]


def test_without_copies_the_memory_of_a_result_outlives_the_graphs(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: x + 1, copy_outputs=False)
    y = service(zeros(xp))
    service.close()
    del service
    assert holds(y, 1)


# --- values of the host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3, 2.5, "name", np.float32(1), np.ones(2), [1, 2], {"a": 1}], ids=repr)
def test_a_result_of_the_host_alone_is_refused(driver: Any, xp: Any, value: Any) -> None:
    service = bg.graphed(lambda x: (x + 1, value)[1])
    with pytest.raises(NotCopyable, match="every later call would get this one"):
        service(zeros(xp))
    assert not bg.is_capturing()


def test_values_beside_arrays_stay_as_they_were_or_are_told(driver: Any, xp: Any) -> None:
    numbers = iter(range(10))

    def forward(x: Any) -> Any:
        return x + 1, next(numbers), None, np.full(2, 7)

    service = bg.graphed(forward)
    for _ in range(2):
        y, number, nothing, array = service(zeros(xp))
        assert holds(y, 1)
        assert (number, nothing, array.tolist()) == (0, None, [7, 7])
        array[:] = 0  # the caller's own
    with pytest.raises(BreakgraphError, match="returned 1, which every later call will get"):
        bg.graphed(forward, frozen="refuse")(zeros(xp))
    with pytest.warns(BreakgraphWarning, match="returned 2, which every later call will get") as told:
        bg.graphed(lambda x: forward(x)[:3], frozen="warn")(zeros(xp))
    assert [warning.filename for warning in told] == [__file__], "the warning is about the caller's line"
    bg.graphed(lambda x: (x + 1, None), frozen="refuse")(zeros(xp))


@pytest.mark.parametrize("part", [False, True], ids=["all of it", "a part of it"])
def test_a_result_that_no_replay_writes_again_is_told(driver: Any, xp: Any, part: bool) -> None:
    """The break hands its first result on (NO_WRITEBACK), and the forward returns it, or a part of it."""

    def forward(x: Any) -> Any:
        y = bg.break_here(lambda a: a * 2, bg.NO_WRITEBACK, x + 1)
        return x + 1, y[:1] if part else y

    service = bg.graphed(forward)
    with pytest.warns(BreakgraphWarning, match=r"returned what <Break 0 .*NO_WRITEBACK.*dst=bg.INFER") as told:
        service(zeros(xp))
    assert [warning.filename for warning in told] == [__file__], "the warning is about the caller's line"


def test_a_result_that_segments_make_of_what_was_handed_on_is_not_told(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: bg.break_here(lambda a: a * 2, bg.NO_WRITEBACK, x + 1) * 0 + x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert holds(service(zeros(xp)), 0)


def test_lists_and_mappings_beside_arrays_are_the_callers_own(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: (x + 1, [1, 2], {"a": [3]}))
    for _ in range(3):
        y, numbers, named = service(zeros(xp))
        assert holds(y, 1)
        assert (numbers, named) == ([1, 2], {"a": [3]})
        numbers.append(0)
        named["a"].append(0)
        named["b"] = 0


def test_a_type_that_copies_by_its_own_handler_is_refused(driver: Any, xp: Any) -> None:
    class Own:
        def __init__(self, x: Any) -> None:
            self.x = x

    @bg.copy_output.register(Own)
    def _(dst: Own, src: Own) -> None:
        raise AssertionError

    with pytest.raises(NotCopyable, match=r"Own(.|\n)*handler"):
        bg.graphed(lambda x: (x + 1, Own(x)))(zeros(xp))


def test_a_cell_that_is_returned_is_copied_as_an_array(driver: Any, xp: Any) -> None:
    cell = bg.Cell(4, np.float32)

    def forward(x: Any) -> Any:
        bg.break_here(lambda a: a * 2, cell, x + 1)
        return cell, cell.array + 0

    service = bg.graphed(forward)
    first, _ = service(zeros(xp))
    second, same_values = service(floats(xp, 1, 1, 1, 1))
    assert holds(first, 2)
    assert holds(second, 4)
    assert holds(same_values, 4)
