"""A small captured forward of each kind of step, and names that would be markup if they were not text."""

from __future__ import annotations

from typing import Any

import numpy as np
from support import Order, on_stream, zeros

import breakgraph as bg
from breakgraph import frameworks

#: What a function, a tag, a graph or a kernel may be called.
HOSTILE = (
    'quote " and \\" both',
    "ends in a backslash \\",
    "\\N \\G \\l",
    "</script><script>alert(1)</script>",
    "<b>&amp;</b> {{data}}",
    "two\nlines\tand\0more",
    "{a|b} [c];}\ndigraph {",
    "名前 ünï",
    "n" * 400,
)


@bg.break_point(tag="attention")
def attend(a: Any, factor: float, *, mode: str = "decode") -> Any:
    return a * factor


def small(xp: Any, name: str | None = "small") -> Any:
    """Two kernels, a break, a kernel: the graph, and the result of its break."""
    x, out = zeros(xp), zeros(xp)
    with bg.capture(arena=bg.Arena(), name=name) as graph:
        result = attend(x + 1, 3.0, mode="extend")
        np.multiply(result, 2, out=out)
    graph.keep(x, out)
    return graph, result


def forked(driver: Any, xp: Any) -> Any:
    """One segment: a kernel, then two chains of two, one of them left on a side stream."""
    x, outs, side, order = zeros(xp), [zeros(xp), zeros(xp)], driver.create_stream(), Order(driver)
    driver.synchronize()
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        order(bg.current_stream(), side)
        with on_stream(y, side):
            np.add(y * 2, 1, out=outs[0])
        np.add(y * 3, 1, out=outs[1])
    graph.keep(x, outs, side)
    return graph


def hostile(sim: Any, xp: Any, name: str) -> Any:
    """A kernel, a break with a frozen argument and a tag, a kernel, all of one name; on the simulator."""

    def function(a: Any, argument: str) -> Any:
        return a * 2

    function.__name__ = function.__qualname__ = name
    x, out = zeros(xp), zeros(xp)
    with bg.capture(arena=bg.Arena(), name=name) as graph:
        sim.launch(bg.current_stream(), lambda read, written: None, reads=[x.region], writes=[out.region], name=name)
        np.add(bg.break_point(tag=name)(function)(x, name), 1, out=out)
    graph.keep(x, out)
    return graph


def decoder(xp: Any, layers: int) -> Any:
    """A chain of ``layers`` breaks with some work before each: one segment more."""
    x, out = zeros(xp, 64, 64), zeros(xp, 64, 64)
    with bg.capture(arena=bg.Arena(), name=f"decoder of {layers} layers") as graph:
        y = x
        for layer in range(layers):
            y = attend(np.maximum(y + layer, 0) * 0.5, 1.5)
        np.add(y, 1, out=out)
    graph.keep(x, out)
    return graph


def ptr_of(array: Any, driver: Any) -> int:
    """Device address of an array of any library."""
    framework = frameworks.of(array, driver)
    assert framework is not None
    return framework.view(array).ptr


def times_of(graph: Any) -> list[dict[str, float]]:
    """Times for each step, all different."""
    return [{"cpu_us": 1.0 + at, "gap_us": 0.5 * at, "gpu_us": 10.0 + at} for at in range(len(graph.steps))]
