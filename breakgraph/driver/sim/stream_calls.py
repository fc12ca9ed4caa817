"""Calls on streams, captures and events."""

from __future__ import annotations

from collections.abc import Sequence

from breakgraph.driver.api import (
    CaptureInfo,
    CaptureMode,
    CaptureStatus,
    DependencyUpdate,
    EdgeData,
    EventFlag,
    NodeType,
    StreamFlag,
)
from breakgraph.driver.sim.call import Needs, call
from breakgraph.driver.sim.graphs import Graph
from breakgraph.driver.sim.machine import Machine
from breakgraph.driver.sim.operations import Work
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.streams import Event, Record, Stream
from breakgraph.errors import Unrecorded

__all__ = ["StreamCalls"]


class StreamCalls(Machine):
    """Streams, captures, events."""

    # streams --------------------------------------------------------------------------------------------
    @call()
    def stream_create(self, flags: int = StreamFlag.NON_BLOCKING) -> int:
        stream = self.new_stream(self.new_handle(), self.context, blocking=not flags & StreamFlag.NON_BLOCKING)
        return self.streams.add(stream.handle, stream)

    @call(Needs.HANDLE, frees=True)
    def stream_destroy(self, stream: int) -> None:
        target = self.streams.get(stream)
        capture = self.captures.destroyed(target)
        if capture is not None:
            self._drop_graph(capture.graph)
        self.streams.pop(stream)
        self._retire(target)

    @call()
    def stream_synchronize(self, stream: int) -> None:
        target = self.used_stream(stream)
        self.captures.refuse_wait(target, self.thread)
        self.wait_for_stream(target)

    @call()
    def stream_query(self, stream: int) -> bool:
        target = self.used_stream(stream)
        self.captures.refuse_wait(target, self.thread)
        if not self.engine.advance(self.order(target)):
            return False
        self.finder.waited(self.finder.snapshot(target.lane))
        return True

    @call()
    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        waited, target = self.events.get(event), self.used_stream(stream)
        if flags & EventFlag.EXTERNAL:
            self._wait_external(target, waited)
        elif target.capture is not None or waited.capture is not None:
            self.captures.wait_event(target, waited)
        elif waited.record is not None:
            target.follow([waited.record.operation])
            self.finder.join(target.lane, waited.record.clock)

    @call()
    def stream_get_priority(self, stream: int) -> int:
        self.stream(stream)
        return 0

    # capture --------------------------------------------------------------------------------------------
    @call()
    def stream_begin_capture(self, stream: int, mode: CaptureMode) -> None:
        if not self.can_capture:
            raise Refuse(Result.NOT_SUPPORTED, "this driver was made with can_capture=False")
        target = self.stream(stream)
        self.captures.refuse_begin(target)
        graph = Graph(self.new_handle())
        self.captures.begin(target, CaptureMode(mode), self.thread, graph)
        self.graphs.add(graph.handle, graph)

    @call()
    def stream_end_capture(self, stream: int) -> int:
        capture, code = self.captures.end(self.stream(stream), self.thread)
        if code:
            self._drop_graph(capture.graph)
            raise Refuse(code)
        return capture.graph.handle

    @call()
    def stream_is_capturing(self, stream: int) -> CaptureStatus:
        return self._asked_stream(stream)[1]

    @call()
    def stream_get_capture_info(self, stream: int) -> CaptureInfo:
        target, status = self._asked_stream(stream)
        if target.capture is None:
            return CaptureInfo(status)
        heads = target.heads
        dependencies = tuple(node.handle for node in heads)
        return CaptureInfo(status, target.capture.id, target.capture.graph.handle, dependencies, tuple(heads.values()))

    @call()
    def stream_update_capture_dependencies(
        self,
        stream: int,
        dependencies: Sequence[int],
        edges: Sequence[EdgeData] | None = None,
        flags: DependencyUpdate = DependencyUpdate.SET,
    ) -> None:
        nodes = [self.nodes.get(handle) for handle in dependencies]
        data = list(edges) if edges is not None else [EdgeData()] * len(nodes)
        if len(data) != len(nodes):
            raise Refuse(Result.INVALID_VALUE, "there is not one edge datum for each dependency")
        wanted = dict(zip(nodes, data, strict=True))
        self.captures.update_dependencies(self.stream(stream), wanted, replace=flags == DependencyUpdate.SET)

    @call(Needs.NOTHING)
    def thread_exchange_stream_capture_mode(self, mode: CaptureMode) -> CaptureMode:
        thread = self.thread
        before, thread.mode = thread.mode, CaptureMode(mode)
        return before

    # events ---------------------------------------------------------------------------------------------
    @call()
    def event_create(self, flags: int = EventFlag.DISABLE_TIMING) -> int:
        event = Event(self.new_handle(), self.context, timing=not flags & EventFlag.DISABLE_TIMING)
        return self.events.add(event.handle, event)

    @call(Needs.HANDLE, frees=True)
    def event_destroy(self, event: int) -> None:
        self.events.pop(event)

    @call()
    def event_record(self, event: int, stream: int) -> None:
        self._record(event, stream, 0)

    @call()
    def event_record_with_flags(self, event: int, stream: int, flags: int) -> None:
        self._record(event, stream, flags)

    @call()
    def event_query(self, event: int) -> bool:
        asked = self.events.get(event)
        self.captures.refuse_event_wait(asked, self.thread)
        if asked.record is None:
            return True
        if not self.engine.advance([asked.record.operation]):
            return False
        self.finder.waited(asked.record.clock)
        return True

    @call()
    def event_synchronize(self, event: int) -> None:
        asked = self.events.get(event)
        self.captures.refuse_event_wait(asked, self.thread)
        if asked.record is not None:
            self.wait_for([asked.record.operation], asked.record.clock)

    @call()
    def event_elapsed_time(self, start: int, end: int) -> float:
        events = self.events.get(start), self.events.get(end)
        for event in events:
            if event.capture is not None:
                if event.capture.ended:
                    raise Unrecorded("the time of an event of an ended capture was asked")
                raise Refuse(Result.CAPTURED_EVENT)
        first, last = events[0].record, events[1].record
        if first is None or last is None or not all(event.timing for event in events):
            raise Refuse(Result.INVALID_HANDLE, "an event was never recorded, or was created without timing")
        if not (first.operation.done and last.operation.done):
            raise Refuse(Result.NOT_READY, "an event has not been reached yet")
        return (last.time - first.time) * 1e3

    # what they share ------------------------------------------------------------------------------------
    def _asked_stream(self, handle: int) -> tuple[Stream, CaptureStatus]:
        """A stream whose status is asked, which does no harm to a capture (probes/records/legality)."""
        target = self.stream(handle)
        if target is target.context.legacy:
            self.captures.refuse_implicit(target.context, only_asking=True)
        return target, target.capture.status if target.capture is not None else CaptureStatus.NONE

    def _retire(self, stream: Stream) -> None:
        """The work on a destroyed stream still completes, and the legacy stream still comes after it."""
        context, clock = stream.context, self.finder.snapshot(stream.lane)
        del context.streams[stream]
        self.finder.join(context.departed, clock)
        if stream.blocking:
            del context.blocking[stream]
            context.legacy.follow(stream.frontier)
            self.finder.join(context.legacy.lane, clock)

    def _record(self, event: int, stream: int, flags: int) -> None:
        recorded, target = self.events.get(event), self.used_stream(stream)
        if recorded.context is not target.context:
            raise Refuse(Result.INVALID_HANDLE, "the event and the stream are of different contexts")
        if flags & EventFlag.EXTERNAL:
            if target.capture is None:
                raise Refuse(Result.INVALID_VALUE, "an external record is for a stream that captures")
            self.submit(target, Work("event_record", NodeType.EVENT_RECORD, _nothing, event=recorded))
        elif target.capture is not None:
            self.captures.record_event(target, recorded)
        else:
            self.order(target)
            record = recorded.record = Record(self.finder.snapshot(target.lane))
            recorded.capture, recorded.heads = None, {}
            record.operation = self.enqueue(target, Work("event_record", NodeType.EVENT_RECORD, record.reach))

    def _wait_external(self, target: Stream, event: Event) -> None:
        if target.capture is None:
            raise Refuse(Result.INVALID_VALUE, "an external wait is for a stream that captures")
        if event.capture is not None:
            raise Unrecorded("a captured event was waited for with the external flag")
        self.submit(target, Work("wait_event", NodeType.WAIT_EVENT, _nothing, event=event))

    def _drop_graph(self, graph: Graph) -> None:
        self.graphs.pop(graph.handle)
        for node in graph.nodes:
            self.nodes.pop(node.handle)


def _nothing() -> None:
    """What an external wait or record does by itself: its launch gives it its place in the order."""
