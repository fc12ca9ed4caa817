"""The kernels of ``examples/minilm`` compute on a GPU what they compute on the simulator, in both dtypes.

The simulator's are held against a public implementation by `test_encoder`; here every launch covers rows that are
real, rows beyond the last one, and sentences below, at and above what a warp or a block takes at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from minilm import kernels_sim
from minilm.kernels import kernels
from minilm.text import Batch, HostArray
from minilm.weights import HIDDEN, WIDTH

LENGTHS = (1, 70, 33, 8, 32, 3)  # below, at and above what a block or a warp takes at once
TOLERANCE = {"float32": 1e-5, "float16": 5e-3}


class Values:
    """Random values on the host, and what a kernel of the GPU and a NumPy function make of them."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self._xp, self._rng = xp, np.random.default_rng(0)
        self.dtype = np.dtype(dtype)

    def real(self, *shape: int) -> HostArray:
        return self._rng.standard_normal(shape).astype(self.dtype)

    def single(self, *shape: int) -> HostArray:
        return self._rng.standard_normal(shape).astype(np.float32)

    def hold(self, launch: Any, expected: Any, *given: HostArray, out: HostArray) -> None:
        """``launch`` and ``expected`` are called with ``given`` and, last, ``out``, which they write."""
        device = [self._xp.asarray(one) for one in (*given, out)]
        launch(*device)
        expected(*given, out)
        np.testing.assert_allclose(device[-1].get(), out, rtol=0, atol=TOLERANCE[self.dtype.name])


@pytest.fixture(params=TOLERANCE)
def values(gpu: Any, xp: Any, request: pytest.FixtureRequest) -> Values:
    return Values(xp, request.param)


def test_the_gpu_embeds_and_normalizes_as_numpy_does(values: Values) -> None:
    use, rows = kernels(values.dtype), 9  # of 12 that three blocks of the kernel have
    tokens = np.stack([np.arange(rows) * step % 50 for step in (7, 3)], axis=1, dtype=np.int32)
    given = tokens, values.real(50, WIDTH), values.real(50, WIDTH), values.single(2, WIDTH)
    values.hold(use.embed, kernels_sim.embed, *given, out=values.real(rows, WIDTH))
    given = values.single(WIDTH), values.real(rows, WIDTH), values.single(2, WIDTH)
    values.hold(
        lambda bias, residual, norm, x: use.add_norm(x, bias, residual, norm),
        kernels_sim.add_norm,
        *given,
        out=values.real(rows, WIDTH),
    )


def test_the_gpu_has_numpys_gelu(values: Values) -> None:
    use = kernels(values.dtype)
    values.hold(
        lambda bias, x: use.add_gelu(x, bias),
        kernels_sim.add_gelu,
        values.single(HIDDEN),
        out=values.real(3, HIDDEN),
    )


def test_the_gpu_attends_within_each_sentence_and_leaves_padding_alone(values: Values) -> None:
    batch = Batch(np.zeros(sum(LENGTHS), np.int32), LENGTHS)
    rows = len(batch.words) + 5

    def expected(starts: HostArray, bias: HostArray, qkv: HostArray, out: HostArray) -> None:
        for first, end in pairwise(starts):
            out[first:end] = kernels_sim.attend(qkv[first:end] + bias)

    values.hold(
        lambda starts, bias, qkv, out: kernels(values.dtype).attention(qkv, bias, starts, batch, out),
        expected,
        batch.starts,
        values.single(3 * WIDTH),
        values.real(rows, 3 * WIDTH),
        out=values.real(rows, WIDTH),
    )


def test_the_gpu_pools_each_sentence_and_leaves_rows_without_one_alone(values: Values) -> None:
    starts = np.pad(np.cumsum([0, *LENGTHS], dtype=np.int32), (0, 2), mode="edge")
    values.hold(
        lambda starts, hidden, out: kernels(values.dtype).pool(hidden, starts, out),
        kernels_sim.pool,
        starts,
        values.real(starts[-1], WIDTH),
        out=values.single(len(LENGTHS) + 2, WIDTH),
    )
