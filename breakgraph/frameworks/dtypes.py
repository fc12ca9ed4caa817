"""Element types that NumPy does not have, as NumPy dtypes: bfloat16, the eight-bit floats.

Where the program has imported ml_dtypes they are its types, as in cupy and jax. Elsewhere they are opaque bytes under
a name, so that two of them are equal only if they are the same.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

__all__ = ["dtype_name", "named_dtype"]


def named_dtype(name: str, itemsize: int) -> np.dtype[Any]:
    """The dtype of ``itemsize`` bytes that NumPy, ml_dtypes and torch call so (``"float32"``, ``"bfloat16"``).

    Parameters
    ----------
    name
        As they spell it.
    itemsize
        Bytes of an element, for a name that neither NumPy nor ml_dtypes has.
    """
    found = getattr(np, name, None) or getattr(sys.modules.get("ml_dtypes"), name, None)
    if isinstance(found, type) and issubclass(found, np.generic):
        return np.dtype(found)
    return _opaque(name, itemsize)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a dtype, also of one that `named_dtype` made up."""
    return dtype.names[0] if _is_opaque(dtype) else dtype.name  # type: ignore[index]  # it has one


@cache
def _opaque(name: str, itemsize: int) -> np.dtype[Any]:
    return np.dtype([(name, f"V{itemsize}")])


def _is_opaque(dtype: np.dtype[Any]) -> bool:
    return dtype.names is not None and dtype == _opaque(dtype.names[0], dtype.itemsize)
