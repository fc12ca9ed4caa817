"""The two kinds of step that a graph is made of, and what a replay calls for each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeAlias

from breakgraph.driver import Driver
from breakgraph.driver.api import NodeType
from breakgraph.errors import ExecUpdateRefused
from breakgraph.frameworks import Array
from breakgraph.memory import Landing, SegmentUse
from breakgraph.memory.backlog import HALF
from breakgraph.segments.arguments import Arguments, Frozen
from breakgraph.segments.aux_streams import AuxStreams
from breakgraph.segments.break_points import BreakPoint
from breakgraph.segments.callers import CallSite, told
from breakgraph.segments.destinations import Landed
from breakgraph.segments.execs import Exec, HasGraph, Launch, SharedExec
from breakgraph.segments.landing import Place
from breakgraph.segments.padding import row_scrubber

__all__ = ["Around", "Break", "Segment", "Step"]

#: Called for a break of a replay that is looked at: with it, its function, and the arguments of the call.
Around: TypeAlias = Callable[..., Any]

_NESTED = {NodeType.GRAPH, NodeType.CONDITIONAL}
_MAY_CALL_HOST = {NodeType.HOST, *_NESTED}
_UNKNOWN = 4 * HALF


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
    calls_host
        Whether it has host functions, or graphs in which there may be some.
    entries
        How many entries of the driver's queue a launch takes at most; more than it has, where graphs within hide them.
    is_short
        Whether the queue has room for all of it at once.
    keeps_lock
        Whether a launch may keep the interpreter lock.
    streams
        Handles of the streams that were seen to take part, the origin first. The driver does not list them: one on
        which nothing was allocated is seen only as a branch of the graph.
    """

    __slots__ = (
        "__weakref__",
        "_exec",
        "_make_own",
        "_used",
        "calls_host",
        "entries",
        "graph",
        "index",
        "is_short",
        "joined",
        "keeps_lock",
        "nodes",
        "streams",
    )

    def __init__(
        self,
        index: int,
        graph: int,
        kinds: Collection[int],
        joined: int,
        streams: tuple[int, ...],
        used: SegmentUse,
        made: Exec | SharedExec | None = None,
    ) -> None:
        self.index = index
        self.graph = graph
        self.nodes = self.entries = len(kinds)
        self.calls_host = calls_host = not _MAY_CALL_HOST.isdisjoint(kinds)
        if not _NESTED.isdisjoint(kinds):
            self.entries = max(self.nodes, _UNKNOWN)
        self.is_short = is_short = self.entries <= HALF
        self.keeps_lock = is_short and not calls_host
        self.joined = joined
        self.streams = streams
        self._used = used
        self._exec = made
        self._make_own: Callable[[HasGraph, Exec | SharedExec], Exec | SharedExec] | None = None

    @property
    def exec(self) -> int:
        """Handle of the ``CUgraphExec``; 0 for a segment without nodes, which is never launched (C23)."""
        return self._exec.handle if self._exec else 0

    @property
    def own_exec(self) -> int:
        """The same handle where no other segment shares it, so that a launch needs no more; else 0."""
        made = self._exec
        return made.handle if made is not None and not made.shared else 0

    @property
    def allocations(self) -> int:
        """How many blocks it asked its arena for; one that is handed on counts each time."""
        return self._used.allocations

    @property
    def allocated(self) -> int:
        """Bytes of those blocks."""
        return self._used.nbytes

    @property
    def shared(self) -> bool:
        """Whether its exec comes from an `ExecCache`."""
        return self._exec is not None and self._exec.shared

    def give_exec(
        self, made: Exec | SharedExec, make_own: Callable[[HasGraph, Exec | SharedExec], Exec | SharedExec]
    ) -> None:
        """Take one that may be shared; ``make_own`` makes one in its place, for when it cannot take the parameters."""
        self._exec, self._make_own = made, make_own

    def launch(self, stream: int, launch: Launch) -> None:
        """Launch it by a call of the driver's, after an update where another segment had a shared exec last."""
        if self._exec is None:
            return
        try:
            self._exec.launch(self, stream, launch)
        except ExecUpdateRefused:
            assert self._make_own is not None  # comes with one that is shared
            self._exec = self._make_own(self, self._exec)
            self._exec.launch(self, stream, launch)

    def launching(self, driver: Driver, place: Place) -> Callable[[], object]:
        """What a replay calls to launch it where ``place`` is, if `own_exec` is not all that there is to launch."""
        if self.keeps_lock:
            return lambda: self.launch(place.stream, driver.graph_launch)
        return lambda: self.launch(place.stream, driver.graph_launch_yielding)

    def __repr__(self) -> str:
        return f"<Segment {self.index}: {self.nodes} nodes>"


class Break:
    """A Python callable run eagerly between two segments, and the way of its result to its destination (C12).

    Attributes
    ----------
    index, name, tag
        Its place among the breaks, the function's name, the tag by which ``break_on`` selects it.
    keeps
        Whether it was declared to keep arrays that it makes.
    """

    __slots__ = (
        "_arguments",
        "_function",
        "_landed",
        "_rows",
        "_where",
        "index",
        "keeps",
        "name",
        "tag",
    )

    def __init__(
        self,
        index: int,
        point: BreakPoint,
        where: CallSite,
        arguments: Arguments,
        landed: Landed,
    ) -> None:
        self.index = index
        self.keeps = point.keeps
        self.name = point.name
        self.tag = point.tag
        self._where = where
        self._function = point.function
        self._arguments = arguments
        self._landed = landed
        self._rows = point.rows

    @property
    def frozen(self) -> tuple[Frozen, ...]:
        """What stays as it was at capture: arguments that are no arrays, plain values in the result."""
        handed_on = self._landed.handed_on
        return (*self._arguments.frozen, *map(Frozen, handed_on, handed_on.values()))

    @property
    def landing(self) -> Landing:
        """Which branch of `copy_output` its result took."""
        return self._landed.landing

    @property
    def site(self) -> str:
        """``file:line`` of the call."""
        return told(self._where)

    @property
    def lands(self) -> bool:
        """Whether a replay copies its result to a destination."""
        return self._landed.copies

    def enqueues(self, aux: AuxStreams, *, rows: bool) -> int:
        """How many driver calls a replay makes for it on one stream, beside what the function itself does there."""
        landed, handles = self._landed, aux.handles
        if not landed.targets and not handles:
            return 0
        writes = len(landed.targets) * (landed.copies + (rows and self._rows))
        return writes + 1 + len(handles) if handles else writes

    @property
    def destination(self) -> str:
        """Where its result lands, by its form: ``bg.INFER``, ..., or the type of the destination that was given."""
        return self._landed.form

    @property
    def targets(self) -> tuple[Array, ...]:
        """The arrays that a replay writes; of one in place those that were declared."""
        return self._landed.targets

    @property
    def stale(self) -> tuple[Array, ...]:
        """Arrays of its first result that no replay writes again, since it was handed on (NO_WRITEBACK)."""
        return self._landed.stale

    def prepare(
        self, driver: Driver, aux: AuxStreams, place: Place, *, rows: bool, around: Around | None = None
    ) -> Callable[[], object]:
        """What a replay calls, with all bound that does not change from one to the next.

        With ``rows`` it zeroes the padding of the destinations, from ``place.valid_rows`` on. With ``around`` that is
        called with the break, its function and the arguments, in place of the function.
        """
        function = self._arguments.bind(self._function if around is None else partial(around, self, self._function))
        landed = self._landed
        land = landed.landing_at(place) if landed.copies else None
        scrub = [row_scrubber(driver, array) for array in landed.targets] if rows and self._rows else ()
        if not scrub and not aux.handles:
            return function if land is None else lambda: land(function())

        def call() -> None:
            aux.follow(place.stream)
            result = function()
            aux.lead(place.stream)
            if land is not None:
                land(result)
            for zero_from in scrub:
                assert place.valid_rows is not None  # such a break is for replays that have it
                zero_from(place.valid_rows, place.stream)

        return call

    def scrub(self, driver: Driver, rows: int | None, stream: int) -> None:
        """Zero the padding of its destinations, from ``rows`` on, unless it has opted out (C22)."""
        if rows is not None and self._rows:
            for array in self._landed.targets:
                row_scrubber(driver, array)(rows, stream)

    def __repr__(self) -> str:
        tag = f", tag {self.tag!r}" if self.tag else ""
        return f"<Break {self.index} {self.name!r}: {self.landing}{tag}>"


Step = Segment | Break
