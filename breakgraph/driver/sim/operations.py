"""What a stream runs: a piece of work, and one occurrence of it in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from breakgraph.driver.api import NodeType
from breakgraph.driver.sim.races import Access

if TYPE_CHECKING:
    from breakgraph.driver.sim.contexts import Context
    from breakgraph.driver.sim.heap import Allocation
    from breakgraph.driver.sim.streams import Event

__all__ = ["Operation", "Work"]


class Work:
    """What is done, with every address baked: enqueued once by a call, or many times as a graph node.

    ``run`` may be called any number of times and raises `Fault` where it touches what it may not;
    ``accesses`` are the bytes it touches. ``event`` is that of an external wait or record node,
    ``allocation`` that of an allocation or free node.
    """

    __slots__ = ("accesses", "allocation", "event", "name", "run", "type")

    def __init__(
        self,
        name: str,
        node_type: NodeType,
        run: Callable[[], None],
        accesses: tuple[Access, ...] = (),
        *,
        event: Event | None = None,
        allocation: Allocation | None = None,
    ) -> None:
        self.name = name
        self.type = node_type
        self.run = run
        self.accesses = accesses
        self.event = event
        self.allocation = allocation


class Operation:
    """One occurrence of work in a stream: runs once, after everything it depends on."""

    __slots__ = ("blockers", "context", "dependencies", "done", "followers", "lane", "run", "work")

    done: bool

    def __init__(self, context: Context, lane: int, work: Work, after: Iterable[Operation]) -> None:
        self.context = context
        self.lane = lane
        self.work = work
        self.dependencies = [operation for operation in after if not operation.done]
        self.followers: list[Operation] = []
        self.blockers = len(self.dependencies)
        self.done = False
        for operation in self.dependencies:
            operation.followers.append(self)

    def forget(self) -> None:
        """Keep nothing alive: neither history nor what a kernel closes over."""
        self.dependencies = []
        self.work = _DONE


_DONE = Work("done", NodeType.EMPTY, lambda: None)
