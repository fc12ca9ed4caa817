"""The 8-layer network of the memory benchmark, written once for both drivers.

cupy captures no matrix product, so a kernel of the same shapes stands in for it: it reads (rows, inputs) and a
weight of (inputs, outputs), writes (rows, outputs), and sums over a few of the inputs instead of all. What is
measured is memory, and that depends on shapes alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph import frameworks

__all__ = ["LAYERS", "Mlp", "fresh_inputs"]

LAYERS = 8
_TAPS = 4  # inputs that each output is a sum over
_HostArray = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mlp:
    """Weights on the current driver's device: per layer (inputs, outputs) and (outputs,), float32."""

    layers: tuple[tuple[Any, Any], ...]

    @classmethod
    def of_widths(cls, *cycle: int) -> Mlp:
        """`LAYERS` layers whose widths go round a cycle, the width of the input being its first."""
        widths = [cycle[at % len(cycle)] for at in range(LAYERS + 1)]
        rng, put = np.random.default_rng(0), bg.array_namespace().asarray
        return cls(tuple((put(_normal(rng, i, o)), put(_normal(rng, o))) for i, o in pairwise(widths)))

    @property
    def inputs(self) -> int:
        """Width of the input."""
        return int(self.layers[0][0].shape[0])

    @property
    def outputs(self) -> int:
        """Width of the output."""
        return int(self.layers[-1][0].shape[1])

    def forward(self, x: Any, out: Any = None) -> Any:
        """(rows, inputs) to (rows, outputs), in ``out`` where it is given; a bare break after each layer but the last.

        Arrays come and go as in any eager network: a new one for the product, one for what the bias makes of it,
        and a layer's input goes when its output is there.
        """
        hidden = x
        for weight, bias in self.layers[:-1]:
            hidden = _layer(hidden, weight, bias)
            bg.break_graph()
        return _layer(hidden, *self.layers[-1], out=out)


@functools.cache
def fresh_inputs(rows: int, inputs: int, count: int) -> tuple[_HostArray, ...]:
    """``count`` host arrays of (rows, inputs), float32, that share memory: each is the one before, moved by a row."""
    values = _normal(np.random.default_rng(1), rows + count - 1, inputs)
    return tuple(values[at : at + rows] for at in range(count))


def _layer(hidden: Any, weight: Any, bias: Any, out: Any = None) -> Any:
    activated = np.add(_product(hidden, weight), bias, out=out)
    return np.maximum(activated, 0, out=activated)


def _normal(rng: np.random.Generator, *shape: int) -> _HostArray:
    return rng.standard_normal(shape, np.float32)


def _product(x: Any, weight: Any) -> Any:
    y = bg.array_namespace().empty((x.shape[0], weight.shape[1]), np.float32)
    stand_in = _on_sim if bg.driver.current().name == "sim" else _on_cuda()
    stand_in(x, weight, y)
    return y


def _on_sim(x: Any, weight: Any, y: Any) -> None:
    driver: Any = bg.driver.current()
    framework = frameworks.of(y, driver)
    assert framework is not None
    driver.launch(framework.current_stream(), _sum_of_taps, reads=[x, weight], writes=[y], name="product")


def _sum_of_taps(x: _HostArray, weight: _HostArray, y: _HostArray) -> None:
    inputs, outputs = weight.shape
    columns, turns = np.arange(outputs), -(-outputs // inputs)
    y[:] = 0
    for tap in range(_TAPS):
        shift = tap * (inputs // _TAPS)
        moved = np.tile(np.roll(x, -shift, axis=1), turns)[:, :outputs]  # x[:, (columns + shift) % inputs], but faster
        y += moved * weight[(columns + shift) % inputs, columns]


@functools.cache
def _on_cuda() -> Callable[[Any, Any, Any], None]:
    import cupy

    kernel = cupy.ElementwiseKernel(
        "raw float32 x, raw float32 weight, int32 inputs, int32 outputs",
        "float32 y",
        f"""
        int row = (int)(i / outputs), column = (int)(i % outputs);
        float sum = 0;
        for (int tap = 0; tap < {_TAPS}; ++tap) {{
            int at = (column + tap * (inputs / {_TAPS})) % inputs;
            sum += x[row * inputs + at] * weight[at * outputs + column];
        }}
        y = sum;
        """,
        "product_stand_in",
    )

    def product(x: Any, weight: Any, y: Any) -> None:
        kernel(x, weight, *weight.shape, y)

    return product
