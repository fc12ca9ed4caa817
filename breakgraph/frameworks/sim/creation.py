"""Constructors of the simulator's arrays. Each takes the driver first; the namespace fills it in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from breakgraph.driver.region import Region
from breakgraph.frameworks.sim import functions, storage
from breakgraph.frameworks.sim.array import SimArray
from breakgraph.frameworks.sim.hostcopy import upload
from breakgraph.frameworks.sim.kernels import launch
from breakgraph.frameworks.sim.storage import HostArray, device_dtype, shape_of

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["CONSTRUCTORS"]

Shape = int | Sequence[int]


def empty(driver: SimDriver, shape: Shape, dtype: DTypeLike = float) -> SimArray:
    """A new array with whatever its memory holds, which on a fresh allocation is the simulator's poison."""
    return storage.empty(SimArray, driver, shape_of(shape), device_dtype(dtype))


def full(driver: SimDriver, shape: Shape, fill_value: Any, dtype: DTypeLike | None = None) -> SimArray:
    """A new array filled with a scalar or a broadcast device array."""
    if dtype is None:
        dtype = fill_value.dtype if hasattr(fill_value, "dtype") else np.asarray(fill_value).dtype
    made = empty(driver, shape, dtype)
    functions.assign(made, fill_value, name="fill")
    return made


def zeros(driver: SimDriver, shape: Shape, dtype: DTypeLike = float) -> SimArray:
    """A new array of zeros."""
    return full(driver, shape, 0, dtype)


def ones(driver: SimDriver, shape: Shape, dtype: DTypeLike = float) -> SimArray:
    """A new array of ones."""
    return full(driver, shape, 1, dtype)


def array(
    driver: SimDriver, obj: Any, dtype: DTypeLike | None = None, copy: bool = True, *, ndmin: int = 0
) -> SimArray:
    """A new array from a device array, a host array, a scalar or nested sequences of these.

    Host values are copied through pageable memory, so inside a segment they raise `RuntimeError`.
    """
    made = _array(driver, obj, dtype, copy)
    return made if made.ndim >= ndmin else made.reshape((1,) * (ndmin - made.ndim) + made.shape)


def asarray(driver: SimDriver, a: Any, dtype: DTypeLike | None = None) -> SimArray:
    """As `array`; a device array of this dtype is returned as it is."""
    return _array(driver, a, dtype, copy=False)


def ascontiguousarray(driver: SimDriver, a: Any, dtype: DTypeLike | None = None) -> SimArray:
    """As `asarray`, and C-contiguous."""
    made = asarray(driver, a, dtype)
    return made if made.region.contiguous else made.copy()


def arange(driver: SimDriver, start: Any, stop: Any = None, step: Any = 1, dtype: DTypeLike | None = None) -> SimArray:
    """``numpy.arange``, made by one kernel."""
    bounds = (start,) if stop is None else (start, stop, step)
    if stop is None and step != 1:
        bounds = (0, start, step)
    return _computed(driver, np.arange(*bounds, dtype=dtype), "arange")


def linspace(driver: SimDriver, start: Any, stop: Any, num: int = 50, **options: Any) -> SimArray:
    """``numpy.linspace``, made by one kernel."""
    return _computed(driver, np.linspace(start, stop, num, **options), "linspace")


def eye(driver: SimDriver, N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = float) -> SimArray:  # noqa: N803
    """``numpy.eye``, made by one kernel."""
    return _computed(driver, np.eye(N, M, k, device_dtype(dtype)), "eye")


def identity(driver: SimDriver, n: int, dtype: DTypeLike = float) -> SimArray:
    """``numpy.identity``, made by one kernel."""
    return eye(driver, n, dtype=dtype)


CONSTRUCTORS = (empty, full, zeros, ones, array, asarray, ascontiguousarray, arange, linspace, eye, identity)


def _array(driver: SimDriver, obj: Any, dtype: DTypeLike | None, copy: bool) -> SimArray:
    if isinstance(obj, SimArray):
        return obj.astype(obj.dtype if dtype is None else dtype, copy=copy)
    if isinstance(obj, (list, tuple)) and _holds_arrays(obj):
        rows = [_array(driver, item, dtype, copy=False) for item in obj]
        found: SimArray = np.stack(rows)  # type: ignore[assignment]
        return found
    host = np.asarray(obj, dtype)
    if not host.ndim:  # a scalar travels as a kernel's parameter: no host copy
        return full(driver, (), host[()], host.dtype)
    anchor = SimArray(driver, Region.contiguous_at(0, (0,), host.dtype))
    return upload(anchor, host)


def _holds_arrays(items: Any) -> bool:
    return any(
        isinstance(item, SimArray) or (isinstance(item, (list, tuple)) and _holds_arrays(item)) for item in items
    )


def _computed(driver: SimDriver, values: HostArray, name: str) -> SimArray:
    """Values that a device would compute from a few parameters: baked in the kernel, not copied from the host."""
    made = empty(driver, values.shape, values.dtype)
    launch(driver, name, lambda _, written: np.copyto(written[0], values), [], [made])
    return made
