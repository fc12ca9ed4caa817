"""What one captured graph owns: its handles, its steps, and what its steps refer to."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.errors import BreakgraphWarning, DriverError
from breakgraph.memory import Arena
from breakgraph.segments.state import Step

__all__ = ["Holdings", "attempt", "in_context"]


def attempt(notes: list[str], what: str, call: Callable[[], object]) -> bool:
    """Make a clean-up call; where it fails, make it once more; where it fails again, note what is left (C5)."""
    for last in (False, True):
        try:
            call()
        except DriverError as error:
            if last:
                notes.append(f"{what} failed twice and is left as it is: {error.what}")
        else:
            return True
    return False


class in_context:  # noqa: N801 - used as a guard: with in_context(driver, context): ...
    """Make a context current inside the block, if it is not already (C31)."""

    __slots__ = ("_context", "_driver", "_pushed")

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver, self._context, self._pushed = driver, context, False

    def __enter__(self) -> None:
        if self._driver.ctx_get_current() != self._context:
            self._driver.ctx_push_current(self._context)
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            self._driver.ctx_pop_current()


class Holdings:
    """Owns graph and exec handles and destroys each exactly once (C27); keeps objects alive until then.

    It outlives its graph by a moment: the graph's finalizer calls `release`.
    """

    def __init__(self, driver: Driver, context: int, arena: Arena) -> None:
        self.driver = driver
        self.context = context
        self.arena = arena
        self.steps: list[Step] = []
        self.kept: list[object] = []
        self._graphs: list[int] = []
        self._execs: list[int] = []
        self._pid = os.getpid()

    def own_graph(self, graph: int) -> int:
        self._graphs.append(graph)
        return graph

    def own_exec(self, graph_exec: int) -> int:
        self._execs.append(graph_exec)
        return graph_exec

    def forget(self) -> None:
        """Let go of the handles without a driver call: their context is gone."""
        self._graphs.clear()
        self._execs.clear()

    def release(self) -> list[str]:
        """Destroy everything once the last replay is done with it. Returns what could not be destroyed."""
        notes: list[str] = []
        if os.getpid() == self._pid and not sys.is_finalizing() and (self._graphs or self._execs):
            left = f"destroying {len(self._execs)} execs and {len(self._graphs)} graphs"
            attempt(notes, left, lambda: self._destroy(notes))
        self.forget()
        self.steps.clear()
        self.kept.clear()
        return notes

    def _destroy(self, notes: list[str]) -> None:
        driver = self.driver
        with in_context(driver, self.context):
            attempt(notes, "waiting for the last replay", self.arena.wait)
            with drivers.relaxed(driver):  # also inside somebody's capture (C8)
                while self._execs:
                    graph_exec = self._execs.pop()
                    attempt(notes, f"destroying exec {graph_exec:#x}", partial(driver.graph_exec_destroy, graph_exec))
                while self._graphs:
                    graph = self._graphs.pop()
                    attempt(notes, f"destroying graph {graph:#x}", partial(driver.graph_destroy, graph))

    def release_quietly(self) -> None:
        """`release` for a destructor, which can only warn."""
        for note in self.release():
            warnings.warn(note, BreakgraphWarning, stacklevel=2)
