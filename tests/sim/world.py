"""A simulated device with the things that capture questions are asked about, and short ways to ask them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from breakgraph.driver.api import CaptureMode, CaptureStatus, EventFlag, StreamFlag
from breakgraph.driver.region import Region
from breakgraph.driver.sim import SimDriver
from breakgraph.errors import DriverError

MODES = {"global": CaptureMode.GLOBAL, "thread_local": CaptureMode.THREAD_LOCAL, "relaxed": CaptureMode.RELAXED}
SUCCESS = "CUDA_SUCCESS"


def answer(question: Callable[[], object]) -> str:
    """The name of the result of a driver call."""
    try:
        question()
    except DriverError as error:
        return error.name
    return SUCCESS


def floats(ptr: int, *shape: int) -> Region:
    """A contiguous float32 region."""
    return Region.contiguous_at(ptr, shape, np.dtype(np.float32))


class World:
    """A device, a stream to capture on, another one, and an exec, made before any capture."""

    def __init__(self, *, blocking: bool = False, **options: Any) -> None:
        self.driver = SimDriver(**options)
        self.context = self.driver.ensure_context()
        driver = self.driver
        self.stream = driver.stream_create(StreamFlag.DEFAULT if blocking else StreamFlag.NON_BLOCKING)
        self.other = driver.stream_create()
        self.memory = driver.mem_alloc(4096)
        self.source = driver.mem_alloc(4096)
        self.spare = driver.mem_alloc(4096)
        self.pinned = driver.mem_host_alloc(4096)
        self.host = np.zeros(4096, np.uint8)
        self.module = driver.module_load_data(b"")
        self.pool = driver.device_get_default_mem_pool(0)
        self.before = driver.event_create(EventFlag.DEFAULT)  # recorded before any capture
        driver.event_record(self.before, self.other)
        self.event = driver.event_create(EventFlag.DEFAULT)
        self.joined = driver.event_create(EventFlag.DEFAULT)
        self.graph = self.one_node_graph()
        self.exec = driver.graph_instantiate(self.graph)
        self.unlaunched = self.one_node_graph()
        self.reserved = driver.mem_address_reserve(2 << 20)
        driver.synchronize()

    def one_node_graph(self) -> int:
        self.driver.stream_begin_capture(self.other, CaptureMode.RELAXED)
        self.add_node(self.other)
        return self.driver.stream_end_capture(self.other)

    def begin(self, mode: CaptureMode = CaptureMode.THREAD_LOCAL, *, stream: int = 0) -> None:
        self.driver.stream_begin_capture(stream or self.stream, mode)

    def add_node(self, stream: int = 0) -> None:
        self.driver.memset_d8_async(self.memory, 1, 16, stream or self.stream)

    def end(self, stream: int = 0) -> tuple[str, int]:
        """The result's name, and the graph (0 where none was returned)."""
        graphs: list[int] = []
        result = answer(lambda: graphs.append(self.driver.stream_end_capture(stream or self.stream)))
        return result, graphs[0] if graphs else 0

    def status(self, stream: int = 0) -> str:
        return CaptureStatus(self.driver.stream_is_capturing(stream or self.stream)).name

    def fork(self, stream: int, event: int = 0) -> None:
        """Draw a stream into the capture of the origin."""
        self.driver.event_record(event or self.event, self.stream)
        self.driver.stream_wait_event(stream, event or self.event)

    def join(self, stream: int) -> None:
        self.driver.event_record(self.joined, stream)
        self.driver.stream_wait_event(self.stream, self.joined)

    def relaxed(self, question: Callable[[], object]) -> str:
        """The answer inside the relaxed exchange."""
        before = self.driver.thread_exchange_stream_capture_mode(CaptureMode.RELAXED)
        result = answer(question)
        self.driver.thread_exchange_stream_capture_mode(before)
        return result

    def elsewhere(self, question: Callable[[], object]) -> Any:
        """Ask from another thread, in the same context."""

        def ask() -> object:
            self.driver.ctx_set_current(self.context)
            return question()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ask).result()

    def values(self, ptr: int, count: int) -> list[float]:
        """Floats of device memory, read after everything has run."""
        out = np.empty(count, np.float32)
        self.driver.synchronize()
        self.driver.memcpy_dtoh(out.ctypes.data, ptr, out.nbytes)
        return out.tolist()  # type: ignore[no-any-return]

    def fill(self, ptr: int, *values: float) -> None:
        """Floats into device memory, there when the call returns."""
        host = np.asarray(values, np.float32)
        self.driver.memcpy_htod(ptr, host.ctypes.data, host.nbytes)


def in_thread(body: Callable[[], None]) -> None:
    """Run a body in a thread of its own, and raise what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
