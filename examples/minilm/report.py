"""What was found: a table for a person, and a record in the form that the project's records have."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph import record

from .measure import Measured, cosines
from .text import HostArray
from .weights import Weights

__all__ = ["COSINE", "FASTER", "FASTER_UP_TO", "Report"]

COSINE = 0.9999  # at least, of each sentence with the reference
FASTER = 2  # times, at least: replay than eager, on a GPU
FASTER_UP_TO = 8  # sentences of a batch; larger ones keep the GPU busy, and the host's time no longer shows

_LIBRARIES = ("tokenizers", "safetensors", "nvmath-python")


class Report:
    """Rows with their bounds, and the nearest pairs."""

    def __init__(self, command: list[str], weights: Weights, tokens: Sequence[HostArray]) -> None:
        header = record.header("minilm", command)
        self._on_gpu = header["gpu"] is not None
        about = {"dtype": weights.words.dtype.name, "weights": {"sha256": weights.sha256}}
        self._header = {**header, "versions": {**header["versions"], **_versions()}, **about}
        self._pairs: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self._add("sentences", len(tokens), "count")
        self._add("tokens", sum(map(len, tokens)), "count")

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """Tell that a part begins. An error in it is a row that does not hold, and the next part is tried."""
        print(f"minilm: {title}", file=sys.stderr, flush=True)
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self._add(f"{title}: stopped by {type(error).__name__}", 1, "count", bound=0)

    # what there is to say ---------------------------------------------------------------------------------
    def add_graphs(self, title: str, graphs: Sequence[bg.BreakableGraph], segments: int) -> None:
        """Tell how many graphs there are, and hold the segments and breaks of each against what there should be."""
        self._add(f"{title}: graphs, one for each size", len(graphs), "count")
        for what, counts, wanted in (
            ("segments", {len(graph.segments) for graph in graphs}, segments),
            ("breaks", {len(graph.breaks) for graph in graphs}, segments - 1),
        ):
            most = max(counts, default=0)
            self._add(f"{title}: {what} of each", most, "count", bound=wanted, holds=counts == {wanted})

    def add_calls(self, stats: Any) -> None:
        """Tell of the calls of the function that captures itself, none of which may have been without a graph."""
        self._add("calls", stats.calls, "count")
        self._add("calls without a graph", sum(stats.fallbacks.values()), "count", bound=0)
        self._add("rows that were padding", stats.padding, "ratio")

    def add_values(self, title: str, eager: HostArray, replayed: HostArray, reference: HostArray) -> None:
        """Hold replayed vectors against eager ones, bit for bit, and both against the reference."""
        differing = np.count_nonzero(eager.view(np.uint32) != replayed.view(np.uint32))
        self._add(f"{title}: values compared, replay with eager", replayed.size, "values")
        self._add(f"{title}: values that differ", int(differing), "values", bound=0)
        least = float(min(cosines(vectors, reference).min() for vectors in (eager, replayed)))
        self._add(f"{title}: least cosine with the reference", least, "1", bound=COSINE, holds=least >= COSINE)

    def add_speed(self, found: Measured) -> None:
        """Tell how many sentences a second there were, each way."""
        title, times = f"batches of {found.size}", found.eager_seconds / found.replay_seconds
        self._add(f"{title}: eager", len(found.eager) / found.eager_seconds, "sentences/s")
        self._add(f"{title}: replayed", len(found.eager) / found.replay_seconds, "sentences/s")
        bound = FASTER if self._on_gpu and found.size <= FASTER_UP_TO else None
        self._add(f"{title}: speed-up by replay", times, "times", bound=bound, holds=times >= FASTER)

    def add_pairs(self, pairs: Sequence[tuple[float, int, int]], sentences: Sequence[str]) -> None:
        """Tell which sentences are nearest to each other."""
        for cosine, one, other in pairs:
            self._pairs += [f"{cosine:.3f}  {sentences[one]}", f"       {sentences[other]}"]

    def _add(
        self, name: str, value: float, unit: str, *, bound: float | None = None, holds: bool | None = None
    ) -> None:
        self.rows.append(record.row(name, value, unit, bound=bound, holds=holds))

    # how it is told ---------------------------------------------------------------------------------------
    @property
    def good(self) -> bool:
        """Whether every bound holds."""
        return all(row.get("holds", True) for row in self.rows)

    @property
    def text(self) -> str:
        """The table, with the nearest pairs under it."""
        lines = [f"minilm, {self._header['dtype']}, on {record.gpu()}, driver {self._header['driver']}"]
        for row in self.rows:
            verdict = f"   {row['bound']:>8g} {'holds' if row['holds'] else 'FAILS'}" if "bound" in row else ""
            lines.append(f"{row['name']:<60} {row['value']:>11.8g} {row['unit']:<11}{verdict}")
        return "\n".join([*lines, "nearest pairs", *self._pairs]) + "\n"

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        record.write(path, {**self._header, "rows": self.rows, "stdout": self.text})


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
