"""What a demo run shows a person (a table) and a program (a record)."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from breakgraph import record as records
from breakgraph.demo.run import ROWS, Outcome

__all__ = ["as_text", "record", "table", "write"]


def table(outcome: Outcome) -> Table:
    """The outcome, a line for each thing measured."""
    lines = Table("", "value", title="breakgraph demo: handwritten digits", title_justify="left")
    if outcome.driver == "sim":
        lines.caption = "Times on the simulated driver say nothing about a GPU."
    lines.add_row("driver", f"{outcome.driver} ({records.gpu()})")
    lines.add_row("segments", str(outcome.segments))
    lines.add_row("breaks", str(outcome.breaks))
    lines.add_row("nodes", f"{sum(outcome.nodes)} ({', '.join(map(str, outcome.nodes))})")
    lines.add_row("replays", f"{outcome.replays} of {ROWS} rows")
    lines.add_row("held-out digits", str(outcome.rows))
    lines.add_row("mismatching values against eager", str(outcome.mismatches))
    lines.add_row("accuracy", f"{outcome.accuracy:.2%}")
    lines.add_row("time per replay", f"{outcome.replay_seconds * 1e6:.0f} us")
    lines.add_row("time per eager forward", f"{outcome.eager_seconds * 1e6:.0f} us")
    lines.add_row("replay / eager", f"{outcome.replay_seconds / outcome.eager_seconds:.2f}")
    return lines


def as_text(shown: Table) -> str:
    """The table as a record keeps it: no colours, whatever the terminal."""
    text = io.StringIO()
    Console(file=text, width=100).print(shown)
    return text.getvalue()


def record(outcome: Outcome, stdout: str) -> dict[str, Any]:
    """The outcome in the form of the project's records."""
    row, right = records.row, outcome.accuracy > outcome.REQUIRED_ACCURACY
    return {
        **records.header("demo", ["breakgraph", *sys.argv[1:]]),
        "rows": [
            row("segments", outcome.segments, "count"),
            row("breaks", outcome.breaks, "count"),
            row("nodes", sum(outcome.nodes), "count"),
            row("replays", outcome.replays, "count"),
            row("held-out digits", outcome.rows, "count"),
            row("mismatching values against eager", outcome.mismatches, "count", bound=0),
            row("accuracy", outcome.accuracy, "ratio", bound=outcome.REQUIRED_ACCURACY, holds=right),
            row("time per replay, median", outcome.replay_seconds * 1e6, "us"),
            row("time per eager forward, median", outcome.eager_seconds * 1e6, "us"),
            row("replay/eager", outcome.replay_seconds / outcome.eager_seconds, "ratio"),
        ],
        "stdout": stdout,
    }


def write(path: Path, outcome: Outcome, stdout: str) -> None:
    """Write the record as JSON."""
    records.write(path, record(outcome, stdout))
