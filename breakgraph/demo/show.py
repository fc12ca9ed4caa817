"""The demo as a person sees it: progress while it works, then the table."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from breakgraph.demo import report
from breakgraph.demo.run import Outcome, run

__all__ = ["show"]


def show(record: Path | None = None) -> bool:
    """Run the demo and print what it found; write a record if asked to. Returns whether the run was good."""
    console = Console()
    outcome = _run_with_progress(console)
    shown = report.table(outcome)
    console.print(shown)
    for problem in outcome.problems:
        console.print(f"[bold red]FAILED[/]: {problem}")
    if record is not None:
        report.write(record, outcome, report.as_text(shown))
    return not outcome.problems


def _run_with_progress(console: Console) -> Outcome:
    tasks: dict[str, TaskID] = {}
    with Progress(console=console) as progress:

        def update(what: str, fraction: float) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=1.0)
            progress.update(tasks[what], completed=fraction)

        return run(update)
