"""torch's CUDA tensors as a framework. Checked against torch 2.11 and 2.13 (memory.py, streams.py, the allocator).

torch takes no allocator from Python. What it allocates in segments comes from a private pool of its own allocator, the
mechanism of ``torch.cuda.graph``: one pool for each arena, alive as long as a graph that was captured with it. Once its
last graph is gone the pool's memory is torch's to give back: at ``torch.cuda.empty_cache()``, or when it runs short.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np

from breakgraph.driver import Driver, Region
from breakgraph.driver.api import STREAM_LEGACY
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.base import Allocate, Array, Framework
from breakgraph.frameworks.contexts import refuse_other_than_primary
from breakgraph.frameworks.dtypes import dtype_name, named_dtype

__all__ = ["TorchFramework"]


class TorchFramework(Framework):
    """`breakgraph.frameworks.base.Framework` over strided CUDA tensors.

    What it makes never requires a gradient: a graph replays a forward, and autograd sees nothing of it.
    """

    name = "torch"
    driver_name = "cuda"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._tensor: type = torch.Tensor
        self._strided = torch.strided
        self._dtypes: dict[Any, np.dtype[Any]] = {}  # those that NumPy has
        self._pools: weakref.WeakKeyDictionary[object, weakref.ref[_Pool]] = weakref.WeakKeyDictionary()
        self._making = threading.Lock()
        self._open = _OpenPools()

    # arrays -----------------------------------------------------------------------------------------------
    def owns(self, obj: object) -> bool:
        return isinstance(obj, self._tensor) and obj.is_cuda and obj.layout is self._strided  # type: ignore[attr-defined]

    def view(self, array: Array) -> Region:
        if array.is_conj() or array.is_neg():
            raise BreakgraphError(
                "a tensor with a pending conjugation or negation has no bytes of its own",
                why="torch keeps it as a mark on another tensor's memory, and copies of bytes do not see the mark",
                remedy="resolve_conj() or resolve_neg() it",
            )
        size = array.element_size()
        strides = tuple(step * size for step in array.stride())
        return Region(array.data_ptr(), tuple(array.shape), strides, self._numpy_dtype(array.dtype))

    def over(self, region: Region, owner: object = None) -> Array:
        return self._over(region, self._torch_dtype(region.dtype), owner)

    def like(self, array: Array, region: Region, owner: object = None) -> Array:
        made = self._over(region, array.dtype, owner)
        return made if type(array) is self._tensor else made.as_subclass(type(array))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._torch.empty(shape, dtype=self._torch_dtype(dtype), device=self._device())

    def copy(self, dst: Array, src: Array, stream: int) -> None:
        with self.stream_scope(stream):
            dst.detach().copy_(src.detach())

    def zero(self, dst: Array, stream: int) -> None:
        with self.stream_scope(stream):
            dst.detach().zero_()

    def _over(self, region: Region, dtype: Any, owner: object) -> Array:
        if not region.size:
            return self._torch.empty(region.shape, dtype=dtype, device=self._device())  # no bytes: no allocation
        if min(region.strides, default=0) < 0:
            raise BreakgraphError("torch has no tensors that run backwards", remedy="hand it a contiguous copy")
        low, high = region.bounds
        device, size = self._device(), region.dtype.itemsize
        # As bytes, and typed after: the interface below has no name for bfloat16.
        flat = self._torch.as_tensor(_Bytes(low, high - low, owner), device=device)
        # Not a view of those bytes: writing into views costs autograd's book-keeping each time.
        made = self._torch.empty((0,), dtype=dtype, device=device)
        strides = [step // size for step in region.strides]
        return made.set_(flat.untyped_storage(), (region.ptr - low) // size, region.shape, strides)

    def _device(self) -> Any:
        return self._torch.device("cuda", self._torch.cuda.current_device())

    def _numpy_dtype(self, dtype: Any) -> np.dtype[Any]:
        found = self._dtypes.get(dtype)
        if found is None:
            found = named_dtype(str(dtype).removeprefix("torch."), dtype.itemsize)
            if found.isbuiltin == 1:  # others depend on what else is imported
                self._dtypes[dtype] = found
        return found

    def _torch_dtype(self, dtype: np.dtype[Any]) -> Any:
        found = getattr(self._torch, dtype_name(dtype), None)
        if not isinstance(found, self._torch.dtype):
            raise BreakgraphError(f"torch has no tensors of {dtype_name(dtype)}", remedy="convert it in the break")
        return found

    # streams ----------------------------------------------------------------------------------------------
    def current_stream(self) -> int:
        return int(self._torch.cuda.current_stream().cuda_stream)

    def stream_source(self) -> Callable[[], int | None]:
        self._torch.cuda.init()
        calls = self._torch._C
        return partial(calls._cuda_getCurrentRawStream, calls._cuda_getDevice())  # makes no Stream object

    def stream_scope(self, stream: int) -> AbstractContextManager[object]:
        cuda = self._torch.cuda
        # ExternalStream(0) would be a new stream of torch's pool.
        of_torch = cuda.default_stream() if stream in (0, STREAM_LEGACY) else cuda.ExternalStream(stream)
        scope: AbstractContextManager[object] = cuda.stream(of_torch)
        return scope

    # allocations ------------------------------------------------------------------------------------------
    @contextmanager
    def allocator_scope(self, allocate: Allocate) -> Iterator[object]:
        """Open the private pool that belongs to the arena of ``allocate``, and give it: graphs keep it alive."""
        pool = self._pool(allocate.arena)
        if not self._open.has_blas:
            self._torch.cuda.current_blas_handle()  # one for each thread; making one allocates, which a segment cannot
            self._open.has_blas = True
        self._forget_workspaces()
        pool.open()
        self._open.pools.append(pool)
        try:
            yield pool
        finally:
            self._open.pools.pop()
            pool.close()
            self._forget_workspaces()

    @contextmanager
    def outside_scope(self) -> Iterator[None]:
        pool = self._open.pools[-1]
        pool.close()
        try:
            yield
        finally:
            pool.open()

    def check_context(self, driver: Driver) -> None:
        refuse_other_than_primary(driver, "torch")

    def _pool(self, arena: object) -> _Pool:
        with self._making:
            made = self._pools.get(arena)
            pool = made() if made is not None else None
            if pool is None:
                pool = _Pool(self._torch)
                self._pools[arena] = weakref.ref(pool)
            return pool

    def _forget_workspaces(self) -> None:
        """Let cuBLAS ask for new workspaces.

        torch keeps one for each stream, and a graph bakes it. So a graph's must be of the graph's pool, and must not
        be used by whatever else runs on that stream.
        """
        self._torch._C._cuda_clearCublasWorkspaces()


class _Pool:
    """A private pool of torch's caching allocator, held by id.

    Not a ``torch.cuda.MemPool``: the end of one waits for events and frees memory at once, and where another thread
    captures meanwhile that aborts the process (torch 2.11, ``synchronize_and_free_events``). Letting go of an id is
    bookkeeping alone.
    """

    def __init__(self, torch: Any) -> None:
        calls = torch._C
        if not hasattr(calls, "_cuda_beginAllocateCurrentThreadToPool"):
            raise BreakgraphError(
                f"torch {torch.__version__} cannot take part in a capture",
                why="its private pools take the allocations of all threads",
                remedy="install torch 2.8 or later, or leave it out: bg.capture(frameworks=())",
            )
        self._begin = calls._cuda_beginAllocateCurrentThreadToPool
        self._end = calls._cuda_endAllocateToPool
        self._release = calls._cuda_releasePool
        self._at = (torch.cuda.current_device(), torch.cuda.graph_pool_handle())
        self._pid = os.getpid()
        self._begin(*self._at)  # makes it, and counts one user: this object
        self._end(*self._at)

    def open(self) -> None:
        """Let this thread's allocations come from here."""
        self._begin(*self._at)

    def close(self) -> None:
        self._end(*self._at)
        self._release(*self._at)  # what opening it has counted

    def __del__(self) -> None:
        if hasattr(self, "_pid") and os.getpid() == self._pid and not sys.is_finalizing():  # C27
            self._release(*self._at)


class _OpenPools(threading.local):
    """Per thread: the pools of the open scopes, the innermost scope's last, and whether cuBLAS has a handle there."""

    def __init__(self) -> None:
        self.pools: list[_Pool] = []
        self.has_blas = False


class _Bytes:
    """Memory as torch takes it from others: it keeps this object, and with it the owner."""

    def __init__(self, ptr: int, nbytes: int, owner: object) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (ptr, False),
            "shape": (nbytes,),
            "strides": None,
            "typestr": "|u1",
        }
