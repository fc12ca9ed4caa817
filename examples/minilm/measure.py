"""The same sentences without a graph and by replay, in one run: values, and how long they took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import breakgraph as bg

from .encoder import Encoder, Inputs
from .text import HostArray, batches

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


def measure(encoder: Encoder, sentences: Sequence[HostArray], size: int, rounds: int) -> Measured:
    """Encode all sentences in batches of ``size``, without a graph and by replay.

    Timed is the forward, from tokens on the device to vectors on the device, and each batch is waited for. Without a
    graph nothing is padded.
    """
    everything = [Inputs.of(batch) for batch in batches(sentences, size)]
    eager, replayed = zip(*(both_ways(encoder, inputs) for inputs in everything), strict=True)

    def seconds(encode: Callable[[Inputs], Any]) -> float:
        return sum(_timed(encode, inputs) for inputs in everything)

    timed = [(seconds(encoder.eager), seconds(encoder)) for _ in range(rounds)]
    eager_seconds, replay_seconds = map(statistics.median, zip(*timed, strict=True))
    return Measured(size, np.concatenate(eager), np.concatenate(replayed), eager_seconds, replay_seconds)


def both_ways(encoder: Encoder, inputs: Inputs) -> tuple[HostArray, HostArray]:
    """The vectors of a batch without a graph, of as many rows as the graph has, and by replay."""
    eager = encoder.eager(inputs.padded()).get()
    encoder(inputs)  # if the size is new, this is its capture
    return eager, encoder(inputs).get()


def _timed(encode: Callable[[Inputs], Any], inputs: Inputs) -> float:
    driver = bg.driver.current()
    driver.synchronize()
    start = time.perf_counter()
    encode(inputs)
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
