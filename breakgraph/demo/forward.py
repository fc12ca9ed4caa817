"""The captured forward, written once with NumPy's functions; it runs unchanged on both drivers.

::

    segment 0   pixels - mean
      break       stem              a matrix product, landing where breakgraph chose (INFER)
    segment 1   bias, relu
      break       matmul            a matrix product, landing in a local array of the block; once per block
    segment 2-4 bias, relu, sum     (after the last block also the head and its softmax)
      break       second_look       reads the probabilities on the host and works on the unsure rows alone
    segment 5   probabilities that sum to 1 again

cupy refuses a matrix product inside a segment, so the large ones are breaks and the head is a sum of
products, which is captured.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph.demo.network import CLASSES, Digits, Weights

__all__ = ["BREAKS", "SEGMENTS", "Batch", "Network", "forward", "place"]

BREAKS = 5
SEGMENTS = BREAKS + 1

_SURE = 0.9  # how far the best class must be ahead of the next for no second look


@dataclass(frozen=True)
class Batch:
    """The forward context: what is known of one batch beside its pixels."""

    rows: int  #: real rows; those after them are padding


@dataclass(frozen=True)
class Network:
    """Weights and reference scans on the device (arrays of the current driver, float32)."""

    mean: Any  #: (64,)
    stem: Any  #: (64, width)
    stem_bias: Any  #: (width,)
    blocks: tuple[tuple[Any, Any], ...]  #: per block (width, width) and (width,)
    head: Any  #: (width, 10)
    head_bias: Any  #: (10,)
    references: Any  #: (64, n): training scans, one a column
    reference_norms: Any  #: (n,): their squared lengths
    reference_votes: Any  #: (n, 10): their labels, one-hot


def place(weights: Weights, digits: Digits) -> Network:
    """Copy trained weights, and the training scans to compare with, to the current driver's device."""
    put = bg.array_namespace().asarray
    references = digits.training_pixels
    return Network(
        mean=put(weights.mean),
        stem=put(weights.stem),
        stem_bias=put(weights.stem_bias),
        blocks=tuple((put(weight), put(bias)) for weight, bias in weights.blocks),
        head=put(weights.head),
        head_bias=put(weights.head_bias),
        references=put(np.ascontiguousarray(references.T)),
        reference_norms=put(np.sum(references * references, axis=1)),
        reference_votes=put(np.eye(CLASSES, dtype=np.float32)[digits.training_labels]),
    )


def forward(network: Network, pixels: Any, out: Any, batch: Batch) -> None:
    """Write each scan's class probabilities to ``out``.

    ``pixels`` is (rows, 64) and ``out`` (rows, 10), both float32. Nothing in here says capture or replay:
    called outside a capture it is the eager forward.
    """
    hidden = np.maximum(stem(pixels - network.mean, network.stem) + network.stem_bias, 0)
    for weight, bias in network.blocks:
        hidden = block(hidden, weight, bias)
    scores = sum_of_products(hidden, network.head) + network.head_bias
    odds = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    probabilities = odds / np.sum(odds, axis=1, keepdims=True)
    votes = second_look(network, pixels, probabilities, batch)
    # At least 1: a padded row sums to 0, and the others to 1 or (after a second look) 2.
    np.divide(votes, np.maximum(np.sum(votes, axis=1, keepdims=True), 1), out=out)


@bg.break_point
def stem(pixels: Any, weight: Any) -> Any:
    """Lift pixels to hidden features. Its result is a fresh array, so INFER gives it a place to land."""
    return pixels @ weight


def block(hidden: Any, weight: Any, bias: Any) -> Any:
    """Add one residual layer. The destination is a local and dies at return; the capture keeps what it needs."""
    product = np.empty_like(hidden)
    bg.break_here(operator.matmul, product, hidden, weight)
    return hidden + np.maximum(product + bias, 0)


def sum_of_products(rows: Any, weight: Any) -> Any:
    """A matrix product that cupy can capture: elementwise products, then a sum."""
    return np.sum(rows[:, :, None] * weight[None, :, :], axis=1)


@bg.break_point
def second_look(network: Network, pixels: Any, probabilities: Any, batch: Batch) -> Any:
    """Compare the rows that the network is unsure of with the training scans; the nearest one has a vote.

    Which rows those are is known only once the device values have been read on the host, and how many differs
    from batch to batch: work that no captured graph could hold.
    """
    ranked = np.sort(probabilities.get()[: batch.rows], axis=1)
    unsure = np.flatnonzero(ranked[:, -1] - ranked[:, -2] < _SURE)
    if not unsure.size:
        return probabilities.copy()
    put = bg.array_namespace().asarray
    looked_at = put(unsure)
    distances = network.reference_norms - 2 * (np.take(pixels, looked_at, axis=0) @ network.references)
    votes = np.take(network.reference_votes, np.argmin(distances, axis=1), axis=0)
    revised = np.take(probabilities, looked_at, axis=0) + votes
    source = np.arange(len(probabilities))
    source[unsure] = len(probabilities) + np.arange(unsure.size)
    return np.take(np.concatenate([probabilities, revised]), put(source), axis=0)
