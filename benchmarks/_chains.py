"""One workload, made for everyone who can run it: one-kernel segments with a break that does nothing between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import breakgraph as bg
from benchmarks import _launchers, _peers
from benchmarks._launchers import AS_INSTALLED, PLAIN
from benchmarks._peers import BREAKABLE, CUPY, TORCH
from benchmarks._timing import Arm, timed
from breakgraph import frameworks
from breakgraph.driver.api import CaptureMode

__all__ = ["MAKERS", "Capture", "Chain", "by_hand", "nothing", "ours", "ours_on_torch", "wrong"]

_ELEMENTS, _BLOCK = 1024, 128  # int32, 4 KiB; threads
_SOURCE = 'extern "C" __global__ void add_one(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }'


def nothing() -> None:
    """The break."""


_break = bg.break_point(dst=bg.IN_PLACE)(nothing)


@dataclass(frozen=True)
class Chain:
    """Segments that each add 1 to every element of ``x``, captured and ready to replay."""

    replay: Callable[[], object]
    close: Callable[[], object]
    x: Any
    graph: Any = None  #: breakgraph's, where it is one
    scope: AbstractContextManager[object] = field(default_factory=nullcontext)  #: in which it is replayed

    def timed(self, *after: Callable[[], object]) -> Arm:
        """An arm that times a replay, and what is called after it."""
        run = timed(self.replay, *after)

        def within_scope() -> float:
            with self.scope:
                return run()

        return run if isinstance(self.scope, nullcontext) else within_scope


#: Captures a chain of so many segments; its array is there and its kernel is loaded.
Capture = Callable[[int], Chain]


def ours(arm: str = AS_INSTALLED, **options: Any) -> Capture:
    """In breakgraph, on arrays of the current driver. ``options`` are those of `breakgraph.capture`."""
    x, add_one = _own()
    scope = _launchers.scope_of(arm)
    library = "cupy" if bg.driver.current().name == "cuda" else "sim"

    def capture(segments: int) -> Chain:
        with scope, bg.capture(frameworks=(library,), **options) as graph:
            _forward(segments, add_one, _break)

        return Chain(graph.replay, graph.close, x, graph, scope)

    return capture


def ours_on_torch() -> Capture:
    """In breakgraph, on torch's tensors."""
    x, add_one = _of_torch()

    def capture(segments: int) -> Chain:
        with bg.capture(frameworks=("torch",)) as graph:
            _forward(segments, add_one, _break)
        return Chain(graph.replay, graph.close, x, graph)

    return capture


def by_hand() -> Capture:
    """With the driver's calls alone: what no capture can do without."""
    x, add_one = _own()
    driver, stream = bg.driver.current(), bg.driver.current().create_stream()
    framework = _framework(x)

    def capture(segments: int) -> Chain:
        execs = []
        with framework.stream_scope(int(stream)):
            for _ in range(segments):
                driver.stream_begin_capture(int(stream), CaptureMode.THREAD_LOCAL)
                add_one()
                graph = driver.stream_end_capture(int(stream))
                execs.append(driver.graph_instantiate(graph))
                driver.graph_destroy(graph)
        return Chain(lambda: list(map(launch, execs)), lambda: list(map(driver.graph_exec_destroy, execs)), x)

    def launch(graph_exec: int) -> None:
        driver.graph_launch(graph_exec, framework.current_stream() or 0)

    return capture


def _breakable() -> Capture:
    library, (x, add_one) = _peers.breakable(), _of_torch()
    split = library.no_graph(nothing)

    def capture(segments: int) -> Chain:
        graph = library.BreakableCUDAGraph()
        with library.breakable_graph(graph):
            _forward(segments, add_one, split)
        return Chain(graph.replay, graph.reset, x)

    return capture


def _torch_graphs() -> Capture:
    cuda, (x, add_one) = _peers.torch().cuda, _of_torch()

    def capture(segments: int) -> Chain:
        pool, graphs = cuda.graph_pool_handle(), [cuda.CUDAGraph() for _ in range(segments)]
        for graph in graphs:
            with cuda.graph(graph, pool=pool):
                add_one()
        return Chain(_in_a_loop([graph.replay for graph in graphs]), graphs.clear, x)

    return capture


def _cupy_graphs() -> Capture:
    cupy, (x, add_one) = _peers.cupy(), _own()
    stream = cupy.cuda.Stream(non_blocking=True)

    def capture(segments: int) -> Chain:
        graphs = []
        with stream:
            for _ in range(segments):
                stream.begin_capture()
                add_one()
                graphs.append(stream.end_capture())
        return Chain(_in_a_loop([graph.launch for graph in graphs]), graphs.clear, x)

    return capture


#: Who can run it, by the name of the arm. Each raises `Missing` where it is not there.
MAKERS: dict[str, Callable[[], Capture]] = {
    AS_INSTALLED: ours,
    PLAIN: lambda: ours(PLAIN),
    BREAKABLE: _breakable,
    TORCH: _torch_graphs,
    CUPY: _cupy_graphs,
}


def wrong(chain: Chain, segments: int) -> int:
    """How many elements one replay does not raise from 0 to the number of segments."""
    driver, host, ptr = bg.driver.current(), np.empty(_ELEMENTS, np.int32), _framework(chain.x).view(chain.x).ptr
    driver.synchronize()
    driver.memset_d8(ptr, 0, host.nbytes)
    driver.synchronize()
    with chain.scope:
        chain.replay()
    driver.synchronize()
    driver.memcpy_dtoh(host.ctypes.data, ptr, host.nbytes)
    return int(np.count_nonzero(host != segments))


def _forward(segments: int, kernel: Callable[[], object], split: Callable[[], object]) -> None:
    for _ in range(segments - 1):
        kernel()
        split()
    kernel()


def _in_a_loop(launches: Sequence[Callable[[], object]]) -> Callable[[], None]:
    *others, last = launches

    def replay() -> None:
        for launch in others:
            launch()
            nothing()
        last()

    return replay


def _own() -> tuple[Any, Callable[[], object]]:
    """An array of the current driver's, and its kernel, which is loaded."""
    x = bg.array_namespace().zeros(_ELEMENTS, np.int32)
    if bg.driver.current().name != "cuda":
        return x, _loaded(lambda: np.add(x, 1, out=x))
    # cupy's quickest way to a kernel. `np.add` takes 9 us to get there, which is neither capture's nor replay's.
    kernel = _peers.cupy().RawKernel(_SOURCE, "add_one")
    return x, _loaded(partial(kernel, (_ELEMENTS // _BLOCK,), (_BLOCK,), (x,)))


def _of_torch() -> tuple[Any, Callable[[], object]]:
    torch = _peers.torch()
    x = torch.zeros(_ELEMENTS, dtype=torch.int32, device="cuda")
    return x, _loaded(lambda: x.add_(1))


def _loaded(kernel: Callable[[], object]) -> Callable[[], object]:
    kernel()
    bg.driver.current().synchronize()
    return kernel


def _framework(x: Any) -> frameworks.Framework:
    framework = frameworks.of(x, bg.driver.current())
    assert framework is not None
    return framework
