"""Kernels of a C library in segments: compiled by nvcc, loaded by ctypes, launched on the stream of the capture.

The library is `kernels.cu` beside this file. It knows nothing of captures: its launcher takes a stream, and that is all
it needs. The arrays are cupy's. What to watch:

- Give the launcher ``bg.current_stream()``: in a segment it is the capture's, in a break the replay's. A library that
  launches on the default stream is not captured, and one that makes streams of its own has to fork them from this one.
- Call it once before the capture. The CUDA runtime in the library sets itself up at the first call, and loads a kernel
  at its first launch.
- Addresses and numbers are baked at capture. cupy's arrays must outlive the graph, or be handed to ``graph.keep``.
- A library that allocates, synchronizes or copies to the host inside a call belongs in a break.
- Look at the error code. The launcher's is that of the launch; ``cudaGetLastError`` is legal in a segment.

    python examples/embed/c_library.py      # needs nvcc, cupy and a GPU
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed will do

import numpy as np
from needs import needed  # the file beside this script

import breakgraph as bg
from breakgraph.errors import BreakgraphError

__all__ = ["Library", "build", "main"]


def build(folder: Path) -> Path:
    """Compile `kernels.cu` for the GPU of this machine into a shared library."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise BreakgraphError("there is no nvcc to compile kernels.cu with", remedy="install the CUDA toolkit")
    library = folder / "libkernels.so"
    source = Path(__file__).with_name("kernels.cu")
    subprocess.run([nvcc, "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", library, source], check=True)
    return library


class Library:
    """The launcher of `kernels.cu` as Python calls it."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.scale_add.argtypes = (*[ctypes.c_void_p] * 2, *[ctypes.c_float] * 2, ctypes.c_int, ctypes.c_void_p)
        self._c.error_name.restype = ctypes.c_char_p

    def scale_add(self, out: int, x: int, scale: float, add: float, count: int) -> None:
        """``out = x * scale + add`` on the stream that work belongs on; outside of captures on the default one."""
        error = self._c.scale_add(out, x, scale, add, count, int(bg.current_stream() or 0))
        if error:
            raise RuntimeError(f"scale_add: {self._c.error_name(error).decode()}")


@bg.break_point
def without_mean(y: Any) -> Any:
    """The mean is taken on the host: no graph can hold that."""
    return y - np.float32(y.get().mean())


def forward(library: Library, x: Any, y: Any, out: Any) -> None:
    """(2 x + 1 - mean of that) * 10, by two calls of the library around the break."""
    library.scale_add(y.data.ptr, x.data.ptr, 2, 1, x.size)
    centred = without_mean(y)
    library.scale_add(out.data.ptr, centred.data.ptr, 10, 0, x.size)


def main() -> None:
    """Build the library, capture the forward, replay it on fresh inputs, and compare with NumPy."""
    with needed(), tempfile.TemporaryDirectory() as folder:
        xp = bg.array_namespace()
        library = Library(build(Path(folder)))
    x, y, out = (xp.zeros(1024, np.float32) for _ in range(3))
    forward(library, x, y, out)

    with bg.capture(name="forward") as graph:
        forward(library, x, y, out)
    print(graph.report())
    assert [segment.nodes for segment in graph.segments] == [1, 1], "each call of the library is one kernel"

    for values in np.random.default_rng(0).integers(0, 64, (3, 1024)).astype(np.float32):  # exact in float32
        x.set(values)
        graph.replay()
        scaled = values * 2 + 1
        np.testing.assert_array_equal(out.get(), (scaled - scaled.mean()) * 10)
    print(f"{graph.replays} replays equal NumPy")
    graph.close()


if __name__ == "__main__":
    main()
