"""S1: stream capture as a state machine.

Four rules decide what a call does to the captures that are open:

* *Work* on a stream of a capture becomes a node of it, whichever thread submits it.
* A *wait* for a stream or an event of a capture can never be granted (900, 907), in any mode.
* A *potentially unsafe* call (allocation, waits, instantiation, destruction of execs) is refused to a thread
  whose mode forbids it: by a capture of its own that is not relaxed, unless it has exchanged its mode for
  relaxed; in global mode also by another thread's global capture.
* The *legacy stream* synchronizes with every blocking stream, so using it touches their captures (906).

Whatever is refused for a capture's sake invalidates the capture, except where only a status is asked.
Source: CUDA driver API, cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode; probes/records/legality.
"""

from __future__ import annotations

from breakgraph.driver.api import CaptureMode, CaptureStatus, EdgeData
from breakgraph.driver.sim.contexts import Context, ThreadState
from breakgraph.driver.sim.graphs import Graph, Node
from breakgraph.driver.sim.operations import Work
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.streams import Event, Stream
from breakgraph.errors import Unrecorded

__all__ = ["Capture", "Captures"]


class Capture:
    """One capture: its origin stream, the streams drawn into it, and the graph that grows.

    ``status`` is NONE once it has ended, well or badly.
    """

    def __init__(self, number: int, mode: CaptureMode, origin: Stream, thread: ThreadState, graph: Graph) -> None:
        self.id = number
        self.mode = mode
        self.origin = origin
        self.thread = thread
        self.graph = graph
        self.status = CaptureStatus.ACTIVE
        self.streams: list[Stream] = []
        self.excused: set[Node] = set()  # taken out of a dependency set by the program: need not be joined

    @property
    def ended(self) -> bool:
        return self.status is CaptureStatus.NONE

    def invalidate(self) -> None:
        """Only ending it is possible from now on."""
        if not self.ended:
            self.status = CaptureStatus.INVALIDATED

    def draw_in(self, stream: Stream) -> None:
        """The stream's work is recorded from now on."""
        stream.capture = self
        stream.heads = {}
        self.streams.append(stream)

    def end(self) -> None:
        """Let every stream go."""
        self.status = CaptureStatus.NONE
        for stream in self.streams:
            stream.capture = None
            stream.heads = {}
        self.streams = []

    def unjoined(self) -> bool:
        """Whether a forked stream holds a node that the origin's next node would not come after."""
        reached = set(self.origin.heads)
        path = list(reached)
        while path:
            for node in path.pop().after:
                if node not in reached:
                    reached.add(node)
                    path.append(node)
        return any(node not in reached and node not in self.excused for side in self.streams for node in side.heads)


class Captures:
    """The captures that are open, and what they make of each call."""

    def __init__(self) -> None:
        self.open: list[Capture] = []
        self._begun = 0

    # what every call is asked ---------------------------------------------------------------------------
    def refuse_unsafe(self, thread: ThreadState) -> None:
        """A potentially unsafe call is made."""
        forbidding = self.forbidding(thread)
        if len(forbidding) > 1:
            raise Unrecorded("a potentially unsafe call was made while several captures forbid it")
        if forbidding:
            forbidding[0].invalidate()
            raise Refuse(Result.STREAM_CAPTURE_UNSUPPORTED)

    def forbidding(self, thread: ThreadState) -> list[Capture]:
        """The captures that forbid the thread potentially unsafe calls."""
        if not self.open or thread.mode is CaptureMode.RELAXED:
            return []
        return [
            capture
            for capture in self.open
            if (capture.thread is thread and capture.mode is not CaptureMode.RELAXED)
            or (thread.mode is CaptureMode.GLOBAL and capture.mode is CaptureMode.GLOBAL)
        ]

    def refuse_implicit(self, context: Context, *, only_asking: bool = False) -> None:
        """The legacy stream of a context is used."""
        touched = [one for one in self.open if any(s.blocking and s.context is context for s in one.streams)]
        if touched:
            for capture in touched if not only_asking else ():
                capture.invalidate()
            raise Refuse(Result.STREAM_CAPTURE_IMPLICIT)

    def refuse_wait(self, stream: Stream, thread: ThreadState) -> None:
        """The host waits for a stream, or asks whether it is done."""
        if stream.capture is not None:
            self._refuse_invalidated(stream.capture)
            stream.capture.invalidate()
            raise Refuse(Result.STREAM_CAPTURE_UNSUPPORTED)
        self.refuse_unsafe(thread)

    def refuse_context_wait(self, context: Context) -> None:
        """The host waits for a whole context, and so for its captures, whoever they belong to."""
        waited = [capture for capture in self.open if capture.origin.context is context]
        for capture in waited:
            capture.invalidate()
        if waited:
            raise Refuse(Result.STREAM_CAPTURE_UNSUPPORTED)

    def refuse_event_wait(self, event: Event, thread: ThreadState) -> None:
        """The host waits for an event, or asks whether it is done."""
        capture = event.capture
        if capture is None:
            self.refuse_unsafe(thread)
        elif capture.ended:
            if self.forbidding(thread):
                raise Unrecorded("an event of an ended capture was queried inside another capture")
            raise Refuse(Result.INVALID_VALUE, "the event was last recorded in a capture that has ended")
        else:
            if capture.status is CaptureStatus.INVALIDATED:
                raise Unrecorded("an event of an invalidated capture was queried")
            capture.invalidate()
            raise Refuse(Result.CAPTURED_EVENT)

    def refuse_into(self, stream: Stream) -> None:
        """Something that no graph can hold (an exec) is launched into a stream."""
        if stream.capture is not None:
            self._refuse_invalidated(stream.capture)
            stream.capture.invalidate()
            raise Refuse(Result.STREAM_CAPTURE_UNSUPPORTED)

    # work -----------------------------------------------------------------------------------------------
    def add(self, stream: Stream, work: Work, handle: int) -> Node:
        """Record work that was submitted to a stream of a capture."""
        capture = self._of(stream)
        self._refuse_invalidated(capture)
        node = capture.graph.add(handle, stream.context, work, stream.heads)
        stream.heads = {node: EdgeData()}
        return node

    def record_event(self, stream: Stream, event: Event) -> None:
        """The event marks the place that the stream of a capture has reached."""
        capture = self._of(stream)
        self._refuse_invalidated(capture)
        event.record, event.capture, event.heads = None, capture, dict(stream.heads)

    def wait_event(self, stream: Stream, event: Event) -> None:
        """A stream waits for an event, and either of them is in a capture."""
        into, of = stream.capture, event.capture
        if into is not None:
            self._refuse_invalidated(into)
        if of is None:
            if event.record is not None and into is not None:
                into.invalidate()
                raise Refuse(Result.STREAM_CAPTURE_ISOLATION)
            return
        if of.ended:
            if into is not None:
                into.invalidate()
            raise Refuse(Result.INVALID_VALUE, "the event was last recorded in a capture that has ended")
        if of.status is CaptureStatus.INVALIDATED:
            raise Unrecorded("a stream waits for an event of an invalidated capture")
        if stream is stream.context.legacy:
            of.invalidate()
            raise Refuse(Result.STREAM_CAPTURE_IMPLICIT)
        if into is None:
            of.draw_in(stream)
        elif into is not of:
            into.invalidate()
            of.invalidate()
            raise Refuse(Result.STREAM_CAPTURE_MERGE)
        stream.heads = {**stream.heads, **event.heads}

    # begin and end --------------------------------------------------------------------------------------
    def refuse_begin(self, stream: Stream) -> None:
        """Whether a capture may begin on the stream."""
        if stream is stream.context.legacy:
            raise Refuse(Result.STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured")
        if stream.capture is not None:
            if stream.capture.status is CaptureStatus.INVALIDATED:
                raise Unrecorded("a capture was begun on a stream whose capture is invalidated")
            raise Refuse(Result.ILLEGAL_STATE, "the stream is capturing already")

    def begin(self, stream: Stream, mode: CaptureMode, thread: ThreadState, graph: Graph) -> None:
        """Begin a capture on a stream for which `refuse_begin` had no objection."""
        self._begun += 1
        capture = Capture(self._begun, mode, stream, thread, graph)
        capture.draw_in(stream)
        self.open.append(capture)

    def end(self, stream: Stream, thread: ThreadState) -> tuple[Capture, int]:
        """End the capture of the stream; the capture, and the result code (0 if its graph is whole)."""
        capture = stream.capture
        if capture is None:
            raise Refuse(Result.ILLEGAL_STATE, "the stream is not capturing")
        invalidated = capture.status is CaptureStatus.INVALIDATED
        if stream is not capture.origin:
            if invalidated:
                raise Unrecorded("an invalidated capture was ended on a forked stream")
            capture.invalidate()
            raise Refuse(Result.STREAM_CAPTURE_UNMATCHED)
        wrong_thread = capture.thread is not thread and capture.mode is not CaptureMode.RELAXED
        if wrong_thread and invalidated:
            raise Unrecorded("an invalidated capture was ended by another thread")
        code = 0
        if wrong_thread:
            code = Result.STREAM_CAPTURE_WRONG_THREAD
        elif invalidated:
            code = Result.STREAM_CAPTURE_INVALIDATED
        elif capture.unjoined():
            code = Result.STREAM_CAPTURE_UNJOINED
        capture.graph.ends = tuple(stream.heads)
        self._close(capture)
        return capture, code

    def destroyed(self, stream: Stream) -> Capture | None:
        """A stream is destroyed: the capture that began on it is over, and what it recorded is lost."""
        capture = stream.capture
        if capture is None:
            return None
        if capture.streams != [stream]:
            raise Unrecorded("a stream was destroyed inside a capture that holds other streams too")
        self._close(capture)
        return capture

    # status and dependencies ----------------------------------------------------------------------------
    def update_dependencies(self, stream: Stream, nodes: dict[Node, EdgeData], *, replace: bool) -> None:
        """Change what the stream's next node depends on."""
        capture = stream.capture
        if capture is None:
            raise Refuse(Result.ILLEGAL_STATE, "the stream is not capturing")
        if capture.status is CaptureStatus.INVALIDATED:
            raise Unrecorded("the dependencies of an invalidated capture were changed")
        if any(node.graph is not capture.graph for node in nodes):
            raise Refuse(Result.INVALID_VALUE, "a dependency is not a node of this capture")
        if replace:
            capture.excused.update(node for node in stream.heads if node not in nodes)
            stream.heads = dict(nodes)
        else:
            stream.heads = {**stream.heads, **nodes}

    def _close(self, capture: Capture) -> None:
        capture.end()
        self.open.remove(capture)

    @staticmethod
    def _of(stream: Stream) -> Capture:
        assert stream.capture is not None  # the caller has looked
        return stream.capture

    @staticmethod
    def _refuse_invalidated(capture: Capture) -> None:
        if capture.status is CaptureStatus.INVALIDATED:
            raise Refuse(Result.STREAM_CAPTURE_INVALIDATED)
