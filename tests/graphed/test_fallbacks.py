"""Where no graph can serve, the function itself does, and a person is told once.

Proves that it runs in the function's place, exactly once and without a driver call for capture, where capture is
switched off or impossible, where a capture is refused before anything of the function has run, where there are as many
graphs as there may be, and inside other captures; that ``fallback=`` decides whether that is told or refused; and that
inside a break it never nests what must not be nested.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphed_support import Forward, batch, same
from support import child, every_schedule, floats, holds, nothing_captured, on_stream, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphWarning, CaptureStateError

UNKNOWN = 999


class Counted:
    """x + 1, counting how often it runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, x: Any, value: Any = None) -> Any:
        self.runs += 1
        return x + 1


# --- capture is off ---------------------------------------------------------------------------------------------


def test_a_driver_that_cannot_capture_runs_the_function_with_one_warning(
    sim: Any, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim, "can_capture", False)
    forward, x = Counted(), zeros(xp)
    service = bg.graphed(forward, fallback="refuse")
    with pytest.warns(BreakgraphWarning, match="the driver cannot capture"):
        assert holds(service(x), 1)
    assert holds(service(x), 1)
    assert forward.runs == 2
    assert service.stats.fallbacks == {"inert": 2}
    assert not sim.calls["stream_begin_capture"]
    assert service.precapture(x) == 0
    assert forward.runs == 2, "precapture has nothing to capture, and runs nothing"


def test_the_kill_switch_keeps_a_service_serving() -> None:
    done = child(
        """
        import warnings
        import numpy as np
        import breakgraph as bg

        xp = bg.array_namespace()
        seen = []

        @bg.graphed(buckets=[4, 8])
        def double(x):
            seen.append(int(bg.current_stream()))
            return bg.break_here(lambda a: a * 2, bg.INFER, x)

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for rows in (3, 5, 20):
                assert double(xp.ones(rows, np.float32)).get().tolist() == [2] * rows
        calls = bg.driver.current().calls
        print(len(told), len(seen), calls["stream_begin_capture"], dict(double.stats.fallbacks), double.graphs)
        print(told[0].message)

        again = bg.graphed(lambda x: x * 2, buckets=[4])
        with warnings.catch_warnings(record=True) as early:
            again.precapture(xp.ones(3, np.float32))
        print({warning.filename for warning in told + early})
        """,
        BREAKGRAPH_DISABLE="1",
    )
    assert done.returncode == 0, done.stderr
    counts, message, files = done.stdout.splitlines()
    assert files == "{'<string>'}", "both warnings are about the program's lines"
    assert counts == "1 3 0 {<Fallback.INERT: 'inert'>: 3} ()"
    assert message.startswith("double runs without a graph: capture is switched off (BREAKGRAPH_DISABLE)")


# --- refused before anything of it ran --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code"), [("stream_begin_capture", UNKNOWN), ("stream_begin_capture", 900), ("mem_create", 2)]
)
def test_a_capture_that_the_driver_does_not_begin_is_the_function_itself(
    sim: Any, xp: Any, call: str, code: int
) -> None:
    forward, x = Counted(), floats(xp, 1, 2)
    service = bg.graphed(forward)
    told = pytest.warns(BreakgraphWarning, match=f"its capture was refused: ({call}|an arena could not grow)")
    with told, sim.fail(call, at=1, code=code) as plan:
        y = service(x)
    assert plan.struck
    assert y.get().tolist() == [2, 3]
    assert forward.runs == 1
    assert service.stats.fallbacks == {"refused": 1}
    assert service(x).get().tolist() == [2, 3]
    assert service.stats.captures == 1, "the next call tries again"


def test_a_sleeping_arena_is_the_function_itself_until_it_wakes(driver: Any, xp: Any) -> None:
    forward = Forward(xp)
    eager, service = Forward(xp), bg.graphed(forward, buckets=[4, 8])
    service(batch(xp, 3))
    service.arena.sleep()
    x = batch(xp, 4)
    with pytest.warns(BreakgraphWarning, match="its arena cannot be had: a sleeping arena"):
        y = service(x)
    assert same(y, eager(x))
    assert same(service(batch(xp, 8)), eager(batch(xp, 8)))
    service.arena.wake()
    for rows in (4, 8):
        assert same(service(batch(xp, rows, 1)), eager(batch(xp, rows, 1)))
    assert service.stats.fallbacks == {"refused": 2}
    assert (service.stats.captures, service.stats.hits) == (2, 1)


def test_an_arena_of_another_context_is_refused(sim: Any, xp: Any) -> None:
    service = bg.graphed(Counted(), arena=bg.Arena())
    context = sim.ctx_create(0)
    with pytest.raises(CaptureStateError, match="another driver or context than its arena's"):
        service(zeros(xp))
    sim.synchronize()
    sim.ctx_pop_current()
    sim.ctx_destroy(context)


# --- as many graphs as there may be -----------------------------------------------------------------------------


def test_what_would_be_one_graph_too_many_is_the_function_itself(driver: Any, xp: Any) -> None:
    forward, x = Counted(), zeros(xp)
    service = bg.graphed(forward, max_graphs=2)
    service(x, 0)
    service(x, 1)
    with pytest.warns(BreakgraphWarning, match="there are 2 graphs, as many as max_graphs allows"):
        assert holds(service(x, 2), 1)
    for value in (0, 1, 2, 3):
        assert holds(service(x, value), 1)
    assert (service.stats.captures, service.stats.hits, service.stats.fallbacks) == (2, 2, {"full": 3})
    service.reset()
    service(x, 2)
    assert service.stats.captures == 3


def test_a_closed_one_is_the_function_itself(driver: Any, xp: Any) -> None:
    forward = Counted()
    service = bg.graphed(forward)
    service(zeros(xp))
    service.close()
    service.close()
    assert service.graphs == ()
    with pytest.warns(BreakgraphWarning, match="it was closed"):
        assert holds(service(zeros(xp)), 1)
    assert forward.runs == 2


@pytest.mark.parametrize("policy", ["allow", "refuse"])
def test_falling_back_may_be_allowed_or_refused(driver: Any, xp: Any, policy: Any) -> None:
    forward = Counted()
    service = bg.graphed(forward, buckets=[4], fallback=policy)
    assert holds(service(zeros(xp, 4)), 1)
    if policy == "allow":
        assert holds(service(zeros(xp, 5)), 1)
    else:
        with pytest.raises(CaptureStateError, match=r"5 rows are more(.|\n)*fallback='refuse'"):
            service(zeros(xp, 5))
    assert forward.runs == 1 + (policy == "allow")
    assert service.stats.fallbacks == {"larger": 1}


# --- inside other captures --------------------------------------------------------------------------------------


@every_schedule
def test_in_a_segment_it_becomes_a_part_of_that_capture(driver: Any, xp: Any) -> None:
    forward, eager, x = Forward(xp), Forward(xp), batch(xp, 3)
    service = bg.graphed(forward, buckets=[4])
    service(x)
    with bg.capture() as graph:
        out = service(x + 1) + 1
    assert len(graph.breaks) == 1
    x.set(batch(xp, 3, 1).get())
    graph.replay()
    assert same(out, eager(x + 1) + 1)
    assert service.stats.fallbacks == {"inside": 1}


def test_one_graphed_function_may_call_another(driver: Any, xp: Any) -> None:
    inner = bg.graphed(lambda x: x * 2)
    outer = bg.graphed(lambda x: inner(x + 1) + 1, buckets=[4])
    for value in (1, 2, 3):
        assert holds(outer(floats(xp, value)), (value + 1) * 2 + 1)
    assert (outer.stats.captures, outer.stats.hits) == (1, 2)
    assert inner.stats.fallbacks == {"inside": 1}
    assert not inner.graphs


@every_schedule
def test_in_a_break_it_has_graphs_of_its_own_once_it_may_capture(driver: Any, xp: Any) -> None:
    """At capture of the outer one nothing else may be captured in this thread (C4); at its replays it may."""
    inner_forward = Forward(xp)
    eager, inner = Forward(xp), bg.graphed(inner_forward, buckets=[4, 8])
    outer = bg.graphed(lambda x: bg.break_here(inner, bg.INFER, x + 1) * 3, buckets=[8])
    for seed, rows in enumerate((5, 6, 7, 3)):
        x = batch(xp, rows, seed)
        padded = xp.asarray(np.concatenate([(x + 1).get(), np.ones((8 - rows, 16), np.float32)]))
        assert same(outer(x), eager(padded)[:rows] * 3)
    assert inner.stats.fallbacks == {"inside": 1}
    assert (inner.stats.captures, inner.stats.hits) == (1, 2)


@nothing_captured
def test_in_a_break_of_its_own_it_is_a_plain_call(driver: Any, xp: Any) -> None:
    depth = []

    def forward(x: Any, levels: int) -> Any:
        depth.append(levels)
        if not levels:
            return x + 1
        return bg.break_here(lambda a: service(a, levels - 1) * 2, bg.INFER, x + 0)

    service = bg.graphed(forward)
    for value in (1, 2, 3):
        assert holds(service(floats(xp, value), 2), (value + 1) * 4)
    assert (service.stats.captures, service.stats.hits, service.stats.fallbacks) == (1, 2, {"inside": 6})


def test_two_of_one_arena_do_not_nest(driver: Any, xp: Any) -> None:
    arena = bg.Arena()
    inner = bg.graphed(lambda x: x * 2, arena=arena)
    outer = bg.graphed(lambda x: bg.break_here(inner, bg.INFER, x + 1) + 1, arena=arena)
    inner(zeros(xp))
    for value in (1, 2):
        assert holds(outer(floats(xp, value)), (value + 1) * 2 + 1)
    assert inner.stats.fallbacks == {"inside": 2}
    assert holds(inner(floats(xp, 3)), 6)


def test_on_a_stream_that_captures_for_someone_else_it_becomes_a_part_of_that(driver: Any, xp: Any) -> None:
    """Nothing may wait for an event from outside there (905), so not even the arena is asked for."""
    service, x, out, stream = bg.graphed(lambda x: np.add(x, 1, out=out)), zeros(xp), zeros(xp), driver.create_stream()
    service(x)
    driver.synchronize()
    with on_stream(x, stream):
        driver.stream_begin_capture(int(stream), bg.driver.api.CaptureMode.THREAD_LOCAL)
        service(x)
        graph = driver.stream_end_capture(int(stream))
    assert driver.graph_get_node_count(graph) == 1
    driver.graph_destroy(graph)
    assert service.stats.fallbacks == {"inside": 1}
