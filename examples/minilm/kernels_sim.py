"""The kernels on the simulator: each is what the one of the same name in ``kernels.cu`` computes, by NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph import frameworks

from .kernels import QUERIES
from .text import Batch, HostArray
from .weights import HEADS, WIDTH

__all__ = ["SimKernels"]


class SimKernels:
    """`kernels.Kernels` for activations of any dtype."""

    matmul = staticmethod(np.matmul)

    def embed(self, tokens: Any, words: Any, places: Any, norm: Any, out: Any) -> None:
        _launch(embed, reads=(tokens, words, places, norm), writes=(out,))

    def add_norm(self, x: Any, bias: Any, residual: Any, norm: Any) -> None:
        _launch(add_norm, reads=(bias, residual, norm), writes=(x,))

    def add_gelu(self, x: Any, bias: Any) -> None:
        _launch(add_gelu, reads=(bias,), writes=(x,))

    def attention(self, qkv: Any, bias: Any, starts: Any, batch: Batch, out: Any) -> None:
        sentences, reach = len(batch.lengths), -(-max(batch.lengths) // QUERIES) * QUERIES  # the launch: it is baked

        def attention(starts: HostArray, bias: HostArray, qkv: HostArray, out: HostArray) -> None:
            for first, end in pairwise(starts[: sentences + 1]):
                if first < end:
                    out[first : min(end, first + reach)] = attend(qkv[first:end] + bias)[:reach]

        _launch(attention, reads=(starts, bias, qkv), writes=(out,))

    def pool(self, hidden: Any, starts: Any, out: Any) -> None:
        _launch(pool, reads=(starts, hidden), writes=(out,))


def _launch(kernel: Callable[..., None], *, reads: tuple[Any, ...], writes: tuple[Any, ...]) -> None:
    driver: Any = bg.driver.current()
    framework = frameworks.of(writes[0], driver)
    assert framework is not None
    driver.launch(framework.current_stream(), kernel, reads=reads, writes=writes)


def embed(tokens: HostArray, words: HostArray, places: HostArray, norm: HostArray, out: HostArray) -> None:
    out[:] = normalized(words[tokens[:, 0]].astype(np.float32) + places[tokens[:, 1]], norm)


def add_norm(bias: HostArray, residual: HostArray, norm: HostArray, x: HostArray) -> None:
    x[:] = normalized(x + bias + residual, norm)


def add_gelu(bias: HostArray, x: HostArray) -> None:
    total = x + bias
    x[:] = total * (1 + _erf(total * math.sqrt(0.5))) / 2


def pool(starts: HostArray, hidden: HostArray, out: HostArray) -> None:
    for sentence, (first, end) in enumerate(pairwise(starts)):
        if first < end:
            mean = hidden[first:end].mean(axis=0, dtype=np.float32)
            out[sentence] = mean / np.linalg.norm(mean)


def normalized(x: HostArray, norm: HostArray) -> HostArray:
    """Layer normalization of each row; ``norm`` holds scales and offsets."""
    centred = x - x.mean(axis=1, keepdims=True)
    scale, offset = norm
    result: HostArray = centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-12) * scale + offset
    return result


def attend(qkv: HostArray) -> HostArray:
    """Attention of one sentence's tokens, (tokens, 3 * WIDTH), to each other; returns (tokens, WIDTH)."""
    q, k, v = qkv.reshape(len(qkv), 3, HEADS, -1).transpose(1, 2, 0, 3)
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS)
    odds = np.exp(scores - scores.max(axis=2, keepdims=True))
    mixed: HostArray = odds / odds.sum(axis=2, keepdims=True) @ v
    return mixed.transpose(1, 0, 2).reshape(len(qkv), WIDTH)


_erf = np.vectorize(math.erf, otypes=[np.float32])  # NumPy has none
