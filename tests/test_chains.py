"""Chains of segments and breaks compute what the same forward computes eagerly, at capture and at replay.

Proves C2, C3, C9, C20 and C23 by values: captured with zeros, then refilled and replayed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import every_schedule, floats, holds, nothing_captured, refill, steps_of, zeros

import breakgraph as bg

Step = tuple[Any, ...]
OPERATION = {"+": operator.add, "*": operator.mul}

# Steps: ("+", 1) is captured, ("E*", 2) is an eager break, ("|",) a bare break.
# Runs: the input's value, then the value after each step that has one.
CHAINS: dict[str, tuple[list[Step], list[tuple[float, ...]]]] = {
    "no break": ([("+", 1)], [(5, 6), (11, 12)]),
    "one break": ([("+", 1), ("E*", 2), ("+", 3)], [(10, 11, 22, 25)]),
    "several breaks": ([("+", 1), ("E+", 1), ("+", 1), ("E*", 2)], [(5, 6, 7, 8, 16)]),
    "a break that ends the forward": ([("+", 1), ("E*", 3)], [(0, 1, 3), (10, 11, 33)]),
    "a bare break": ([("+", 1), ("|",), ("+", 2)], [(10, 11, 13)]),
    "two bare breaks": ([("*", 2), ("|",), ("+", 1), ("|",), ("*", 3)], [(2, 4, 5, 15)]),
    "a break first": ([("E*", 2), ("+", 1), ("*", 3)], [(2, 4, 5, 15), (7, 14, 15, 45)]),
    "a break in the middle": ([("*", 2), ("E+", 1), ("*", 3)], [(2, 4, 5, 15), (7, 14, 15, 45)]),
    "a break last": ([("*", 2), ("+", 1), ("E*", 3)], [(2, 4, 5, 15), (7, 14, 15, 45)]),
    "two breaks with nothing between": ([("+", 1), ("E*", 2), ("E+", 5), ("+", 1)], [(1, 2, 4, 9, 10)]),
    "nothing but a break": ([("E+", 1)], [(1, 2)]),
    "seven breaks": (
        [step for i in range(7) for step in (("+", i), ("E+", 1))] + [("+", 7)],
        [
            (0, 0, 1, 2, 3, 5, 6, 9, 10, 14, 15, 20, 21, 27, 28, 35),
            (4, 4, 5, 6, 7, 9, 10, 13, 14, 18, 19, 24, 25, 31, 32, 39),
        ],
    ),
}


def run(steps: list[Step], x: Any) -> list[Any]:
    """Run a chain in whatever mode the caller is in; every step's array."""
    arrays = []
    for name, *number in steps:
        if name == "|":
            bg.break_graph()
            continue
        work = OPERATION[name.removeprefix("E")]
        x = bg.break_here(work, bg.INFER, x, *number) if name.startswith("E") else work(x, *number)
        arrays.append(x)
    return arrays


@every_schedule
@nothing_captured
@pytest.mark.parametrize("chain", CHAINS)
def test_each_step_of_a_chain_has_the_eager_value_at_capture_and_at_every_replay(
    driver: Any, xp: Any, chain: str
) -> None:
    steps, runs = CHAINS[chain]
    x = zeros(xp)
    eager = [array.get() for array in run(steps, x)]
    with bg.capture() as graph:
        arrays = run(steps, x)
    breaks = sum(name.startswith(("E", "|")) for name, *_ in steps)
    assert (len(graph.segments), len(graph.breaks), len(graph.steps)) == (breaks + 1, breaks, 2 * breaks + 1)
    for array, value in zip(arrays, eager, strict=True):
        assert np.array_equal(array.get(), value)
    for value, *expected in runs:
        refill(x, value)
        graph.replay()
        assert [float(array.get()[0]) for array in arrays] == expected
        assert all(holds(array, value) for array, value in zip(arrays, expected, strict=True))
    assert graph.replays == len(runs)


@every_schedule
@pytest.mark.parametrize("where", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_break_has_three_steps_and_the_eager_values_wherever_it_stands(driver: Any, xp: Any, where: int) -> None:
    work: list[Callable[[Any], Any]] = [lambda a: a * 2, lambda a: a + 1, lambda a: a * 3]

    def forward(a: Any) -> Any:
        for index, one in enumerate(work):
            a = bg.break_here(one, bg.INFER, a) if index == where else one(a)
        return a

    x = floats(xp, 1, 2, 3, 4)
    with bg.capture() as graph:
        y = forward(x)
    assert len(graph.steps) == 3
    assert graph.steps == (graph.segments[0], graph.breaks[0], graph.segments[1])
    for values in ((5, 6, 7, 8), (0, -1, 2, 9)):
        x.set(np.asarray(values, np.float32))
        graph.replay()
        assert np.array_equal(y.get(), forward(x).get())


def test_without_execution_the_capture_runs_breaks_only(driver: Any, xp: Any) -> None:
    x, out, called = zeros(xp), zeros(xp), []

    @bg.break_point
    def doubled(a: Any) -> Any:
        called.append(bg.is_capturing())
        return a * 2

    with bg.capture(execute=False) as graph:
        np.add(doubled(x + 1), 5, out=out)
    assert holds(x, 0)
    assert holds(out, 0)
    for value, expected in ((10, 27), (100, 207)):
        refill(x, value)
        graph.replay()
        assert holds(out, expected)
    assert called == [False, False, False]


def test_with_execution_a_break_sees_real_values_and_the_capture_is_one_correct_forward(driver: Any, xp: Any) -> None:
    x, seen = floats(xp, 10, 10, 10, 10), []

    @bg.break_point
    def doubled(a: Any) -> Any:
        seen.append(a.get().tolist())
        return a * 2

    with bg.capture() as graph:
        out = doubled(x + 1) + 3
    assert seen == [[11.0] * 4]
    assert holds(out, 25)
    refill(x, 1)
    graph.replay()
    assert seen[1:] == [[2.0] * 4]
    assert holds(out, 7)


def test_one_function_may_be_two_breaks(driver: Any, xp: Any) -> None:
    x, calls = zeros(xp), []

    def plus_ten(a: Any) -> Any:
        calls.append(None)
        return a + 10

    with bg.capture() as graph:
        first = bg.break_here(plus_ten, bg.INFER, x + 1)
        second = bg.break_here(plus_ten, bg.INFER, first + 1)
        out = second + 1
    assert (len(graph.segments), len(graph.breaks), len(calls)) == (3, 2, 2)
    assert holds(out, 23)
    refill(x, 100)
    graph.replay()
    assert [float(a.get()[0]) for a in (first, second, out)] == [111, 122, 123]


def test_a_break_point_is_a_plain_call_outside_a_capture_and_a_break_inside(driver: Any, xp: Any) -> None:
    @bg.break_point
    def doubled(a: Any) -> Any:
        return a * 2

    assert holds(doubled(floats(xp, 3, 3)), 6)
    x = zeros(xp)
    with bg.capture() as graph:
        out = doubled(x + 5) + 1
    refill(x, 2)
    graph.replay()
    assert holds(out, 15)
    assert len(graph.breaks) == 1
    assert holds(doubled(floats(xp, 3, 3)), 6)


@every_schedule
def test_breaks_run_in_the_order_of_the_forward_at_capture_and_at_each_replay(driver: Any, xp: Any) -> None:
    x, order = zeros(xp), []

    def logged(name: str) -> Callable[[Any], Any]:
        def work(a: Any) -> Any:
            order.append(name)
            return a + 1

        return bg.break_point(work)

    a, b, c = logged("A"), logged("B"), logged("C")
    with bg.capture() as graph:
        c(b(a(x + 1) + 1) + 1)
    for _ in range(2):
        graph.replay()
    assert order == ["A", "B", "C"] * 3


def test_one_log_shows_segment_break_segment_break_segment(sim: Any, xp: Any) -> None:
    x = zeros(xp)

    def marked(name: str) -> Callable[[Any], Any]:
        def work(a: Any) -> Any:
            sim.mark(name)
            return a + 1

        return work

    start = len(sim.log)
    with bg.capture() as graph:
        out = bg.break_here(marked("B"), bg.INFER, bg.break_here(marked("A"), bg.INFER, x + 1) + 1) + 1
    interleaved = ["segment", "A", "segment", "B", "segment"]
    assert steps_of(sim, start) == interleaved
    for _ in range(2):
        start = len(sim.log)
        graph.replay()
        assert steps_of(sim, start) == interleaved
    assert holds(out, 5)


@every_schedule
def test_a_deep_network_with_eager_activations_equals_eager(driver: Any, xp: Any) -> None:
    """Products are written as sums of products, which cupy can capture."""
    random = np.random.default_rng(0)
    weights = [xp.asarray(random.standard_normal((16, 16)).astype(np.float32) / 4) for _ in range(6)]
    x = xp.asarray(random.standard_normal((8, 16)).astype(np.float32))

    @bg.break_point
    def relu(a: Any) -> Any:
        return np.maximum(a, 0)

    def forward(a: Any) -> Any:
        for weight in weights:
            a = relu(np.sum(a[:, :, None] * weight[None], axis=1))
        return a * 2

    with bg.capture() as graph:
        out = forward(x)
    assert len(graph.steps) == 13
    assert np.array_equal(out.get(), forward(x).get())
    for _ in range(4):
        x.set(random.standard_normal((8, 16)).astype(np.float32))
        graph.replay()
        assert np.array_equal(out.get(), forward(x).get())


def test_a_break_point_inside_a_break_is_a_plain_call(driver: Any, xp: Any) -> None:
    x, inner_saw = zeros(xp), []

    @bg.break_point
    def inner(a: Any) -> Any:
        inner_saw.append(bg.is_capturing())
        return a + 1

    @bg.break_point
    def outer(a: Any) -> Any:
        return inner(a) + 10

    with bg.capture() as graph:
        out = outer(x + 2) + 100
    assert (len(graph.segments), len(graph.breaks)) == (2, 1)
    assert holds(out, 113)
    assert inner_saw == [False]
    graph.replay()
    graph.replay()
    assert holds(out, 113)
    assert inner_saw == [False] * 3


def test_a_break_point_that_is_switched_off_is_captured(driver: Any, xp: Any) -> None:
    x = floats(xp, 0, 0)

    @bg.break_point(enable=False)
    def plus_one(a: Any) -> Any:
        return a + 1

    with bg.capture() as graph:
        out = plus_one(x)
    assert (len(graph.segments), len(graph.breaks)) == (1, 0)
    x.set(np.asarray([1, 2], np.float32))
    graph.replay()
    assert out.get().tolist() == [2, 3]


def test_a_method_can_be_a_break_point_and_knows_its_object(driver: Any, xp: Any) -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @bg.break_point
        def scaled(self, a: Any) -> Any:
            """Scale an array."""
            return a * self.factor

    x, three = zeros(xp), Scale(3)
    assert Scale.scaled.__name__ == "scaled"
    assert Scale.scaled.__doc__ == "Scale an array."
    with bg.capture() as graph:
        first = three.scaled(x + 1)
        second = Scale(5).scaled(x)
    assert len(graph.breaks) == 2
    refill(x, 10)
    graph.replay()
    assert holds(first, 33)
    assert holds(second, 50)


def test_is_capturing_is_true_in_a_segment_only(driver: Any, xp: Any) -> None:
    x, saw = zeros(xp), {}

    def look(name: str) -> Callable[[Any], Any]:
        def work(a: Any) -> Any:
            saw[name] = bg.is_capturing(), bg.current_stream() is not None
            return a + 1

        return work

    saw["before"] = bg.is_capturing(), bg.current_stream() is not None
    with bg.capture() as graph:
        saw["segment"] = bg.is_capturing(), bg.current_stream() is not None
        bg.break_here(look("break"), bg.INFER, x + 1)
        saw["second segment"] = bg.is_capturing(), bg.current_stream() is not None
    saw["after"] = bg.is_capturing(), bg.current_stream() is not None
    expected = {
        "before": (False, False),
        "segment": (True, True),
        "break": (False, True),
        "second segment": (True, True),
        "after": (False, False),
    }
    assert saw == expected
    saw.clear()
    graph.replay()
    assert saw == {"break": (False, True)}


# --- which break points break (C9) ----------------------------------------------------------------------------


def _tagged(xp: Any, x: Any) -> Any:
    """+1, E+1 tagged "attention", +2, E*1 tagged "norm", break_here, bare break."""
    attention = bg.break_point(tag="attention")(lambda a: a + 1)
    norm = bg.break_point(tag="norm")(lambda a: a * 1)
    x = norm(attention(x + 1) + 2)
    bg.break_graph()
    return bg.break_here(lambda a: a * 1, bg.INFER, x)


@pytest.mark.parametrize(
    ("selected", "breaks"),
    [(None, 4), ((), 0), ({"attention"}, 1), ({"attention", "norm"}, 2), (("norm",), 1), ({"never used"}, 0)],
    ids=str,
)
def test_break_on_selects_by_tag_and_what_has_no_tag_by_none_alone(
    driver: Any, xp: Any, selected: Any, breaks: int
) -> None:
    x = zeros(xp)
    with bg.capture(break_on=selected) as graph:
        out = _tagged(xp, x)
    assert (len(graph.breaks), len(graph.segments)) == (breaks, breaks + 1)
    refill(x, 10)
    graph.replay()
    assert holds(out, 14)
    if breaks == 4:
        assert [one.tag for one in graph.breaks] == ["attention", "norm", None, None]


def test_a_whole_graph_capture_holds_the_work_of_every_break_point_in_one_segment(driver: Any, xp: Any) -> None:
    x, calls = zeros(xp), []

    def plus_one(a: Any) -> Any:
        calls.append(bg.is_capturing())
        return a + 1

    with bg.capture(break_on=()) as graph:
        out = bg.break_here(plus_one, bg.INFER, x + 1)
        bg.break_graph()
        out = out + 2
    assert (len(graph.segments), len(graph.breaks), graph.segments[0].nodes) == (1, 0, 3)
    refill(x, 10)
    graph.replay()
    assert holds(out, 14)
    assert calls == [True]


def test_steps_describe_themselves(driver: Any, xp: Any) -> None:
    x = zeros(xp)

    @bg.break_point(tag="attention")
    def attend(a: Any) -> Any:
        return a + 1

    with bg.capture(name="layer") as graph:
        attend((x + 1) * 2)
        bg.break_graph()
    first, last = graph.segments[0], graph.segments[2]
    assert graph.name == "layer"
    assert [segment.index for segment in graph.segments] == [0, 1, 2]
    assert (first.nodes, graph.segments[1].nodes, last.nodes) == (2, 0, 0)
    assert first.exec != 0
    broke = graph.breaks[0]
    assert [one.index for one in graph.breaks] == [0, 1]
    assert "attend" in broke.name
    assert broke.tag == "attention"
    assert "test_chains.py" in broke.site
    assert graph.captured
    assert graph.state == "captured"
    assert graph.error is None
