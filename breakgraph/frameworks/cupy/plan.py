"""Which BLAS calls a matrix product takes, from where its arrays lie alone: no array library, no driver.

BLAS knows column-major matrices: element (i, j) is ``i + j * ld`` elements from the first, and ``ld`` is at least the
number of rows. A row-major matrix is such a one transposed. So are most slices and transposes of arrays, and they need
no copy. A row-major result is computed as its transpose: C' = B' A'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from breakgraph.driver import Region

__all__ = ["Copies", "Gemm", "Plan", "plan_product", "product_shape"]

#: More calls than this cost more than copies of the arrays, which take one call then.
_MOST_CALLS = 16


@dataclass(frozen=True)
class Gemm:
    """One call: C = A B for ``batch`` triples of matrices, one stride apart in each array.

    A is m by k and B is k by n, stored transposed where ``transa`` or ``transb``; C is m by n. Leading dimensions and
    strides are in elements (cuBLAS, cublasGemmStridedBatchedEx).
    """

    transa: bool
    transb: bool
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    batch: int = 1


class Copies(NamedTuple):
    """What does not lie as BLAS wants it: the shape to which each array is broadcast and then copied, in C order.

    None where the array serves as it lies. A result is computed in a new array of the shape, and copied from there.
    """

    left: tuple[int, ...] | None = None
    right: tuple[int, ...] | None = None
    result: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """A product as calls that differ in their ``offsets`` alone: elements from the first of left, right and result.

    Where ``swapped``, A is the right operand and B the left one.
    """

    copies: Copies
    swapped: bool
    gemm: Gemm
    offsets: tuple[tuple[int, int, int], ...]


def product_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a product by NumPy's rules (numpy.matmul). Raises ValueError where there is none."""
    if not left or not right:
        raise ValueError("a matrix product takes no scalars; use *")
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ValueError(f"shapes {left} and {right} do not match: the inner sizes are {left[-1]} and {inner}")
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise ValueError(
            f"shapes {left} and {right} do not match: {left[:-2]} and {right[:-2]} do not broadcast"
        ) from None
    return (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


@lru_cache(maxsize=1024)  # a forward multiplies the same shapes layer after layer
def plan_product(left: Region, right: Region, result: Region) -> Plan:
    """The calls that take a product of one dtype to where its result lies.

    All three are stacks of matrices, (..., m, k), (..., k, n) and (..., m, n), with no size 0, and the leading axes of
    the result are those that the operands broadcast to. Their addresses do not matter.
    """
    regions = (left, right, result)
    copies = Copies(*(None if _is_stored(one) else one.shape for one in regions))
    plan = _planned(_copied(regions, copies), copies)
    if len(plan.offsets) > _MOST_CALLS:
        batch = result.shape[:-2]
        spread = (
            copy if _evenly_spaced(one, batch) else (*batch, *one.shape[-2:])
            for one, copy in zip(_copied(regions, copies), copies, strict=True)
        )
        copies = Copies(*spread)
        plan = _planned(_copied(regions, copies), copies)
    return plan


def _copied(regions: Sequence[Region], copies: Copies) -> list[Region]:
    """Where the arrays lie after the copies."""
    return [
        one if shape is None else Region.contiguous_at(0, shape, one.dtype)
        for one, shape in zip(regions, copies, strict=True)
    ]


def _planned(regions: Sequence[Region], copies: Copies) -> Plan:
    """As few calls as there can be where nothing more is copied."""
    a, b, c = map(_matrix, regions)
    axes, a, c = _folded(_merged(_batch_axes(regions)), a, c)
    batch = max((axis for axis in axes if axis.batchable), key=lambda axis: axis.extent, default=_ALONE)
    stride_a, stride_b, stride_c = batch.steps
    swapped = _leading(c.transposed) > 0
    if swapped:
        a, b, c, stride_a, stride_b = b.transposed, a.transposed, c.transposed, stride_b, stride_a
    stored_a, stored_b = _storage(a), _storage(b)
    gemm = Gemm(
        transa=stored_a.transposed,
        transb=stored_b.transposed,
        m=c.rows,
        n=c.columns,
        k=a.columns,
        lda=stored_a.leading,
        ldb=stored_b.leading,
        ldc=_leading(c),
        stride_a=stride_a,
        stride_b=stride_b,
        stride_c=stride_c,
        batch=batch.extent,
    )
    return Plan(copies, swapped, gemm, _offsets([axis for axis in axes if axis is not batch]))


def _offsets(axes: list[_Axis]) -> tuple[tuple[int, int, int], ...]:
    """Where the matrices along some axes begin, in left, right and result."""
    offsets = [(0, 0, 0)]
    for extent, (left, right, result) in axes:
        offsets = [(a + at * left, b + at * right, c + at * result) for a, b, c in offsets for at in range(extent)]
    return tuple(offsets)


# matrices ---------------------------------------------------------------------------------------------------------
class _Matrix(NamedTuple):
    """A matrix, and how many elements apart its rows and its columns lie."""

    rows: int
    columns: int
    by_row: int
    by_column: int

    @property
    def transposed(self) -> _Matrix:
        return _Matrix(self.columns, self.rows, self.by_column, self.by_row)


class _Storage(NamedTuple):
    """How BLAS calls a matrix; a leading dimension of 0 says that it cannot."""

    transposed: bool
    leading: int


def _matrix(region: Region) -> _Matrix:
    """The last two axes."""
    return _Matrix(*region.shape[-2:], *_steps(region)[-2:])


def _steps(region: Region) -> list[int]:
    """Strides in elements; an axis of one element has none."""
    size = region.dtype.itemsize
    return [0 if extent == 1 else step // size for extent, step in zip(region.shape, region.strides, strict=True)]


def _is_stored(region: Region) -> bool:
    """Whether its matrices are BLAS's, and all a whole number of elements apart."""
    return not any(step % region.dtype.itemsize for step in region.strides) and _storage(_matrix(region)).leading > 0


def _storage(matrix: _Matrix) -> _Storage:
    leading = _leading(matrix)
    return _Storage(False, leading) if leading else _Storage(True, _leading(matrix.transposed))


def _leading(matrix: _Matrix) -> int:
    """The leading dimension of a column-major matrix; 0 for any other."""
    if matrix.rows > 1 and matrix.by_row != 1:
        return 0
    if matrix.columns == 1:
        return matrix.rows
    return matrix.by_column if matrix.by_column >= matrix.rows else 0


# the axes before them -----------------------------------------------------------------------------------------------
class _Axis(NamedTuple):
    """A batch axis: its extent, and how many elements it steps in left, right and result (0 where broadcast)."""

    extent: int
    steps: tuple[int, int, int]

    @property
    def batchable(self) -> bool:
        """Whether it can be a stride of a batched call: nothing says what cuBLAS makes of a negative one."""
        return min(self.steps) >= 0 and self.steps[2] > 0


_ALONE = _Axis(1, (0, 0, 0))


def _batch_steps(region: Region, batch: tuple[int, ...]) -> list[int]:
    """How a region steps along the axes that it is broadcast to."""
    steps = _steps(region)[:-2]
    return [0] * (len(batch) - len(steps)) + steps


def _batch_axes(regions: Sequence[Region]) -> list[_Axis]:
    batch = regions[-1].shape[:-2]
    left, right, result = (_batch_steps(one, batch) for one in regions)
    axes = map(_Axis, batch, zip(left, right, result, strict=True))
    return [axis for axis in axes if axis.extent != 1]


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Neighbours that are one axis in all three arrays, as one."""
    merged: list[_Axis] = []
    for axis in axes:
        if merged and all(
            outer == axis.extent * inner for outer, inner in zip(merged[-1].steps, axis.steps, strict=True)
        ):
            merged[-1] = _Axis(merged[-1].extent * axis.extent, axis.steps)
        else:
            merged.append(axis)
    return merged


def _evenly_spaced(region: Region, batch: tuple[int, ...]) -> bool:
    """Whether its matrices are one stride apart, over all of the batch."""
    steps = _batch_steps(region, batch)
    axes = [_Axis(extent, (step,) * 3) for extent, step in zip(batch, steps, strict=True) if extent != 1]
    merged = _merged(axes)
    return len(merged) == 1 and merged[0].steps[0] >= 0


def _folded(axes: list[_Axis], left: _Matrix, result: _Matrix) -> tuple[list[_Axis], _Matrix, _Matrix]:
    """Matrices that meet the same right operand, as one with more rows: what a linear layer multiplies."""
    kept: list[_Axis] = []
    for axis in reversed(axes):
        if axis.steps[1] == 0:
            taller, taller_result = _stacked(left, axis, axis.steps[0]), _stacked(result, axis, axis.steps[2])
            if taller and taller_result:
                left, result = taller, taller_result
                continue
        kept.insert(0, axis)
    return kept, left, result


def _stacked(matrix: _Matrix, axis: _Axis, step: int) -> _Matrix | None:
    """The matrices along an axis one below the other, if BLAS can call that a matrix."""
    if matrix.rows == 1:
        matrix = matrix._replace(by_row=step)
    if matrix.rows * matrix.by_row != step:
        return None
    stacked = matrix._replace(rows=matrix.rows * axis.extent)
    return stacked if _storage(stacked).leading else None
