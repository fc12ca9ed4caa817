"""What is asked of cupy, on a stand-in that answers as cupy 14 does where no GPU is needed: pointers and allocators.

`test_framework_protocol` holds the same framework to its protocol on a GPU.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from breakgraph.driver import Region
from breakgraph.frameworks.cupy import CupyFramework


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        if device_id < 0:
            raise RuntimeError("UnownedMemory requires explicit device ID for a null pointer.")
        self.ptr, self.size, self.owner = ptr, size, owner


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        assert mem.ptr != 0 or offset == 0  # as cupy asserts
        self.mem, self.ptr = mem, mem.ptr + offset


class Cuda(SimpleNamespace):
    """Allocators as in cupy/cuda/memory.pyx: a thread's own before the global one."""

    UnownedMemory, MemoryPointer = UnownedMemory, MemoryPointer
    own: Any = None

    @staticmethod
    def get_device_id() -> int:
        return 0

    def get_allocator(self) -> Any:
        return self.own or self.pool

    @staticmethod
    def pool(nbytes: int) -> Any:
        return "the pool"

    @contextmanager
    def using_allocator(self, allocator: Any) -> Any:
        before, self.own = self.own, allocator
        try:
            yield
        finally:
            self.own = before


class ndarray:  # noqa: N801 - cupy's name
    def __init__(self, shape: Any, dtype: Any, memptr: MemoryPointer, strides: Any) -> None:
        self.shape, self.dtype, self.data, self.strides = shape, dtype, memptr, strides


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    module = ModuleType("cupy")
    module.ndarray = ndarray  # type: ignore[attr-defined]
    module.cuda = Cuda()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    found: Cuda = module.cuda  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("strides", [(24, 4), (-24, 4), (24, -4), (0, 4), (4, 24)], ids=str)
def test_the_memory_of_an_array_over_a_region_spans_its_bytes(cuda: Cuda, strides: tuple[int, int]) -> None:
    region = Region(0x1000, (3, 5), strides, np.dtype(np.float32))
    owner = object()
    framework = CupyFramework()
    array = framework.over(region, owner)
    assert framework.view(array) == region
    memory = array.data.mem
    assert (memory.ptr, memory.ptr + memory.size) == region.bounds
    assert memory.owner is owner


def test_like_keeps_the_subclass(cuda: Cuda) -> None:
    class Marked(ndarray):
        pass

    region = Region.contiguous_at(0x1000, (4,), np.dtype(np.float32))
    framework = CupyFramework()
    marked = Marked(region.shape, region.dtype, framework.over(region).data, region.strides)
    assert type(framework.like(marked, region.rows(1))) is Marked


def test_an_array_over_no_bytes_has_a_null_pointer(cuda: Cuda) -> None:
    array = CupyFramework().over(Region.contiguous_at(0, (0, 3), np.dtype(np.float32)))
    assert (array.data.ptr, array.shape) == (0, (0, 3))


def test_the_allocator_keeps_its_block_in_the_memory_and_asks_for_no_empty_one(cuda: Cuda) -> None:
    blocks = []

    def allocate(nbytes: int) -> Any:
        blocks.append(SimpleNamespace(ptr=0x2000, nbytes=512))
        return blocks[-1]

    with CupyFramework().allocator_scope(allocate):
        pointer, empty = cuda.get_allocator()(100), cuda.get_allocator()(0)
    assert (pointer.ptr, pointer.mem.size) == (0x2000, 512)
    assert pointer.mem.owner is blocks[0]
    assert empty.ptr == 0
    assert len(blocks) == 1


def test_a_stream_is_taken_by_the_stream_protocol_where_cupy_knows_it(cuda: Cuda) -> None:
    """Newer versions warn of the older way, and the suite makes errors of warnings."""
    framework = CupyFramework()
    cuda.ExternalStream = lambda handle: ("old", handle)
    cuda.Stream = SimpleNamespace(from_external=lambda stream: ("new", stream.__cuda_stream__()))
    assert framework.stream_scope(7) == ("new", (0, 7))
    cuda.Stream = SimpleNamespace()
    assert framework.stream_scope(7) == ("old", 7)


def test_scopes_give_allocators_back_in_order(cuda: Cuda) -> None:
    framework = CupyFramework()

    def allocated() -> Any:
        pointer = cuda.get_allocator()(8)
        return pointer if pointer == "the pool" else pointer.ptr

    def gives(ptr: int) -> Any:
        return framework.allocator_scope(lambda nbytes: SimpleNamespace(ptr=ptr, nbytes=nbytes))

    with gives(0x2000):
        assert allocated() == 0x2000
        first = cuda.get_allocator()
        with framework.outside_scope():
            assert allocated() == "the pool"
            with gives(0x4000):
                assert allocated() == 0x4000
                with framework.outside_scope():
                    assert allocated() == "the pool"
        with suppress(KeyError), gives(0x4000), framework.outside_scope():
            assert allocated() == 0x2000
            raise KeyError
        assert allocated() == 0x2000
    assert cuda.own is None
    assert first(8) == "the pool"  # whoever has kept it
