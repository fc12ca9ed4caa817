"""The host that a benchmark runs on, and the name that records give to a machine."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["host", "slug"]


def host() -> dict[str, Any]:
    """The processor, how many of its cores there are, the system, and how long a Python thread runs at a stretch."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "switch_interval_ms": sys.getswitchinterval() * 1e3,
    }


def slug(header: dict[str, Any]) -> str:
    """``h200-580`` for a record of an NVIDIA H200 with driver 580.159.04; ``sim`` for one of the simulator."""
    if header["gpu"] is None:
        return "sim"
    gpu = re.sub(r"[^a-z0-9]+", "-", header["gpu"].removeprefix("NVIDIA ").lower()).strip("-")
    return f"{gpu}-{str(header['driver']).partition('.')[0]}"


def _processor() -> str:
    try:
        told = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        told = None
    return told[1] if told else platform.processor()
