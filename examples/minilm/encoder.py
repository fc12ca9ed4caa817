"""Graphs by size: the forward captured once for each number of tokens on a ladder, and replayed for what fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import numpy as np

import breakgraph as bg

from .model import forward
from .text import LONGEST, Batch
from .weights import WIDTH, Weights

__all__ = ["SIZES", "Encoder", "Size"]

#: Tokens that a graph has room for.
SIZES = (16, 32, 48, 64, 96, 128, 192, LONGEST, 384, 512, 768, 1024, 1536, 2048)

_SHORTEST = 2  # a sentence has a token that begins it and one that ends it


class Encoder:
    """The encoder at every size that it has met; memory of all graphs is one arena."""

    def __init__(self, weights: Weights, break_on: Collection[str] | None = None) -> None:
        self._weights = weights
        self._break_on = break_on
        self._sizes: dict[int, Size] = {}

    def size(self, batch: Batch) -> Size:
        """The least size that has room for a batch, holding it; captured when it is met for the first time.

        Raises `BreakgraphError` for a batch that none has room for.
        """
        at = bisect_left(SIZES, batch.tokens)
        if at == len(SIZES):
            raise bg.errors.BreakgraphError(
                f"{batch.tokens} tokens are more than the largest size holds, which is {SIZES[-1]}",
                remedy="encode fewer sentences at a time",
            )
        found = self._sizes.get(SIZES[at])
        if found is None:
            found = self._sizes[SIZES[at]] = Size(self._weights, SIZES[at])
            found.fill(batch)
            found.capture(self._break_on)
        else:
            found.fill(batch)
        return found

    @property
    def graphs(self) -> list[bg.BreakableGraph]:
        """A graph for each size that has been met."""
        return [size.graph for size in self._sizes.values()]

    def close(self) -> None:
        """Destroy the graphs."""
        for graph in self.graphs:
            graph.close()


class Size:
    """One size: arrays that stay where they are, and the graph that reads and writes them."""

    def __init__(self, weights: Weights, tokens: int) -> None:
        xp = bg.array_namespace()
        self._weights = weights
        self._ids, self._positions = (xp.zeros(tokens, np.int32) for _ in range(2))
        self._starts = xp.zeros(tokens // _SHORTEST + 1, np.int32)
        self.out = xp.zeros((tokens // _SHORTEST, WIDTH), np.float32)  #: a row for each sentence
        self.graph = bg.BreakableGraph(f"{tokens} tokens")

    def fill(self, batch: Batch) -> None:
        """Copy a batch to the device."""
        self._batch = batch
        for array, values in ((self._ids, batch.ids), (self._positions, batch.positions)):
            array[: batch.tokens].set(values)
        room = len(self._starts) - len(batch.starts)
        self._starts.set(np.pad(batch.starts, (0, room), mode="edge"))  # a sentence that is not there has no tokens

    def eager(self) -> None:
        """Encode the batch without a graph."""
        forward(self._weights, self._ids, self._positions, self._starts, self._batch, self.out)

    def capture(self, break_on: Collection[str] | None) -> None:
        """Capture the forward; what it computes of the batch meanwhile is right."""
        self.eager()  # what is loaded at its first use is loaded now: kernels and cuBLAS
        with (
            bg.active_forward(self._batch),
            bg.capture(self.graph, break_on=break_on, frozen="refuse"),
        ):
            self.eager()

    def replay(self) -> None:
        """Encode the batch by the graph."""
        with bg.active_forward(self._batch):
            self.graph.replay()
