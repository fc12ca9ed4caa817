"""What programs compute: NumPy calls whose results are whole numbers, small enough to be exact in float32.

So a result has one value, in whatever order a device adds, and any difference is a fault. Zeros are never negative:
nothing is multiplied by a negative number that is not made positive by what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BINARY", "LIMIT", "PERSISTENT", "REDUCTIONS", "UNARY", "Kernel", "accumulate", "wrap"]

LIMIT = 1 << 20  #: no value's magnitude exceeds it; float32 is exact to 2**24
PERSISTENT = 64  #: nor this one, in arrays that live from one run to the next

Array = Any


@dataclass(frozen=True)
class Kernel:
    """``function(*operands, k)``, and the bound of its magnitude from those of the operands."""

    function: Callable[..., Array]
    bound: Callable[..., int]


def _scalar(a: Array, k: int) -> Any:
    return a.dtype.type(k)


def wrap(a: Array, *, out: Array | None = None) -> Array:
    """The values modulo 64: exact on every device, since the divisor is a power of two."""
    return np.remainder(a, _scalar(a, PERSISTENT)) if out is None else np.remainder(a, _scalar(a, PERSISTENT), out=out)


def accumulate(into: Array, a: Array, k: int) -> None:
    """Add in place, modulo 64. The operands are the same elements, or have none in common."""
    np.add(into, a, out=into)
    np.add(into, _scalar(into, k), out=into)
    wrap(into, out=into)


#: One operand and a number.
UNARY = {
    "add": Kernel(lambda a, k: a + _scalar(a, k), lambda m, k: m + k),
    "from": Kernel(lambda a, k: _scalar(a, k) - a, lambda m, k: m + k),
    "scale": Kernel(lambda a, k: a * _scalar(a, 1 + k % 3), lambda m, k: 3 * m),
    "relu": Kernel(lambda a, k: np.maximum(a, _scalar(a, 0)), lambda m, k: m),
    "square": Kernel(lambda a, k: a * a - _scalar(a, k), lambda m, k: m * m + k),
    "wrap": Kernel(lambda a, k: wrap(a), lambda m, k: PERSISTENT),
    "copy": Kernel(lambda a, k: a.copy(), lambda m, k: m),
    "float32": Kernel(lambda a, k: a.astype(np.float32), lambda m, k: m),
    "float64": Kernel(lambda a, k: a.astype(np.float64), lambda m, k: m),
    "int32": Kernel(lambda a, k: a.astype(np.int32), lambda m, k: m),
}

#: Two operands of one dtype whose shapes broadcast, and a number.
BINARY = {
    "plus": Kernel(lambda a, b, k: a + b, lambda m, n, k: m + n),
    "minus": Kernel(lambda a, b, k: a - b, lambda m, n, k: m + n),
    "times": Kernel(lambda a, b, k: a * b + _scalar(a, 1), lambda m, n, k: m * n + 1),
    "larger": Kernel(lambda a, b, k: np.maximum(a, b), lambda m, n, k: max(m, n)),
    "where": Kernel(lambda a, b, k: np.where(a > _scalar(a, k), a, b), lambda m, n, k: max(m, n)),
}

#: One operand and axes.
REDUCTIONS = {
    "sum": lambda a, axes: np.sum(a, axis=axes, dtype=a.dtype),
    "sum, kept": lambda a, axes: np.sum(a, axis=axes, dtype=a.dtype, keepdims=True),
    "max, kept": lambda a, axes: np.max(a, axis=axes, keepdims=True),
}
