"""numba-cuda takes part: its arrays, and a stop to its freeing of memory while a segment is open.

It has no current stream and takes no allocator for a while, so kernels name ``bg.current_stream()`` and arrays are
made outside segments; what happens otherwise is shown on a GPU. Without one, a stand-in over the simulator's memory.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import DeviceNDArray, FakeNumba, fetch, store
from support import assert_next_capture_works, holds, nothing_captured, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import Region
from breakgraph.errors import CaptureStateError
from breakgraph.frameworks.numba import NumbaFramework

pytestmark = pytest.mark.libraries("numba")


class OnSim(NumbaFramework):
    driver_name = "sim"

    def check_context(self, driver: Any) -> None:
        """Any simulated context will do."""


@pytest.fixture
def fake(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNumba]:
    """A stand-in for ``numba.cuda`` on the simulator."""
    module = FakeNumba()
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(cuda=module))
    monkeypatch.setattr(frameworks, "_KNOWN", {"sim": frameworks._KNOWN["sim"]})
    frameworks.register(OnSim())
    yield module
    assert module.deferred == 0


def array(fake: FakeNumba, values: Any) -> DeviceNDArray:
    host = np.asarray(values, np.float32)
    made = fake.device_array(host.shape, host.dtype)
    store(region(made), host)
    return made


def region(made: Any) -> Region:
    framework = frameworks.of(made, bg.driver.current())
    assert framework is not None
    return framework.view(made)


@nothing_captured
def test_an_array_that_a_break_returns_comes_back_as_one_in_the_arena(fake: FakeNumba) -> None:
    x, arena = array(fake, [1, 2, 3]), bg.Arena()
    with bg.capture(arena=arena) as graph:
        y = bg.break_here(lambda a: array(fake, fetch(region(a)) * 10), bg.INFER, x)
    assert type(y) is DeviceNDArray
    assert arena.used >= 12
    store(region(x), [4, 5, 6])
    graph.replay()
    assert fetch(region(y)).tolist() == [40, 50, 60]
    used = arena.used
    del y
    gc.collect()
    assert arena.used < used, "the array owned its block"
    graph.close()


@nothing_captured
def test_a_result_lands_in_columns_and_rows_that_pad_are_zeroed(fake: FakeNumba) -> None:
    table, x = array(fake, np.full((3, 4), 7)), array(fake, [[1, 2], [3, 4], [5, 6]])
    whole = region(table)
    columns = DeviceNDArray(Region(whole.ptr + 4, (3, 2), (16, 8), whole.dtype), table)
    with bg.capture() as graph:
        bg.break_here(lambda: x, columns)
    graph.replay(valid_rows=2)
    assert fetch(whole).tolist() == [[7, 1, 7, 2], [7, 3, 7, 4], [7, 0, 7, 0]]
    graph.close()


def test_nothing_is_freed_while_a_capture_is_open(fake: FakeNumba, xp: Any) -> None:
    x, out, seen = zeros(xp), zeros(xp), []
    with bg.capture():
        seen.append(fake.deferred)
        bg.break_here(lambda: seen.append(fake.deferred), bg.IN_PLACE)
        np.add(x, 1, out=out)
    assert seen == [1, 1]
    with pytest.raises(KeyError), bg.capture():
        raise KeyError
    assert fake.deferred == 0


def test_its_default_stream_is_waited_for_and_moves_no_replay(fake: FakeNumba, sim: Any, xp: Any) -> None:
    """Kernels that name no stream go there, so a capture comes after them; a replay goes where others are."""
    x, out, mine = zeros(xp), zeros(xp), sim.create_stream()
    mark = len(sim.log)
    with frameworks.of(x, sim).stream_scope(mine.handle):
        with bg.capture() as graph:
            np.add(x, 1, out=out)
        waited = {entry.args[1] for entry in list(sim.log)[mark:] if entry.name == "event_record"}
        assert {sim.resolve_stream(0), mine.handle} <= waited
        refill(x, 3)
        graph.replay()
        assert holds(out, 4)


@nothing_captured
def test_without_another_library_a_replay_runs_on_its_default_stream(fake: FakeNumba, sim: Any) -> None:
    x, into, seen = array(fake, [1]), array(fake, [0]), []
    with bg.capture(frameworks="numba") as graph:
        bg.break_here(lambda a: seen.append(int(bg.current_stream())) or a, into, x)
    graph.replay()
    assert seen[1] == sim.resolve_stream(0)
    graph.close()


def test_an_allocation_in_a_segment_is_refused_by_the_driver(fake: FakeNumba, sim: Any, xp: Any) -> None:
    with pytest.raises(bg.errors.CaptureUnsupported), bg.capture() as graph:
        fake.device_array((4,), np.float32)
    assert graph.state == "failed"
    assert_next_capture_works(xp)


def test_an_array_over_memory_knows_where_it_lies(fake: FakeNumba) -> None:
    framework, owner = OnSim(), object()
    for one in (
        Region(64, (2, 3), (4, 8), np.dtype(np.float32)),
        Region.contiguous_at(0, (0, 3), np.dtype(np.int64)),
        Region.contiguous_at(64, (2,), np.dtype([("bfloat16", "V2")])),
    ):
        made = framework.over(one, owner)
        assert (framework.view(made), made.owner) == (one, owner)


# --- numba itself, on a GPU ------------------------------------------------------------------------------------------
@pytest.fixture
def cuda(gpu: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from numba import cuda
        except Exception as error:  # with a NumPy that is too new for it
            pytest.skip(f"numba cannot be imported: {error!r}")
        if not hasattr(cuda, "from_cuda_array_interface") or not cuda.is_available():
            pytest.skip("this numba finds no GPU")
    return cuda


@pytest.fixture
def scale(cuda: Any) -> Any:
    """A function that launches out[i] = a[i] * factor + 1 on the current stream."""

    @cuda.jit
    def kernel(out: Any, a: Any, factor: Any) -> None:
        at = cuda.grid(1)
        if at < out.shape[0]:
            out[at] = a[at] * factor + 1

    def launch(out: Any, a: Any, factor: float) -> Any:
        stream = cuda.external_stream(int(bg.current_stream())) if bg.current_stream() is not None else 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such a small grid is slow
            kernel[1, 32, stream](out, a, np.float32(factor))
        return out

    x = cuda.to_device(np.zeros(4, np.float32))
    launch(x, x, 1)  # compiled and loaded before
    cuda.synchronize()
    return launch


def device(cuda: Any, *values: float) -> Any:
    return cuda.to_device(np.asarray(values, np.float32))


def on_host(cuda: Any, array: Any) -> Any:
    """The values, once the current stream has come to them. The default stream does not wait for it."""
    stream = cuda.external_stream(int(bg.current_stream() or 0))
    host = array.copy_to_host(stream=stream)
    stream.synchronize()
    return host


def test_kernels_of_numba_are_captured_and_its_arrays_come_back(cuda: Any, scale: Any, gpu: Any) -> None:
    x, t, out = device(cuda, 1, 2), device(cuda, 0, 0), device(cuda, 0, 0)
    with bg.capture() as graph:
        scale(t, x, 2)
        y = bg.break_here(lambda a: device(cuda, *(on_host(cuda, a) * 10)), bg.INFER, t)
        assert type(y) is type(x)
        scale(out, y, 1)
    assert [one.nodes for one in graph.segments] == [1, 1]
    x.copy_to_device(np.float32([3, 4]))
    gpu.synchronize()
    graph.replay(stream=0)
    gpu.synchronize()
    assert out.copy_to_host().tolist() == [71, 91]
    graph.close()


def test_a_kernel_of_numba_that_names_no_stream_is_not_captured(
    cuda: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs at once, on the default stream: the one thing to know of numba in captures."""

    @cuda.jit
    def add_one(a: Any) -> None:
        a[0] += 1

    x = device(cuda, 0)
    monkeypatch.setattr(cuda.config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0)
    add_one[1, 1](x)
    cuda.synchronize()
    with pytest.warns(bg.errors.BreakgraphWarning, match="recorded no work"), bg.capture() as graph:
        add_one[1, 1](x)
    gpu.synchronize()
    assert x.copy_to_host().tolist() == [2]
    graph.replay(stream=0)
    gpu.synchronize()
    assert x.copy_to_host().tolist() == [2]
    graph.close()


@nothing_captured
def test_an_array_that_is_made_in_a_segment_fails_the_capture_and_the_next_one_works(
    cuda: Any, gpu: Any, xp: Any
) -> None:
    with pytest.raises(Exception, match=r"(?i)900|capture") as raised, bg.capture() as graph:
        cuda.device_array(4, np.float32)
    assert "numba" in type(raised.value).__module__
    assert graph.state == "failed"
    assert_next_capture_works(xp)
    with bg.capture() as graph:
        y = bg.break_here(lambda: device(cuda, 1, 2), bg.INFER)
    graph.replay(stream=0)
    gpu.synchronize()
    assert y.copy_to_host().tolist() == [1, 2]
    graph.close()


def test_arrays_of_numba_may_die_in_a_segment(cuda: Any, scale: Any, gpu: Any) -> None:
    x, out = device(cuda, 1, 2), device(cuda, 0, 0)
    dying = [device(cuda, 1, 2) for _ in range(50)]  # more than numba keeps for later
    with bg.capture() as graph:
        scale(out, x, 1)
        while dying:
            del dying[-1]
        gc.collect()
        scale(out, out, 1)
    gpu.synchronize()
    assert graph.segments[0].nodes == 2
    assert out.copy_to_host().tolist() == [3, 4]
    graph.close()


@nothing_captured
def test_strided_arrays_of_numba_are_results_and_destinations(cuda: Any, gpu: Any) -> None:
    table = cuda.to_device(np.zeros((3, 4), np.float32))
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    with bg.capture() as graph:
        bg.break_here(lambda: cuda.to_device(np.asfortranarray(host.T)), table[:, ::2])
    gpu.synchronize()
    assert table.copy_to_host()[:, ::2].tolist() == host.T.tolist()
    graph.replay(stream=0, valid_rows=1)
    gpu.synchronize()
    assert table.copy_to_host()[:, ::2].tolist() == [[0, 3], [0, 0], [0, 0]]
    graph.close()


def test_a_stream_of_numba_may_be_captured_and_replayed_on(cuda: Any, scale: Any, gpu: Any) -> None:
    x, out, mine = device(cuda, 1, 2), device(cuda, 0, 0), cuda.stream()
    gpu.synchronize()
    with bg.capture(stream=mine) as graph:
        scale(out, x, 3)
    graph.replay(stream=mine)
    mine.synchronize()
    assert out.copy_to_host().tolist() == [4, 7]
    graph.close()


def test_numba_on_a_context_that_is_not_primary_is_refused(cuda: Any, gpu: Any) -> None:
    gpu.ensure_context()
    context = gpu.ctx_create(0)
    try:
        with pytest.raises(CaptureStateError, match="not the primary one"):
            NumbaFramework().check_context(gpu)
    finally:
        gpu.ctx_destroy(context)
