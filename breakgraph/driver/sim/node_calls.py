"""Calls that ask what a graph is made of: its nodes, their parameters, their edges."""

from __future__ import annotations

from breakgraph.driver.api import Edge, KernelNode, MemcpyNode, MemoryType, MemsetNode, NodeType
from breakgraph.driver.sim.call import Needs, call
from breakgraph.driver.sim.machine import Machine
from breakgraph.driver.sim.operations import Work
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.errors import Unrecorded

__all__ = ["NodeCalls"]

_ONE = (1, 1, 1)
_HOST, _DEVICE = MemoryType.HOST, MemoryType.DEVICE
_ENDS = {
    "memcpy_htod_async": (_HOST, _DEVICE),
    "memcpy_dtoh_async": (_DEVICE, _HOST),
    "memcpy_dtod_async": (_DEVICE, _DEVICE),
}


class NodeCalls(Machine):
    """Nodes and edges."""

    @call(Needs.HANDLE)
    def graph_get_nodes(self, graph: int) -> tuple[int, ...]:
        return tuple(node.handle for node in self.graphs.get(graph).nodes)

    @call(Needs.HANDLE)
    def graph_get_edges(self, graph: int) -> tuple[Edge, ...]:
        nodes = self.graphs.get(graph).nodes
        return tuple(Edge(tail.handle, head.handle, data) for head in nodes for tail, data in head.after.items())

    @call(Needs.HANDLE)
    def graph_get_node_count(self, graph: int) -> int:
        return len(self.graphs.get(graph).nodes)

    @call(Needs.HANDLE)
    def graph_node_get_dependencies(self, node: int) -> tuple[int, ...]:
        return tuple(before.handle for before in self.nodes.get(node).after)

    @call(Needs.HANDLE)
    def graph_node_get_type(self, node: int) -> NodeType:
        return self.nodes.get(node).work.type

    @call(Needs.HANDLE)
    def graph_kernel_node_get_params(self, node: int) -> KernelNode:
        """A simulated kernel is one block of one thread, and its function has the name of the operation."""
        name = self._work(node, NodeType.KERNEL).name
        if name not in self.functions:
            self.functions[name] = self.new_handle()
        return KernelNode(self.functions[name], 0, _ONE, _ONE, 0)

    @call(Needs.HANDLE)
    def graph_memcpy_node_get_params(self, node: int) -> MemcpyNode:
        work = self._work(node, NodeType.MEMCPY)
        return MemcpyNode(*_ENDS[work.name], _written(work)[1])

    @call(Needs.HANDLE)
    def graph_memset_node_get_params(self, node: int) -> MemsetNode:
        return MemsetNode(*_written(self._work(node, NodeType.MEMSET)))

    @call()
    def func_get_name(self, func: int) -> str:
        for name, handle in self.functions.items():
            if handle == func:
                return name
        raise Refuse(Result.INVALID_HANDLE, f"{func:#x} is not the handle of a function")

    @call()
    def kernel_get_name(self, kernel: int) -> str:
        raise Refuse(Result.INVALID_HANDLE, f"{kernel:#x} is not a kernel: the simulator has functions only")

    def _work(self, node: int, wanted: NodeType) -> Work:
        work = self.nodes.get(node).work
        if work.type is not wanted:
            raise Unrecorded(f"a {work.type.name} node was asked for the parameters of a {wanted.name} node")
        return work


def _written(work: Work) -> tuple[int, int]:
    """Address and bytes of what a copy or set writes; zeros where it moves none."""
    for access in work.accesses:
        if access.write:
            return access.low, access.high - access.low
    return 0, 0
