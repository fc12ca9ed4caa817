"""A module shaped like ``cuda.bindings.driver``, of either release, that the simulated driver answers.

Names, parameter counts and returned values are those of the committed snapshots, so that what is written
against it is written against the real shapes. Its answers are the simulator's, and no verdict about a driver.
"""

# ruff: noqa: N802 - these are the names of the bindings

from __future__ import annotations

import ctypes
import enum
import json
from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from breakgraph.driver.api import CaptureMode, DependencyUpdate, EdgeData
from breakgraph.driver.region import Region
from breakgraph.driver.results import snake
from breakgraph.driver.sim import SimDriver
from breakgraph.errors import DriverError

from .surface import SNAPSHOTS


class CUresult(enum.IntEnum):
    """The codes these bindings have heard of; any other raises ValueError, as the real enum does."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_STATE = 401
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906
    CUDA_ERROR_CAPTURED_EVENT = 907
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910
    CUDA_ERROR_UNKNOWN = 999


def simulated_bindings(sim: SimDriver, major: int = 13) -> ModuleType:
    """The bindings of release 12.9 or 13.x over a simulated driver."""
    snapshot = json.loads(SNAPSHOTS[major].read_text())
    module = ModuleType("cuda.bindings.driver")
    special = _Special(sim, edge_data_in_bare_names=major >= 13)
    for name, shape in snapshot["functions"].items():
        setattr(module, name, _function(name, shape, getattr(special, name, None) or getattr(sim, snake(name), None)))
    names: dict[str, Any] = dict.fromkeys(snapshot["types"], SimpleNamespace)
    names |= {"CUresult": CUresult, "CUstreamCaptureMode": CaptureMode, "CUgraphNode": int, "CUmemPool_attribute": int}
    names |= {"CUfunction_attribute": int, "CUpointer_attribute": int, "CUDA_VERSION": snapshot["CUDA_VERSION"]}
    for enumeration, members in snapshot["types"].items():
        if any(member.startswith("CU_") for member in members):
            names[enumeration] = SimpleNamespace(**dict.fromkeys(members, 1))
    vars(module).update(names)
    return module


def _function(name: str, shape: dict[str, Any], answer: Callable[..., Any] | None) -> Callable[..., Any]:
    def function(*args: object) -> tuple[Any, ...]:
        if not shape["required"] <= len(args) <= len(shape["parameters"]):
            raise TypeError(f"{name} takes {shape['parameters']}, and was given {len(args)} arguments")
        if answer is None:
            raise NotImplementedError(f"the simulated driver has no {name}")
        try:
            values = answer(*args)
        except DriverError as error:
            return (CUresult(error.code), *[None] * (len(shape["returns"]) - 1))
        values = () if values is None else values if isinstance(values, tuple) else (values,)
        result = (CUresult.CUDA_SUCCESS, *values)
        assert len(result) == len(shape["returns"]), (name, result, shape["returns"])
        return result

    function.__name__ = name
    return function


class _Special:
    """Calls whose arguments or values are shaped otherwise than the protocol's."""

    def __init__(self, sim: SimDriver, *, edge_data_in_bare_names: bool) -> None:
        self.sim = sim
        self._exec_update = self._entry_of_exec_update()
        self._entries = {
            "cuThreadExchangeStreamCaptureMode": _entry(self._exchange, "x"),
            "cuStreamBeginCapture": _entry(lambda to, mode: sim.stream_begin_capture(to, CaptureMode(mode)), "ww"),
            "cuStreamEndCapture": _entry(sim.stream_end_capture, "wa"),
            "cuStreamGetCaptureInfo": _entry(lambda stream: self._capture_info(stream)[:-1], "waaapn"),
            "cuGraphDestroy": _entry(sim.graph_destroy, "w"),
            "cuGraphGetNodes": _entry(sim.graph_get_nodes, "wln"),
            "cuGraphGetEdges": _entry(lambda graph: self._edges(graph)[:-1], "wlln"),
            "cuGraphNodeGetType": _entry(sim.graph_node_get_type, "wa"),
            "cuGraphNodeGetDependencies": _entry(sim.graph_node_get_dependencies, "wln"),
            "cuGraphInstantiateWithFlags": _entry(sim.graph_instantiate, "aww"),
            "cuGraphExecDestroy": _entry(sim.graph_exec_destroy, "w"),
            "cuGraphLaunch": _entry(sim.graph_launch, "ww"),
            "cuEventRecord": _entry(sim.event_record, "ww"),
            "cuEventQuery": _entry(self.cuEventQuery, "w"),
            "cuStreamWaitEvent": _entry(sim.stream_wait_event, "www"),
            "cuStreamIsCapturing": _entry(sim.stream_is_capturing, "wa"),
            "cuCtxGetCurrent": _entry(sim.ctx_get_current, "a"),
            "cuMemcpyDtoDAsync": _entry(sim.memcpy_dtod_async, "wwww"),
            "cuMemsetD8Async": _entry(sim.memset_d8_async, "wwww"),
        }
        self._entries_with_edge_data = {
            "cuStreamGetCaptureInfo": _entry(self._capture_info, "waaappn"),
            "cuGraphGetEdges": _entry(self._edges, "wllln"),
            "cuGraphNodeGetDependencies": _entry(self._dependencies, "wlln"),
        }
        if edge_data_in_bare_names:
            self.cuGraphNodeGetDependencies = self.cuGraphNodeGetDependencies_v2
            self.cuStreamGetCaptureInfo = self.cuStreamGetCaptureInfo_v3
            self.cuGraphGetEdges = self.cuGraphGetEdges_v2
            self.cuStreamUpdateCaptureDependencies = self.cuStreamUpdateCaptureDependencies_v2

    def _exchange(self, mode: int) -> int:
        return self.sim.thread_exchange_stream_capture_mode(CaptureMode(mode))

    def _capture_info(self, stream: int) -> tuple[Any, ...]:
        info = self.sim.stream_get_capture_info(stream)
        return info.status, info.id, info.graph, info.dependencies, [*map(_edge_word, info.edges)]

    def _edges(self, graph: int) -> tuple[Any, ...]:
        edges = self.sim.graph_get_edges(graph)
        return [one.tail for one in edges], [one.head for one in edges], [_edge_word(one.data) for one in edges]

    def _dependencies(self, node: int) -> tuple[Any, ...]:
        nodes = self.sim.graph_node_get_dependencies(node)
        return nodes, [0] * len(nodes)

    def cuInit(self, flags: int) -> None: ...

    def cuDeviceGet(self, ordinal: int) -> int:
        return ordinal

    def cuDeviceGetName(self, length: int, device: int) -> bytes:
        return self.sim.device_get_name(device).encode().ljust(length, b"\0")

    def cuCtxCreate(self, *args: Any) -> int:
        return self.sim.ctx_create(args[-1])

    def cuStreamQuery(self, stream: int) -> None:
        if not self.sim.stream_query(stream):
            raise DriverError("CUDA_ERROR_NOT_READY", 600, "stream_query")

    def cuEventQuery(self, event: int) -> None:
        if not self.sim.event_query(event):
            raise DriverError("CUDA_ERROR_NOT_READY", 600, "event_query")

    def cuStreamBeginCapture(self, stream: int, mode: CaptureMode) -> None:
        assert isinstance(mode, CaptureMode)  # the bindings refuse a bare number
        self.sim.stream_begin_capture(stream, mode)

    def cuStreamGetCaptureInfo_v3(self, stream: int) -> tuple[Any, ...]:
        info = self.sim.stream_get_capture_info(stream)
        edges = [SimpleNamespace(**edge._asdict()) for edge in info.edges]
        return info.status, info.id, info.graph, list(info.dependencies), edges, len(info.dependencies)

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:
        *values, _, count = self.cuStreamGetCaptureInfo_v3(stream)
        return (*values, count)

    def cuStreamUpdateCaptureDependencies_v2(self, stream: int, nodes: Any, data: Any, count: int, flags: int) -> None:
        assert count == len(nodes)
        edges = [EdgeData(edge.from_port, edge.to_port, edge.type) for edge in data] if data else None
        self.sim.stream_update_capture_dependencies(stream, nodes, edges, DependencyUpdate(flags))

    def cuStreamUpdateCaptureDependencies(self, stream: int, nodes: Any, count: int, flags: int) -> None:
        self.cuStreamUpdateCaptureDependencies_v2(stream, nodes, None, count, flags)

    def cuGraphCreate(self, flags: int) -> int:
        return self.sim.graph_create()

    def cuGraphGetNodes(self, graph: int, count: int = 0) -> tuple[list[int], int]:
        nodes = self.sim.graph_get_nodes(graph)
        listed = [*nodes, *[0] * count][:count]  # NULL where there are no more
        return listed, min(count, len(nodes)) if count else len(nodes)

    def cuGraphGetEdges_v2(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        edges = self.sim.graph_get_edges(graph)
        data = [SimpleNamespace(**edge.data._asdict()) for edge in edges[:count]]
        return [edge.tail for edge in edges[:count]], [edge.head for edge in edges[:count]], data, len(edges)

    def cuGraphGetEdges(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        tails, heads, _, number = self.cuGraphGetEdges_v2(graph, count)
        return tails, heads, number

    def cuGraphNodeGetDependencies_v2(self, node: int, count: int = 0) -> tuple[Any, ...]:
        nodes = self.sim.graph_node_get_dependencies(node)
        listed = [*nodes, *[0] * count][:count]  # NULL where there are no more
        number = min(count, len(nodes)) if count else len(nodes)
        return listed, [SimpleNamespace(**EdgeData()._asdict())] * count, number

    def cuGraphNodeGetDependencies(self, node: int, count: int = 0) -> tuple[Any, ...]:
        nodes, _, number = self.cuGraphNodeGetDependencies_v2(node, count)
        return nodes, number

    def cuGraphKernelNodeGetParams(self, node: int) -> object:
        params = self.sim.graph_kernel_node_get_params(node)
        sizes = {
            f"{of}Dim{axis}": size
            for of in ("grid", "block")
            for axis, size in zip("XYZ", getattr(params, of), strict=True)
        }
        return SimpleNamespace(func=params.func, kern=params.kern, sharedMemBytes=params.shared_bytes, **sizes)

    def cuGraphMemcpyNodeGetParams(self, node: int) -> object:
        source, destination, nbytes = self.sim.graph_memcpy_node_get_params(node)
        return SimpleNamespace(srcMemoryType=source, dstMemoryType=destination, WidthInBytes=nbytes, Height=1, Depth=1)

    def cuGraphMemsetNodeGetParams(self, node: int) -> object:
        dst, nbytes = self.sim.graph_memset_node_get_params(node)
        return SimpleNamespace(dst=dst, elementSize=1, width=nbytes, height=1)

    def cuFuncGetName(self, func: int) -> bytes:
        return self.sim.func_get_name(func).encode()

    def cuGraphExecUpdate(self, graph_exec: int, graph: int) -> object:
        self.sim.graph_exec_update(graph_exec, graph)
        return SimpleNamespace()

    def cuMemGetAllocationGranularity(self, prop: Any, option: object) -> int:
        return self.sim.mem_get_allocation_granularity(prop.location.id)

    def cuMemAddressReserve(self, size: int, alignment: int, addr: int, flags: int) -> int:
        return self.sim.mem_address_reserve(size)

    def cuMemCreate(self, size: int, prop: Any, flags: int) -> int:
        return self.sim.mem_create(size, prop.location.id)

    def cuMemMap(self, ptr: int, size: int, offset: int, handle: int, flags: int) -> None:
        self.sim.mem_map(ptr, size, handle)

    def cuMemSetAccess(self, ptr: int, size: int, access: Any, count: int) -> None:
        assert count == len(access) == 1
        self.sim.mem_set_access(ptr, size, access[0].location.id)

    def cuMemAllocHost(self, nbytes: int) -> int:
        return self.sim.mem_host_alloc(nbytes)

    def cuModuleGetFunction(self, module: int, name: bytes) -> object:
        return SimpleNamespace(name=name)

    def cuGetProcAddress(self, symbol: bytes, version: int, flags: int) -> tuple[int, int]:
        if symbol == b"cuGraphExecUpdate":
            assert version >= 12000  # older versions take other arguments
            return _address(self._exec_update), 0
        if symbol.decode() in self._entries and version > 10000:
            newer = self._entries_with_edge_data if version >= 12030 else {}
            return _address(newer.get(symbol.decode()) or self._entries[symbol.decode()]), 0
        return 0x1000 + sum(symbol) * 16 + (version > 10000), 0

    def _entry_of_exec_update(self) -> Any:
        """A function of C's calling convention; its reason is always ERROR, since the simulator gives a text."""

        def update(graph_exec: int, graph: int, info: int) -> int:
            try:
                self.sim.graph_exec_update(graph_exec, graph)
            except DriverError as error:
                ctypes.c_int.from_address(info).value = 1  # CU_GRAPH_EXEC_UPDATE_ERROR
                return error.code
            ctypes.c_int.from_address(info).value = 0
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(update)

    def cuLaunchKernel(self, function: Any, *args: Any) -> None:
        """Only the probes' kernels, which work on 32-bit elements."""
        blocks, threads, stream, params = args[0], args[3], args[7], args[8]
        {b"scale": self._scale, b"fill": self._fill, b"fill_inverted": self._fill_inverted, b"spin": self._spin}[
            function.name
        ](blocks * threads, stream, params)

    def _scale(self, threads: int, stream: int, params: int) -> None:
        src, dst, count, factor = _values(params, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)

        def scale(read: Any, written: Any) -> None:
            written[...] = read * factor

        self.sim.launch(stream, scale, reads=[_words(src, count)], writes=[_words(dst, count)])

    def _fill(self, threads: int, stream: int, params: int, flipped: int = 0) -> None:
        dst, count, value = _values(params, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)

        def fill(written: Any) -> None:
            written[...] = value ^ flipped

        self.sim.launch(stream, fill, writes=[_words(dst, min(count, threads))])

    def _fill_inverted(self, threads: int, stream: int, params: int) -> None:
        self._fill(threads, stream, params, flipped=0xFFFFFFFF)

    def _spin(self, threads: int, stream: int, params: int) -> None:
        self.sim.launch(stream, lambda: None, name="spin")


def _entry(answer: Callable[..., Any], slots: str) -> Any:
    """A function of C's calling convention that calls one of Python's; `breakgraph.driver.portable.Call` has the slots.

    Where there are several answers it returns a tuple of them.
    """
    own: deque[Any] = deque(maxlen=8)  # lists that the last few calls have pointed to

    def entry(*given: int | None) -> int:
        places = [(slot, to or 0) for slot, to in zip(slots, given, strict=True)]
        words = [to if slot == "w" else ctypes.c_int.from_address(to).value for slot, to in places if slot in "wx"]
        try:
            value = answer(*words)
        except DriverError as error:
            return error.code
        number = ctypes.c_uint64.from_address(dict(places)["n"]) if "n" in slots else ctypes.c_uint64()
        answers = [(slot, to) for slot, to in places if slot not in "wn"]
        lengths = [0]
        for (slot, to), one in zip(answers, value if len(answers) > 1 else [value] * len(answers), strict=True):
            if slot in "ax":
                of = ctypes.c_int if isinstance(one, enum.IntEnum) else ctypes.c_uint64
                of.from_address(to).value = one
                continue
            lengths.append(len(one))
            if slot == "p":
                own.append((ctypes.c_uint64 * len(one))(*one))
                ctypes.c_uint64.from_address(to).value = ctypes.addressof(own[-1])
            elif to:  # without a list it counts
                room = (ctypes.c_uint64 * number.value).from_address(to)
                room[:] = [*one, *[0] * len(room)][: len(room)]  # NULL where there are no more
                lengths[-1] = min(len(one), len(room))
        number.value = lengths[-1]
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(slots))(entry)


def _edge_word(edge: EdgeData) -> int:
    return edge.from_port | edge.to_port << 8 | edge.type << 16


def _address(entry: Any) -> int:
    return ctypes.cast(entry, ctypes.c_void_p).value or 0


def _values(params: int, *types: Any) -> list[int]:
    """The parameters of a kernel, which are given as the addresses of their values."""
    addresses = (ctypes.c_void_p * len(types)).from_address(params)
    return [kind.from_address(address or 0).value for kind, address in zip(types, addresses, strict=True)]


def _words(ptr: int, count: int) -> Region:
    return Region.contiguous_at(ptr, (count,), np.dtype(np.uint32))
