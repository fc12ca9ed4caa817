"""A transformer of 24 layers for one sequence, attention being an eager break: replay against the same kernels eager.

Two times are taken of each arm, beginning with an idle device: until the call returns, and until the device is done.
The second is what a caller waits for, and has the bounds. "One graph" is the forward with no break at all, which this
attention allows: what a break per layer costs can be read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

import breakgraph as bg
from benchmarks import _peers
from benchmarks._network import Host, Network, Shape, forward
from benchmarks._peers import BREAKABLE, Missing
from benchmarks._report import Report
from benchmarks._sides import CUPYS, EAGER, OURS, OnTorch, Own, Run, Side
from benchmarks._timing import Times, in_turn, ratio, timed

__all__ = ["measure"]

_SHAPES = (Shape(24, 512, 8), Shape(24, 1024, 16))
_TOKENS = (16, 32, 64, 128, 256, 512)
_SMALL, _SMALL_TOKENS = (Shape(2, 8, 2),), (2, 4)
_NEAR = 0.1  # of values of size 1, in half precision after 24 layers

#: What is compared, and the bound of the ratio.
_BOUNDED: dict[type[Side], tuple[str, float]] = {Own: (EAGER, 0.60), OnTorch: (BREAKABLE, 0.95)}


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add the lines and the bounds of each shape, on arrays of the current driver and on torch's tensors."""
    for shape in _SMALL if small else _SHAPES:
        network = Network.of(shape)
        for kind in (Own, OnTorch):
            with (
                _peers.current_stream() as stream,
                report.part(f"transformer on {kind.arrays()}, {shape}", family="transformer"),
            ):
                try:
                    side = kind(network)
                except Missing as reason:
                    report.skip(f"transformer on {kind.arrays()}", str(reason))
                    continue
                _measure(report, side, _SMALL_TOKENS if small else _TOKENS, max(rounds // 10, 10), stream)


def _measure(report: Report, side: Side, sizes: Sequence[int], rounds: int, stream: int) -> None:
    what, wait = f"forward on {side.arrays()}, {side.network.shape.width} wide", partial(_synchronize, stream)
    waited: dict[int, Mapping[str, Times]] = {}
    mismatches = 0
    for tokens in sizes:
        first, second = side.network.inputs(tokens, 2)
        with ExitStack() as stack, side.scope():
            x = side.place(first)
            runs = side.runs(x, stack, report)
            called = in_turn({arm: timed(run.call) for arm, run in runs.items()}, rounds, between=wait)
            waited[tokens] = in_turn({arm: timed(run.call, wait) for arm, run in runs.items()}, rounds, between=wait)
            side.refill(x, second)
            mismatches += _mismatches(runs, side, wait)
            if tokens == sizes[0]:
                report.add(f"{what}: largest difference to the host", _off(side, runs, second), "", bound=_NEAR)
        report.compare(f"{what}, the call", called, at=tokens, of="tokens")
        report.compare(f"{what}, with the wait", waited[tokens], at=tokens, of="tokens")
    report.add(f"{what}: mismatches", mismatches, "values", bound=0)
    to, bound = _BOUNDED[type(side)]
    for tokens, times in waited.items():
        if to in times:
            name = f"{what}, with the wait, {tokens} tokens: {OURS}/{to}"
            report.speed(name, ratio(times[OURS], times[to]), bound=bound)


def _mismatches(runs: Mapping[str, Run], side: Side, wait: Callable[[], object]) -> int:
    """Values of all arms whose bits are not those of the eager forward, on an input that no capture has seen."""
    for run in runs.values():
        run.call()
    wait()
    found = {arm: side.fetch(run.out) for arm, run in runs.items()}
    bits = {arm: host.view(f"u{host.itemsize}") for arm, host in found.items()}
    return sum(int(np.count_nonzero(of_arm != bits[EAGER])) for arm, of_arm in bits.items() if arm != CUPYS)


def _off(side: Side, runs: Mapping[str, Run], x: np.ndarray) -> float:
    expected = np.empty_like(x)
    forward(Host(), side.host, x, expected)
    return float(np.max(np.abs(side.fetch(runs[EAGER].out).astype(np.float32) - expected)))


def _synchronize(stream: int) -> None:
    bg.driver.current().stream_synchronize(stream)
