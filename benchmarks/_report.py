"""What a benchmark has measured so far: rows for its record, and a table for a person."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import breakgraph as bg
from breakgraph import record

__all__ = ["Report"]

_WIDTH = 120


class Report:
    """Rows in the order in which they were measured, in parts that have a title each."""

    def __init__(self, what: str, command: list[str]) -> None:
        self._header = record.header(what, command)
        self._parts: list[tuple[str, list[dict[str, Any]]]] = []

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """What is added in here is of one subject.

        An error in one part is a row that does not hold, and the other parts are measured all the same: a GPU is
        not always at hand.
        """
        print(f"measuring: {title}", file=sys.stderr, flush=True)
        self._parts.append((title, []))
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add(f"{title}: stopped by {type(error).__name__}", 1, "count", bound=0)

    def add(self, name: str, value: float, unit: str, *, bound: float | None = None, holds: bool | None = None) -> None:
        """Add a row; see `breakgraph.record.row`."""
        self._parts[-1][1].append(record.row(name, value, unit, bound=bound, holds=holds))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for _, rows in self._parts for row in rows]

    @property
    def good(self) -> bool:
        """Whether every bound holds."""
        return all(row.get("holds", True) for row in self.rows)

    def print(self) -> None:
        self._print_to(sys.stdout)

    def write(self, path: Path) -> None:
        """Write the record as JSON, with the table as a terminal without colours would show it."""
        shown = io.StringIO()
        self._print_to(shown)
        record.write(path, {**self._header, "rows": self.rows, "stdout": shown.getvalue()})

    def _print_to(self, to: TextIO) -> None:
        title = f"{self._header['what']} on {record.gpu()}, driver {self._header['driver']}"
        lines = [[(row["name"], *_cells(row)) for row in rows] for _, rows in self._parts]
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            print(title, file=to)
            for row in (row for part in lines for row in part):
                print("{:<74} {:>16} {:<9} {:>8} {}".format(*row), file=to)
            return
        table = Table("", "value", "", "bound", "holds", title=title, title_justify="left")
        table.columns[1].justify = table.columns[3].justify = "right"
        if bg.driver.current().name == "sim":
            table.caption = "Times on the simulated driver say nothing about a GPU."
        for part in lines:
            table.add_section()
            for row in part:
                table.add_row(*row)
        console = Console(file=to) if to is sys.stdout and to.isatty() else Console(file=to, width=_WIDTH)
        console.print(table)


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    bound, holds = ("", "") if "bound" not in row else (_number(row["bound"]), "yes" if row["holds"] else "NO")
    return _number(row["value"]), row["unit"], bound, holds


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
