"""A forward of many small kernels in many segments: what an exec costs follows from its nodes, not from their work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import breakgraph as bg

__all__ = ["Layers", "LayersSize"]


@dataclass(frozen=True)
class LayersSize:
    """One row count: an input, and where the captured and the eager forward write."""

    rows: int
    x: Any
    out: Any
    eager_out: Any
    extra: int  #: kernels more in each layer: another topology

    def fill(self, seed: int) -> None:
        """Give the input other values."""
        self.x.set(np.random.default_rng(seed).standard_normal(self.x.shape, np.float32))


@dataclass(frozen=True)
class Layers:
    """Layers of kernels on (rows, width) float32, a bare break after each layer, and one kernel more at the end.

    ``layers + 1`` segments, each a chain: one topology at every size. The values keep their size, and what the
    input was can be told from them.
    """

    layers: int
    kernels: int  #: of each layer
    sizes: tuple[int, ...]  #: rows, largest first
    signs: Any  #: (width,), of -1 and 1
    steps: Any  #: (width,)

    @classmethod
    def of(cls, *, small: bool) -> Layers:
        """32 layers of 20 kernels, 16 sizes; 4 layers of 6, 4 sizes, where it is the simulator that runs them."""
        layers, kernels, width, count = (4, 6, 8, 4) if small else (32, 20, 256, 16)
        rng, put = np.random.default_rng(0), bg.array_namespace().asarray
        signs, steps = rng.choice([-1.0, 1.0], width), rng.standard_normal(width)
        sizes = tuple(64 * (count - at) for at in range(count))
        return cls(layers, kernels, sizes, put(signs.astype(np.float32)), put(steps.astype(np.float32)))

    def every_size(self, *, mixed: bool = False) -> list[LayersSize]:
        """Arrays for each size; ``mixed``: every other size has a topology of its own."""
        return [self._size(rows, int(mixed and at % 2)) for at, rows in enumerate(self.sizes)]

    def _size(self, rows: int, extra: int) -> LayersSize:
        x, out, eager_out = (bg.array_namespace().empty((rows, *self.signs.shape), np.float32) for _ in range(3))
        return LayersSize(rows, x, out, eager_out, extra)

    def forward(self, size: LayersSize, out: Any) -> None:
        """Write ``out`` from ``size.x``; each kernel is one node."""
        hidden = size.x
        for _ in range(self.layers):
            hidden = hidden * self.signs
            for at in range(1, self.kernels + size.extra):
                if at % 2:
                    np.add(hidden, self.steps, out=hidden)
                else:
                    np.multiply(hidden, self.signs, out=hidden)
            bg.break_graph()
        np.add(hidden, self.steps, out=out)

    def capture(self, size: LayersSize, **options: Any) -> Any:
        """A graph that writes ``size.out``."""
        with bg.capture(**options) as graph:
            self.forward(size, size.out)
        return graph
