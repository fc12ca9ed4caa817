"""What a demo run shows a person (a table) and a program (a record)."""

from __future__ import annotations

import datetime
import io
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import breakgraph as bg
from breakgraph.demo.run import ROWS, Outcome

__all__ = ["as_text", "record", "table", "write"]

_VERSIONS_OF = ("breakgraph", "numpy", "scikit-learn", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x")


def table(outcome: Outcome) -> Table:
    """The outcome, a line for each thing measured."""
    lines = Table("", "value", title="breakgraph demo: handwritten digits", title_justify="left")
    if outcome.driver == "sim":
        lines.caption = "Times on the simulated driver say nothing about a GPU."
    lines.add_row("driver", f"{outcome.driver} ({_gpu()})")
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
    """The outcome in the form of the project's records.

    Where the tree has no history, ``BREAKGRAPH_COMMIT`` and ``BREAKGRAPH_DIRTY`` say what was measured. On the
    simulator ``gpu`` and ``cuda`` are None: its answers are never a record of a driver.
    """
    real = outcome.driver == "cuda"
    commit, dirty = _commit()
    return {
        "what": "demo",
        "gpu": _gpu() if real else None,
        "driver": _driver_version() if real else "simulated",
        "cuda": bg.driver.current().driver_get_version() if real else None,
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["breakgraph", *sys.argv[1:]]),
        "rows": [
            {"name": "segments", "value": outcome.segments, "unit": "count"},
            {"name": "breaks", "value": outcome.breaks, "unit": "count"},
            {"name": "nodes", "value": sum(outcome.nodes), "unit": "count"},
            {"name": "replays", "value": outcome.replays, "unit": "count"},
            {"name": "held-out digits", "value": outcome.rows, "unit": "count"},
            _bounded("mismatching values against eager", outcome.mismatches, "count", 0, not outcome.mismatches),
            _bounded(
                "accuracy",
                outcome.accuracy,
                "ratio",
                outcome.REQUIRED_ACCURACY,
                outcome.accuracy > outcome.REQUIRED_ACCURACY,
            ),
            {"name": "time per replay, median", "value": outcome.replay_seconds * 1e6, "unit": "us"},
            {"name": "time per eager forward, median", "value": outcome.eager_seconds * 1e6, "unit": "us"},
            {"name": "replay/eager", "value": outcome.replay_seconds / outcome.eager_seconds, "unit": "ratio"},
        ],
        "stdout": stdout,
    }


def write(path: Path, outcome: Outcome, stdout: str) -> None:
    """Write the record as JSON."""
    path.write_text(json.dumps(record(outcome, stdout), indent=1) + "\n")


def _bounded(name: str, value: float, unit: str, bound: float, holds: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "bound": bound, "holds": holds}


def _gpu() -> str:
    driver = bg.driver.current()
    return driver.device_get_name(driver.ctx_get_device())


def _driver_version() -> str | None:
    """The kernel module's version (580.159.04), which the CUDA driver API does not tell."""
    try:
        told = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            told = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", told)
    return found and found.group()


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS_OF:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> tuple[str | None, bool | None]:
    """The commit of the tree that holds this file, and whether the tree differs from it; None if git holds neither."""
    told = os.environ.get("BREAKGRAPH_COMMIT")
    if told:
        return told, os.environ.get("BREAKGRAPH_DIRTY", "0") != "0"
    here = Path(__file__)
    if _git(here, "ls-files", "--error-unmatch", here.name) is None:
        return None, None
    return _git(here, "rev-parse", "HEAD"), bool(_git(here, "status", "--porcelain"))


def _git(here: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(here.parent), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
