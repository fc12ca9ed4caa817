"""``CudaDriver`` gives the protocol's answers through bindings of either shape, and a typed error for each refusal.

The bindings here have the real shapes (the snapshots) and a simulated driver behind them.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
from types import ModuleType, SimpleNamespace

import pytest

from breakgraph import errors
from breakgraph.driver.api import CaptureMode, CaptureStatus, Driver, EdgeData, MemoryType, NodeType
from breakgraph.driver.cuda import CudaDriver
from breakgraph.driver.entries import Entries
from breakgraph.driver.results import snake
from breakgraph.driver.sim import SimDriver
from breakgraph.errors import DriverError

from .simulated_bindings import simulated_bindings
from .surface import SOURCES, asked_by


@pytest.fixture(params=[12, 13], ids=["12.9", "13.x"])
def bindings(request: pytest.FixtureRequest) -> ModuleType:
    return simulated_bindings(SimDriver(), request.param)


@pytest.fixture
def driver(bindings: ModuleType) -> CudaDriver:
    made = CudaDriver(bindings)
    made.ensure_context()
    return made


@pytest.fixture
def stream(driver: CudaDriver) -> int:
    return driver.stream_create()


def protocol() -> list[str]:
    return [name for name, member in vars(Driver).items() if inspect.isfunction(member) and not name.startswith("_")]


# --- the protocol -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", protocol())
def test_each_call_takes_what_the_protocol_says(name: str) -> None:
    ours, wanted = (inspect.signature(getattr(owner, name)) for owner in (CudaDriver, Driver))
    assert ours == wanted


def test_an_error_names_the_call_as_the_protocol_does() -> None:
    other_names = {"init", "get_proc_address"}
    assert {snake(name) for name in asked_by(SOURCES).functions} - other_names <= set(protocol())


@pytest.mark.parametrize("branches", [0, 1, 2, 3, 5])
def test_all_dependencies_of_a_node_are_told(driver: CudaDriver, stream: int, branches: int) -> None:
    ptr, event = driver.mem_alloc(16), driver.event_create()
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    for _ in range(branches):
        side = driver.stream_create()
        driver.event_record(event, stream)
        driver.stream_wait_event(side, event)
        driver.memset_d8_async(ptr, 7, 16, side)
        driver.event_record(event, side)
        driver.stream_wait_event(stream, event)
    before = driver.stream_get_capture_info(stream).dependencies
    driver.memset_d8_async(ptr, 7, 16, stream)
    (last,) = driver.stream_get_capture_info(stream).dependencies
    assert driver.graph_node_get_dependencies(last) == before
    assert len(before) == branches
    driver.stream_end_capture(stream)


def test_a_segment_is_captured_launched_and_read_back(driver: CudaDriver, stream: int) -> None:
    ptr, host = driver.mem_alloc(16), (ctypes.c_uint8 * 16)()
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    assert driver.stream_is_capturing(stream) is CaptureStatus.ACTIVE
    driver.memset_d8_async(ptr, 7, 16, stream)
    graph = driver.stream_end_capture(stream)
    graph_exec = driver.graph_instantiate(graph)
    driver.graph_launch(graph_exec, stream)
    driver.stream_synchronize(stream)
    driver.memcpy_dtoh(ctypes.addressof(host), ptr, 16)
    assert list(host) == [7] * 16
    (node,) = driver.graph_get_nodes(graph)
    assert driver.graph_node_get_type(node) is NodeType.MEMSET


def test_the_nodes_of_a_graph_say_what_they_do(driver: CudaDriver, bindings: ModuleType, stream: int) -> None:
    ptr, host = driver.mem_alloc(64), driver.mem_host_alloc(64)
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    driver.memset_d8_async(ptr, 7, 16, stream)
    driver.memset_d32_async(ptr, 7, 16, stream)
    driver.memcpy_htod_async(ptr, host, 24, stream)
    driver.memcpy_dtoh_async(host, ptr, 32, stream)
    driver.memcpy_dtod_async(ptr, ptr + 32, 8, stream)
    bindings.cuLaunchKernel(bindings.cuModuleGetFunction(1, b"spin")[1], 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
    *sets, up, down, across, kernel = driver.graph_get_nodes(driver.stream_end_capture(stream))
    host_type, device_type = MemoryType.HOST, MemoryType.DEVICE
    assert [driver.graph_memset_node_get_params(node) for node in sets] == [(ptr, 16), (ptr, 64)]
    assert driver.graph_memcpy_node_get_params(up) == (host_type, device_type, 24)
    assert driver.graph_memcpy_node_get_params(down) == (device_type, host_type, 32)
    assert driver.graph_memcpy_node_get_params(across) == (device_type, device_type, 8)
    params = driver.graph_kernel_node_get_params(kernel)
    assert (params.grid, params.block, params.shared_bytes) == ((1, 1, 1), (1, 1, 1), 0)
    assert driver.func_get_name(params.func) == "spin"
    with pytest.raises(errors.DriverError):
        driver.func_get_name(1)


def test_the_rows_of_a_copy_and_the_elements_of_a_set_count(
    driver: CudaDriver, bindings: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = SimpleNamespace(srcMemoryType=4, dstMemoryType=4, WidthInBytes=10, Height=3, Depth=0)
    filled = SimpleNamespace(dst=512, elementSize=4, width=5, height=2)
    success = bindings.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(bindings, "cuGraphMemcpyNodeGetParams", lambda node: (success, copied))
    monkeypatch.setattr(bindings, "cuGraphMemsetNodeGetParams", lambda node: (success, filled))
    monkeypatch.setattr(bindings, "cuKernelGetName", lambda kernel: (success, b"of a library"))
    assert driver.graph_memcpy_node_get_params(1) == (MemoryType.UNIFIED, MemoryType.UNIFIED, 30)
    assert driver.graph_memset_node_get_params(1) == (512, 40)
    assert driver.kernel_get_name(1) == "of a library"


def test_capture_info_of_a_stream_that_does_not_capture_is_empty(driver: CudaDriver, stream: int) -> None:
    info = driver.stream_get_capture_info(stream)
    assert (info.status, info.graph, info.dependencies) == (CaptureStatus.NONE, 0, ())


def test_capture_info_carries_dependencies_with_their_edge_data(driver: CudaDriver, stream: int) -> None:
    ptr = driver.mem_alloc(16)
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    driver.memset_d8_async(ptr, 1, 16, stream)
    info = driver.stream_get_capture_info(stream)
    assert info.status is CaptureStatus.ACTIVE
    assert info.dependencies == driver.graph_get_nodes(info.graph)
    assert info.edges == (EdgeData(),)
    driver.stream_end_capture(stream)


@pytest.mark.parametrize("edges", [None, (EdgeData(), EdgeData())], ids=["without edge data", "with edge data"])
def test_setting_the_dependencies_joins_a_fork(
    driver: CudaDriver, stream: int, edges: tuple[EdgeData, ...] | None
) -> None:
    side, event, ptr = driver.stream_create(), driver.event_create(), driver.mem_alloc(32)
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    driver.memset_d8_async(ptr, 1, 16, stream)
    driver.event_record(event, stream)
    driver.stream_wait_event(side, event)
    driver.memset_d8_async(ptr, 2, 16, side)
    driver.memset_d8_async(ptr + 16, 2, 16, stream)
    leaves = [driver.stream_get_capture_info(one).dependencies[0] for one in (stream, side)]
    driver.stream_update_capture_dependencies(stream, leaves, edges)
    graph = driver.stream_end_capture(stream)
    found = driver.graph_get_edges(graph)
    first, *_ = driver.graph_get_nodes(graph)
    assert {(edge.tail, edge.head) for edge in found} == {(first, leaf) for leaf in leaves}
    assert all(edge.data == EdgeData() for edge in found)


@pytest.mark.parametrize("version", [12020, 13000])
def test_all_that_ends_a_capture_is_done_in_one_call_unless_a_fork_is_open(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    class Made:
        handle = 0

    sim, graphs, made = SimDriver(), list[int](), Made()
    monkeypatch.setattr(sim, "driver_get_version", lambda: version)
    driver = CudaDriver(simulated_bindings(sim, version // 1000))
    driver.ensure_context()
    stream, side, event, ptr = (
        driver.stream_create(),
        driver.stream_create(),
        driver.event_create(),
        driver.mem_alloc(16),
    )
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    driver.memset_d8_async(ptr, 1, 16, stream)
    driver.memset_d8_async(ptr, 2, 16, stream)
    driver.event_record(event, stream)
    driver.stream_wait_event(side, event)
    driver.memset_d8_async(ptr, 3, 16, side)
    ending = driver.ending()
    assert ending.run(stream, graphs, made) is None
    assert driver.stream_is_capturing(stream) is CaptureStatus.ACTIVE
    driver.event_record(event, side)
    driver.stream_wait_event(stream, event)
    nodes, kinds = ending.run(stream, graphs, made) or ((), ())
    assert (nodes, kinds) == (driver.graph_get_nodes(graphs[0]), (NodeType.MEMSET,) * 3)
    driver.graph_launch(made.handle, stream)
    driver.stream_synchronize(stream)
    assert sim.thread_capture_mode is CaptureMode.GLOBAL
    with pytest.raises(DriverError, match="stream_end_capture answered CUDA_ERROR_ILLEGAL_STATE"):
        ending.run(stream, graphs, made)


def test_a_graph_without_nodes_has_none_and_no_edges(driver: CudaDriver) -> None:
    graph = driver.graph_create()
    assert driver.graph_get_nodes(graph) == ()
    assert driver.graph_get_edges(graph) == ()


def test_a_driver_older_than_edge_data_is_asked_in_the_older_form(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimDriver()
    monkeypatch.setattr(sim, "driver_get_version", lambda: 12020)
    driver = CudaDriver(simulated_bindings(sim, 12))
    driver.ensure_context()
    stream, ptr = driver.stream_create(), driver.mem_alloc(16)
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    driver.memset_d8_async(ptr, 1, 16, stream)
    driver.memset_d8_async(ptr, 2, 16, stream)
    info = driver.stream_get_capture_info(stream)
    assert info.edges == (EdgeData(),)
    driver.stream_update_capture_dependencies(stream, info.dependencies, info.edges)
    assert len(driver.graph_get_edges(driver.stream_end_capture(stream))) == 1


def test_the_exchange_returns_the_mode_that_the_thread_had(driver: CudaDriver) -> None:
    before = driver.thread_exchange_stream_capture_mode(CaptureMode.RELAXED)
    assert before is CaptureMode.GLOBAL
    assert driver.thread_exchange_stream_capture_mode(before) is CaptureMode.RELAXED


def test_virtual_memory_is_mapped_written_and_given_back(driver: CudaDriver) -> None:
    page, host = driver.mem_get_allocation_granularity(0), (ctypes.c_uint8 * 4)()
    ptr, handle = driver.mem_address_reserve(page), driver.mem_create(page, 0)
    driver.mem_map(ptr, page, handle)
    driver.mem_set_access(ptr, page, 0)
    driver.memset_d8(ptr, 9, page)
    driver.memcpy_dtoh(ctypes.addressof(host), ptr, 4)
    assert list(host) == [9] * 4
    driver.mem_unmap(ptr, page)
    driver.mem_release(handle)
    driver.mem_address_free(ptr, page)


def test_a_query_says_no_while_work_is_pending_and_yes_after(driver: CudaDriver, stream: int) -> None:
    event, ptr = driver.event_create(), driver.mem_alloc(16)
    driver.memset_d8_async(ptr, 1, 16, stream)
    driver.event_record(event, stream)
    assert (driver.stream_query(stream), driver.event_query(event)) == (False, False)
    driver.stream_synchronize(stream)
    assert (driver.stream_query(stream), driver.event_query(event)) == (True, True)


# --- contexts and the default stream ------------------------------------------------------------------


def test_the_primary_context_is_made_current_where_there_is_none_and_retained_once(bindings: ModuleType) -> None:
    driver, seen = CudaDriver(bindings), []
    assert driver.ctx_get_current() == 0
    retained = bindings.cuDevicePrimaryCtxRetain
    calls: list[int] = []
    bindings.cuDevicePrimaryCtxRetain = lambda device: calls.append(device) or retained(device)  # type: ignore[attr-defined]
    primary = driver.ensure_context()
    thread = threading.Thread(target=lambda: seen.append((driver.ctx_get_current(), driver.ensure_context())))
    thread.start()
    thread.join()
    assert seen == [(0, primary)]
    assert calls == [0]


def test_a_context_that_is_current_is_left_so(driver: CudaDriver) -> None:
    own = driver.ctx_create(0)
    driver.create_stream()
    driver.synchronize()
    assert driver.ensure_context() == driver.ctx_get_current() == own
    assert driver.ctx_pop_current() == own
    driver.ctx_destroy(own)


def test_an_owned_stream_destroys_itself(driver: CudaDriver) -> None:
    made = driver.create_stream()
    driver.stream_query(int(made))
    made.close()
    with pytest.raises(errors.DriverError):
        driver.stream_query(made.handle)


@pytest.mark.parametrize(("setting", "handle"), [(None, 1), ("0", 1), ("1", 2)])
def test_handle_0_is_the_default_stream_that_the_bindings_mean(
    bindings: ModuleType, monkeypatch: pytest.MonkeyPatch, setting: str | None, handle: int
) -> None:
    monkeypatch.delenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", setting)
    driver = CudaDriver(bindings)
    assert (driver.resolve_stream(0), driver.resolve_stream(77)) == (handle, 77)


# --- errors -------------------------------------------------------------------------------------------


def test_a_refused_call_raises_its_typed_error_and_the_stream_works_afterwards(driver: CudaDriver, stream: int) -> None:
    driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
    with pytest.raises(errors.CaptureUnsupported) as refused:
        driver.mem_alloc(64)
    assert (refused.value.name, refused.value.code) == ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", 900)
    assert (refused.value.call, refused.value.sticky) == ("mem_alloc", False)
    with pytest.raises(errors.CaptureInvalidated, match="stream_end_capture"):
        driver.stream_end_capture(stream)
    driver.stream_synchronize(stream)
    driver.mem_free(driver.mem_alloc(64))


@pytest.mark.parametrize("call", ["graph_launch", "graph_upload"], ids=["the hot path", "any other call"])
def test_a_launch_that_is_refused_names_itself(driver: CudaDriver, stream: int, call: str) -> None:
    with pytest.raises(errors.DriverError) as refused:
        getattr(driver, call)(0xDEAD, stream)
    assert (refused.value.call, refused.value.code) == (call, 400)


def raising(bindings: ModuleType, name: str, error: Exception) -> CudaDriver:
    def function(*_: object) -> tuple[int]:
        raise error

    function.__name__ = name
    setattr(bindings, name, function)
    return CudaDriver(bindings)


def test_a_code_that_the_bindings_have_never_heard_of_keeps_its_number(bindings: ModuleType) -> None:
    driver = raising(bindings, "cuGraphUpload", ValueError("12345 is not a valid CUresult"))
    with pytest.raises(errors.DriverError) as unknown:
        driver.graph_upload(1, 2)
    assert (unknown.value.code, unknown.value.name) == (12345, "CUDA_ERROR_12345")


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("graph_launch", (1, 2)),
        ("event_record", (1, 2)),
        ("ctx_get_current", ()),
        ("event_query", (1,)),
        ("graph_instantiate", (1,)),
        ("graph_get_node_count", (1,)),
        ("stream_get_capture_info", (1,)),
    ],
)
def test_a_call_by_address_keeps_a_number_that_nobody_has_heard_of(
    bindings: ModuleType, call: str, args: tuple[int, ...]
) -> None:
    function = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 12345)
    address = ctypes.cast(function, ctypes.c_void_p).value
    bindings.cuGetProcAddress = lambda *_: (bindings.CUresult(0), address, 0)
    driver = CudaDriver.__new__(CudaDriver)
    driver._entries = Entries(bindings, per_thread=False, edge_data=True)
    with pytest.raises(errors.DriverError) as unknown:
        getattr(driver, call)(*args)
    assert (unknown.value.code, unknown.value.name, unknown.value.call) == (12345, "CUDA_ERROR_12345", call)


def test_a_code_whose_number_cannot_be_read_is_the_unknown_error(bindings: ModuleType) -> None:
    driver = raising(bindings, "cuGraphUpload", ValueError("no such CUresult"))
    with pytest.raises(errors.DriverError) as unknown:
        driver.graph_upload(1, 2)
    assert unknown.value.code == 999


@pytest.mark.parametrize("text", ['Function "cuGraphUpload" not found', "function cuGraphUpload is not found"])
def test_a_symbol_that_the_driver_lacks_says_that_the_driver_is_older(bindings: ModuleType, text: str) -> None:
    driver = raising(bindings, "cuGraphUpload", RuntimeError(text))
    with pytest.raises(errors.DriverError, match="older than this call") as missing:
        driver.graph_upload(1, 2)
    assert missing.value.code == 500


@pytest.mark.parametrize("error", [ValueError("bad argument"), RuntimeError("List is too small"), TypeError("no")])
def test_what_is_no_answer_of_the_driver_is_raised_as_it_is(bindings: ModuleType, error: Exception) -> None:
    driver = raising(bindings, "cuGraphUpload", error)
    with pytest.raises(type(error)) as raised:
        driver.graph_upload(1, 2)
    assert raised.value is error
