"""cupy, torch and numba in one segment, without a copy between them, and a break of torch's in the middle.

    segment 0    doubled = x * 2                cupy    into the arena
                 mixed = doubled + 1            torch   reads cupy's memory, writes its private pool
                 kept = min(mixed, limit)       numba   reads torch's memory, writes cupy's
      break      weights = softmax(kept) / top  torch   top is read on the host
    segment 1    out = kept * weights           cupy    reads torch's memory

What to watch:

- cupy and torch have a current stream, which is the capture's in a segment. numba has none: its launch names one.
- Libraries take each other's arrays by ``__cuda_array_interface__`` or DLPack. Both say where memory is and copy
  nothing. numba would also wait for the stream that an array of cupy's names: ``sync=False`` keeps it from that,
  since a capture forbids waiting, and there is one stream.
- numba allocates nothing in a segment: what it writes is made before, here by cupy.
- Each library compiles and loads at its first call, so the forward runs once before the capture.
- ``replay(stream=...)``, where the libraries' current streams are not the same.

    python examples/embed/mixed_segment.py      # needs cupy, torch, numba-cuda and a GPU
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed will do

from needs import needed  # the file beside this script

with needed():
    import cupy
    import torch
    from numba import cuda

import numpy as np

import breakgraph as bg

__all__ = ["main"]

COUNT, LIMIT = 256, np.float32(9)


@cuda.jit
def minimum(out: Any, a: Any, limit: Any) -> None:
    """``out = min(a, limit)``."""
    at = cuda.grid(1)
    if at < out.shape[0]:
        out[at] = min(a[at], limit)


@bg.break_point
def weights(kept: torch.Tensor) -> torch.Tensor:
    """Softmax over the largest value, which the host reads: no graph can hold that."""
    return torch.softmax(kept, 0) / kept.max().item()


def forward(x: cupy.ndarray, kept: cupy.ndarray, out: cupy.ndarray) -> None:
    """The drawing above, line by line."""
    doubled = x * 2
    mixed = torch.as_tensor(doubled, device="cuda") + 1
    stream = cuda.external_stream(int(bg.current_stream() or 0))
    arrays = (cuda.as_cuda_array(one, sync=False) for one in (kept, mixed))
    minimum[2, COUNT // 2, stream](*arrays, LIMIT)
    cupy.multiply(kept, cupy.from_dlpack(weights(torch.as_tensor(kept, device="cuda"))), out=out)


def expected(values: Any) -> Any:
    """The forward in NumPy."""
    kept = np.minimum(values * 2 + 1, LIMIT).astype(np.float64)
    powers = np.exp(kept)
    return kept * powers / powers.sum() / kept.max()


@torch.inference_mode()
def main() -> None:
    """Capture the forward, replay it on fresh inputs, and compare with NumPy."""
    cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # so small a grid is slow, and warned about
    x, kept, out = (cupy.zeros(COUNT, np.float32) for _ in range(3))
    forward(x, kept, out)
    torch.cuda.synchronize()

    with bg.capture(name="forward") as graph:
        forward(x, kept, out)
    print(graph.report())
    assert [segment.nodes for segment in graph.segments] == [3, 1], "cupy, torch, numba; cupy"

    for values in np.random.default_rng(0).uniform(-1, 6, (4, COUNT)).astype(np.float32):
        x.set(values)
        graph.replay()
        np.testing.assert_allclose(out.get(), expected(values), rtol=1e-5)
    print(f"{graph.replays} replays equal NumPy")
    graph.close()


if __name__ == "__main__":
    main()
