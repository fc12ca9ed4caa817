"""One open capture: what it has changed in the thread and on the device, and how that is undone (C1, C5, C6)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from breakgraph import frameworks as libraries
from breakgraph.driver import Driver
from breakgraph.driver.cleanup import add_note, add_notes, attempt
from breakgraph.driver.contexts import restore_context
from breakgraph.driver.here import here
from breakgraph.errors import CaptureFailed, CaptureInvalidated, CaptureStateError, DriverError
from breakgraph.frameworks import Framework
from breakgraph.frameworks.base import Block
from breakgraph.memory import Arena, Footprint, default_arena
from breakgraph.memory.turn import Owner
from breakgraph.segments.aux_streams import AuxStreams
from breakgraph.segments.break_points import BreakPoint
from breakgraph.segments.callers import CallSite, site, warn
from breakgraph.segments.collector import pause_collector, resume_collector
from breakgraph.segments.execs import ExecCache
from breakgraph.segments.explain import elsewhere, explain
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.held import Held
from breakgraph.segments.holdings import Holdings
from breakgraph.segments.recorder import Options, Phase, Recorder
from breakgraph.segments.replay import Replay
from breakgraph.segments.streams import chosen_stream, framework_streams, refuse_capturing, refuse_foreign, workplace
from breakgraph.segments.survivors import Survivor, find_survivors

__all__ = ["Capture"]

_SEGMENT = Phase.SEGMENT  # sooner found at every break point
_Step = tuple[str, Callable[[], object]]  # what it does, for messages, and the call


class Capture(Owner):
    """Enters and leaves the scope; the `Recorder` does what lies between."""

    def __init__(
        self,
        graph: BreakableGraph,
        driver: Driver,
        options: Options,
        break_on: frozenset[str] | None,
        execs: ExecCache | None,
    ) -> None:
        self.stream = 0
        self.graph = graph
        self.over = False  # everything is undone, and the graph knows what has become of it
        self._driver = driver
        self._options = options
        self._break_on = break_on
        self._execs = execs
        self._context = 0
        self._footprint = Footprint()
        self._arena: Arena | None = None
        self._thread = threading.current_thread()  # not its number, which is used again
        self._holdings: Holdings | None = None  # the graph's, once it has taken this capture
        self._recorder: Recorder | None = None
        self._named_frameworks = False
        self._lost: BaseException | None = None
        self._interrupt: BaseException | None = None  # came while leaving
        self._frameworks: tuple[Framework, ...] = ()
        self._allocators = ExitStack()
        self._kept: tuple[object, ...] = ()  # as long as the capture is open: its stream
        self._undo: list[_Step] = []
        self._undo_here: list[_Step] = []  # what only this thread can undo; it comes before the rest

    # asked at every break point ---------------------------------------------------------------------------
    @property
    def in_segment(self) -> bool:
        return self._recorder is not None and self._recorder.phase is Phase.SEGMENT

    @property
    def valid_rows(self) -> int | None:
        """Real rows of the call that is captured, for its breaks (C22); a segment would bake them."""
        recorder = self._recorder
        return recorder.valid_rows if recorder is not None and recorder.phase is Phase.BREAK else None

    def selects(self, tag: str | None) -> bool:
        """Whether a break point with ``tag`` splits the forward here and now (C9, C20)."""
        recorder = self._recorder
        if recorder is None or recorder.phase is not _SEGMENT:
            return False
        return self._break_on is None or tag in self._break_on

    def record(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any], where: CallSite) -> Any:
        """Run a break point as a break. Whatever it raises has lost a part of the forward (C6)."""
        assert self._recorder is not None  # selects() was true
        try:
            return self._recorder.record(point, args, kwargs, where)
        except BaseException as error:
            self._lose(error)
            raise

    def output(self, value: Any) -> Any:
        """See `BreakableGraph.output`."""
        if self._recorder is None or self._recorder.phase not in (Phase.SEGMENT, Phase.LOST):
            raise CaptureStateError(
                f"an output of {self.graph!r} was declared in a break",
                why="a break is no part of a segment, so replay would not copy the output again",
                remedy="declare it in the forward, after the break has returned",
            )
        return value if self._recorder.phase is Phase.LOST else self._recorder.outputs.pin(value)

    def _lose(self, error: BaseException) -> None:
        assert self._recorder is not None
        notes: list[str] = []
        self._recorder.abandon_segment(notes)
        self._recorder.phase = Phase.LOST
        self._lost = error
        # The rest of the body runs eagerly (C6): in memory of its own, and after what the break left on aux streams.
        attempt(notes, "", self._allocators.close)
        attempt(notes, "joining the aux streams", partial(self._recorder.aux.lead, self.stream))
        add_notes(error, notes)

    # entering ---------------------------------------------------------------------------------------------
    def enter(
        self,
        stream: object,
        aux: Iterable[object],
        arena: Arena | None,
        framework_names: Iterable[str] | None,
        held: Held | None = None,
    ) -> None:
        try:
            self._enter(stream, aux, arena, framework_names, held)
        except BaseException as error:
            begun = self._holdings is not None and self.graph.holdings is self._holdings
            self.drain(error, refused=not begun and not isinstance(error, DriverError))
            raise

    def drain(self, error: BaseException, *, refused: bool = False) -> None:
        """Undo whatever was done. Where the capture was ``refused``, the graph is as it was; else it has failed.

        In another thread, after the end of this one, only what concerns more than this thread is undone.
        """
        notes: list[str] = []
        if threading.current_thread() is not self._thread:
            _never_close((self._undo_here, self._allocators))
            self._undo_here, self._allocators = [], ExitStack()
        if self._recorder is not None:
            self._recorder.abandon_segment(notes)
        notes += self._unwind()
        if not refused:
            notes += self.graph.fail(error, self._holdings)
        self.over = True
        add_notes(error, notes)

    def _enter(
        self,
        stream: object,
        aux: Iterable[object],
        arena: Arena | None,
        framework_names: Iterable[str] | None,
        held: Held | None,
    ) -> None:
        driver = self._driver
        context = self._context = driver.ensure_context()
        self._frameworks = libraries.taking_part(driver, framework_names)
        self._named_frameworks = framework_names is not None
        for framework in self._frameworks:
            framework.check_context(driver)
        place = workplace(driver, context)
        self._kept = (place, stream)
        self.stream = place.stream.handle if stream is None else chosen_stream(driver, stream)
        refuse_capturing(driver, self.stream, "captured")
        aux_streams = AuxStreams(driver, aux, self.stream)
        for given, use in ((() if stream is None else (self.stream,), "captured"), (aux_streams.handles, "forked")):
            for one in given:
                refuse_capturing(driver, one, use)
                refuse_foreign(driver, place.event.handle, one, use)
        current = framework_streams(driver, self._frameworks)
        if held is not None and held.stream not in current:
            current.append(held.stream)
        callers = [one for one in current if one != self.stream]
        for caller in callers:
            refuse_capturing(driver, caller, "waited for")
        arena = arena if arena is not None else default_arena(driver, context)
        if not arena.belongs_to(driver, context):
            raise CaptureStateError(
                "the arena belongs to another driver or context than the current one",
                why="its memory was mapped for the context that was current when it was made (C31)",
                remedy="make the arena where the capture runs",
            )
        # What undoes a step is promised before the step, so that an interrupt in between loses nothing.
        self._arena = arena
        if held is None:
            self._undo.append(("", partial(arena.release, self)))
            arena.acquire(self, self.stream)
            arena.begin_capture(self._footprint)
            self._undo.append(("marking the arena's last use", lambda: arena.record_use(self.stream)))
        else:
            self._footprint = held.footprint or held.begin_capture()
        self._footprint.label = self.graph.name or f"the graph captured at {site()}"
        self._undo.append(("", partial(resume_collector, self)))
        pause_collector(self)
        for caller in callers:
            place.order(driver, before=caller, after=self.stream)
            told = f"letting stream {caller:#x} wait"
            self._undo_here.append((told, partial(place.order, driver, self.stream, caller)))
        aux_streams.lead(self.stream)
        self._undo_here.append(("letting the aux streams wait", partial(aux_streams.follow, self.stream)))
        self._undo_here.append(("waiting for the aux streams", partial(aux_streams.lead, self.stream)))
        kept = self._enter_frameworks(arena)
        self._undo_here.append(("", self._vacate))
        here.capture = self
        holdings = Holdings(
            driver,
            context,
            arena,
            aux=aux_streams,
            footprint=self._footprint,
            cache=self._execs,
            measures_execs=self._options.debug,
        )
        holdings.kept += kept
        rows = None if held is None else held.valid_rows
        self._recorder = Recorder(holdings, self._frameworks, self.stream, self._options, rows)
        self._holdings = holdings
        self.graph.begin(holdings, self.stream)
        self._recorder.begin_segment()

    def _enter_frameworks(self, arena: Arena) -> list[object]:
        """Set their streams and allocators. Returns what they need as long as the graph lives."""
        scoped = here.streams
        self._undo_here.append(("", partial(scoped.__delitem__, slice(len(scoped), None))))  # of an interrupted scope
        for framework in self._frameworks:
            scope = ExitStack()
            self._undo_here.append(("", scope.close))
            scope.enter_context(framework.stream_scope(self.stream))
        self._undo_here.append(("", self._allocators.close))
        scopes = [framework.allocator_scope(_FromArena(self, arena, framework)) for framework in self._frameworks]
        return [self._allocators.enter_context(scope) for scope in scopes]

    def note_stream(self, stream: int) -> None:
        """Memory was allocated for work on a stream."""
        if stream != self.stream and self._recorder is not None:
            self._recorder.note_stream(stream)

    def _vacate(self) -> None:
        if here.capture is self:
            here.capture = None

    # leaving ----------------------------------------------------------------------------------------------
    def leave(self, error: BaseException | None) -> None:
        if threading.current_thread() is not self._thread:
            raise CaptureStateError(
                "a capture scope was left by another thread than the one that entered it",
                why="the capture, and the current streams and allocators it has set, are that thread's",
                remedy="leave it there; it is still open",
            )
        recorder = self._recorder
        assert recorder is not None  # enter() has succeeded
        failure = error or self._lost
        replay: Replay | None = None
        survivors: tuple[Survivor, ...] = ()
        notes: list[str] = []
        try:
            attempt(notes, "restoring the context", partial(restore_context, self._driver, self._context))
            if failure is None:
                recorder.sides.check_outside()
                recorder.end_segment()
                recorder.check_whole()
                replay = recorder.prepare_replay()
                self._allocators.close()  # what libraries kept for the segment survives nothing
                survivors = self._survivors(recorder)
            elif self._lost is None:
                self._explain(recorder, failure)
        except BaseException as end_error:
            failure = failure or end_error
        if failure is not None:
            self._undo_here.append(("", partial(recorder.abandon_segment, notes)))
        notes += self._unwind()
        if failure is None:
            failure = self._interrupt
        if failure is None and notes:
            failure = CaptureFailed("the capture could not be closed", why="; ".join(notes))
        if failure is not None:
            self._fail(error, failure, notes)
            return
        assert replay is not None  # nothing has failed
        self.graph.finish(replay, survivors)
        self.over = True
        self._warn(recorder)

    def _survivors(self, recorder: Recorder) -> tuple[Survivor, ...]:
        """What outlives the capture; asked for while the arena is ours, so that no other capture comes in between."""
        assert self._arena is not None  # enter() has succeeded
        found = find_survivors(self._arena, self._footprint, recorder.inferred)
        self._arena.remember(self._footprint)
        return found

    def _fail(self, error: BaseException | None, failure: BaseException, notes: list[str]) -> None:
        """Leave a failed graph. The body's own exception goes on unmasked; a swallowed one is raised from."""
        notes += self.graph.fail(self._lost or failure, self._holdings)
        self.over = True
        add_notes(error or failure, notes)
        if error is not None:
            return
        if isinstance(failure, CaptureFailed) or not isinstance(failure, Exception):
            raise failure
        why = "a segment or a break was lost, and replay would leave that part of the forward out (C6)"
        if isinstance(failure, CaptureInvalidated) and self._lost is None:
            assert self._recorder is not None  # it has ended a segment
            told = elsewhere(self._recorder.lost)
            why += f". {told[0].upper()}{told[1:]}"
        raise CaptureFailed(
            f"the capture of {self.graph!r} is not whole: {failure}",
            why=why,
            remedy="mend the cause; let exceptions of breaks leave the capture scope",
        ) from failure

    def _unwind(self) -> list[str]:
        """Undo what entering did, last first; each step is tried whatever became of the one before."""
        notes: list[str] = []
        interrupted: object = None
        while steps := self._undo_here or self._undo:
            step = what, undo = steps[-1]
            try:
                attempt(notes, what, undo)
            except Exception as error:
                notes.append(f"{what or 'leaving the capture'} failed: {error!r}")
            except BaseException as error:  # an interrupt must not stop the unwinding: the step is made once more
                self._interrupt = error
                if interrupted is not step:
                    interrupted = step
                    continue
            steps.pop()
        return notes

    def _explain(self, recorder: Recorder, error: BaseException) -> None:
        """Tell a body's exception where in the forward it was raised, and what that means there."""
        if recorder.phase is not Phase.SEGMENT or not isinstance(error, Exception):
            return
        named = f" of {self.graph.name!r}" if self.graph.name else ""
        add_note(error, explain(error, f"{recorder.here}{named}", recorder.lost, invalidated=recorder.invalidated))

    def _warn(self, recorder: Recorder) -> None:
        if not recorder.has_nodes:
            warn(
                f"the capture of {self.graph!r} recorded no work at all: what the forward did was on another stream,"
                " on the host, or all in breaks (C10). Work must be on bg.current_stream(), on the driver's arrays"
            )
        overwritten = [one for one in self.graph.survivors if one.overwritten_by]
        if overwritten and self._options.debug:
            users = dict.fromkeys(user for one in overwritten for user in one.overwritten_by)
            warn(
                f"{len(overwritten)} array(s) of {sum(one.nbytes for one in overwritten)} bytes that were made in a"
                f" segment outlive the capture, and replays of {', '.join(users)} use the same bytes (C18). What is"
                " kept for later, make before the capture; what the forward returns, hand to graph.output(...)"
            )
        late = [
            one.name
            for one in libraries.taking_part(self._driver)
            if one not in self._frameworks and not one.names_streams
        ]
        if late and not self._named_frameworks:
            warn(f"{', '.join(late)} was imported while the capture was open, so its work was not captured")


class _FromArena:
    """The allocator that one framework is given: `breakgraph.frameworks.base.Allocate`."""

    def __init__(self, capture: Capture, arena: Arena, framework: Framework) -> None:
        self.arena = arena
        self._capture, self._framework = capture, framework

    def __call__(self, nbytes: int) -> Block:
        current = self._framework.current_stream()
        stream = self._capture.stream if current is None else current
        self._capture.note_stream(stream)
        return self.arena.allocate(nbytes, stream)


def _never_close(scopes: object) -> None:
    """Keep scopes of a thread that has ended in them, also at exit: closing them would act on the thread that does."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(scopes))
