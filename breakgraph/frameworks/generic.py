"""Arrays of libraries that nobody has told of, by the two protocols that such libraries share.

``__cuda_array_interface__`` (Numba's documentation, version 0 to 3), or else DLPack on a CUDA device. Nothing waits
for the stream that an interface may name: as with every other library, work belongs on ``bg.current_stream()``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from breakgraph.driver import Region
from breakgraph.frameworks.base import Array, Framework, ScopedStreams
from breakgraph.frameworks.dlpack import dlpack_region, on_cuda_device

__all__ = ["ArrayView", "GenericFramework"]


class ArrayView:
    """An array over given memory, for whoever reads ``__cuda_array_interface__``.

    What a break returns in a library's own type comes back as this where the library is not known, since nothing
    says how an array of that type is made. Libraries that register a `Framework` get their own type.
    """

    def __init__(self, region: Region, owner: object = None) -> None:
        self.region = region
        self._owner = owner

    @property
    def ptr(self) -> int:
        """Device address."""
        return self.region.ptr

    @property
    def shape(self) -> tuple[int, ...]:
        return self.region.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.region.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        region = self.region
        return {
            "version": 3,
            "data": (region.ptr, False),
            "shape": region.shape,
            "strides": None if region.contiguous else region.strides,
            "typestr": region.dtype.str,
            "descr": region.dtype.descr,
        }

    def __repr__(self) -> str:
        return f"<ArrayView {self.shape} {self.dtype} at {self.ptr:#x}>"


class GenericFramework(ScopedStreams, Framework):
    """`breakgraph.frameworks.base.Framework` over any object that says where its device memory is."""

    name = "generic"
    driver_name = "cuda"

    def owns(self, obj: object) -> bool:
        return _interface(obj) is not None or on_cuda_device(obj)

    def view(self, array: Array) -> Region:
        if isinstance(array, ArrayView):
            return array.region
        interface = _interface(array)
        if interface is None:
            return dlpack_region(array)
        shape, dtype = tuple(interface["shape"]), _dtype(interface)
        ptr = interface["data"][0] or 0
        strides = interface.get("strides")
        return Region.contiguous_at(ptr, shape, dtype) if strides is None else Region(ptr, shape, tuple(strides), dtype)

    def over(self, region: Region, owner: object = None) -> ArrayView:
        return ArrayView(region, owner)


def _interface(obj: object) -> dict[str, Any] | None:
    try:
        found = getattr(obj, "__cuda_array_interface__", None)
    except Exception:  # a property that raises says: not this one
        return None
    return found if isinstance(found, dict) else None


def _dtype(interface: dict[str, Any]) -> np.dtype[Any]:
    typestr, descr = interface["typestr"], interface.get("descr")
    named: np.dtype[Any] = np.dtype(descr if "V" in typestr and descr and descr != [("", typestr)] else typestr)
    return named
