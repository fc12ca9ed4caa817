"""A Triton kernel in segments, launched as ever: on torch's current stream, which in a segment is the capture's.

What to watch:

- Launch each kernel once before the capture, with the types and ``constexpr`` values that it will have: Triton compiles
  at the first launch. ``@triton.autotune`` measures then, and waits for the device, which a segment refuses.
- Grid, numbers and addresses are baked at capture. A kernel for more rows is another capture.
- What a kernel writes is torch's: in a segment from the private pool of the arena, in a break from where it always is.

    python examples/embed/triton_kernel.py      # needs torch, triton and a GPU
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed will do

from needs import needed  # the file beside this script

with needed():
    import torch
    import triton
    import triton.language as tl
    from torch import Tensor

import breakgraph as bg

__all__ = ["main", "rms_norm"]

ROWS, WIDTH = 64, 200


@triton.jit
def rms_norm_kernel(out, x, width, epsilon, size: tl.constexpr):
    """A program for each row: divide it by the root of its mean square."""
    row, column = tl.program_id(0), tl.arange(0, size)
    at, inside = row * width + column, column < width
    value = tl.load(x + at, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value) / width + epsilon)
    tl.store(out + at, value * scale, mask=inside)


def rms_norm(x: Tensor) -> Tensor:
    """Rows with a mean square of 1."""
    out = torch.empty_like(x)
    rms_norm_kernel[(len(x),)](out, x, x.shape[1], 1e-6, size=triton.next_power_of_2(x.shape[1]))
    return out


@bg.break_point
def only_peaked(x: Tensor) -> Tensor:
    """Softmax of the rows that have a peak. How many those are, the host must know: no graph can hold that."""
    rows = torch.nonzero(x.amax(1) > 2.8).flatten()  # waits for the device
    out = torch.zeros_like(x)
    out[rows] = torch.softmax(x[rows], 1)
    return out


def forward(x: Tensor) -> Tensor:
    """Normalize, a choice that depends on the data, normalize again."""
    return rms_norm(x + only_peaked(rms_norm(x)))


@torch.inference_mode()
def main() -> None:
    """Capture the forward, replay it on fresh inputs, and compare with the forward run eagerly."""
    torch.manual_seed(0)
    x = torch.randn((ROWS, WIDTH), device="cuda")
    square = forward(x).square().mean(1)
    torch.testing.assert_close(square, torch.ones_like(square))

    with bg.capture(name="forward") as graph:
        y = graph.output(forward(x))
    print(graph.report())

    for _ in range(4):
        x.normal_()
        graph.replay()
        assert torch.equal(y, forward(x)), "replay and eager run the same kernels on the same values"
    print(f"{graph.replays} replays equal eager")
    graph.close()


if __name__ == "__main__":
    main()
