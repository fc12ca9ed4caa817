"""Graphs whose replays give wrong numbers, each by one mistake of a kind that people make.

Each plants its mistake with the driver, its arrays and an input, and returns what `BreakableGraph.verify` is asked
with, and what its answer must say: the cause, the step, the array, and the words that name the right line or value.
Marked lines are given as ``file:line``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from support import on_stream, zeros

import breakgraph as bg
from breakgraph.inspect import Cause

__all__ = ["NUMBERS", "Asked", "line"]

NUMBERS: dict[str, Callable[[Any, Any, Any], Asked]] = {}


@dataclass
class Asked:
    """What is asked, and what must be answered."""

    graph: Any
    forward: Callable[..., Any]
    inputs: Any
    cause: Cause
    step: str
    array: str
    words: tuple[str, ...] = ()
    outputs: Any = None
    keep: list[Any] = field(default_factory=list)


def planted(function: Callable[[Any, Any, Any], Asked]) -> Callable[[Any, Any, Any], Asked]:
    NUMBERS[function.__name__] = function
    return function


def line(mark: str) -> str:
    """``file:line`` of the line of this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    (at,) = [at for at, text in enumerate(lines, 1) if text.endswith(f"# {mark}")]
    return f"{__file__}:{at}"


@contextmanager
def expected_warning() -> Any:
    """The capture warns of what was planted, which other tests ask for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bg.errors.BreakgraphWarning)
        yield


# --- a frozen value -----------------------------------------------------------------------------------------------


@planted
def a_frozen_argument(driver: Any, xp: Any, x: Any) -> Asked:
    settings, out = {"factor": 3.0}, zeros(xp)
    scaled = bg.break_point(lambda a, factor: a * factor)

    def forward(a: Any) -> Any:
        return np.add(scaled(a + 1, settings["factor"]), 1, out=out)  # frozen

    with bg.capture() as graph:
        forward(x)
    settings["factor"] = 4.0
    words = ("argument 'factor'", "is 3.0 at every replay", "eager gave it 4.0", line("frozen"))
    return Asked(graph, forward, [x], Cause.FROZEN, "break 0", "the result of break 0", words)


@planted
def a_frozen_argument_from_the_device(driver: Any, xp: Any, x: Any) -> Asked:
    """The host read an array before the break and passed its value."""
    out, first = zeros(xp), bg.break_point(dst=bg.NO_WRITEBACK)(lambda a: float(a.get()[0]))
    shifted = bg.break_point(lambda a, by: a + by)

    def forward(a: Any) -> Any:
        return np.add(shifted(a, first(a)), 1, out=out)

    with bg.capture() as graph:
        forward(x)
    words = ("argument 'by'", "is 0.0 at every replay")
    return Asked(graph, forward, [x], Cause.FROZEN, "break 1", "the result of break 1", words)


@planted
def a_value_that_a_break_hands_on(driver: Any, xp: Any, x: Any) -> Asked:
    out, largest = zeros(xp), bg.break_point(dst=bg.NO_WRITEBACK)(lambda a: float(a.get().max()))

    def forward(a: Any) -> Any:
        return np.multiply(a, largest(a + 1), out=out)  # handed

    with bg.capture() as graph:
        forward(x)
    words = ("hands on", "baked in", line("handed"))
    return Asked(graph, forward, [x], Cause.FROZEN, "segment 1", "output", words)


@planted
def a_choice_on_the_host(driver: Any, xp: Any, x: Any) -> Asked:
    out, deep = zeros(xp), [False]

    def forward(a: Any) -> Any:
        y = bg.break_here(lambda b: b + 1, bg.INFER, a + 1)
        if deep[0]:
            y = bg.break_here(lambda b: b + 1, bg.INFER, y + 1)
        return np.add(y, 1, out=out)

    with bg.capture() as graph:
        forward(x)
    deep[0] = True
    words = ("another way through the forward", "2 in eager and 1 at replay")
    return Asked(graph, forward, [x], Cause.FROZEN, "segment 1", "how many breaks", words)


# --- a value that escaped a break ----------------------------------------------------------------------------------


class Layer:
    """Leaves what its break made in an attribute."""

    def __init__(self) -> None:
        self.hidden: Any = None

    def look(self, a: Any) -> None:
        self.hidden = a * 2  # escaped


@planted
def a_value_left_in_an_attribute(driver: Any, xp: Any, x: Any) -> Asked:
    layer, out = Layer(), zeros(xp)
    look = bg.break_point(dst=bg.IN_PLACE)(layer.look)

    def forward(a: Any) -> Any:
        look(a + 1)
        return np.add(layer.hidden, 1, out=out)

    with bg.capture() as graph:
        forward(x)
        graph.keep(layer.hidden)
    words = ("look", "keeps what it does not return", "16 bytes", line("escaped"))
    return Asked(graph, forward, [x], Cause.ESCAPED, "segment 1", "output", words)


@planted
def a_value_left_in_a_list(driver: Any, xp: Any, x: Any) -> Asked:
    made: list[Any] = []
    out = zeros(xp)

    def look(a: Any) -> None:
        made.append(a + 5)  # listed

    def forward(a: Any) -> Any:
        bg.break_here(look, bg.IN_PLACE, a + 1)
        return np.add(made[-1], 1, out=out)

    with bg.capture() as graph:
        forward(x)
    return Asked(graph, forward, [x], Cause.ESCAPED, "segment 1", "output", (line("listed"),), keep=[made])


# --- moved --------------------------------------------------------------------------------------------------------


@planted
def a_moved_input(driver: Any, xp: Any, x: Any) -> Asked:
    out = zeros(xp)
    doubled = bg.break_point(lambda a: a * 2)

    def forward(a: Any) -> Any:
        return np.add(doubled(a + 1), 1, out=out)

    with bg.capture() as graph:
        forward(x)
    graph.keep(x)
    other = zeros(xp)
    words = ("does not follow inputs[0]", hex(other.data.ptr))
    return Asked(graph, forward, [other], Cause.MOVED, "segment 0", "argument 'a' of break 0", words)


@planted
def one_moved_input_of_two(driver: Any, xp: Any, x: Any) -> Asked:
    out, bias = zeros(xp), zeros(xp)

    def forward(a: Any, b: Any) -> Any:
        bg.break_graph()
        return np.add(a, b, out=out)

    with bg.capture() as graph:
        forward(x, bias)
    graph.keep(x, bias)
    other = zeros(xp)
    words = (f"does not follow inputs[1] at {other.data.ptr:#x},",)
    return Asked(graph, forward, [x, other], Cause.MOVED, "segment 1", "output", words)


WEIGHT: Any = None


@planted
def a_weight_bound_anew(driver: Any, xp: Any, x: Any) -> Asked:
    global WEIGHT
    out, WEIGHT = zeros(xp), xp.ones(4, np.float32)

    def forward(a: Any) -> Any:
        return np.multiply(a, WEIGHT, out=out)

    with bg.capture(debug=True) as graph:
        forward(x)
    before, WEIGHT = WEIGHT, xp.ones(4, np.float32) * 2
    words = ("the global planted.numbers.WEIGHT", hex(before.data.ptr), hex(WEIGHT.data.ptr))
    return Asked(graph, forward, [x], Cause.MOVED, "segment 0", "output", words, keep=[before])


class Model:
    def __init__(self, xp: Any) -> None:
        self.weight, self.out = xp.ones(4, np.float32), zeros(xp)

    def forward(self, a: Any) -> Any:
        return np.multiply(a, self.weight, out=self.out)


@planted
def a_weight_of_a_model_bound_anew(driver: Any, xp: Any, x: Any) -> Asked:
    model = Model(xp)
    with bg.capture(debug=True) as graph:
        model.forward(x)
    before, model.weight = model.weight, xp.ones(4, np.float32) * 2
    words = ("the attribute 'weight' of a Model", hex(before.data.ptr), hex(model.weight.data.ptr))
    return Asked(graph, model.forward, [x], Cause.MOVED, "segment 0", "output", words, keep=[before])


@planted
def a_closure_that_eager_code_binds_anew(driver: Any, xp: Any, x: Any) -> Asked:
    """The break reads what the segment wrote through its closure, not as an argument."""
    hidden, out = zeros(xp), zeros(xp)

    def halved() -> Any:
        return hidden / 2

    def forward(a: Any) -> Any:
        nonlocal hidden
        hidden = a + 1
        return np.add(bg.break_here(halved, bg.INFER), 1, out=out)

    with bg.capture(debug=True) as graph:
        forward(x)
    words = ("'hidden' in the closure of", "halved")
    return Asked(graph, forward, [x], Cause.MOVED, "break 0", "the result of break 0", words)


# --- memory reused ------------------------------------------------------------------------------------------------


class Swapped:
    """A weight that its owner swaps for another: the old one dies, and its memory serves the next array."""

    def __init__(self, xp: Any, weight: Any) -> None:
        self.weight, self.out = weight, zeros(xp)

    def forward(self, a: Any) -> Any:
        return np.multiply(a, self.weight, out=self.out)


@planted
def a_weight_whose_memory_serves_another(driver: Any, xp: Any, x: Any) -> Asked:
    pool = xp.ones(8, np.float32)
    model = Swapped(xp, pool[:4])
    with bg.capture(debug=True) as graph:
        model.forward(x)
    address = model.weight.data.ptr
    model.weight = pool[4:] * 2
    serves_another = pool[:4]
    serves_another.fill(7)
    words = ("the attribute 'weight' of a Swapped", hex(address), "has died")
    return Asked(graph, model.forward, [x], Cause.REUSED, "segment 0", "output", words, keep=[pool])


# --- work that was not captured ------------------------------------------------------------------------------------


@planted
def work_on_a_stream_that_was_not_forked(driver: Any, xp: Any, x: Any) -> Asked:
    side, out, beside = driver.create_stream(), zeros(xp), zeros(xp)
    driver.synchronize()

    def forward(a: Any) -> Any:
        np.add(a, 1, out=out)
        with on_stream(a, side):
            np.add(a * 7, 0, out=beside)
        return out, beside

    with expected_warning(), bg.capture() as graph:
        forward(x)
    driver.synchronize()
    words = ("no step of the replay has written output[1]", hex(int(side)))
    return Asked(graph, forward, [x], Cause.UNCAPTURED, "segment 0", "output[1]", words)


@planted
def a_segment_without_work(driver: Any, xp: Any, x: Any) -> Asked:
    """All of the last segment's work was put on another stream."""
    side, out = driver.create_stream(), zeros(xp)

    def forward(a: Any) -> Any:
        y = bg.break_here(lambda b: b + 1, bg.INFER, a + 1)
        driver.synchronize() if not bg.is_capturing() else None
        with on_stream(a, side):
            np.add(y, 1, out=out)
        return out

    with expected_warning(), bg.capture() as graph:
        forward(x)
    driver.synchronize()
    words = ("no step of the replay has written output",)
    return Asked(graph, forward, [x], Cause.UNCAPTURED, "segment 1", "output", words)


@planted
def an_output_that_another_array_is_given_for(driver: Any, xp: Any, x: Any) -> Asked:
    def forward(a: Any) -> Any:
        return bg.break_here(lambda b: b + 1, bg.INFER, a + 1) * 2

    with bg.capture() as graph:
        y = forward(x)
    wrong = zeros(xp)
    words = ("no step of the replay has written output", hex(wrong.data.ptr))
    return Asked(graph, forward, [x], Cause.UNCAPTURED, "segment 1", "output", words, outputs=wrong, keep=[y])


# --- the forward itself -------------------------------------------------------------------------------------------


@planted
def a_forward_that_counts_its_calls(driver: Any, xp: Any, x: Any) -> Asked:
    out, state = zeros(xp), zeros(xp)

    def forward(a: Any) -> Any:
        np.add(state, 1, out=state)
        return np.add(a, state, out=out)

    with bg.capture() as graph:
        forward(x)
    words = ("on the same inputs once more",)
    return Asked(graph, forward, [x], Cause.UNSTEADY, "segment 0", "output", words, keep=[state])
