"""What a benchmark has measured so far: rows for its record, and a table for a person."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import _launchers, _machine, _table
from benchmarks._timing import Times
from breakgraph import record

__all__ = ["Report"]


class Report:
    """Rows in the order in which they were measured, in parts that have a title and belong to a family each."""

    def __init__(self, what: str, command: list[str]) -> None:
        self._header = record.header(what, command)
        self._host = _machine.host()
        self._parts: list[_table.Part] = []
        self._missing: dict[str, str] = {}
        self._family = what

    @contextmanager
    def part(self, title: str, *, family: str | None = None) -> Iterator[None]:
        """What is added in here is of one subject.

        An error in one part is a row that does not hold, and the other parts are measured all the same: a GPU is
        not always at hand.
        """
        print(f"measuring: {title}", file=sys.stderr, flush=True)
        self._family = family or self._header["what"]
        self._parts.append(_table.Part(title, []))
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add(f"{title}: stopped by {type(error).__name__}", 1, "count", bound=0)

    def add(self, name: str, value: float, unit: str, *, bound: float | None = None, holds: bool | None = None) -> None:
        """Add a row; see `breakgraph.record.row`."""
        self._add(record.row(name, value, unit, bound=bound, holds=holds))

    def speed(self, name: str, value: float, *, bound: float | None = None) -> None:
        """Add a ratio of times. On the simulator it has no bound: its times say nothing about a GPU."""
        self.add(name, value, "ratio", bound=bound if self._header["gpu"] else None)

    def compare(
        self,
        what: str,
        arms: Mapping[str, Times | float],
        unit: str = "us",
        *,
        at: int | None = None,
        of: str = "",
        value: str = "median",
    ) -> None:
        """Add a row for each arm; they stand beside each other in the table, and in one plot for all sizes.

        ``at`` is the size at which ``what`` was measured, ``of`` what it counts. Of times the value is the median, or
        another property of `Times`; of what is no time, the number itself.
        """
        line = what if at is None else f"{what}, {at:,} {of}".rstrip()
        size = {} if at is None else {"at": at, "of": of}
        for arm, measured in arms.items():
            number, spread = _numbers(measured, unit, value)
            row = record.row(f"{line}: {arm}", number, unit)
            self._add({**row, "line": line, "what": what, "arm": arm, **size, **spread})

    def skip(self, arm: str, reason: str) -> None:
        """Say why an arm is not in the tables."""
        self._missing[arm] = reason

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for part in self._parts for row in part.rows]

    @property
    def good(self) -> bool:
        """Whether every bound holds."""
        return all(row.get("holds", True) for row in self.rows)

    @property
    def place(self) -> str:
        """Where it was measured, as the names of records have it: ``h200-580``, or ``sim``."""
        return _machine.slug(self._header)

    @property
    def what(self) -> str:
        return str(self._header["what"])

    def print(self) -> None:
        _table.show(sys.stdout, self._title, self._parts, self._missing)

    def write(self, path: Path) -> Path:
        """Write the record as JSON, with the table as a terminal without colours would show it. Returns the path."""
        shown = io.StringIO()
        _table.show(shown, self._title, self._parts, self._missing)
        where = {"extension": _launchers.has_extension(), "host": self._host, "missing": self._missing}
        found = {**self._header, **where, "rows": self.rows}
        record.write(path, {**found, "stdout": shown.getvalue()})
        return path

    @property
    def _title(self) -> str:
        return f"{self.what} on {record.gpu()}, driver {self._header['driver']}"

    def _add(self, row: dict[str, Any]) -> None:
        self._parts[-1].rows.append({**row, "family": self._family})


def _numbers(measured: Times | float, unit: str, value: str) -> tuple[float, dict[str, float]]:
    if not isinstance(measured, Times):
        return measured, {}
    scale = {"ns": 1e3, "us": 1, "ms": 1e-3}[unit]
    spread = {"p10": measured.quantile(0.1), "p90": measured.quantile(0.9), "p99": measured.p99}
    found = {name: scale * number for name, number in spread.items()}
    return scale * getattr(measured, value), {"rounds": len(measured.us), **found}
