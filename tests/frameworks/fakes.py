"""Stand-ins for libraries that need a GPU, over the simulator's memory: as much of each as its framework touches.

Each answers as the library's own source does (torch 2.13, numba-cuda 0.30, cuda.core 1.2), and refuses what that
refuses. The same frameworks meet the libraries themselves on a GPU.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph.driver import Region
from breakgraph.frameworks.device_memory import DeviceMemory
from breakgraph.frameworks.runs import copy_runs, zero_runs


def fetch(region: Region) -> Any:
    """The values of a region, bit for bit, as NumPy has them."""
    driver = bg.driver.current()
    driver.synchronize()
    low, high = region.bounds
    host = np.zeros(high - low, np.uint8)
    if high > low:
        driver.memcpy_dtoh(host.ctypes.data, low, high - low)
    return np.ndarray(region.shape, region.dtype, host.data, region.ptr - low, region.strides).copy()


def store(region: Region, values: Any) -> None:
    """Put values into a contiguous region."""
    assert region.contiguous
    host = np.empty(region.shape, region.dtype)
    host[...] = np.asarray(values, region.dtype)
    bg.driver.current().memcpy_htod(region.ptr, host.ctypes.data, host.nbytes)
    bg.driver.current().synchronize()


# --- torch ---------------------------------------------------------------------------------------------------------


class dtype:  # noqa: N801 - torch's name
    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """A strided tensor: strides in elements, an owner that all views share."""

    is_cuda = True
    requires_grad = False
    pending = False  # a conjugation

    def __init__(self, torch: FakeTorch, ptr: int, shape: Any, strides: Any, kind: dtype, owner: object) -> None:
        self._torch, self._ptr, self.shape, self._strides = torch, ptr, tuple(shape), tuple(strides)
        self.dtype, self._owner, self.layout = kind, owner, torch.strided

    def data_ptr(self) -> int:
        return self._ptr

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_conj(self) -> bool:
        return self.pending

    def is_neg(self) -> bool:
        return False

    def detach(self) -> Tensor:
        return self.as_strided(self.shape, self._strides)

    def as_strided(self, shape: Any, strides: Any) -> Tensor:
        return type(self)(self._torch, self._ptr, shape, strides, self.dtype, self._owner)

    def untyped_storage(self) -> Tensor:
        return self

    def set_(self, storage: Tensor, offset: int, shape: Any, strides: Any) -> Tensor:
        self._ptr, self._owner = storage._ptr + offset * self.dtype.itemsize, storage._owner
        self.shape, self._strides = tuple(shape), tuple(strides)
        return self

    def as_subclass(self, kind: type) -> Any:
        return kind(self._torch, self._ptr, self.shape, self._strides, self.dtype, self._owner)

    def copy_(self, src: Tensor) -> Tensor:
        assert not self.requires_grad, "a leaf that requires a gradient is used in an in-place operation"
        copy_runs(bg.driver.current(), self._region(), src._region(), self._torch.cuda.stack[-1])
        return self

    def zero_(self) -> Tensor:
        zero_runs(bg.driver.current(), self._region(), self._torch.cuda.stack[-1])
        return self

    def _region(self) -> Region:
        size = self.dtype.itemsize
        return Region(self._ptr, self.shape, tuple(step * size for step in self._strides), np.dtype(f"V{size}"))


class Allocator:
    """Private pools as the caching allocator keeps them: one use for each beginning, one thing at a time."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.uses: dict[Any, int] = {}
        self.workspaces_cleared = 0
        self.log: list[str] = []

    def begin(self, device: int, pool: Any) -> None:
        assert pool not in self.open, "beginAllocateToPool: already recording to mempool_id"
        assert self.uses.get(pool, 1) > 0, "a pool that was let go is used again"
        self.uses[pool] = self.uses.get(pool, 0) + 1
        self.open.append(pool)
        self.log.append("begin")

    def end(self, device: int, pool: Any) -> None:
        self.open.remove(pool)
        self.log.append("end")

    def release(self, device: int, pool: Any) -> None:
        self.uses[pool] -= 1
        assert self.uses[pool] >= 0

    def clear_workspaces(self) -> None:
        self.workspaces_cleared += 1


class FakeTorch(SimpleNamespace):
    """The module."""

    def __init__(self) -> None:
        super().__init__()
        self.__version__ = "2.13"
        self.Tensor, self.dtype, self.strided = Tensor, dtype, object()
        self.uint8, self.float16, self.bfloat16 = dtype("uint8", 1), dtype("float16", 2), dtype("bfloat16", 2)
        self.float32 = dtype("float32", 4)
        self.allocator = Allocator()
        self._C = SimpleNamespace(
            _cuda_beginAllocateCurrentThreadToPool=self.allocator.begin,
            _cuda_endAllocateToPool=self.allocator.end,
            _cuda_releasePool=self.allocator.release,
            _cuda_clearCublasWorkspaces=self.allocator.clear_workspaces,
        )
        self.cuda = _TorchCuda()
        _TorchCuda.pools = 0
        self.compile = None  # what a module that is imported to its end has

    def device(self, kind: str, index: int) -> str:
        return f"{kind}:{index}"

    def empty(self, shape: Any, *, dtype: dtype, device: str) -> Tensor:
        assert device == "cuda:0"
        nbytes = int(np.prod(shape)) * dtype.itemsize
        memory = DeviceMemory(bg.driver.current(), nbytes) if nbytes else None
        strides = [int(np.prod(shape[at + 1 :])) for at in range(len(shape))]
        return Tensor(self, memory.ptr if memory else 0, shape, strides, dtype, memory)

    def as_tensor(self, data: Any, *, device: str) -> Tensor:
        assert device == "cuda:0"
        interface = data.__cuda_array_interface__
        assert interface["typestr"] == "|u1"
        return Tensor(self, interface["data"][0], interface["shape"], (1,), self.uint8, data)


class _TorchCuda(threading.local):
    pools = 0

    def __init__(self) -> None:
        self.stack = [0]
        self.blas_handles = 0

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def current_blas_handle(self) -> int:
        assert not bg.is_capturing(), "the first one in a thread allocates"
        self.blas_handles += 1
        return 1

    def graph_pool_handle(self) -> tuple[int, int]:
        _TorchCuda.pools += 1
        return (_TorchCuda.pools, 0)

    def current_stream(self) -> Any:
        return SimpleNamespace(cuda_stream=self.stack[-1])

    def default_stream(self) -> Any:
        return SimpleNamespace(cuda_stream=0)

    def ExternalStream(self, handle: int) -> Any:  # noqa: N802 - torch's name
        assert handle, "torch makes a new stream of its pool of a null handle"
        return SimpleNamespace(cuda_stream=handle)

    @contextmanager
    def stream(self, stream: Any) -> Any:
        self.stack.append(stream.cuda_stream)
        try:
            yield
        finally:
            self.stack.pop()


# --- numba ---------------------------------------------------------------------------------------------------------


class DeviceNDArray:
    __cuda_ndarray__ = True

    def __init__(self, region: Region, owner: object) -> None:
        self.shape, self.strides, self.dtype = region.shape, region.strides, region.dtype
        # ctypes gives None for a null pointer
        self.device_ctypes_pointer = SimpleNamespace(value=region.ptr or None)
        self.owner = owner


class FakeNumba(SimpleNamespace):
    """The module ``numba.cuda``."""

    deferred = 0

    def __init__(self) -> None:
        super().__init__()
        self.dead: list[tuple[Any, int]] = []

    def from_cuda_array_interface(self, desc: Any, owner: object = None, sync: bool = True) -> DeviceNDArray:
        assert "stream" not in desc, "it would be waited for"
        region = Region(desc["data"][0], tuple(desc["shape"]), tuple(desc["strides"]), np.dtype(desc["typestr"]))
        return DeviceNDArray(region, owner)

    def device_array(self, shape: Any, dtype: Any) -> DeviceNDArray:
        driver = bg.driver.current()
        region = Region.contiguous_at(0, shape, np.dtype(dtype))
        ptr = driver.mem_alloc(region.nbytes)  # a plain cuMemAlloc
        array = DeviceNDArray(Region.contiguous_at(ptr, shape, np.dtype(dtype)), None)
        weakref.finalize(array, self._die, driver, ptr)
        return array

    def _die(self, driver: Any, ptr: int) -> None:
        self.dead.append((driver, ptr))
        while self.dead and not self.deferred:
            driver, ptr = self.dead.pop()
            driver.mem_free(ptr)

    @contextmanager
    def defer_cleanup(self) -> Any:
        self.deferred += 1
        try:
            yield
        finally:
            self.deferred -= 1


# --- cuda.core -----------------------------------------------------------------------------------------------------


class Buffer:
    def __init__(self, handle: int, size: int, owner: object) -> None:
        self.handle: int | None = handle
        self.size, self.owner = size, owner

    @staticmethod
    def from_handle(ptr: int, size: int, mr: object = None, owner: object = None) -> Buffer:
        return Buffer(ptr, size, owner)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        raise AssertionError("a buffer is known without an export")
