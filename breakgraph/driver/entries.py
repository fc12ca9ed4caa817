"""Driver calls that keep the interpreter lock, by the addresses that the driver gives (`breakgraph.driver.quick`).

They are calls of captures and replays which enqueue or ask, and do not wait. One that enqueues does wait while the
driver's queue is full; breakgraph/memory/backlog.py keeps it from being full.
"""

from __future__ import annotations

from types import ModuleType

from breakgraph.driver.quick import Call
from breakgraph.driver.results import call, snake
from breakgraph.errors import DriverError, driver_error

__all__ = ["Entries"]

_VERSION = 12000  # the forms of the functions that CUDA 12.0 has: with 64-bit sizes
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
    """

    def __init__(self, bindings: ModuleType, *, per_thread: bool) -> None:
        def entry(name: str, words: int, *, answers: bool = False, unready: int = 0) -> Call:
            address, *_ = call(bindings.cuGetProcAddress, name.encode(), _VERSION, _PER_THREAD if per_thread else 0)

            def error(code: int) -> DriverError:
                try:
                    known: str = bindings.CUresult(code).name
                except ValueError:
                    known = ""
                return driver_error(code, snake(name), known)

            return Call(int(address), words, error, answers, unready)

        self.thread_exchange_stream_capture_mode = entry("cuThreadExchangeStreamCaptureMode", 1)
        self.stream_begin_capture = entry("cuStreamBeginCapture", 2)
        self.stream_end_capture = entry("cuStreamEndCapture", 1, answers=True)
        self.graph_node_get_type = entry("cuGraphNodeGetType", 1, answers=True)
        self.graph_launch = entry("cuGraphLaunch", 2)
        self.event_record = entry("cuEventRecord", 2)
        self.event_query = entry("cuEventQuery", 1, unready=_NOT_READY)
        self.stream_wait_event = entry("cuStreamWaitEvent", 3)
        self.stream_is_capturing = entry("cuStreamIsCapturing", 1, answers=True)
        self.thread_exchange_stream_capture_mode = entry("cuThreadExchangeStreamCaptureMode", 1)
        self.ctx_get_current = entry("cuCtxGetCurrent", 0, answers=True)
        self.memcpy_dtod_async = entry("cuMemcpyDtoDAsync", 4)
        self.memset_d8_async = entry("cuMemsetD8Async", 4)
