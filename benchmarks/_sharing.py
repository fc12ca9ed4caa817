"""One arena for captures of many sizes: what it maps, against the eager peak of the largest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, permutations
from typing import Any

import numpy as np

import breakgraph as bg
from benchmarks._eager import eager_peak, pool_total
from benchmarks._mlp import Mlp, fresh_inputs
from benchmarks._peers import BREAKABLE, present
from benchmarks._report import Report
from benchmarks._sharing_torch import reserved_by_breakable
from benchmarks._values import Comparison

__all__ = ["NETWORKS", "Size", "captured", "measure", "sizes_of"]

#: Widths that a network goes round; where a layer is much wider than the one before, a hole is easily left.
NETWORKS = ((1024, 2048, 4096), (1024, 4096))
_ROWS, _SMALL_ROWS = (8192, 4096, 2048, 1024), (512, 256, 128, 64)  # small: still whole granules of 2 MiB


@dataclass(frozen=True, eq=False)
class Size:
    """One row count of a network: an input, and where the captured and the eager forward write."""

    rows: int
    x: Any
    out: Any
    eager_out: Any

    @classmethod
    def of(cls, network: Mlp, rows: int) -> Size:
        empty = bg.array_namespace().empty
        x, *outs = (empty((rows, n), np.float32) for n in (network.inputs, network.outputs, network.outputs))
        return cls(rows, x, *outs)


def sizes_of(network: Mlp, *, small: bool) -> list[Size]:
    """Largest first."""
    return [Size.of(network, rows) for rows in (_SMALL_ROWS if small else _ROWS)]


@contextmanager
def captured(network: Mlp, sizes: Iterable[Size], arena: bg.Arena) -> Iterator[tuple[list[Any], list[int]]]:
    """A graph of each size, captured in this order, and the bytes mapped after each; closed at the end."""
    graphs, mapped = [], []
    with ExitStack() as stack:
        for size in sizes:
            with bg.capture(arena=arena, execute=False) as graph:
                network.forward(size.x, size.out)
            stack.callback(graph.close)
            graphs.append(graph)
            mapped.append(arena.mapped)
        yield graphs, mapped


def measure(report: Report, *, small: bool) -> None:
    """Add the rows of each network."""
    for widths in NETWORKS:
        with report.part(f"one arena, {len(_ROWS)} sizes, widths {' '.join(map(str, widths))}"):
            _measure(report, widths, small=small)


def _measure(report: Report, widths: Sequence[int], *, small: bool) -> None:
    name = f"widths {' '.join(map(str, widths))}"
    network = Mlp.of_widths(*widths)
    sizes = sizes_of(network, small=small)
    largest = sizes[0]
    largest.x.set(fresh_inputs(largest.rows, network.inputs, 1)[0])

    def eager() -> object:
        return network.forward(largest.x, largest.eager_out)

    eager()  # kernels are compiled and loaded
    peak = eager_peak(eager, largest.x)
    report.add(f"{name}: eager peak of {largest.rows} rows", peak, "bytes")
    if bg.driver.current().name == "cuda":
        report.add(f"{name}: what cupy's pool holds after the same", pool_total(eager), "bytes")

    arena = bg.Arena()
    with captured(network, sizes, arena) as (graphs, mapped):
        report.add(f"{name}: mapped, largest first", mapped[-1], "bytes")
        report.add(f"{name}: mapped/eager peak, largest first", mapped[-1] / peak, "ratio", bound=1.02)
        report.add(f"{name}: growth from the second capture on", mapped[-1] - mapped[0], "bytes", bound=0)
        compared = _replayed(network, sizes, graphs)
    report.add(f"{name}: mismatches, largest first", compared.mismatches, "values", bound=0)
    report.add(f"{name}: values compared, largest first", compared.values, "values")
    _compare_sizes(report, name, network, sizes, mapped)

    ratios, compared = [], Comparison()
    for order in permutations(sizes):
        with captured(network, order, bg.Arena()) as (graphs, mapped):
            ratios.append(mapped[-1] / peak)
            if not small or order == tuple(reversed(sizes)):
                _replayed(network, order, graphs, compared)
    report.add(f"{name}: orders of the sizes", len(ratios), "count")
    report.add(f"{name}: mapped/eager peak, worst order", max(ratios), "ratio", bound=1.10)
    report.add(f"{name}: mismatches, all orders", compared.mismatches, "values", bound=0)
    report.add(f"{name}: values compared, all orders", compared.values, "values")


def _compare_sizes(report: Report, name: str, network: Mlp, sizes: Sequence[Size], mapped: Sequence[int]) -> None:
    """What captures from the largest size down to each need together, beside what that size needs eager."""
    own = list(accumulate(_mapped_alone(network, size) for size in sizes))
    rows = [size.rows for size in sizes]
    peers = present(report, {BREAKABLE: lambda: reserved_by_breakable(network, rows)})
    for at, size in enumerate(sizes):
        report.compare(
            f"{name}: device memory down to this size",
            {
                "eager peak of this size": eager_peak(partial(network.forward, size.x, size.eager_out), size.x),
                "one arena": mapped[at],
                "an arena for each size": own[at],
                **{f"{arm}, one pool": reserved[at] for arm, reserved in peers.items()},
            },
            "bytes",
            at=size.rows,
            of="rows",
        )


def _mapped_alone(network: Mlp, size: Size) -> int:
    with captured(network, [size], bg.Arena()) as (_, (mapped,)):
        return mapped


def _replayed(
    network: Mlp, sizes: Iterable[Size], graphs: Iterable[Any], compared: Comparison | None = None
) -> Comparison:
    """Replay each graph on an input that its capture has not seen, and compare with eager."""
    compared = compared or Comparison()
    for size, graph in zip(sizes, graphs, strict=True):
        size.x.set(fresh_inputs(size.rows, network.inputs, 2)[1])
        size.out.fill(np.nan)
        graph.replay()
        network.forward(size.x, size.eager_out)
        compared.compare(size.out, size.eager_out)
    return compared
