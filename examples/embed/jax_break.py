"""A jitted function of jax as a break between segments of cupy's.

XLA launches on streams of its own, which Python can neither name nor change, so nothing that jax does in a segment is
captured. In a break it may do everything, as this shows. What to watch:

- ``from_dlpack`` orders the streams: it lets XLA's wait for cupy's current one, which in a break is the replay's, and
  on the way back the other way round. Neither copies.
- Memory of a jax array is XLA's again as soon as the array is gone, also where a copy from it is still to run. So the
  break has its destination given (``out=``), copies into it itself, and waits for the copy.
- jax arrays never change, so none of them is a destination. As arguments of a break they are read where they lie.
- XLA puts work that it repeats into CUDA graphs of its own, and updates them where an argument lies elsewhere. The
  driver refuses that for a copy whose source was ordinary memory and is now an arena's, which is mapped; so it is
  switched off.
- jax takes most of the device's memory at its first use, unless ``XLA_PYTHON_CLIENT_PREALLOCATE=false``.

    python examples/embed/jax_break.py      # needs cupy, jax for CUDA and a GPU
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed will do
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="

from needs import needed  # the file beside this script

with needed():
    import cupy
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        raise ImportError("this jax finds no GPU")

import numpy as np

import breakgraph as bg

__all__ = ["main"]


@jax.jit
def centred(a: jax.Array, shift: jax.Array) -> jax.Array:
    """Sorted, less the median, plus a shift."""
    return jnp.sort(a) - jnp.median(a) + shift


@bg.break_point(out="out")
def in_jax(a: cupy.ndarray, shift: jax.Array, *, out: cupy.ndarray) -> None:
    """Call `centred` on an array of cupy's, and leave the result in another."""
    result = cupy.from_dlpack(centred(jax.dlpack.from_dlpack(a), shift))
    out[:] = result
    cupy.cuda.get_current_stream().synchronize()  # the result lives until here


def forward(x: cupy.ndarray, shift: jax.Array, y: cupy.ndarray, out: cupy.ndarray) -> None:
    """By cupy, by jax, by cupy."""
    in_jax(x * 2, shift, out=y)
    cupy.multiply(y, np.float32(10), out=out)


def expected(values: Any) -> Any:
    """The forward in NumPy."""
    doubled = values * 2
    return (np.sort(doubled) - np.median(doubled) + 1) * 10


def main() -> None:
    """Capture the forward, replay it on fresh inputs, and compare with NumPy."""
    x, y, out = (cupy.zeros(255, np.float32) for _ in range(3))
    shift = jnp.float32(1)
    forward(x, shift, y, out)  # jax compiles

    with bg.capture(name="forward") as graph:
        forward(x, shift, y, out)
    print(graph.report())
    assert [segment.nodes for segment in graph.segments] == [1, 1], "one kernel of cupy's each"

    for values in np.random.default_rng(0).integers(0, 99, (4, 255)).astype(np.float32):  # exact in float32
        x.set(values)
        graph.replay()
        np.testing.assert_array_equal(out.get(), expected(values))
    print(f"{graph.replays} replays equal NumPy")
    graph.close()


if __name__ == "__main__":
    main()
