"""A strided piece of device memory, described and not owned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["Region"]

_BUDGET: Any = 100_000  # candidate solutions NumPy may try; its stubs know the two special values only


@dataclass(frozen=True)
class Region:
    """Where an array lies: address, shape, strides in bytes, element type.

    Describes memory; owns nothing and keeps nothing alive. Two regions compare equal when they describe
    the same elements in the same order.
    """

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @classmethod
    def contiguous_at(cls, ptr: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Region:
        """The C-contiguous region of ``shape`` and ``dtype`` that starts at ``ptr``."""
        strides: list[int] = []
        step = dtype.itemsize
        for extent in reversed(shape):
            strides.append(step)
            step *= extent
        return cls(ptr, shape, tuple(reversed(strides)), dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all elements (gaps between strides not counted)."""
        return self.size * self.dtype.itemsize

    @cached_property
    def contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        step = self.dtype.itemsize
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step and self.size:
                return False
            step *= extent
        return True

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The first byte's address and the one past the last byte's; equal when there are no elements."""
        if not self.size:
            return self.ptr, self.ptr
        low = high = self.ptr
        for extent, stride in zip(self.shape, self.strides, strict=True):
            reach = (extent - 1) * stride
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
        return low, high + self.dtype.itemsize

    def rows(self, start: int, stop: int | None = None) -> Region:
        """The region of rows ``start`` to ``stop`` (exclusive) along axis 0."""
        begin, end, _ = slice(start, stop).indices(self.shape[0])
        count = max(end - begin, 0)
        return Region(self.ptr + begin * self.strides[0], (count, *self.shape[1:]), self.strides, self.dtype)

    def overlaps(self, other: Region) -> bool:
        """Whether any byte belongs to both. Exact for strided regions: interleaved columns do not overlap."""
        (low, high), (other_low, other_high) = self.bounds, other.bounds
        if high <= other_low or other_high <= low or not self.size or not other.size:
            return False
        if self.contiguous and other.contiguous:
            return True
        try:
            return bool(np.shares_memory(_shadow(self), _shadow(other), max_work=_BUDGET))
        except np.exceptions.TooHardError:
            return True  # undecided within the budget: the safe answer


class _Shadow:
    """Lets NumPy reason about device addresses. Nothing ever reads through it."""

    def __init__(self, region: Region) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (region.ptr, True),
            "shape": region.shape,
            "strides": region.strides,
            "typestr": f"|V{region.dtype.itemsize}",
        }


def _shadow(region: Region) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.asarray(_Shadow(region))
