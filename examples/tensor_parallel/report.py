"""What was found: a table for a person, and a record in the form that the project's records have."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph import record

from .block import HostArray, Input, Weights, reference
from .ranks import RankResult
from .threads import ThreadResult

__all__ = ["TOLERANCE", "Report"]

#: Of values that are themselves up to about 10. float32 has 24 bits, and sums of up to 256 products taken in another
#: order, or in float64, differ in the last few of them; a mistake in the split shows in the first.
TOLERANCE = 1e-4


class Report:
    """Rows with their bounds, and what each rank did."""

    def __init__(self, command: list[str]) -> None:
        self._header = record.header("tensor-parallel", command)
        self._on_sim = bg.driver.current().name == "sim"
        self._ranks: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """Tell that a part begins. An error in it is a row that does not hold, and the next part is tried."""
        print(f"tensor_parallel: {title}", file=sys.stderr, flush=True)
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self._add(f"{title}: stopped by {type(error).__name__}", 1, "count", 0)

    # what there is to say ---------------------------------------------------------------------------------
    def add_split(self, weights: Weights, inputs: Sequence[Input], expected: HostArray) -> None:
        """Hold the block on one rank against the same block with no split in it."""
        whole = np.stack([reference(weights, one) for one in inputs])
        self._add(
            "one rank: largest difference from the unsplit block in float64", _far(expected, whole), "1", TOLERANCE
        )

    def add_ranks(self, results: Sequence[RankResult], expected: HostArray) -> None:
        """Hold what each rank computed against one rank, and what ran on its host against the block's order."""
        # Two partials have one sum, whoever adds. More of them have several, and NCCL does not say which it takes.
        exact = len(results) == 2 or self._on_sim
        for what, some in (("capture", slice(0, 1)), ("replay", slice(1, None))):
            got = np.stack([result.outputs[some] for result in results])
            wanted = np.broadcast_to(expected[some], got.shape)
            self._add(f"{what}: forwards of each rank", got.shape[1], "count")
            self._add(f"{what}: values of all ranks compared with one rank", got.size, "values")
            self._add(f"{what}: mismatches", _mismatches(got, wanted), "values", 0 if exact else None)
            self._add(f"{what}: largest difference", _far(got, wanted), "1", None if exact else TOLERANCE)
        inside, between = (0, 2) if self._on_sim else (1, 1)  # host memory is no place to capture
        at_replay = ["attention", *["all_reduce"] * between]
        at_capture = [name for step in at_replay for name in ("barrier", step)]
        for result in results:
            capture, *replays = map(list, result.logs)
            wrong = [capture != at_capture, *(replay != at_replay for replay in replays)]
            name = f"rank {result.rank}"
            self._add_exactly(f"{name}: all-reduces inside a segment", result.captured, inside)
            self._add_exactly(f"{name}: all-reduces that are breaks", result.breaks, between)
            self._add(f"{name}: forwards whose breaks were others, or in another order", sum(wrong), "count", 0)
            self._add_exactly(f"{name}: ended by itself and well", int(result.ended_well), 1)
            found = {"rank": result.rank, "device": result.device, "steps": list(result.steps)}
            self._ranks.append({**found, "log at capture": capture, "logs at replay": replays})
        if not self._on_sim:
            self._add("until NCCL was set up, slowest rank", max(result.setup for result in results), "s")

    def add_threads(self, results: Sequence[ThreadResult]) -> None:
        """Tell of the captures made side by side."""
        self._add("threads", len(results), "count")
        self._add_exactly("threads: captures", sum(one.captures for one in results), sum(one.asked for one in results))
        self._add("threads: failures", sum(one.failures for one in results), "count", 0)
        self._add("threads: values compared with eager", sum(one.values for one in results), "values")
        self._add("threads: mismatches", sum(one.mismatches for one in results), "values", 0)

    def _add(self, name: str, value: float, unit: str, bound: float | None = None) -> None:
        self.rows.append(record.row(name, value, unit, bound=bound))

    def _add_exactly(self, name: str, value: int, wanted: int) -> None:
        self.rows.append(record.row(name, value, "count", bound=wanted, holds=value == wanted))

    # how it is told ---------------------------------------------------------------------------------------
    @property
    def good(self) -> bool:
        """Whether every bound holds."""
        return all(row.get("holds", True) for row in self.rows)

    @property
    def text(self) -> str:
        """The table, with the steps and logs of the ranks under it."""
        lines = [f"tensor-parallel on {record.gpu()}, driver {self._header['driver']}"]
        for row in self.rows:
            verdict = f"   {row['bound']:>8g} {'holds' if row['holds'] else 'FAILS'}" if "bound" in row else ""
            lines.append(f"{row['name']:<66} {row['value']:>10.6g} {row['unit']:<6}{verdict}")
        for rank in self._ranks:
            lines.append(f"rank {rank['rank']} on {rank['device']}: {', '.join(rank['steps'])}")
            lines.append(f"  at capture {rank['log at capture']}")
            lines += [f"  at replay  {log}" for log in _each_once(rank["logs at replay"])]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        versions = {**self._header["versions"], **_nccl_version()}
        record.write(
            path, {**self._header, "versions": versions, "rows": self.rows, "ranks": self._ranks, "stdout": self.text}
        )


def _mismatches(got: HostArray, wanted: HostArray) -> int:
    """How many values have other bits."""
    return int(np.count_nonzero(got.view(np.uint32) != np.ascontiguousarray(wanted).view(np.uint32)))


def _far(got: HostArray, wanted: HostArray) -> float:
    """The largest difference; infinite where a value is NaN, which no bound would catch."""
    return float(np.nan_to_num(np.abs(got - wanted), nan=np.inf).max())


def _each_once(logs: Sequence[list[str]]) -> list[list[str]]:
    return [log for at, log in enumerate(logs) if log not in logs[:at]]


def _nccl_version() -> dict[str, str]:
    if bg.driver.current().name == "sim":
        return {}
    from cupy.cuda import nccl

    number = nccl.get_version()  # 22809 is 2.28.9
    return {"nccl": f"{number // 10000}.{number // 100 % 100}.{number % 100}"}
