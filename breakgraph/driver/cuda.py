"""The driver protocol over ``cuda.bindings.driver``: the only file that imports it.

Handles go in as plain ints, which the bindings accept wherever they accept their own types. Differences
between the 12.9 and the 13.x bindings end here. Calls are in the protocol's order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from breakgraph.driver.api import (
    STREAM_LEGACY,
    STREAM_PER_THREAD,
    CaptureInfo,
    CaptureMode,
    CaptureStatus,
    DependencyUpdate,
    EdgeData,
    EventFlag,
    HasStream,
    StreamFlag,
)
from breakgraph.driver.cuda_nodes import NodeCalls, edges_of
from breakgraph.driver.entries import Entries
from breakgraph.driver.owned import Stream
from breakgraph.driver.quick import Claim, Ending, Round, Sequence, Tally
from breakgraph.driver.results import SIMULATE, call, initialize, integer, newest, ready
from breakgraph.errors import DriverNotFound

__all__ = ["CudaDriver"]

_STATUS, _MODE = tuple(CaptureStatus), tuple(CaptureMode)  # by their numbers, which are 0, 1 and 2
_ACTIVE = CaptureStatus.ACTIVE
_EDGE_DATA_SINCE = 12030  # the driver version that brought edge data to captures and graphs


class CudaDriver(NodeCalls):
    """A CUDA driver and its first device.

    Parameters
    ----------
    bindings
        The module to call in place of ``cuda.bindings.driver``.

    Raises
    ------
    DriverNotFound
        There are no bindings, no driver library, no device, or the bindings are newer than the driver.
    """

    name: Final = "cuda"
    can_capture: Final = True

    def __init__(self, bindings: ModuleType | None = None) -> None:
        cu = bindings or _import_bindings()
        initialize(cu)
        edge_data = integer(cu.cuDriverGetVersion) >= _EDGE_DATA_SINCE
        self._update_dependencies = newest(cu, "cuStreamUpdateCaptureDependencies", "_v2", edge_data)
        # The bindings read the same variable, once, when they are imported.
        per_thread = os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0").strip() not in ("", "0")
        self._default_stream = STREAM_PER_THREAD if per_thread else STREAM_LEGACY
        super().__init__(cu, Entries(cu, per_thread=per_thread, edge_data=edge_data))
        self._primary = 0
        self._lock = threading.Lock()

    # conveniences ---------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        self.ensure_context()
        self.ctx_synchronize()

    def create_stream(self, *, blocking: bool = False) -> Stream:
        self.ensure_context()
        flags = StreamFlag.DEFAULT if blocking else StreamFlag.NON_BLOCKING
        return Stream(self.stream_create(flags), self.stream_destroy)

    def ensure_context(self) -> int:
        ctx = self.ctx_get_current()
        if not ctx:
            with self._lock:
                ctx = self._primary = self._primary or self.device_primary_ctx_retain(0)
            self.ctx_set_current(ctx)
        return ctx

    def resolve_stream(self, handle: int) -> int:
        return handle or self._default_stream

    def finalize(self, call: Callable[[], None]) -> None:
        call()

    # contexts and devices -------------------------------------------------------------------------------
    def device_get_count(self) -> int:
        return integer(self._cu.cuDeviceGetCount)

    def device_get_name(self, device: int) -> str:
        (name,) = call(self._cu.cuDeviceGetName, 256, device)
        return bytes(name).partition(b"\0")[0].decode().strip()

    def driver_get_version(self) -> int:
        return integer(self._cu.cuDriverGetVersion)

    def device_primary_ctx_retain(self, device: int) -> int:
        return integer(self._cu.cuDevicePrimaryCtxRetain, device)

    def device_primary_ctx_release(self, device: int) -> None:
        call(self._cu.cuDevicePrimaryCtxRelease, device)

    def ctx_create(self, device: int) -> int:
        parameters = () if self._cu.CUDA_VERSION < 13000 else (None,)  # 13 gained creation parameters, in front
        return integer(self._cu.cuCtxCreate, *parameters, 0, device)

    def ctx_destroy(self, ctx: int) -> None:
        call(self._cu.cuCtxDestroy, ctx)

    def ctx_get_current(self) -> int:
        return int(self._entries.ctx_get_current())

    def ctx_set_current(self, ctx: int) -> None:
        call(self._cu.cuCtxSetCurrent, ctx)

    def ctx_push_current(self, ctx: int) -> None:
        call(self._cu.cuCtxPushCurrent, ctx)

    def ctx_pop_current(self) -> int:
        return integer(self._cu.cuCtxPopCurrent)

    def ctx_get_device(self) -> int:
        return integer(self._cu.cuCtxGetDevice)

    def ctx_get_id(self, ctx: int) -> int:
        return integer(self._cu.cuCtxGetId, ctx)

    def ctx_synchronize(self) -> None:
        call(self._cu.cuCtxSynchronize)

    # streams --------------------------------------------------------------------------------------------
    def stream_create(self, flags: int = StreamFlag.NON_BLOCKING) -> int:
        return integer(self._cu.cuStreamCreate, flags)

    def stream_destroy(self, stream: int) -> None:
        call(self._cu.cuStreamDestroy, stream)

    def stream_synchronize(self, stream: int) -> None:
        call(self._cu.cuStreamSynchronize, stream)

    def stream_query(self, stream: int) -> bool:
        return ready(self._cu.cuStreamQuery, stream)

    def stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        self._entries.stream_wait_event(stream, event, flags)

    def stream_get_priority(self, stream: int) -> int:
        return integer(self._cu.cuStreamGetPriority, stream)

    # capture --------------------------------------------------------------------------------------------
    def stream_begin_capture(self, stream: int, mode: CaptureMode) -> None:
        self._entries.stream_begin_capture(stream, mode)

    def stream_end_capture(self, stream: int) -> int:
        return int(self._entries.stream_end_capture(stream))

    def stream_is_capturing(self, stream: int) -> CaptureStatus:
        status: int = self._entries.stream_is_capturing(stream)
        return _STATUS[status]

    def stream_get_capture_info(self, stream: int) -> CaptureInfo:
        status, ident, graph, nodes, *edges = self._entries.stream_get_capture_info(stream)
        if status != _ACTIVE:
            return CaptureInfo(_STATUS[status])
        return CaptureInfo(_ACTIVE, ident, graph, nodes, edges_of(edges, len(nodes)))

    def stream_update_capture_dependencies(
        self,
        stream: int,
        dependencies: Items[int],
        edges: Items[EdgeData] | None = None,
        flags: DependencyUpdate = DependencyUpdate.SET,
    ) -> None:
        nodes = [self._cu.CUgraphNode(node) for node in dependencies]
        data = ([self._native_edge(edge) for edge in edges] if edges else None,) if self._entries.edge_data else ()
        call(self._update_dependencies, stream, nodes, *data, len(nodes), flags)

    def thread_exchange_stream_capture_mode(self, mode: CaptureMode) -> CaptureMode:
        before: int = self._entries.thread_exchange_stream_capture_mode(mode)
        return _MODE[before]

    # events ---------------------------------------------------------------------------------------------
    def event_create(self, flags: int = EventFlag.DISABLE_TIMING) -> int:
        return integer(self._cu.cuEventCreate, flags)

    def event_destroy(self, event: int) -> None:
        call(self._cu.cuEventDestroy, event)

    def event_record(self, event: int, stream: int) -> None:
        self._entries.event_record(event, stream)

    def event_record_with_flags(self, event: int, stream: int, flags: int) -> None:
        call(self._cu.cuEventRecordWithFlags, event, stream, flags)

    def event_query(self, event: int) -> bool:
        return bool(self._entries.event_query(event))

    def event_synchronize(self, event: int) -> None:
        call(self._cu.cuEventSynchronize, event)

    def event_elapsed_time(self, start: int, end: int) -> float:
        (milliseconds,) = call(self._cu.cuEventElapsedTime, start, end)
        return float(milliseconds)

    # graphs ---------------------------------------------------------------------------------------------
    def graph_create(self) -> int:
        return integer(self._cu.cuGraphCreate, 0)

    def graph_destroy(self, graph: int) -> None:
        self._entries.graph_destroy(graph)

    def graph_instantiate(self, graph: int, flags: int = 0) -> int:
        return int(self._entries.graph_instantiate(graph, flags))

    def graph_exec_update(self, graph_exec: int, graph: int) -> None:
        call(self._cu.cuGraphExecUpdate, graph_exec, graph)

    def graph_exec_destroy(self, graph_exec: int) -> None:
        self._entries.graph_exec_destroy(graph_exec)

    def graph_upload(self, graph_exec: int, stream: int) -> None:
        call(self._cu.cuGraphUpload, graph_exec, stream)

    def graph_launch(self, graph_exec: int, stream: int) -> None:
        self._entries.graph_launch(graph_exec, stream)

    def graph_launch_yielding(self, graph_exec: int, stream: int) -> None:
        self._entries.graph_launch_yielding(graph_exec, stream)

    def sequence(self, pairs: Iterable[tuple[int, Callable[[], object] | None]], place: HasStream) -> Sequence:
        return Sequence(self._entries.graph_launch, pairs, place)

    def round(self, context: int, event: int, claim: Claim, tally: Tally) -> Round:
        calls = self._entries
        return Round(
            context,
            event,
            claim,
            tally,
            calls.ctx_get_current,
            calls.stream_is_capturing,
            calls.stream_wait_event,
            calls.event_record,
            calls.event_query,
            calls.thread_exchange_stream_capture_mode,
            int(CaptureMode.RELAXED),
        )

    def ending(self) -> Ending:
        calls = self._entries
        return Ending(
            calls.thread_exchange_stream_capture_mode,
            calls.stream_get_capture_info,
            calls.graph_get_nodes,
            calls.graph_get_edges,
            calls.stream_end_capture,
            calls.graph_node_get_type,
            calls.graph_instantiate,
            int(CaptureMode.RELAXED),
            int(_ACTIVE),
        )

    # memory: plain, stream-ordered, host, virtual -------------------------------------------------------
    def mem_get_info(self) -> tuple[int, int]:
        free, total = call(self._cu.cuMemGetInfo)
        return int(free), int(total)

    def mem_alloc(self, nbytes: int) -> int:
        return integer(self._cu.cuMemAlloc, nbytes)

    def mem_free(self, ptr: int) -> None:
        call(self._cu.cuMemFree, ptr)

    def mem_alloc_async(self, nbytes: int, stream: int) -> int:
        return integer(self._cu.cuMemAllocAsync, nbytes, stream)

    def mem_free_async(self, ptr: int, stream: int) -> None:
        call(self._cu.cuMemFreeAsync, ptr, stream)

    def mem_host_alloc(self, nbytes: int, flags: int = 0) -> int:
        return integer(self._cu.cuMemHostAlloc, nbytes, flags)

    def mem_free_host(self, ptr: int) -> None:
        call(self._cu.cuMemFreeHost, ptr)

    def device_get_default_mem_pool(self, device: int) -> int:
        return integer(self._cu.cuDeviceGetDefaultMemPool, device)

    def mem_pool_trim_to(self, pool: int, keep: int) -> None:
        call(self._cu.cuMemPoolTrimTo, pool, keep)

    def mem_pool_get_attribute(self, pool: int, attribute: int) -> int:
        return integer(self._cu.cuMemPoolGetAttribute, pool, self._cu.CUmemPool_attribute(attribute))

    def mem_get_allocation_granularity(self, device: int) -> int:
        minimum = self._cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return integer(self._cu.cuMemGetAllocationGranularity, self._allocation_on(device), minimum)

    def mem_address_reserve(self, nbytes: int) -> int:
        return integer(self._cu.cuMemAddressReserve, nbytes, 0, 0, 0)

    def mem_address_free(self, ptr: int, nbytes: int) -> None:
        call(self._cu.cuMemAddressFree, ptr, nbytes)

    def mem_create(self, nbytes: int, device: int) -> int:
        return integer(self._cu.cuMemCreate, nbytes, self._allocation_on(device), 0)

    def mem_release(self, handle: int) -> None:
        call(self._cu.cuMemRelease, handle)

    def mem_map(self, ptr: int, nbytes: int, handle: int) -> None:
        call(self._cu.cuMemMap, ptr, nbytes, 0, handle, 0)

    def mem_unmap(self, ptr: int, nbytes: int) -> None:
        call(self._cu.cuMemUnmap, ptr, nbytes)

    def mem_set_access(self, ptr: int, nbytes: int, device: int) -> None:
        access = self._cu.CUmemAccessDesc()
        access.location = self._location_of(device)
        access.flags = self._cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call(self._cu.cuMemSetAccess, ptr, nbytes, [access], 1)

    # copies and sets ------------------------------------------------------------------------------------
    def memcpy_htod(self, dst: int, src: int, nbytes: int) -> None:
        call(self._cu.cuMemcpyHtoD, dst, src, nbytes)

    def memcpy_dtoh(self, dst: int, src: int, nbytes: int) -> None:
        call(self._cu.cuMemcpyDtoH, dst, src, nbytes)

    def memcpy_dtod(self, dst: int, src: int, nbytes: int) -> None:
        call(self._cu.cuMemcpyDtoD, dst, src, nbytes)

    def memcpy_htod_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        call(self._cu.cuMemcpyHtoDAsync, dst, src, nbytes, stream)

    def memcpy_dtoh_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        call(self._cu.cuMemcpyDtoHAsync, dst, src, nbytes, stream)

    def memcpy_dtod_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        self._entries.memcpy_dtod_async(dst, src, nbytes, stream)

    def memset_d8(self, dst: int, value: int, count: int) -> None:
        call(self._cu.cuMemsetD8, dst, value, count)

    def memset_d8_async(self, dst: int, value: int, count: int, stream: int) -> None:
        self._entries.memset_d8_async(dst, value, count, stream)

    def memset_d32_async(self, dst: int, value: int, count: int, stream: int) -> None:
        call(self._cu.cuMemsetD32Async, dst, value, count, stream)

    # modules --------------------------------------------------------------------------------------------
    def module_load_data(self, image: bytes) -> int:
        return integer(self._cu.cuModuleLoadData, image)

    def module_unload(self, module: int) -> None:
        call(self._cu.cuModuleUnload, module)

    # structures of the bindings -------------------------------------------------------------------------
    def _location_of(self, device: int) -> Any:
        location = self._cu.CUmemLocation()
        location.type, location.id = self._cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
        return location

    def _allocation_on(self, device: int) -> Any:
        allocation = self._cu.CUmemAllocationProp()
        allocation.type = self._cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        allocation.location = self._location_of(device)
        return allocation

    def _native_edge(self, edge: EdgeData) -> Any:
        native = self._cu.CUgraphEdgeData()
        native.from_port, native.to_port, native.type = edge
        return native


def _import_bindings() -> ModuleType:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DriverNotFound(
            "there are no Python bindings for the CUDA driver",
            why=f"cuda.bindings cannot be imported ({error})",
            remedy="pip install 'breakgraph[cuda13]' for driver 580 and newer, 'breakgraph[cuda12]' for an older one;"
            f" {SIMULATE}",
        ) from (None if isinstance(error, ModuleNotFoundError) else error)  # its traceback tells no more than "why"
