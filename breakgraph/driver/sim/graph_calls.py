"""Calls that make, change, launch and destroy graphs and execs."""

from __future__ import annotations

from breakgraph.driver.api import NodeType
from breakgraph.driver.sim.call import Needs, call
from breakgraph.driver.sim.graphs import Exec, Graph
from breakgraph.driver.sim.machine import Machine
from breakgraph.driver.sim.operations import Operation, Work
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.streams import Record, Stream
from breakgraph.errors import Unrecorded

__all__ = ["GraphCalls"]


class GraphCalls(Machine):
    """Graphs and execs."""

    @call(Needs.NOTHING)
    def graph_create(self) -> int:
        graph = Graph(self.new_handle())
        return self.graphs.add(graph.handle, graph)

    @call(Needs.HANDLE, frees=True)
    def graph_destroy(self, graph: int) -> None:
        target = self.graphs.get(graph)
        if self._is_captured_into(target):
            raise Unrecorded("the graph of an open capture was destroyed")
        self.graphs.pop(graph)
        for node in target.nodes:
            self.nodes.pop(node.handle)

    @call(unsafe=True)
    def graph_instantiate(self, graph: int, flags: int = 0) -> int:
        if flags:
            raise Unrecorded(f"a graph was instantiated with flags {flags:#x}")
        source = self.graphs.get(graph)
        if self._is_captured_into(source):
            raise Unrecorded("the graph of an open capture was instantiated")
        made = Exec(self.new_handle(), source, self.context)
        if any(set(made.allocations) & set(other.allocations) for other in self.execs.values()):
            raise Unrecorded("a graph with allocation nodes was instantiated twice")
        return self.execs.add(made.handle, made)

    @call(Needs.HANDLE)
    def graph_exec_update(self, graph_exec: int, graph: int) -> None:
        self.execs.get(graph_exec).update(self.graphs.get(graph))

    @call(Needs.HANDLE, unsafe=True, frees=True)
    def graph_exec_destroy(self, graph_exec: int) -> None:
        self.execs.pop(graph_exec)

    @call()
    def graph_upload(self, graph_exec: int, stream: int) -> None:
        self.execs.get(graph_exec)
        self.captures.refuse_into(self.used_stream(stream))

    @call()
    def graph_launch(self, graph_exec: int, stream: int) -> None:
        launched, target = self.execs.get(graph_exec), self.used_stream(stream)
        self.captures.refuse_into(target)
        if any(allocation.ptr in self.heaps.live for allocation in launched.allocations):
            raise Refuse(Result.INVALID_VALUE, "memory that an earlier launch allocated has not been freed")
        if any(one.ptr not in self.heaps.live and one not in launched.allocations for one in launched.frees):
            raise Refuse(Result.INVALID_VALUE, "memory that it frees is not allocated")
        for allocation in launched.allocations:
            self.heaps.live[allocation.ptr] = allocation
        for allocation in launched.frees:
            self.heaps.retire(allocation)
        self._enqueue(launched, target)

    # what they share ------------------------------------------------------------------------------------
    def _is_captured_into(self, graph: Graph) -> bool:
        return any(capture.graph is graph for capture in self.captures.open)

    def _enqueue(self, launched: Exec, stream: Stream) -> None:
        """Each node is an operation of its own, so that a schedule may choose among the orders of the edges.

        A launch comes after what is on the stream and after the last launch of the same exec
        (CUDA driver API, cuGraphLaunch).
        """
        finder, lane = self.finder, stream.lane
        entry = [*self.order(stream), *(one for one in launched.last if not one.done)]
        finder.join(lane, launched.clock)
        for event in launched.events:
            if event.record is not None:  # finer than this, who waits for whom inside a graph is not followed
                finder.join(lane, event.record.clock)
        finder.touch(lane, stream.handle, launched.touched, ("exec", launched.handle, launched.version))
        bytes_ = launched.touched.resolved(finder.aliases)
        if launched.checked is not bytes_:  # at the first launch, and where its addresses mean other bytes by now
            launched.checked = bytes_
            finder.within_graph([work.accesses for work in launched.works], launched.before())
        operations: list[Operation] = []
        for work, after in zip(launched.works, launched.after, strict=True):
            before = [operations[at] for at in after] or entry
            operations.append(self._enqueue_node(stream, work, before))
        last = [operations[at] for at in launched.shape.exits]
        if len(last) != 1:  # a launch has one end, and an empty graph has its place in the order too
            last = [Operation(stream.context, lane.id, _END, last or entry)]
            self.engine.submit(last[0])
        stream.advance(last[0])
        launched.last = last
        launched.clock = finder.snapshot(lane)

    def _enqueue_node(self, stream: Stream, work: Work, before: list[Operation]) -> Operation:
        event = work.event
        if event is not None and work.type is NodeType.WAIT_EVENT and event.record is not None:
            before = [*before, event.record.operation]
        if event is not None and work.type is NodeType.EVENT_RECORD:
            record = Record(self.finder.snapshot(stream.lane))
            operation = Operation(stream.context, stream.lane.id, Work(work.name, work.type, record.reach), before)
            record.operation = operation
            event.record, event.capture, event.heads = record, None, {}
        else:
            operation = Operation(stream.context, stream.lane.id, work, before)
        self.engine.submit(operation)
        return operation


_END = Work("end of graph", NodeType.EMPTY, lambda: None)
