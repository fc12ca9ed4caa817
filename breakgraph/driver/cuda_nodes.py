"""What a graph of the driver is made of: its nodes, their parameters, their edges. Calls that only ask."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from breakgraph.driver.api import Edge, EdgeData, KernelNode, MemcpyNode, MemoryType, MemsetNode, NodeType
from breakgraph.driver.entries import Entries
from breakgraph.driver.results import call

__all__ = ["NodeCalls", "edges_of"]

_FULL = EdgeData()  # a full dependency
_TYPES = {int(kind): kind for kind in NodeType}


class NodeCalls:
    """The part of `breakgraph.driver.cuda.CudaDriver` that reads graphs; it is given the bindings."""

    def __init__(self, bindings: ModuleType, entries: Entries) -> None:
        self._cu = bindings
        self._entries = entries

    def graph_get_nodes(self, graph: int) -> tuple[int, ...]:
        nodes: tuple[int, ...] = self._entries.graph_get_nodes(graph)
        return nodes

    def graph_get_edges(self, graph: int) -> tuple[Edge, ...]:
        tails, heads, *data = self._entries.graph_get_edges(graph)
        return tuple(map(Edge._make, zip(tails, heads, edges_of(data, len(tails)), strict=True)))

    def graph_get_node_count(self, graph: int) -> int:
        return int(self._entries.graph_get_node_count(graph, 0))  # without a list it counts

    def graph_node_get_type(self, node: int) -> NodeType:
        return _TYPES[self._entries.graph_node_get_type(node)]

    def graph_node_get_dependencies(self, node: int) -> tuple[int, ...]:
        found = self._entries.graph_node_get_dependencies(node)
        nodes: tuple[int, ...] = found[0] if self._entries.edge_data else found
        return tuple(dict.fromkeys(nodes))

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


def edges_of(lists: Sequence[tuple[int, ...]], count: int) -> tuple[EdgeData, ...]:
    """The edge data of ``count`` edges: of a list of CUgraphEdgeData as words, where the driver gives one."""
    return tuple(map(_edge_of, *lists)) if lists and any(lists[0]) else (_FULL,) * count


def _edge_of(word: int) -> EdgeData:
    return EdgeData(*word.to_bytes(8, "little")[:3]) if word else _FULL  # two ports, a type, reserved bytes
