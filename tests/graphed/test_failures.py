"""A call that fails fails once: nothing of the forward runs twice, and the next call is right.

Proves that an error in the middle of a capture is raised, since a second run would repeat what the first has done;
that after one of the library's or the driver's own the function itself serves calls like it, and after the function's
own the next call captures; that a replay that fails harms no later one; and, by making each driver call of a first
and of a later call fail in turn, that all this holds wherever it happens.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from conftest import thread_mode
from support import floats, holds, live, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.driver.api import CaptureMode
from breakgraph.errors import BreakgraphError, BreakgraphWarning, CaptureUnsupported, DriverError

UNKNOWN = 999  # not sticky
ILLEGAL_ADDRESS = 700  # the context is lost


class Fragile:
    """A forward with one break, whose body or break raises on demand. It counts its runs."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.bodies = self.breaks = 0

    def __call__(self, x: Any) -> Any:
        self.bodies += 1
        return bg.break_here(self._break, bg.INFER, x + 1) * 2

    def _break(self, a: Any) -> Any:
        self.breaks += 1
        if self.error is not None:
            raise self.error
        return a + 10


def test_the_functions_own_error_is_raised_and_the_next_call_captures(driver: Any, xp: Any) -> None:
    forward = Fragile()
    service, x = bg.graphed(forward), zeros(xp)
    forward.error = ValueError("bad request")
    for _ in range(2):
        with pytest.raises(ValueError, match="bad request"):
            service(x)
    assert forward.bodies == forward.breaks == 2, "once for each call"
    forward.error = None
    assert holds(service(x), 22)
    assert holds(service(x), 22)
    assert (service.stats.captures, service.stats.hits, service.stats.calls) == (1, 1, 4)
    assert not service.stats.fallbacks


def test_an_error_of_the_library_in_the_middle_is_raised_and_remembered(driver: Any, xp: Any) -> None:
    bodies = []

    def forward(x: Any) -> Any:
        bodies.append(1)
        bg.driver.current().stream_synchronize(int(bg.current_stream()))  # 900 in a segment
        return x + 1

    service, x = bg.graphed(forward, buckets=[4, 8]), zeros(xp, 3)
    with pytest.raises(CaptureUnsupported):
        service(x)
    assert len(bodies) == 1
    with pytest.warns(BreakgraphWarning, match="an earlier capture .* failed with CaptureUnsupported: stream_synchron"):
        assert holds(service(x), 1)
    assert holds(service(zeros(xp, 2)), 1)
    assert len(bodies) == 3
    assert service.stats.fallbacks == {"failed": 2}
    with pytest.raises(CaptureUnsupported):
        service(zeros(xp, 5))  # another size
    service.reset()
    with pytest.raises(CaptureUnsupported):
        service(x)
    driver.synchronize()


def test_an_error_that_the_function_swallows_is_raised_all_the_same(driver: Any, xp: Any) -> None:
    """C6: part of the forward was lost by it, so there is no graph, and no right result either."""
    forward = Fragile()

    def careless(x: Any) -> Any:
        try:
            return forward(x)
        except ValueError:
            return x + 100

    service = bg.graphed(careless)
    forward.error = ValueError("lost")
    with pytest.raises(bg.errors.CaptureFailed):
        service(zeros(xp))
    assert forward.bodies == 1


def test_a_replay_that_fails_harms_no_later_one(driver: Any, xp: Any) -> None:
    forward = Fragile()
    service, x = bg.graphed(forward, buckets=[4]), zeros(xp, 3)
    service(x)
    forward.error = ValueError("at replay")
    with pytest.raises(ValueError, match="at replay"):
        service(x)
    assert bg.current_valid_rows() is None
    assert not bg.is_capturing()
    forward.error = None
    refill(x, 5)
    assert holds(service(x), 32)
    assert (forward.bodies, forward.breaks) == (1, 3)


def test_an_interrupt_is_not_remembered(driver: Any, xp: Any) -> None:
    forward = Fragile()
    service, x = bg.graphed(forward), zeros(xp)
    forward.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        service(x)
    forward.error = None
    assert holds(service(x), 22)
    forward.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        service(x)
    forward.error = None
    assert holds(service(x), 22)
    assert (service.stats.captures, service.stats.hits) == (1, 1)


def test_a_failed_capture_keeps_nothing_of_its_call(sim: Any, xp: Any) -> None:
    service, x = bg.graphed(lambda x: (x + 1, 3 / 0)), zeros(xp)
    with pytest.raises(ZeroDivisionError):
        service(x)
    gc.collect()
    assert live(sim, "graph") == live(sim, "graph_exec") == 0
    assert service.arena.used == 0


# --- each driver call fails in turn -----------------------------------------------------------------------------


class Scene:
    """A fresh simulated device, a stream of the caller's own, and a cache that each run of the forward adds 1 to."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        xp = bg.array_namespace()
        self.cache, self.x = zeros(xp, 2), floats(xp, 1, 2, 3)
        self.stream = driver.create_stream()
        self.bodies = self.breaks = 0
        self.service = bg.graphed(self._forward, buckets=[4], fallback="allow")
        driver.synchronize()

    def _forward(self, x: Any) -> Any:
        self.bodies += 1
        np.add(self.cache, 1, out=self.cache)
        return bg.break_here(self._break, bg.INFER, x + 1) * 2

    def _break(self, a: Any) -> Any:
        self.breaks += 1
        return a + 10

    def call(self) -> Any:
        with on_stream(self.x, self.stream):
            return self.service(self.x)

    def check_call(self, y: Any) -> None:
        self.driver.synchronize()
        assert y.get().tolist() == [24, 26, 28]

    def check_clean(self) -> None:
        assert not bg.is_capturing()
        assert bg.current_stream() is None
        assert bg.current_valid_rows() is None
        assert gc.isenabled()
        assert thread_mode(self.driver) == CaptureMode.GLOBAL
        self.driver.synchronize()
        assert not self.driver.races, self.driver.races


@contextmanager
def scene(*, first: bool) -> Iterator[Scene]:
    with bg.driver.use("sim", schedule="lazy") as driver:
        one = Scene(driver)
        if not first:
            one.call()
            driver.synchronize()
        one.bodies = one.breaks = 0
        yield one


def each_failure(check: Callable[[Scene, str, Any, BaseException | None], None], *, first: bool, code: int) -> int:
    """Make one call for each driver call in it, with that one failing; all complaints are told at once."""
    with scene(first=first) as clean:
        before = Counter(clean.driver.calls)
        clean.call()
        calls = Counter(clean.driver.calls) - before
    complaints, runs = [], 0
    for name, count in sorted(calls.items()):
        for at in range(1, count + 1):
            runs += 1
            with scene(first=first) as one:
                y = raised = None
                try:
                    with one.driver.fail(name, at=at, code=code):
                        y = one.call()
                except BreakgraphError as error:
                    raised = error
                try:
                    check(one, name, y, raised)
                except (AssertionError, BreakgraphError) as error:
                    complaints.append(f"{name} #{at}: {type(error).__name__} {error}"[:400])
                finally:
                    del raised
    assert not complaints, f"{len(complaints)} of {runs}:\n" + "\n".join(complaints)
    return runs


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("code", [UNKNOWN, 2])
def test_whatever_driver_call_fails_the_forward_runs_once_and_the_next_call_is_right(first: bool, code: int) -> None:
    def check(one: Scene, name: str, y: Any, raised: BaseException | None) -> None:
        one.check_clean()
        assert one.bodies <= 1
        assert one.breaks <= 1
        runs = float(one.cache.get()[0]) - (not first)
        assert runs <= 1, "the segment ran at most once"
        if raised is None:
            one.check_call(y)
            assert one.breaks == runs == 1
        else:
            assert blames(raised, name, code), f"{raised!r} does not name the cause"
        one.check_call(one.call())
        assert float(one.cache.get()[0]) - (not first) == runs + 1
        one.check_clean()
        one.service.close()
        assert live(one.driver, "graph") == live(one.driver, "graph_exec") == 0

    assert each_failure(check, first=first, code=code) > (40 if first else 10)


def blames(error: BaseException | None, call: str, code: int) -> bool:
    while error is not None:
        if isinstance(error, DriverError) and (error.call, error.code) == (call, code):
            return True
        if re.search(rf"{call} answered .*\({code}\)", "\n".join([str(error), *getattr(error, "__notes__", ())])):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.mark.parametrize("call", ["graph_launch", "stream_begin_capture", "event_record", "memcpy_dtod_async"])
def test_a_lost_context_is_raised_and_never_taken_for_a_refusal(call: str) -> None:
    for first in (True, False):
        if call == "stream_begin_capture" and not first:
            continue
        with scene(first=first) as one:
            with pytest.raises(DriverError) as raised, one.driver.fail(call, at=1, code=ILLEGAL_ADDRESS):
                one.call()
            assert raised.value.sticky
            assert one.bodies <= 1
            assert not one.service.stats.fallbacks
