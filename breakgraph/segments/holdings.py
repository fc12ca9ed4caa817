"""What one captured graph owns: its handles, its steps, and what its steps refer to."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from typing import Any

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.driver.cleanup import attempt
from breakgraph.driver.contexts import in_context
from breakgraph.errors import BreakgraphWarning
from breakgraph.memory import Arena, Footprint
from breakgraph.segments.addresses import AddressBook
from breakgraph.segments.aux_streams import AuxStreams
from breakgraph.segments.execs import Exec, ExecCache, HasGraph, SharedExec, topology
from breakgraph.segments.steps import Step

__all__ = ["Holdings"]


class Holdings:
    """Owns graph and exec handles and destroys each exactly once (C27); keeps objects alive until then.

    It outlives its graph by a moment: the graph's finalizer calls `release`.
    """

    def __init__(
        self,
        driver: Driver,
        context: int,
        arena: Arena,
        *,
        aux: AuxStreams,
        footprint: Footprint,
        cache: ExecCache | None = None,
        measures_execs: bool = False,
    ) -> None:
        self._pid = os.getpid()
        self.graphs: list[int] = []
        self._execs: list[Exec | SharedExec] = []
        self.driver = driver
        self.context = context
        self.arena = arena
        self.aux = aux
        self.footprint: Footprint | None = footprint
        self.steps: list[Step] = []
        self.kept: list[object] = []
        self.output_bytes = 0
        self.outputs: list[Any] = []  # what `BreakableGraph.output` has returned, in order
        self.addresses: AddressBook | None = None  # of a capture with debug
        self.strays: list[tuple[str, int]] = []  # see `SideStreams`
        self.exec_bytes = 0 if measures_execs else None
        self._cache = cache
        self._makes_plain_execs = cache is None and not measures_execs
        self._token = object()

    # execs ----------------------------------------------------------------------------------------------
    def new_exec(self) -> Exec | None:
        """An exec for whoever instantiates it; None where that takes more, and `make_exec` is to do it."""
        if not self._makes_plain_execs:
            return None
        made = Exec(self.driver)
        self._execs.append(made)
        return made

    def drop_exec(self, made: Exec) -> None:
        """A new one was not needed, and not instantiated."""
        self._execs.remove(made)

    def make_exec(
        self, segment: HasGraph, nodes: tuple[int, ...] = (), kinds: tuple[int, ...] = ()
    ) -> Exec | SharedExec:
        """An exec for a segment: one that the cache has for its topology, or a new one, as without ``nodes``."""
        with drivers.relaxed(self.driver):  # a capture elsewhere, in global mode, must not be harmed (C8)
            return self._make_exec(segment, nodes, kinds)

    def _make_exec(self, segment: HasGraph, nodes: tuple[int, ...], kinds: tuple[int, ...]) -> Exec | SharedExec:
        driver, cache = self.driver, self._cache
        if cache is not None and nodes:
            kind = topology(driver, segment.graph, nodes, kinds)
            found = cache.find(driver, self.context, kind, segment, self._token, self._execs)
            if found is not None:
                return self._own(found)
            made = self._own(cache.add(driver, self.context, kind, self._token))
        else:
            made = self._own(Exec(driver))
        before = driver.mem_get_info()[0] if self.exec_bytes is not None else 0
        made.instantiate(segment)
        if self.exec_bytes is not None:
            self.exec_bytes += max(before - driver.mem_get_info()[0], 0)
        return made

    def make_own_exec(self, segment: HasGraph, instead: Exec | SharedExec) -> Exec | SharedExec:
        """An exec for a segment alone, in place of one that cannot be given its parameters."""
        made = self.make_exec(segment)
        self._execs.remove(instead)
        if (destroy := instead.let_go(self._token)) is not None:
            destroy()
        return made

    def _own(self, made: Exec | SharedExec) -> Exec | SharedExec:
        self._execs.append(made)
        return made

    # the end --------------------------------------------------------------------------------------------
    def forget(self) -> None:
        """Let go of the handles without a driver call: their context is gone."""
        self.graphs.clear()
        if os.getpid() == self._pid:  # in a forked child a lock may be held for ever (C27)
            for one in self._execs:
                one.let_go(self._token)
        self._execs.clear()

    def release(self) -> list[str]:
        """Destroy everything once the last replay is done with it. Returns what could not be destroyed."""
        notes: list[str] = []
        if os.getpid() == self._pid and not sys.is_finalizing() and (self.graphs or self._execs):
            left = f"destroying {len(self._execs)} execs and {len(self.graphs)} graphs"
            attempt(notes, left, lambda: self._destroy(notes))
        self.forget()
        self.steps.clear()
        self.kept.clear()
        self.outputs.clear()
        self.addresses = None
        self.footprint = None
        return notes

    def _destroy(self, notes: list[str]) -> None:
        driver = self.driver
        with in_context(driver, self.context):
            attempt(notes, "waiting for the last replay", self.arena.wait)
            with drivers.relaxed(driver):  # also inside somebody's capture (C8)
                while self._execs:
                    one = self._execs.pop()
                    if (destroy := one.let_go(self._token)) is not None:
                        attempt(notes, f"destroying exec {one.handle:#x}", destroy)
                while self.graphs:
                    graph = self.graphs.pop()
                    attempt(notes, f"destroying graph {graph:#x}", partial(driver.graph_destroy, graph))

    def __del__(self) -> None:  # what an interrupt left of a release
        if not sys.is_finalizing() and hasattr(self, "_token"):
            self.release_quietly()

    def release_quietly(self) -> None:
        """`release` for a destructor, which can only warn."""
        self.driver.finalize(self._release_and_warn)

    def _release_and_warn(self) -> None:
        for note in self.release():
            warnings.warn(note, BreakgraphWarning, stacklevel=2)
