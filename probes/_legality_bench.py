"""What every row of the legality tables starts from: fresh streams, events, memory, a graph and a module."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .rebegin import Asker, Refused

__all__ = ["MODES", "NBYTES", "SUCCESS", "Bench", "Row"]

Row = dict[str, Any]
T = TypeVar("T")

SUCCESS = "CUDA_SUCCESS"
MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
STATUSES = {0: "NONE", 1: "ACTIVE", 2: "INVALIDATED"}
NBYTES = 4096


class Bench:
    """Everything a row may need, made before its capture begins. Nothing is destroyed: the process ends.

    ``answer`` makes a call and gives the name of its result; ``do`` makes one that has to succeed.
    """

    _kept: list[Bench] = []  # noqa: RUF012 - queued work may still use the host memory of an earlier row

    def __init__(self, asker: Asker, *, blocking: bool = False) -> None:
        self.asker, self.cu, self.do = asker, asker.cu, asker.call
        self.stream = self.do("cuStreamCreate", 0 if blocking else 1)
        self.other, self.other2 = (self.do("cuStreamCreate", 1) for _ in range(2))
        self.blocking = self.do("cuStreamCreate", 0)
        self.a, self.b, self.spare = (int(self.do("cuMemAlloc", NBYTES)) for _ in range(3))
        self.do("cuMemsetD8", self.a, 0, NBYTES)
        self.pinned = int(self.do("cuMemHostAlloc", NBYTES, 0))
        self._pageable = ctypes.create_string_buffer(NBYTES)
        self.pageable = ctypes.addressof(self._pageable)
        self.before, self.never, self.event, self.event2 = (self.do("cuEventCreate", 0) for _ in range(4))
        self.do("cuEventRecord", self.before, self.other)
        self.graph = self._capture_one_node()
        self.exec = self.do("cuGraphInstantiate", self.graph, 0)
        self.module = self.do("cuModuleLoadData", asker.image)
        self.pool = self.do("cuDeviceGetDefaultMemPool", asker.device)
        self._reserve()
        self.do("cuCtxSynchronize")
        Bench._kept.append(self)

    def _capture_one_node(self) -> Any:
        self.do("cuStreamBeginCapture", self.other, self.cu.CUstreamCaptureMode(1))
        self.do("cuMemsetD8Async", self.b, 0, 64, self.other)
        return self.do("cuStreamEndCapture", self.other)

    def _reserve(self) -> None:
        """An address range mapped (``mapped``), one only reserved (``reserved``), physical memory for it."""
        cu = self.cu
        self.prop = cu.CUmemAllocationProp()
        self.prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        location = cu.CUmemLocation()
        location.type, location.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, int(self.asker.device)
        self.prop.location = location
        self.access = cu.CUmemAccessDesc()
        self.access.location = location
        self.access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page = int(self.do("cuMemGetAllocationGranularity", self.prop, minimum))
        self.reserved, self.mapped = (int(self.do("cuMemAddressReserve", self.page, 0, 0, 0)) for _ in range(2))
        self.physical, backing = (self.do("cuMemCreate", self.page, self.prop, 0) for _ in range(2))
        self.do("cuMemMap", self.mapped, self.page, 0, backing, 0)
        self.do("cuMemSetAccess", self.mapped, self.page, [self.access], 1)

    # calls ----------------------------------------------------------------------------------------------
    def answer(self, name: str, *args: object) -> str:
        """The name of a call's result."""
        try:
            self.do(name, *args)
        except Refused as refused:
            return refused.name
        return SUCCESS

    def answers(self, *calls: tuple[object, ...]) -> str:
        """The result of the first call that does not succeed, else of the last."""
        result = SUCCESS
        for name, *args in calls:
            result = self.answer(str(name), *args)
            if result != SUCCESS:
                break
        return result

    def symbol(self, name: str, *args: object) -> str:
        """Call a symbol of the library itself, as a program that looks up bare names would."""
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
        function.restype = ctypes.c_int
        code = function(*(ctypes.c_uint64(int(argument)) for argument in args))  # type: ignore[call-overload]
        return str(self.cu.CUresult(code).name)

    def elsewhere(self, function: Callable[[], T]) -> T:
        """Run a function in another thread, with the same context current; what it raises is raised here."""
        outcome: list[Any] = []

        def body() -> None:
            try:
                self.asker.enter_thread()
                outcome.append((function(), None))
            except Exception as error:
                outcome.append((None, error))

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        value, error = outcome[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def relaxed(self, function: Callable[[], T]) -> T:
        """Run a function under the relaxed exchange."""
        before = self.do("cuThreadExchangeStreamCaptureMode", self.cu.CUstreamCaptureMode(2))
        try:
            return function()
        finally:
            self.do("cuThreadExchangeStreamCaptureMode", before)

    # captures -------------------------------------------------------------------------------------------
    def begin(self, stream: Any, mode: str = "thread_local") -> str:
        return self.answer("cuStreamBeginCapture", stream, self.cu.CUstreamCaptureMode(MODES[mode]))

    def open(self, mode: str = "thread_local") -> None:
        """Begin a capture on the bench's stream and add one memset node."""
        self.do("cuStreamBeginCapture", self.stream, self.cu.CUstreamCaptureMode(MODES[mode]))
        self.do("cuMemsetD8Async", self.a, 0, 64, self.stream)

    def end(self, stream: Any) -> tuple[str, Any]:
        """The result of ending a capture, and the graph (None unless one was returned)."""
        try:
            graph = self.do("cuStreamEndCapture", stream)
        except Refused as refused:
            return refused.name, None
        return SUCCESS, graph if int(graph) else None

    def status(self, stream: Any) -> str:
        try:
            return STATUSES[int(self.do("cuStreamIsCapturing", stream))]
        except Refused as refused:
            return refused.name

    def nodes(self, graph: Any) -> int:
        return int(self.do("cuGraphGetNodes", graph)[1])

    def work(self, stream: Any) -> str:
        """Queue one memset."""
        return self.answer("cuMemsetD8Async", self.b, 0, 64, stream)

    def kernel(self, stream: Any) -> str:
        """Launch one kernel."""
        values = (ctypes.c_uint64(self.a), ctypes.c_uint64(self.b), ctypes.c_uint32(32), ctypes.c_uint32(1))
        params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        where = (1, 1, 1, 32, 1, 1, 0, stream)
        return self.answer("cuLaunchKernel", self.asker.kernel, *where, ctypes.addressof(params), 0)

    def fork(self) -> str:
        """Draw ``other`` into the capture of ``stream``."""
        return self.answers(
            ("cuEventRecord", self.event, self.stream), ("cuStreamWaitEvent", self.other, self.event, 0)
        )

    def join(self) -> str:
        """Let ``stream`` wait for ``other``."""
        return self.answers(
            ("cuEventRecord", self.event2, self.other), ("cuStreamWaitEvent", self.stream, self.event2, 0)
        )
