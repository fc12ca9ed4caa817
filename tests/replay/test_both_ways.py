"""A replay in one round is refused wherever one step by step is, by the same error, and leaves the same behind.

Proves that for each situation in which a replay may not run (C19, C24, C25, C30), and that whatever else is out of the
ordinary (another context, none at all, a library without a current stream) takes the slower way and comes out right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
from replay_support import WAYS, chain, go
from support import ROOT, holds, in_threads, on_stream, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver.api import CaptureMode
from breakgraph.driver.here import here
from breakgraph.errors import CaptureStateError

sys.path.append(str(ROOT / "examples"))
from own_framework import Vector, VectorFramework


class Scene:
    """A graph that doubles ``x`` in its break, and what its break does beside that."""

    def __init__(self, sim: Any, xp: Any, way: str) -> None:
        self.sim, self.xp = sim, xp
        self.x, self.out = zeros(xp), zeros(xp)
        self.arena = bg.Arena()
        self.in_break: list[Callable[[], object]] = []
        with bg.active_forward(self), bg.capture(arena=self.arena) as self.graph:
            y = bg.break_here(self._double, bg.INFER, self.x + 1)
            np.add(y, 3, out=self.out)
        go(self.graph, way)

    def _double(self, a: Any) -> Any:
        for call in self.in_break:
            call()
        return a * 2

    def replay(self) -> None:
        with bg.active_forward(self):
            self.graph.replay()

    def refused(self, match: str) -> None:
        before = self.sim.calls["graph_launch"], list(here.streams), list(here.replays)
        with pytest.raises(CaptureStateError, match=match):
            self.replay()
        assert (self.sim.calls["graph_launch"], here.streams, here.replays) == before

    def check(self, value: float = 4) -> None:
        """It can be replayed, and computes what it should."""
        refill(self.x, value)
        before = self.graph.replays, list(here.streams), list(here.replays)
        self.replay()
        assert (self.graph.replays - 1, here.streams, here.replays) == before
        assert holds(self.out, (value + 1) * 2 + 3)


@contextmanager
def in_a_segment(scene: Scene) -> Iterator[str]:
    with bg.capture(arena=bg.Arena()) as other:
        np.add(scene.x, 0, out=scene.x)
        yield "inside a segment"
    other.close()


@contextmanager
def in_a_break_of_a_capture_with_its_arena(scene: Scene) -> Iterator[str]:
    with bg.capture(arena=scene.arena) as other:
        np.add(scene.x, 0, out=scene.x)
        bg.break_here(lambda: scene.refused("inside a break"), bg.NO_WRITEBACK)
    other.close()
    yield ""


@contextmanager
def in_its_own_break(scene: Scene) -> Iterator[str]:
    scene.in_break = [lambda: scene.refused("inside a break")]
    scene.replay()
    scene.in_break = []
    yield ""


@contextmanager
def in_a_break_of_a_graph_with_its_arena(scene: Scene) -> Iterator[str]:
    nested: list[Callable[[], object]] = []
    other = chain(scene.x, 2, lambda: bg.break_here(lambda: [call() for call in nested], bg.NO_WRITEBACK))
    same = bg.BreakableGraph()
    with bg.capture(same, arena=scene.arena):
        np.add(scene.x, 0, out=scene.x)
        bg.break_here(lambda: [call() for call in nested], bg.NO_WRITEBACK)
    nested.append(lambda: scene.refused("inside a break"))
    same.replay()
    nested[:] = [scene.check]
    other.replay()
    same.close()
    other.close()
    yield ""


@contextmanager
def on_a_capturing_stream(scene: Scene) -> Iterator[str]:
    stream = scene.sim.create_stream()
    scene.sim.stream_begin_capture(int(stream), CaptureMode.THREAD_LOCAL)
    with on_stream(scene.x, stream):
        yield "is capturing for someone else"
    scene.sim.graph_destroy(scene.sim.stream_end_capture(int(stream)))


@contextmanager
def on_the_default_stream_while_a_blocking_one_captures(scene: Scene) -> Iterator[str]:
    stream = scene.sim.create_stream(blocking=True)
    scene.sim.stream_begin_capture(int(stream), CaptureMode.THREAD_LOCAL)
    yield "a blocking stream is capturing"
    scene.sim.graph_destroy(scene.sim.stream_end_capture(int(stream)))


@contextmanager
def while_its_arena_sleeps(scene: Scene) -> Iterator[str]:
    scene.sim.synchronize()
    scene.arena.sleep()
    yield "a sleeping arena"
    scene.arena.wake()


@contextmanager
def without_a_forward_context(scene: Scene) -> Iterator[str]:
    with pytest.raises(CaptureStateError, match="without one"):
        scene.graph.replay()
    yield ""


@contextmanager
def on_another_driver(scene: Scene) -> Iterator[str]:
    with bg.driver.use("sim"):
        yield "captured on another driver"


@contextmanager
def with_a_step_lost(scene: Scene) -> Iterator[str]:
    steps = scene.graph.holdings.steps
    lost = steps.pop()
    yield "lost a step"
    steps.append(lost)


@contextmanager
def while_another_thread_replays_it(scene: Scene) -> Iterator[str]:
    outcomes: list[Any] = []
    scene.in_break = [lambda: outcomes.extend(in_threads(scene.sim, lambda: scene.refused("by another thread")))]
    scene.replay()
    scene.in_break = []
    assert outcomes == [None]
    yield ""


SITUATIONS: list[Callable[[Scene], AbstractContextManager[str]]] = [
    in_a_segment,
    in_a_break_of_a_capture_with_its_arena,
    in_its_own_break,
    in_a_break_of_a_graph_with_its_arena,
    on_a_capturing_stream,
    on_the_default_stream_while_a_blocking_one_captures,
    while_its_arena_sleeps,
    without_a_forward_context,
    on_another_driver,
    with_a_step_lost,
    while_another_thread_replays_it,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_a_replay_is_refused_before_any_launch_whichever_way_it_would_go(
    sim: Any, xp: Any, situation: Callable[[Scene], AbstractContextManager[str]], way: str
) -> None:
    scene = Scene(sim, xp, way)
    scene.check()
    with situation(scene) as match:
        if match:
            scene.refused(match)
    scene.check()
    scene.graph.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("current", ["another", "none"])
def test_a_replay_goes_where_its_graph_is_and_comes_back(sim: Any, xp: Any, current: str, way: str) -> None:
    scene, other = Scene(sim, xp, way), sim.ctx_create(0)
    sim.ctx_pop_current()
    context = other if current == "another" else 0

    def work() -> int:
        scene.replay()
        return int(sim.ctx_get_current())

    refill(scene.x, 4)
    sim.synchronize()
    assert in_threads(sim, work, context=context) == [context]
    assert holds(scene.out, 13)
    sim.ctx_destroy(other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("spoil", ["pushes one", "pops its own", "sets another"])
def test_a_break_that_leaves_another_context_leaves_the_callers(
    sim: Any, xp: Any, spoil: str, raises: bool, way: str
) -> None:
    scene, mine = Scene(sim, xp, way), sim.ctx_get_current()
    other = sim.ctx_create(0)
    sim.ctx_pop_current()
    depth = sim.context_depth

    def spoiled() -> None:
        if spoil == "pops its own":
            sim.ctx_pop_current()
            sim.ctx_push_current(other)
        else:
            (sim.ctx_push_current if spoil == "pushes one" else sim.ctx_set_current)(other)
        if raises:
            raise ValueError("mine")
        sim.ctx_pop_current()
        sim.ctx_push_current(mine)

    scene.in_break = [spoiled]
    if raises:
        with pytest.raises(ValueError, match="mine"):
            scene.replay()
    else:
        scene.replay()
    scene.in_break = []
    assert sim.ctx_get_current() == mine
    while sim.context_depth > depth:
        sim.ctx_pop_current()
    assert sim.ctx_get_current() == mine
    scene.check()
    sim.ctx_destroy(other)


class Streamless(VectorFramework):
    """A library whose calls go where it likes: it has no current stream, and does not name one either."""

    names_streams = False

    def current_stream(self) -> None:  # type: ignore[override]
        return None


def test_where_the_one_library_has_no_current_stream_a_stream_is_required(sim: Any) -> None:
    frameworks.register(Streamless())
    x = Vector.of([1, 2])
    with bg.capture(frameworks=["vector"]) as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        out = y + 1
    launches = sim.calls["graph_launch"]
    with pytest.raises(CaptureStateError, match="without stream="):
        graph.replay()
    assert sim.calls["graph_launch"] == launches
    graph.replay(stream=sim.create_stream())
    assert out.get() == [5, 7]
    graph.close()
