"""What the tests of replay share: chains of segments, a replay's calls in the log, and its two ways forced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import breakgraph as bg

#: A replay goes in one round where nothing is out of the ordinary, and step by step otherwise.
WAYS = ("in a round", "step by step")


def chain(x: Any, segments: int, between: Callable[[], object] = bg.break_graph, **options: Any) -> Any:
    """A graph of so many segments, each of which adds 1 to ``x`` in place."""
    with bg.capture(**options) as graph:
        for at in range(segments):
            if at:
                between()
            np.add(x, 1, out=x)
    return graph


def go(graph: Any, way: str) -> Any:
    """Force a graph's replays to one of `WAYS`."""
    assert graph._replay._only is not None, "the round is not to be had for this graph"
    if way == "step by step":
        graph._replay.at_once = lambda: False
    return graph


def calls_of(driver: Any, work: Callable[[], object]) -> list[tuple[Any, ...]]:
    """The driver calls that some work made, each with its arguments."""
    start = len(driver.log)
    work()
    return [(entry.name, *entry.args) for entry in list(driver.log)[start:]]


def names_of(driver: Any, work: Callable[[], object]) -> list[str]:
    """The driver calls that some work made, by name."""
    return [name for name, *_ in calls_of(driver, work)]
