"""The state of the simulated driver, and what its calls share: look-ups, order, submission, waiting."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

from breakgraph.driver.api import STREAM_LEGACY, STREAM_PER_THREAD
from breakgraph.driver.sim.aliases import Aliases
from breakgraph.driver.sim.capture import Captures
from breakgraph.driver.sim.contexts import Context, Device, ThreadState
from breakgraph.driver.sim.faults import Faults
from breakgraph.driver.sim.graphs import Exec, Graph, Node
from breakgraph.driver.sim.heap import Heaps
from breakgraph.driver.sim.log import CallLog
from breakgraph.driver.sim.memory import AddressSpace, HostMemory
from breakgraph.driver.sim.operations import Operation, Work
from breakgraph.driver.sim.races import Clock, RaceFinder, RaceWarning
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.schedule import Engine, ScheduleName
from breakgraph.driver.sim.streams import Event, Stream
from breakgraph.driver.sim.virtual import VirtualMemory
from breakgraph.errors import BreakgraphError

__all__ = ["Destructor", "Handles", "Machine"]

T = TypeVar("T")

_FIRST_HANDLE = 0x5B00_0000_0000  # neither a stream's special handle nor an address that could be one


class Handles(Generic[T]):
    """Live objects of one kind by handle. A handle is never used again, so a second destruction shows."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._live: dict[int, T] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._live)

    def values(self) -> Iterable[T]:
        return self._live.values()

    def add(self, handle: int, thing: T) -> int:
        self._live[handle] = thing
        return handle

    def get(self, handle: int) -> T:
        """The object; `Refuse` 400 where the handle is unknown, of another kind, or destroyed."""
        try:
            return self._live[handle]
        except KeyError:
            why = f"{handle:#x} is not the handle of a live {self.kind}"
            raise Refuse(Result.INVALID_HANDLE, why) from None

    def drop(self, unwanted: Callable[[T], bool]) -> None:
        """Let go of all that are unwanted."""
        self._live = {handle: thing for handle, thing in self._live.items() if not unwanted(thing)}

    def pop(self, handle: int) -> T:
        """The object, which is no longer live."""
        thing = self.get(handle)
        del self._live[handle]
        return thing


class Destructor:
    """Makes its calls when it is dropped, so that Python reports what they raise as it reports any destructor's."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


class Machine:
    """State shared by all calls. The calls themselves are in the modules named after CUDA's chapters."""

    def __init__(self, schedule: ScheduleName, seed: int, devices: int, memory: int, can_capture: bool) -> None:
        self.can_capture = can_capture
        self.lock = threading.RLock()
        self.busy = False
        self.postponed: deque[Callable[[], object]] = deque()
        self.finalizing = False
        self.calls_made = CallLog()
        self.faults = Faults()
        self.aliases = Aliases()
        self.finder = RaceFinder(self.aliases)
        self.engine = Engine(schedule, seed)
        self.captures = Captures()
        self.space = AddressSpace()
        self.host = HostMemory()
        self._numbers = count(_FIRST_HANDLE, 0x10)
        self._threads = threading.local()
        self.devices = [Device(ordinal, memory, self.new_handle()) for ordinal in range(devices)]
        self.heaps = Heaps(self.space, self.devices, self.finder)
        self.virtual = VirtualMemory(self.space, self.aliases)
        self.contexts: Handles[Context] = Handles("context")
        self.streams: Handles[Stream] = Handles("stream")
        self.events: Handles[Event] = Handles("event")
        self.graphs: Handles[Graph] = Handles("graph")
        self.nodes: Handles[Node] = Handles("graph node")
        self.execs: Handles[Exec] = Handles("graph exec")
        self.modules: Handles[Context] = Handles("module")
        self.functions: dict[str, int] = {}  # handles of the kernels that nodes were asked about, by name

    def new_handle(self) -> int:
        return next(self._numbers)

    # the calling thread ---------------------------------------------------------------------------------
    @property
    def thread(self) -> ThreadState:
        """The calling thread's state."""
        try:
            return self._threads.state  # type: ignore[no-any-return]
        except AttributeError:
            state = self._threads.state = ThreadState()
            return state

    @property
    def context(self) -> Context:
        """The current context, which the call's frame has made sure of."""
        context = self.thread.context
        if context is None:
            raise Refuse(Result.INVALID_CONTEXT, "the calling thread has no current context")
        return context

    def refuse_lost(self, context: Context) -> None:
        """A context that is lost answers the same to every call."""
        if context.loss is not None:
            raise Refuse(context.loss.code, context.loss.why) from context.loss.cause

    def device(self, ordinal: int) -> Device:
        if not 0 <= ordinal < len(self.devices):
            raise Refuse(Result.INVALID_DEVICE, f"there is no device {ordinal}")
        return self.devices[ordinal]

    # streams --------------------------------------------------------------------------------------------
    def stream(self, handle: int) -> Stream:
        """The stream that a handle means to the calling thread, without using it."""
        if handle in (0, STREAM_LEGACY):
            return self.context.legacy
        if handle == STREAM_PER_THREAD:
            own = self.thread.streams
            if self.context not in own:
                own[self.context] = self.new_stream(STREAM_PER_THREAD, self.context, blocking=True)
            return own[self.context]
        return self.streams.get(handle)

    def used_stream(self, handle: int) -> Stream:
        """The stream that a call is about to use; using the legacy stream touches blocking captures."""
        stream = self.stream(handle)
        if self.captures.open and stream is stream.context.legacy:
            self.captures.refuse_implicit(stream.context)
        return stream

    def new_stream(self, handle: int, context: Context, *, blocking: bool) -> Stream:
        stream = Stream(handle, context, blocking=blocking)
        context.streams[stream] = None
        if blocking:
            context.blocking[stream] = None
        return stream

    # order, submission, waiting -------------------------------------------------------------------------
    def order(self, stream: Stream) -> list[Operation]:
        """What the stream's next operation comes after, the legacy stream's rules included.

        The legacy stream comes after all blocking streams, and a blocking stream after the legacy one
        (CUDA driver API, "Stream synchronization behavior").
        """
        if not stream.blocking:
            return stream.frontier
        context = stream.context
        others = context.blocking if stream is context.legacy else (context.legacy,)
        for other in others:
            if other is not stream:
                stream.follow(other.frontier)
                self.finder.join(stream.lane, other.lane.clock)
        return stream.frontier

    def submit(self, stream: Stream, work: Work) -> None:
        """Record the work where the stream is in a capture, enqueue it otherwise."""
        if stream.capture is not None:
            node = self.captures.add(stream, work, self.new_handle())
            self.nodes.add(node.handle, node)
            return
        self.enqueue(stream, work)

    def enqueue(self, stream: Stream, work: Work) -> Operation:
        """Enqueue work on a stream that is in no capture."""
        operation = Operation(stream.context, stream.lane.id, work, self.order(stream))
        stream.advance(operation)
        self.finder.touch(stream.lane, stream.handle, work.accesses)
        self.engine.submit(operation)
        return operation

    def wait_for(self, operations: Iterable[Operation], clock: Clock) -> None:
        """The host waits until the operations are done; all that ``clock`` covers is known to be done then."""
        self.engine.finish(list(operations))
        self.finder.waited(clock)

    def wait_for_stream(self, stream: Stream) -> None:
        """The host waits for all work of a stream."""
        self.wait_for(self.order(stream), self.finder.snapshot(stream.lane))

    def wait_for_context(self, context: Context) -> None:
        """The host waits for all work of a context, of destroyed streams too."""
        self.engine.finish(self.engine.of_context(context))
        for stream in context.streams:
            self.finder.waited(self.finder.snapshot(stream.lane))
        self.finder.waited(self.finder.snapshot(context.departed))

    def make_postponed_calls(self) -> None:
        """Make the calls of destructors that ran in the middle of another call, one destructor after the other.

        What a single call raises concerns nobody who could still catch it; it stands in the log.
        """
        if self.finalizing:
            return  # a call of one of them has ended
        self.finalizing = True
        try:
            while self.postponed:
                with suppress(BreakgraphError):
                    self.postponed.popleft()()
        finally:
            self.finalizing = False

    def warn_of_races(self) -> None:
        """Warn of each race once."""
        fresh, self.finder.fresh = self.finder.fresh, []
        for race in fresh:
            warnings.warn(str(race), RaceWarning, stacklevel=3)
