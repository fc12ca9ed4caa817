"""The same block on one rank: every shard on one device, no graph, nobody to exchange with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import breakgraph as bg

from .block import ROWS, WIDTH, Batch, HostArray, Input, Weights, forward
from .exchange import Alone

__all__ = ["eager"]


def eager(weights: Weights, shards: int, inputs: Sequence[Input]) -> HostArray:
    """Outputs of the block split into so many shards, (inputs, ROWS, WIDTH), computed on the current device."""
    xp = bg.array_namespace()
    held = [weights.shard(rank, shards) for rank in range(shards)]
    x, out = (xp.zeros((ROWS, WIDTH), np.float32) for _ in range(2))
    outputs = np.empty((len(inputs), ROWS, WIDTH), np.float32)
    for number, one in enumerate(inputs):
        x.set(one.values)
        forward(held, x, out, Batch(one.lengths), Alone())
        outputs[number] = out.get()
    return outputs
