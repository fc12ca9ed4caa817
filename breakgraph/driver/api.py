"""The driver protocol: CUDA's own calls, in snake case without ``cu``, over plain ints.

Two objects answer it: `breakgraph.driver.cuda.CudaDriver` and `breakgraph.driver.sim.SimDriver`. Every call
raises the typed error of its result (`breakgraph.errors.driver_error`); nothing above this room compares
result codes. Sizes are bytes. Source of each call's meaning: CUDA driver API reference.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol, runtime_checkable

from breakgraph.driver.owned import Stream
from breakgraph.driver.quick import Claim, Ending, Round, Sequence, Tally

__all__ = [
    "CaptureInfo",
    "CaptureMode",
    "CaptureStatus",
    "DependencyUpdate",
    "Driver",
    "Edge",
    "EdgeData",
    "EventFlag",
    "KernelNode",
    "MemcpyNode",
    "MemoryType",
    "MemsetNode",
    "NodeType",
    "STREAM_LEGACY",
    "STREAM_PER_THREAD",
    "StreamFlag",
]

STREAM_LEGACY = 1  #: CU_STREAM_LEGACY: the default stream that synchronizes with every blocking stream
STREAM_PER_THREAD = 2  #: CU_STREAM_PER_THREAD: the calling thread's own default stream


class CaptureMode(enum.IntEnum):
    """CUstreamCaptureMode: whose potentially unsafe calls a capture forbids."""

    GLOBAL = 0
    THREAD_LOCAL = 1
    RELAXED = 2


class CaptureStatus(enum.IntEnum):
    """CUstreamCaptureStatus."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2


class StreamFlag(enum.IntFlag):
    """CUstream_flags."""

    DEFAULT = 0  #: blocking: synchronizes with the legacy stream
    NON_BLOCKING = 1


class EventFlag(enum.IntFlag):
    """CUevent_flags, and the flags of recording and waiting."""

    DEFAULT = 0
    BLOCKING_SYNC = 1
    DISABLE_TIMING = 2
    EXTERNAL = 1  #: CU_EVENT_RECORD_EXTERNAL / CU_EVENT_WAIT_EXTERNAL, for record and wait only


class DependencyUpdate(enum.IntEnum):
    """CUstreamUpdateCaptureDependencies_flags."""

    ADD = 0
    SET = 1


class NodeType(enum.IntEnum):
    """CUgraphNodeType."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3
    GRAPH = 4
    EMPTY = 5
    WAIT_EVENT = 6
    EVENT_RECORD = 7
    EXT_SEMAS_SIGNAL = 8
    EXT_SEMAS_WAIT = 9
    MEM_ALLOC = 10
    MEM_FREE = 11
    BATCH_MEM_OP = 12
    CONDITIONAL = 13


class MemoryType(enum.IntEnum):
    """CUmemorytype: what an end of a copy lies in. UNIFIED: the address tells (cuMemcpy and cuMemcpyAsync)."""

    HOST = 1
    DEVICE = 2
    ARRAY = 3
    UNIFIED = 4


class KernelNode(NamedTuple):
    """CUDA_KERNEL_NODE_PARAMS, but for the arguments, which are bytes that only the kernel can read.

    One of ``func`` (a CUfunction) and ``kern`` (a CUkernel) may be 0. Grid in blocks, block in threads.
    """

    func: int
    kern: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


class MemcpyNode(NamedTuple):
    """CUDA_MEMCPY3D, as far as it tells what a copy moves."""

    source: MemoryType
    destination: MemoryType
    nbytes: int


class MemsetNode(NamedTuple):
    """CUDA_MEMSET_NODE_PARAMS, as far as it tells what is set; ``nbytes`` is without the padding of a pitch."""

    dst: int
    nbytes: int


class EdgeData(NamedTuple):
    """CUgraphEdgeData: which port of a node an edge leaves and enters; zeros for a full dependency."""

    from_port: int = 0
    to_port: int = 0
    type: int = 0


class Edge(NamedTuple):
    """``head`` runs after ``tail``."""

    tail: int
    head: int
    data: EdgeData = EdgeData()


class CaptureInfo(NamedTuple):
    """cuStreamGetCaptureInfo: ``graph`` belongs to the capture; never destroy or keep it.

    ``dependencies`` are the nodes that the stream's next node will depend on, ``edges`` their edge data in
    the same order. For a stream that is not capturing all but ``status`` are empty.
    """

    status: CaptureStatus
    id: int = 0
    graph: int = 0
    dependencies: tuple[int, ...] = ()
    edges: tuple[EdgeData, ...] = ()


class HasStream(Protocol):
    """A place that knows the stream that work is on now."""

    stream: int


@runtime_checkable
class Driver(Protocol):
    """What stands for CUDA. Handles are plain ints; 0 is CUDA's null handle (for a stream: the default one)."""

    @property
    def name(self) -> str:
        """``"cuda"`` or ``"sim"``."""

    @property
    def can_capture(self) -> bool:
        """Whether stream capture may be begun; where not, every capture is inert (C7)."""

    # conveniences ---------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Wait for all work of the current context; makes the primary one current if there is none."""

    def create_stream(self, *, blocking: bool = False) -> Stream:
        """A new stream that destroys itself when it is dropped."""

    def ensure_context(self) -> int:
        """The current context; makes the primary one of device 0 current if there is none (C31)."""

    def resolve_stream(self, handle: int) -> int:
        """Handle 0 as the legacy or the per-thread stream, whichever the driver means by it; else unchanged."""

    def finalize(self, call: Callable[[], None]) -> None:
        """Make a destructor's calls: now, or where it runs in the middle of one of this driver's calls, after that one.

        They are made in this thread, in whatever context is current. What they raise goes where a destructor's errors
        go, since nobody is left to catch it.
        """

    # contexts and devices -------------------------------------------------------------------------------
    def device_get_count(self) -> int: ...
    def device_get_name(self, device: int) -> str: ...
    def driver_get_version(self) -> int: ...
    def device_primary_ctx_retain(self, device: int) -> int: ...
    def device_primary_ctx_release(self, device: int) -> None: ...
    def ctx_create(self, device: int) -> int:
        """A new context, which becomes the current one."""

    def ctx_destroy(self, ctx: int) -> None: ...
    def ctx_get_current(self) -> int:
        """The calling thread's current context, 0 if none."""

    def ctx_set_current(self, ctx: int) -> None: ...
    def ctx_push_current(self, ctx: int) -> None: ...
    def ctx_pop_current(self) -> int: ...
    def ctx_get_device(self) -> int: ...
    def ctx_get_id(self, ctx: int) -> int:
        """An id that is never used again in the process, unlike the handle."""

    def ctx_synchronize(self) -> None: ...

    # streams --------------------------------------------------------------------------------------------
    def stream_create(self, flags: int = StreamFlag.NON_BLOCKING) -> int: ...
    def stream_destroy(self, stream: int) -> None: ...
    def stream_synchronize(self, stream: int) -> None: ...
    def stream_query(self, stream: int) -> bool:
        """Whether all work of the stream is done (True) or some is pending (False)."""

    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None: ...
    def stream_get_priority(self, stream: int) -> int: ...

    # capture --------------------------------------------------------------------------------------------
    def stream_begin_capture(self, stream: int, mode: CaptureMode) -> None: ...
    def stream_end_capture(self, stream: int) -> int:
        """The captured graph, which the caller owns."""

    def stream_is_capturing(self, stream: int) -> CaptureStatus: ...
    def stream_get_capture_info(self, stream: int) -> CaptureInfo: ...
    def stream_update_capture_dependencies(
        self,
        stream: int,
        dependencies: Items[int],
        edges: Items[EdgeData] | None = None,
        flags: DependencyUpdate = DependencyUpdate.SET,
    ) -> None: ...
    def thread_exchange_stream_capture_mode(self, mode: CaptureMode) -> CaptureMode:
        """Set the calling thread's mode; returns the one it had."""

    # events ---------------------------------------------------------------------------------------------
    def event_create(self, flags: int = EventFlag.DISABLE_TIMING) -> int: ...
    def event_destroy(self, event: int) -> None: ...
    def event_record(self, event: int, stream: int) -> None: ...
    def event_record_with_flags(self, event: int, stream: int, flags: int) -> None: ...
    def event_query(self, event: int) -> bool: ...
    def event_synchronize(self, event: int) -> None: ...
    def event_elapsed_time(self, start: int, end: int) -> float:
        """Milliseconds between two recorded events."""

    # graphs ---------------------------------------------------------------------------------------------
    def graph_create(self) -> int: ...
    def graph_destroy(self, graph: int) -> None: ...
    def graph_get_nodes(self, graph: int) -> tuple[int, ...]: ...
    def graph_get_edges(self, graph: int) -> tuple[Edge, ...]: ...
    def graph_get_node_count(self, graph: int) -> int:
        """How many nodes there are: cuGraphGetNodes without a list."""

    def graph_node_get_type(self, node: int) -> NodeType: ...
    def graph_node_get_dependencies(self, node: int) -> tuple[int, ...]:
        """The nodes that this one runs after, each once; without the edge data."""

    def graph_kernel_node_get_params(self, node: int) -> KernelNode: ...
    def graph_memcpy_node_get_params(self, node: int) -> MemcpyNode: ...
    def graph_memset_node_get_params(self, node: int) -> MemsetNode: ...
    def func_get_name(self, func: int) -> str:
        """The name of a CUfunction, as the compiler mangled it. Since driver 12.3."""

    def kernel_get_name(self, kernel: int) -> str:
        """The name of a CUkernel, as the compiler mangled it. Since driver 12.3."""

    def graph_instantiate(self, graph: int, flags: int = 0) -> int: ...
    def graph_exec_update(self, graph_exec: int, graph: int) -> None: ...
    def graph_exec_destroy(self, graph_exec: int) -> None: ...
    def graph_upload(self, graph_exec: int, stream: int) -> None: ...
    def graph_launch(self, graph_exec: int, stream: int) -> None:
        """Launch, keeping the interpreter lock: other Python threads wait for as long as the call takes."""

    def graph_launch_yielding(self, graph_exec: int, stream: int) -> None:
        """Launch, and let other Python threads run meanwhile: for graphs that call Python from a host function."""

    def sequence(self, pairs: Iterable[tuple[int, Callable[[], object] | None]], place: HasStream) -> Sequence:
        """Execs to launch, 0 for none, each with what to call after it, None for nothing; `portable.Sequence`."""

    def round(self, context: int, event: int, claim: Claim, tally: Tally) -> Round:
        """A sequence with the claim and the marks around it; `portable.Round`."""

    def ending(self) -> Ending:
        """All that ends a capture, in one call; `portable.Ending`."""

    # memory: plain, stream-ordered, host, virtual -------------------------------------------------------
    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes of the current device."""

    def mem_alloc(self, nbytes: int) -> int: ...
    def mem_free(self, ptr: int) -> None: ...
    def mem_alloc_async(self, nbytes: int, stream: int) -> int: ...
    def mem_free_async(self, ptr: int, stream: int) -> None: ...
    def mem_host_alloc(self, nbytes: int, flags: int = 0) -> int:
        """Address of pinned host memory."""

    def mem_free_host(self, ptr: int) -> None: ...
    def device_get_default_mem_pool(self, device: int) -> int: ...
    def mem_pool_trim_to(self, pool: int, keep: int) -> None: ...
    def mem_pool_get_attribute(self, pool: int, attribute: int) -> int: ...
    def mem_get_allocation_granularity(self, device: int) -> int: ...
    def mem_address_reserve(self, nbytes: int) -> int: ...
    def mem_address_free(self, ptr: int, nbytes: int) -> None: ...
    def mem_create(self, nbytes: int, device: int) -> int:
        """Physical memory of a device; ``nbytes`` is a multiple of the granularity."""

    def mem_release(self, handle: int) -> None: ...
    def mem_map(self, ptr: int, nbytes: int, handle: int) -> None: ...
    def mem_unmap(self, ptr: int, nbytes: int) -> None: ...
    def mem_set_access(self, ptr: int, nbytes: int, device: int) -> None:
        """Allow reads and writes from ``device``."""

    # copies and sets; host addresses are addresses of this process ---------------------------------------
    def memcpy_htod(self, dst: int, src: int, nbytes: int) -> None: ...
    def memcpy_dtoh(self, dst: int, src: int, nbytes: int) -> None: ...
    def memcpy_dtod(self, dst: int, src: int, nbytes: int) -> None: ...
    def memcpy_htod_async(self, dst: int, src: int, nbytes: int, stream: int) -> None: ...
    def memcpy_dtoh_async(self, dst: int, src: int, nbytes: int, stream: int) -> None: ...
    def memcpy_dtod_async(self, dst: int, src: int, nbytes: int, stream: int) -> None: ...
    def memset_d8(self, dst: int, value: int, count: int) -> None: ...
    def memset_d8_async(self, dst: int, value: int, count: int, stream: int) -> None: ...
    def memset_d32_async(self, dst: int, value: int, count: int, stream: int) -> None: ...

    # modules --------------------------------------------------------------------------------------------
    def module_load_data(self, image: bytes) -> int: ...
    def module_unload(self, module: int) -> None: ...
