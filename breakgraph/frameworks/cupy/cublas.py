"""cuBLAS by nvmath-python's bindings, whose calls a capture records.

cupy's own bindings refuse every call while a stream captures. What is said here of handles, streams and workspaces is
from the cuBLAS documentation: cublasDestroy, cublasSetStream, cublasSetWorkspace, "CUDA Graphs Support".
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.cupy.plan import Plan

__all__ = ["Cublas", "cublas", "multiplies"]


class _Kind(NamedTuple):
    """cuBLAS's names for what elements are and in what they are added up, and the dtype of alpha and beta."""

    data: str
    compute: str
    scale: type[np.generic]


#: By the name of a dtype. Halves are added up in single precision, as in cupy.
_KINDS = {
    "float16": _Kind("CUDA_R_16F", "COMPUTE_32F", np.float32),
    "bfloat16": _Kind("CUDA_R_16BF", "COMPUTE_32F", np.float32),
    "float32": _Kind("CUDA_R_32F", "COMPUTE_32F", np.float32),
    "float64": _Kind("CUDA_R_64F", "COMPUTE_64F", np.float64),
    "complex64": _Kind("CUDA_C_32F", "COMPUTE_32F", np.complex64),
    "complex128": _Kind("CUDA_C_64F", "COMPUTE_64F", np.complex128),
}


def multiplies(dtype: np.dtype[Any]) -> bool:
    """Whether cuBLAS has products of a dtype."""
    return dtype.name in _KINDS


class Cublas:
    """The library, and those of its handles that are free, by context.

    A handle serves one product at a time, on whichever thread and stream, and then the next. None is ever destroyed:
    that synchronizes the device, which would end the captures of all threads (C8). So there are as many as there were
    products at once.

    Raises `BreakgraphError` where nvmath-python is not installed.
    """

    def __init__(self) -> None:
        try:
            from nvmath import CudaDataType
            from nvmath.bindings import cublas as calls
        except ImportError as error:
            raise BreakgraphError(
                "matrix products of cupy arrays in segments need nvmath-python, and it cannot be imported",
                why=f"cupy's own are refused in a capture, and {str(error).strip()}",
                remedy="pip install 'breakgraph[cuda13]' (with a CUDA 12 driver: 'breakgraph[cuda12]'), or make the"
                " product a break: bg.break_here(xp.matmul, bg.INFER, a, b)",
            ) from error
        self._calls: Any = calls
        self._data_types: Any = CudaDataType
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    @contextmanager
    def handle(self, stream: int, workspace: int, nbytes: int) -> Iterator[int]:
        """A handle for work on a stream of the current context, with ``nbytes`` of scratch memory at ``workspace``.

        Without such memory cuBLAS would allocate in the capture; shared by two streams, it would make results random.
        """
        driver = drivers.current()
        free = self._free[driver.ctx_get_id(driver.ensure_context())]
        try:
            handle = free.pop()
        except IndexError:
            handle = self._create(driver)
        try:
            self._calls.set_stream(handle, stream)
            self._calls.set_workspace(handle, workspace, nbytes)  # in this order: a new stream takes it away
            yield handle
        finally:
            free.append(handle)

    def _create(self, driver: Driver) -> int:
        try:
            with drivers.relaxed(driver):  # it allocates
                return int(self._calls.create())
        except RuntimeError as error:  # nvmath's for a library that cannot be loaded
            raise BreakgraphError(
                "cuBLAS cannot be loaded",
                why=str(error).strip(),
                remedy="install the CUDA toolkit, or nvidia-cublas (with a CUDA 12 driver: nvidia-cublas-cu12)",
            ) from error

    def multiply(
        self,
        handle: int,
        plan: Plan,
        dtype: np.dtype[Any],
        at: tuple[int, int, int],
        *,
        alpha: complex,
        beta: complex,
        precision: str,
    ) -> None:
        """Carry a plan out: result = alpha * left * right + beta * result, which lie ``at`` these addresses.

        ``precision`` ends cuBLAS's name of the compute type: empty, ``"_PEDANTIC"`` or ``"_FAST_TF32"``.
        """
        kind, gemm = _KINDS[dtype.name], plan.gemm
        data = self._data_types[kind.data]
        compute = self._calls.ComputeType[kind.compute + precision]
        scale = np.array((alpha, beta), kind.scale)  # on the host, so a capture records the values
        alpha_at, beta_at = scale.ctypes.data, scale.ctypes.data + scale.itemsize
        operation = (handle, int(gemm.transa), int(gemm.transb), gemm.m, gemm.n, gemm.k, alpha_at)
        how = (compute, self._calls.GemmAlgo.DFALT)
        for offsets in plan.offsets:
            a, b, c = (first + offset * dtype.itemsize for first, offset in zip(at, offsets, strict=True))
            if plan.swapped:
                a, b = b, a
            if gemm.batch == 1:
                operands = (a, data, gemm.lda, b, data, gemm.ldb)
                self._calls.gemm_ex_64(*operation, *operands, beta_at, c, data, gemm.ldc, *how)
            else:
                stacks = (a, data, gemm.lda, gemm.stride_a, b, data, gemm.ldb, gemm.stride_b)
                result = (c, data, gemm.ldc, gemm.stride_c)
                self._calls.gemm_strided_batched_ex_64(*operation, *stacks, beta_at, *result, gemm.batch, *how)


def cublas() -> Cublas:
    """The one library of this process."""
    with _first:
        return _cublas()


_first = threading.RLock()


@cache
def _cublas() -> Cublas:
    return Cublas()
