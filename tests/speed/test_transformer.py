"""The transformer that is timed is a transformer, and every library runs the same one.

Proves that the forward on the simulator and on torch (without a GPU: its tensors on the host) agrees with NumPy's, that
attention looks at no later token, and that the two products of attention are the ones cuBLAS has to be asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import speed_support  # noqa: F401 - the benchmarks on the path

import breakgraph as bg
from benchmarks import _network_torch
from benchmarks._network import Host, Network, Shape, Simulated, forward
from benchmarks._network_cupy import attention_products

SHAPE = Shape(3, 16, 4)


def on_host(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    forward(Host(), Network.of(SHAPE), x, out)
    return out


@pytest.fixture
def x() -> np.ndarray:
    return next(Network.of(SHAPE).inputs(6, 1))


def test_it_has_a_break_for_each_layer_and_replays_what_the_host_computes(sim: Any, xp: Any, x: np.ndarray) -> None:
    kernels, network = Simulated(), Network.of(SHAPE).placed(xp.asarray)
    device, out = xp.asarray(np.zeros_like(x)), xp.zeros(x.shape, np.float32)
    with bg.capture() as graph:
        forward(kernels, network, device, out)
    assert (len(graph.segments), len(graph.breaks)) == (4, 3)
    device.set(x)
    graph.replay()
    np.testing.assert_allclose(out.get(), on_host(x), rtol=1e-5, atol=1e-6)
    graph.close()


def test_a_token_is_not_moved_by_those_after_it_and_is_by_those_before(x: np.ndarray) -> None:
    changed = x.copy()
    changed[3] = x[3][::-1]
    before, after = on_host(x), on_host(changed)
    np.testing.assert_array_equal(before[:3], after[:3])
    assert np.all(np.abs(before - after)[3:].max(axis=1) > 1e-4)


def test_values_keep_their_size_through_all_layers() -> None:
    network = Network.of(Shape(24, 64, 4))
    x = next(network.inputs(8, 1))
    out = np.empty_like(x)
    forward(Host(), network, x, out)
    assert 0.5 < out.std() < 2


def test_torch_computes_the_same(x: np.ndarray) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    network = _network_torch.placed(torch, Network.of(SHAPE), "cpu", torch.float32)
    out = torch.empty(x.shape)
    with torch.no_grad():
        _network_torch.forward(torch, network, _network_torch.attention(torch), torch.from_numpy(x), out)
    np.testing.assert_allclose(out.numpy(), on_host(x), rtol=1e-4, atol=1e-5)


def gemm(memory: np.ndarray, *product: Any) -> None:
    """What cublasGemmStridedBatchedEx does to half-precision memory whose first byte has address 0."""
    on_a, on_b, m, n, k, alpha, a, lda, next_a, b, ldb, next_b, c, ldc, next_c, batch = product

    def columns(address: int, rows: int, count: int, leading: int) -> np.ndarray:
        return np.lib.stride_tricks.as_strided(memory[address // 2 :], (rows, count), (2, 2 * leading))

    for at in range(batch):
        of_a = columns(a + 2 * at * next_a, *((k, m) if on_a else (m, k)), lda)
        of_b = columns(b + 2 * at * next_b, *((n, k) if on_b else (k, n)), ldb)
        of_c = columns(c + 2 * at * next_c, m, n, ldc)
        of_c[:] = alpha * ((of_a.T if on_a else of_a).astype(np.float32) @ (of_b.T if on_b else of_b))


def test_the_two_products_that_cublas_is_asked_for_are_those_of_attention() -> None:
    tokens, width, heads = 5, 8, 2
    memory = np.zeros(4096, np.float16)
    inward, scores, out = memory[: 3 * tokens * width], memory[512 : 512 + heads * tokens**2], memory[1024 : 1024 + 40]
    inward[:] = np.random.default_rng(0).standard_normal(inward.size)
    first, second = attention_products(0, 2 * 512, 2 * 1024, tokens=tokens, width=width, heads=heads)

    gemm(memory, *first)
    by_head = scores.reshape(heads, tokens, tokens).astype(np.float32)
    by_head[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    odds = np.exp(by_head - by_head.max(axis=2, keepdims=True))
    scores[:] = (odds / odds.sum(axis=2, keepdims=True)).reshape(-1)
    gemm(memory, *second)

    expected = np.empty((tokens, width), np.float32)
    Host().attend(inward.reshape(tokens, 3 * width).astype(np.float32), heads=heads, out=expected)
    np.testing.assert_allclose(out.reshape(tokens, width), expected, atol=5e-3)
