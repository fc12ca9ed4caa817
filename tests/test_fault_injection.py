"""Every driver call of a three-break capture, of its replay and of its end fails in turn, and nothing is left behind.

Proves C5 and C26 at every call site. The calls are learned from a clean run, so a call that the library starts to make
tomorrow is covered tomorrow. After each failure the whole state is checked, and the next capture is good.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from conftest import thread_mode
from support import holds, live, on_stream, refill, stream_of, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver.api import CaptureMode, CaptureStatus
from breakgraph.errors import BreakgraphError, CaptureStateError, DriverError

UNKNOWN = 999  # CUDA_ERROR_UNKNOWN: not sticky
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700  # sticky: the context is lost


class Scene:
    """A fresh simulated device, a caller's stream that is not the default one, and a forward of three breaks."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        xp = bg.array_namespace()
        self.x, self.out, self.dst, self.scratch = zeros(xp), zeros(xp), zeros(xp), zeros(xp)
        self.context = driver.ctx_get_current()
        self.arena = bg.Arena()
        self.stream = driver.create_stream()
        driver.synchronize()
        self.graph = bg.BreakableGraph(name="scene")

    def forward(self) -> None:
        t = bg.break_here(lambda a: a * 2, bg.INFER, self.x + 1)
        t = bg.break_here(lambda a: a + 10, self.dst, t + 1)
        scale_into(t * 2, self.scratch)
        np.add(self.scratch, 1, out=self.out)

    @staticmethod
    def expected(x: float) -> float:
        return ((x + 1) * 2 + 1 + 10) * 2 * 3 + 1

    def capture(self, graph: Any = None, body: Callable[[], None] | None = None) -> None:
        with on_stream(self.x, self.stream), bg.capture(self.graph if graph is None else graph, arena=self.arena):
            self.forward()
            if body is not None:
                body()

    def replay(self) -> None:
        with on_stream(self.x, self.stream):
            self.graph.replay()

    def put(self, value: float) -> None:
        self.driver.synchronize()
        refill(self.x, value)
        refill(self.out, -1)
        self.driver.synchronize()

    def check_nothing_left(self) -> None:
        """The thread and the device are as before, but for the graph's own state."""
        driver = self.driver
        assert not bg.is_capturing()
        assert bg.current_stream() is None
        assert bg.current_forward() is None
        assert bg.current_valid_rows() is None
        assert gc.isenabled()
        assert thread_mode(driver) == CaptureMode.GLOBAL
        assert driver.ctx_get_current() == self.context
        assert stream_of(self.x) == 0
        for stream in (self.graph.capture_stream, self.stream):
            if stream:
                assert driver.stream_is_capturing(int(stream)) == CaptureStatus.NONE
        made = zeros(bg.array_namespace()) + 1
        assert self.arena.block_at(pointer(made)) is None
        assert holds(made, 1)

    def check_failed(self) -> None:
        assert self.graph.state == "failed"
        assert self.graph.error is not None
        assert not self.graph.steps
        assert live(self.driver, "graph") == 0
        assert live(self.driver, "graph_exec") == 0
        with pytest.raises(CaptureStateError):
            self.graph.replay(stream=self.stream)

    def check_next_capture(self) -> None:
        """The same graph, thread, arena and streams take another capture, and it replays."""
        self.put(3)
        self.graph.reset()
        self.capture()
        self.driver.synchronize()
        assert holds(self.out, self.expected(3))
        self.check_replays(5)
        self.graph.close()
        assert live(self.driver, "graph") == 0
        assert live(self.driver, "graph_exec") == 0

    def check_replays(self, value: float) -> None:
        self.put(value)
        self.replay()
        self.driver.synchronize()
        assert holds(self.out, self.expected(value))
        assert not self.driver.races, self.driver.races


@bg.break_point(dst=bg.IN_PLACE, writes=("dst",))
def scale_into(a: Any, dst: Any) -> None:
    np.multiply(a, 3, out=dst)


def pointer(array: Any) -> int:
    return frameworks.of(array, bg.driver.current()).view(array).ptr


@contextmanager
def scene() -> Iterator[Scene]:
    with bg.driver.use("sim", schedule="lazy") as driver:
        yield Scene(driver)


def calls_of(prepare: Callable[[Scene], object], work: Callable[[Scene], object]) -> Counter[str]:
    """How often a clean run of ``work`` makes each driver call."""
    with scene() as clean:
        prepare(clean)
        before = Counter(clean.driver.calls)
        with suppress(Planned):
            work(clean)
        return Counter(clean.driver.calls) - before


class Planned(Exception):
    """The body's own exception."""


def each_failure(
    prepare: Callable[[Scene], object], work: Callable[[Scene], object], check: Callable[..., None], code: int = UNKNOWN
) -> int:
    """Run ``work`` once for each of its driver calls, with that call failing; all complaints are told at once."""
    complaints, runs = [], 0
    calls = calls_of(prepare, work)
    assert calls, "the clean run made no driver call: nothing would be tested"
    for name, count in sorted(calls.items()):
        for at in range(1, count + 1):
            runs += 1
            with scene() as one:
                prepare(one)
                raised: BaseException | None = None
                try:
                    with one.driver.fail(name, at=at, code=code):
                        work(one)
                except (BreakgraphError, Planned) as error:
                    raised = error
                except Exception as error:
                    complaints.append(f"{name} #{at}: raised {error!r}")
                    continue
                try:
                    check(one, name, raised)
                except (AssertionError, BreakgraphError, pytest.fail.Exception) as error:
                    complaints.append(f"{name} #{at}: {type(error).__name__} {error}"[:400])
                finally:
                    del raised
    assert not complaints, f"{len(complaints)} of {runs}:\n" + "\n".join(complaints)
    return runs


def blames(error: BaseException | None, call: str, code: int) -> bool:
    """Whether the chain of causes names the call that was made to fail."""
    while error is not None:
        if isinstance(error, DriverError) and (error.call, error.code) == (call, code):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
def test_whatever_call_of_a_capture_fails_the_graph_is_failed_and_the_next_capture_good(code: int) -> None:
    def check(one: Scene, name: str, raised: BaseException | None) -> None:
        if raised is None:  # a call of the clean-up, made once more (C5): then everything is right
            assert one.graph.state == "captured"
            one.check_nothing_left()
            one.driver.synchronize()
            assert holds(one.out, one.expected(1))
            one.check_replays(4)
            one.graph.close()
            return
        assert blames(raised, name, code), f"{raised!r} does not name the cause"
        one.check_nothing_left()
        one.check_failed()
        one.check_next_capture()

    assert each_failure(lambda one: one.put(1), lambda one: one.capture(), check, code) > 40


def test_whatever_call_of_a_replay_fails_the_graph_replays_again() -> None:
    def prepare(one: Scene) -> None:
        one.capture()
        one.put(2)

    def check(one: Scene, name: str, raised: BaseException | None) -> None:
        if raised is None:
            assert one.graph.replays == 1
            one.driver.synchronize()
            assert holds(one.out, one.expected(2))
        else:
            assert blames(raised, name, UNKNOWN), f"{raised!r} does not name the cause"
            assert one.graph.replays == 0
        assert one.graph.state == "captured"
        one.check_nothing_left()
        one.check_replays(6)
        one.graph.close()
        assert live(one.driver, "graph") == 0
        assert live(one.driver, "graph_exec") == 0

    assert each_failure(prepare, lambda one: one.replay(), check) > 5


def test_whatever_call_of_a_drain_fails_the_bodys_exception_is_the_one_that_propagates() -> None:
    """The body raises in its last segment, and one driver call of the whole scope fails too."""

    def body() -> None:
        raise Planned

    def check(one: Scene, name: str, raised: BaseException | None) -> None:
        assert raised is not None
        assert isinstance(raised, Planned) or blames(raised, name, UNKNOWN)
        one.check_nothing_left()
        one.check_failed()
        one.check_next_capture()

    each_failure(lambda one: one.put(1), lambda one: one.capture(body=body), check)


def test_a_call_of_a_close_that_fails_once_is_retried_and_nothing_leaks() -> None:
    def check(one: Scene, name: str, raised: BaseException | None) -> None:
        one.check_nothing_left()
        one.graph.close()
        assert one.graph.state == "closed"
        assert live(one.driver, "graph") == 0
        assert live(one.driver, "graph_exec") == 0

    each_failure(lambda one: one.capture(), lambda one: one.graph.close(), check)


@pytest.mark.parametrize("call", ["graph_launch", "stream_end_capture", "graph_instantiate", "stream_begin_capture"])
def test_a_sticky_error_is_told_apart_and_still_leaves_the_thread_clean(call: str) -> None:
    """C5 exempts the next capture only: everything that needs no driver is as it was."""
    with scene() as one:
        with pytest.raises(BreakgraphError) as raised, one.driver.fail(call, at=1, code=ILLEGAL_ADDRESS):
            one.capture()
        error: BaseException | None = raised.value
        while not isinstance(error, DriverError) and error is not None:
            error = error.__cause__
        assert isinstance(error, DriverError)
        assert error.sticky
        assert one.graph.state == "failed"
        assert not bg.is_capturing()
        assert gc.isenabled()
        assert bg.current_stream() is None
        assert stream_of(one.x) == 0
        one.graph.abandon()


def test_a_call_that_is_made_to_fail_has_no_effect() -> None:
    with scene() as one:
        with pytest.raises(DriverError), one.driver.fail("stream_create", at=1, code=UNKNOWN):
            one.driver.create_stream()
        with pytest.raises(DriverError), one.driver.fail("stream_begin_capture", at=1, code=900):
            one.driver.stream_begin_capture(int(one.stream), CaptureMode.THREAD_LOCAL)
        assert one.driver.stream_is_capturing(int(one.stream)) == CaptureStatus.NONE
