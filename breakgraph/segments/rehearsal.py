"""A forward run eagerly, by someone who hears of each break point at which a graph was split.

It takes the place of the open capture in the thread, so that break points come to it; nothing is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from breakgraph.driver.here import here
from breakgraph.segments.break_points import BreakPoint
from breakgraph.segments.callers import CallSite
from breakgraph.segments.collector import pause_collector, resume_collector
from breakgraph.segments.streams import eager_stream

if TYPE_CHECKING:
    from breakgraph.segments.graph import BreakableGraph

__all__ = ["Call", "Rehearsal", "rehearsing"]

#: Called in place of a break point, with it and its arguments; returns what the forward goes on with.
Call: TypeAlias = Callable[[BreakPoint, tuple[Any, ...], dict[str, Any]], Any]


class Rehearsal:
    """What stands in the capture slot meanwhile."""

    in_segment = False
    valid_rows: int | None = None

    def __init__(self, graph: BreakableGraph, call: Call, output: Callable[[Any], object]) -> None:
        self.graph = graph
        self.stream = int(eager_stream() or 0)
        self._call, self._output = call, output
        self._tags = {step.tag for step in graph.breaks}  # whether a break point splits is decided by its tag (C9)
        self._in_break = False

    def selects(self, tag: str | None) -> bool:
        return tag in self._tags and not self._in_break

    def record(self, point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any], where: CallSite) -> Any:
        self._in_break = True
        try:
            return self._call(point, args, kwargs)
        finally:
            self._in_break = False

    def output(self, value: Any) -> Any:
        """What the forward declares as an output of the graph stays the forward's own."""
        self._output(value)
        return value


@contextmanager
def rehearsing(graph: BreakableGraph, call: Call, output: Callable[[Any], object]) -> Iterator[None]:
    """Run the forward of ``graph`` eagerly in here."""
    rehearsal = Rehearsal(graph, call, output)
    before, here.capture = here.capture, rehearsal
    pause_collector(rehearsal)  # break points look for a capture only while one is known there
    try:
        yield
    finally:
        resume_collector(rehearsal)
        here.capture = before
