"""The encoder: six layers of BERT, the mean over each sentence's tokens, and a unit vector of that.

::

    segment 0      embed, norm                                    @ Wqkv
      break        attention of each sentence, at its real length
    segment 1-5    @ Wo, + residual, norm,  @ Wup, GELU, @ Wdown, + residual, norm,  @ Wqkv of the next layer
      break        attention
    segment 6      @ Wo, + residual, norm,  @ Wup, GELU, @ Wdown, + residual, norm,  mean, unit vector

The rows of every matrix are the tokens of all sentences of a batch, one sentence after the other, so that only
attention sees where one ends. Its kernel's grid depends on the lengths: a graph would bake it, and a break does not.
Rows after the last sentence are padding: they hold whatever they hold, and no other row sees them.
"""

from __future__ import annotations

from typing import Any

import breakgraph as bg

from .kernels import kernels
from .text import Batch
from .weights import LAYERS, Weights

__all__ = ["BREAKS", "SEGMENTS", "attention", "forward"]

BREAKS = LAYERS
SEGMENTS = BREAKS + 1


def forward(weights: Weights, ids: Any, positions: Any, starts: Any, batch: Batch, out: Any) -> None:
    """Write the unit vector of each sentence to the first rows of ``out``.

    Nothing in here says capture or replay: called outside a capture it is the eager forward.

    Parameters
    ----------
    ids, positions
        (rows,), int32, on the device: each token's word, and its place in its sentence. Real tokens come first.
    starts
        (len(out) + 1,), int32, on the device: where each sentence begins and, beside the next, ends. Of those that do
        not exist begin and end are the same.
    batch
        What the host knows of the sentences.
    out
        (sentences at most, WIDTH), float32; rows without a sentence are left as they are.
    """
    use = kernels(weights.words.dtype)
    hidden = _empty(len(ids), weights.words)
    use.embed(ids, positions, weights.words, weights.places, weights.norm, hidden)
    for layer in weights.layers:
        qkv = _product(hidden, layer.qkv)
        attended = _empty(len(ids), layer.project)
        attention(qkv, layer.qkv_bias, starts, batch, out=attended)
        projected = _product(attended, layer.project)
        use.add_norm(projected, layer.project_bias, hidden, layer.attention_norm)
        lifted = _product(projected, layer.up)
        use.add_gelu(lifted, layer.up_bias)
        lowered = _product(lifted, layer.down)
        use.add_norm(lowered, layer.down_bias, projected, layer.output_norm)
        hidden = lowered
    use.pool(hidden, starts, out)


@bg.break_point(out="out", tag="attention")
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
    return bg.array_namespace().empty((rows, like.shape[1]), like.dtype)
