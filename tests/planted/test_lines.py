"""A capture that became invalid is told with the line that made it so, its source, its callers, why, and what to do.

The table of planted mistakes is `lines.LINES`: the line is found by its mark. Afterwards the graph has failed clean,
the next capture works, and Python traces as before. Further: without ``debug`` the error says how to be told; debuggers
and coverage go on beside it; nothing is traced in breaks, nor kept alive; and what it costs.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest
from planted.lines import LINES
from support import ROOT, assert_failed_clean, assert_next_capture_works, child, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, DriverError


def told(error: BaseException) -> str:
    """All that a reader of the traceback is told."""
    parts = [str(error), *getattr(error, "__notes__", ())]
    return "\n".join(parts + ([told(error.__cause__)] if error.__cause__ is not None else []))


def marked(function: Callable[..., object]) -> list[tuple[str, str]]:
    """``file:line`` and text of the lines that may be named."""
    lines, first = inspect.getsourcelines(function)
    wanted = getattr(function, "lines", ("# HERE",))
    place = inspect.getsourcefile(function)
    named = [(at, line.strip()) for at, line in enumerate(lines, first) if any(one in line for one in wanted)]
    return [(f"{place}:{at}", line) for at, line in named]


FAILURES = (BreakgraphError, RuntimeError)  # of the array library too, which meets the invalid capture first on a GPU


def failed(driver: Any, xp: Any, forward: Callable[[Any, Any], object], **options: Any) -> str:
    """What the failure of a capture of ``forward`` tells."""
    x, graph = zeros(xp), bg.BreakableGraph()
    before = sys.gettrace()
    with pytest.raises(FAILURES) as raised, bg.capture(graph, **options):
        y = forward(driver, x)
        del y
    assert sys.gettrace() is before
    assert_failed_clean(graph, driver)
    said = told(raised.value)
    del raised
    assert_next_capture_works(xp)
    return said


@pytest.mark.parametrize("kind", LINES)
def test_the_line_that_made_a_capture_invalid_is_named(driver: Any, xp: Any, kind: str) -> None:
    forward = LINES[kind]
    said = failed(driver, xp, forward, debug=True)
    found = re.search(r"valid before (\S+) and invalid after it\n\s+(.*)", said)
    assert found, said
    candidates = marked(forward)
    if hasattr(forward, "within"):  # the line is in a helper, and the marked one calls it
        assert forward.within in said
        assert f"called from {candidates[0][0]} in" in said
    else:
        assert (found[1], found[2]) in candidates, said
    assert "why:" in said.partition("valid before")[2]
    assert "bg.break_point" in said
    assert f"{__file__}:" in said.partition("valid before")[2], "the callers are told too"


def test_a_mistake_of_another_thread_is_told_as_one(driver: Any, xp: Any) -> None:
    said = failed(driver, xp, LINES["another_thread"], debug=True)
    assert "nothing that this thread did has raised there" in said
    assert "another thread" in said


def test_what_was_raised_and_swallowed_is_told_with_the_line(driver: Any, xp: Any) -> None:
    said = failed(driver, xp, LINES["a_stream_synchronize"], debug=True)
    assert "call: stream_synchronize, which raised CaptureUnsupported" in said
    assert "it waits for work that is only being recorded" in said
    assert "nothing that this thread did has raised" not in said


@pytest.mark.parametrize(("kind", "lifts"), [("an_allocation", True), ("a_synchronize_of_the_context", False)])
def test_the_relaxed_guard_is_advised_where_it_lifts_the_refusal(driver: Any, xp: Any, kind: str, lifts: bool) -> None:
    assert ("relaxed guard" in failed(driver, xp, LINES[kind], debug=True)) == lifts


def test_an_error_that_leaves_the_forward_has_the_line_too(driver: Any, xp: Any) -> None:
    def forward(driver: Any, x: Any) -> None:
        x + 1
        driver.mem_alloc(64)  # HERE

    said = failed(driver, xp, forward, debug=True)
    assert marked(forward)[0][0] in said
    assert "raised while segment 0 was being captured" in said


def test_without_debug_the_error_says_how_to_be_told_the_line(driver: Any, xp: Any) -> None:
    for kind in ("a_destructor", "a_stream_synchronize"):
        said = failed(driver, xp, LINES[kind])
        assert "debug=True" in said
        assert "BREAKGRAPH_DEBUG=1" in said
        assert "lines.py" not in said.partition("BREAKGRAPH_DEBUG=1")[2]


def test_the_environment_makes_every_capture_one_with_debug(tmp_path: Any) -> None:
    program = f"""
        import sys
        sys.path[:0] = [{str(ROOT / "tests")!r}]
        import numpy as np
        import breakgraph as bg
        from planted.lines import LINES
        x = bg.array_namespace().zeros(4, np.float32)
        try:
            with bg.capture():
                LINES["a_destructor"](bg.driver.current(), x)
        except bg.errors.BreakgraphError as error:
            print(error, *getattr(error, "__notes__", ()), *getattr(error.__cause__, "__notes__", ()))
        """
    (site, _), *_ = marked(LINES["a_destructor"])
    for value, named in (("1", True), ("0", False), ("", False)):
        done = child(program, BREAKGRAPH_DEBUG=value)
        assert done.returncode == 0, done.stderr
        assert (site in done.stdout) == named, done.stdout


# --- beside other tracers -----------------------------------------------------------------------------------------


class Tracer:
    """A debugger's trace function: notes where it was called, with what."""

    def __init__(self, *, pushy: bool = False) -> None:
        self.lines: list[int] = []
        self.calls: list[str] = []
        self.pushy = pushy
        self.entry = self.called
        self.local = self.moved

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.calls.append(frame.f_code.co_name)
        if self.pushy:
            sys.settrace(self.entry)  # as coverage's does, to be called sooner next time
        return self.local if frame.f_code.co_filename == __file__ else None

    def moved(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines.append(frame.f_lineno)
        return self.local


def inner(a: Any) -> Any:
    b = a + 1
    return b * 2


@pytest.mark.parametrize("pushy", [False, True], ids=["plain", "puts itself back"])
def test_a_debugger_goes_on_beside_it_and_sees_every_line(sim: Any, xp: Any, pushy: bool) -> None:
    def lines_seen(debug: bool) -> tuple[list[int], int]:
        x, tracer = zeros(xp), Tracer(pushy=pushy)

        def whole() -> None:
            with bg.capture(debug=debug):
                y = inner(x)
                y = bg.break_here(lambda a: a + 1, bg.INFER, y)
                inner(y)

        before = sys.gettrace()
        sys.settrace(tracer.entry)
        try:
            whole()
            assert sys.gettrace() == tracer.entry
        finally:
            sys.settrace(before)
        assert "inner" in tracer.calls
        return tracer.lines, tracer.calls.count("inner")

    assert lines_seen(True) == lines_seen(False)


def test_the_line_is_found_beside_a_debugger_too(sim: Any, xp: Any) -> None:
    tracer, before = Tracer(pushy=True), sys.gettrace()
    graph, x = bg.BreakableGraph(), zeros(xp)
    sys.settrace(tracer.entry)
    try:
        with pytest.raises(BreakgraphError) as raised, bg.capture(graph, debug=True):
            LINES["a_destructor"](sim, x)
    finally:
        sys.settrace(before)
    assert marked(LINES["a_destructor"])[0][0] in told(raised.value)


def test_frames_are_traced_as_before_when_the_capture_is_over(driver: Any, xp: Any) -> None:
    x, frame = zeros(xp), sys._getframe()
    before, in_break = frame.f_trace, []
    with bg.capture(debug=True):
        y = inner(x)
        y = bg.break_here(lambda a: in_break.append(sys.gettrace()) or a + 1, bg.INFER, y)
        inner(y)
    assert frame.f_trace is before
    assert in_break == [sys.gettrace()], "a break runs untraced"


def test_a_debug_capture_keeps_nothing_alive(sim: Any, xp: Any) -> None:
    """Tracing keeps copies of variables in frames, which would hold memory of the arena."""

    def used(debug: bool) -> tuple[int, int]:
        x, arena = zeros(xp), bg.Arena()

        def layer(a: Any) -> Any:
            wide = a + 1
            wide = bg.break_here(lambda b: b * 2, bg.INFER, wide)
            return wide + 1

        with bg.capture(arena=arena, debug=debug):
            y = x
            for _ in range(4):
                y = layer(y)
            del y
        return arena.used, arena.peak

    assert used(True) == used(False)


def test_a_line_costs_a_driver_call_or_two_and_a_capture_without_debug_none(sim: Any, xp: Any) -> None:
    def asked(lines: int, debug: bool) -> int:
        x = zeros(xp)
        body = "\n".join(["def forward(a, b):", *["    c = 1"] * lines, "    a + b"])
        scope: dict[str, Any] = {}
        exec(compile(body, "planted", "exec"), scope)
        before = sim.calls["stream_is_capturing"]
        with bg.capture(debug=debug):
            scope["forward"](x, x)
        return sim.calls["stream_is_capturing"] - before

    asked(1, True)  # what happens at first use alone
    assert asked(100, True) - asked(10, True) == 90, "one question for each line"
    assert asked(100, False) == asked(10, False)


def test_a_capture_without_debug_makes_the_calls_that_it_made(sim: Any, xp: Any) -> None:
    """And a replay after either makes the same."""

    def calls(debug: bool) -> dict[str, int]:
        x = zeros(xp)
        sim.synchronize()
        before = sim.calls.copy()
        with bg.capture(debug=debug) as graph:
            y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
            np.add(y, 1, out=x)
        captured = sim.calls - before
        before = sim.calls.copy()
        graph.replay()
        replayed = sim.calls - before
        # Debug counts the bytes of execs, so it makes them apart from the ends of their captures.
        del captured["stream_is_capturing"], captured["mem_get_info"], captured["thread_exchange_stream_capture_mode"]
        return {**captured, **{f"replay {name}": count for name, count in replayed.items()}}

    calls(True)  # what happens at first use alone
    assert calls(True) == calls(False)


def test_a_generator_that_is_left_suspended_is_traced_no_more(driver: Any, xp: Any) -> None:
    def parts(a: Any) -> Any:
        for n in range(3):
            yield a + n

    x = zeros(xp)
    with bg.capture(debug=True) as graph:
        left = parts(x)
        next(left)
    assert graph.captured
    next(left)
    assert left.gi_frame.f_trace is None
    with suppress(DriverError):
        left.close()
