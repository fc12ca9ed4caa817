"""cupy itself, imported when it is first needed, and where its arrays lie."""

from __future__ import annotations

from typing import Any

from breakgraph.driver import Region
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.base import Array

__all__ = ["import_cupy", "region_of"]


def import_cupy() -> Any:
    """The module. Raises `BreakgraphError` where it is not installed, naming the extra that brings it."""
    try:
        import cupy
    except ImportError as error:
        raise BreakgraphError(
            "arrays on the cuda driver need cupy, and it cannot be imported",
            why=str(error).strip(),
            remedy="pip install 'breakgraph[cuda13]' (with a CUDA 12 driver: 'breakgraph[cuda12]')",
        ) from error
    return cupy


def region_of(array: Array) -> Region:
    """Where an array lies."""
    return Region(array.data.ptr, array.shape, array.strides, array.dtype)
