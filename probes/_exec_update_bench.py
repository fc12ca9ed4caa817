"""What the questions about exec updates are asked with: kernels that write words, captures of them, what they leave."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from .rebegin import ACTIVE, THREAD_LOCAL, Asker, CouldNotAsk, Refused, _proc_address

__all__ = ["DETAILS", "NOT_READY", "Answer", "Bench", "Step", "ladder"]

T = TypeVar("T")

WORDS = 8192  # of 4 bytes, in device memory; 0 to WORDS - 1
THREADS = 32  # of a block
NOTHING = 0xFFFFFFFF  # what a word holds that no step has written
HOST = 0x10000  # what the first word of host memory holds; each next one holds one more
SPIN_NS = 50_000_000
NOT_READY = 600  # CUresult
SET_DEPENDENCIES = 1  # CU_STREAM_SET_CAPTURE_DEPENDENCIES
#: CUgraphExecUpdateResult
DETAILS = (
    "SUCCESS",
    "ERROR",
    "TOPOLOGY_CHANGED",
    "NODE_TYPE_CHANGED",
    "FUNCTION_CHANGED",
    "PARAMETERS_CHANGED",
    "NOT_SUPPORTED",
    "UNSUPPORTED_FUNCTION_CHANGE",
    "ATTRIBUTES_CHANGED",
)

_FILL = """.visible .entry {name}(.param .u64 dst, .param .u32 count, .param .u32 value) {{{{
    .reg .pred %p<2>; .reg .b32 %r<7>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [dst];           ld.param.u32 %r1, [count];          ld.param.u32 %r2, [value];
    mov.u32 %r3, %ctaid.x;              mov.u32 %r4, %ntid.x;               mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;      setp.ge.u32 %p1, %r6, %r1;          @%p1 bra DONE;
    {change}
    cvta.to.global.u64 %rd1, %rd1;      mul.wide.u32 %rd2, %r6, 4;          add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
DONE: ret;
}}}}
"""
PTX = (
    """.version 7.8
.target {target}
.address_size 64
"""
    + _FILL.format(name="fill", change="")
    + _FILL.format(name="fill_inverted", change="not.b32 %r2, %r2;")
    + """.visible .entry spin(.param .u64 duration) {{
    .reg .pred %p<2>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [duration];      mov.u64 %rd2, %globaltimer;
LOOP:
    mov.u64 %rd3, %globaltimer;         sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;        @%p1 bra LOOP;
    ret;
}}
"""
)


class Step(NamedTuple):
    """The work of one node: how it is put on a stream, and what it does to the words."""

    enqueue: Callable[[Any], object]
    apply: Callable[[list[int]], object]


class Answer(NamedTuple):
    """What an update answered: a CUresult, and a CUgraphExecUpdateResult (None where it is not told)."""

    code: int
    detail: int | None


class _Info(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = (("result", ctypes.c_int), ("error_node", ctypes.c_void_p), ("error_from_node", ctypes.c_void_p))


class Bench:
    """Words of device memory, three kernels, two streams. What a question makes is not destroyed: the process ends.

    ``repeats`` is how often each call is made whose cost is asked.
    """

    def __init__(self, asker: Asker, repeats: int = 1000) -> None:
        self.asker, self.do, self.repeats = asker, asker.call, repeats
        target = asker.image.partition(b".target ")[2].partition(b"\n")[0].decode()
        module = self.do("cuModuleLoadData", PTX.format(target=target).encode() + b"\0")
        names = ("fill", "fill_inverted", "spin")
        self._kernels = {name: self.do("cuModuleGetFunction", module, name.encode()) for name in names}
        self.words = int(self.do("cuMemAlloc", 4 * WORDS))
        self.pinned = int(self.do("cuMemHostAlloc", 4 * WORDS, 0))
        (ctypes.c_uint32 * WORDS).from_address(self.pinned)[:] = [HOST + at for at in range(WORDS)]
        # The bindings keep a refused update's reason to themselves, so the driver is asked without them.
        address = _proc_address(asker, "cuGraphExecUpdate", 12000, 0)
        entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._update = entry(address) if address else None
        self.fresh_streams()
        self._control()

    def fresh_streams(self) -> None:
        """Two streams that no earlier question has used."""
        self.stream = self.asker.stream = self.do("cuStreamCreate", 1)  # CU_STREAM_NON_BLOCKING
        self.other = self.do("cuStreamCreate", 1)

    def _control(self) -> None:
        steps = ladder(self, 3, at=0, value=1)
        if self.wrong_after(self.exec_of(*steps), *steps):
            raise CouldNotAsk("a captured graph gives wrong values")
        self.spin(self.stream)  # the first launch loads the kernel
        self.do("cuStreamSynchronize", self.stream)

    # steps ----------------------------------------------------------------------------------------------
    def fill(self, at: int, count: int, value: int, kernel: str = "fill", threads: int = THREADS) -> Step:
        """A kernel of as many blocks as ``count`` words need. ``fill_inverted`` writes the value's complement."""
        params = (ctypes.c_uint64(self.words + 4 * at), ctypes.c_uint32(count), ctypes.c_uint32(value))
        blocks, written = -(-count // threads), value ^ NOTHING if kernel == "fill_inverted" else value
        return Step(lambda stream: self._launch(kernel, blocks, threads, params, stream), _write(at, [written] * count))

    def set(self, at: int, count: int, value: int) -> Step:
        """A memset of words."""
        where = self.words + 4 * at
        return Step(
            lambda stream: self.do("cuMemsetD32Async", where, value, count, stream), _write(at, [value] * count)
        )

    def set_bytes(self, at: int, count: int, value: int) -> Step:
        """A memset of the bytes of ``count`` words."""
        where, written = self.words + 4 * at, [value * 0x01010101] * count
        return Step(lambda stream: self.do("cuMemsetD8Async", where, value, 4 * count, stream), _write(at, written))

    def copy(self, at: int, count: int, source: int) -> Step:
        """A copy of words to ``at``, from ``source``."""
        ends = self.words + 4 * at, self.words + 4 * source

        def apply(words: list[int]) -> None:
            words[at : at + count] = words[source : source + count]

        return Step(lambda stream: self.do("cuMemcpyDtoDAsync", *ends, 4 * count, stream), apply)

    def upload(self, at: int, count: int) -> Step:
        """A copy of words from pinned host memory."""
        ends, written = (self.words + 4 * at, self.pinned), [HOST + word for word in range(count)]
        return Step(lambda stream: self.do("cuMemcpyHtoDAsync", *ends, 4 * count, stream), _write(at, written))

    def unordered(self) -> Step:
        """No work: what comes next on the stream depends on nothing."""
        return Step(lambda stream: self.depend_on(stream, []), lambda _: None)

    def spin(self, stream: Any) -> None:
        """Keep a stream busy for 50 ms."""
        self._launch("spin", 1, 1, (ctypes.c_uint64(SPIN_NS),), stream)

    def _launch(self, kernel: str, blocks: int, threads: int, values: Sequence[Any], stream: Any) -> None:
        params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        where = (blocks, 1, 1, threads, 1, 1, 0, stream)
        self.do("cuLaunchKernel", self._kernels[kernel], *where, ctypes.addressof(params), 0)

    # captures -------------------------------------------------------------------------------------------
    def begin(self, mode: int = THREAD_LOCAL) -> None:
        self.asker.begin_capture(mode)

    def end(self) -> int:
        return self.asker.end_capture()

    def graph_of(self, *steps: Step) -> int:
        """A capture of the steps, one after another."""
        self.begin()
        for step in steps:
            step.enqueue(self.stream)
        return self.end()

    def exec_of(self, *steps: Step) -> int:
        return self.asker.instantiate(self.graph_of(*steps))

    def fork(self) -> None:
        """Draw the other stream into the capture."""
        event = self.do("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING
        self.do("cuEventRecord", event, self.stream)
        self.do("cuStreamWaitEvent", self.other, event, 0)

    def capture_info(self, stream: Any) -> tuple[Any, list[Any]]:
        """The graph that is being captured, and the nodes that the stream's next one depends on."""
        _, _, graph, nodes, *_ = self.do("cuStreamGetCaptureInfo", stream)
        return graph, list(nodes)

    def depend_on(self, stream: Any, nodes: list[Any]) -> None:
        """Set what the stream's next node depends on."""
        edges = () if self.asker.cu.CUDA_VERSION < 13000 else (None,)  # 13 gained edge data in the bare name
        self.do("cuStreamUpdateCaptureDependencies", stream, nodes, *edges, len(nodes), SET_DEPENDENCIES)

    def give_up_captures(self) -> None:
        """End what a question that failed has left open."""
        for stream in (self.stream, self.other):
            self.code_of(partial(self.do, "cuStreamEndCapture", stream))

    # answers --------------------------------------------------------------------------------------------
    def code_of(self, call: Callable[[], object]) -> int:
        """The CUresult of a call."""
        try:
            call()
        except Refused as refused:
            return refused.code
        return 0

    def result_name(self, code: int) -> str:
        try:
            return str(self.asker.cu.CUresult(code).name)
        except ValueError:  # a code that the bindings have never heard of
            return f"CUDA_ERROR_{code}"

    def update(self, made: int, graph: int) -> Answer:
        """Update an exec, and why not if it is refused."""
        if self._update is None:
            code = self.code_of(lambda: self.do("cuGraphExecUpdate", made, graph))
            return Answer(code, None if code else 0)
        info = _Info()
        code = self._update(made, graph, ctypes.addressof(info))
        return Answer(code, info.result)

    def capturing(self) -> bool:
        """Whether the capture is still good."""
        return self.asker.capture_status() == ACTIVE

    def free_bytes(self) -> int:
        self.do("cuCtxSynchronize")
        return int(self.do("cuMemGetInfo")[0])

    def elsewhere(self, ask: Callable[[], T]) -> T:
        """Ask from another thread, in the same context."""

        def entered() -> T:
            self.asker.enter_thread()
            return ask()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(entered).result()

    # values and times -----------------------------------------------------------------------------------
    def launch(self, made: int, stream: Any = None) -> None:
        self.do("cuGraphLaunch", made, stream or self.stream)

    def wipe(self) -> None:
        self.do("cuMemsetD32Async", self.words, NOTHING, WORDS, self.stream)
        self.do("cuStreamSynchronize", self.stream)

    def wrong(self, *steps: Step, where: Sequence[Step] = ()) -> int:
        """How many words are not as the steps leave wiped ones; ``where``: only of those that these steps write."""
        host = (ctypes.c_uint32 * WORDS)()
        self.do("cuMemcpyDtoHAsync", ctypes.addressof(host), self.words, ctypes.sizeof(host), self.stream)
        self.do("cuStreamSynchronize", self.stream)
        wanted, asked = _after(steps), _after(where)
        return sum(
            word != right for word, right, one in zip(host, wanted, asked, strict=True) if not where or one != NOTHING
        )

    def wrong_after(self, made: int, *steps: Step) -> int:
        """How many words a launch leaves otherwise than the steps would."""
        self.wipe()
        self.launch(made)
        return self.wrong(*steps)

    def microseconds(self, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        """The median time of a call on the host; ``before`` each call, something that is not counted."""
        taken = []
        for _ in range(self.repeats):
            before()
            start = time.perf_counter_ns()
            call()
            taken.append(time.perf_counter_ns() - start)
        return round(statistics.median(taken) / 1e3, 2)

    def milliseconds(self, call: Callable[[], T]) -> tuple[float, T]:
        """The time of one call on the host, and what it returned."""
        start = time.perf_counter()
        value = call()
        return round((time.perf_counter() - start) * 1e3, 2), value


def ladder(bench: Bench, nodes: int, at: int, value: int, count: int = THREADS) -> list[Step]:
    """Kernels one after another, each with words and a value of its own."""
    return [bench.fill(at + count * node, count, value + node) for node in range(nodes)]


def _write(at: int, values: list[int]) -> Callable[[list[int]], None]:
    def apply(words: list[int]) -> None:
        words[at : at + len(values)] = values

    return apply


def _after(steps: Sequence[Step]) -> list[int]:
    words = [NOTHING] * WORDS
    for step in steps:
        step.apply(words)
    return words
