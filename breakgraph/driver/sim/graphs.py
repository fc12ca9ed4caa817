"""Graphs, their nodes and edges, and what is instantiated from them."""

from __future__ import annotations

from breakgraph.driver.api import EdgeData, NodeType
from breakgraph.driver.sim.contexts import Context
from breakgraph.driver.sim.operations import Operation, Work
from breakgraph.driver.sim.races import Access, Clock
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.streams import Event, Heads
from breakgraph.errors import Unrecorded

__all__ = ["Exec", "Graph", "Node"]


class Node:
    """Work in a graph, after the nodes in ``after`` (edge data per edge)."""

    __slots__ = ("after", "graph", "handle", "work")

    def __init__(self, handle: int, graph: Graph, work: Work, after: Heads) -> None:
        self.handle = handle
        self.graph = graph
        self.work = work
        self.after = after


class Graph:
    """A graph. Nodes are in the order of their making, so a node comes after all it depends on."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.nodes: list[Node] = []

    def add(self, handle: int, work: Work, after: Heads) -> Node:
        """A new node after the given ones."""
        node = Node(handle, self, work, dict(after))
        self.nodes.append(node)
        return node


Topology = tuple[tuple[NodeType, tuple[tuple[int, EdgeData], ...]], ...]


class Exec:
    """An instantiated graph: a copy of its nodes, which the graph's own fate no longer touches."""

    def __init__(self, handle: int, graph: Graph, context: Context) -> None:
        self.handle = handle
        self.context = context
        self.version = 0
        self.last: list[Operation] = []  # the last launch: launches of one exec run one after another
        self.clock: Clock = {}
        self._take(graph)

    def _take(self, graph: Graph) -> None:
        place = {node: at for at, node in enumerate(graph.nodes)}
        self.works = [node.work for node in graph.nodes]
        self.after = [[place[one] for one in node.after] for node in graph.nodes]
        self.topology = _topology(graph, place)
        followed = {at for after in self.after for at in after}
        self.leaves = [at for at in range(len(self.works)) if at not in followed]
        self.unchecked = True  # its nodes have not been compared with each other
        self.accesses: tuple[Access, ...] = tuple(dict.fromkeys(a for work in self.works for a in work.accesses))
        self.allocations = [one.allocation for one in self.works if one.allocation and one.type is NodeType.MEM_ALLOC]
        self.frees = [one.allocation for one in self.works if one.allocation and one.type is NodeType.MEM_FREE]
        self.events: list[Event] = [work.event for work in self.works if work.event is not None]

    def before(self) -> list[int]:
        """For each node a bit set of the nodes that are ordered before it."""
        reached: list[int] = []
        for after in self.after:
            bits = 0
            for at in after:
                bits |= reached[at] | 1 << at
            reached.append(bits)
        return reached

    def update(self, graph: Graph) -> None:
        """Take the nodes of a graph of the same topology; `Refuse` 910, with nothing changed, otherwise."""
        if self.allocations or self.frees or any(node.work.allocation for node in graph.nodes):
            raise Unrecorded("an exec with memory nodes was updated")
        place = {node: at for at, node in enumerate(graph.nodes)}
        if _topology(graph, place) != self.topology:
            raise Refuse(Result.GRAPH_EXEC_UPDATE_FAILURE, "the graphs differ in their nodes' types or in their edges")
        self._take(graph)
        self.version += 1


def _topology(graph: Graph, place: dict[Node, int]) -> Topology:
    return tuple(
        (node.work.type, tuple(sorted((place[one], data) for one, data in node.after.items()))) for node in graph.nodes
    )
