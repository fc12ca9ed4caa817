"""BLAS's product in NumPy, and a stand-in for cuBLAS over it: what a call means, and what it must not be given.

Matrices are given as cuBLAS is given them: where the first element is, a leading dimension, strides, and a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from breakgraph.frameworks.cupy.plan import Gemm

Memory = np.ndarray[Any, Any]


def gemm(call: Gemm, a: Memory, b: Memory, c: Memory, alpha: Any = 1, beta: Any = 0) -> None:
    """C = alpha A B + beta C over flat memory that begins with the first element of each.

    The arguments are held against the rules of BLAS, every element against the memory, and those of C against each
    other: no two may be one.
    """
    assert min(call.m, call.n, call.k, call.batch) > 0
    at_a = _elements(call.m, call.k, call.transa, call.lda, call.stride_a, call.batch)
    at_b = _elements(call.k, call.n, call.transb, call.ldb, call.stride_b, call.batch)
    at_c = _elements(call.m, call.n, False, call.ldc, call.stride_c, call.batch)
    assert len(np.unique(at_c)) == at_c.size, "two elements of the result are one"
    work = np.result_type(a.dtype, np.float32)  # halves are added up in single precision
    product = np.asarray(alpha, work) * (a[at_a].astype(work) @ b[at_b].astype(work))
    c[at_c] = product if not beta else product + np.asarray(beta, work) * c[at_c]


def _elements(rows: int, columns: int, transposed: bool, leading: int, stride: int, batch: int) -> Any:
    """Where the elements of each matrix lie: (batch, rows, columns)."""
    stored_rows, stored_columns = (columns, rows) if transposed else (rows, columns)
    assert leading >= max(1, stored_rows), "cublasGemmEx: an invalid leading dimension"
    assert stride >= 0
    matrix = np.arange(stored_rows)[:, None] + np.arange(stored_columns) * leading
    return np.arange(batch)[:, None, None] * stride + (matrix.T if transposed else matrix)
