"""The form of the project's records: what was run, on what, and what came out.

A measurement that the project claims is a JSON file in this form, written by the script that measured.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import breakgraph as bg

__all__ = ["commit", "driver_version", "gpu", "header", "row", "write"]

_VERSIONS_OF = (
    *("breakgraph", "numpy", "scikit-learn", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x", "nvmath-python"),
    *("torch", "breakable-cuda-graphs"),
)


def header(what: str, command: Sequence[str]) -> dict[str, Any]:
    """What a record says before its rows: ``what`` was measured, by which ``command``, where, and of which tree.

    Where the tree has no history, ``BREAKGRAPH_COMMIT`` and ``BREAKGRAPH_DIRTY`` say what was measured. On the
    simulator ``gpu`` and ``cuda`` are None: its answers are never a record of a driver.
    """
    driver = bg.driver.current()
    real = driver.name == "cuda"
    tree, dirty = commit()
    return {
        "what": what,
        "gpu": gpu() if real else None,
        "driver": driver_version() if real else "simulated",
        "cuda": driver.driver_get_version() if real else None,
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": tree,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(command),
    }


def row(name: str, value: float, unit: str, *, bound: float | None = None, holds: bool | None = None) -> dict[str, Any]:
    """One thing measured. With a ``bound`` it says whether that holds: unless told, a value at most the bound does."""
    measured = {"name": name, "value": value, "unit": unit}
    if bound is None:
        return measured
    return {**measured, "bound": bound, "holds": value <= bound if holds is None else holds}


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record (`header`, ``rows`` and ``stdout``) as JSON."""
    path.write_text(json.dumps(record, indent=1) + "\n")


def gpu() -> str:
    """The current device's name, as its driver tells it."""
    driver = bg.driver.current()
    driver.ensure_context()
    return driver.device_get_name(driver.ctx_get_device())


def driver_version() -> str | None:
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


def commit() -> tuple[str | None, bool | None]:
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
