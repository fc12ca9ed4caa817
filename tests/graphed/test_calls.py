"""A graphed function gives what the function gives: whatever its arguments, and however a call is written.

Proves that each call runs the forward exactly once, by a capture the first time and by a replay after; that live
inputs are copied from wherever they are in the arguments; and that two calls share a graph only if one graph can
serve both.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from graphed_support import Forward, batch, poison, same
from support import every_schedule, floats, holds, refill, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError


@every_schedule
def test_the_first_call_is_captured_and_later_ones_are_replayed(driver: Any, xp: Any) -> None:
    forward, eager = Forward(xp), Forward(xp)
    service = bg.graphed(forward)
    for at in range(4):
        x = batch(xp, 4, at)
        assert same(service(x), eager(x))
    assert (forward.bodies, forward.breaks) == (1, 4), "each call runs the forward once, the body only to capture"
    (graph,) = service.graphs
    assert (len(graph.segments), len(graph.breaks), graph.replays) == (2, 1, 3)
    assert (service.stats.calls, service.stats.captures, service.stats.hits) == (4, 1, 3)


def test_each_combination_of_shapes_and_dtypes_is_captured_as_it_is(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: x + 1)
    inputs = [xp.ones(shape, dtype) for shape in (4, (2, 2), (4, 1), ()) for dtype in (np.float32, np.int32)]
    for x in inputs * 2:
        y = service(x)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert holds(y, 2)
    assert service.stats.captures == len(inputs)
    assert [graph.name.partition("[")[2] for graph in service.graphs][::2] == ["4]", "2x2]", "4x1]", "]"]


def test_a_call_reads_its_inputs_before_it_returns_control_of_them(driver: Any, xp: Any) -> None:
    """On the caller's stream, as an eager call does: what is written there afterwards comes too late."""
    service, x = bg.graphed(lambda x: x * 2), zeros(xp)
    for value in (1, 2, 3):
        refill(x, value)
        y = service(x)
        poison(x)
        assert holds(y, 2 * value)


def test_strided_inputs_are_copied_element_by_element(driver: Any, xp: Any) -> None:
    grid = xp.asarray(np.arange(24, dtype=np.float32).reshape(4, 6))
    service = bg.graphed(lambda x: x + 1)
    for view in (grid[:, 1:4], grid[::2, ::2], grid.T, grid[:, 1:4], grid[::-1]):
        assert np.array_equal(service(view).get(), view.get() + 1)
    assert service.stats.captures == 4


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the plain form is one that users write


@dataclass(frozen=True)
class Batch:
    x: Any
    more: Any
    scale: float = 1.0


def test_arrays_are_found_in_tuples_lists_mappings_and_dataclasses(driver: Any, xp: Any) -> None:
    def total(values: Any, batch: Batch, *rest: Any, **named: Any) -> Any:
        pair, items = values
        result = pair.a + pair.b + items[0] + batch.x * batch.scale + batch.more["deep"][0]
        return result + sum(rest) + sum(named.values())

    service = bg.graphed(total)
    for base in (0, 10):
        a = [floats(xp, base + at, at) for at in range(7)]
        args = ((Pair(a[0], a[1]), [a[2]]), Batch(a[3], OrderedDict(deep=(a[4],)), 2.0), a[5])
        assert same(service(*args, last=a[6]), total(*args, last=a[6]))
    assert (service.stats.captures, service.stats.hits) == (1, 1)


def test_a_call_has_one_key_however_it_is_written(driver: Any, xp: Any) -> None:
    def scaled(x: Any, factor: float = 2.0, *, shift: float = 0.0) -> Any:
        return x * factor + shift

    service, x = bg.graphed(scaled), floats(xp, 1, 2)
    for y in (
        service(x),
        service(x=x),
        service(x, 2.0),
        service(factor=2.0, x=x),
        service(x, shift=0.0, factor=2.0),
    ):
        assert y.get().tolist() == [2, 4]
    assert service.stats.captures == 1
    assert service(x, shift=1.0).get().tolist() == [3, 5]
    assert service.stats.captures == 2


class Mode(enum.Enum):
    ADD = 1
    MULTIPLY = 2


@pytest.mark.parametrize(
    ("values", "apply"),
    [
        ((1, 1.0, True, np.float32(1), np.int8(1)), lambda x, v: x * xp_scalar(x, v)),
        ((0.0, -0.0), lambda x, v: x / v),
        ((np.float32(0.0), np.float32(-0.0)), lambda x, v: x / v),
        ((np.timedelta64(1, "s"), np.timedelta64(1, "m")), lambda x, v: x * float(v / np.timedelta64(1, "s"))),
        ((Mode.ADD, Mode.MULTIPLY), lambda x, v: x + 3 if v is Mode.ADD else x * 3),
        (("add", "mul", None), lambda x, v: {"add": x + 3, "mul": x * 3, None: x * 5}[v]),
        (((1, 2), (2, 1), [1, 2]), lambda x, v: x * v[0] + (7 if isinstance(v, list) else 0)),
        (({"a": 1, "b": 2}, {"a": 2, "b": 1}), lambda x, v: x * v["a"]),
    ],
    ids=["equal numbers", "signed zeros", "numpy's", "units", "enums", "strings", "sequences", "mappings"],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_another_value_of_an_argument_is_another_graph(driver: Any, xp: Any, values: Any, apply: Any) -> None:
    service, x = bg.graphed(apply), floats(xp, 1, 2)
    for value in values * 2:
        found, expected = service(x, value), apply(x, value)
        assert same(found, expected), value
    assert service.stats.captures == len(values)
    assert service.stats.hits == len(values)


def xp_scalar(x: Any, value: Any) -> Any:
    """1 as the value's own type has it in NumPy's promotion: the dtype of the result tells which it was."""
    return np.asarray(value).dtype.type(value) if not isinstance(value, (int, float)) or value is True else value


def test_a_value_that_is_not_equal_to_itself_is_one_graph_all_the_same(driver: Any, xp: Any) -> None:
    service, x = bg.graphed(lambda x, v: x + v), floats(xp, 1)
    for _ in range(3):
        assert holds(service(x, float("nan")), np.nan)
    assert service.stats.captures == 1


def test_one_array_given_twice_is_another_kind_of_call_than_two(driver: Any, xp: Any) -> None:
    """A graph that was captured with one place for both would read the first of two twice."""
    service = bg.graphed(lambda a, b: a * 10 + b)
    x, y = floats(xp, 1, 1), floats(xp, 2, 2)
    assert holds(service(x, x), 11)
    assert holds(service(x, y), 12)
    assert holds(service(y, x), 21)
    assert holds(service(y, y), 22)
    assert service.stats.captures == 2


def test_the_forward_context_is_live_and_no_part_of_the_key(driver: Any, xp: Any) -> None:
    @bg.break_point
    def scaled(a: Any, ctx: Any) -> Any:
        assert bg.current_forward() is ctx
        return a * ctx["scale"]

    service = bg.graphed(lambda x, ctx: scaled(x + 1, ctx) + 0)
    for scale in (2, 3, 5):
        with bg.active_forward({"scale": scale}) as ctx:
            assert holds(service(zeros(xp), ctx), scale)
    assert (service.stats.captures, service.stats.hits) == (1, 2)


def test_calls_with_and_without_a_context_have_a_graph_each(driver: Any, xp: Any) -> None:
    seen = []

    @bg.break_point
    def noted(a: Any) -> Any:
        seen.append(bg.current_forward())
        return a + 1

    service, x = bg.graphed(lambda x: noted(x + 1) + 1), zeros(xp)
    service(x)
    with bg.active_forward("a"):
        service(x)
    service(x)
    with bg.active_forward("b"):
        assert holds(service(x), 3)
    assert seen == [None, "a", None, "b"]
    assert service.stats.captures == 2


# --- arguments that no graph can be chosen by -------------------------------------------------------------------


class HoldsArrays:
    def __init__(self, x: Any) -> None:
        self.arrays = [x]


def refused(service: Any, *args: Any, match: str) -> None:
    """The call is refused before anything of the function runs, and the next one is good."""
    with pytest.raises(BreakgraphError, match=match):
        service(*args)
    assert not bg.is_capturing()


def test_what_can_only_be_wrong_is_refused_by_name(driver: Any, xp: Any) -> None:
    ran, x = [], zeros(xp)

    def forward(x: Any, value: Any = None) -> Any:
        ran.append(value)
        return x + 1

    service = bg.graphed(forward)
    refused(service, x, np.ones(3), match=r"'value'.*array of the host(.|\n)*asarray")
    refused(service, x, [np.ones(3)], match=r"'value'.*array of the host")
    refused(service, x, {1, 2}, match=r"'value' is \{1, 2\}(.|\n)*hash")
    refused(service, x, HoldsArrays(x), match=r"HoldsArrays in it(.|\n)*static='value'")
    assert not ran
    assert holds(service(x, HoldsArrays), 1), "a class is a value"
    assert holds(service(x, np.float32), 1)
    assert holds(service(x), 1)


def test_a_wrong_call_is_told_as_python_tells_it(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x, *, scale: x * scale)
    for args, kwargs in (((), {}), ((1, 2), {"scale": 1}), ((1,), {"other": 1})):
        with pytest.raises(TypeError, match="argument"):
            service(*args, **kwargs)


# --- what it is, seen from outside ------------------------------------------------------------------------------


def test_it_looks_like_its_function(driver: Any, xp: Any) -> None:
    @bg.graphed(buckets=[4])
    def encode(x: Any, scale: float = 1.0) -> Any:
        """Encode rows."""
        return x * scale

    assert (encode.__name__, encode.__doc__) == ("encode", "Encode rows.")
    assert encode.__wrapped__(2, 3) == 6
    encode(xp.ones((3, 2), np.float32))
    assert repr(encode) == ("<Graphed test_it_looks_like_its_function.<locals>.encode: 1 graph, 1 call, 25.0% padding>")


def test_a_partial_and_an_object_that_is_called_can_be_graphed(driver: Any, xp: Any) -> None:
    tripled, forward, eager = bg.graphed(partial(lambda by, x: x * by, 3)), bg.graphed(Forward(xp, 2)), Forward(xp, 2)
    for seed in range(2):
        x = batch(xp, 3, seed, width=2)
        assert same(tripled(x), x * 3)
        assert same(forward(x), eager(x))
    assert tripled.stats.captures == forward.stats.captures == 1
    assert not hasattr(forward, "w"), "what the object has is its own"


# --- methods ----------------------------------------------------------------------------------------------------


class Layer:
    def __init__(self, weight: Any) -> None:
        self.weight = weight
        self.calls = 0

    @bg.graphed(buckets=[4, 8])
    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.weight

    @bg.graphed
    def other(self, x: Any) -> Any:
        return x - self.weight


def test_each_instance_has_its_graphs(driver: Any, xp: Any) -> None:
    two, three = Layer(floats(xp, 2)), Layer(floats(xp, 3))
    for rows in (3, 4, 1, 7):
        x = xp.ones((rows, 2), np.float32)
        assert holds(two.forward(x), 2)
        assert holds(three.forward(x), 3)
        assert holds(two.other(x), -1)
    assert (two.calls, three.calls) == (2, 2)
    assert two.forward.stats.captures == three.forward.stats.captures == 2
    assert two.other.stats.captures == 4
    assert Layer.forward.stats.calls == 0
    two.forward.reset()
    assert not two.forward.graphs
    assert len(three.forward.graphs) == 2


def test_an_instance_that_cannot_hold_graphs_is_told(driver: Any, xp: Any) -> None:
    class Tight:
        __slots__ = ()

        @bg.graphed
        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(BreakgraphError, match=r"Tight(.|\n)*__dict__"):
        Tight().forward(zeros(xp))


def test_class_and_static_methods_can_be_graphed(driver: Any, xp: Any) -> None:
    class Kinds:
        factor = 3

        @classmethod
        @bg.graphed
        def of_class(cls, x: Any) -> Any:
            return x * cls.factor

        @staticmethod
        @bg.graphed
        def static(x: Any) -> Any:
            return x * 5

    for _ in range(2):
        assert holds(Kinds.of_class(floats(xp, 1)), 3)
        assert holds(Kinds().static(floats(xp, 1)), 5)
    assert Kinds.static.stats.hits == 1
