"""What an array of the simulator is made of: a driver, a region of its memory, and what keeps that memory alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from breakgraph.driver.region import Region
from breakgraph.frameworks.sim import memory

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["DType", "HostArray", "Storage", "device_dtype", "shape_of"]

DType: TypeAlias = np.dtype[Any]
HostArray: TypeAlias = np.ndarray[Any, Any]
S = TypeVar("S", bound="Storage")


class Storage:
    """An array without its operations: below them, so that each of them can make new arrays of ``type(self)``."""

    __slots__ = ("__weakref__", "_driver", "_owner", "_region")

    def __init__(self, driver: SimDriver, region: Region, owner: object = None) -> None:
        self._driver = driver
        self._region = region
        self._owner = owner

    @property
    def region(self) -> Region:
        """Where the elements lie in simulated memory."""
        return self._region

    @property
    def shape(self) -> tuple[int, ...]:
        return self._region.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, along each axis."""
        return self._region.strides

    @property
    def dtype(self) -> DType:
        return self._region.dtype

    @property
    def ndim(self) -> int:
        return len(self._region.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._region.size

    @property
    def itemsize(self) -> int:
        return self._region.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._region.nbytes

    def _view(self, region: Region) -> Self:
        """Another array over the same memory, which it keeps alive too."""
        return type(self)(self._driver, region, self._owner)

    def _empty(self, shape: tuple[int, ...], dtype: DType) -> Self:
        """A fresh C-contiguous array of the same driver, with whatever its memory holds."""
        return empty(type(self), self._driver, shape, dtype)


def empty(kind: type[S], driver: SimDriver, shape: tuple[int, ...], dtype: DType) -> S:
    """An uninitialized array in memory from the calling thread's allocator."""
    region = Region.contiguous_at(0, shape, dtype)
    if not region.size:
        return kind(driver, region)
    block = memory.allocate(driver, region.nbytes)
    return kind(driver, Region.contiguous_at(block.ptr, shape, dtype), block)


def device_dtype(dtype: DTypeLike) -> DType:
    """As NumPy reads it; `TypeError` for what a device array cannot hold (objects, strings, times, structures)."""
    found = np.dtype(dtype)
    if found.char not in "?bhilqBHILQefdFD" or not found.isnative:
        raise TypeError(f"Unsupported dtype {found}")
    return found


def shape_of(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as NumPy's constructors take it, as a tuple."""
    found = (int(shape),) if np.ndim(shape) == 0 else tuple(int(extent) for extent in shape)  # type: ignore[arg-type,union-attr]
    if any(extent < 0 for extent in found):
        raise ValueError("negative dimensions are not allowed")
    return found
