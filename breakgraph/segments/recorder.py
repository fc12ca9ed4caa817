"""Turning a running forward into steps: segments begun and ended on one stream, breaks between them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from breakgraph import driver as drivers
from breakgraph.driver.api import CaptureMode, CaptureStatus, NodeType
from breakgraph.driver.cleanup import add_note, attempt
from breakgraph.errors import (
    BreakgraphError,
    CaptureFailed,
    DriverError,
    NotCopyable,
)
from breakgraph.frameworks import Framework
from breakgraph.memory import Cell, Landing, plan_copy, tree
from breakgraph.segments.addresses import AddressBook
from breakgraph.segments.arguments import Arguments, Frozen
from breakgraph.segments.aux_streams import AuxStreams
from breakgraph.segments.break_points import BARE, BreakPoint
from breakgraph.segments.callers import CallSite, told, warn
from breakgraph.segments.context import current_forward
from breakgraph.segments.destinations import (
    HANDED_ON,
    INFER,
    NO_WRITEBACK,
    WRITTEN,
    Claims,
    Destination,
    Landed,
    Ownership,
)
from breakgraph.segments.escapes import Escape, Escapes
from breakgraph.segments.explain import meaning
from breakgraph.segments.holdings import Holdings
from breakgraph.segments.line_watch import LineWatch, LostAt
from breakgraph.segments.outputs import Outputs
from breakgraph.segments.replay import Replay
from breakgraph.segments.side_streams import SideStreams
from breakgraph.segments.steps import Break, Segment

__all__ = ["FrozenPolicy", "Options", "Phase", "Recorder"]

FrozenPolicy = Literal["allow", "warn", "refuse"]


_Scope: TypeAlias = Callable[[], AbstractContextManager[object]]


class Phase(enum.Enum):
    """What the thread that captures is doing."""

    BETWEEN = enum.auto()  #: no segment is open: before the first, after the last, while one is ended or begun
    SEGMENT = enum.auto()
    BREAK = enum.auto()
    LOST = enum.auto()  #: something of the forward was lost: the rest of it runs eagerly (C6)


# A member of an enumeration costs as much to look up as a call (Python 3.11), and each segment asks for several.
_BETWEEN, _SEGMENT, _BREAK, _ALLOCATION = Phase.BETWEEN, Phase.SEGMENT, Phase.BREAK, NodeType.MEM_ALLOC


@dataclass(frozen=True)
class Options:
    """How a capture was asked to record; see `capture`."""

    mode: CaptureMode
    execute: bool
    barrier: Callable[[], object] | None
    frozen: FrozenPolicy
    debug: bool


class Recorder:
    """Records steps into a graph's `Holdings`, which own every handle from the moment it exists."""

    def __init__(
        self,
        holdings: Holdings,
        frameworks: Iterable[Framework],
        stream: int,
        options: Options,
        valid_rows: int | None = None,
    ) -> None:
        self.phase = _BETWEEN
        self.valid_rows = valid_rows
        self.context_published = current_forward() is not None
        footprint = holdings.footprint
        assert footprint is not None  # until the holdings are released
        self._holdings = holdings
        self._driver = holdings.driver
        self._end = holdings.driver.ending().run
        self._frameworks = tuple(frameworks)
        self._outside = _together(*(one.outside_scope for one in self._frameworks if _has_outside_scope(one)))
        self._stream = stream
        self._options = options
        self._ownership = Ownership(self._driver, holdings.arena, footprint.capture)
        self._claims = Claims(self._ownership)
        self._aux = holdings.aux if holdings.aux.handles else None  # where there are any to order
        self._breaks = 0
        self.sides = SideStreams(self._driver, stream, holdings.aux, self._frameworks, debug=options.debug)
        self.outputs = Outputs(holdings, self._ownership, self.sides, stream)
        self._watch: LineWatch | None = None
        if options.debug:
            holdings.addresses = AddressBook(self._driver)
            self._watch = LineWatch(lambda: not self.invalidated, holdings.addresses.note_code)

    # segments -------------------------------------------------------------------------------------------
    @property
    def here(self) -> str:
        """The step being recorded, for messages."""
        return f"segment {self.sides.segment}"

    @property
    def has_nodes(self) -> bool:
        """Whether any was recorded so far."""
        return any(isinstance(step, Segment) and step.nodes for step in self._holdings.steps)

    def begin_segment(self) -> None:
        self._driver.stream_begin_capture(self._stream, self._options.mode)
        self.phase = _SEGMENT
        self.sides.begin()
        self._holdings.arena.begin_segment(self.sides.forks)
        if self._aux is not None:
            self._aux.fork(self._stream)
        if self._watch is not None:
            self._watch.start()

    def end_segment(self) -> None:
        """Join every fork, end the open segment, instantiate it, launch it where the capture pass executes (C3, C11).

        Raises the driver's error, naming the segment, where the capture was invalidated.
        """
        driver, holdings, sides, stream = self._driver, self._holdings, self.sides, self._stream
        arena = holdings.arena
        if self._watch is not None:
            self._watch.stop()
        try:
            made = holdings.new_exec()
            nodes: tuple[int, ...] | None = None
            while (ended := self._end(stream, holdings.graphs, made, nodes)) is None:
                with drivers.relaxed(driver):  # a capture elsewhere, in global mode, must not be harmed (C8)
                    nodes = sides.join()
            nodes, kinds = ended
            self.phase = _BETWEEN
            used = arena.end_segment()
            if _ALLOCATION in kinds:
                self._refuse_allocations(kinds)
            if made is not None and not nodes:
                holdings.drop_exec(made)
                made = None
            segment = Segment(sides.segment, holdings.graphs[-1], kinds, sides.joined, sides.streams, used, made)
            if nodes and made is None:
                segment.give_exec(holdings.make_exec(segment, nodes, kinds), holdings.make_own_exec)
            holdings.steps.append(segment)
            if self._options.execute:
                backlog, short = arena.backlog, segment.is_short
                if short:
                    backlog.make_room(segment.entries, stream)
                segment.launch(stream, driver.graph_launch_yielding)
                if not short:
                    backlog.add(segment.entries)
        except DriverError as error:
            error.where = error.where or self.here
            raise

    def check_whole(self) -> None:
        """Segments are one more than breaks (C2); anything else means that a step was lost."""
        segments = [*map(type, self._holdings.steps)].count(Segment)
        if segments != self._breaks + 1:
            raise CaptureFailed(
                f"{segments} segments were recorded around {self._breaks} breaks", why="a step was lost (C2)"
            )

    def prepare_replay(self) -> Replay:
        """The capture is whole: what replays it."""
        self._holdings.strays = self.sides.strays
        return Replay(self._holdings, self._frameworks, needs_context=self.context_published)

    def _refuse_allocations(self, kinds: tuple[int, ...]) -> None:
        left = kinds.count(NodeType.MEM_ALLOC) - kinds.count(NodeType.MEM_FREE)
        if left > 0:
            raise CaptureFailed(
                f"{left} stream-ordered allocation(s) are left unfreed in {self.here}",
                why="the driver launches such a graph only once, so it cannot be replayed (C29)",
                remedy="allocate before the capture, or through a framework that takes part",
            )

    def abandon_segment(self, notes: list[str]) -> None:
        """Leave the stream not capturing, whatever became of the segment."""

        def end() -> None:
            if self._driver.stream_is_capturing(self._stream) == CaptureStatus.NONE:
                return
            try:
                self._holdings.graphs.append(self._driver.stream_end_capture(self._stream))
            except DriverError:
                if self._driver.stream_is_capturing(self._stream) != CaptureStatus.NONE:
                    raise

        if self._watch is not None:
            self._watch.stop()
        attempt(notes, f"ending the capture on stream {self._stream:#x}", end)

    @property
    def lost(self) -> LostAt | None:
        """Where the capture became invalid, if it has, and was watched."""
        if self._watch is None:
            return None
        self._watch.stop()
        return self._watch.found

    @property
    def invalidated(self) -> bool:
        """Whether the driver has given the open segment up."""
        try:
            return self._driver.stream_is_capturing(self._stream) == CaptureStatus.INVALIDATED
        except DriverError:
            return False

    # what the capture asks of it --------------------------------------------------------------------------
    @property
    def aux(self) -> AuxStreams:
        return self._holdings.aux

    @property
    def inferred(self) -> frozenset[int]:
        """Generations of the arena blocks that are destinations of breaks."""
        return frozenset(self._ownership.inferred)

    def note_stream(self, stream: int) -> None:
        """Memory is allocated for work on a stream other than the origin, maybe."""
        if self.phase is _SEGMENT:
            self.sides.note(stream)

    # breaks ---------------------------------------------------------------------------------------------
    def record(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any], where: CallSite) -> Any:
        """End the segment, run the break eagerly, land its result, begin the next segment.

        Returns what the forward goes on with. What is raised on the way names the break and its call.
        """
        try:
            value, recorded = self._run(point, args, kwargs, where)
        except BaseException as error:
            self._tell(error, f"break {self._named(point)}, called at {told(where)}")
            raise
        if self.valid_rows is not None:
            recorded.scrub(self._driver, self.valid_rows, self._stream)
        self._holdings.steps.append(recorded)
        self._breaks += 1
        self.phase = _BETWEEN
        self.begin_segment()
        return value

    def _run(
        self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any], where: CallSite
    ) -> tuple[Any, Break]:
        destination = point.dst
        if point.out is not None:
            destination = point.destination(kwargs)
            kwargs = point.with_destination(kwargs, destination)
        context = current_forward()
        if context is not None:
            self.context_published = True
        arguments = Arguments.of(point.function, args, kwargs, ownership=self._ownership, context=context)
        if arguments.frozen:
            self._apply_frozen_policy(point, arguments.frozen)
        if not isinstance(destination, Destination):
            self._claims.claim(destination, self._named(point))
        self.sides.check_break()
        self.end_segment()
        self.phase = _BREAK
        if self._aux is not None:
            self._aux.follow(self._stream)
        if self._options.barrier is not None:
            self._options.barrier()
        if self._watch is None:
            value, landed = self._eagerly(self._outside, point, destination, args, kwargs, arguments)
        else:
            value, landed = self._watched(point, destination, args, kwargs, arguments)
        if landed.handed_on:
            self._apply_frozen_policy(point, map(Frozen, landed.handed_on, landed.handed_on.values()))
        return value, Break(self._breaks, point, where, arguments, landed)

    def _eagerly(
        self,
        outside: _Scope,
        point: BreakPoint,
        destination: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Arguments,
        escapes: Escapes | None = None,
    ) -> tuple[Any, Landed]:
        """Call the function and land its result, in a scope in which libraries allocate as before the capture.

        The result goes with this call, before a segment is open: its end may free memory on this very stream.
        """
        with outside():
            result = (point.stub or point.function)(*args, **kwargs)
            if escapes is not None:
                escapes.returned(result)
            if self._aux is not None:
                self._aux.lead(self._stream)
            if destination is INFER and result is not None:
                return self._land_inferred(result, self._named(point))
            return self._land(point, destination, result, arguments)

    def _watched(
        self, point: BreakPoint, destination: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments
    ) -> tuple[Any, Landed]:
        """`_eagerly` with ``debug``: what the function keeps of its allocations is told, unless it may keep them."""
        outside, escapes = self._outside, None
        if not point.keeps:
            escapes = Escapes(self._driver)
            outside = _together(outside, partial(escapes.watching, self._frameworks))
        landed = self._eagerly(outside, point, destination, args, kwargs, arguments, escapes)
        if escapes is not None:
            self._tell_escapes(self._named(point), escapes.left())
        if self._holdings.addresses is not None:
            self._holdings.addresses.note_function(point.function)
        return landed

    def _named(self, point: BreakPoint) -> str:
        """The break being recorded, for messages."""
        return f"{self._breaks} {point.name!r}"

    def _tell(self, error: BaseException, place: str) -> None:
        """Let an error say where it was raised, and what it means there."""
        if isinstance(error, BreakgraphError):
            error.where = error.where or place
        else:
            add_note(error, f"raised in {place}")
        if note := meaning(error, self.lost):
            add_note(error, note)

    def _land(self, point: BreakPoint, destination: Any, result: Any, arguments: Arguments) -> tuple[Any, Landed]:
        """Take the first result to its destination, by the form that the break states (C13).

        Returns what the forward goes on with, which is not kept, and what replay needs.
        """
        if isinstance(destination, Destination):
            held = None
            if result is not None:
                # Segments bake the addresses of what is handed on, so it stays allocated, whatever its values.
                held = tree.rebuild(result, self._ownership.hold, is_leaf=self._ownership.is_array)
                self._holdings.kept.append(held)
            if destination is NO_WRITEBACK:
                stale = () if held is None else tuple(self._ownership.targets(held))
                return result, Landed(Landing.NO_WRITEBACK, stale=stale) if stale else HANDED_ON
            if point.writes:
                written = tuple(self._ownership.targets(arguments.named(point.writes, point.function)))
                return result, Landed(Landing.IN_PLACE, targets=written)
            return result, Landed(Landing.BARE) if point is BARE else WRITTEN
        kept, origins = self._ownership.snapshot(destination)
        targets = tuple(self._ownership.targets(kept))
        writes = point.out is not None
        if result is None and writes:
            value = destination.array if isinstance(destination, Cell) else destination
            return value, Landed(Landing.SAME, kept, written_by_function=True, targets=targets)
        plan = plan_copy(destination, result)
        landed = Landed(
            plan.landing,
            kept,
            written_by_function=writes,
            handed_on=plan.handed_on,
            origins=origins,
            targets=targets,
        )
        return plan.run(self._stream), landed

    def _land_inferred(self, result: Any, name: str) -> tuple[Any, Landed]:
        ownership = self._ownership
        owner, made = ownership.infer(result)
        plan = plan_copy(owner, result, inferred=True)
        if plan.landing is Landing.SAME or isinstance(result, np.ndarray):
            raise NotCopyable(
                f"result is {result!r:.80} (type {type(result).__name__}), which holds no device array to land",
                why="replay could not change a value of the host that the next segments have baked (C13)",
                remedy="return the arrays that later code reads; or hand it on with dst=bg.NO_WRITEBACK, where it is"
                " the same at each replay or nobody reads it",
            )
        self._claims.claim(made, name)  # no later break is sent there while it lives
        kept = tree.rebuild(owner, ownership.hold, objects=True, is_leaf=ownership.is_storage)
        targets = tuple(ownership.targets(kept))
        plan.run(self._stream)
        return owner, Landed(plan.landing, kept, inferred=True, handed_on=plan.handed_on, targets=targets)

    @staticmethod
    def _tell_escapes(name: str, left: tuple[Escape, ...]) -> None:
        if left:
            warn(
                f"break {name} keeps what it does not return: {'; '.join(map(str, left))}. At replay it makes that anew"
                " elsewhere, and a segment that reads the first goes on with it. Mend: return it, or copy it into a"
                " bg.Cell; where no segment reads it, declare it with bg.break_point(keeps=True)"
            )

    def _apply_frozen_policy(self, point: BreakPoint, frozen: Iterable[Frozen]) -> None:
        if self._options.frozen == "allow":
            return
        for name, value in frozen:
            what = f"{name} of break {point.name!r} is frozen at {value!r:.80}"
            if self._options.frozen == "refuse":
                raise BreakgraphError(
                    what,
                    why="only arrays and the forward context are live at replay (C19)",
                    remedy="pass it as an array or through bg.active_forward, or capture with frozen='allow'",
                )
            warn(what)


def _together(*scopes: _Scope) -> _Scope:
    """One scope in place of several, which are entered in this order."""
    if len(scopes) == 1:
        return scopes[0]

    @contextmanager
    def all_of_them() -> Iterator[None]:
        with ExitStack() as stack:
            for one in scopes:
                stack.enter_context(one())
            yield

    return all_of_them if scopes else nullcontext


def _has_outside_scope(framework: Framework) -> bool:
    """Whether the library does anything there: most that have no memory of their own do not."""
    return getattr(type(framework), "outside_scope", None) is not Framework.outside_scope
