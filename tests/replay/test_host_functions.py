"""A segment that may call Python from the device is launched without the interpreter lock.

A launch that waits for a host function, while it holds the lock that the function needs, would wait for ever. Proves
which kinds of nodes count as such, and that a replay launches those segments, and no others, by the call that gives the
lock up, alone and by a shared exec, in order, and with the errors of any launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_support import WAYS, go
from support import holds, refill, zeros

import breakgraph as bg
from breakgraph.driver.api import NodeType
from breakgraph.errors import DriverError
from breakgraph.memory import SegmentUse
from breakgraph.segments import steps
from breakgraph.segments.steps import Segment

CALLS_PYTHON = {NodeType.HOST, NodeType.GRAPH, NodeType.CONDITIONAL}


def segment_of(*kinds: NodeType) -> Segment:
    return Segment(0, 0x10, kinds, 0, (), SegmentUse(0, 0))


@pytest.mark.parametrize("kind", list(NodeType), ids=lambda kind: kind.name)
def test_host_functions_and_graphs_in_which_there_may_be_some_are_told(kind: NodeType) -> None:
    assert segment_of(kind).calls_host is (kind in CALLS_PYTHON)
    assert segment_of(NodeType.KERNEL, kind, NodeType.KERNEL).calls_host is (kind in CALLS_PYTHON)


def test_a_segment_without_nodes_calls_nothing() -> None:
    assert not segment_of().calls_host


@pytest.fixture
def yielding(sim: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The simulator has no host functions: sets take their place. Which execs gave the lock up to be launched."""
    monkeypatch.setattr(steps, "_MAY_CALL_HOST", {NodeType.MEMSET})
    launched: list[int] = []
    launch: Callable[[int, int], None] = sim.graph_launch_yielding

    def noted(graph_exec: int, stream: int) -> None:
        launched.append(graph_exec)
        launch(graph_exec, stream)

    monkeypatch.setattr(sim, "graph_launch_yielding", noted)
    return launched


def mixed(sim: Any, x: Any, **options: Any) -> Any:
    """Segments of a kernel, of a set and a kernel, and of a kernel."""
    with bg.capture(**options) as graph:
        np.add(x, 1, out=x)
        bg.break_graph()
        sim.memset_d8_async(x.region.ptr, 0, x.nbytes, int(bg.current_stream()))
        np.add(x, 1, out=x)
        bg.break_graph()
        np.multiply(x, 5, out=x)
    return graph


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("execs", ["own", "shared"])
def test_they_are_launched_without_the_lock_and_the_others_with_it(
    sim: Any, xp: Any, yielding: list[int], execs: str, way: str
) -> None:
    x = zeros(xp)
    graph = go(mixed(sim, x, execs=bg.ExecCache() if execs == "shared" else None), way)
    assert [segment.calls_host for segment in graph.segments] == [False, True, False]
    yielding.clear()
    start = len(sim.log)
    refill(x, 9)
    graph.replay()
    assert yielding == [graph.segments[1].exec]
    launched = [entry.args[0] for entry in list(sim.log)[start:] if entry.name == "graph_launch"]
    assert launched == [segment.exec for segment in graph.segments]
    assert holds(x, 5)


@pytest.mark.parametrize("way", WAYS)
def test_a_launch_without_the_lock_that_fails_names_its_segment(
    sim: Any, xp: Any, yielding: list[int], way: str
) -> None:
    x = zeros(xp)
    graph = go(mixed(sim, x), way)
    with pytest.raises(DriverError) as failed, sim.fail("graph_launch", at=2, code=700):
        graph.replay()
    assert failed.value.where == "segment 1"
    graph.replay()
    assert holds(x, 5)


def test_the_capture_pass_launches_every_segment_without_the_lock(sim: Any, xp: Any, yielding: list[int]) -> None:
    graph = mixed(sim, zeros(xp))
    assert yielding == [segment.exec for segment in graph.segments]
