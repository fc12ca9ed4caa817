"""Graphs, their nodes and edges, and what is instantiated from them."""

from __future__ import annotations

from breakgraph.driver.api import NodeType
from breakgraph.driver.sim.contexts import Context
from breakgraph.driver.sim.operations import Operation, Work
from breakgraph.driver.sim.races import Clock, Footprint
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.streams import Event, Heads
from breakgraph.errors import Unrecorded

__all__ = ["Exec", "Graph", "Node"]


class Node:
    """Work of a context in a graph, after the nodes in ``after`` (edge data per edge, in the order of their making)."""

    __slots__ = ("after", "context", "graph", "handle", "work")

    def __init__(self, handle: int, graph: Graph, context: Context, work: Work, after: Heads) -> None:
        self.handle = handle
        self.graph = graph
        self.context = context
        self.work = work
        self.after = after


class Graph:
    """A graph. Nodes are in the order of their making, so a node comes after all it depends on."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.nodes: list[Node] = []
        self.ends: tuple[Node, ...] = ()  # what the origin stood at when its capture ended, in the order of its joins

    def add(self, handle: int, context: Context, work: Work, after: Heads) -> Node:
        """A new node after the given ones."""
        node = Node(handle, self, context, work, dict(after))
        self.nodes.append(node)
        return node


class _Shape:
    """What an update may not change of a graph: its nodes' kinds, and the edges.

    Kept without the nodes, which the program may destroy.
    """

    def __init__(self, graph: Graph) -> None:
        place = {node: at for at, node in enumerate(graph.nodes)}
        self.kinds = [_kind(node) for node in graph.nodes]
        self.after = [[(place[one], data) for one, data in node.after.items()] for node in graph.nodes]
        followed = {one for after in self.after for one, _ in after}
        # Exit nodes are in the order in which they were joined (probes/records/exec-update-h200-580.json).
        ends = [place[node] for node in graph.ends]
        rest = [at for at in range(len(graph.nodes)) if at not in ends]
        self.exits = [at for at in (*ends, *rest) if at not in followed]

    def differs(self, other: _Shape) -> str:
        """How another graph is not topologically identical; empty if it is.

        Nodes are paired from the exits back along the edges, in the edges' order, so the order in which the branches
        of a fork were captured does not matter, and the order in which they were joined does (CUDA driver API,
        cuGraphExecUpdate; CUDA programming guide, "Whole graph update").
        """
        if len(self.kinds) != len(other.kinds):
            return f"it has {len(other.kinds)} nodes in place of {len(self.kinds)}"
        if len(self.exits) != len(other.exits):
            return "it has another number of exit nodes"
        pair: dict[int, int] = {}
        paired: set[int] = set()
        path = list(zip(self.exits, other.exits, strict=True))
        while path:
            ours, theirs = path.pop()
            if ours in pair or theirs in paired:
                if pair.get(ours) != theirs:
                    return f"an edge from node {theirs} belongs to another node"
                continue
            if self.kinds[ours] != other.kinds[theirs]:
                return f"node {theirs} is of another kind, or of another context"
            if [data for _, data in self.after[ours]] != [data for _, data in other.after[theirs]]:
                return f"node {theirs} has other dependencies"
            pair[ours] = theirs
            paired.add(theirs)
            path += ((one, two) for (one, _), (two, _) in zip(self.after[ours], other.after[theirs], strict=True))
        return ""


def _kind(node: Node) -> tuple[NodeType, str, Context]:
    """The type, the kinds of memory that a copy is between, and the context of the function or of the memory."""
    work = node.work
    return work.type, work.name if work.type is NodeType.MEMCPY else "", node.context


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
        self.shape = _Shape(graph)
        self.works = [node.work for node in graph.nodes]
        self.after = [[one for one, _ in after] for after in self.shape.after]
        self.touched = Footprint(tuple(dict.fromkeys(a for work in self.works for a in work.accesses)))
        self.checked: Footprint | None = None  # the bytes as which its nodes have been compared with each other
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
        """Take the nodes of a graph of the same topology; `Refuse` 910, with nothing changed, otherwise.

        What has been launched keeps its nodes: an update is for later launches (CUDA programming guide).
        """
        if self.allocations or self.frees or any(node.work.allocation for node in graph.nodes):
            raise Unrecorded("an exec with memory nodes was updated")
        differs = self.shape.differs(_Shape(graph))
        if differs:
            raise Refuse(Result.GRAPH_EXEC_UPDATE_FAILURE, differs)
        self._take(graph)
        self.version += 1
