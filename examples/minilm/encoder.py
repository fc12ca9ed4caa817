"""The forward with a graph for each size, and without one: `breakgraph.graphed` pads, captures and replays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import breakgraph as bg

from .model import forward
from .text import Batch
from .weights import Weights

__all__ = ["SENTENCES_AT_MOST", "SIZES", "Encoder", "Inputs"]

SENTENCES_AT_MOST = 128  # of a batch
SIZES = bg.size_ladder(2048)  # tokens that a graph has room for


class Inputs(NamedTuple):
    """A batch on the device."""

    tokens: Any  #: (tokens, 2), int32
    starts: Any  #: (SENTENCES_AT_MOST + 1,), int32
    batch: Batch

    @classmethod
    def of(cls, batch: Batch) -> Inputs:
        """Copy a batch to the device. Raises `BreakgraphError` for more sentences than there is room for."""
        put = bg.array_namespace().asarray
        room = SENTENCES_AT_MOST - len(batch.lengths)
        if room < 0:
            raise bg.errors.BreakgraphError(
                f"a batch of {len(batch.lengths)} sentences was given, and there is room for {SENTENCES_AT_MOST}",
                remedy="encode fewer at a time",
            )
        return cls(put(batch.tokens), put(np.pad(batch.starts, (0, room), mode="edge")), batch)

    def padded(self) -> Inputs:
        """With as many rows as the graph has that serves them: only of the same shapes come the same bits."""
        size = SIZES[bisect_left(SIZES, len(self.tokens))]
        tokens = bg.array_namespace().zeros((size, 2), np.int32)
        tokens[: len(self.tokens)] = self.tokens
        return self._replace(tokens=tokens)


class Encoder:
    """Turns batches of sentences into unit vectors.

    Attributes
    ----------
    graphed
        The forward that captures itself: one graph for each size that has been met, and one arena for all of them.
    """

    def __init__(self, weights: Weights, break_on: Collection[str] | None = None) -> None:
        self._forward = partial(forward, weights)
        self.graphed = bg.graphed(
            self._forward,
            buckets=SIZES,
            batched="tokens",
            slice_outputs=False,  # its rows are sentences, not tokens
            break_on=break_on,
            frozen="refuse",
            name="minilm",
        )

    def eager(self, inputs: Inputs) -> Any:
        """The vectors of a batch, (sentences, WIDTH), without a graph."""
        return self._forward(*inputs)[: len(inputs.batch.lengths)]

    def __call__(self, inputs: Inputs) -> Any:
        """The vectors of a batch, (sentences, WIDTH): captured at the first sight of a size, replayed after."""
        with bg.active_forward(inputs.batch):
            return self.graphed(*inputs)[: len(inputs.batch.lengths)]

    def close(self) -> None:
        """Destroy the graphs."""
        self.graphed.close()
