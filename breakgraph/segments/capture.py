"""The scope in which a forward is recorded: ``with capture() as graph:`` (C1 to C10).

    enter          break point                 exit
------[ segment 0 ]---break 0---[ segment 1 ]------
      begin     end           begin       end
                 launch                    launch
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Literal

from breakgraph import driver as drivers
from breakgraph import frameworks as libraries
from breakgraph.driver import Driver
from breakgraph.driver.api import CaptureMode
from breakgraph.errors import BreakgraphWarning, CaptureFailed, CaptureStateError
from breakgraph.frameworks import Framework
from breakgraph.memory import Arena, default_arena
from breakgraph.segments.break_points import BreakPoint
from breakgraph.segments.collector import pause_collector, resume_collector
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.holdings import Holdings, attempt
from breakgraph.segments.recorder import FrozenPolicy, Options, Phase, Recorder
from breakgraph.segments.state import here
from breakgraph.segments.streams import chosen_stream, framework_streams, refuse_capturing, workplace
from breakgraph.segments.switch import capture_disabled

__all__ = ["Capture", "capture"]

_MODES = {mode.name.lower(): mode for mode in CaptureMode}
_capture_ids = count(1)


class capture:  # noqa: N801 - reads as a verb: with bg.capture() as graph: ...
    """Record the forward in the block as segments split at breaks; yields the `BreakableGraph`.

    Parameters
    ----------
    graph
        Where to record; by default a new graph.
    stream
        The origin stream: an int handle or anything with ``__cuda_stream__``, yours to keep free of other
        threads' work. By default a non-blocking one of the calling thread's own.
    mode
        Whose unsafe calls the driver forbids meanwhile: ``"thread_local"``, ``"global"`` or ``"relaxed"``.
    arena
        Where arrays made in segments come from; by default the thread's own.
    execute
        Launch each segment as soon as it ends, so that breaks see real values and the capture is itself one
        correct forward. False: segments run at replay only, breaks run on what is there.
    break_on
        Tags of the break points that split; None for all, ``()`` for none.
    barrier
        Called at capture only, before each break runs.
    frameworks
        Names of the array libraries that take part; by default those of the current driver that the program
        has imported.
    frozen
        What to do about break arguments that replay cannot renew: ``"allow"``, ``"warn"`` or ``"refuse"``.
    name
        Of the graph, for messages.

    Raises
    ------
    CaptureStateError
        At entry, and nothing is changed: nested in a capture of this thread; the graph holds a capture; a
        stream that takes part is capturing for someone else; the arena is in use by this thread or belongs
        to another context.
    CaptureFailed
        At exit: the block ended, and part of the forward was lost.
    DriverError
        The driver refused a step. Whatever leaves the block, its segments are destroyed and streams,
        allocators, context and garbage collector are as they were (C5).

    Notes
    -----
    At entry the capture waits for the current stream of each framework, at exit they wait for it. Use the
    scope in one thread.
    """

    def __init__(
        self,
        graph: BreakableGraph | None = None,
        *,
        stream: object = None,
        mode: Literal["global", "thread_local", "relaxed"] = "thread_local",
        arena: Arena | None = None,
        execute: bool = True,
        break_on: Collection[str] | None = None,
        barrier: Callable[[], object] | None = None,
        frameworks: Iterable[str] | None = None,
        frozen: FrozenPolicy = "allow",
        name: str | None = None,
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        if frozen not in ("allow", "warn", "refuse"):
            raise ValueError(f"frozen is allow, warn or refuse, not {frozen!r}")
        if graph is not None and not isinstance(graph, BreakableGraph):
            raise TypeError(
                f"graph is a BreakableGraph, not an object of type {type(graph).__name__}; a name goes in name="
            )
        self._graph = BreakableGraph() if graph is None else graph
        self._name = name
        self._given_stream = stream
        self._given_arena = arena
        self._options = Options(_MODES[mode], execute, barrier, frozen)
        self._break_on = None if break_on is None else frozenset((break_on,) if isinstance(break_on, str) else break_on)
        self._framework_names = frameworks
        self._capture: Capture | None = None

    def __enter__(self) -> BreakableGraph:
        if here.capture is not None:
            raise CaptureStateError(
                "a capture was begun inside another one of the same thread",
                why="one thread records one forward at a time (C4)",
                remedy="capture the inner forward on its own, before or after",
            )
        graph = self._graph
        graph.check_free()
        graph.name = self._name or graph.name
        if capture_disabled() or not (driver := drivers.current()).can_capture:
            graph.become_inert()
            return graph
        self._capture = Capture(graph, driver, self._options, self._break_on)
        self._capture.enter(self._given_stream, self._given_arena, self._framework_names)
        return graph

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._capture is not None:
            self._capture.leave(error)
            self._capture = None
        elif error is not None:
            self._graph.fail(error)


class Capture:
    """One open capture: what it has changed in the thread and on the device, and how that is undone."""

    def __init__(
        self, graph: BreakableGraph, driver: Driver, options: Options, break_on: frozenset[str] | None
    ) -> None:
        self.stream = 0
        self._graph = graph
        self._driver = driver
        self._options = options
        self._break_on = break_on
        self._thread = threading.get_ident()
        self._recorder: Recorder | None = None
        self._named_frameworks = False
        self._lost: BaseException | None = None
        self._interrupt: BaseException | None = None  # came while leaving
        self._frameworks: tuple[Framework, ...] = ()
        self._allocators = ExitStack()
        self._undo: list[tuple[str, Callable[[], object]]] = []

    # asked at every break point ---------------------------------------------------------------------------
    @property
    def in_segment(self) -> bool:
        return self._recorder is not None and self._recorder.phase is Phase.SEGMENT

    def selects(self, tag: str | None) -> bool:
        """Whether a break point with ``tag`` splits the forward here and now (C9, C20)."""
        return self.in_segment and (self._break_on is None or tag in self._break_on)

    def record(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any], site: str) -> Any:
        """Run a break point as a break. Whatever it raises has lost a part of the forward (C6)."""
        assert self._recorder is not None  # selects() was true
        try:
            return self._recorder.record(point, args, kwargs, site)
        except BaseException as error:
            self._lose(error)
            raise

    def _lose(self, error: BaseException) -> None:
        assert self._recorder is not None
        notes: list[str] = []
        self._recorder.abandon_segment(notes)
        self._recorder.phase = Phase.LOST
        self._lost = error
        _add_notes(error, notes)

    # entering ---------------------------------------------------------------------------------------------
    def enter(self, stream: object, arena: Arena | None, framework_names: Iterable[str] | None) -> None:
        try:
            self._enter(stream, arena, framework_names)
        except BaseException as error:
            notes: list[str] = []
            if self._recorder is not None:
                self._recorder.abandon_segment(notes)
            _add_notes(error, notes + self._unwind())
            if not isinstance(error, CaptureStateError):  # a refusal: the graph is as it was
                _add_notes(error, self._graph.fail(error))
            raise

    def _enter(self, stream: object, arena: Arena | None, framework_names: Iterable[str] | None) -> None:
        driver = self._driver
        context = driver.ensure_context()
        self._frameworks = libraries.taking_part(driver, framework_names)
        self._named_frameworks = framework_names is not None
        for framework in self._frameworks:
            framework.check_context(driver)
        place = workplace(driver, context)
        self.stream = place.stream.handle if stream is None else chosen_stream(driver, stream)
        refuse_capturing(driver, self.stream, "captured")
        callers = [one for one in framework_streams(driver, self._frameworks) if one != self.stream]
        for caller in callers:
            refuse_capturing(driver, caller, "waited for")
        arena = arena if arena is not None else default_arena(driver, context)
        if not arena.belongs_to(driver, context):
            raise CaptureStateError(
                "the arena belongs to another driver or context than the current one",
                why="its memory was mapped for the context that was current when it was made (C31)",
                remedy="make the arena where the capture runs",
            )
        number = next(_capture_ids)
        arena.acquire(self.stream, capture=number)
        self._undo.append(("", arena.release))
        self._undo.append(("marking the arena's last use", lambda: arena.record_use(self.stream)))
        pause_collector()
        self._undo.append(("", resume_collector))
        for caller in callers:
            place.order(driver, before=caller, after=self.stream)
            self._undo.append((f"letting stream {caller:#x} wait", partial(place.order, driver, self.stream, caller)))
        self._enter_frameworks(arena)
        here.capture = self
        self._undo.append(("", self._vacate))
        holdings = Holdings(driver, context, arena)
        self._recorder = Recorder(holdings, self._frameworks, self.stream, self._options, number)
        self._graph.begin(holdings, self._frameworks, self.stream)
        self._recorder.begin_segment()

    def _enter_frameworks(self, arena: Arena) -> None:
        for framework in self._frameworks:
            scope = ExitStack()
            scope.enter_context(framework.stream_scope(self.stream))
            self._undo.append(("", scope.close))
        self._undo.append(("", self._allocators.close))
        for framework in self._frameworks:
            self._allocators.enter_context(framework.allocator_scope(arena.allocate))

    @staticmethod
    def _vacate() -> None:
        here.capture = None

    # leaving ----------------------------------------------------------------------------------------------
    def leave(self, error: BaseException | None) -> None:
        if threading.get_ident() != self._thread:
            raise CaptureStateError(
                "a capture scope was left by another thread than the one that entered it",
                why="the capture, and the current streams and allocators it has set, are that thread's",
                remedy="leave it there; it is still open",
            )
        recorder = self._recorder
        assert recorder is not None  # enter() has succeeded
        failure = error or self._lost
        try:
            if failure is None:
                recorder.end_segment()
                recorder.check_whole()
            elif self._lost is None:
                self._explain(recorder, failure)
        except BaseException as end_error:
            failure = failure or end_error
        notes: list[str] = []
        if failure is not None:
            self._undo.append(("", partial(recorder.abandon_segment, notes)))
        notes += self._unwind()
        if failure is None:
            failure = self._interrupt
        if failure is None and notes:
            failure = CaptureFailed("the capture could not be closed", why="; ".join(notes))
        if failure is not None:
            self._fail(error, failure, notes)
            return
        self._graph.finish(needs_context=recorder.context_published)
        self._warn(recorder)

    def _fail(self, error: BaseException | None, failure: BaseException, notes: list[str]) -> None:
        """Leave a failed graph. The body's own exception goes on unmasked; a swallowed one is raised from."""
        notes += self._graph.fail(self._lost or failure)
        _add_notes(error or failure, notes)
        if error is not None:
            return
        if isinstance(failure, CaptureFailed) or not isinstance(failure, Exception):
            raise failure
        raise CaptureFailed(
            f"the capture of {self._graph!r} is not whole: {failure}",
            why="a segment or a break was lost, and replay would leave that part of the forward out (C6)",
            remedy="mend the cause; let exceptions of breaks leave the capture scope",
        ) from failure

    def _unwind(self) -> list[str]:
        """Undo what entering did, last first; each step is tried whatever became of the one before."""
        notes: list[str] = []
        while self._undo:
            what, undo = self._undo.pop()
            try:
                attempt(notes, what, undo)
            except BaseException as error:  # an interrupt must not stop the unwinding either
                notes.append(f"{what or 'leaving the capture'} failed: {error!r}")
                if not isinstance(error, Exception):
                    self._interrupt = error
        return notes

    def _explain(self, recorder: Recorder, error: BaseException) -> None:
        """Tell a body's exception where in the forward it was raised, and what that means there."""
        if recorder.phase is not Phase.SEGMENT or not isinstance(error, Exception):
            return
        named = f" of {self._graph.name!r}" if self._graph.name else ""
        note = f"raised while {recorder.here}{named} was being captured"
        if recorder.invalidated:
            note += (
                "; the driver has given the capture up, since such a call cannot be recorded."
                " Make it a break (bg.break_point, bg.break_here), or move it before the capture"
            )
        elif isinstance(error, NotImplementedError):
            note += "; the library refuses this call inside a capture. Make it a break (bg.break_point, bg.break_here)"
        error.add_note(note)

    def _warn(self, recorder: Recorder) -> None:
        if not recorder.nodes:
            warnings.warn(
                f"the capture of {self._graph!r} recorded no work at all: what the forward did was on another stream,"
                " on the host, or all in breaks (C10). Work must be on bg.current_stream(), on the driver's arrays",
                BreakgraphWarning,
                stacklevel=4,
            )
        late = [one.name for one in libraries.taking_part(self._driver) if one not in self._frameworks]
        if late and not self._named_frameworks:
            warnings.warn(
                f"{', '.join(late)} was imported while the capture was open, so its work was not captured",
                BreakgraphWarning,
                stacklevel=4,
            )


def _add_notes(error: BaseException, notes: list[str]) -> None:
    for note in notes:
        error.add_note(f"breakgraph: {note}")
