"""The same sentences without a graph and by replay, in one run: values, and how long they took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import breakgraph as bg

from .encoder import Encoder
from .text import Batch, HostArray, batches

__all__ = ["Measured", "both_ways", "cosines", "measure", "nearest_pairs", "reference"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Measured:
    """What was found with batches of one size. Seconds are for all sentences, the median over rounds."""

    size: int
    eager: HostArray  #: (sentences, WIDTH)
    replayed: HostArray  #: (sentences, WIDTH)
    eager_seconds: float
    replay_seconds: float


def measure(encoder: Encoder, tokens: Sequence[HostArray], size: int, rounds: int) -> Measured:
    """Encode all sentences in batches of ``size``, without a graph and by replay.

    Timed is the forward alone, from tokens on the device to vectors on the device, and each batch is waited for.
    """
    all_batches = list(batches(tokens, size))
    found = [both_ways(encoder, batch) for batch in all_batches]
    seconds = []
    for _ in range(rounds):
        eager = replay = 0.0
        for batch in all_batches:
            holding = encoder.size(batch)
            eager += _timed(holding.eager)
            replay += _timed(holding.replay)
        seconds.append((eager, replay))
    eager, replay = map(statistics.median, zip(*seconds, strict=True))
    return Measured(size, *map(np.concatenate, zip(*found, strict=True)), eager, replay)


def both_ways(encoder: Encoder, batch: Batch) -> tuple[HostArray, HostArray]:
    """The vectors of a batch, encoded without a graph and by replay."""
    holding = encoder.size(batch)

    def vectors(encode: Callable[[], None]) -> HostArray:
        holding.out.fill(np.nan)
        encode()
        found: HostArray = holding.out.get()[: len(batch.lengths)]
        return found

    return vectors(holding.eager), vectors(holding.replay)


def _timed(work: Callable[[], None]) -> float:
    driver = bg.driver.current()
    driver.synchronize()
    start = time.perf_counter()
    work()
    driver.synchronize()
    return time.perf_counter() - start


# what the vectors are held against ----------------------------------------------------------------------------------
def reference() -> HostArray:
    """The vectors of all sentences by a public implementation: see `make_reference`."""
    vectors: HostArray = np.load(_HERE / "reference.npy")
    return vectors


def cosines(a: HostArray, b: HostArray) -> HostArray:
    """The cosine of each row of one with the same row of the other."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    found: HostArray = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return found


def nearest_pairs(vectors: HostArray, count: int) -> list[tuple[float, int, int]]:
    """The ``count`` pairs of unit vectors with the largest cosine: that, and their two numbers."""
    first, second = np.triu_indices(len(vectors), 1)
    alike = (vectors @ vectors.T)[first, second]
    return [(float(alike[at]), int(first[at]), int(second[at])) for at in np.argsort(-alike)[:count]]
