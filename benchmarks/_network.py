"""A transformer for one sequence, written once over a few kernels: on the host, on the simulator, or over cupy.

Each layer is ::

    norm, product, bias | attention | product, bias, sum, norm, product, bias, GELU, product, bias, sum

with a break at each bar: attention runs eagerly, and writes into an array of the forward's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import breakgraph as bg
from breakgraph import frameworks

__all__ = ["Host", "Kernels", "Layer", "Network", "Shape", "Simulated", "forward"]

HostArray = np.ndarray[Any, Any]
Affine = tuple[Any, Any]  #: a weight of (inputs, outputs) and a bias, or the scale and the shift of a norm

_EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """How deep and how wide; the width of the hidden layer between two products is four times ``width``."""

    layers: int
    width: int
    heads: int

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.width} wide, {self.heads} heads"


@dataclass(frozen=True)
class Layer:
    """The parameters of one layer."""

    before_attention: Affine
    inward: Affine  #: (width, 3 * width): queries, keys and values side by side
    outward: Affine
    before_widening: Affine
    widening: Affine
    narrowing: Affine


@dataclass(frozen=True)
class Network:
    """Random parameters on the host, float32, and a norm at the end."""

    shape: Shape
    layers: tuple[Layer, ...]
    last: Affine

    @classmethod
    def of(cls, shape: Shape) -> Network:
        """The same for the same shape; small enough that values keep their size through all layers."""
        rng, width = np.random.default_rng(0), shape.width

        def product(inputs: int, outputs: int) -> Affine:
            weight = rng.standard_normal((inputs, outputs), np.float32) * np.float32(0.5 / np.sqrt(inputs))
            return weight, rng.standard_normal(outputs, np.float32) * np.float32(0.02)

        def norm() -> Affine:
            scale, shift = (rng.standard_normal(width, np.float32) * np.float32(0.02) for _ in range(2))
            return 1 + scale, shift

        def layer() -> Layer:
            inward, outward = product(width, 3 * width), product(width, width)
            return Layer(norm(), inward, outward, norm(), product(width, 4 * width), product(4 * width, width))

        return cls(shape, tuple(layer() for _ in range(shape.layers)), norm())

    def placed(self, put: Callable[[HostArray], Any]) -> Network:
        """With each array replaced by what ``put`` makes of it."""

        def both(affine: Affine) -> Affine:
            return put(affine[0]), put(affine[1])

        layers = tuple(Layer(*(both(getattr(one, name)) for name in Layer.__dataclass_fields__)) for one in self.layers)
        return Network(self.shape, layers, both(self.last))

    def inputs(self, tokens: int, count: int) -> Iterator[HostArray]:
        """``count`` host arrays of (tokens, width), float32."""
        rng = np.random.default_rng(tokens)
        return (rng.standard_normal((tokens, self.shape.width), np.float32) for _ in range(count))


class Kernels(Protocol):
    """What the forward is made of. Arrays are (tokens, columns) and of one dtype."""

    dtype: Any

    def empty(self, *shape: int) -> Any: ...
    def norm(self, x: Any, affine: Affine, y: Any) -> None: ...
    def product(self, x: Any, weight: Any) -> Any: ...
    def add_bias(self, bias: Any, y: Any) -> None: ...
    def gelu(self, y: Any) -> None: ...
    def add(self, x: Any, y: Any, out: Any) -> None: ...
    def attend(self, inward: Any, *, heads: int, out: Any) -> None:
        """Causal attention, a break: queries, keys and values side by side to (tokens, width)."""


def forward(kernels: Kernels, network: Network, x: Any, out: Any) -> None:
    """Write ``out`` from ``x``, both (tokens, width). Outside a capture it is the eager forward."""
    heads, hidden = network.shape.heads, x
    for layer in network.layers:
        inward = _linear(kernels, _norm(kernels, hidden, layer.before_attention), layer.inward)
        mixed = kernels.empty(*hidden.shape)
        kernels.attend(inward, heads=heads, out=mixed)
        hidden = _sum(kernels, hidden, _linear(kernels, mixed, layer.outward))
        wide = _linear(kernels, _norm(kernels, hidden, layer.before_widening), layer.widening)
        kernels.gelu(wide)
        hidden = _sum(kernels, hidden, _linear(kernels, wide, layer.narrowing))
    kernels.norm(hidden, network.last, out)


def _norm(kernels: Kernels, x: Any, affine: Affine) -> Any:
    y = kernels.empty(*x.shape)
    kernels.norm(x, affine, y)
    return y


def _linear(kernels: Kernels, x: Any, affine: Affine) -> Any:
    y = kernels.product(x, affine[0])
    kernels.add_bias(affine[1], y)
    return y


def _sum(kernels: Kernels, x: Any, y: Any) -> Any:
    out = kernels.empty(*x.shape)
    kernels.add(x, y, out)
    return out


class Host:
    """The kernels by NumPy alone, on host arrays: what the others have to agree with."""

    dtype = np.dtype(np.float32)

    def empty(self, *shape: int) -> Any:
        return np.empty(shape, self.dtype)

    def norm(self, x: Any, affine: Affine, y: Any) -> None:
        centred = x - x.mean(axis=1, keepdims=True)
        variance = np.mean(centred * centred, axis=1, keepdims=True)
        y[:] = centred / np.sqrt(variance + np.float32(_EPSILON)) * affine[0] + affine[1]

    def product(self, x: Any, weight: Any) -> Any:
        return x @ weight

    def add_bias(self, bias: Any, y: Any) -> None:
        y += bias

    def gelu(self, y: Any) -> None:
        y *= 0.5 * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (y + np.float32(0.044715) * y * y * y)))

    def add(self, x: Any, y: Any, out: Any) -> None:
        out[:] = x + y

    @bg.break_point(out="out")
    def attend(self, inward: Any, *, heads: int, out: Any) -> None:
        tokens, size = len(inward), out.shape[1] // heads
        query, key, value = inward.reshape(tokens, 3, heads, size).transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(size))
        scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        odds = np.exp(scores - scores.max(axis=2, keepdims=True))
        mixed = odds / odds.sum(axis=2, keepdims=True) @ value
        out[:] = mixed.transpose(1, 0, 2).reshape(out.shape)


class Simulated:
    """The kernels of `Host`, each launched on the simulator."""

    dtype = Host.dtype

    def __init__(self) -> None:
        self._host = Host()
        self._driver: Any = bg.driver.current()

    def empty(self, *shape: int) -> Any:
        return bg.array_namespace().empty(shape, self.dtype)

    def norm(self, x: Any, affine: Affine, y: Any) -> None:
        self._launch(lambda x, scale, shift, y: self._host.norm(x, (scale, shift), y), [x, *affine], y)

    def product(self, x: Any, weight: Any) -> Any:
        return np.matmul(x, weight)

    def add_bias(self, bias: Any, y: Any) -> None:
        self._launch(self._host.add_bias, [bias], y)

    def gelu(self, y: Any) -> None:
        self._launch(self._host.gelu, [], y)

    def add(self, x: Any, y: Any, out: Any) -> None:
        self._launch(self._host.add, [x, y], out)

    @bg.break_point(out="out")
    def attend(self, inward: Any, *, heads: int, out: Any) -> None:
        self._launch(lambda inward, out: self._host.attend(inward, heads=heads, out=out), [inward], out)

    def _launch(self, kernel: Callable[..., None], reads: list[Any], writes: Any) -> None:
        framework = frameworks.of(writes, self._driver)
        assert framework is not None
        self._driver.launch(framework.current_stream(), kernel, reads=reads, writes=[writes])
