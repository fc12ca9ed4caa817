"""Ask in a process of its own: what hangs, crashes or loses its context does so there.

The child calls `say` as it learns things, so that what it said before its end is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import breakgraph as bg

__all__ = ["Answer", "ask", "say"]

_ROOT = Path(bg.__file__).parent.parent
_SAYS = "breakgraph says "
_KILLED = 5.0  # seconds that a killed process is waited for


@dataclass(frozen=True)
class Answer:
    """All that a child said, and how it ended if not well."""

    said: dict[str, Any]
    ended: str


def ask(*arguments: str, seconds: float, environment: Mapping[str, str] | None = None) -> Answer:
    """Run Python with these arguments for at most ``seconds``; ``environment`` is added to the process's own.

    The child imports this very breakgraph, wherever it lies, and nothing from the folder it is run in.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        try:
            ended = _ending(process.wait(seconds))
        except subprocess.TimeoutExpired:
            ended = f"did not end within {seconds:g} s"
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED)  # one that hangs in the kernel cannot be killed, and is left
        out.seek(0)
        err.seek(0)
        last = next((line.strip() for line in reversed(err.readlines()) if line.strip()), "")
        return Answer(_said(out.readlines()), f"{ended}: {last}" if ended and last else ended)


def say(facts: Mapping[str, Any]) -> None:
    """Tell the process that asked, at once."""
    print(_SAYS + json.dumps(facts), flush=True)


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with {code}" if code else ""


def _said(lines: list[str]) -> dict[str, Any]:
    """What the child told, as one; a library may print lines of its own between."""
    said: dict[str, Any] = {}
    for line in lines:
        if line.startswith(_SAYS):
            said |= json.loads(line.removeprefix(_SAYS))
    return said
