"""Every framework keeps the same protocol: views, arrays over given memory, copies, streams, allocators.

The same tests run over the simulator's arrays and, where there is a GPU, over cupy's.
"""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from breakgraph import frameworks
from breakgraph.driver import Region

FLOAT = np.dtype(np.float32)


@dataclass
class Slab:
    """Hands out parts of one array's memory, and remembers what is still held."""

    framework: Any
    array: Any
    used: int = 0
    sizes: list[int] = field(default_factory=list)
    held: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    def __call__(self, nbytes: int) -> Any:
        block = _Block(self.framework.view(self.array).ptr + self.used, nbytes)
        self.used += -(-nbytes // 512) * 512
        self.sizes.append(nbytes)
        self.held.add(block)
        return block

    def holds(self, array: Any) -> bool:
        whole = self.framework.view(self.array)
        return whole.ptr <= self.framework.view(array).ptr < whole.ptr + whole.nbytes


@dataclass(eq=False)
class _Block:
    ptr: int
    nbytes: int


@pytest.fixture
def framework(driver: Any, xp: Any) -> Any:
    """The simulator's arrays on sim, cupy on cuda."""
    found = frameworks.of(xp.zeros(1), driver)
    assert found is not None
    return found


@pytest.fixture
def slab(framework: Any, xp: Any) -> Slab:
    return Slab(framework, xp.zeros(1 << 20, np.uint8))


def values(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_only_its_own_arrays_are_owned(framework: Any, xp: Any) -> None:
    assert framework.owns(xp.zeros(3))
    assert not framework.owns(np.zeros(3))
    assert not framework.owns(3.0)
    assert not framework.owns(None)


@pytest.mark.parametrize(
    "index", [(...,), (slice(1, 3),), (slice(None), slice(None, None, 2)), (slice(None, None, -1),), (2,)], ids=str
)
def test_a_view_tells_address_shape_strides_and_dtype(framework: Any, xp: Any, index: tuple[Any, ...]) -> None:
    host = values(4, 6)
    array = xp.asarray(host)
    region = framework.view(array[index])
    assert region.ptr - framework.view(array).ptr == host[index].ctypes.data - host.ctypes.data
    assert (region.shape, region.strides, region.dtype) == (host[index].shape, host[index].strides, host.dtype)
    assert region.nbytes == host[index].nbytes


def test_an_array_over_memory_reads_and_writes_it_in_place(framework: Any, xp: Any) -> None:
    array = xp.asarray(values(4, 6))
    turned = framework.over(framework.view(array.T))
    assert np.array_equal(turned.get(), values(4, 6).T)
    backwards = framework.over(framework.view(array[::-1]))
    assert np.array_equal(backwards.get(), values(4, 6)[::-1])
    turned[0] = 9
    assert np.array_equal(array.get()[:, 0], [9] * 4)


def test_an_array_over_no_bytes_has_its_shape(framework: Any, xp: Any) -> None:
    empty = framework.over(Region.contiguous_at(0, (0, 3), FLOAT))
    assert (empty.shape, empty.size, empty.get().shape) == ((0, 3), 0, (0, 3))


def test_an_array_over_memory_keeps_its_owner_and_nothing_else(framework: Any, xp: Any) -> None:
    array = xp.zeros(4, np.float32)
    owner = _Block(0, 0)
    over = framework.over(framework.view(array), owner)
    part = over[1:]
    alive, source = weakref.ref(owner), weakref.ref(array)
    del owner, array
    gc.collect()
    assert source() is None
    assert alive() is not None
    del over
    gc.collect()
    assert alive() is not None, "a view keeps the owner too"
    del part
    gc.collect()
    assert alive() is None


def test_like_makes_an_array_of_the_same_kind(framework: Any, xp: Any) -> None:
    array = xp.asarray(values(3))
    like = framework.like(array, framework.view(array[1:]), array)
    assert type(like) is type(array)
    assert np.array_equal(like.get(), [1, 2])


@pytest.mark.parametrize("dst", ["whole", "columns", "turned"])
@pytest.mark.parametrize("src", ["whole", "columns", "turned"])
def test_copies_go_between_any_strides(framework: Any, driver: Any, xp: Any, dst: str, src: str) -> None:
    def laid_out(how: str, host: Any) -> Any:
        if how == "whole":
            return xp.asarray(host)
        if how == "turned":
            return xp.asarray(np.ascontiguousarray(host.T)).T
        wide = xp.zeros((4, 12), np.float32)
        wide[:, ::2] = xp.asarray(host)
        return wide[:, ::2]

    into, source = laid_out(dst, np.zeros((4, 6), np.float32)), laid_out(src, values(4, 6))
    driver.synchronize()
    stream = driver.create_stream()
    framework.copy(into, source, stream.handle)
    driver.stream_synchronize(stream.handle)
    assert np.array_equal(into.get(), values(4, 6))


def test_zero_fills_a_part_of_any_strides_and_no_more(framework: Any, driver: Any, xp: Any) -> None:
    array = xp.asarray(values(4, 6))
    driver.synchronize()
    stream = driver.create_stream()
    framework.zero(array[1:, ::3], stream.handle)
    driver.stream_synchronize(stream.handle)
    expected = values(4, 6)
    expected[1:, ::3] = 0
    assert np.array_equal(array.get(), expected)


def test_stream_scopes_nest_and_end_with_an_exception(framework: Any, driver: Any, xp: Any) -> None:
    before = framework.current_stream()
    first, second = driver.create_stream(), driver.create_stream()
    with framework.stream_scope(first.handle):
        assert framework.current_stream() == first.handle
        with suppress(KeyError), framework.stream_scope(second.handle):
            assert framework.current_stream() == second.handle
            raise KeyError
        assert framework.current_stream() == first.handle
        with framework.stream_scope(0):
            assert framework.current_stream() == 0
    assert framework.current_stream() == before


def test_work_goes_to_the_current_stream(framework: Any, driver: Any, xp: Any) -> None:
    array = xp.zeros(4, np.float32)
    driver.synchronize()
    stream = driver.create_stream()
    with framework.stream_scope(stream.handle):
        array += 1
    driver.stream_synchronize(stream.handle)
    assert np.array_equal(array.get(), [1] * 4)


def test_streams_and_allocators_of_threads_are_their_own(framework: Any, driver: Any, xp: Any, slab: Slab) -> None:
    seen: dict[str, Any] = {}

    def look() -> None:
        driver.ensure_context()
        seen["stream"] = framework.current_stream()
        array = xp.ones(4, np.float32)
        seen["values"], seen["in slab"] = array.get(), slab.holds(array)

    stream = driver.create_stream()
    with framework.stream_scope(stream.handle), framework.allocator_scope(slab):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen["stream"] != stream.handle
    assert not seen["in slab"]
    assert np.array_equal(seen["values"], [1] * 4)


def test_an_allocator_scope_serves_every_allocation_inside_it(framework: Any, xp: Any, slab: Slab) -> None:
    outside = xp.ones(8, np.float32)
    with framework.allocator_scope(slab):
        inside = [outside + 1, xp.zeros((2, 2)), outside.sum(), outside[::2].copy(), xp.concatenate([outside, outside])]
    after = outside * 2
    assert all(slab.holds(array) for array in inside)
    assert not slab.holds(outside)
    assert not slab.holds(after)
    assert [float(array.sum()) for array in inside] == [16, 0, 8, 4, 16]


def test_an_array_of_no_bytes_needs_no_block(framework: Any, xp: Any, slab: Slab) -> None:
    with framework.allocator_scope(slab):
        empty = xp.zeros((0, 5), np.float32)
    assert empty.shape == (0, 5)
    assert 0 not in slab.sizes


def test_blocks_live_as_long_as_the_arrays_over_them(framework: Any, xp: Any, slab: Slab) -> None:
    with framework.allocator_scope(slab):
        array = xp.zeros((4, 4), np.float32)
        part = array[1]
    assert len(slab.held) == 1
    del array
    gc.collect()
    assert len(slab.held) == 1
    del part
    gc.collect()
    assert len(slab.held) == 0


def test_an_allocator_that_refuses_is_heard(framework: Any, xp: Any) -> None:
    def refuse(nbytes: int) -> Any:
        raise MemoryError(f"{nbytes} bytes")

    with pytest.raises(MemoryError, match="64 bytes"), framework.allocator_scope(refuse):
        xp.empty(16, np.float32)
    assert xp.ones(4, np.float32).get().sum() == 4


def test_outside_an_allocator_scope_means_where_memory_came_from_before_it(framework: Any, xp: Any, slab: Slab) -> None:
    other = Slab(framework, xp.zeros(1 << 20, np.uint8))
    with framework.allocator_scope(slab):
        with framework.outside_scope():
            plain = xp.ones(4, np.float32)
            with framework.allocator_scope(other), framework.outside_scope():
                plainer = xp.ones(4, np.float32)
        with framework.allocator_scope(other), framework.outside_scope():
            in_slab = xp.ones(4, np.float32)
        again = xp.ones(4, np.float32)
    assert [slab.holds(array) for array in (plain, plainer, in_slab, again)] == [False, False, True, True]
    assert not any(other.holds(array) for array in (plain, plainer, in_slab, again))


def test_its_context_is_checked_without_changing_it(framework: Any, driver: Any) -> None:
    driver.ensure_context()
    before = driver.ctx_get_current()
    framework.check_context(driver)
    assert driver.ctx_get_current() == before


def test_a_context_that_is_not_primary_is_refused_by_cupy_alone(framework: Any, driver: Any) -> None:
    driver.ensure_context()
    context = driver.ctx_create(0)
    try:
        if framework.name == "cupy":
            from breakgraph.errors import CaptureStateError

            with pytest.raises(CaptureStateError, match="not the primary one"):
                framework.check_context(driver)
        else:
            framework.check_context(driver)
    finally:
        driver.ctx_destroy(context)


def test_the_namespace_makes_its_arrays(framework: Any, xp: Any) -> None:
    assert framework.namespace() is xp
    assert framework.owns(xp.zeros((2, 3), xp.float32))
    assert framework.owns(np.add(xp.ones(3), 1))
    with pytest.raises(AttributeError):
        xp.no_such_function  # noqa: B018
