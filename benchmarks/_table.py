"""How a report looks in a terminal: by rich where it is installed, plain where it is not."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import breakgraph as bg

__all__ = ["Part", "show"]

_WIDTH = 150
_SIM = "Times on the simulated driver say nothing about a GPU."


@dataclass(frozen=True)
class Part:
    """One subject: first what was compared, a line each with the arms side by side, then rows with their bounds."""

    title: str
    rows: list[dict[str, Any]]

    def compared(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns, and the lines."""
        rows = [row for row in self.rows if "arm" in row]
        arms = list(dict.fromkeys(row["arm"] for row in rows))
        subjects = list(dict.fromkeys(row["what"] for row in rows))
        lines: dict[tuple[str, str], dict[str, float]] = {}
        for row in sorted(rows, key=lambda row: subjects.index(row["what"])):
            lines.setdefault((row["line"], row["unit"]), {})[row["arm"]] = row["value"]
        body = [
            [line, unit, *(_number(values[arm]) if arm in values else "" for arm in arms)]
            for (line, unit), values in lines.items()
        ]
        return ["", "", *arms], body

    def judged(self) -> list[list[str]]:
        """Name, value, unit, bound, and whether it holds."""
        return [[row["name"], *_cells(row)] for row in self.rows if "arm" not in row]


def show(to: TextIO, title: str, parts: Sequence[Part], missing: Mapping[str, str]) -> None:
    """Print all parts, and the reasons why an arm is in none of them."""
    notes = [f"not measured: {arm}: {reason}" for arm, reason in missing.items()]
    if bg.driver.current().name == "sim":
        notes.append(_SIM)
    try:
        import rich  # noqa: F401
    except ImportError:
        _plain(to, title, parts)
    else:
        _rich(to, title, parts)
    for note in notes:
        print(note, file=to)


def _plain(to: TextIO, title: str, parts: Sequence[Part]) -> None:
    print(title, file=to)
    for part in parts:
        print(f"\n{part.title}", file=to)
        heads, body = part.compared()
        for table in ([heads, *body] if body else [], part.judged()):
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            for first, *others in table:
                cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
                print("  ".join([first.ljust(widths[0]), *cells]).rstrip(), file=to)


def _rich(to: TextIO, title: str, parts: Sequence[Part]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=to) if to is sys.stdout and to.isatty() else Console(file=to, width=_WIDTH)
    console.print(title, style="bold", highlight=False)
    judged = Table("", "value", "", "bound", "holds")
    judged.columns[1].justify = judged.columns[3].justify = "right"
    for part in parts:
        heads, body = part.compared()
        if body:
            compared = Table(*heads, title=part.title, title_justify="left")
            compared.columns[0].no_wrap = True
            for column in compared.columns[2:]:
                column.justify, column.overflow = "right", "fold"
            for line in body:
                compared.add_row(*line)
            console.print(compared)
        judged.add_section()
        for line in part.judged():
            judged.add_row(*line)
    if judged.row_count:
        console.print(judged)


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    bound, holds = ("", "") if "bound" not in row else (_number(row["bound"]), "yes" if row["holds"] else "NO")
    return _number(row["value"]), row["unit"], bound, holds


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
