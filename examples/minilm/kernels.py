"""What the driver in use has for the work of the encoder: one interface, an implementation for each driver."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import breakgraph as bg

if TYPE_CHECKING:
    from .text import Batch

__all__ = ["QUERIES", "Kernels", "kernels"]

QUERIES = 8  # of one block of the attention kernel


class Kernels(Protocol):
    """Matrix products, and the work between them. Rows are tokens; each call is one kernel on the current stream."""

    def matmul(self, a: Any, b: Any, *, out: Any) -> Any:
        """The product of two matrices."""

    def embed(self, tokens: Any, words: Any, places: Any, norm: Any, out: Any) -> None:
        """``out`` becomes the normalized sum of each token's word and place."""

    def add_norm(self, x: Any, bias: Any, residual: Any, norm: Any) -> None:
        """``x`` becomes the normalized sum of ``x``, ``bias`` and ``residual``."""

    def add_gelu(self, x: Any, bias: Any) -> None:
        """``x`` becomes the GELU, by the error function, of ``x + bias``."""

    def attention(self, qkv: Any, bias: Any, starts: Any, batch: Batch, out: Any) -> None:
        """``out`` becomes the attention of each sentence's tokens to each other.

        Where sentences start is read on the device; how many there are, and how long the longest is, decides the
        launch, and is the host's knowledge.
        """

    def pool(self, hidden: Any, starts: Any, out: Any) -> None:
        """The first rows of ``out`` become each sentence's mean over its tokens, as a unit vector."""


def kernels(dtype: np.dtype[Any]) -> Kernels:
    """Those of the current driver, for activations of this dtype: float32 or float16."""
    return _made(bg.driver.current().name, dtype)


@functools.cache
def _made(driver: str, dtype: np.dtype[Any]) -> Kernels:
    if driver == "sim":
        from .kernels_sim import SimKernels

        return SimKernels()
    from .kernels_cuda import CudaKernels

    return CudaKernels(dtype)
