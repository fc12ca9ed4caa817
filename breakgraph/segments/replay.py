"""The replay of a captured graph (C22 to C26): what can be prepared is prepared once, when its capture ends.

before the first step                    steps                                     after the last
is it allowed? which stream?       segment, break, segment, ...                    mark the arena's use
the arena's turn, current streams  one flat list of launches and calls             give everything back
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from breakgraph import driver as drivers
from breakgraph.driver import Driver, stream_handle
from breakgraph.driver.cleanup import add_note, add_notes, attempt
from breakgraph.driver.contexts import in_context, restore_context
from breakgraph.driver.here import here
from breakgraph.driver.quick import Sequence
from breakgraph.errors import CaptureStateError, DriverError
from breakgraph.frameworks import Framework
from breakgraph.frameworks.base import ScopedStreams
from breakgraph.memory import Arena
from breakgraph.memory.turn import Turn
from breakgraph.segments.context import current_forward
from breakgraph.segments.flat_list import Call, FlatList
from breakgraph.segments.held import Held
from breakgraph.segments.holdings import Holdings
from breakgraph.segments.landing import Place
from breakgraph.segments.ranges import Ranges, ranges_asked_for
from breakgraph.segments.state import Running
from breakgraph.segments.steps import Around, Break, Segment, Step
from breakgraph.segments.streams import framework_streams, refuse_capturing, refuse_foreign, workplace

if TYPE_CHECKING:
    from breakgraph.segments.graph import BreakableGraph

__all__ = ["Marks", "Prepared", "Replay"]

#: What a replay calls before and after a step, None for nothing; asked once for each, with the place that it runs at.
Marks: TypeAlias = Callable[[Step, Place], tuple[Call | None, Call | None]]


@dataclass(frozen=True)
class Prepared:
    """A replay as one flat list of launches and calls."""

    sequence: Sequence
    steps: list[Step | None]  #: that its places belong to, two to a pair
    ranges: Ranges | None

    def stopped(self, error: BaseException) -> None:
        """Name the step that raised, if one has, and close its range."""
        if self.ranges is not None:
            self.ranges.close()
        step = self.steps[self.sequence.at] if self.sequence.at >= 0 else None
        if isinstance(step, Break):
            add_note(error, f"raised in {step!r}, which was called at {step.site}")
        elif isinstance(step, Segment) and isinstance(error, DriverError):
            error.where = error.where or f"segment {step.index}"


class Replay:
    """Replays one capture, for one thread at a time."""

    def __init__(self, holdings: Holdings, frameworks: Iterable[Framework], *, needs_context: bool) -> None:
        self.needs_context = needs_context
        self._holdings = holdings
        self.driver = holdings.driver
        self._context = holdings.context
        self._arena = holdings.arena
        self._aux = holdings.aux
        self.frameworks = tuple(frameworks)
        self._moving = tuple(one for one in self.frameworks if not one.names_streams)
        # The framework whose current stream is the replay's, where there is no more to ask.
        plain = len(self._moving) == 1 and not self._aux.handles and all(map(_follows, self.frameworks))
        self._only = self._moving[0] if plain else None
        self.round = holdings.arena.round()
        self._place = Place()
        self._whole = len(holdings.steps)
        self._ranges = ranges_asked_for()
        self._plain = self.prepare(rows=False)
        self._with_rows: Prepared | None = None
        #: The replay that is asked for nothing, if it is a usual one; tells whether it was, and so has run.
        self.at_once = self._usual(self._plain)

    # preparing ------------------------------------------------------------------------------------------
    def prepare(self, *, rows: bool, marks: Collection[Marks] = (), around: Around | None = None) -> Prepared:
        """The steps as a list for `run`: with ``rows`` for replays that have valid rows, with what ``marks`` add.

        ``around`` is called in place of each break's function.
        """
        driver, place = self.driver, self._place
        marks = marks if self._ranges is None else (self._ranges, *marks)
        made = FlatList(self._arena.backlog, place)
        aux, before, after = self._aux, _NO_CALLS, _NO_CALLS
        for step in self._holdings.steps:
            if marks:
                before, after = _marked(step, place, marks)
            if isinstance(step, Break):
                if (entries := step.enqueues(aux, rows=rows)) or marks:
                    made.make_room(entries, before, after)
                made.add(step.prepare(driver, aux, place, rows=rows, around=around), step)
            elif step.keeps_lock:
                made.make_room(step.entries, before, after)
                if graph_exec := step.own_exec:
                    made.launch(graph_exec, step)
                elif step.shared:
                    made.add(step.launching(driver, place), step)
            else:
                made.make_room(0, before, after)
                made.add_without_lock(step.launching(driver, place), step, step.entries)
                made.make_room(0, after)
            for call in after:
                made.add(call)
        return Prepared(made.sequence(driver), made.steps, self._ranges)

    def close(self) -> bool:
        """Run no more; False, and nothing is changed, where some thread replays it just now."""
        self.round.is_open = False
        user = self._arena.user
        if isinstance(user, Running) and user.place is self._place:
            self.round.is_open = True
        return self.round.is_open is False

    # replaying ------------------------------------------------------------------------------------------
    def _usual(self, prepared: Prepared) -> Callable[[], bool]:
        """The usual replay: on the current stream of the one library that has such a thing, and nothing to wait for.

        Called, it tells whether it has run; False, and nothing is done, where it is another case after all.
        """
        if self._only is None:
            return _never
        usual = self.round.usual(
            sequence=prepared.sequence,
            current_stream=self._only.stream_source(),
            default_stream=self.driver.resolve_stream(0),
            owner=partial(Running, self._place),
            here=here,
            choice=drivers.choice,
            driver=self.driver,
            steps=self._holdings.steps,
            needs_context=self.needs_context,
            waiting=Turn.waiting,
            stopped=prepared.stopped,
            settle=partial(_settle, self._arena, self.driver, self._context),
        )
        run: Callable[[], bool] = usual.run
        return run

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to refuse a replay for, in this thread and with this driver."""
        return (
            here.capture is None
            and len(self._holdings.steps) == self._whole
            and drivers.current() is self.driver
            and (not self.needs_context or current_forward() is not None)
        )

    def run(
        self, graph: BreakableGraph, stream: object, valid_rows: int | None, prepared: Prepared | None = None
    ) -> bool:
        """One replay of ``graph``, from the choice of its stream to its last clean-up; of ``prepared``, if given.

        False, and nothing is done, where ``graph`` is found to be replayed by another one by now.
        """
        if prepared is not None and stream is None and valid_rows is None and self._usual(prepared)():
            return True
        with in_context(self.driver, self._context):
            return self._run_step_by_step(graph, self.stream_for(graph, stream), valid_rows, prepared)

    def observe(self, graph: BreakableGraph, after: Callable[[Step], object], around: Around) -> None:
        """A replay for looking at: ``after`` is called with each step once it is queued, ``around`` for each break."""
        marks: tuple[Marks, ...] = (lambda step, place: (None, partial(after, step)),)
        self.run(graph, None, None, self.prepare(rows=False, marks=marks, around=around))

    def _run_step_by_step(
        self, graph: BreakableGraph, stream: int, valid_rows: int | None, prepared: Prepared | None
    ) -> bool:
        with Held(self._arena, stream, valid_rows, self._place) as held:
            return self._run_where_still_held(graph, held, prepared)

    def run_in(self, graph: BreakableGraph, held: Held) -> bool:
        """`run` in a turn of the arena that somebody has taken for more than that."""
        for aux in self._aux.handles:
            refuse_capturing(self.driver, aux, "waited for")
        held.place = self._place
        try:
            with in_context(self.driver, self._context):
                return self._run_where_still_held(graph, held)
        finally:
            held.place = None

    def _run_where_still_held(self, graph: BreakableGraph, held: Held, prepared: Prepared | None = None) -> bool:
        if not graph.is_replayed_by(self):  # another thread has reset it meanwhile
            return False
        self._run_steps(held, prepared)
        return True

    def _run_steps(self, running: Running, prepared: Prepared | None) -> None:
        if prepared is None:
            prepared = self._plain if running.valid_rows is None else self._prepared_with_rows()
        aux, replays, stream = self._aux, here.replays, running.stream
        try:
            replays.append(weakref.ref(running))
            self._place.valid_rows = running.valid_rows
            aux.lead(stream)
            try:
                self._run_where_current(prepared, stream)
            except BaseException as error:
                notes: list[str] = []  # what the break that raised has left on the aux streams is joined too
                attempt(notes, "joining the aux streams", partial(aux.lead, stream))
                attempt(notes, "letting the aux streams wait", partial(aux.follow, stream))
                add_notes(error, notes)
                raise
            aux.follow(stream)
        finally:
            if replays and replays[-1]() is running:
                replays.pop()

    def _prepared_with_rows(self) -> Prepared:
        if self._with_rows is None:
            self._with_rows = self.prepare(rows=True)
        return self._with_rows

    def stream_for(self, graph: BreakableGraph, given: object) -> int:
        """The stream that it runs on where ``given`` is asked for; the graph's context is current (C24)."""
        driver = self.driver
        if given is not None:
            handle = driver.resolve_stream(stream_handle(given))
        else:
            current = framework_streams(driver, self._moving) or framework_streams(driver, self.frameworks)
            if len(current) != 1:
                which = "none took part" if not current else f"theirs are {', '.join(map(hex, current))}"
                raise CaptureStateError(
                    f"{graph!r} was replayed without stream=",
                    why=f"the current stream of the frameworks that took part is meant, and {which} (C24)",
                    remedy="pass stream=",
                )
            handle = current[0]
        refuse_capturing(driver, handle, "replayed on")
        if given is not None:
            refuse_foreign(driver, workplace(driver, self._context).event.handle, handle, "replayed on")
        for aux in self._aux.handles:
            refuse_capturing(driver, aux, "waited for")
        return handle

    def _run_where_current(self, prepared: Prepared, stream: int) -> None:
        """Run with ``stream`` the current one of every framework."""
        others = [one for one in self.frameworks if not self._is_current(one, stream)]
        self._run_in_scopes(prepared, stream, others)

    def _is_current(self, framework: Framework, stream: int) -> bool:
        current = framework.current_stream()
        return current is not None and self.driver.resolve_stream(current) == stream

    def _run_in_scopes(self, prepared: Prepared, stream: int, frameworks: list[Framework]) -> None:
        if frameworks:
            with frameworks[0].stream_scope(stream):  # not of a stack: an interrupt could come before it has it
                return self._run_in_scopes(prepared, stream, frameworks[1:])
        try:
            return prepared.sequence.run(stream)
        except BaseException as error:
            prepared.stopped(error)
            raise


def _follows(framework: Framework) -> bool:
    """Whether its current stream is its own affair, or that of the innermost scope of all such libraries."""
    if not framework.names_streams:
        return True
    kind = type(framework)
    return isinstance(framework, ScopedStreams) and all(
        getattr(kind, name) is getattr(ScopedStreams, name) for name in ("current_stream", "stream_scope")
    )


_NO_CALLS: list[Call] = []


def _marked(step: Step, place: Place, marks: Collection[Marks]) -> tuple[list[Call], list[Call]]:
    """What is called before a step, and after it; the first mark is the outermost."""
    marked = [mark(step, place) for mark in marks]
    before = [call for call, _ in marked if call is not None]
    return before, [call for _, call in reversed(marked) if call is not None]


def _never() -> bool:
    return False


def _settle(arena: Arena, driver: Driver, context: int) -> None:
    """After a usual replay: whoever waits for the arena is woken, and the context is the caller's."""
    arena.end_round()
    if driver.ctx_get_current() != context:  # a break has left another one
        restore_context(driver, context)
