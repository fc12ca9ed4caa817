"""A captured forward: its steps, its replay, its end (C2, C22 to C27, C31)."""

from __future__ import annotations

import operator
import sys
import threading
from typing import Any, SupportsIndex

from breakgraph import driver as drivers
from breakgraph.driver import StreamHandle
from breakgraph.driver.here import here
from breakgraph.errors import BreakgraphError, CaptureStateError
from breakgraph.memory import Arena
from breakgraph.segments.accounts import GraphMemory, readable
from breakgraph.segments.context import current_forward
from breakgraph.segments.held import Held
from breakgraph.segments.holdings import Holdings
from breakgraph.segments.replay import Replay
from breakgraph.segments.state import GraphState, is_capturing
from breakgraph.segments.steps import Break, Segment, Step
from breakgraph.segments.survivors import Survivor
from breakgraph.segments.views import Viewed

__all__ = ["BreakableGraph", "row_count"]

_WHY_NOT = {
    GraphState.EMPTY: ("nothing was captured into it yet", "capture first: with bg.capture(graph) as graph: ..."),
    GraphState.CAPTURING: ("its capture is still open", "leave the with block first"),
    GraphState.INERT: (
        "capture is switched off (BREAKGRAPH_DISABLE) or the driver cannot capture, so its forward ran eagerly",
        "call the forward itself while .state is 'inert'",
    ),
    GraphState.FAILED: ("its capture failed; see .error", "mend the cause, reset() it and capture again"),
    GraphState.CLOSED: ("it was closed", "capture into a new graph"),
}
_WHY_NO_CAPTURE = {
    GraphState.CAPTURING: "its capture is still open",
    GraphState.CAPTURED: "it holds a capture, which may be replayed elsewhere",
    GraphState.CLOSED: "it was closed",
}


class BreakableGraph(Viewed):
    """The steps of one captured forward: segment, break, segment, ..., segment.

    Attributes
    ----------
    name
        For messages.
    error
        What the capture failed with, in state ``failed``.
    replays
        How many replays have run to their end.
    survivors
        Arrays made in its segments that were alive when the capture closed (C18).
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.replays = 0
        self.survivors: tuple[Survivor, ...] = ()
        self._state = GraphState.EMPTY
        self._stream: int | None = None
        self._holdings: Holdings | None = None
        self._replay: Replay | None = None  # where it is captured
        self._changing = threading.RLock()  # a destructor may come in between

    # what it is -----------------------------------------------------------------------------------------
    @property
    def state(self) -> GraphState:
        """``empty``, ``capturing``, ``captured``, ``inert``, ``failed`` or ``closed``."""
        return self._state

    @property
    def captured(self) -> bool:
        """Whether it can be replayed."""
        return self._state is GraphState.CAPTURED

    @property
    def steps(self) -> tuple[Step, ...]:
        """Segments and breaks in the order of the forward."""
        return tuple(self._holdings.steps) if self._holdings else ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments alone; one more than `breaks` (C2)."""
        return tuple(step for step in self.steps if isinstance(step, Segment))

    @property
    def breaks(self) -> tuple[Break, ...]:
        """The breaks alone."""
        return tuple(step for step in self.steps if isinstance(step, Break))

    @property
    def capture_stream(self) -> StreamHandle | None:
        """The origin stream of its capture."""
        return None if self._stream is None else StreamHandle(self._stream)

    @property
    def holdings(self) -> Holdings | None:
        """What it owns, for the rooms above; None where it holds no capture."""
        return self._holdings

    @property
    def arena(self) -> Arena | None:
        """The arena that its segments use; None where it holds no capture."""
        return self._holdings.arena if self._holdings else None

    @property
    def memory(self) -> GraphMemory:
        """What it costs, in bytes."""
        holdings = self._holdings
        if holdings is None or (footprint := holdings.footprint) is None:
            return GraphMemory()
        return GraphMemory(
            allocated=sum(segment.allocated for segment in self.segments),
            footprint=footprint.nbytes,
            live=sum(block.nbytes for block in holdings.arena.blocks_of(footprint.capture)),
            outputs=holdings.output_bytes,
            execs=holdings.exec_bytes,
        )

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        if not self.captured:
            return f"<BreakableGraph{name}: {self.state}>"
        counts = ((len(self.segments), "segment"), (len(self.breaks), "break"), (self.replays, "replay"))
        told = ", ".join(f"{number} {what}{'s' * (number != 1)}" for number, what in counts)
        return f"<BreakableGraph{name}: {told}, {readable(self.memory.footprint)} of the arena>"

    # replay ---------------------------------------------------------------------------------------------
    def replay(self, *, stream: object = None, valid_rows: SupportsIndex | None = None) -> None:
        """Run the forward again: segment 0, break 0, segment 1, ...; asynchronous but for what breaks wait for.

        Parameters
        ----------
        stream
            Where to run; by default the current stream of the frameworks that took part in the capture.
        valid_rows
            After each break, rows from here on along axis 0 of its destinations are zeroed (C22).

        Raises
        ------
        CaptureStateError
            Before anything is launched: not captured; inside a segment, or in a break that holds the same
            arena; another thread replays it; the stream is capturing; no forward context where the capture
            had one.
        BaseException
            Whatever a break raises, with the break's name as a note. The graph can be replayed again.
        """
        replay = self._replay
        if stream is not None or valid_rows is not None or replay is None or not replay.at_once():
            self._replay_as_asked(stream, valid_rows)
        self.replays += 1

    def _replay_as_asked(self, stream: object, valid_rows: SupportsIndex | None) -> None:
        """Every replay but the usual one, which is the quick one; and whatever is refused."""
        rows = None if valid_rows is None else row_count(valid_rows)
        while not self._ready_replay().run(self, stream, rows):  # another thread has reset it meanwhile
            pass

    def _ready_replay(self) -> Replay:
        """`replayable`, without a look at each step where nothing is to be refused."""
        replay = self._replay
        return replay if replay is not None and replay.is_ready else self.replayable()

    def replay_in(self, held: Held) -> None:
        """`replay` in a turn of its arena that is taken already, on the stream and with the rows of that.

        Whoever took the turn has seen to it that the stream is not capturing.
        """
        if not self._ready_replay().run_in(self, held):
            raise CaptureStateError(
                f"{self!r} cannot be replayed",
                why="another thread has reset it meanwhile, and the turn is one of the arena that it had",
                remedy="take a turn of its arena again",
            )
        self.replays += 1

    def is_replayed_by(self, replay: Replay) -> bool:
        """Whether ``replay`` is the one of the capture that it holds."""
        with self._changing:
            return self._replay is replay

    def replayable(self) -> Replay:
        """What replays it. Raises `CaptureStateError` where that cannot be now, saying why."""
        with self._changing:
            replay, state, steps = self._replay, self._state, self.steps
        if replay is None:
            why, remedy = _WHY_NOT.get(state, _WHY_NOT[GraphState.EMPTY])
            raise CaptureStateError(f"{self!r} cannot be replayed", why=why, remedy=remedy) from self.error
        if drivers.current() is not replay.driver:
            raise CaptureStateError(
                f"{self!r} was captured on another driver than the current one",
                remedy="replay it where bg.driver.current() is the driver it was captured on",
            )
        if is_capturing():
            raise CaptureStateError(
                f"{self!r} was replayed inside a segment",
                why="the driver does not launch a graph into a capturing stream (900)",
                remedy="replay it outside the capture, or in a break with an arena of its own",
            )
        if replay.needs_context and current_forward() is None:
            raise CaptureStateError(
                f"{self!r} was captured with a forward context and is replayed without one",
                why="its breaks would see the context of the capture, or none (C19)",
                remedy="replay it inside: with bg.active_forward(ctx): ...",
            )
        if sum(1 if isinstance(step, Segment) else -1 for step in steps) != 1:
            raise CaptureStateError(f"{self!r} has lost a step", why="segments are one more than breaks (C2)")
        return replay

    # what outlives a replay -------------------------------------------------------------------------------
    def output(self, value: Any) -> Any:
        """Inside the capture: arrays of this graph's own, into which every replay copies those of ``value``.

        What a forward returns lies in the arena, and is overwritten when a graph that shares the arena is captured or
        replayed. What this returns stays valid until the next replay of this graph, and while the arena sleeps.

        Parameters
        ----------
        value
            An array, or a tuple, list, mapping or dataclass of arrays, to any depth.

        Returns
        -------
        value
            Of the same form, with a contiguous array in place of each array or cell; the value itself while the graph
            is inert. Forks that are open are joined for the copy.

        Raises
        ------
        CaptureStateError
            Outside this graph's capture scope, or in a break.
        NotCopyable
            There is no device array in it, or one of a type that only its own handler can copy.
        """
        if self._state is GraphState.INERT:
            return value
        if here.capture is None or here.capture.graph is not self:
            raise CaptureStateError(
                f"an output of {self!r} was declared outside its capture scope",
                why="the copy is a node of its segments",
                remedy="declare it in the with block, where the forward returns: y = graph.output(forward(x))",
            )
        return here.capture.output(value)

    # its end --------------------------------------------------------------------------------------------
    def keep(self, *objects: object) -> None:
        """Keep objects alive as long as the capture.

        For what segments read and no one can see that they do: weights, modules, the pinned source of a copy.

        Raises `CaptureStateError` where there is no capture to keep them for.
        """
        if self._state is GraphState.INERT:
            return  # nothing was captured, so nothing refers to them
        if self._holdings is None:
            raise CaptureStateError(f"{self!r} holds no capture to keep anything for", remedy="capture first")
        self._holdings.kept.extend(objects)

    def reset(self) -> None:
        """Destroy the capture, once its last replay is done with it; the graph is empty and can capture again."""
        self._end(GraphState.EMPTY)

    def close(self) -> None:
        """Destroy the capture for good. A second call does nothing."""
        if self._state is not GraphState.CLOSED:
            self._end(GraphState.CLOSED)

    def abandon(self) -> None:
        """Forget the capture without a driver call, since its context is gone; the graph is empty."""
        self._end(GraphState.EMPTY, forget=True)

    def _end(self, state: GraphState, *, forget: bool = False) -> None:
        with self._changing:
            if self._state is state is GraphState.CLOSED:
                return
            refused = self._refusal_to_end()
            if refused is None:
                holdings, self._holdings = self._holdings, None
                self._state, self.error, self.replays, self._stream = state, None, 0, None
                self.survivors = ()
        if refused is not None:
            why, remedy = refused
            raise CaptureStateError(f"{self!r} cannot be emptied", why=why, remedy=remedy)
        if holdings is None:
            return
        if forget:
            holdings.forget()
        if notes := holdings.release():
            raise BreakgraphError("; ".join(notes), remedy="abandon() a graph whose context is gone before it ends")

    def _refusal_to_end(self) -> tuple[str, str] | None:
        """Why it cannot be emptied, and the remedy; None, and no replay begins any more, where it can."""
        if self._state is GraphState.CAPTURING or self._state is GraphState.CLOSED:
            return _WHY_NOT[self._state]
        replay, self._replay = self._replay, None  # first: a replay asks for it again once it has the arena
        if replay is not None and not replay.close():
            self._replay = replay
            return "it is being replayed", "let the replay end first"
        return None

    def __del__(self) -> None:  # not a finalizer: what is kept may refer back to the graph
        holdings = getattr(self, "_holdings", None)
        if holdings is not None and not sys.is_finalizing():
            holdings.release_quietly()

    # what a capture does to it ----------------------------------------------------------------------------
    def check_free(self) -> None:
        """Refuse a second capture while it holds one (C4)."""
        self._refuse_capture(self._state)

    def _refuse_capture(self, state: GraphState) -> None:
        if why := _WHY_NO_CAPTURE.get(state):
            raise CaptureStateError(
                f"{self!r} cannot take a capture", why=why, remedy="reset() it first, or capture into a new graph"
            )

    def begin(self, holdings: Holdings, stream: int) -> None:
        """Take a capture, unless another thread has captured into it while this one waited for the arena."""
        with self._changing:
            before = self._state
            if before not in _WHY_NO_CAPTURE:
                self._holdings, self._replay, self._stream = holdings, None, stream
                self._state, self.error, self.replays = GraphState.CAPTURING, None, 0
        self._refuse_capture(before)

    def finish(self, replay: Replay, survivors: tuple[Survivor, ...]) -> None:
        self._replay = replay
        self.survivors = survivors
        self._state = GraphState.CAPTURED

    def become_inert(self) -> None:
        self._state, self.error, self.replays = GraphState.INERT, None, 0

    def fail(self, error: BaseException, mine: Holdings | None = None) -> list[str]:
        """The capture with the holdings ``mine`` failed with ``error``. Returns what could not be destroyed.

        Nothing is changed where it holds another thread's by now.
        """
        with self._changing:
            if self._holdings is not None and self._holdings is not mine:
                return []
            self._state, self.error = GraphState.FAILED, error
            holdings, self._holdings, self._replay = self._holdings, None, None
        return holdings.release() if holdings is not None else []


def row_count(valid_rows: SupportsIndex) -> int:
    """``valid_rows`` of a replay as an int. Raises `TypeError` or `ValueError` where it is no number of rows."""
    if isinstance(valid_rows, bool) or not hasattr(valid_rows, "__index__"):
        raise TypeError(f"valid_rows is a number of rows, not {valid_rows!r}")
    rows = operator.index(valid_rows)  # a NumPy integer would overflow in addresses
    if rows < 0:
        raise ValueError(f"valid_rows is a number of rows, not {valid_rows!r}")
    return rows
