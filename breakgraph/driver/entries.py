"""Driver calls by the addresses that the driver gives (`breakgraph.driver.quick`): those that each segment makes.

Most enqueue or ask, and do not wait, so they keep the interpreter lock. One that enqueues does wait while the driver's
queue is full; breakgraph/memory/backlog.py keeps it from being full. Those that take longer the larger a graph is give
the lock up.
"""

from __future__ import annotations

from types import ModuleType

from breakgraph.driver.quick import Call
from breakgraph.driver.results import call, snake
from breakgraph.errors import DriverError, driver_error

__all__ = ["Entries"]

_PER_THREAD = 2  # CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: what handle 0 means
_NOT_READY = 600


class Entries:
    """The calls, each named as in the driver protocol.

    Parameters
    ----------
    bindings
        ``cuda.bindings.driver``.
    per_thread
        Handle 0 is the per-thread default stream.
    edge_data
        The driver has the forms with edge data, of CUDA 12.3. Without, the forms are those of CUDA 12.0.
    """

    def __init__(self, bindings: ModuleType, *, per_thread: bool, edge_data: bool) -> None:
        version, flags = 12030 if edge_data else 12000, _PER_THREAD if per_thread else 0

        def entry(name: str, slots: str, *, protocol: str = "", unready: int = 0, yields: bool = False) -> Call:
            address, *_ = call(bindings.cuGetProcAddress, name.encode(), version, flags)

            def error(code: int) -> DriverError:
                try:
                    known: str = bindings.CUresult(code).name
                except ValueError:
                    known = ""
                return driver_error(code, protocol or snake(name), known)

            return Call(int(address), slots, error, unready=unready, yields=yields)

        self.edge_data = edge_data
        edges = "l" if edge_data else ""  # CUgraphEdgeData is as large as a word
        self.ctx_get_current = entry("cuCtxGetCurrent", "a")
        self.stream_wait_event = entry("cuStreamWaitEvent", "www")
        self.stream_begin_capture = entry("cuStreamBeginCapture", "ww")
        self.stream_end_capture = entry("cuStreamEndCapture", "wa")
        self.stream_is_capturing = entry("cuStreamIsCapturing", "wa")
        self.stream_get_capture_info = entry("cuStreamGetCaptureInfo", "waaappn" if edge_data else "waaapn")
        self.thread_exchange_stream_capture_mode = entry("cuThreadExchangeStreamCaptureMode", "x")
        self.event_record = entry("cuEventRecord", "ww")
        self.event_query = entry("cuEventQuery", "w", unready=_NOT_READY)
        self.graph_destroy = entry("cuGraphDestroy", "w", yields=True)
        self.graph_get_nodes = entry("cuGraphGetNodes", "wln")
        self.graph_get_edges = entry("cuGraphGetEdges", f"wll{edges}n")
        self.graph_get_node_count = entry("cuGraphGetNodes", "wwa", protocol="graph_get_node_count")
        self.graph_node_get_type = entry("cuGraphNodeGetType", "wa")
        self.graph_node_get_dependencies = entry("cuGraphNodeGetDependencies", f"wl{edges}n")
        # The form of CUDA 12.0 has the name that was given to it first, for what flags it takes.
        self.graph_instantiate = entry("cuGraphInstantiateWithFlags", "aww", protocol="graph_instantiate", yields=True)
        self.graph_exec_destroy = entry("cuGraphExecDestroy", "w", yields=True)
        self.graph_launch = entry("cuGraphLaunch", "ww")
        self.graph_launch_yielding = entry("cuGraphLaunch", "ww", yields=True)
        self.memcpy_dtod_async = entry("cuMemcpyDtoDAsync", "wwww")
        self.memset_d8_async = entry("cuMemsetD8Async", "wwww")
