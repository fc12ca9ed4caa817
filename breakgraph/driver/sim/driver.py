"""The simulated driver: CUDA's calls on the CPU, and what tests ask of it beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, SupportsInt

import numpy as np

from breakgraph.driver.api import STREAM_LEGACY, CaptureMode, CaptureStatus, HasStream, NodeType
from breakgraph.driver.owned import Stream
from breakgraph.driver.portable import Claim, Ending, Round, Sequence, Tally
from breakgraph.driver.region import Region
from breakgraph.driver.sim.call import call, call_names
from breakgraph.driver.sim.context_calls import ContextCalls
from breakgraph.driver.sim.copy_calls import CopyCalls
from breakgraph.driver.sim.faults import FaultPlan
from breakgraph.driver.sim.graph_calls import GraphCalls
from breakgraph.driver.sim.log import Entry
from breakgraph.driver.sim.machine import Destructor
from breakgraph.driver.sim.memory_calls import MemoryCalls
from breakgraph.driver.sim.node_calls import NodeCalls
from breakgraph.driver.sim.operations import Work
from breakgraph.driver.sim.races import Access, Race
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.schedule import ScheduleName
from breakgraph.driver.sim.stream_calls import StreamCalls

__all__ = ["SimDriver"]


class SimDriver(ContextCalls, StreamCalls, GraphCalls, NodeCalls, MemoryCalls, CopyCalls):
    """A simulated machine with GPUs, which answers the driver protocol (S1 to S7).

    Parameters
    ----------
    schedule
        When work that is enqueued runs: ``"fifo"`` at once, in order; ``"lazy"`` not before something waits
        for it; ``"random"`` in any order that streams, events and graph edges allow.
    seed
        Of the random schedule. The same calls with the same seed run in the same order.
    devices
        Number of GPUs.
    memory
        Bytes of each GPU. Host memory is taken only for what is touched.
    can_capture
        False for a driver that cannot capture (C7).
    """

    name = "sim"

    def __init__(
        self,
        *,
        schedule: ScheduleName = "lazy",
        seed: int = 0,
        devices: int = 1,
        memory: int = 4 << 30,
        can_capture: bool = True,
    ) -> None:
        super().__init__(schedule, seed, devices, memory, can_capture)

    # conveniences ---------------------------------------------------------------------------------------
    def ensure_context(self) -> int:
        """The current context; the primary one of device 0, made current, if there is none."""
        current = self.ctx_get_current()
        if not current:
            current = self.device_primary_ctx_retain(0)
            self.ctx_set_current(current)
        return current

    def synchronize(self) -> None:
        """Wait for all work of the current context; makes the primary one current if there is none."""
        self.ensure_context()
        self.ctx_synchronize()

    def create_stream(self, *, blocking: bool = False) -> Stream:
        """A new stream that destroys itself when it is dropped."""
        self.ensure_context()
        return Stream(self.stream_create(0 if blocking else 1), self.stream_destroy)

    def graph_launch_yielding(self, graph_exec: int, stream: int) -> None:
        """`graph_launch`: no Python thread waits for a simulated device."""
        self.graph_launch(graph_exec, stream)

    def sequence(self, pairs: Iterable[tuple[int, Callable[[], object] | None]], place: HasStream) -> Sequence:
        """Execs to launch, 0 for none, each with what to call after it, None for nothing."""
        return Sequence(lambda graph_exec, stream: self.graph_launch(graph_exec, stream), pairs, place)

    def round(self, context: int, event: int, claim: Claim, tally: Tally) -> Round:
        """A sequence with the claim and the marks around it."""
        return Round(
            context,
            event,
            claim,
            tally,
            self.ctx_get_current,
            self.stream_is_capturing,
            self.stream_wait_event,
            self.event_record,
            self.event_query,
            self.thread_exchange_stream_capture_mode,
            CaptureMode.RELAXED,
        )

    def ending(self) -> Ending:
        """All that ends a capture, in one call."""
        return Ending(
            self.thread_exchange_stream_capture_mode,
            self.stream_get_capture_info,
            self.graph_get_nodes,
            lambda graph: ([edge.tail for edge in self.graph_get_edges(graph)],),
            self.stream_end_capture,
            self.graph_node_get_type,
            self.graph_instantiate,
            CaptureMode.RELAXED,
            CaptureStatus.ACTIVE,
        )

    def resolve_stream(self, handle: int) -> int:
        """Handle 0 is the legacy stream; any other is itself."""
        return handle or STREAM_LEGACY

    def finalize(self, call: Callable[[], None]) -> None:
        """Make a destructor's calls: now, or after the call of this thread in the middle of which it runs."""
        with self.lock:
            if self.busy:
                self.postponed.append(partial(Destructor, call))
                return
        call()

    # kernels (S4) ---------------------------------------------------------------------------------------
    def launch(
        self,
        stream: SupportsInt,
        fn: Callable[..., object],
        *,
        reads: Iterable[Region | Any] = (),
        writes: Iterable[Region | Any] = (),
        name: str | None = None,
    ) -> None:
        """Enqueue a kernel of the caller's own, or record it where the stream captures.

        Parameters
        ----------
        stream
            A handle, or a stream.
        fn
            Called when the kernel runs, with one NumPy array over simulated memory for each of ``reads``
            (read-only), then one for each of ``writes``. It may read what it writes. An exception it raises
            loses the context (719), as a trap in a kernel would.
        reads, writes
            Regions, or arrays that have one as their ``region``. Their addresses are baked.
        name
            Shown in races, faults and the log; the function's name by default.
        """
        read = tuple(_region(one) for one in reads)
        written = tuple(_region(one) for one in writes)
        self._launch(int(stream), name or str(getattr(fn, "__name__", "kernel")), fn=fn, read=read, written=written)

    @call()
    def _launch(
        self,
        stream: int,
        name: str,
        *,
        fn: Callable[..., object],
        read: tuple[Region, ...],
        written: tuple[Region, ...],
    ) -> None:
        target = self.used_stream(stream)
        if target.context is not self.context:
            raise Refuse(Result.INVALID_HANDLE, "the stream is not of the current context")
        space, device = self.space, self.context.device.ordinal

        def run() -> None:
            arrays = [space.view(region, device) for region in read]
            for array in arrays:
                array.flags.writeable = False
            with np.errstate(all="ignore"):  # a GPU does not warn either
                fn(*arrays, *(space.view(region, device) for region in written))

        accesses = [Access.of(region, False, name) for region in read if region.size]
        accesses += [Access.of(region, True, name) for region in written if region.size]
        self.submit(target, Work(name, NodeType.KERNEL, run, tuple(accesses)))

    # what tests ask (S5, S6, S7) ------------------------------------------------------------------------
    @property
    def log(self) -> list[Entry]:
        """Every call so far, in order, with the marks between them (S6)."""
        return self.calls_made.entries

    @property
    def calls(self) -> Counter[str]:
        """How often each call was made, refused ones included (S6)."""
        return self.calls_made.calls

    def mark(self, text: str) -> None:
        """Place a mark in the log: an entry whose ``name`` is ``"mark"`` and whose ``args`` are ``(text,)``."""
        self.calls_made.mark(text)

    def fail(self, call: str, at: int = 1, code: int = 999) -> FaultPlan:
        """A ``with`` block in which occurrence ``at`` of a call, counted from 1, answers ``code`` (S5).

        The call that fails has no effect. ``code`` 999 is CUDA_ERROR_UNKNOWN. Raises ValueError for a name
        that is no driver call.
        """
        if call not in _CALLS:
            raise ValueError(f"{call!r} is not a driver call")
        return self.faults.plan(call, at, code)

    @property
    def races(self) -> list[Race]:
        """Every race found so far (S7)."""
        return self.finder.races

    def live(self) -> Mapping[str, tuple[int, ...]]:
        """The handles and addresses that are live, by kind. Asks the simulator, and makes no driver call.

        ``capture`` are the streams that are capturing; the graph of an open capture is not counted.
        """
        with self.lock:
            open_captures = tuple(self.captures.open)
            open_graphs = {capture.graph.handle for capture in open_captures}
            return {
                "context": tuple(self.contexts),
                "stream": tuple(self.streams),
                "event": tuple(self.events),
                "graph": tuple(
                    handle for handle in tuple(self.graphs) if handle not in open_graphs
                ),  # a destructor may run
                "graph_exec": tuple(self.execs),
                "module": tuple(self.modules),
                "allocation": tuple(self.heaps.live),
                "host_allocation": self.host.live,
                "reservation": tuple(self.virtual.reservations),
                "physical": tuple(self.virtual.physical),
                "capture": tuple(stream.handle for capture in open_captures for stream in tuple(capture.streams)),
            }

    @property
    def thread_capture_mode(self) -> CaptureMode:
        """The calling thread's capture mode. Makes no driver call."""
        return self.thread.mode

    @property
    def context_depth(self) -> int:
        """How many contexts are on the calling thread's stack. Makes no driver call."""
        return len(self.thread.stack)


_CALLS = frozenset(call_names(SimDriver))


def _region(operand: Region | Any) -> Region:
    region = operand if isinstance(operand, Region) else operand.region
    assert isinstance(region, Region)
    return region
