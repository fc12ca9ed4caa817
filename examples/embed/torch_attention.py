"""A torch model captured around its attention, which stays plain Python: one decorator, and no other change to it.

Sequences of different lengths are packed into one batch, and attention runs over each by itself. How long they are
stands in a tensor on the device, so attention reads it on the host and loops: no graph can hold that. It is the
break, and everything else of the model, products, norms and activations, is in segments. What to watch:

- ``@bg.break_point`` above ``attention`` is the change. Where the code is not yours, rebind the name before the model
  runs: ``model_file.attention = bg.break_point(model_file.attention)``.
- ``torch.inference_mode()`` and ``model.eval()``: autograd sees nothing of a graph, and dropout draws random numbers,
  which a segment refuses.
- Run the model once before: torch loads kernels and makes cuBLAS handles at their first use.
- New inputs are copied into the captured tensors (``x.copy_``). Number and shape of tensors stay, their values change:
  other lengths, and not more sequences.
- ``graph.output`` keeps the result valid when other graphs are captured or replayed.

    python examples/embed/torch_attention.py      # needs torch and a GPU
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed will do

from needs import needed  # the file beside this script

with needed():
    import torch
    from torch import Tensor, nn

import breakgraph as bg

__all__ = ["Block", "attention", "main"]

ROWS, WIDTH, HEADS, SEQUENCES = 96, 64, 4, 5


@bg.break_point  # the one line that is new
def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Attention of each sequence to itself; q, k and v are (rows, heads, width of a head)."""
    out, start = torch.zeros_like(q), 0
    for length in lengths.tolist():
        rows = slice(start, start + length)
        heads = (t[rows].transpose(0, 1)[None] for t in (q, k, v))
        out[rows] = nn.functional.scaled_dot_product_attention(*heads)[0].transpose(0, 1)
        start += length
    return out


class Block(nn.Module):
    """A transformer encoder block over packed rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(len(x), 3, HEADS, -1).unbind(1)
        x = x + self.project(attention(q, k, v, lengths).flatten(1))
        return x + self.mlp(self.norm_mlp(x))


class Encoder(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, lengths)
        return x


def packed(seed: int) -> tuple[Tensor, Tensor]:
    """Rows of `SEQUENCES` sequences, and how many each has."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randperm(ROWS - 1, generator=draw)[: SEQUENCES - 1].sort().values + 1
    lengths = torch.diff(ends, prepend=torch.tensor([0]), append=torch.tensor([ROWS]))
    return torch.randn((ROWS, WIDTH), generator=draw), lengths


@torch.inference_mode()
def main() -> None:
    """Capture the model, replay it on other sequences, and compare with the model run eagerly."""
    torch.manual_seed(0)
    model = Encoder().cuda().eval()
    x, lengths = (tensor.cuda() for tensor in packed(seed=0))
    model(x, lengths)

    with bg.capture(name="encoder") as graph:
        y = graph.output(model(x, lengths))
    print(graph.report())
    assert (len(graph.segments), len(graph.breaks)) == (3, 2)

    for seed in range(1, 5):
        fresh, lengths_of_fresh = packed(seed)
        x.copy_(fresh)
        lengths.copy_(lengths_of_fresh)
        graph.replay()
        assert torch.equal(y, model(x, lengths)), "replay and eager run the same kernels on the same values"
        print(f"sequences of {lengths_of_fresh.tolist()} rows: equal to eager")
    graph.close()


if __name__ == "__main__":
    main()
