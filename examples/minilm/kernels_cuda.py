"""The kernels on a GPU: those of ``kernels.cu`` through cupy, and cuBLAS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cupy
import numpy as np

from breakgraph.frameworks.cupy import matmul

from .kernels import QUERIES
from .text import Batch
from .weights import HEADS, HIDDEN, WIDTH

__all__ = ["CudaKernels"]

_WARP = 32
_ROWS = 4  # of a block of `embed` and `add_norm`
_REAL = {"float32": "float", "float16": "__half"}


class CudaKernels:
    """`kernels.Kernels` for activations of one dtype; compiled when first made."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        source = Path(__file__).with_name("kernels.cu").read_text()
        module = cupy.RawModule(code=source, options=("-std=c++17", f"-DREAL={_REAL[dtype.name]}"))
        self._embed, self._add_norm, self._add_gelu, self._attention, self._pool = (
            module.get_function(name) for name in ("embed", "add_norm", "add_gelu", "attention", "pool")
        )

    matmul = staticmethod(matmul)

    def embed(self, tokens: Any, words: Any, places: Any, norm: Any, out: Any) -> None:
        rows = len(out)
        self._embed((-(-rows // _ROWS),), (_WARP, _ROWS), (np.int32(rows), tokens, words, places, norm, out))

    def add_norm(self, x: Any, bias: Any, residual: Any, norm: Any) -> None:
        rows = len(x)
        self._add_norm((-(-rows // _ROWS),), (_WARP, _ROWS), (np.int32(rows), bias, residual, norm, x))

    def add_gelu(self, x: Any, bias: Any) -> None:
        self._add_gelu((len(x), HIDDEN // WIDTH), (WIDTH,), (bias, x))

    def attention(self, qkv: Any, bias: Any, starts: Any, batch: Batch, out: Any) -> None:
        grid = (-(-max(batch.lengths) // QUERIES), HEADS, len(batch.lengths))
        self._attention(grid, (_WARP, QUERIES), (starts, bias, qkv, out))

    def pool(self, hidden: Any, starts: Any, out: Any) -> None:
        self._pool((len(out),), (WIDTH,), (starts, hidden, out))
