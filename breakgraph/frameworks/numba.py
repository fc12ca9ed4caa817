"""numba-cuda's device arrays as a framework. Checked against numba-cuda 0.30 (devicearray.py, driver.py, api.py).

numba has no current stream: a kernel or a copy that names none goes to the default stream, which no capture sees. Name
it: ``kernel[grid, block, cuda.external_stream(int(bg.current_stream()))]``. Nor does it take an allocator for a while:
`cuda.device_array` in a segment is refused by the driver (900), so make such arrays before, or in a break.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from breakgraph.driver import Driver, Region
from breakgraph.frameworks.base import Allocate, Array, Framework, ScopedStreams
from breakgraph.frameworks.contexts import refuse_other_than_primary

__all__ = ["NumbaFramework"]


class NumbaFramework(ScopedStreams, Framework):
    """`breakgraph.frameworks.base.Framework` over ``DeviceNDArray``."""

    name = "numba"
    driver_name = "cuda"

    def __init__(self) -> None:
        from numba import cuda

        super().__init__()
        self._cuda: Any = cuda

    def owns(self, obj: object) -> bool:
        return getattr(type(obj), "__cuda_ndarray__", False) is True  # numba's own mark

    def view(self, array: Array) -> Region:
        return Region(array.device_ctypes_pointer.value or 0, array.shape, array.strides, array.dtype)

    def over(self, region: Region, owner: object = None) -> Array:
        interface = {
            "version": 3,
            "data": (region.ptr, False),
            "shape": region.shape,
            "strides": region.strides,
            "typestr": region.dtype,
        }
        return self._cuda.from_cuda_array_interface(interface, owner=owner)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._cuda.device_array(shape, dtype)

    def current_stream(self) -> int:
        return super().current_stream() or 0

    def allocator_scope(self, allocate: Allocate) -> AbstractContextManager[object]:
        """Allocations stay numba's own. Arrays that die in a segment are freed after it, since freeing is refused."""
        scope: AbstractContextManager[object] = self._cuda.defer_cleanup()
        return scope

    def check_context(self, driver: Driver) -> None:
        refuse_other_than_primary(driver, "numba")
