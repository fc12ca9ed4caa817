"""The two kinds of step that a graph is made of. Both answer `run`, so replay is one loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from breakgraph import frameworks
from breakgraph.errors import DriverError, ExecUpdateRefused
from breakgraph.memory import Landing, SegmentUse
from breakgraph.segments.arguments import Arguments, Frozen
from breakgraph.segments.context import current_forward
from breakgraph.segments.destinations import Landed
from breakgraph.segments.execs import Exec, HasGraph, SharedExec
from breakgraph.segments.padding import zero_rows_from
from breakgraph.segments.state import Running

__all__ = ["Break", "Segment"]


class Segment:
    """A run of captured stream work, instantiated as one ``CUgraphExec``.

    Attributes
    ----------
    index
        Its place among the segments.
    nodes
        Number of graph nodes.
    graph
        Handle of the captured ``CUgraph``.
    joined
        How many branches were joined to the origin when it ended, that the forward had not joined itself (C11).
    allocations, allocated
        How many blocks it asked its arena for, and their bytes; one that is handed on counts each time.
    """

    __slots__ = ("__weakref__", "_exec", "_make_own", "allocated", "allocations", "graph", "index", "joined", "nodes")

    def __init__(self, index: int, graph: int, nodes: int, joined: int, used: SegmentUse) -> None:
        self.index = index
        self.graph = graph
        self.nodes = nodes
        self.joined = joined
        self.allocations, self.allocated = used
        self._exec: Exec | SharedExec | None = None
        self._make_own: Callable[[HasGraph, Exec | SharedExec], Exec | SharedExec] | None = None

    @property
    def exec(self) -> int:
        """Handle of the ``CUgraphExec``; 0 for a segment without nodes, which is never launched (C23)."""
        return self._exec.handle if self._exec else 0

    @property
    def shared(self) -> bool:
        """Whether its exec comes from an `ExecCache`."""
        return self._exec is not None and self._exec.shared

    def give_exec(
        self, made: Exec | SharedExec, make_own: Callable[[HasGraph, Exec | SharedExec], Exec | SharedExec]
    ) -> None:
        """Take an exec; ``make_own`` makes one in its place, for when a shared one cannot be given the parameters."""
        self._exec, self._make_own = made, make_own

    def launch(self, stream: int) -> None:
        if self._exec is None:
            return
        try:
            try:
                self._exec.launch(self, stream)
            except ExecUpdateRefused:
                assert self._make_own is not None  # comes with the exec
                self._exec = self._make_own(self, self._exec)
                self._exec.launch(self, stream)
        except DriverError as error:
            error.where = error.where or f"segment {self.index}"
            raise

    def run(self, running: Running) -> None:
        self.launch(running.stream)

    def __repr__(self) -> str:
        return f"<Segment {self.index}: {self.nodes} nodes>"


class Break:
    """A Python callable run eagerly between two segments, and the way of its result to its destination (C12).

    Attributes
    ----------
    index, name, tag
        Its place among the breaks, the function's name, the tag by which ``break_on`` selects it.
    site
        ``file:line`` of the call.
    frozen
        What stays as it was at capture: arguments that are no arrays, plain values in the result.
    landing
        Which branch of `copy_output` its result took.
    """

    __slots__ = ("_arguments", "_function", "_landed", "_rows", "frozen", "index", "landing", "name", "site", "tag")

    def __init__(
        self,
        *,
        index: int,
        name: str,
        tag: str | None,
        site: str,
        function: Callable[..., object],
        arguments: Arguments,
        landed: Landed,
        rows: bool,
    ) -> None:
        self.index = index
        self.name = name
        self.tag = tag
        self.site = site
        self.frozen = (*arguments.frozen, *(Frozen(path, value) for path, value in landed.handed_on.items()))
        self.landing: Landing = landed.landing
        self._function = function
        self._arguments = arguments
        self._landed = landed
        self._rows = rows

    def run(self, running: Running) -> None:
        args, kwargs = self._arguments.live(current_forward())
        try:
            running.aux.follow(running.stream)
            result = self._function(*args, **kwargs)
            running.aux.lead(running.stream)
            self._landed.land(result, running.stream)
        except BaseException as error:
            error.add_note(f"raised in {self!r}, which was called at {self.site}")
            raise
        if self._rows and running.valid_rows is not None:
            for array in self._landed.targets:
                self._scrub(running, array, running.valid_rows)

    @staticmethod
    def _scrub(running: Running, array: Any, rows: int) -> None:
        framework = frameworks.of(array, running.driver)
        assert framework is not None  # targets are arrays
        zero_rows_from(running.driver, framework, array, rows, running.stream)

    def __repr__(self) -> str:
        tag = f", tag {self.tag!r}" if self.tag else ""
        return f"<Break {self.index} {self.name!r}: {self.landing}{tag}>"
