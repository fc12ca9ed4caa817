"""The scope in which a forward is recorded: ``with capture() as graph:`` (C1 to C10).

    enter          break point                 exit
------[ segment 0 ]---break 0---[ segment 1 ]------
      begin     end           begin       end
                 launch                    launch
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Literal, Self

from breakgraph import driver as drivers
from breakgraph.driver.api import CaptureMode
from breakgraph.driver.here import here
from breakgraph.errors import CaptureStateError
from breakgraph.memory import Arena
from breakgraph.segments.execs import ExecCache
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.held import Held
from breakgraph.segments.open_capture import Capture
from breakgraph.segments.recorder import FrozenPolicy, Options
from breakgraph.segments.state import GraphState
from breakgraph.segments.switch import capture_disabled, debug_everywhere

__all__ = ["capture"]

_MODES = {mode.name.lower(): mode for mode in CaptureMode}


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
    aux_streams
        Streams, or one, that the forward works on beside the origin: forked at the start of each segment, and joined
        after each break too (C11). A fork that is made and joined within one segment need not be declared.
    debug
        Say after which line of the forward the capture was invalid, where it is; refuse a stream that took part in a
        segment and is not declared, which is only warned about otherwise; warn of arrays that outlive the break that
        made them unreturned, and of those that outlive the capture in bytes that graphs captured earlier use
        (`Survivor`); and note for `BreakableGraph.verify` where arrays are. ``BREAKGRAPH_DEBUG=1`` does so for every
        capture. Each line of the forward costs a driver call or two at capture, and replay nothing.
    execs
        An `ExecCache` whose execs the segments share with those of other graphs.
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
        aux_streams: object = (),
        frameworks: Iterable[str] | None = None,
        frozen: FrozenPolicy = "allow",
        debug: bool = False,
        execs: ExecCache | None = None,
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
        for what, given, kind in (("arena", arena, Arena), ("execs", execs, ExecCache)):
            if given is not None and not isinstance(given, kind):
                raise TypeError(f"{what} is of type {kind.__name__}, not {type(given).__name__}")
        self._graph = BreakableGraph() if graph is None else graph
        self._name = name
        self._given_stream = stream
        self._given_arena = arena
        self._aux_streams = tuple(aux_streams) if isinstance(aux_streams, Iterable) else (aux_streams,)
        self._execs = execs
        self._options = Options(_MODES[mode], execute, barrier, frozen, debug or debug_everywhere())
        self._break_on = None if break_on is None else frozenset((break_on,) if isinstance(break_on, str) else break_on)
        self._framework_names = frameworks
        self._capture: Capture | None = None
        self._held: Held | None = None

    def within(self, held: Held) -> Self:
        """Record in a turn of an arena that is taken already, with the rows of that."""
        self._held, self._given_arena = held, held.arena
        return self

    def __enter__(self) -> BreakableGraph:
        if here.capture is not None:
            raise CaptureStateError(
                "a capture was begun inside another one of the same thread",
                why="one thread records one forward at a time (C4)",
                remedy="capture the inner forward on its own, before or after",
            )
        graph = self._graph
        graph.check_free()
        before, graph.name = graph.name, self._name or graph.name
        if capture_disabled() or not (driver := drivers.current()).can_capture:
            graph.become_inert()
            here.inert.append(self)
            return graph
        self._capture = Capture(graph, driver, self._options, self._break_on, self._execs)
        try:
            given = self._given_stream, self._aux_streams, self._given_arena, self._framework_names
            self._capture.enter(*given, held=self._held)
        except BaseException as error:
            if not self._capture.over:  # an interrupt came when it had been entered
                self._capture.drain(error)
            self._capture = None
            if graph.state is not GraphState.FAILED:  # refused: the graph is as it was
                graph.name = before
            raise
        return graph

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        here.inert = [scope for scope in here.inert if scope is not self]
        if self._capture is not None:
            self._capture.leave(error)
            self._capture = None
        elif error is not None:
            self._graph.fail(error)

    def __del__(self) -> None:  # an interrupt came at the very beginning or end of __exit__
        capture = getattr(self, "_capture", None)
        if capture is not None and not capture.over and not sys.is_finalizing():
            capture.drain(KeyboardInterrupt("the capture scope was left by an interrupt"))
