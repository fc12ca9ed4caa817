"""What a graph of the driver is made of: its nodes, their parameters, their edges. Calls that only ask."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from breakgraph.driver.api import Edge, EdgeData, KernelNode, MemcpyNode, MemoryType, MemsetNode, NodeType
from breakgraph.driver.entries import Entries
from breakgraph.driver.results import call, newest

__all__ = ["NodeCalls", "edge_data_of"]

_FEW = 8  # nodes; most segments have fewer
_TYPES = {int(kind): kind for kind in NodeType}


class NodeCalls:
    """The part of `breakgraph.driver.cuda.CudaDriver` that reads graphs; it is given the bindings."""

    def __init__(self, bindings: ModuleType, entries: Entries, edge_data: bool) -> None:
        cu = self._cu = bindings
        self._entries = entries
        # In 12.9 the bare names are the form without edge data, which is all that an older driver has.
        self._get_edges = newest(cu, "cuGraphGetEdges", "_v2", edge_data)
        self._get_dependencies = newest(cu, "cuGraphNodeGetDependencies", "_v2", edge_data)
        self._get_dependents = newest(cu, "cuGraphNodeGetDependentNodes", "_v2", edge_data)

    def graph_get_nodes(self, graph: int) -> tuple[int, ...]:
        nodes, count = call(self._cu.cuGraphGetNodes, graph, _FEW)  # one call for most segments
        if count == _FEW:  # as many as were asked for, and maybe there are more
            count = self.graph_get_node_count(graph)
            nodes, _ = call(self._cu.cuGraphGetNodes, graph, count)
        return tuple(map(int, nodes[:count]))

    def graph_get_edges(self, graph: int) -> tuple[Edge, ...]:
        *_, count = call(self._get_edges, graph)
        if not count:
            return ()
        tails, heads, *data, _ = call(self._get_edges, graph, count)
        kinds = map(edge_data_of, data[0]) if data else [EdgeData()] * count
        return tuple(Edge(int(tail), int(head), kind) for tail, head, kind in zip(tails, heads, kinds, strict=True))

    def graph_get_node_count(self, graph: int) -> int:
        _, count = call(self._cu.cuGraphGetNodes, graph)  # without a length it counts
        return int(count)

    def graph_node_get_type(self, node: int) -> NodeType:
        return _TYPES[int(self._entries.graph_node_get_type(node))]

    def graph_node_get_dependencies(self, node: int) -> tuple[int, ...]:
        *_, count = call(self._get_dependencies, node)
        nodes, *_ = call(self._get_dependencies, node, count) if count else ((),)
        return tuple(dict.fromkeys(map(int, nodes)))

    def graph_node_get_dependent_count(self, node: int) -> int:
        return int(call(self._get_dependents, node)[-1])  # without a length it counts

    def graph_kernel_node_get_params(self, node: int) -> KernelNode:
        (native,) = call(self._cu.cuGraphKernelNodeGetParams, node)
        return KernelNode(
            int(native.func),
            int(native.kern),
            (int(native.gridDimX), int(native.gridDimY), int(native.gridDimZ)),
            (int(native.blockDimX), int(native.blockDimY), int(native.blockDimZ)),
            int(native.sharedMemBytes),
        )

    def graph_memcpy_node_get_params(self, node: int) -> MemcpyNode:
        (native,) = call(self._cu.cuGraphMemcpyNodeGetParams, node)
        rows = max(int(native.Height), 1) * max(int(native.Depth), 1)
        source, destination = (MemoryType(int(end)) for end in (native.srcMemoryType, native.dstMemoryType))
        return MemcpyNode(source, destination, int(native.WidthInBytes) * rows)

    def graph_memset_node_get_params(self, node: int) -> MemsetNode:
        (native,) = call(self._cu.cuGraphMemsetNodeGetParams, node)
        elements = int(native.width) * max(int(native.height), 1)
        return MemsetNode(int(native.dst), elements * int(native.elementSize))

    def func_get_name(self, func: int) -> str:
        (name,) = call(self._cu.cuFuncGetName, func)
        return bytes(name).decode(errors="replace")

    def kernel_get_name(self, kernel: int) -> str:
        (name,) = call(self._cu.cuKernelGetName, kernel)
        return bytes(name).decode(errors="replace")


def edge_data_of(native: Any) -> EdgeData:
    """Edge data of the bindings as ours."""
    return EdgeData(int(native.from_port), int(native.to_port), int(native.type))
