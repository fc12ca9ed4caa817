"""``probes/cublas.py`` asks what it says it asks, and sees a library that does otherwise than breakgraph relies on.

Put to the simulated driver and a stand-in for cuBLAS, whose answers are no record of either.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from breakgraph.driver.sim import SimDriver

from .simulated_bindings import simulated_bindings
from .surface import ROOT

sys.path.append(str(ROOT))
from probes import cublas, rebegin

PROBE = ROOT / "probes" / "cublas.py"


class Library:
    """Allocates where cuBLAS is documented to, synchronizes where it is, and multiplies by another kernel."""

    ComputeType = SimpleNamespace(COMPUTE_32F=68)

    def __init__(self, asker: Any) -> None:
        self._asker, self._workspace = asker, False

    def create(self) -> int:
        return int(self._asker.alloc(1 << 20))

    def destroy(self, handle: int) -> None:
        self._asker.call("cuCtxSynchronize")

    def set_stream(self, handle: int, stream: int) -> None:
        self._workspace = False

    def set_workspace(self, handle: int, ptr: int, nbytes: int) -> None:
        self._workspace = True

    def gemm_ex_64(self, *arguments: Any) -> None:
        a, b = arguments[7], arguments[10]
        if not self._workspace:
            self._asker.call("cuMemAllocAsync", 64, self._asker.stream)
        self._asker.scale(a, b, 1)


def answers(library: type[Library] = Library) -> dict[str, dict[str, Any]]:
    asker = rebegin.Asker(bindings=simulated_bindings(SimDriver()))
    return {row["name"].partition(":")[0]: row for row in cublas.ask(cublas.Bench(asker, library(asker)))}


def test_the_probe_tells_which_calls_a_capture_bears() -> None:
    rows = answers()
    ends = {name: row["value"] for name, row in rows.items() if row["unit"] == "CUresult"}
    assert ends == {
        "cublasCreate": 901,
        "cublasCreate, relaxed": 0,
        "cublasCreate in another thread": 0,
        "cublasCreate in another thread, relaxed": 0,
        "cublasDestroy, relaxed": 901,
        "cublasDestroy in another thread": 901,
        "cublasSetStream, cublasSetWorkspace, cublasGemmEx_64": 0,
        "cublasSetStream, cublasGemmEx_64": 0,
    }
    assert all(row.get("holds", True) for row in rows.values())
    assert rows["cublasSetStream, cublasSetWorkspace, cublasGemmEx_64"]["nodes"] == {"KERNEL": 1}
    assert rows["cublasSetStream, cublasGemmEx_64"]["nodes"] == {"MEM_ALLOC": 1, "KERNEL": 1}
    assert rows["device memory of a handle"]["value"] >= 1
    assert "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" in cublas.line(rows["cublasCreate"])


def test_a_library_that_synchronizes_to_make_a_handle_is_seen() -> None:
    class Synchronizing(Library):
        def create(self) -> int:
            if self._asker.capture_status():
                self._asker.call("cuCtxSynchronize")
            return super().create()

    rows = answers(Synchronizing)
    assert [name for name, row in rows.items() if not row.get("holds", True)] == [
        "cublasCreate, relaxed",
        "cublasCreate in another thread, relaxed",
    ]


def test_a_product_that_allocates_in_spite_of_a_workspace_is_seen() -> None:
    class Allocating(Library):
        def set_workspace(self, handle: int, ptr: int, nbytes: int) -> None:
            """Heeds it not."""

    rows = answers(Allocating)
    assert [name for name, row in rows.items() if not row.get("holds", True)] == [
        "cublasSetStream, cublasSetWorkspace, cublasGemmEx_64"
    ]


def test_the_probe_says_what_it_lacks_where_there_is_no_gpu(no_gpu: str) -> None:
    if not no_gpu:
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, str(PROBE)], env=os.environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("COULD NOT ASK: ")
