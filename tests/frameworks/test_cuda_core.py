"""cuda.core needs little: its streams say what they are, and its buffers are arrays of bytes.

Proves that a buffer is an argument, a destination and a result, and comes back as one; and on a GPU that streams,
kernels and graphs of cuda.core work with captures by the protocols alone.
"""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import Buffer, fetch, store
from support import holds, nothing_captured, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import Region
from breakgraph.errors import ShapeMismatch
from breakgraph.frameworks.cuda_core import CudaCoreFramework
from breakgraph.frameworks.device_memory import DeviceMemory

pytestmark = pytest.mark.libraries("cuda.core")

BYTE = np.dtype(np.uint8)


class OnSim(CudaCoreFramework):
    driver_name = "sim"


@pytest.fixture
def fake(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ``cuda.core`` on the simulator."""
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(core=SimpleNamespace(Buffer=Buffer)))
    monkeypatch.setitem(sys.modules, "cuda.core", SimpleNamespace(Buffer=Buffer))
    monkeypatch.setattr(frameworks, "_KNOWN", {"sim": frameworks._KNOWN["sim"]})
    frameworks.register(OnSim())


def buffer(*values: int) -> Buffer:
    memory = DeviceMemory(bg.driver.current(), len(values))
    store(Region.contiguous_at(memory.ptr, (len(values),), BYTE), values)
    return Buffer(memory.ptr, len(values), memory)


def bytes_of(one: Any) -> list[int]:
    framework = frameworks.of(one, bg.driver.current())
    assert framework is not None
    return list(fetch(framework.view(one)))


@nothing_captured
@pytest.mark.usefixtures("fake")
def test_a_buffer_that_a_break_returns_comes_back_as_one_in_the_arena() -> None:
    x, arena = buffer(1, 2, 3), bg.Arena()
    with bg.capture(arena=arena) as graph:
        y = bg.break_here(lambda a: buffer(*(10 * one for one in bytes_of(a))), bg.INFER, x)
    assert type(y) is Buffer
    store(Region.contiguous_at(x.handle or 0, (3,), BYTE), [4, 5, 6])
    graph.replay()
    assert bytes_of(y) == [40, 50, 60]
    used = arena.used
    del y
    gc.collect()
    assert arena.used < used, "the buffer owned its block"
    graph.close()


@nothing_captured
@pytest.mark.usefixtures("fake")
def test_a_shorter_buffer_fills_the_leading_bytes_and_a_longer_one_is_refused() -> None:
    into = buffer(9, 9, 9, 9)
    with bg.capture() as graph:
        bg.break_here(lambda: buffer(1, 2), into)
    assert bytes_of(into) == [1, 2, 9, 9]
    graph.close()
    with pytest.raises(ShapeMismatch):
        bg.copy_output(into, buffer(1, 2, 3, 4, 5))


@pytest.mark.usefixtures("fake")
def test_a_closed_buffer_has_no_bytes() -> None:
    one = buffer(1)
    one.handle, one.size = None, 0
    framework = OnSim()
    assert framework.view(one) == Region.contiguous_at(0, (0,), BYTE)
    assert framework.owns(one)


# --- cuda.core itself, on a GPU --------------------------------------------------------------------------------------
@pytest.fixture
def core(gpu: Any) -> Any:
    """The module, with the current device set, as cuda.core asks for."""
    module = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    if not hasattr(module, "Buffer"):
        pytest.skip("this cuda.core has everything in cuda.core.experimental")
    gpu.synchronize()
    module.Device().set_current()
    return module


def current(core: Any) -> Any:
    """The stream that work belongs on now, as cuda.core's."""
    return core.Stream.from_handle(int(bg.current_stream() or 0))


KERNEL = 'extern "C" __global__ void add(float *a, float by) { a[threadIdx.x] += by; }'


@pytest.fixture
def add(core: Any) -> Any:
    """A function that launches a[i] += by over 4 floats, through cuda.core."""
    device = core.Device()
    options = core.ProgramOptions(arch=f"sm_{''.join(map(str, device.compute_capability))}")
    kernel = core.Program(KERNEL, "c++", options).compile("cubin").get_kernel("add")

    def launch(array: Any, by: float, stream: Any = None) -> None:
        config = core.LaunchConfig(grid=1, block=4)
        core.launch(stream or current(core), config, kernel, array.data.ptr, np.float32(by))

    return launch


def test_kernels_of_cuda_core_are_captured(core: Any, add: Any, gpu: Any, xp: Any) -> None:
    x = zeros(xp)
    gpu.synchronize()
    with bg.capture() as graph:
        add(x, 1)
        bg.break_here(lambda a: add(a, 10), bg.IN_PLACE, x)
        add(x, 100)
    assert [one.nodes for one in graph.segments] == [1, 1]
    graph.replay()
    gpu.synchronize()
    assert holds(x, 222)
    graph.close()


def test_a_stream_of_cuda_core_may_be_captured_and_replayed_on(core: Any, add: Any, gpu: Any, xp: Any) -> None:
    x, mine = zeros(xp), core.Device().create_stream()
    gpu.synchronize()
    with bg.capture(stream=mine) as graph:
        add(x, 1, mine)
    assert int(graph.capture_stream) == int(mine.handle)
    graph.replay(stream=mine)
    mine.sync()
    assert holds(x, 2)
    graph.close()


def test_the_stream_of_a_break_is_taken_by_cuda_core_as_it_is(core: Any, add: Any, gpu: Any, xp: Any) -> None:
    """By ``__cuda_stream__``: nothing has to be converted."""
    x, out = zeros(xp), zeros(xp)
    gpu.synchronize()
    with bg.capture() as graph:
        np.add(x, 1, out=out)
        bg.break_here(lambda a: add(a, 10, core.Device().create_stream(bg.current_stream())), bg.IN_PLACE, out)
    gpu.synchronize()
    assert holds(out, 11)
    graph.close()


def test_buffers_of_cuda_core_are_results_and_destinations(core: Any, gpu: Any, xp: Any) -> None:
    device = core.Device()
    stream = device.create_stream()
    x, into = (device.allocate(16, stream=stream) for _ in range(2))
    stream.sync()
    host = xp.zeros(16, np.uint8)

    def fill(value: int) -> Any:
        x.fill(value, stream=current(core))
        return x

    with bg.capture() as graph:
        y = bg.break_here(lambda: fill(7), bg.INFER)
        bg.break_here(lambda: fill(9), into)
        bg.break_here(lambda: y, host)
        np.add(host, 1, out=host)
    assert type(y) is core.Buffer
    gpu.synchronize()
    assert holds(host, 8)
    gpu.memset_d8(int(y.handle), 0, 16)
    graph.replay()
    gpu.synchronize()
    assert holds(host, 8)
    assert bytes_of(into) == [9] * 16
    graph.close()


def test_a_graph_of_cuda_core_is_launched_in_a_break_and_refused_in_a_segment(
    core: Any, add: Any, gpu: Any, xp: Any
) -> None:
    x, device = zeros(xp), core.Device()
    gpu.synchronize()
    builder = device.create_graph_builder().begin_building()
    add(x, 5, builder)
    theirs = builder.end_building().complete()
    builder.close()
    with bg.capture() as graph:
        add(x, 1)
        bg.break_here(lambda a: theirs.launch(current(core)), bg.IN_PLACE, x)
    graph.replay()
    gpu.synchronize()
    assert holds(x, 12)
    graph.close()
    with pytest.raises(Exception, match=r"(?i)captur") as raised, bg.capture() as failed:
        theirs.launch(current(core))
    assert failed.state == "failed"
    assert "CAPTURE" in str(raised.value).upper()
    refill(x, 0)
    with bg.capture() as graph:
        add(x, 1)
    gpu.synchronize()
    assert holds(x, 1)
    graph.close()
