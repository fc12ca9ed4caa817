"""``bg.array_namespace()`` on CUDA: cupy, but with products that a segment records."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from breakgraph.frameworks.base import Array
from breakgraph.frameworks.cupy import products
from breakgraph.frameworks.cupy.scopes import segment

__all__ = ["Namespace"]


class Namespace(ModuleType):
    """Has what cupy has. Its ``matmul`` is cupy's own but in segments, where cupy would refuse it."""

    def __init__(self, cupy: ModuleType) -> None:
        super().__init__("breakgraph.frameworks.cupy.namespace", cupy.__doc__)
        self._cupy = cupy

    def matmul(self, a: Array, b: Array, *args: Any, **options: Any) -> Array:
        """The matrix product of two arrays; in a segment `breakgraph.frameworks.cupy.matmul`."""
        multiply = products.matmul if segment() else self._cupy.matmul
        return multiply(a, b, *args, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cupy, name)
        self.__dict__[name] = found
        return found

    def __dir__(self) -> list[str]:
        return dir(self._cupy)
