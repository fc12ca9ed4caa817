"""Static inputs are not copied: the graph reads them where they are, and a call with them elsewhere is an error.

Proves that what is written into a static array is seen by the next replay and what a graph writes there by the caller;
that an array that has moved, changed its shape, strides or dtype, come or gone is told before anything is launched,
with its name; and that the graph keeps what it has baked.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support import every_schedule, floats, holds, refill, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, InputMoved


@every_schedule
def test_a_static_array_is_read_where_it_is(driver: Any, xp: Any) -> None:
    weight = floats(xp, 2, 2)
    service = bg.graphed(lambda x, w: x * w, static="w")
    for value in (2, 3, 5):
        refill(weight, value)
        assert holds(service(floats(xp, 10, 10), weight), 10 * value)
    assert service.stats.captures == 1


@every_schedule
def test_a_static_array_may_be_written(driver: Any, xp: Any) -> None:
    """A cache: each call adds to it, in the segment and in the break, exactly once."""
    segment, breaks = zeros(xp), zeros(xp)

    def forward(x: Any, caches: tuple[Any, Any]) -> Any:
        np.add(caches[0], x, out=caches[0])
        bg.break_here(lambda a, cache: np.add(cache, a, out=cache), bg.IN_PLACE, x, caches[1])
        return caches[0] + caches[1]

    service = bg.graphed(forward, static=("caches",))
    for calls in range(1, 5):
        assert holds(service(floats(xp, 1, 1, 1, 1), (segment, breaks)), 2 * calls)
    assert holds(segment, 4)
    assert holds(breaks, 4)


def test_what_a_function_writes_into_a_live_input_the_caller_does_not_see(driver: Any, xp: Any) -> None:
    def forward(x: Any) -> Any:
        np.add(x, 1, out=x)
        return x

    service, x = bg.graphed(forward), zeros(xp)
    for _ in range(2):
        assert holds(service(x), 1)
        assert holds(x, 0)


@dataclass
class Weights:
    a: Any
    b: Any


class Model:
    def __init__(self, *weights: Any) -> None:
        self.weights = list(weights)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda xp, a, b: (a, b.copy()), r"'w' \(array 1 in it\) of scaled was \(4,\) float32 at 0x\w+ at capture"),
        (lambda xp, a, b: (b, a), r"'w' \(array 0 in it\)"),
        (lambda xp, a, b: (a[:2], b), r"and is \(2,\) float32 at"),
        (lambda xp, a, b: (a.view(np.int32), b), r"and is \(4,\) int32 at"),
        (lambda xp, a, b: (a[::-1], b), r"'w' \(array 0 in it\)"),
        (lambda xp, a, b: (a,), "are 1 arrays, and were 2 at capture"),
        (lambda xp, a, b: (a, b, a[:1]), "are 3 arrays, and were 2 at capture"),
        (lambda xp, a, b: None, "are 0 arrays, and were 2 at capture"),
    ],
    ids=["moved", "exchanged", "shorter", "dtype", "strides", "gone", "come", "none"],
)
@pytest.mark.parametrize(
    "kind",
    [tuple, lambda arrays: Weights(*arrays), lambda arrays: Model(*arrays)],
    ids=["tuple", "dataclass", "object"],
)
def test_a_static_array_that_is_not_where_it_was_is_told_before_anything_is_launched(
    sim: Any, xp: Any, kind: Any, change: Any, told: str
) -> None:
    def scaled(x: Any, w: Any) -> Any:
        return x * 1

    a, b, x = floats(xp, 1, 2, 3, 4), zeros(xp), zeros(xp)
    service = bg.graphed(scaled, static="w", name="scaled")
    service(x, kind((a, b)))
    changed = change(xp, a, b)
    if changed is not None:
        try:
            changed = kind(changed)
        except TypeError:
            pytest.skip("a Weights has two arrays")
    launches = sim.calls["graph_launch"]
    with pytest.raises(InputMoved, match=told):
        service(x, changed)
    assert sim.calls["graph_launch"] == launches
    service(x, kind((a, b)))
    assert service.stats.hits == 1


def test_another_object_with_the_same_arrays_has_not_moved(driver: Any, xp: Any) -> None:
    a, b = floats(xp, 1), floats(xp, 2)
    service = bg.graphed(lambda x, w: x + w.a * w.b, static="w")
    for _ in range(2):
        assert holds(service(floats(xp, 1), Weights(a, b)), 3)
    assert service.stats.hits == 1


@pytest.mark.parametrize(
    "kind", [tuple, list, lambda parts: Weights(*parts), lambda parts: dict(zip("ab", parts, strict=True))]
)
def test_a_plain_value_beside_a_static_array_is_a_constant_like_any_other(driver: Any, xp: Any, kind: Any) -> None:
    def scaled(x: Any, w: Any) -> Any:
        weight, factor = w.values() if isinstance(w, dict) else (w.a, w.b) if isinstance(w, Weights) else w
        return x * weight * factor

    service, weight = bg.graphed(scaled, static="w"), floats(xp, 2, 2)
    for _ in range(2):
        for factor in (3, 5):
            assert holds(service(floats(xp, 1, 1), kind((weight, factor))), 2 * factor)
    assert service.stats.captures == 2


def test_static_arrays_under_exchanged_names_are_another_graph(driver: Any, xp: Any) -> None:
    one, two = floats(xp, 1, 1), floats(xp, 2, 2)
    service = bg.graphed(lambda x, w: x + w["a"] - w["b"], static="w")
    assert holds(service(floats(xp, 5, 5), {"a": one, "b": two}), 4)
    assert holds(service(floats(xp, 5, 5), {"b": one, "a": two}), 6)


def test_after_a_reset_a_static_array_may_be_elsewhere(driver: Any, xp: Any) -> None:
    service, x = bg.graphed(lambda x, w: x * w, static="w"), floats(xp, 1)
    assert holds(service(x, floats(xp, 2)), 2)
    moved = floats(xp, 3)
    with pytest.raises(InputMoved, match=r"'w' of(.|\n)*reset\(\)"):
        service(x, moved)
    service.reset()
    assert holds(service(x, moved), 3)


def test_a_graph_keeps_the_arrays_that_it_has_baked(driver: Any, xp: Any) -> None:
    service, weight = bg.graphed(lambda x, w: x * w, static="w"), floats(xp, 2)
    alive = weakref.ref(weight)
    service(floats(xp, 1), weight)
    del weight
    gc.collect()
    assert alive() is not None
    service.reset()
    gc.collect()
    assert alive() is None


def test_a_cell_is_at_a_fixed_address_and_may_be_static(driver: Any, xp: Any) -> None:
    cell, other = bg.Cell(4, np.float32), bg.Cell(4, np.float32)
    service = bg.graphed(lambda x, cell: x + cell.array, static="cell")
    for value in (1, 2):
        cell.write(value)
        assert holds(service(zeros(xp), cell), value)
    with pytest.raises(InputMoved, match="'cell'"):
        service(zeros(xp), other)
    by_identity = bg.graphed(lambda x, cell: x + cell.array)
    other.write(5)
    for one, value in ((cell, 2), (other, 5), (cell, 2)):
        assert holds(by_identity(zeros(xp), one), value)
    assert by_identity.stats.captures == 2


def test_a_static_value_without_arrays_is_refused_but_for_none(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x, w=None: x + (0 if w is None else 1), static="w")
    for value in (3, "name", (), [None]):
        with pytest.raises(BreakgraphError, match=r"static input 'w'(.|\n)*no device array(.|\n)*static="):
            service(zeros(xp), value)
    assert holds(service(zeros(xp)), 0)


def test_an_instance_that_is_static_is_read_for_its_arrays_and_not_for_its_graphs(driver: Any, xp: Any) -> None:
    class WithGraphs(Model):
        @bg.graphed
        def double(self, x: Any) -> Any:
            return x * 2

    model, x = WithGraphs(floats(xp, 3)), floats(xp, 1)
    service = bg.graphed(lambda x, model: x * model.weights[0], static="model")
    assert holds(service(x, model), 3)
    assert holds(model.double(x), 2)
    assert holds(service(x, model), 3)
    assert service.stats.hits == 1
