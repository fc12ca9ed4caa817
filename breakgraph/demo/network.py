"""The digits, and a small residual network trained on a part of them with NumPy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASSES", "Digits", "Floats", "Weights", "host_scores", "load_digits", "train"]

Floats = NDArray[np.float32]

CLASSES = 10
PIXELS = 64  # a scan is 8 by 8
WIDTH = 32
BLOCKS = 3

_TRAINING_ROWS = 1197
_EPOCHS = 40
_BATCH = 32
_LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Digits:
    """scikit-learn's handwritten digits, shuffled and split. Pixels are float32 from 0 to 1."""

    training_pixels: Floats  #: (1197, 64)
    training_labels: NDArray[np.int64]
    held_out_pixels: Floats  #: (600, 64)
    held_out_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Weights:
    """What training yields, as host arrays of float32. Rows are inputs, columns outputs."""

    mean: Floats  #: (64,)
    stem: Floats  #: (64, WIDTH)
    stem_bias: Floats
    blocks: tuple[tuple[Floats, Floats], ...]  #: per block (WIDTH, WIDTH) and (WIDTH,)
    head: Floats  #: (WIDTH, 10)
    head_bias: Floats


def load_digits() -> Digits:
    """Load the 1,797 scans that scikit-learn ships; the split is the same at every call."""
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels = (pixels[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int64)
    n = _TRAINING_ROWS
    return Digits(pixels[:n], labels[:n], pixels[n:], labels[n:])


def train(digits: Digits, *, progress: Callable[[float], None] = lambda fraction: None) -> Weights:
    """Train with Adam on the cross entropy. ``progress`` is told the fraction done after each epoch."""
    rng = np.random.default_rng(1)
    mean = digits.training_pixels.mean(axis=0)
    parameters = _initial(rng)
    adam = _Adam(parameters)
    rows = len(digits.training_labels)
    for epoch in range(_EPOCHS):
        order = rng.permutation(rows)
        rate = _LEARNING_RATE * (1 - epoch / _EPOCHS)
        for start in range(0, rows, _BATCH):
            chosen = order[start : start + _BATCH]
            gradients = _gradients(parameters, digits.training_pixels[chosen] - mean, digits.training_labels[chosen])
            adam.step(gradients, rate)
        progress((epoch + 1) / _EPOCHS)
    stem, stem_bias, *middle, head, head_bias = parameters
    blocks = tuple(zip(middle[::2], middle[1::2], strict=True))
    return Weights(mean, stem, stem_bias, blocks, head, head_bias)


def host_scores(weights: Weights, pixels: Floats) -> Floats:
    """The network's scores (one row of 10 per scan), computed on the host by NumPy alone."""
    hidden = np.maximum((pixels - weights.mean) @ weights.stem + weights.stem_bias, 0)
    for weight, bias in weights.blocks:
        hidden = hidden + np.maximum(hidden @ weight + bias, 0)
    return hidden @ weights.head + weights.head_bias


def _initial(rng: np.random.Generator) -> list[Floats]:
    """Stem, blocks, head, each a weight and its bias; scaled so that activations keep their size."""
    shapes = [(PIXELS, WIDTH), *[(WIDTH, WIDTH)] * BLOCKS, (WIDTH, CLASSES)]
    parameters: list[Floats] = []
    for inputs, outputs in shapes:
        parameters.append((rng.standard_normal((inputs, outputs)) * np.sqrt(1 / inputs)).astype(np.float32))
        parameters.append(np.zeros(outputs, np.float32))
    return parameters


def _gradients(parameters: list[Floats], inputs: Floats, labels: NDArray[np.int64]) -> list[Floats]:
    """Back-propagation through stem, residual blocks and head, in the order of ``parameters``."""
    stem, stem_bias, *middle, head, head_bias = parameters
    hidden = [np.maximum(inputs @ stem + stem_bias, 0)]
    added: list[Floats] = []
    for weight, bias in zip(middle[::2], middle[1::2], strict=True):
        added.append(np.maximum(hidden[-1] @ weight + bias, 0))
        hidden.append(hidden[-1] + added[-1])
    slope = _cross_entropy_slope(hidden[-1] @ head + head_bias, labels)

    gradients = [slope.sum(axis=0), hidden[-1].T @ slope]  # last parameter first
    slope = slope @ head.T
    for weight, below, increment in zip(reversed(middle[::2]), reversed(hidden[:-1]), reversed(added), strict=True):
        through = slope * (increment > 0)
        gradients += [through.sum(axis=0), below.T @ through]
        slope = slope + through @ weight.T
    slope = slope * (hidden[0] > 0)
    gradients += [slope.sum(axis=0), inputs.T @ slope]
    return gradients[::-1]


def _cross_entropy_slope(scores: Floats, labels: NDArray[np.int64]) -> Floats:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    slope: Floats = odds / odds.sum(axis=1, keepdims=True)
    slope[np.arange(len(labels)), labels] -= 1
    slope /= np.float32(len(labels))
    return slope


class _Adam:
    """Adam (Kingma and Ba, 2015) on a list of parameters, changed in place."""

    def __init__(self, parameters: list[Floats]) -> None:
        self._parameters = parameters
        self._first = [np.zeros_like(p) for p in parameters]
        self._second = [np.zeros_like(p) for p in parameters]
        self._steps = 0

    def step(self, gradients: list[Floats], rate: float) -> None:
        self._steps += 1
        size = np.float32(rate * np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps))
        for parameter, gradient, first, second in zip(
            self._parameters, gradients, self._first, self._second, strict=True
        ):
            first += np.float32(0.1) * (gradient - first)
            second += np.float32(0.001) * (gradient * gradient - second)
            parameter -= size * first / (np.sqrt(second) + np.float32(1e-8))
