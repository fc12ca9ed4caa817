"""BLAS's product in NumPy, and stand-ins for cupy and cuBLAS over it, on host memory.

`gemm` says what a call means and what it must not be given. The stand-ins answer as cupy 14 and cuBLAS 13 do, as far as
products go: who sets which stream and workspace, which types there are, and what is refused in a capture.
"""

from __future__ import annotations

import ctypes
import enum
import threading
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph.driver.api import CaptureMode
from breakgraph.frameworks.cupy.plan import Gemm

Memory = np.ndarray[Any, Any]


def gemm(call: Gemm, a: Memory, b: Memory, c: Memory, alpha: Any = 1, beta: Any = 0) -> None:
    """C = alpha A B + beta C over flat memory that begins with the first element of each.

    The arguments are held against the rules of BLAS, every element against the memory, and those of C against all
    others: no two may be one.
    """
    assert min(call.m, call.n, call.k, call.batch) > 0
    at_a = elements(call.m, call.k, call.transa, call.lda, call.stride_a, call.batch)
    at_b = elements(call.k, call.n, call.transb, call.ldb, call.stride_b, call.batch)
    at_c = elements(call.m, call.n, False, call.ldc, call.stride_c, call.batch)
    assert len(np.unique(at_c)) == at_c.size, "two elements of the result are one"
    for operand, at in ((a, at_a), (b, at_b)):
        assert not np.intersect1d(_addresses(operand, at), _addresses(c, at_c)).size, "the result overlaps an operand"
    work = np.result_type(a.dtype, np.float32)  # halves are added up in single precision
    product = np.asarray(alpha, work) * (a[at_a].astype(work) @ b[at_b].astype(work))
    c[at_c] = product if not beta else product + np.asarray(beta, work) * c[at_c]


def elements(rows: int, columns: int, transposed: bool, leading: int, stride: int, batch: int) -> Any:
    """Where the elements of each matrix lie: (batch, rows, columns)."""
    stored_rows, stored_columns = (columns, rows) if transposed else (rows, columns)
    assert leading >= max(1, stored_rows), "cublasGemmEx: an invalid leading dimension"
    assert stride >= 0
    matrix = np.arange(stored_rows)[:, None] + np.arange(stored_columns) * leading
    return np.arange(batch)[:, None, None] * stride + (matrix.T if transposed else matrix)


def _addresses(memory: Memory, at: Any) -> Any:
    return memory.__array_interface__["data"][0] + at * memory.itemsize


# --- cuBLAS -------------------------------------------------------------------------------------------------------


class ComputeType(enum.IntEnum):
    COMPUTE_32F = 68
    COMPUTE_32F_PEDANTIC = 69
    COMPUTE_32F_FAST_TF32 = 77
    COMPUTE_64F = 70
    COMPUTE_64F_PEDANTIC = 71


class CudaDataType(enum.IntEnum):
    CUDA_R_32F = 0
    CUDA_R_64F = 1
    CUDA_R_16F = 2
    CUDA_C_32F = 4
    CUDA_C_64F = 5
    CUDA_R_16BF = 14


#: By data type, the dtypes of elements and of alpha and beta (cublasGemmEx's table, for the compute types above).
DTYPES = {
    CudaDataType.CUDA_R_16F: (np.float16, np.float32),
    CudaDataType.CUDA_R_32F: (np.float32, np.float32),
    CudaDataType.CUDA_R_64F: (np.float64, np.float64),
    CudaDataType.CUDA_C_32F: (np.complex64, np.complex64),
    CudaDataType.CUDA_C_64F: (np.complex128, np.complex128),
}


class Made(SimpleNamespace):
    """One product: its ``call``, ``handle``, ``stream``, ``workspace`` (address, bytes) and ``compute`` type."""


class FakeCublas(ModuleType):
    """The module ``nvmath.bindings.cublas``, and what was asked of it."""

    ComputeType = ComputeType
    GemmAlgo = SimpleNamespace(DFALT=-1)

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cublas")
        self.handles: dict[int, Any] = {}
        self.made: list[Made] = []
        self.at_work: Any = lambda: None  # runs in the middle of each product
        self._using: set[int] = set()

    def create(self) -> int:
        driver = bg.driver.current()
        mode = driver.thread_exchange_stream_capture_mode(CaptureMode.RELAXED)
        driver.thread_exchange_stream_capture_mode(mode)
        assert mode is CaptureMode.RELAXED, "it allocates"
        self.handles[len(self.handles) + 1] = SimpleNamespace(stream=0, workspace=None)
        return len(self.handles)

    def destroy(self, handle: int) -> None:
        raise AssertionError("it synchronizes the device")

    def set_stream(self, handle: int, stream: int) -> None:
        self.handles[handle].stream = stream
        self.handles[handle].workspace = None  # back to the library's own

    def set_workspace(self, handle: int, ptr: int, nbytes: int) -> None:
        assert ptr
        assert ptr % 256 == 0
        self.handles[handle].workspace = (ptr, nbytes)

    def gemm_ex_64(
        self, handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, compute, algo
    ) -> None:  # fmt: skip
        call = Gemm(bool(transa), bool(transb), m, n, k, lda, ldb, ldc)
        self._make(handle, call, (atype, btype, ctype), (a, b, c), alpha, beta, compute)

    def gemm_strided_batched_ex_64(
        self, handle, transa, transb, m, n, k, alpha, a, atype, lda, stride_a, b, btype, ldb, stride_b, beta, c, ctype,
        ldc, stride_c, batch, compute, algo,
    ) -> None:  # fmt: skip
        call = Gemm(bool(transa), bool(transb), m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, batch)
        self._make(handle, call, (atype, btype, ctype), (a, b, c), alpha, beta, compute)

    def _make(self, handle: int, call: Gemm, types: Any, at: Any, alpha: int, beta: int, compute: Any) -> None:
        assert handle not in self._using, "two threads use one handle at once"
        self._using.add(handle)
        try:
            self.at_work()
            state = self.handles[handle]
            assert state.workspace is not None, "cuBLAS would allocate in the capture"
            assert len(set(types)) == 1
            dtype, scale = DTYPES[types[0]]
            doubles = compute in (ComputeType.COMPUTE_64F, ComputeType.COMPUTE_64F_PEDANTIC)
            assert doubles == (types[0] in (CudaDataType.CUDA_R_64F, CudaDataType.CUDA_C_64F))
            a, b, c = (_memory(ptr, dtype, _reach(call, name)) for ptr, name in zip(at, "abc", strict=True))
            gemm(call, a, b, c, _memory(alpha, scale, 1)[0], _memory(beta, scale, 1)[0])
            made = Made(call=call, handle=handle, stream=state.stream, workspace=state.workspace, compute=compute)
            self.made.append(made)
        finally:
            self._using.remove(handle)


def _reach(call: Gemm, name: str) -> int:
    sizes = {
        "a": (call.m, call.k, call.transa, call.lda, call.stride_a),
        "b": (call.k, call.n, call.transb, call.ldb, call.stride_b),
        "c": (call.m, call.n, False, call.ldc, call.stride_c),
    }
    return int(elements(*sizes[name], call.batch).max()) + 1


def _memory(ptr: int, dtype: Any, count: int) -> Memory:
    return np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(ptr), dtype)


# --- cupy ---------------------------------------------------------------------------------------------------------


class Array(np.ndarray):
    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def get(self) -> Memory:
        return np.array(self)


class _Current(threading.local):
    """The streams and the allocator of a thread."""

    allocator: Any = None

    def __init__(self) -> None:
        self.streams = [0]


class FakeCuda(SimpleNamespace):
    UnownedMemory = staticmethod(lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner))
    MemoryPointer = staticmethod(lambda memory, offset: SimpleNamespace(ptr=memory.ptr + offset, mem=memory))

    def __init__(self) -> None:
        super().__init__()
        self.current = _Current()
        self.capability = "90"
        self.pool: list[int] = []  # sizes that were asked of cupy's own allocator
        self.Stream = SimpleNamespace(from_external=lambda stream: self._scope(stream.__cuda_stream__()[1]))

    def Device(self) -> Any:  # noqa: N802 - cupy's name
        return SimpleNamespace(compute_capability=self.capability)

    def get_device_id(self) -> int:
        return 0

    def get_current_stream(self) -> Any:
        return SimpleNamespace(ptr=self.current.streams[-1])

    def get_allocator(self) -> Any:
        return self.current.allocator or self._from_pool

    def alloc(self, nbytes: int) -> Any:
        return self.get_allocator()(nbytes)

    @contextmanager
    def using_allocator(self, allocator: Any) -> Any:
        before, self.current.allocator = self.current.allocator, allocator
        try:
            yield
        finally:
            self.current.allocator = before

    @contextmanager
    def _scope(self, stream: int) -> Any:
        self.current.streams.append(stream)
        try:
            yield
        finally:
            self.current.streams.pop()

    def _from_pool(self, nbytes: int) -> Any:
        self.pool.append(nbytes)
        return SimpleNamespace(ptr=0x100000)


class FakeCupy(ModuleType):
    """The module, with arrays of host memory. What it has made holds garbage until it is written."""

    ndarray = Array
    COMPUTE_TYPE_DEFAULT, COMPUTE_TYPE_PEDANTIC, COMPUTE_TYPE_TF32 = 1, 2, 7

    def __init__(self) -> None:
        super().__init__("cupy")
        self.cuda = FakeCuda()
        self.compute_types: dict[Any, int] = {}
        self._core = SimpleNamespace(_routines_linalg=self)
        self.own_products = 0

    def get_compute_type(self, dtype: Any) -> int:
        return self.compute_types.get(np.dtype(dtype), self.COMPUTE_TYPE_DEFAULT)

    def asarray(self, values: Any) -> Array:
        return np.asarray(values).view(Array)

    def empty(self, shape: Any, dtype: Any) -> Array:
        made = np.empty(shape, dtype)
        made[...] = 77
        return made.view(Array)

    def broadcast_to(self, array: Any, shape: Any) -> Array:
        return np.broadcast_to(array, shape, subok=True)

    def ascontiguousarray(self, array: Any) -> Array:
        return np.ascontiguousarray(array).view(Array)

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        if not isinstance(a, Array) or not isinstance(b, Array):
            raise TypeError("Unsupported type")
        if bg.is_capturing() and np.promote_types(a.dtype, b.dtype).kind in "fc":
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        self.own_products += 1
        return np.matmul(a, b, out=out)
