"""How a captured graph is replayed, on which stream, and how it is taken down.

Proves C1's order with the caller's stream, C2, C23 to C27 and C31: order of launches, streams, threads, two graphs
on one arena, destruction exactly once in any order, a forked child, interpreter shutdown, foreign contexts.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support import child, every_schedule, holds, live, on_stream, refill, steps_of, stream_of, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, CaptureStateError


def three_segments(xp: Any, x: Any, **options: Any) -> tuple[Any, Any]:
    """A graph of +1, E*2, +1, E*3, +1 over ``x``, and its output."""
    with bg.capture(**options) as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        y = bg.break_here(lambda a: a * 3, bg.INFER, y + 1)
        out = y + 1
    return graph, out


def expected(value: float) -> float:
    """What `three_segments` computes."""
    return ((value + 1) * 2 + 1) * 3 + 1


# --- order and counts (C23) -----------------------------------------------------------------------------------


def test_segments_without_nodes_are_not_launched(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x)  # before it, and between the next two: nothing captured
        y = bg.break_here(lambda a: a * 3, bg.INFER, y)
        out = y + 1
    assert [segment.nodes for segment in graph.segments] == [0, 0, 1]
    launches = sim.calls["graph_launch"]
    refill(x, 10)
    graph.replay()
    assert sim.calls["graph_launch"] - launches == 1
    assert holds(out, 61)


def test_a_replay_launches_each_segment_once_and_counts_itself(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    graph, out = three_segments(xp, x)
    launches = sim.calls["graph_launch"]
    for count in (1, 2, 3):
        refill(x, count)
        graph.replay()
        assert graph.replays == count
        assert sim.calls["graph_launch"] - launches == 3 * count
        assert holds(out, expected(count))


def test_steps_alternate_and_cannot_be_changed_from_outside(driver: Any, xp: Any) -> None:
    graph, _ = three_segments(xp, zeros(xp))
    assert isinstance(graph.steps, tuple)
    assert isinstance(graph.segments, tuple)
    assert isinstance(graph.breaks, tuple)
    assert graph.steps[::2] == graph.segments
    assert graph.steps[1::2] == graph.breaks
    with pytest.raises(AttributeError):
        graph.state = "captured"


def test_a_replay_does_not_wait_for_the_device_by_itself(sim: Any, xp: Any) -> None:
    graph, _ = three_segments(xp, zeros(xp))
    waits = ("stream_synchronize", "ctx_synchronize", "event_synchronize", "memcpy_dtoh")
    before = [sim.calls[name] for name in waits]
    graph.replay()
    assert [sim.calls[name] for name in waits] == before


# --- streams (C1, C24) ----------------------------------------------------------------------------------------


@every_schedule
def test_a_replay_runs_on_the_stream_given_and_breaks_see_it_as_current(driver: Any, xp: Any) -> None:
    x, streams = zeros(xp), []

    def work(a: Any) -> Any:
        streams.append(int(bg.current_stream()))
        return a * 2

    with bg.capture() as graph:
        out = bg.break_here(work, bg.INFER, x + 1) + 1
    assert streams == [int(graph.capture_stream)]
    refill(x, 10)
    stream = driver.create_stream()
    driver.synchronize()
    graph.replay(stream=stream)
    driver.stream_synchronize(int(stream))
    assert holds(out, 23)
    assert streams[1:] == [int(stream)]


@every_schedule
def test_a_replay_runs_on_the_current_stream_of_the_framework(driver: Any, xp: Any) -> None:
    x, streams = zeros(xp), []

    def work(a: Any) -> Any:
        streams.append(int(bg.current_stream()))
        return a * 2

    with bg.capture() as graph:
        out = bg.break_here(work, bg.INFER, x + 1) + 1
    stream = driver.create_stream()
    driver.synchronize()
    with on_stream(x, stream):
        np.add(x, 7, out=x)
        graph.replay()
        np.add(out, 1, out=out)
        assert holds(out, 18)
    assert streams[1:] == [int(stream)]


def test_stream_zero_is_the_default_stream_wherever_it_is_named(driver: Any, xp: Any) -> None:
    x, streams = zeros(xp), []

    def work(a: Any) -> Any:
        streams.append(int(bg.current_stream()))
        return a * 2

    with bg.capture() as graph:
        out = bg.break_here(work, bg.INFER, x + 1)
    graph.replay(stream=0)
    graph.replay()
    driver.synchronize()
    assert holds(out, 2)
    assert streams[1:] == [driver.resolve_stream(0)] * 2


def test_without_a_framework_a_stream_is_required(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    sim.synchronize()
    with bg.capture(frameworks=()) as graph:
        sim.launch(int(bg.current_stream()), lambda _: None, writes=[x])
    with pytest.raises(CaptureStateError, match="stream="):
        graph.replay()
    graph.replay(stream=sim.create_stream())
    sim.synchronize()
    assert graph.replays == 1


def test_the_frameworks_own_stream_is_as_it_was_after_capture_and_replay(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    stream = driver.create_stream()
    driver.synchronize()
    with on_stream(x, stream):
        before = stream_of(x)
        graph, _ = three_segments(xp, x)
        assert stream_of(x) == before
        graph.replay()
        assert stream_of(x) == before
        with pytest.raises(ValueError, match="planned"), bg.capture():
            assert stream_of(x) != before
            raise ValueError("planned")
        assert stream_of(x) == before
        driver.stream_synchronize(int(stream))


@every_schedule
def test_a_capture_waits_for_the_callers_stream_and_the_callers_stream_for_it(driver: Any, xp: Any) -> None:
    """No synchronization by the test: a missing wait at entry or exit is a race, and a wrong value under lazy."""
    x, out = zeros(xp), zeros(xp)
    mine = driver.create_stream()
    driver.synchronize()
    with on_stream(x, mine):
        np.add(x, 5, out=x)
        with bg.capture() as graph:
            y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
            np.add(y, 3, out=out)
        np.add(out, 100, out=out)
        assert out.get().tolist() == [115.0] * 4
        np.add(x, 1, out=x)
        graph.replay()
        np.add(out, 100, out=out)
        assert holds(out, 117)
        driver.stream_synchronize(int(mine))


def test_a_failed_capture_too_leaves_the_callers_stream_behind_its_work(sim: Any, xp: Any) -> None:
    """Launched segments are still running when the scope fails: later work on the caller's stream waits."""
    x, out = zeros(xp), zeros(xp)
    sim.synchronize()
    with pytest.raises(ValueError, match="planned"), bg.capture():
        np.add(x, 1, out=out)
        bg.break_graph()
        raise ValueError("planned")
    np.add(out, 1, out=out)
    assert holds(out, 2)


# --- arenas between graphs and threads (C25) ------------------------------------------------------------------


@every_schedule
def test_graphs_that_share_an_arena_may_replay_on_different_streams(driver: Any, xp: Any) -> None:
    """Their temporaries lie in the same bytes; only the arena's event orders them."""
    arena = bg.Arena()
    x, y = zeros(xp, 256), zeros(xp, 256)
    out_x, out_y = zeros(xp, 256), zeros(xp, 256)

    def capture(source: Any, out: Any, n: float) -> Any:
        with bg.capture(arena=arena) as graph:
            t = source + n
            t = bg.break_here(lambda a: a * 2, bg.INFER, t + n)
            np.add(t, n, out=out)
            del t
        return graph

    graphs = capture(x, out_x, 1), capture(y, out_y, 10)
    streams = driver.create_stream(), driver.create_stream()
    refill(x, 1)
    refill(y, 2)
    driver.synchronize()
    for graph, stream in itertools.islice(itertools.cycle(zip(graphs, streams, strict=True)), 6):
        graph.replay(stream=stream)
    driver.synchronize()
    assert holds(out_x, 7)
    assert holds(out_y, 54)


def test_another_thread_waits_for_its_turn_on_an_arena(driver: Any, xp: Any) -> None:
    arena, context, order = bg.Arena(), driver.ctx_get_current(), []
    x = zeros(xp)
    in_break, other_started = threading.Event(), threading.Event()

    def work(a: Any) -> Any:
        if first.captured:
            in_break.set()
            assert other_started.wait(20)
            other_may_run.wait(0.1)  # it does not: it waits for the arena
            order.append("first")
        return a * 2

    other_may_run, first = threading.Event(), bg.BreakableGraph()
    with bg.capture(first, arena=arena):
        out = bg.break_here(work, bg.INFER, x + 1)
    with bg.capture(arena=arena) as second:
        bg.break_here(lambda: order.append("second"), bg.IN_PLACE)
        x + 2
    order.clear()

    def other() -> None:
        driver.ctx_set_current(context)
        assert in_break.wait(20)
        other_started.set()
        second.replay()
        other_may_run.set()

    thread = threading.Thread(target=other)
    thread.start()
    first.replay()
    thread.join(30)
    assert not thread.is_alive()
    assert order == ["first", "second"]
    driver.synchronize()
    assert holds(out, 2)


# --- a break that raises (C26) --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unmarked(Exception):
    """An exception that takes no notes."""

    code: int


@pytest.mark.parametrize("when", ["at capture", "at replay", "step by step"])
def test_an_exception_that_takes_no_notes_goes_on_as_it_is(driver: Any, xp: Any, when: str) -> None:
    x, mine, fails = zeros(xp), Unmarked(3), [when == "at capture"]

    def misbehaving() -> None:
        if fails[0]:
            raise mine

    graph = bg.BreakableGraph()

    def capture() -> None:
        with bg.capture(graph):
            np.add(x, 1, out=x)
            bg.break_here(misbehaving, bg.IN_PLACE)

    if when == "at capture":
        with pytest.raises(Unmarked) as raised:
            capture()
        assert graph.state == "failed"
    else:
        capture()
        fails[0] = True
        stream = driver.create_stream() if when == "step by step" else None
        with pytest.raises(Unmarked) as raised:
            graph.replay(stream=stream)
        fails[0] = False
        graph.replay(stream=stream)
        driver.synchronize()
        assert holds(x, 3)
    assert raised.value is mine


def test_a_break_that_raises_stops_the_replay_there_and_the_graph_replays_again(sim: Any, xp: Any) -> None:
    x, fails = zeros(xp), [False]

    def misbehaving(a: Any) -> Any:
        if fails[0]:
            raise ValueError("at replay")
        return a * 2

    with bg.capture() as graph:
        y = bg.break_here(misbehaving, bg.INFER, x + 1)
        out = bg.break_here(lambda a: a * 3, bg.INFER, y + 1) + 1
    fails[0] = True
    start = len(sim.log)
    with pytest.raises(ValueError, match="at replay") as raised:
        graph.replay()
    assert steps_of(sim, start) == ["segment"]
    assert any("misbehaving" in note for note in raised.value.__notes__)
    assert graph.captured
    assert graph.state == "captured"
    assert graph.replays == 0
    assert bg.current_stream() is None
    fails[0] = False
    refill(x, 4)
    graph.replay()
    assert holds(out, 34)
    assert graph.replays == 1


# --- taking down (C27) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "drop", "close twice", "reset then close", "with an exec open"])
def test_every_exec_is_destroyed_exactly_once(sim: Any, xp: Any, how: str) -> None:
    graph, out = three_segments(xp, zeros(xp))
    made = sim.calls["graph_exec_destroy"], sim.calls["graph_destroy"]
    execs, graphs = live(sim, "graph_exec"), live(sim, "graph")
    assert execs == 3
    graph.replay()
    if how == "drop":
        del graph
        gc.collect()
    else:
        for step in {"close twice": ["close", "close"], "reset then close": ["reset", "close"]}.get(how, ["close"]):
            getattr(graph, step)() if how != "reset" else graph.reset()
    assert live(sim, "graph_exec") == 0
    assert live(sim, "graph") == 0
    assert sim.calls["graph_exec_destroy"] - made[0] == execs
    assert sim.calls["graph_destroy"] - made[1] == graphs
    assert holds(out, expected(0)), "the output outlives the graph"


def test_a_closed_graph_says_so(driver: Any, xp: Any) -> None:
    graph, _ = three_segments(xp, zeros(xp))
    graph.close()
    assert (graph.state, graph.captured, graph.steps) == ("closed", False, ())
    with pytest.raises(CaptureStateError, match="closed"):
        graph.replay()
    with pytest.raises(CaptureStateError, match="closed"):
        graph.reset()


@every_schedule
def test_closing_right_after_a_replay_lets_the_replay_finish(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    refill(x, 2)
    graph, out = three_segments(xp, x)
    refill(x, 3)
    graph.replay()
    graph.close()
    assert holds(out, expected(3))


@pytest.mark.parametrize("order", list(itertools.permutations(["graph", "arena", "stream", "arrays"])), ids="-".join)
def test_graph_arena_stream_and_arrays_may_die_in_any_order(driver: Any, xp: Any, order: tuple[str, ...]) -> None:
    arena, stream = bg.Arena(), driver.create_stream()
    x = zeros(xp)
    graph, out = three_segments(xp, x, arena=arena, stream=stream)
    graph.replay()
    kept = {"graph": graph, "arena": arena, "stream": stream, "arrays": (x, out)}
    del graph, arena, stream, x, out
    for name in order:
        del kept[name]
        gc.collect()
    if driver.name == "sim":
        assert live(driver, "graph_exec") == 0


def test_a_graph_in_a_reference_cycle_is_destroyed_too(sim: Any, xp: Any) -> None:
    graph, _ = three_segments(xp, zeros(xp))
    holder = {"graph": graph}
    holder["self"] = holder
    graph.keep(holder)
    del graph, holder
    gc.collect()
    assert live(sim, "graph_exec") == 0


def test_a_graph_collected_inside_another_capture_does_not_harm_it(driver: Any, xp: Any) -> None:
    """Destroying an exec in a capture invalidates it, unless the mode is exchanged first (C8)."""
    x = zeros(xp)
    dropped, _ = three_segments(xp, x)
    with bg.capture() as graph:
        y = x + 1
        del dropped, _
        gc.collect()
        out = y + 1
    assert graph.captured
    assert holds(out, 2)


def test_what_is_kept_lives_as_long_as_the_capture(driver: Any, xp: Any) -> None:
    class Module:
        pass

    import weakref

    module = Module()
    alive = weakref.ref(module)
    graph, _ = three_segments(xp, zeros(xp))
    graph.keep(module)
    del module
    gc.collect()
    assert alive() is not None
    graph.reset()
    gc.collect()
    assert alive() is None


@pytest.mark.keeps_handles
def test_abandoning_forgets_handles_without_a_driver_call(sim: Any, xp: Any) -> None:
    graph, _ = three_segments(xp, zeros(xp))
    calls = sum(sim.calls.values())
    graph.abandon()
    assert (graph.state, graph.steps) == ("empty", ())
    graph.close()
    del graph
    gc.collect()
    assert sum(sim.calls.values()) == calls
    assert live(sim, "graph_exec") == 3


def test_two_graphs_do_not_share_execs_and_one_may_go_first(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    first, _ = three_segments(xp, x)
    second, second_out = three_segments(xp, x)
    first.close()
    refill(x, 6)
    second.replay()
    assert holds(second_out, expected(6))
    assert not {segment.exec for segment in second.segments} & {segment.exec for segment in first.segments}


PROGRAM = """
    import numpy as np, os, sys
    import breakgraph as bg
    driver = bg.driver.current()
    xp = bg.array_namespace()
    x = xp.zeros(4, np.float32)
    with bg.capture() as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1) + 1
    graph.replay()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_child_touches_nothing_of_its_parent() -> None:
    done = child(
        PROGRAM
        + """
    calls = sum(driver.calls.values())
    pid = os.fork()
    if pid == 0:
        graph.close()
        del graph, y, x
        import gc; gc.collect()
        after = sum(driver.calls.values())
        os._exit(0 if after == calls else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    graph.replay()
    assert y.get().tolist() == [3.0] * 4
    print("parent replays on")
"""
    )
    assert done.stdout.split("\n")[0] == "parent replays on", done.stderr


def test_interpreter_shutdown_makes_no_driver_call() -> None:
    done = child(
        PROGRAM
        + """
    import atexit
    kinds = [k for k in driver.calls if "destroy" in k or "free" in k or "unmap" in k or "release" in k]
    class Last:
        def __del__(self):
            os.write(1, b"last\\n")
    sys.modules["zzz_last"] = Last()
    holder = [graph, y, x, bg.Arena(), driver.create_stream()]
    holder.append(holder)
    seen = type(driver).graph_exec_destroy
    def destroyed(self, handle):
        os.write(1, b"destroyed\\n")
        return seen(self, handle)
    type(driver).graph_exec_destroy = destroyed
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "destroyed" not in done.stdout


# --- contexts (C31) -------------------------------------------------------------------------------------------


def test_without_a_current_context_the_primary_one_is_made_current(sim: Any, xp: Any) -> None:
    results = []

    def other() -> None:
        assert sim.ctx_get_current() == 0
        x = zeros(xp)
        graph, out = three_segments(xp, x)
        results.append((sim.ctx_get_current(), holds(out, expected(0))))
        graph.close()

    zeros(xp)
    primary = sim.ctx_get_current()
    assert primary != 0
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    assert results == [(primary, True)]


def test_a_graph_replays_and_dies_in_the_context_it_remembers(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    graph, out = three_segments(xp, x)
    home = sim.ctx_get_current()
    stream = sim.create_stream()
    away = sim.ctx_create(0)
    assert sim.ctx_get_current() == away != home
    graph.replay(stream=stream)
    assert sim.ctx_get_current() == away
    graph.close()
    assert sim.ctx_get_current() == away
    sim.ctx_pop_current()
    assert sim.ctx_get_current() == home
    sim.stream_synchronize(int(stream))
    assert holds(out, expected(0))
    sim.ctx_destroy(away)


def test_a_failed_replay_in_a_foreign_context_leaves_the_callers_context(sim: Any, xp: Any) -> None:
    fails = [False]

    def work(a: Any) -> Any:
        if fails[0]:
            raise ValueError("planned")
        return a

    with bg.capture() as graph:
        bg.break_here(work, bg.INFER, zeros(xp) + 1)
    home, stream = sim.ctx_get_current(), sim.create_stream()
    fails[0] = True
    away = sim.ctx_create(0)
    with pytest.raises(ValueError, match="planned"):
        graph.replay(stream=stream)
    assert sim.ctx_get_current() == away
    assert sim.ctx_pop_current() == away
    assert sim.ctx_get_current() == home
    sim.ctx_destroy(away)


@pytest.mark.keeps_handles
def test_a_graph_whose_context_is_gone_can_be_abandoned(sim: Any, xp: Any) -> None:
    home = sim.ctx_get_current()
    away = sim.ctx_create(0)
    with bg.capture(frameworks=(), arena=bg.Arena()) as graph:
        ptr = int(bg.current_stream())
        sim.launch(ptr, lambda: None)
        bg.break_graph()
    sim.ctx_pop_current()
    sim.ctx_destroy(away)
    graph.abandon()
    assert graph.state == "empty"
    assert sim.ctx_get_current() == home


def test_an_unknown_stream_is_an_error_of_the_driver_and_leaves_the_graph_good(driver: Any, xp: Any) -> None:
    if driver.name == "cuda":
        pytest.skip("a handle that never was crashes the real driver")
    x = zeros(xp)
    graph, out = three_segments(xp, x)
    with pytest.raises(BreakgraphError):
        graph.replay(stream=0x7777)
    refill(x, 1)
    graph.replay()
    assert holds(out, expected(1))


def test_a_replay_inside_a_captures_break_has_its_own_current_stream(driver: Any, xp: Any) -> None:
    x, stream, seen = zeros(xp), driver.create_stream(), []
    with bg.capture(arena=bg.Arena()) as inner:
        bg.break_here(lambda a: seen.append(bg.current_stream()), bg.IN_PLACE, x + 1)
    driver.synchronize()
    with bg.capture() as outer:
        y = x + 1
        bg.break_here(lambda a: inner.replay(stream=stream), bg.IN_PLACE, y)
        assert bg.current_stream() == outer.capture_stream
    assert seen[1] == stream
    driver.synchronize()


def test_an_abandon_that_is_refused_forgets_nothing(driver: Any, xp: Any) -> None:
    x, refused = zeros(xp), []

    def work(a: Any) -> None:
        if graph.captured:
            with pytest.raises(bg.errors.CaptureStateError):
                graph.abandon()
            refused.append(True)

    with bg.capture() as graph:
        bg.break_here(work, bg.IN_PLACE, x + 1)
    graph.replay()
    assert refused
    graph.close()
    if driver.name == "sim":
        assert not driver.live()["graph_exec"]
