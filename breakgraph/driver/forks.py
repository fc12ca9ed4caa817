"""Whether work that was captured on other streams has been joined to the origin.

The driver does not list a capture's streams, but it tells the graph so far, each node's dependencies, and the nodes
that the origin's next one will depend on. A fork is open as long as some node does not lie behind those.
"""

from __future__ import annotations

from collections.abc import Iterable

from breakgraph.driver.api import CaptureStatus, DependencyUpdate, Driver, EdgeData
from breakgraph.errors import DriverError

__all__ = ["Forks"]

_ACTIVE = CaptureStatus.ACTIVE


class Forks:
    """The open capture on ``origin``, as far as its nodes are known to come before the origin's next one.

    What was found to be joined stays joined, so that each node is looked at once, however often one asks.
    """

    def __init__(self, driver: Driver, origin: int) -> None:
        self.origin = origin
        self._driver = driver
        self._joined: set[int] = set()

    def begin(self) -> None:
        """The capture is a new one: nothing is known of its nodes."""
        self._joined.clear()

    def joined(self, *, besides: Iterable[int] = ()) -> bool:
        """Whether all work captured so far is ordered before the origin's next node, or before that of others.

        ``besides`` are streams whose work need not be joined. False too where the driver does not tell any more, since
        it has given the capture up.
        """
        try:
            info = self._driver.stream_get_capture_info(self.origin)
            if info.status is not _ACTIVE:
                return False
            self._follow(info.dependencies, self._joined)
            covered = self._joined
            for stream in besides:
                other = self._driver.stream_get_capture_info(stream)
                if other.id == info.id:
                    covered = set(covered)
                    self._follow(other.dependencies, covered)
            return len(covered) == self._driver.graph_get_node_count(info.graph)
        except DriverError:
            return False

    def join(self) -> tuple[tuple[int, ...], int]:
        """Let the origin's next node depend on all work captured so far.

        Returns the nodes, and how many branches that joined. A branch is a leaf: a node that no other one, and not yet
        the origin, depends on. What the origin depends on already keeps its edge data.
        """
        driver = self._driver
        info = driver.stream_get_capture_info(self.origin)
        if info.status is not _ACTIVE:
            return (), 0  # given up: whoever ends it is told so
        nodes = driver.graph_get_nodes(info.graph)
        if nodes == info.dependencies:  # as of one kernel on the origin
            return nodes, 0
        behind = self._joined.union(info.dependencies)
        behind.update(edge.tail for edge in driver.graph_get_edges(info.graph))
        branches = [node for node in nodes if node not in behind]
        if not branches:
            return nodes, 0
        driver.stream_update_capture_dependencies(
            self.origin,
            (*info.dependencies, *branches),
            (*info.edges, *[EdgeData()] * len(branches)),
            DependencyUpdate.SET,
        )
        return nodes, len(branches)

    def include(self, stream: int) -> bool:
        """Whether a stream is part of this capture now."""
        try:
            info = self._driver.stream_get_capture_info(stream)
            ours = self._driver.stream_get_capture_info(self.origin)
        except DriverError:  # the default stream, while a blocking stream captures (906)
            return False
        return info.status is _ACTIVE and info.id == ours.id

    def _follow(self, heads: Iterable[int], reached: set[int]) -> None:
        nodes = list(heads)
        while nodes:
            node = nodes.pop()
            if node not in reached:
                nodes += self._driver.graph_node_get_dependencies(node)
                reached.add(node)
