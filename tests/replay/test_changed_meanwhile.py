"""Whatever other threads do to a graph or its arena meanwhile, a replay runs what is whole, or is refused.

Proves that a replay which has waited for the arena runs the capture that the graph holds by then, and no exec that is
destroyed; that emptying a graph and replaying it exclude each other, at any moment, and destroy each handle once; that
who waits for an arena is neither forgotten nor refused for what has just ended; and that a break point costs nothing
and captures nothing in one thread while another one captures.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from replay_support import WAYS, chain, go, names_of
from support import all_well, holds, in_threads, live, refill, zeros

import breakgraph as bg
from breakgraph import driver as drivers
from breakgraph.driver.quick import Claim
from breakgraph.errors import CaptureStateError
from breakgraph.memory.turn import Owner, Turn
from breakgraph.segments.held import Held
from breakgraph.segments.replay import Replay


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads change as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class Waiting:
    """A thread that replays a graph, and waits for its arena, which another graph's replay has."""

    def __init__(self, sim: Any, graph: Any) -> None:
        self.outcome: list[Any] = []
        context = sim.ctx_get_current()

        def replay() -> None:
            sim.ctx_set_current(context)
            try:
                graph.replay()
            except BaseException as error:
                self.outcome.append(error)

        self.thread = threading.Thread(target=replay, daemon=True)
        self.thread.start()
        while not Turn.waiting:
            assert self.thread.is_alive()

    def end(self) -> None:
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("then", ["reset", "close", "captured anew"])
def test_a_replay_that_waited_runs_what_the_graph_holds_by_then(sim: Any, xp: Any, then: str, way: str) -> None:
    arena, x, out = bg.Arena(), zeros(xp), zeros(xp)
    graph = go(chain(x, 2, arena=arena), way)
    launched: list[Any] = []

    def change() -> None:
        launched.append(Waiting(sim, graph))
        if then == "close":
            graph.close()
            return
        graph.reset()
        if then == "captured anew":
            with bg.capture(graph, arena=bg.Arena(), execute=False):
                np.add(x, 40, out=out)

    stub = bg.break_point(stub=lambda: None)(change)
    with bg.capture(arena=arena) as other:
        np.add(x, 0, out=x)
        stub()
    sim.synchronize()
    refill(x, 2)
    refill(out, 0)
    other.replay()
    (waiting,) = launched
    waiting.end()
    sim.synchronize()
    if then == "captured anew":
        assert waiting.outcome == []
        assert holds(out, 42)
        assert graph.replays == 1
    else:
        (refused,) = waiting.outcome
        assert isinstance(refused, CaptureStateError)
        assert "cannot be replayed" in refused.what
        assert {"reset": "nothing was captured", "close": "closed"}[then] in refused.why
    assert holds(x, 2), "the capture that is gone was not replayed"
    graph.close()
    other.close()


@pytest.mark.parametrize("when", ["before", "in between"])
def test_a_replay_in_a_turn_that_is_held_excludes_a_reset_and_is_refused_after_one(
    sim: Any, xp: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """While the turn is held, but not for a replay of this graph, another thread may empty it."""
    x, arena, stream, outcomes = zeros(xp), bg.Arena(), sim.create_stream(), []
    reset = bg.break_point(stub=lambda: None)(lambda: outcomes.extend(in_threads(sim, graph.reset)))
    graph, run_in = bg.BreakableGraph(), Replay.run_in
    with bg.capture(graph, arena=arena):
        np.add(x, 1, out=x)
        reset()
    sim.synchronize()

    def late(replay: Replay, *args: Any) -> bool:
        all_well(in_threads(sim, graph.reset))
        return run_in(replay, *args)

    with Held(arena, int(stream)) as held:
        graph.replay_in(held)
        assert [type(outcome) for outcome in outcomes] == [CaptureStateError]
        if when == "before":
            all_well(in_threads(sim, graph.reset))
        else:
            monkeypatch.setattr(Replay, "run_in", late)
        with pytest.raises(CaptureStateError, match="cannot be replayed"):
            graph.replay_in(held)
        assert held.place is None
    sim.synchronize()
    assert holds(x, 2)
    assert not [entry for entry in sim.log if entry.error]


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("way", WAYS)
def test_replays_resets_and_captures_of_one_graph_in_any_order_never_touch_what_is_destroyed(
    sim: Any, xp: Any, way: str
) -> None:
    arena, graph, x = bg.Arena(), bg.BreakableGraph(), zeros(xp)
    made, done, until = [0, 0, 0], threading.Event(), time.monotonic() + 20

    def capture() -> None:
        try:
            while min(made) < 15 and time.monotonic() < until:
                with suppress(CaptureStateError), bg.capture(graph, arena=arena):
                    np.add(x, 1, out=x)
                    bg.break_here(lambda: None, bg.NO_WRITEBACK)
                    np.add(x, 1, out=x)
                made[0] += 1
                if way == "step by step":
                    with suppress(AttributeError):  # it was reset before
                        graph._replay.at_once = lambda: False
        finally:
            done.set()

    def replay() -> None:
        while not done.is_set():
            with suppress(CaptureStateError):
                graph.replay()
                made[1] += 1

    def reset() -> None:
        while not done.is_set():
            with suppress(CaptureStateError):
                graph.reset()
                made[2] += 1

    all_well(in_threads(sim, capture, replay, reset, reset, seconds=60))
    sim.synchronize()
    assert min(made) >= 15
    if graph.captured:
        graph.reset()
    refused = [entry for entry in sim.log if entry.name in ("graph_exec_destroy", "graph_launch") and entry.error]
    assert not refused
    assert live(sim, "graph_exec") == live(sim, "graph") == 0


@pytest.mark.usefixtures("restless")
def test_threads_that_share_an_arena_all_come_to_their_turn_and_in_time(sim: Any, xp: Any) -> None:
    """A wake-up that is lost would cost a second each."""
    arena, threads, each = bg.Arena(), 4, 40
    inputs = [zeros(xp) for _ in range(threads)]
    graphs = [chain(x, 3, lambda: bg.break_here(lambda: None, bg.NO_WRITEBACK), arena=arena) for x in inputs]

    def work(graph: Any) -> None:
        for _ in range(each):
            graph.replay()

    all_well(in_threads(sim, *(lambda graph=graph: work(graph) for graph in graphs), seconds=20))
    assert all(holds(x, 3 * (each + 1)) for x in inputs)
    assert not Turn.waiting


def test_whoever_waits_is_woken_by_the_end_of_a_round(sim: Any, xp: Any) -> None:
    arena, x, y = bg.Arena(), zeros(xp), zeros(xp)
    waiting: list[Waiting] = []
    mine = chain(y, 2, arena=arena)
    other = chain(x, 2, bg.break_point(stub=bg.break_graph)(lambda: waiting.append(Waiting(sim, mine))), arena=arena)
    turns: list[float] = []
    wait = Turn._changed.wait

    def noted(timeout: float | None = None) -> bool:
        woken = wait(10)
        turns.append(woken)
        return woken

    Turn._changed.wait = noted  # type: ignore[method-assign]
    try:
        other.replay()
        waiting[0].end()
    finally:
        del Turn._changed.wait
    assert turns == [True], "woken, and not by the clock"
    assert mine.replays == 1


class Ending:
    """A claim whose owner gives it back, and whose thread ends, just after they were seen."""

    def __init__(self, holder: Owner, thread: Owner | None) -> None:
        self._seen: list[Owner | None] = [holder]
        self.thread = thread

    @property
    def owner(self) -> Owner | None:
        return self._seen.pop() if self._seen else None


@pytest.mark.parametrize("of", ["a thread that has ended", "the thread that asks"])
def test_a_turn_that_ends_while_it_is_looked_at_refuses_nobody(of: str) -> None:
    turn, me = Turn(), Owner()
    turn.claim = Ending(Owner(), me if of == "the thread that asks" else None)  # type: ignore[assignment]
    turn._refuse_waiting_for(me)
    assert turn.owner is None


def test_a_turn_whose_owner_goes_on_and_whose_thread_has_ended_is_refused_still() -> None:
    turn, holder, thread = Turn(), Owner(), Owner()
    turn.claim = Claim()
    turn.claim.take(weakref.ref(holder), weakref.ref(thread))
    del thread
    with pytest.raises(CaptureStateError, match="thread has ended"):
        turn._refuse_waiting_for(Owner())


def test_a_capture_that_is_refused_leaves_another_threads_capture_of_the_same_graph_alone(sim: Any, xp: Any) -> None:
    """It has waited for its arena, and by then the other one has the graph."""
    graph, mine, others, x, y = bg.BreakableGraph(), bg.Arena(), bg.Arena(), zeros(xp), zeros(xp)
    opened, refused = threading.Event(), threading.Event()

    def late() -> None:
        with pytest.raises(CaptureStateError, match="cannot take a capture"), bg.capture(graph, arena=mine):
            raise AssertionError("it has begun")
        refused.set()

    def other() -> None:
        while not Turn.waiting:
            time.sleep(0)
        with bg.capture(graph, arena=others):
            np.add(x, 1, out=x)
            bg.break_graph()
            opened.set()
            assert refused.wait(20)
            np.add(x, 1, out=x)

    def holder() -> None:
        with bg.capture(arena=mine) as blocking:
            np.add(y, 1, out=y)
            assert opened.wait(20)
        blocking.close()

    all_well(in_threads(sim, holder, late, other, seconds=60))
    graph.replay()
    assert holds(x, 4)


def test_a_replay_that_races_with_a_reset_is_told_of_the_reset(sim: Any, xp: Any, monkeypatch: Any) -> None:
    graph, current = chain(zeros(xp), 2), drivers.current

    def late() -> Any:
        monkeypatch.undo()
        graph.reset()
        return current()

    monkeypatch.setattr(drivers, "current", late)
    with pytest.raises(CaptureStateError, match="nothing was captured into it yet"):
        graph.replay(stream=sim.create_stream())


# --- break points in other threads -----------------------------------------------------------------------------


def test_a_break_point_in_one_thread_is_a_plain_call_while_others_capture(sim: Any, xp: Any) -> None:
    """It takes its detour then, and finds that this thread captures nothing (C20)."""
    called: list[Any] = []

    @bg.break_point
    def point(value: Any) -> Any:
        called.append((threading.current_thread(), bg.is_capturing()))
        return value

    class Layer:
        @bg.break_point
        def forward(self, value: Any) -> Any:
            return point(value) + 1

    x, out = zeros(xp), zeros(xp)

    def elsewhere() -> tuple[list[str], int]:
        result: list[int] = []
        made = names_of(sim, lambda: result.append(Layer().forward(5)))
        return made, result[0]

    with bg.capture() as graph:
        y = point(x + 1)
        outcomes = in_threads(sim, elsewhere, elsewhere)
        np.add(y, 1, out=out)
        assert all_well(outcomes) == [([], 6)] * 2
    assert len(graph.breaks) == 1
    assert len(called) == 3
    assert len({thread for thread, _ in called}) == 3
    assert not any(capturing for _, capturing in called)
    graph.replay()
    assert len(called) == 4
    assert holds(out, 2)


def test_break_points_of_threads_that_capture_and_do_not_never_mix(sim: Any, xp: Any) -> None:
    @bg.break_point
    def point(value: Any) -> Any:
        return value * 2

    stop = threading.Event()

    def plain() -> int:
        calls = 0
        while not stop.is_set() or calls < 100:
            assert point(calls) == 2 * calls
            calls += 1
        return calls

    def captures() -> list[int]:
        found = []
        try:
            for _ in range(10):
                x, out = zeros(xp), zeros(xp)
                with bg.capture(arena=bg.Arena()) as graph:
                    for _ in range(random.Random(7).randrange(1, 5)):
                        np.add(point(x + 1), 1, out=out)
                found.append(len(graph.segments) - len(graph.breaks))
                graph.close()
        finally:
            stop.set()
        return found

    calls, found = all_well(in_threads(sim, plain, captures))
    assert calls >= 100
    assert found == [1] * 10
