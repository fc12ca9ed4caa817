"""The block: attention and an MLP, written once for one rank and for many, and for both drivers.

A rank holds a `Shard` of the weights; a machine with one rank holds all the shards. cupy refuses a matrix product
inside a segment, so the products there are sums of products, which are captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

import breakgraph as bg

if TYPE_CHECKING:
    from .exchange import Exchange

__all__ = ["HEADS", "ROWS", "WIDTH", "Batch", "Input", "Shard", "Weights", "forward", "make_inputs", "reference"]

ROWS, WIDTH, HEADS, HIDDEN = 32, 64, 4, 256
HEAD = WIDTH // HEADS  # features of one head
_EPSILON = 1e-5

HostArray = np.ndarray[Any, Any]


# what goes in -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Batch:
    """The forward context: what is known of one input beside its values."""

    lengths: tuple[int, ...]  #: of the sequences that its rows are, one after the other
    log: list[str] = field(default_factory=list)  #: what ran on the host for it, in order

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """First row and end of each sequence."""
        return list(pairwise(accumulate(self.lengths, initial=0)))


@dataclass(frozen=True)
class Input:
    """One input on the host. Every rank makes the same ones."""

    values: HostArray  #: (ROWS, WIDTH), float32
    lengths: tuple[int, ...]


def make_inputs(count: int) -> list[Input]:
    """``count`` inputs, the same ones in every process: random values in random sequences."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(count):
        cuts = np.sort(rng.choice(np.arange(1, ROWS), size=rng.integers(1, 6), replace=False))
        lengths = tuple(int(one) for one in np.diff([0, *cuts, ROWS]))
        made.append(Input(rng.standard_normal((ROWS, WIDTH), np.float32), lengths))
    return made


# the weights, and how they are split --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Weights:
    """All weights of the block, on the host, float32."""

    qkv: HostArray  #: (WIDTH, 3, HEADS, HEAD): queries, keys and values of each head
    project: HostArray  #: (HEADS, HEAD, WIDTH)
    up: HostArray  #: (WIDTH, HIDDEN)
    down: HostArray  #: (HIDDEN, WIDTH)

    @classmethod
    def random(cls) -> Weights:
        """The same ones in every process."""
        rng = np.random.default_rng(0)

        def normal(inputs: int, *shape: int) -> HostArray:
            return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(inputs))

        return cls(
            qkv=normal(WIDTH, WIDTH, 3, HEADS, HEAD),
            project=normal(WIDTH, HEADS, HEAD, WIDTH),
            up=normal(WIDTH, WIDTH, HIDDEN),
            down=normal(HIDDEN, HIDDEN, WIDTH),
        )

    def shard(self, rank: int, ranks: int) -> Shard:
        """What one rank of so many has of them, copied to the current driver's current device."""
        heads = slice(rank * HEADS // ranks, (rank + 1) * HEADS // ranks)
        hidden = slice(rank * HIDDEN // ranks, (rank + 1) * HIDDEN // ranks)

        def put(part: HostArray, *shape: int) -> Any:
            return bg.array_namespace().asarray(np.ascontiguousarray(part).reshape(shape))

        return Shard(
            qkv=put(self.qkv[:, :, heads], WIDTH, -1),  # by columns
            project=put(self.project[heads], -1, WIDTH),  # by rows
            up=put(self.up[:, hidden], WIDTH, -1),  # by columns
            down=put(self.down[hidden], -1, WIDTH),  # by rows
        )


@dataclass(frozen=True)
class Shard:
    """One rank's part of the weights, on its device; n is the number of ranks."""

    qkv: Any  #: (WIDTH, 3 * WIDTH / n)
    project: Any  #: (WIDTH / n, WIDTH)
    up: Any  #: (WIDTH, HIDDEN / n)
    down: Any  #: (HIDDEN / n, WIDTH)


# the forward --------------------------------------------------------------------------------------------------------
def forward(shards: Sequence[Shard], x: Any, out: Any, batch: Batch, exchange: Exchange) -> None:
    """Write the block's output for ``x`` to ``out``, both (ROWS, WIDTH) and float32.

    Nothing in here says capture or replay, and nothing says how many ranks there are: ``shards`` are those of this
    rank, and ``exchange`` adds its partial sums and those of the others.
    """
    normal = _normalized(x)
    attended = [attention(_product(normal, shard.qkv), batch) for shard in shards]
    partials = [_product(one, shard.project) for one, shard in zip(attended, shards, strict=True)]
    hidden = x + exchange.sum_inside(partials, batch)

    normal = _normalized(hidden)
    partials = [_product(_silu(_product(normal, shard.up)), shard.down) for shard in shards]
    np.add(hidden, exchange.sum_as_break(partials, batch), out=out)


@bg.break_point
def attention(qkv: Any, batch: Batch) -> Any:
    """Causal attention within each sequence of the batch, whose lengths change from input to input.

    ``qkv`` is (ROWS, 3 * heads * HEAD) for the heads of one shard; returns (ROWS, heads * HEAD), a fresh array, so
    INFER gives it a place to land. In a break cupy multiplies matrices as ever.
    """
    batch.log.append("attention")
    split = qkv.reshape(ROWS, 3, -1, HEAD).transpose(1, 2, 0, 3)  # 3 of (heads, ROWS, HEAD)
    attended = []
    for start, end in batch.sequences:
        q, k, v = (split[which, :, start:end] for which in range(3))
        at = bg.array_namespace().arange(end - start)
        scores = np.where(at[:, None] >= at[None, :], q @ k.transpose(0, 2, 1) / HEAD**0.5, np.float32(-np.inf))
        odds = np.exp(scores - np.max(scores, axis=2, keepdims=True))
        mixed = (odds / np.sum(odds, axis=2, keepdims=True)) @ v
        attended.append(mixed.transpose(1, 0, 2).reshape(end - start, -1))
    return np.concatenate(attended)


def _product(rows: Any, weight: Any) -> Any:
    """A matrix product that cupy can capture."""
    return np.sum(rows[:, :, None] * weight[None, :, :], axis=1)


def _normalized(x: Any) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + _EPSILON)


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


# what the split must not change -------------------------------------------------------------------------------------
def reference(weights: Weights, one: Input) -> HostArray:
    """The block on the host in float64, with no split in it: a mistake of the split would show against this."""
    x = one.values.astype(np.float64)
    q, k, v = (np.einsum("rw,whf->hrf", _normalized(x), weights.qkv[:, which]) for which in range(3))
    sequence = np.repeat(np.arange(len(one.lengths)), one.lengths)
    seen = np.tri(ROWS, dtype=bool) & (sequence[:, None] == sequence)
    odds = np.exp(np.where(seen, q @ k.transpose(0, 2, 1) / HEAD**0.5, -np.inf))
    hidden = x + np.einsum("hrf,hfw->rw", odds / odds.sum(axis=2, keepdims=True) @ v, weights.project)
    out: HostArray = hidden + _silu(_normalized(hidden) @ weights.up) @ weights.down
    return out
