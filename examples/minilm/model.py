"""The encoder: six layers of BERT, the mean over each sentence's tokens, and a unit vector of that.

::

    segment 0      embed, norm                                    @ Wqkv
      break        attention within each sentence, at its real length
    segment 1-5    @ Wo, + residual, norm,  @ Wup, GELU, @ Wdown, + residual, norm,  @ Wqkv of the next layer
      break        attention
    segment 6      @ Wo, + residual, norm,  @ Wup, GELU, @ Wdown, + residual, norm,  mean, unit vector

The rows of every matrix are the tokens of a batch, one sentence after the other, so that only attention and the mean
see where one ends. The grid of the attention kernel depends on the lengths: a graph would bake it, and a break does
not. Rows after the last sentence are padding: they hold whatever they hold, and no other row sees them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import breakgraph as bg

from .kernels import kernels
from .text import Batch
from .weights import LAYERS, WIDTH, Weights

__all__ = ["BREAKS", "SEGMENTS", "attention", "forward"]

BREAKS = LAYERS
SEGMENTS = BREAKS + 1


def forward(weights: Weights, tokens: Any, starts: Any, batch: Batch) -> Any:
    """The unit vector of each sentence, in the first rows of an array of (len(starts) - 1, WIDTH), float32.

    Nothing in here says capture or replay: called outside a capture it is the eager forward.

    Parameters
    ----------
    tokens
        (rows, 2), int32, on the device: each token's word, and its place in its sentence. Real tokens come first.
    starts
        int32, on the device: where each sentence begins and, beside the next, ends. Behind the last sentence come
        ones without a token, that begin and end at its end. Their vectors are not written.
    batch
        What the host knows of the sentences.
    """
    use = kernels(weights.words.dtype)
    hidden = _empty(len(tokens), weights.words)
    use.embed(tokens, weights.words, weights.places, weights.norm, hidden)
    for layer in weights.layers:
        qkv = _product(hidden, layer.qkv)
        attended = _empty(len(tokens), layer.project)
        attention(qkv, layer.qkv_bias, starts, batch, out=attended)
        projected = _product(attended, layer.project)
        use.add_norm(projected, layer.project_bias, hidden, layer.attention_norm)
        lifted = _product(projected, layer.up)
        use.add_gelu(lifted, layer.up_bias)
        hidden = _product(lifted, layer.down)
        use.add_norm(hidden, layer.down_bias, projected, layer.output_norm)
    vectors = bg.array_namespace().empty((len(starts) - 1, WIDTH), np.float32)
    use.pool(hidden, starts, vectors)
    return vectors


@bg.break_point(out="out", tag="attention", rows=False)  # padding may stay as it is, so nothing has to zero it
def attention(qkv: Any, bias: Any, starts: Any, batch: Batch, *, out: Any) -> None:
    """Attention within each sentence: one kernel, launched for the sentences that there are.

    ``qkv`` is (rows, 3 * WIDTH), without its ``bias``; ``out`` is (rows, WIDTH). At a replay ``batch`` is the live one.
    """
    kernels(qkv.dtype).attention(qkv, bias, starts, batch, out)


def _product(rows: Any, weight: Any) -> Any:
    out = _empty(len(rows), weight)
    kernels(rows.dtype).matmul(rows, weight, out=out)
    return out


def _empty(rows: int, like: Any) -> Any:
    """An array with so many rows and the columns and dtype of another."""
    return bg.array_namespace().empty((rows, like.shape[1]), like.dtype)
