"""What the tests of graphed functions share: a forward of two segments that depends on its rows, and its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from support import refill

import breakgraph as bg

WIDTH = 16


class Forward:
    """A forward with one break, by products with a weight; it counts how often its parts run.

    The break adds to every row the sum over the real rows of its input, so that a stale row in the padding shows.
    """

    def __init__(self, xp: Any, width: int = WIDTH) -> None:
        random = np.random.default_rng(3)
        self.w = xp.asarray(random.integers(-2, 3, (width, width)).astype(np.float32))
        self.bodies = self.breaks = 0
        self.rows: list[int | None] = []

    def __call__(self, x: Any) -> Any:
        self.bodies += 1
        return bg.break_here(self._mixed, bg.INFER, product(x, self.w)) * 2

    def _mixed(self, a: Any) -> Any:
        self.breaks += 1
        self.rows.append(bg.current_valid_rows())
        return a + a.sum(axis=0)


def product(a: Any, w: Any) -> Any:
    """A matrix product as a sum of products, which cupy can capture."""
    return np.sum(a[:, :, None] * w[None], axis=1)


def batch(xp: Any, rows: int, seed: int = 0, width: int = WIDTH) -> Any:
    """Rows of small whole numbers, so that sums are exact in any order."""
    return xp.asarray(np.random.default_rng((rows, seed)).integers(-3, 4, (rows, width)).astype(np.float32))


def same(one: Any, other: Any) -> bool:
    """Whether two device arrays have the same shape, dtype and bits."""
    a, b = one.get(), other.get()
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def poison(array: Any) -> None:
    """Overwrite an array of the caller, to see whether anyone still reads it."""
    refill(array, np.nan)
