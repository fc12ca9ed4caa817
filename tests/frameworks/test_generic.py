"""Any object that says where its device memory is can be an argument, a destination and a result of a break.

Proves what is read of ``__cuda_array_interface__`` and of DLPack, what is no array, that a break lands results in
foreign arrays of any strides and at every replay, and that a foreign result which the library is to find a place for
comes back as an `ArrayView`. On the simulator the foreign objects are over its memory; on a GPU over cupy's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from fakes import fetch, store
from support import floats, holds, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import Region
from breakgraph.frameworks.device_memory import DeviceMemory
from breakgraph.frameworks.dlpack import dlpack_region, on_cuda_device
from breakgraph.frameworks.dtypes import dtype_name, named_dtype
from breakgraph.frameworks.generic import ArrayView, GenericFramework
from breakgraph.frameworks.runs import copy_runs, zero_runs


class Foreign:
    """An array of a library that nobody has told of."""

    def __init__(self, region: Region, owner: object) -> None:
        self.region, self.owner = region, owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        region = self.region
        return {
            "version": 3,
            "data": (region.ptr, False),
            "shape": region.shape,
            "strides": region.strides,
            "typestr": region.dtype.str,
            "stream": 1,
        }

    @classmethod
    def of(cls, array: Any) -> Foreign:
        """The memory of an array of the driver's own."""
        framework = frameworks.of(array, bg.driver.current())
        assert framework is not None
        return cls(framework.view(array), array)


class Exported:
    """The same over DLPack: the capsule is NumPy's, over memory that is said to be on a device."""

    def __init__(self, host: Any, device: tuple[int, int] = (2, 0)) -> None:
        self.host, self.device = host, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream == -1, "nothing is to be waited for"
        return self.host.__dlpack__()


class OnSim(GenericFramework):
    name, driver_name = "generic on sim", "sim"


@pytest.fixture
def generic(driver: Any) -> Any:
    """The framework that takes any array, on the driver of the test."""
    if driver.name == "cuda":
        pytest.importorskip("cupy")
        return frameworks.taking_part(driver, ["generic"])[0]
    frameworks.register(OnSim())
    return frameworks.taking_part(driver, ["generic on sim"])[0]


# --- what is read ----------------------------------------------------------------------------------------------------
F4 = np.dtype(np.float32)
INTERFACES: dict[str, tuple[dict[str, Any], Region]] = {
    "contiguous": (
        {"data": (64, False), "shape": (2, 3), "typestr": "<f4", "version": 3, "strides": None},
        Region(64, (2, 3), (12, 4), F4),
    ),
    "without strides, version 0": (
        {"data": (64, False), "shape": (2, 3), "typestr": "<f4", "version": 0},
        Region(64, (2, 3), (12, 4), F4),
    ),
    "strided": (
        {"data": (64, False), "shape": (2, 3), "typestr": "<f4", "version": 2, "strides": (4, 8)},
        Region(64, (2, 3), (4, 8), F4),
    ),
    "backwards": (
        {"data": (64, True), "shape": (2,), "typestr": "<f4", "version": 2, "strides": (-4,)},
        Region(64, (2,), (-4,), F4),
    ),
    "no elements": (
        {"data": (0, False), "shape": (0, 3), "typestr": "<f4", "version": 3, "strides": None},
        Region(0, (0, 3), (12, 4), F4),
    ),
    "no axes": (
        {"data": (64, False), "shape": (), "typestr": "|b1", "version": 3, "strides": None},
        Region(64, (), (), np.dtype(bool)),
    ),
    "raw bytes with their own description": (
        {"data": (64, False), "shape": (2,), "typestr": "|V2", "descr": [("", "|V2")], "version": 3},
        Region(64, (2,), (2,), np.dtype("V2")),
    ),
    "fields": (
        {"data": (64, False), "shape": (2,), "typestr": "|V2", "descr": [("bfloat16", "|V2")], "version": 3},
        Region(64, (2,), (2,), named_dtype("bfloat16", 2)),
    ),
}


@pytest.mark.parametrize("which", INTERFACES)
def test_an_array_lies_where_its_interface_says(which: str) -> None:
    interface, region = INTERFACES[which]
    array = SimpleNamespace(__cuda_array_interface__=interface)
    assert GenericFramework().owns(array)
    assert GenericFramework().view(array) == region


@pytest.mark.parametrize(
    "host",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.arange(12, dtype=np.uint8).reshape(3, 4)[1:, ::2],
        np.zeros((0, 3), np.complex64),
        np.ones((), np.float16),
        np.ones(3, bool),
    ],
    ids=lambda host: f"{host.dtype} {host.shape}",
)
def test_an_array_lies_where_its_dlpack_export_says(host: Any) -> None:
    found = dlpack_region(Exported(host))
    assert (found.shape, found.dtype) == (host.shape, host.dtype)
    if host.size:
        assert (found.ptr, found.bounds) == (
            host.ctypes.data,
            Region(host.ctypes.data, host.shape, host.strides, host.dtype).bounds,
        )
    assert GenericFramework().view(Exported(host)) == found


def test_an_export_of_bfloat16_keeps_its_name() -> None:
    torch = pytest.importorskip("torch")
    region = dlpack_region(Exported(torch.ones((2, 3), dtype=torch.bfloat16).T))
    assert (region.shape, region.strides, dtype_name(region.dtype)) == ((3, 2), (2, 6), "bfloat16")


class Raises:
    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("requires a gradient")


class AnythingGoes:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize(
    "thing",
    [3, "x", [1.0], {}, None, np.ones(3), np.float32(3), object, Raises(), AnythingGoes(), MagicMock(), Foreign],
    ids=lambda thing: type(thing).__name__,
)
def test_what_has_no_device_memory_is_no_array(thing: Any) -> None:
    assert not GenericFramework().owns(thing)


def test_an_export_of_host_memory_is_no_array() -> None:
    assert not on_cuda_device(np.ones(3))
    assert not on_cuda_device(Exported(np.ones(3), (1, 0)))
    assert not on_cuda_device(Exported(np.ones(3), (3, 0))), "pinned"
    assert on_cuda_device(Exported(np.ones(3), (13, 0))), "managed"


def test_names_that_numpy_does_not_know_make_dtypes_that_differ() -> None:
    bf16, fp8 = named_dtype("bfloat16", 2), named_dtype("float8_e4m3fn", 1)
    assert bf16 == named_dtype("bfloat16", 2) != np.dtype(np.float16)
    assert (bf16.itemsize, fp8.itemsize) == (2, 1)
    assert fp8 != named_dtype("float8_e5m2", 1)
    assert [dtype_name(one) for one in (bf16, fp8, np.dtype(np.float16))] == ["bfloat16", "float8_e4m3fn", "float16"]
    assert named_dtype("float32", 4) == np.float32
    assert dtype_name(np.dtype([("x", "<f4"), ("y", "<f4")])) == "void64"


# --- strided copies by the driver ----------------------------------------------------------------------------------
LAYOUTS = {
    "whole": lambda a: a,
    "rows": lambda a: a[::2],
    "columns": lambda a: a[:, ::2],
    "turned": lambda a: a.T,
    "backwards": lambda a: a[::-1],
    "one row": lambda a: a[1],
    "an element": lambda a: a[1, 2, ...],
    "nothing": lambda a: a[:0],
    "three axes": lambda a: a.reshape(2, 2, 6)[:, :, 1:3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", ["same", "contiguous"])
def test_runs_copy_what_numpy_would(driver: Any, xp: Any, layout: str, other: str) -> None:
    part, host = LAYOUTS[layout], np.arange(24, dtype=np.float32).reshape(4, 6)
    into, source = xp.zeros((4, 6), np.float32), xp.asarray(host)
    expected = np.zeros((4, 6), np.float32)
    part(expected)[...] = part(host)
    framework, stream = frameworks.of(into, driver), driver.create_stream()
    taken = part(source) if other == "same" else xp.asarray(np.ascontiguousarray(part(host)))
    driver.synchronize()
    copy_runs(driver, framework.view(part(into)), framework.view(taken), stream.handle)
    driver.synchronize()
    assert np.array_equal(into.get(), expected)
    zero_runs(driver, framework.view(part(source)), stream.handle)
    driver.synchronize()
    part(host)[...] = 0
    assert np.array_equal(source.get(), host)


def test_rows_that_lie_together_take_one_call(sim: Any, xp: Any) -> None:
    into, source = xp.zeros((4, 6), np.float32), xp.ones((4, 6), np.float32)
    view = frameworks.of(into, sim).view
    before = sim.calls["memcpy_dtod_async"]
    copy_runs(sim, view(into), view(source), 0)
    assert sim.calls["memcpy_dtod_async"] == before + 1
    copy_runs(sim, view(into[:, :2]), view(source[:, :2]), 0)
    assert sim.calls["memcpy_dtod_async"] == before + 5


def test_memory_of_the_drivers_own_is_freed_once_also_in_a_capture(sim: Any, xp: Any) -> None:
    x, out = zeros(xp), zeros(xp)
    memory: Any = DeviceMemory(sim, 100)
    ptr = memory.ptr
    with bg.capture():
        np.add(x, 1, out=out)
        del memory
        DeviceMemory(sim, 100)
    assert ptr not in sim.live()["allocation"]
    assert holds(out, 1)


# --- in captures ---------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("generic")
def test_a_foreign_array_can_be_result_and_destination_and_argument(driver: Any, xp: Any) -> None:
    x, cell, out = floats(xp, 1, 2, 3), xp.zeros((2, 3), np.float32), xp.zeros(3, np.float32)
    landing = Foreign.of(cell[:, 1:][0])
    seen: list[Any] = []

    def fn(a: Foreign) -> Foreign:
        seen.append(fetch(a.region)[:1])
        return Foreign.of(x[1:] * 10)

    with bg.capture() as graph:
        bg.break_here(fn, landing, Foreign.of(x))
        np.add(cell[0], 1, out=out)
    x.set(np.float32([4, 5, 6]))
    graph.replay()
    driver.synchronize()
    assert out.get().tolist() == [1, 51, 61]
    assert [one.tolist() for one in seen] == [[1], [4]]


@pytest.mark.usefixtures("generic")
def test_a_foreign_result_lands_in_columns_and_pads_with_zeros(driver: Any, xp: Any) -> None:
    x, table = xp.ones((3, 2), np.float32), xp.zeros((4, 6), np.float32)
    into = Foreign.of(table[:, ::3])
    with bg.capture() as graph:
        x += 1
        bg.break_here(lambda a: Foreign.of(a * 10), into, x)
    expected = np.zeros((4, 6), np.float32)
    expected[:3, ::3] = 20
    driver.synchronize()
    assert np.array_equal(table.get(), expected)
    graph.replay(valid_rows=2)
    driver.synchronize()
    expected[:3, ::3] = 30
    expected[2:, ::3] = 0
    assert np.array_equal(table.get(), expected)


@pytest.mark.usefixtures("generic")
def test_a_foreign_result_that_is_inferred_comes_back_as_a_view_that_others_can_read(driver: Any, xp: Any) -> None:
    x, out = floats(xp, 1, 2), xp.zeros(2, np.float32)
    framework = frameworks.of(x, driver)
    with bg.capture() as graph:
        y = bg.break_here(lambda a: Foreign.of(a * 10), bg.INFER, x)
        assert isinstance(y, ArrayView)
        assert (y.shape, y.dtype, y.ptr) == ((2,), np.float32, y.__cuda_array_interface__["data"][0])
        np.add(framework.over(y.region, y), 1, out=out)
    x.set(np.float32([3, 4]))
    graph.replay()
    driver.synchronize()
    assert out.get().tolist() == [31, 41]
    assert "ArrayView (2,) float32" in repr(y)


@pytest.mark.usefixtures("generic")
def test_foreign_arrays_may_be_swapped_and_overlap(driver: Any, xp: Any) -> None:
    pair = xp.asarray(np.arange(8, dtype=np.float32).reshape(2, 4))
    a, b = Foreign.of(pair[0]), Foreign.of(pair[1])
    frees = driver.calls["mem_free"] if driver.name == "sim" else 0
    bg.copy_output((a, b), (b, a))
    driver.synchronize()
    assert pair.get().tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    bg.copy_output(Foreign.of(pair[0, 1:]), Foreign.of(pair[0, :3]))
    driver.synchronize()
    assert pair.get()[0].tolist() == [4, 4, 5, 6]
    if driver.name == "sim":
        assert driver.calls["mem_free"] > frees, "what was set aside is given back"


@pytest.mark.usefixtures("generic")
def test_an_output_of_a_foreign_array_is_the_graphs_own(driver: Any, xp: Any) -> None:
    x = floats(xp, 1, 2)
    with bg.capture() as graph:
        t = x * 2
        y = graph.output(Foreign.of(t))
    refill(x, 5)
    graph.replay()
    assert fetch(y.region).tolist() == [10, 10]


def test_it_moves_no_replay_to_another_stream_and_makes_none_wait(sim: Any, xp: Any) -> None:
    frameworks.register(OnSim())
    x, out, mine = zeros(xp), zeros(xp), sim.create_stream()
    with frameworks.of(x, sim).stream_scope(mine.handle):
        sim.synchronize()
        before = sim.calls["event_record"]
        with bg.capture() as graph:
            np.add(x, 1, out=out)
        between = sim.calls["event_record"]
        refill(x, 3)
        graph.replay()
        assert holds(out, 4)
    assert between - before == 3, "in, out, and the arena's own"


def test_an_interface_survives_a_round_trip() -> None:
    framework = GenericFramework()
    for _, region in INTERFACES.values():
        made = framework.over(region)
        assert framework.view(SimpleNamespace(__cuda_array_interface__=made.__cuda_array_interface__)) == region


def test_store_and_fetch_of_these_tests_agree(sim: Any) -> None:
    memory = DeviceMemory(sim, 24)
    region = Region.contiguous_at(memory.ptr, (2, 3), F4)
    store(region, [[1, 2, 3], [4, 5, 6]])
    turned = Region(region.ptr, (3, 2), (4, 12), F4)
    assert fetch(turned).tolist() == [[1, 4], [2, 5], [3, 6]]


# --- on a GPU, what libraries export themselves --------------------------------------------------------------------
@pytest.mark.parametrize("way", ["interface", "dlpack"])
def test_arrays_of_cupy_are_read_through_what_they_export(gpu: Any, xp: Any, way: str) -> None:
    array = xp.arange(12, dtype=np.float32).reshape(3, 4)[1:, ::2]
    framework, own = GenericFramework(), frameworks.of(array, gpu)
    found = framework.view(array) if way == "interface" else dlpack_region(array)
    assert own is not None
    assert found == own.view(array)
