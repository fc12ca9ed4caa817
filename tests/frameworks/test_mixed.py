"""Every library in one capture and one segment, and each result comes back as the type that the break returned.

On a GPU: cupy, torch, numba, cuda.core, Triton and a library that nobody knows hand arrays to each other without a
copy, inside segments and through a break, and a replay gives what NumPy does. On the simulator: the same round through
a break with stand-ins, and a destination of each kind for a result of each kind.
"""

from __future__ import annotations

import importlib
import sys
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import Buffer, DeviceNDArray, FakeNumba, FakeTorch, Tensor, fetch, store
from support import floats, nothing_captured, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import Region
from breakgraph.driver.api import CaptureStatus
from breakgraph.frameworks.cuda_core import CudaCoreFramework
from breakgraph.frameworks.device_memory import DeviceMemory
from breakgraph.frameworks.generic import ArrayView, GenericFramework
from breakgraph.frameworks.numba import NumbaFramework
from breakgraph.frameworks.torch import TorchFramework

pytestmark = pytest.mark.libraries("torch", "numba", "cuda.core")


class Foreign:
    """An array of a library that nobody has told of."""

    def __init__(self, region: Region, owner: object = None) -> None:
        self.region, self._owner = region, owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        region = self.region
        return {
            "version": 2,
            "data": (region.ptr, False),
            "shape": region.shape,
            "strides": region.strides,
            "typestr": region.dtype.str,
        }


def region(array: Any) -> Region:
    framework = frameworks.of(array, bg.driver.current())
    assert framework is not None
    return framework.view(array)


# --- stand-ins on the simulator --------------------------------------------------------------------------------------
@pytest.fixture
def makers(sim: Any, xp: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """By library: from values to one of its arrays, of float32 (bytes for cuda.core)."""
    torch, numba, core = FakeTorch(), FakeNumba(), SimpleNamespace(Buffer=Buffer)
    for name, module in {
        "torch": torch,
        "numba": SimpleNamespace(cuda=numba),
        "cuda": SimpleNamespace(core=core),
        "cuda.core": core,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(frameworks, "_KNOWN", {"sim": frameworks._KNOWN["sim"]})
    any_context = {"check_context": lambda self, driver: None}
    for kind in (GenericFramework, CudaCoreFramework, NumbaFramework, TorchFramework):  # asked in reverse
        frameworks.register(type("OnSim", (kind,), {"driver_name": "sim", **any_context})())

    def filled(made: Any, values: Any) -> Any:
        store(region(made), values)
        return made

    def foreign(values: Any) -> Foreign:
        memory = DeviceMemory(sim, 4 * len(values))
        return filled(Foreign(Region.contiguous_at(memory.ptr, (len(values),), np.dtype(np.float32)), memory), values)

    return {
        "sim": lambda values: floats(xp, *values),
        "torch": lambda values: filled(
            torch.empty((len(values),), dtype=torch.float32, device="cuda:0"), np.asarray(values, np.float32)
        ),
        "numba": lambda values: filled(numba.device_array((len(values),), np.float32), values),
        "generic": foreign,
    }


KINDS = ("sim", "torch", "numba", "generic")


@nothing_captured
def test_a_result_of_every_library_comes_back_as_its_own_type(makers: dict[str, Any]) -> None:
    x = makers["sim"]([1, 2])

    def fn(a: Any) -> Any:
        return {kind: makers[kind](a.get() * 10) for kind in KINDS}

    with bg.capture() as graph:
        y = bg.break_here(fn, bg.INFER, x)
    assert [type(y[kind]) for kind in KINDS] == [type(x), Tensor, DeviceNDArray, ArrayView]
    x.set(np.float32([3, 4]))
    graph.replay()
    assert {kind: fetch(region(one)).tolist() for kind, one in y.items()} == {kind: [30, 40] for kind in KINDS}
    graph.close()


@nothing_captured
@pytest.mark.parametrize("into", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_a_destination_of_each_library_takes_results_of_each(makers: dict[str, Any], into: str, source: str) -> None:
    x, dst, back = makers[source]([1, 2]), makers[into]([0, 0, 7]), makers[source]([0, 0, 0])
    with bg.capture() as graph:
        bg.break_here(lambda a: a, dst, x)
        bg.break_here(lambda a: a, back, dst)
    assert fetch(region(back)).tolist() == [1, 2, 7]
    store(region(x), [3, 4])
    graph.replay(valid_rows=2)
    assert fetch(region(dst)).tolist() == [3, 4, 0]
    assert fetch(region(back)).tolist() == [3, 4, 0]
    graph.close()


@nothing_captured
@pytest.mark.parametrize("destination", [bg.INFER, "given"])
def test_a_result_has_died_before_the_next_segment_begins(makers: dict[str, Any], sim: Any, destination: Any) -> None:
    """Libraries free memory on the stream that it was used on, and a free on a capturing stream is refused."""
    died: list[Any] = []

    def fn() -> Any:
        made = makers["generic"]([1, 2])
        weakref.finalize(made, lambda: died.append(sim.stream_is_capturing(int(bg.current_stream() or 0))))
        return made

    if destination == "given":
        destination = makers["sim"]([0, 0])
    with bg.capture() as graph:
        bg.break_here(fn, destination)
    graph.replay()
    assert died == [CaptureStatus.NONE] * 2
    graph.close()


# --- the libraries themselves, on a GPU ------------------------------------------------------------------------------
SOURCE = 'extern "C" __global__ void add(float *a, float by) { a[threadIdx.x] += by; }'


@pytest.fixture
def all_of_them(gpu: Any, xp: Any) -> Any:
    """The libraries, kernels of theirs that are compiled and loaded, and which are missing with the reason."""
    found = SimpleNamespace(cupy=pytest.importorskip("cupy"), missing={})
    for name, module in {"torch": "torch", "numba": "numba.cuda", "core": "cuda.core", "triton": "triton"}.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                setattr(found, name, importlib.import_module(module))
        except Exception as error:  # also a library that the installed NumPy is too new for
            found.missing[name] = repr(error)
    if "torch" in found.missing or not found.torch.cuda.is_available():
        pytest.skip(f"torch is missing: {found.missing.get('torch', 'it finds no GPU')}")
    return found


class Kernels:
    """One small kernel of each library, on the stream that work belongs on now."""

    def __init__(self, libraries: Any) -> None:
        self._has = libraries
        if "numba" not in libraries.missing:
            cuda = libraries.numba

            @cuda.jit
            def scale(out: Any, a: Any, by: Any) -> None:
                at = cuda.grid(1)
                if at < out.shape[0]:
                    out[at] = a[at] * by

            self._scale = scale
        if "core" not in libraries.missing:
            core = libraries.core
            device = core.Device()
            device.set_current()
            options = core.ProgramOptions(arch=f"sm_{''.join(map(str, device.compute_capability))}")
            self._add = core.Program(SOURCE, "c++", options).compile("cubin").get_kernel("add")
        if "triton" not in libraries.missing:
            self._square_plus = importlib.import_module("triton_kernels").square_plus

    def scale(self, out: Any, a: Any, by: float) -> None:
        """With numba: out = a * by. An array of cupy's is told not to be waited for."""
        if "numba" in self._has.missing:
            self._has.cupy.multiply(self._has.cupy.asarray(a), np.float32(by), out=self._has.cupy.asarray(out))
            return
        cuda = self._has.numba
        stream = cuda.external_stream(int(bg.current_stream() or 0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such a small grid is slow
            views = (cuda.as_cuda_array(one, sync=False) for one in (out, a))
            self._scale[1, 32, stream](*views, np.float32(by))

    def add(self, a: Any, by: float) -> None:
        """With cuda.core: a += by."""
        if "core" in self._has.missing:
            self._has.cupy.add(a, np.float32(by), out=a)
            return
        core = self._has.core
        stream = core.Stream.from_handle(int(bg.current_stream() or 0))
        core.launch(stream, core.LaunchConfig(grid=1, block=4), self._add, a.data.ptr, np.float32(by))

    def square_plus(self, out: Any, a: Any, plus: float) -> None:
        """With Triton, on torch's current stream: out = a * a + plus."""
        if "triton" in self._has.missing:
            self._has.torch.add(a * a, plus, out=out)
        else:
            self._square_plus[(1,)](out, a, plus, a.numel(), size=4)


def test_all_of_them_work_in_one_segment_and_through_one_break(all_of_them: Any, gpu: Any, xp: Any) -> None:
    """Where one is missing another takes its part, and the test says so at its end."""
    cupy, torch, missing = all_of_them.cupy, all_of_them.torch, all_of_them.missing
    kernels = Kernels(all_of_them)
    x, scaled, out = floats(xp, 1, 2, 3, 4), zeros(xp), zeros(xp)
    squared = torch.zeros(4, device="cuda")
    kinds: dict[str, type] = {}

    def attention(t: Any) -> Any:
        """One result of each library, from the largest element on the host."""
        top = t.max().item()
        ours = torch.full((4,), top, device="cuda", dtype=torch.bfloat16)
        found = {"torch": ours, "cupy": cupy.full(4, top, np.float32)}
        memory = cupy.full(4, top, np.float32)
        found["foreign"] = Foreign(region(memory), memory)
        if "numba" not in missing:
            found["numba"] = all_of_them.numba.to_device(np.full(4, top, np.float32))
        if "core" not in missing:
            buffer = all_of_them.core.Device().allocate(
                16, stream=all_of_them.core.Stream.from_handle(int(bg.current_stream() or 0))
            )
            gpu.memset_d32_async(
                int(buffer.handle), int(np.float32(top).view(np.uint32)), 4, int(bg.current_stream() or 0)
            )
            found["cuda.core"] = buffer
        kinds.update({name: type(one) for name, one in found.items()})
        return found

    def forward() -> None:
        doubled = x * 2  # cupy, in the arena
        mine = torch.as_tensor(doubled, device="cuda") + 1  # torch, in its pool, over memory of cupy's
        kernels.scale(scaled, mine, 3)  # numba, from torch's memory into cupy's
        kernels.add(scaled, 10)  # cuda.core, by address
        kernels.square_plus(squared, torch.as_tensor(scaled, device="cuda"), 0.5)  # Triton
        found = bg.break_here(attention, bg.INFER, squared)
        if bg.is_capturing():
            assert {name: type(one) for name, one in found.items()} == {**kinds, "foreign": ArrayView}
            assert found["torch"].dtype is torch.bfloat16
        total = torch.as_tensor(found["cupy"], device="cuda") + found["torch"].float()
        total = total + torch.as_tensor(found["foreign"], device="cuda")
        if "numba" not in missing:
            total = total + torch.as_tensor(found["numba"], device="cuda")
        if "core" not in missing:
            view = frameworks.taking_part(gpu, ["cupy"])[0].over(
                Region.contiguous_at(int(found["cuda.core"].handle), (4,), np.dtype(np.float32)), found["cuda.core"]
            )
            total = total + torch.as_tensor(view, device="cuda")
        np.add(cupy.asarray(total), cupy.asarray(squared), out=out)

    def expected(values: Any) -> Any:
        square = ((np.asarray(values, np.float32) * 2 + 1) * 3 + 10) ** 2 + 0.5
        top = square.max()
        brain = float(torch.tensor(float(top)).bfloat16())
        return square + top * (2 + ("numba" not in missing) + ("core" not in missing)) + brain

    with torch.no_grad():
        forward()  # compiles what there is to compile
        gpu.synchronize()
        np.testing.assert_allclose(out.get(), expected([1, 2, 3, 4]), rtol=1e-6)
        with bg.capture() as graph:
            forward()
    gpu.synchronize()
    assert (len(graph.segments), len(graph.breaks)) == (2, 1)
    assert graph.segments[0].nodes == (5 if "triton" not in missing else 6)
    np.testing.assert_allclose(out.get(), expected([1, 2, 3, 4]), rtol=1e-6)
    for values in ([4, 3, 2, 1], [-5, 0.5, 7, 2]):
        x.set(np.asarray(values, np.float32))
        gpu.synchronize()
        graph.replay()
        gpu.synchronize()
        np.testing.assert_allclose(out.get(), expected(values), rtol=1e-6)
    graph.close()
    if missing:
        pytest.skip(f"all is well, but without {missing}")
