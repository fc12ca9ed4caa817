"""Reading where a DLPack exporter's array lies (dlpack.h, DLManagedTensor), without importing it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from breakgraph.driver import Region
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.dtypes import named_dtype

__all__ = ["dlpack_region", "on_cuda_device"]

_CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged
_NO_SYNC = -1  # the exporter is to wait for nothing: order is the streams' affair
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
_NAMES = {6: "bool", 8: "float8_e4m3", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2"}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def on_cuda_device(obj: object) -> bool:
    """Whether an object exports CUDA memory by DLPack."""
    asked = getattr(type(obj), "__dlpack_device__", None)
    if asked is None or not hasattr(type(obj), "__dlpack__"):
        return False
    try:
        return asked(obj)[0] in _CUDA_DEVICES
    except Exception:  # an array that cannot be exported
        return False


def dlpack_region(obj: Any) -> Region:
    """Where an exporter's array lies. The capsule is given back unused; the memory is the object's."""
    try:
        capsule = obj.__dlpack__(stream=_NO_SYNC)
    except Exception:  # jax takes -1 for a handle (0.11: CUDA_ERROR_INVALID_HANDLE)
        capsule = obj.__dlpack__()
    tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    dtype = _dtype(tensor)
    ptr, shape = (tensor.data or 0) + tensor.byte_offset, tuple(tensor.shape[: tensor.ndim])
    if not tensor.strides:
        return Region.contiguous_at(ptr, shape, dtype)
    return Region(ptr, shape, tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim]), dtype)


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    name = f"{_KINDS[tensor.code]}{tensor.bits}" if tensor.code in _KINDS else _NAMES.get(tensor.code)
    if name is None or tensor.lanes != 1 or tensor.bits % 8:
        raise BreakgraphError(
            f"an array of DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes has no known dtype",
            remedy="hand the library a view of it as integers",
        )
    return named_dtype(name, tensor.bits // 8)
