"""cupy's arrays as a framework. Checked against cupy 14 (memory.pyx, stream.pyx, core.pyx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from breakgraph.driver import Driver, Region, StreamHandle
from breakgraph.frameworks.base import Allocate, Array, Block, Framework
from breakgraph.frameworks.contexts import refuse_other_than_primary
from breakgraph.frameworks.cupy.arrays import import_cupy, region_of
from breakgraph.frameworks.cupy.namespace import Namespace
from breakgraph.frameworks.cupy.scopes import Scope, entered, outside

__all__ = ["CupyFramework"]


class _Pointed(NamedTuple):
    """A `Block`: bytes that cupy's own allocator gave."""

    ptr: int
    nbytes: int


class CupyFramework(Framework):
    """`breakgraph.frameworks.base.Framework` over ``cupy.ndarray``.

    Raises `BreakgraphError` where cupy is not installed, naming the extra that brings it.
    """

    name = "cupy"
    driver_name = "cuda"

    def __init__(self) -> None:
        self._cupy = cupy = import_cupy()
        self._ndarray: type = cupy.ndarray
        self._namespace = Namespace(cupy)

    def owns(self, obj: object) -> bool:
        return isinstance(obj, self._ndarray)

    def check_context(self, driver: Driver) -> None:
        refuse_other_than_primary(driver, "cupy")

    def view(self, array: Array) -> Region:
        return region_of(array)

    def address(self, array: Array, like: Region) -> int:
        same = array.shape == like.shape and array.strides == like.strides and array.dtype == like.dtype
        return array.data.ptr if same else 0

    def over(self, region: Region, owner: object = None) -> Array:
        return self._over(self._ndarray, region, owner)

    def like(self, array: Array, region: Region, owner: object = None) -> Array:
        return self._over(type(array), region, owner)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._cupy.empty(shape, dtype)

    def copy(self, dst: Array, src: Array, stream: int) -> None:
        with self.stream_scope(stream):
            dst[...] = src

    def zero(self, dst: Array, stream: int) -> None:
        with self.stream_scope(stream):
            dst.fill(0)

    def current_stream(self) -> int:
        return self._cupy.cuda.get_current_stream().ptr  # type: ignore[no-any-return]

    def stream_source(self) -> Callable[[], int | None]:
        get_current_stream = self._cupy.cuda.get_current_stream
        return lambda: get_current_stream().ptr

    def stream_scope(self, stream: int) -> AbstractContextManager[object]:
        cuda = self._cupy.cuda
        scope: AbstractContextManager[object]
        if hasattr(cuda.Stream, "from_external"):
            scope = cuda.Stream.from_external(StreamHandle(stream))
        else:
            scope = cuda.ExternalStream(stream)  # deprecated where there is the other
        return scope

    @contextmanager
    def allocator_scope(self, allocate: Allocate) -> Iterator[None]:
        cuda = self._cupy.cuda

        def malloc(nbytes: int) -> Any:  # also asked for the scratch memory of reductions and sorts, and for 0 bytes
            if not scope.is_entered:  # in a break, or where one has taken this allocator to
                return scope.before(nbytes)
            block = allocate(nbytes) if nbytes else None
            ptr, size = (block.ptr, block.nbytes) if block else (0, 0)
            return cuda.MemoryPointer(cuda.UnownedMemory(ptr, size, block, cuda.get_device_id()), 0)

        scope = Scope(cuda.get_allocator(), allocate)
        try:
            with entered(scope), cuda.using_allocator(malloc):
                yield
        finally:
            scope.end_segment()

    def outside_scope(self) -> AbstractContextManager[object]:
        return outside  # the scope's allocator goes to the one before meanwhile; to set another takes longer

    def noted_scope(self, note: Callable[[Block], object]) -> AbstractContextManager[object]:
        cuda = self._cupy.cuda
        before = cuda.get_allocator()

        def malloc(nbytes: int) -> Any:
            pointer = before(nbytes)
            if not nbytes:
                return pointer
            owner = (pointer, note(_Pointed(pointer.ptr, nbytes)))
            return cuda.MemoryPointer(cuda.UnownedMemory(pointer.ptr, nbytes, owner, cuda.get_device_id()), 0)

        return cuda.using_allocator(malloc)  # type: ignore[no-any-return]

    def namespace(self) -> ModuleType:
        return self._namespace

    def _over(self, kind: type, region: Region, owner: object) -> Array:
        cuda = self._cupy.cuda
        low, high = region.bounds
        memory = cuda.UnownedMemory(low, high - low, owner, cuda.get_device_id())
        pointer = cuda.MemoryPointer(memory, region.ptr - low)
        return kind(region.shape, region.dtype, pointer, region.strides)
