"""The transformer as each library runs it: eager, in segments, in one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import breakgraph as bg
from benchmarks import _network_torch, _peers
from benchmarks._network import HostArray, Kernels, Network, Simulated, forward
from benchmarks._network_cupy import OverCupy
from benchmarks._peers import BREAKABLE, present
from benchmarks._report import Report

__all__ = ["CUPYS", "EAGER", "OURS", "WHOLE", "OnTorch", "Own", "Run", "Side"]

EAGER, OURS, WHOLE = "eager", "breakgraph", "one graph"
CUPYS = "eager, cupy's own products"  # which no segment records; other bits are right too


class Run(NamedTuple):
    """One arm: what runs the forward once, and where that writes."""

    call: Callable[[], object]
    out: Any


class Side(ABC):
    """One array library. Raises `Missing` where it is not there."""

    def __init__(self, host: Network) -> None:
        self.host = host
        self.network: Network

    @staticmethod
    @abstractmethod
    def arrays() -> str:
        """What its arrays are called."""

    @abstractmethod
    def place(self, host: HostArray) -> Any:
        """An array on the device."""

    @abstractmethod
    def refill(self, x: Any, host: HostArray) -> None:
        """Give an array other values."""

    @abstractmethod
    def fetch(self, x: Any) -> HostArray:
        """The values of an array."""

    @abstractmethod
    def runs(self, x: Any, stack: ExitStack, report: Report) -> dict[str, Run]:
        """Every arm on this input, captured; ``stack`` lets go of them."""

    def scope(self) -> AbstractContextManager[object]:
        """In which the forward runs."""
        return nullcontext()


class Own(Side):
    """Arrays of the current driver: cupy's, or the simulator's."""

    def __init__(self, host: Network) -> None:
        super().__init__(host)
        self._on_sim = bg.driver.current().name == "sim"
        self._kernels: Kernels = Simulated() if self._on_sim else OverCupy()
        self.network = host.placed(self.place)

    @staticmethod
    def arrays() -> str:
        return "the simulator's arrays" if bg.driver.current().name == "sim" else "cupy's arrays"

    def place(self, host: HostArray) -> Any:
        return bg.array_namespace().asarray(host.astype(self._kernels.dtype))

    def refill(self, x: Any, host: HostArray) -> None:
        x.set(host.astype(self._kernels.dtype))

    def fetch(self, x: Any) -> HostArray:
        found: HostArray = x.get()
        return found

    def capture(self, x: Any, stack: ExitStack, **options: Any) -> tuple[bg.BreakableGraph, Any]:
        """The graph of the forward over ``x``, which ``stack`` closes, and where it writes."""
        out = np.zeros_like(x)
        with bg.capture(frameworks=("sim" if self._on_sim else "cupy",), **options) as graph:
            forward(self._kernels, self.network, x, out)
        graph.keep(x, out)
        stack.callback(graph.close)
        return graph, out

    def runs(self, x: Any, stack: ExitStack, report: Report) -> dict[str, Run]:
        def eager(kernels: Kernels) -> Run:
            out = np.zeros_like(x)
            run = partial(forward, kernels, self.network, x, out)
            run()  # loads the kernels
            return Run(run, out)

        def captured(**options: Any) -> Run:
            graph, out = self.capture(x, stack, **options)
            return Run(graph.replay, out)

        runs = {EAGER: eager(self._kernels), OURS: captured(), WHOLE: captured(break_on=())}
        return runs | present(report, {CUPYS: lambda: eager(OverCupy(_peers.cupy().matmul))})


class OnTorch(Side):
    """torch's tensors, in half precision."""

    def __init__(self, host: Network) -> None:
        super().__init__(host)
        self._torch = torch = _peers.torch()
        self.network = _network_torch.placed(torch, host, "cuda", torch.float16)
        self._attend = _network_torch.attention(torch)

    @staticmethod
    def arrays() -> str:
        return "torch's tensors"

    def scope(self) -> AbstractContextManager[object]:
        scope: AbstractContextManager[object] = self._torch.no_grad()
        return scope

    def place(self, host: HostArray) -> Any:
        return self._torch.from_numpy(host).to("cuda", self._torch.float16)

    def refill(self, x: Any, host: HostArray) -> None:
        x.copy_(self._torch.from_numpy(host))

    def fetch(self, x: Any) -> HostArray:
        found: HostArray = x.cpu().numpy()
        return found

    def runs(self, x: Any, stack: ExitStack, report: Report) -> dict[str, Run]:
        torch = self._torch

        def run(attend: _network_torch.Attend, out: Any) -> None:
            _network_torch.forward(torch, self.network, attend, x, out)

        def eager() -> Run:
            out = torch.zeros_like(x)
            run(self._attend, out)  # loads the kernels
            return Run(partial(run, self._attend, out), out)

        def ours() -> Run:
            out, attend = torch.zeros_like(x), bg.break_point(dst=bg.IN_PLACE, writes=("out",))(self._attend)
            with bg.capture(frameworks=("torch",)) as graph:
                run(attend, out)
            stack.callback(graph.close)
            return Run(graph.replay, out)

        def breakable() -> Run:
            library, out = _peers.breakable(), torch.zeros_like(x)
            graph = library.BreakableCUDAGraph()
            with library.breakable_graph(graph):
                run(library.no_graph(self._attend), out)
            stack.callback(graph.reset)
            return Run(graph.replay, out)

        def whole() -> Run:
            out, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run(self._attend, out)
            stack.callback(graph.reset)
            return Run(graph.replay, out)

        return present(report, {EAGER: eager, OURS: ours, BREAKABLE: breakable, WHOLE: whole})
