"""The recipes of examples/embed do what they say, each by the one command that a person types.

Proves on a GPU that each gives what it promises, and on any machine that one which cannot run says why and ends with
exit code 2. Of the program with a context and a stream of its own: that these are as it left them, at capture and at
replay, also in a thread without a context; that nothing is put on any other stream; that a replay which computes
nothing is noticed; and, on a stand-in, that it calls the bindings of CUDA 12 and 13 as they want to be called. Of the C
library: that it compiles, and that a launch which fails is an error.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_driver.simulated_bindings import simulated_bindings
from support import ROOT, child

import breakgraph as bg
from breakgraph.driver import Region
from breakgraph.driver.cuda import CudaDriver

sys.path.append(str(ROOT / "examples" / "embed"))
import c_library
import host_runtime
import own_stream
from needs import needed

EMBED = ROOT / "examples" / "embed"

PROMISES = {
    "own_stream": ["4 replays equal NumPy", "context and stream are as they were"],
    "c_library": ["3 replays equal NumPy"],
    "torch_attention": ["sequences of [", "equal to eager"],
    "triton_kernel": ["4 replays equal eager"],
    "mixed_segment": ["4 replays equal NumPy"],
    "jax_break": ["4 replays equal NumPy"],
}
ON_A_GPU_ALONE = sorted(PROMISES.keys() - {"own_stream"})


def run(recipe: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe in a process of its own; what it needs of the checkout it finds by itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    return subprocess.run(
        [sys.executable, str(EMBED / f"{recipe}.py")],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("recipe", PROMISES)
def test_on_a_gpu_a_recipe_gives_what_it_promises(gpu: Any, tmp_path: Path, recipe: str) -> None:
    done = run(recipe, tmp_path, BREAKGRAPH_DRIVER="cuda")
    if done.returncode == 2:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert "BreakgraphWarning" not in done.stderr
    for promise in PROMISES[recipe]:
        assert promise in done.stdout


@pytest.mark.parametrize("recipe", ON_A_GPU_ALONE)
def test_a_recipe_of_machine_code_says_that_the_simulator_runs_none(tmp_path: Path, recipe: str) -> None:
    done = run(recipe, tmp_path, BREAKGRAPH_DRIVER="sim")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{recipe}: cannot run here: it launches machine code")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("recipe", PROMISES)
def test_without_a_gpu_a_recipe_says_so(tmp_path: Path, recipe: str) -> None:
    done = run(recipe, tmp_path, BREAKGRAPH_DRIVER="cuda", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{recipe}: cannot run here: ")
    assert ("BREAKGRAPH_DRIVER=sim" in done.stderr) == (recipe == "own_stream")
    assert "Traceback" not in done.stderr


def test_a_recipe_whose_library_is_missing_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bg.driver, "current", lambda: SimpleNamespace(name="cuda"))
    with pytest.raises(SystemExit) as ended, needed():
        import no_such_library  # noqa: F401
    assert ended.value.code == 2
    assert "No module named 'no_such_library'" in capsys.readouterr().err


def test_every_recipe_is_on_the_page_and_among_those_that_are_run() -> None:
    page = (ROOT / "docs" / "embedding.md").read_text()
    recipes = {path.stem for path in EMBED.glob("*.py")} - {"host_runtime", "needs"}
    assert recipes == PROMISES.keys()
    assert all(f"(../examples/embed/{recipe}.py)" in page for recipe in recipes)


# a program with a context and a stream of its own -------------------------------------------------------------------
def test_on_the_simulator_the_program_prints_its_steps_and_ends_well(tmp_path: Path) -> None:
    done = run("own_stream", tmp_path, BREAKGRAPH_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")
    assert "break 0 'choose_factor'" in done.stdout
    assert done.stdout.splitlines()[-2:] == PROMISES["own_stream"]


def test_nothing_is_put_on_a_stream_that_is_not_the_programs(sim: Any) -> None:
    start = len(sim.log)
    own_stream.main()
    calls = list(sim.log)[start:]
    mine = next(call.result for call in calls if call.name == "stream_create")
    first, last = ("stream_begin_capture", "stream_wait_event"), ("graph_launch", "event_record")
    used = [call.args[0] for call in calls if call.name in first] + [
        call.args[-1] for call in calls if call.name in last
    ]
    assert set(used) == {mine}
    assert sum(call.name == "graph_launch" for call in calls) == 2 * 5, "two segments, one capture and four replays"


def test_a_replay_in_a_thread_without_a_context_leaves_it_without_one(sim: Any) -> None:
    runtime = host_runtime.OnSimulator()
    arrays = [runtime.allocate() for _ in range(5)]
    runtime.write(arrays[0], range(host_runtime.COUNT))
    runtime.write(arrays[1], [1])
    with bg.capture(stream=runtime.stream, frameworks=()) as graph:
        own_stream.forward(runtime, *arrays)
    found: list[Any] = []

    def replay() -> None:
        found.append(sim.ctx_get_current())
        graph.replay(stream=runtime.stream)
        found.append(sim.ctx_get_current())

    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
    assert found == [0, 0]
    assert graph.replays == 1
    graph.close()
    runtime.close()


def test_a_replay_that_computes_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bg.BreakableGraph, "replay", lambda self, **options: None)
    with bg.driver.use("sim"), pytest.raises(AssertionError):
        own_stream.main()


@pytest.mark.parametrize("major", [12, 13])
def test_its_twin_for_a_gpu_calls_the_bindings_as_they_want_to_be_called(
    sim: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], major: int
) -> None:
    bindings = simulated_bindings(sim, major)
    bindings.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def launch(kernel: Any, *rest: Any) -> tuple[int]:
        *shape, shared, stream, (values, kinds), extra = rest
        assert (kernel.name, shape, shared, extra) == (b"multiply_add", [1, 1, 1, host_runtime.COUNT, 1, 1], 0, 0)
        assert kinds == (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float)
        out, x, factor, plus = values
        where = [Region.contiguous_at(ptr, (host_runtime.COUNT,), np.dtype(np.float32)) for ptr in (x, factor, out)]

        def multiply_add(x: Any, factor: Any, out: Any) -> None:
            out[:] = x * factor[0] + np.float32(plus)

        sim.launch(stream, multiply_add, reads=where[:2], writes=where[2:])
        return (0,)

    bindings.cuLaunchKernel = launch
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=bindings))
    monkeypatch.setattr(host_runtime, "compiled", lambda source: b"machine code")
    with bg.driver.use(CudaDriver(bindings)):
        own_stream.main()
    assert capsys.readouterr().out.splitlines()[-2:] == PROMISES["own_stream"]


def test_its_kernel_is_compiled_to_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the bindings are there, and the library is not
        pytest.skip(f"there is no NVRTC: {error}")
    driver = SimpleNamespace(
        CUdevice_attribute=SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0
        ),
        cuCtxGetDevice=lambda: (0, 0),
        cuDeviceGetAttribute=lambda attribute, device: (0, attribute),
    )
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver, nvrtc=nvrtc))
    code = host_runtime.compiled(host_runtime.SOURCE)
    assert code.startswith(b"\x7fELF")
    assert b"multiply_add" in code


# a C library ---------------------------------------------------------------------------------------------------------
def test_the_library_compiles_and_a_launch_that_fails_names_its_error(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    path = c_library.build(tmp_path)
    done = child(
        f"""
        import sys
        sys.path.append({str(EMBED)!r})
        from c_library import Library
        try:
            Library({str(path)!r}).scale_add(0, 0, 1, 0, -1000)  # a grid of a negative size
        except RuntimeError as error:
            print(error)
        """
    )
    assert done.stdout.startswith("scale_add: cudaError"), done.stderr


def test_without_a_compiler_the_recipe_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(bg.errors.BreakgraphError, match="no nvcc"):
        c_library.build(tmp_path)
