"""The launch calls that breakgraph can replay with, each an arm of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

from benchmarks._peers import Missing

__all__ = ["EXTENSION", "PLAIN", "scope_of"]

EXTENSION = "breakgraph"
PLAIN = "breakgraph, no extension"


def scope_of(arm: str) -> Callable[[], AbstractContextManager[object]]:
    """Makes the scope in which to capture, so that the graph replays by this arm's launcher.

    Raises `Missing` where that launcher is not built.
    """
    # THE PLACE TO SELECT THE LAUNCHER (breakgraph.driver.launchers)
    if arm == PLAIN and find_spec("breakgraph.driver.launchers") is None:
        raise Missing("there is one launcher alone")
    return nullcontext
