"""The same network on torch, captured by the peer at each size into one pool: what torch's allocator takes for it."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._mlp import Mlp
from benchmarks._peers import breakable, torch

__all__ = ["reserved_by_breakable"]


def reserved_by_breakable(network: Mlp, rows: Sequence[int]) -> list[int]:
    """Bytes that torch has reserved after the capture of each size, in this order, over those before the first.

    Its products are cuBLAS's, whose workspace is among them. Raises `Missing` where the peer is not there.
    """
    library, of_torch = breakable(), torch()
    cuda, empty = of_torch.cuda, of_torch.empty
    layers = [tuple(of_torch.as_tensor(array, device="cuda") for array in layer) for layer in network.layers]
    arrays = [
        (empty((count, network.inputs), device="cuda"), empty((count, network.outputs), device="cuda"))
        for count in rows
    ]
    of_torch.relu(arrays[-1][0] @ layers[0][0] + layers[0][1])  # its kernels are loaded, and cuBLAS has a handle
    cuda.synchronize()
    cuda.empty_cache()
    before, reserved, graphs = cuda.memory_reserved(), [], []
    pool = cuda.graph_pool_handle()
    for x, out in arrays:
        graph = library.BreakableCUDAGraph(pool)
        with library.breakable_graph(graph):
            hidden = x
            for weight, bias in layers[:-1]:
                hidden = of_torch.relu_(hidden @ weight + bias)
                library.force_no_graph()
            weight, bias = layers[-1]
            of_torch.add(hidden @ weight, bias, out=out).relu_()
            del hidden
        graphs.append(graph)
        reserved.append(cuda.memory_reserved() - before)
    for graph in graphs:
        graph.reset()
    return reserved
