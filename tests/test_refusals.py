"""What the library refuses, and that every refusal and failure leaves the thread, the stream and the driver usable.

Proves C1's refusals, C2, C4 to C9, C20, C21 and C24's refusals. Each case also asserts the state after it and
that the next capture in the same thread is good.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import thread_mode
from support import assert_failed_clean, assert_next_capture_works, child, holds, live, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.driver.api import CaptureMode, CaptureStatus
from breakgraph.errors import BreakgraphError, CaptureFailed, CaptureStateError, DriverError


def in_thread(work: Callable[[], Any]) -> Any:
    """Run work in another thread to its end; its result, or its exception raised here."""
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            box["result"] = work()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the other thread hangs"
    if "error" in box:
        raise box["error"]
    return box.get("result")


# --- nesting and re-entry (C4) --------------------------------------------------------------------------------


def test_a_nested_capture_is_refused_without_a_driver_call_and_the_outer_one_is_good(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as outer:
        y = x + 1
        calls = sum(sim.calls.values())
        with pytest.raises(CaptureStateError), bg.capture():
            pytest.fail("the body of a refused capture ran")
        assert sum(sim.calls.values()) == calls
        y = y + 1
    assert outer.state == "captured"
    refill(x, 5)
    outer.replay()
    assert holds(y, 7)


def test_a_nested_capture_that_nobody_catches_fails_the_outer_one(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with pytest.raises(CaptureStateError), bg.capture() as outer:
        x + 1
        with bg.capture():
            pass
    assert_failed_clean(outer, driver)
    assert_next_capture_works(xp)


def test_a_capture_inside_a_break_is_refused_and_the_outer_one_goes_on(driver: Any, xp: Any) -> None:
    """A break is inside the outer capture's scope: one thread has one capture (C4)."""
    x, refused = zeros(xp), []

    def work(a: Any) -> Any:
        try:
            with bg.capture():
                pass
        except CaptureStateError as error:
            refused.append(error)
        return a + 1

    with bg.capture() as outer:
        y = bg.break_here(work, bg.INFER, x + 1) + 1
    assert len(refused) == 1
    assert outer.state == "captured"
    assert holds(y, 3)


def test_a_graph_that_holds_a_capture_refuses_another_until_it_is_reset(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        y = x + 1
    graph.replay()
    with pytest.raises(CaptureStateError), bg.capture(graph):
        pytest.fail("the body of a refused capture ran")
    assert graph.state == "captured"
    refill(x, 4)
    graph.replay()
    assert holds(y, 5)
    assert graph.replays == 2
    graph.reset()
    assert (graph.state, graph.replays, len(graph.steps), graph.captured) == ("empty", 0, 0, False)
    with bg.capture(graph) as again:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
    assert again is graph
    assert graph.captured
    assert len(graph.breaks) == 1
    assert graph.replays == 0
    graph.replay()
    assert holds(y, 10)


@pytest.mark.parametrize("state", ["failed", "closed"])
def test_a_graph_that_failed_or_was_closed_says_so_when_it_is_captured_into(driver: Any, xp: Any, state: str) -> None:
    """Read from C4: a failed graph holds no capture, so it may be used again; a closed one may not."""
    x, graph = zeros(xp), bg.BreakableGraph()
    if state == "closed":
        graph.close()
        with pytest.raises(CaptureStateError), bg.capture(graph):
            pytest.fail("the body of a refused capture ran")
        return
    with pytest.raises(KeyError), bg.capture(graph):
        raise KeyError
    assert graph.state == "failed"
    graph.reset()
    assert graph.state == "empty"
    assert graph.error is None
    with bg.capture(graph):
        x + 1
    assert graph.captured


def test_captures_in_two_threads_do_not_see_each_other(driver: Any, xp: Any) -> None:
    """Each on an arena of its own: by default each thread has one (C25)."""
    both_capturing = threading.Barrier(2, timeout=20)
    context = driver.ctx_get_current()

    def capture(n: int) -> tuple[Any, Any, Any]:
        driver.ctx_set_current(context)
        x = zeros(xp)
        assert not bg.is_capturing()
        with bg.capture() as graph:
            both_capturing.wait()
            y = bg.break_here(lambda a: a * 2, bg.INFER, x + n)
            both_capturing.wait()
            z = y + 1
        assert not bg.is_capturing()
        refill(x, 10)
        graph.replay()
        assert holds(z, 2 * (10 + n) + 1)
        return graph, x, z

    kept: list[Any] = []
    other = threading.Thread(target=lambda: kept.append(capture(5)))
    other.start()
    kept.append(capture(1))
    other.join(30)
    assert len(kept) == 2
    for graph, *_ in kept:
        graph.close()


def test_a_thread_that_is_not_capturing_sees_no_capture(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        x + 1
        assert bg.is_capturing()
        assert in_thread(bg.is_capturing) is False
        assert in_thread(bg.current_stream) is None
    assert graph.captured


# --- exceptions that leave the scope (C5) ---------------------------------------------------------------------


class Stop(BaseException):
    """Not an Exception, as KeyboardInterrupt and SystemExit are not."""


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, Stop])
@pytest.mark.parametrize("where", ["first segment", "break", "second segment", "with the collector switched on"])
def test_an_exception_drains_the_scope_and_propagates_unmasked(
    driver: Any, xp: Any, kind: type[BaseException], where: str
) -> None:
    x, original, graph = zeros(xp), kind("original"), bg.BreakableGraph()

    def work(a: Any) -> Any:
        if where == "break":
            raise original
        return a * 2

    with pytest.raises(kind) as raised, bg.capture(graph):
        y = x + 1
        if where == "first segment":
            raise original
        y = bg.break_here(work, bg.INFER, y)
        if where == "with the collector switched on":
            gc.enable()
        y + 1
        raise original
    assert raised.value is original
    assert graph.error is original
    assert_failed_clean(graph, driver)
    assert gc.isenabled()
    assert thread_mode(driver) == CaptureMode.GLOBAL
    assert_next_capture_works(xp)


def test_a_break_that_raises_at_capture_is_named(driver: Any, xp: Any) -> None:
    def misbehaving(a: Any) -> Any:
        raise ValueError("original")

    with pytest.raises(ValueError, match="original") as raised, bg.capture():
        bg.break_here(misbehaving, bg.INFER, zeros(xp))
    assert any("misbehaving" in note for note in raised.value.__notes__)


def test_a_scope_opened_inside_an_except_is_not_mistaken_for_a_failed_one(driver: Any, xp: Any) -> None:
    """The exception being handled outside is not the scope's: sys.exc_info() would say it is."""
    x = zeros(xp)
    try:
        raise LookupError("handled")
    except LookupError:
        with bg.capture() as graph:
            y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        assert graph.captured
        assert graph.error is None
        with pytest.raises(ValueError, match="body") as raised, bg.capture() as failed:
            x + 1
            raise ValueError("body")  # noqa: B904 - the implicit context is the point
    assert isinstance(raised.value.__context__, LookupError)
    assert_failed_clean(failed, driver, others=graph)
    refill(x, 1)
    graph.replay()
    assert holds(y, 4)


def test_an_exception_raised_and_handled_inside_the_body_is_nobodys_business(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        y = x + 1
        try:
            raise LookupError
        except LookupError:
            y = bg.break_here(lambda a: a * 2, bg.INFER, y)
    assert graph.captured
    assert holds(y, 2)


@pytest.mark.parametrize("at", [1, 2], ids=["the first end fails", "the last end fails"])
def test_an_end_that_fails_leaves_a_failed_graph(sim: Any, xp: Any, at: int) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(BreakgraphError) as raised, sim.fail("stream_end_capture", at=at, code=999), bg.capture(graph):
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        y + 1
    chain = [raised.value, raised.value.__cause__]
    assert any(isinstance(one, DriverError) and one.code == 999 for one in chain)
    assert_failed_clean(graph, sim)
    assert_next_capture_works(xp)


def test_a_body_that_raises_while_the_end_fails_too_still_raises_its_own_exception(sim: Any, xp: Any) -> None:
    graph = bg.BreakableGraph()
    with (
        pytest.raises(ValueError, match="body"),
        sim.fail("stream_end_capture", at=1, code=999),
        bg.capture(graph),
    ):
        zeros(xp) + 1
        raise ValueError("body")
    assert_failed_clean(graph, sim)
    assert_next_capture_works(xp)


def test_a_cleanup_call_that_fails_once_is_retried(sim: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()
    with (
        pytest.raises(ValueError, match="body"),
        sim.fail("graph_exec_destroy", at=1, code=999),
        bg.capture(graph),
    ):
        bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        raise ValueError("body")
    assert_failed_clean(graph, sim)
    assert_next_capture_works(xp)


@pytest.mark.keeps_handles
def test_a_cleanup_call_that_fails_twice_is_named_with_its_handle_and_left(sim: Any, xp: Any) -> None:
    x, graph, handles = zeros(xp), bg.BreakableGraph(), []
    with (
        pytest.raises(ValueError, match="body") as raised,
        sim.fail("graph_exec_destroy", at=1, code=999),
        sim.fail("graph_exec_destroy", at=2, code=999),
        bg.capture(graph),
    ):
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        bg.break_here(lambda a: a * 2, bg.INFER, y + 1)
        handles = list(sim.live()["graph_exec"])
        raise ValueError("body")
    left = list(sim.live()["graph_exec"])
    assert len(left) == 1, "the others are destroyed all the same"
    assert left[0] in handles
    told = "\n".join([str(raised.value), *raised.value.__notes__])
    assert "graph_exec_destroy" in told
    assert str(left[0]) in told or hex(left[0]) in told
    assert graph.state == "failed"
    assert_next_capture_works(xp)


def test_failed_inert_and_clean_are_three_different_states(sim: Any, xp: Any, monkeypatch: Any) -> None:
    x, failed = zeros(xp), bg.BreakableGraph()
    with bg.capture() as clean:
        x + 1
    with pytest.raises(ValueError, match="planned"), bg.capture(failed):
        raise ValueError("planned")
    monkeypatch.setattr(sim, "can_capture", False)
    with bg.capture() as inert:
        x + 1
    assert [graph.state for graph in (clean, failed, inert)] == ["captured", "failed", "inert"]
    assert [graph.captured for graph in (clean, failed, inert)] == [True, False, False]
    assert [graph.error is None for graph in (clean, failed, inert)] == [True, False, True]


def test_the_garbage_collector_is_off_while_a_capture_is_open_and_restored_after(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    for before in (True, False):
        (gc.enable if before else gc.disable)()
        try:
            with bg.capture():
                x + 1
                assert not gc.isenabled()
            assert gc.isenabled() == before
        finally:
            gc.enable()


def test_the_collector_stays_off_until_the_last_of_two_captures_closes(driver: Any, xp: Any) -> None:
    x, first_open, may_close = zeros(xp), threading.Event(), threading.Event()
    context = driver.ctx_get_current()

    def other() -> None:
        driver.ctx_set_current(context)
        with bg.capture() as graph:
            first_open.set()
            may_close.wait(20)
            zeros_like = x + 1
        del zeros_like
        graph.close()

    thread = threading.Thread(target=other)
    thread.start()
    assert first_open.wait(20)
    with bg.capture():
        x + 1
    closed_one = gc.isenabled()
    may_close.set()
    thread.join(30)
    assert not closed_one
    assert gc.isenabled()


def test_closing_a_capture_from_another_thread_is_refused_and_leaves_nothing_open(driver: Any, xp: Any) -> None:
    """The scope belongs to its thread (C5: wrong thread). The stream is usable afterwards."""
    x = zeros(xp)
    scope = bg.capture()
    graph = scope.__enter__()
    x + 1
    with pytest.raises(BreakgraphError):
        in_thread(lambda: scope.__exit__(None, None, None))
    try:
        scope.__exit__(None, None, None)
    except BreakgraphError:
        assert graph.state == "failed"
    else:
        assert graph.state == "captured"
    assert not bg.is_capturing()
    assert driver.stream_is_capturing(int(graph.capture_stream)) == CaptureStatus.NONE
    graph.close()
    assert_next_capture_works(xp)


# --- exceptions that the body swallows (C6) -------------------------------------------------------------------


def test_a_break_whose_error_is_swallowed_poisons_the_capture(driver: Any, xp: Any) -> None:
    x, graph, after = zeros(xp), bg.BreakableGraph(), []

    def misbehaving(a: Any) -> Any:
        raise ValueError("original")

    with pytest.raises(CaptureFailed) as raised, bg.capture(graph):
        y = x + 1
        with contextlib.suppress(ValueError):
            bg.break_here(misbehaving, bg.INFER, y)
        after.append(bg.is_capturing())
        z = bg.break_here(lambda a: a * 2, bg.INFER, x + 5)
        after.append(z.get().tolist())
    assert isinstance(raised.value.__cause__, ValueError)
    assert after == [False, [10.0] * 4], "the rest of the body runs eagerly"
    assert graph.error is not None
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_a_landing_whose_error_is_swallowed_poisons_the_capture(driver: Any, xp: Any) -> None:
    x, dst, graph = zeros(xp), zeros(xp), bg.BreakableGraph()
    with pytest.raises(CaptureFailed) as raised, bg.capture(graph), contextlib.suppress(bg.errors.NotCopyable):
        bg.break_here(lambda a: "text", dst, x)
    assert isinstance(raised.value.__cause__, bg.errors.NotCopyable)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_a_driver_error_that_is_swallowed_poisons_the_capture(driver: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(CaptureFailed), bg.capture(graph):
        x + 1
        with contextlib.suppress(DriverError):
            driver.stream_synchronize(int(bg.current_stream()))
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_an_invalidated_segment_poisons_the_capture_at_the_next_break(driver: Any, xp: Any) -> None:
    """The break still runs, eagerly: only the scope's end can refuse."""
    x, graph, values = zeros(xp), bg.BreakableGraph(), []
    with pytest.raises(BreakgraphError) as raised, bg.capture(graph):
        y = x + 1
        with contextlib.suppress(DriverError):
            driver.stream_query(int(bg.current_stream()))
        bg.break_here(lambda a: values.append(1), bg.IN_PLACE, y)
    assert "segment" in str(raised.value) + str(raised.value.__cause__)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_the_count_of_segments_and_breaks_is_checked_again_at_replay(driver: Any, xp: Any) -> None:
    """C2. The mistake is planted: no program can remove a segment through the public names."""
    with bg.capture() as graph:
        bg.break_here(lambda a: a, bg.INFER, zeros(xp) + 1)
    assert len(graph.segments) == len(graph.breaks) + 1
    lost = graph._holdings.steps.pop()
    with pytest.raises(BreakgraphError, match="segment"):
        graph.replay()
    graph._holdings.steps.append(lost)
    graph.replay()


# --- the kill switch and drivers that cannot capture (C7) -----------------------------------------------------

INERT_BODY = """
    import numpy as np
    import breakgraph as bg

    driver = bg.driver.current()
    xp = bg.array_namespace()
    ran = []

    @bg.break_point
    def doubled(a):
        ran.append("doubled")
        return a * 2

    x = xp.zeros(4, np.float32)
    before = dict(driver.calls)
    with bg.capture() as graph:
        assert not bg.is_capturing()
        y = doubled(x + 1)
        bg.break_graph()
        dst = xp.zeros(4, np.float32)
        assert bg.break_here(lambda a: a + 1, dst, y) is dst
    assert graph.state == "inert" and not graph.captured and graph.error is None, graph.state
    assert ran == ["doubled"]
    assert dst.get().tolist() == [3.0] * 4
    forbidden = [name for name, count in driver.calls.items()
                 if count != before.get(name, 0) and name.startswith(("graph", "stream_begin", "stream_end"))]
    assert not forbidden, forbidden
    try:
        graph.replay()
    except bg.errors.CaptureStateError as error:
        assert "inert" in str(error)
        ran.append("refused")
    graph.reset()
    graph.close()
    print("sentinel", *ran)
"""


def test_the_kill_switch_makes_every_capture_inert() -> None:
    done = child(INERT_BODY, BREAKGRAPH_DISABLE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["sentinel", "doubled", "refused"]


def test_without_the_kill_switch_the_same_child_captures() -> None:
    done = child(INERT_BODY)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


@pytest.mark.parametrize("value", ["", "0"])
def test_the_kill_switch_is_off_when_it_is_empty_or_zero(value: str) -> None:
    done = child(
        "import breakgraph as bg\nwith bg.capture() as g: bg.array_namespace().zeros(4) + 1\nprint(g.state)",
        BREAKGRAPH_DISABLE=value,
    )
    assert done.stdout.split() == ["captured"], done.stderr


def test_the_kill_switch_is_read_once() -> None:
    done = child(
        """
        import os
        import breakgraph as bg
        xp = bg.array_namespace()
        with bg.capture() as first: xp.zeros(4) + 1
        os.environ["BREAKGRAPH_DISABLE"] = "1"
        with bg.capture() as second: xp.zeros(4) + 1
        print(first.state, second.state)
        """
    )
    assert done.stdout.split() == ["captured", "captured"], done.stderr


def test_the_suite_passes_with_the_kill_switch_inherited_and_says_that_it_cleared_it() -> None:
    done = child(
        """
        import sys, pytest
        sys.exit(pytest.main(["-p", "no:cacheprovider", "tests/test_chains.py", "-k", "one_log_shows"]))
        """,
        BREAKGRAPH_DISABLE="1",
    )
    assert done.returncode == 0, done.stdout
    assert "BREAKGRAPH_DISABLE=1 is cleared here" in done.stdout
    assert "1 passed" in done.stdout


def test_on_a_driver_that_cannot_capture_every_graph_is_inert_and_no_capture_call_is_made(
    sim: Any, xp: Any, monkeypatch: Any
) -> None:
    x = zeros(xp)
    monkeypatch.setattr(sim, "can_capture", False)
    before = dict(sim.calls)
    with bg.capture() as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1) + 1
    assert graph.state == "inert"
    changed = {name for name, count in sim.calls.items() if count != before.get(name, 0)}
    assert not [name for name in changed if name.startswith(("graph", "stream_begin", "stream_end"))]
    assert holds(y, 3)
    with pytest.raises(CaptureStateError):
        graph.replay()


# --- plain calls (C20) ----------------------------------------------------------------------------------------


def test_a_break_point_outside_a_capture_makes_no_call_of_its_own(sim: Any, xp: Any) -> None:
    x, ran = zeros(xp), []

    @bg.break_point
    def look(a: Any) -> str:
        ran.append(a)
        return "anything at all"

    before = dict(sim.calls)
    assert look(x) == "anything at all"
    assert bg.break_graph() is None
    assert dict(sim.calls) == before
    assert ran == [x]


def test_a_destination_named_outside_a_capture_is_landed_in_and_returned(driver: Any, xp: Any) -> None:
    x, dst = zeros(xp), zeros(xp)
    assert bg.break_here(lambda a: a + 3, dst, x) is dst
    assert holds(dst, 3)

    @bg.break_point(dst=dst)
    def plus_four(a: Any) -> Any:
        return a + 4

    assert plus_four(x) is dst
    assert holds(dst, 4)
    with pytest.raises(bg.errors.ShapeMismatch):
        bg.break_here(lambda a: zeros(xp, 9), dst, x)
    assert holds(dst, 4)


def test_without_a_destination_a_plain_call_returns_what_the_function_returned(driver: Any, xp: Any) -> None:
    x, made = zeros(xp), object()
    for dst in (bg.INFER, bg.IN_PLACE, bg.NO_WRITEBACK):
        assert bg.break_here(lambda a: made, dst, x) is made


# --- stub and barrier and coroutines (C21) --------------------------------------------------------------------


def test_a_stub_stands_in_for_the_body_at_capture_only(driver: Any, xp: Any) -> None:
    x, ran = zeros(xp), []

    def stub(a: Any) -> Any:
        ran.append("stub")
        return zeros(xp)

    @bg.break_point(stub=stub)
    def body(a: Any) -> Any:
        ran.append("body")
        return a * 2

    with bg.capture() as graph:
        y = body(x + 1) + 1
    assert holds(y, 1)
    refill(x, 10)
    graph.replay()
    graph.replay()
    assert holds(y, 23)
    assert ran == ["stub", "body", "body"]
    assert holds(body(x), 20), "outside a capture the body runs"


def test_a_barrier_is_called_at_capture_after_the_segment_and_before_the_break(sim: Any, xp: Any) -> None:
    x, log = zeros(xp), []

    def barrier() -> None:
        log.append("barrier")
        assert not bg.is_capturing()
        sim.mark("barrier")

    def named(name: str) -> Callable[[Any], Any]:
        def work(a: Any) -> Any:
            log.append(name)
            return a + 1

        return work

    with bg.capture(barrier=barrier) as graph:
        y = bg.break_here(named("a"), bg.INFER, x + 1)
        bg.break_here(named("b"), bg.INFER, y + 1)
    assert log == ["barrier", "a", "barrier", "b"]
    log.clear()
    graph.replay()
    assert log == ["a", "b"]


def test_a_coroutine_function_is_refused_as_a_break(driver: Any, xp: Any) -> None:
    async def waits(a: Any) -> Any:
        return a

    with pytest.raises(BreakgraphError, match="coroutine"):
        bg.break_point(waits)
    x = zeros(xp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that was made and never awaited would warn
        with pytest.raises(BreakgraphError, match="coroutine"), bg.capture() as graph:
            bg.break_here(waits, bg.INFER, x)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


# --- where a capture may begin (C1) and a replay may run (C24) ------------------------------------------------


def test_capturing_on_a_stream_that_captures_for_someone_else_is_refused_before_it_is_drawn_in(
    driver: Any, xp: Any
) -> None:
    x, theirs = zeros(xp), driver.create_stream()
    driver.stream_begin_capture(int(theirs), CaptureMode.THREAD_LOCAL)
    with pytest.raises(CaptureStateError), bg.capture(stream=theirs):
        pytest.fail("the body of a refused capture ran")
    assert driver.stream_is_capturing(int(theirs)) == CaptureStatus.ACTIVE
    driver.graph_destroy(driver.stream_end_capture(int(theirs)))
    with bg.capture(stream=theirs) as graph:
        x + 1
    assert graph.captured
    assert int(graph.capture_stream) == int(theirs)


def test_entering_from_a_current_stream_that_captures_for_someone_else_is_refused(driver: Any, xp: Any) -> None:
    x, theirs = zeros(xp), driver.create_stream()
    driver.stream_begin_capture(int(theirs), CaptureMode.THREAD_LOCAL)
    with on_stream(x, theirs), pytest.raises(CaptureStateError), bg.capture():
        pytest.fail("the body of a refused capture ran")
    assert driver.stream_is_capturing(int(theirs)) == CaptureStatus.ACTIVE
    driver.graph_destroy(driver.stream_end_capture(int(theirs)))
    assert_next_capture_works(xp)


def test_a_stream_given_by_the_caller_may_be_in_any_mode(driver: Any, xp: Any) -> None:
    for mode in ("thread_local", "global", "relaxed"):
        x, mine = zeros(xp), driver.create_stream()
        with bg.capture(stream=mine, mode=mode) as graph:
            y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        refill(x, 1)
        graph.replay()
        assert holds(y, 4)


@pytest.mark.parametrize("given", [{"mode": "local"}, {"frozen": "maybe"}, {"execute": "yes", "mode": "x"}], ids=str)
def test_options_that_do_not_exist_are_refused_before_a_capture_begins(sim: Any, given: dict[str, Any]) -> None:
    before = sim.calls["stream_begin_capture"]
    with pytest.raises((BreakgraphError, ValueError)), bg.capture(**given):
        pytest.fail("the body of a refused capture ran")
    assert sim.calls["stream_begin_capture"] == before
    assert not bg.is_capturing()


def _refused_replay(driver: Any, graph: Any, **options: Any) -> None:
    launches = driver.calls["graph_launch"] if driver.name == "sim" else 0
    with pytest.raises(CaptureStateError):
        graph.replay(**options)
    if driver.name == "sim":
        assert driver.calls["graph_launch"] == launches


def test_replay_is_refused_before_any_launch_wherever_it_may_not_run(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture() as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
    with bg.capture() as other:
        _refused_replay(driver, graph)  # inside a segment
        x + 1
        bg.break_here(lambda: _refused_replay(driver, graph), bg.IN_PLACE)  # in a break that holds the same arena
    other.replay()

    theirs = driver.create_stream()
    driver.stream_begin_capture(int(theirs), CaptureMode.THREAD_LOCAL)
    _refused_replay(driver, graph, stream=theirs)  # onto a capturing stream
    driver.graph_destroy(driver.stream_end_capture(int(theirs)))

    empty, closed, failed = bg.BreakableGraph(), bg.BreakableGraph(), bg.BreakableGraph()
    closed.close()
    with pytest.raises(ValueError, match="planned"), bg.capture(failed):
        raise ValueError("planned")
    for never in (empty, closed, failed):
        _refused_replay(driver, never)

    assert graph.replays == 0
    refill(x, 10)
    graph.replay()
    assert holds(y, 22)
    assert graph.replays == 1


def test_a_graph_replayed_by_its_own_break_is_refused(driver: Any, xp: Any) -> None:
    x, refused = zeros(xp), []

    def work(a: Any) -> Any:
        if graph.captured:
            with pytest.raises(CaptureStateError) as raised:
                graph.replay()
            refused.append(raised.value)
        return a + 1

    graph = bg.BreakableGraph()
    with bg.capture(graph):
        y = bg.break_here(work, bg.INFER, x + 1)
    graph.replay()
    assert len(refused) == 1
    assert holds(y, 2)


def test_a_break_may_replay_a_graph_that_has_an_arena_of_its_own(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with bg.capture(arena=bg.Arena()) as inner:
        inner_out = x * 3

    def work(a: Any) -> Any:
        inner.replay()
        return a + inner_out

    with bg.capture() as outer:
        y = bg.break_here(work, bg.INFER, x + 1)
    refill(x, 10)
    outer.replay()
    assert holds(y, 41)


def test_one_graph_from_two_threads_at_once_is_refused_and_the_first_replay_ends_well(driver: Any, xp: Any) -> None:
    x, refused = zeros(xp), []
    context = driver.ctx_get_current()

    def other() -> None:
        driver.ctx_set_current(context)
        graph.replay()

    def work(a: Any) -> Any:
        if graph.captured:
            with pytest.raises(CaptureStateError):
                in_thread(other)
            refused.append(True)
        return a + 1

    graph = bg.BreakableGraph()
    with bg.capture(graph):
        y = bg.break_here(work, bg.INFER, x + 1)
    refill(x, 5)
    graph.replay()
    assert refused == [True]
    assert holds(y, 7)
    assert graph.replays == 1
    assert in_thread(lambda: (driver.ctx_set_current(context), graph.replay())[1]) is None


def test_three_segments_made_are_three_destroyed(sim: Any, xp: Any) -> None:
    x = zeros(xp)
    made, destroyed = sim.calls["graph_instantiate"], sim.calls["graph_exec_destroy"]
    with bg.capture() as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        bg.break_here(lambda a: a * 2, bg.INFER, y + 1) + 1
    assert sim.calls["graph_instantiate"] - made == 3
    graph.close()
    graph.close()
    assert sim.calls["graph_exec_destroy"] - destroyed == 3
    assert live(sim, "graph_exec") == 0
    assert live(sim, "graph") == 0


def test_numpy_work_of_another_thread_goes_on_during_a_capture(driver: Any, xp: Any) -> None:
    """Thread-local mode: what another thread allocates and frees does not harm this capture."""
    x, context = zeros(xp), driver.ctx_get_current()

    def other() -> float:
        driver.ctx_set_current(context)
        ptr = driver.mem_alloc(4096)
        driver.mem_free(ptr)
        return float(np.float32(1))

    with bg.capture() as graph:
        x + 1
        assert in_thread(other) == 1.0
    assert graph.captured


def test_an_interrupt_while_the_scope_is_left_is_raised_and_everything_else_is_undone(
    sim: Any, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, graph, arena = zeros(xp), bg.BreakableGraph(), bg.Arena()

    def interrupted(stream: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arena, "record_use", interrupted)
    with pytest.raises(KeyboardInterrupt), bg.capture(graph, arena=arena):
        x + 1
    monkeypatch.undo()
    assert_failed_clean(graph, sim)
    assert_next_capture_works(xp, arena=arena)


def test_an_interrupt_while_the_arena_grows_leaves_nothing_mapped(
    sim: Any, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come when the driver has mapped the memory and the arena has not yet noted it."""
    x, arena, map_memory = zeros(xp), bg.Arena(), sim.mem_map

    def interrupted(ptr: int, nbytes: int, handle: int) -> None:
        map_memory(ptr, nbytes, handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(sim, "mem_map", interrupted)
    with pytest.raises(KeyboardInterrupt), bg.capture(arena=arena):
        x + 1
    monkeypatch.undo()
    assert not sim.live()["physical"]
    assert_next_capture_works(xp, arena=arena)


def test_the_count_of_segments_and_breaks_is_checked_when_the_scope_closes(sim: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(CaptureFailed, match="1 segments were recorded around 1 breaks"), bg.capture(graph):
        bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        del graph._holdings.steps[0]
    assert_failed_clean(graph, sim)


def test_a_refused_capture_leaves_the_name_of_its_graph(driver: Any, xp: Any) -> None:
    graph = bg.BreakableGraph("mine")
    with pytest.raises(bg.errors.CaptureStateError), bg.capture(graph, stream=1, name="other"):
        pass  # the legacy stream
    assert (graph.name, graph.state) == ("mine", "empty")


def test_an_array_of_another_device_is_no_destination_and_no_argument(sim: Any, xp: Any) -> None:
    """Two simulated devices use the same addresses, so taken for one of ours it would be somebody else's bytes."""
    with bg.driver.use("sim"):
        foreign = bg.array_namespace().zeros(4, np.float32)
    x = zeros(xp)
    for dst, argument in ((foreign, x), (bg.INFER, foreign)):
        with pytest.raises(bg.errors.BreakgraphError, match="another simulated device"), bg.capture() as graph:
            bg.break_here(lambda a: a, dst, argument)
        assert graph.state == "failed"
    assert_next_capture_works(xp)
