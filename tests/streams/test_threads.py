"""Threads capture, replay and do everything else beside each other, on one device and on two.

Proves C4's last words, C8's counted collector guard, C25 and C31 between threads. Captures that truly overlap (each
waits in its segment until the others are in theirs) do not see each other; whatever another thread does meanwhile
harms none of them, but for the one thing that does, a synchronize of the context, whose error says so. A thread that
ends with a capture open leaves nothing shut. In one thread, tasks of an event loop share its capture slot.

Whatever could wait for ever waits for a limited time here, so that a hang is a failure.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import SEED, _left_as_found, thread_mode
from streams_support import full_text
from support import (
    Order,
    all_well,
    assert_failed_clean,
    assert_next_capture_works,
    child,
    every_schedule,
    holds,
    in_threads,
    on_stream,
    refill,
    stream_of,
    zeros,
)

import breakgraph as bg
from breakgraph.driver.api import CaptureMode, CaptureStatus, EventFlag
from breakgraph.errors import BreakgraphError, CaptureFailed, CaptureInvalidated, CaptureStateError, DriverError

SECONDS = 12.0  # after which a thread that waits is taken to hang

PTX = """.version 6.4
.target {target}
.address_size 64
.visible .entry nothing() {{ ret; }}
"""


@pytest.fixture(autouse=True)
def _eager_switches() -> Iterator[None]:
    """Threads change places in the middle of things, not after 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=["sim", "cuda"])
def two_devices(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A driver with two devices."""
    if request.param == "cuda":
        driver = request.getfixturevalue("gpu")
        if driver.device_get_count() < 2:
            pytest.skip("there is one GPU, and this asks for two")
        yield driver
        return
    with (
        bg.driver.use("sim", schedule="random", seed=SEED, devices=2) as made,
        _left_as_found(made, request),
    ):
        yield made


def meeting(parties: int) -> threading.Barrier:
    """Where so many threads wait for each other."""
    return threading.Barrier(parties, timeout=SECONDS / 3)


class Forward:
    """A forward of one thread: x + 1 on the origin and its double on a side stream, a break, and the sum of both.

    ``told`` is called in each segment, in the break, and in the break of a replay, with the name of the place.
    """

    def __init__(self, driver: Any, told: Callable[[str], object] = lambda place: None) -> None:
        self.driver, self.told = driver, told
        xp = bg.array_namespace()
        self.x, self.side_out, self.out = zeros(xp), zeros(xp), zeros(xp)
        self.side, self.stream, self.arena = driver.create_stream(), driver.create_stream(), bg.Arena()
        self.order = Order(driver)
        self.device = driver.ctx_get_device()
        self._capturing = False
        driver.stream_synchronize(0)

    def capture(self, **options: Any) -> Any:
        self._capturing = True
        try:
            return self._capture(options)
        finally:
            self._capturing = False

    def _capture(self, options: dict[str, Any]) -> Any:
        with on_stream(self.x, self.stream), bg.capture(arena=self.arena, **options) as graph:
            assert bg.is_capturing()
            t = self.x + 1
            self.order(bg.current_stream(), self.side)
            self.told("segment 0")
            with on_stream(self.x, self.side):
                np.multiply(t, 2, out=self.side_out)
            t = bg.break_here(self._break, bg.INFER, t)
            assert bg.is_capturing()
            self.told("segment 1")
            np.add(t, self.side_out, out=self.out)
        assert not bg.is_capturing()
        assert [segment.joined for segment in graph.segments] == [1, 0]
        return graph

    def _break(self, a: Any) -> Any:
        assert not bg.is_capturing()
        self.told("break" if self._capturing else "replay")
        return a + 10

    def check(self, graph: Any, value: float) -> None:
        """A replay has the eager values. Waits for its own streams only: others may be capturing."""
        with on_stream(self.x, self.stream):
            refill(self.x, value)
            graph.replay()
            self.driver.stream_synchronize(int(self.stream))
            assert holds(self.out, (value + 1) * 3 + 10)

    def finish(self, graph: Any) -> None:
        graph.close()
        self.driver.stream_synchronize(int(self.stream))


# --- captures side by side ----------------------------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("threads", [2, 4])
def test_captures_whose_segments_and_breaks_overlap_do_not_see_each_other(driver: Any, xp: Any, threads: int) -> None:
    """Each waits in each place until all are there."""
    meet = meeting(threads)

    def work(at: int) -> None:
        forward = Forward(driver, lambda place: meet.wait())
        for round_ in range(3):
            graph = forward.capture()
            forward.check(graph, at + round_)
            forward.finish(graph)

    all_well(in_threads(driver, *(lambda at=at: work(at) for at in range(threads)), seconds=SECONDS))
    assert not bg.is_capturing()
    assert gc.isenabled()


@every_schedule
def test_one_thread_may_be_in_a_segment_while_another_is_in_a_break(driver: Any, xp: Any) -> None:
    """And while a third one begins, ends, launches and destroys."""
    places = {0: "segment 0", 1: "break", 2: "segment 1"}
    meet, seen = meeting(3), []

    def work(at: int) -> None:
        def told(place: str) -> None:
            if place == places[at]:
                meet.wait()  # all are there, each in another place
                seen.append((at, bg.is_capturing()))
                meet.wait()

        forward = Forward(driver, told)
        for _ in range(3):
            graph = forward.capture()
            forward.check(graph, at)
            forward.finish(graph)

    all_well(in_threads(driver, *(lambda at=at: work(at) for at in places), seconds=SECONDS))
    assert sorted(seen) == sorted([(0, True), (1, False), (2, True)] * 3)


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_many_captures_in_many_threads_are_all_good(driver: Any, xp: Any, mode: Any) -> None:
    started = meeting(4)

    def work(at: int) -> int:
        forward = Forward(driver)
        started.wait()
        for round_ in range(10):
            graph = forward.capture(mode=mode)
            forward.check(graph, at * 100 + round_)
            forward.finish(graph)
        return 10

    assert all_well(in_threads(driver, *(lambda at=at: work(at) for at in range(4)), seconds=SECONDS)) == [10] * 4


def test_each_thread_has_a_stream_and_an_arena_of_its_own_by_default(driver: Any, xp: Any) -> None:
    meet = meeting(3)

    def work() -> tuple[int, Any, Any]:
        x = zeros(xp)
        driver.stream_synchronize(0)
        with bg.capture() as graph:
            y = x + 1
            meet.wait()
            stream = int(bg.current_stream())
        arena = graph.arena
        driver.stream_synchronize(0)
        assert holds(y, 1)
        meet.wait()  # a handle may be another thread's once its own is gone
        return stream, arena, graph

    outcomes = all_well(in_threads(driver, work, work, work, seconds=SECONDS))
    assert len({stream for stream, _, _ in outcomes}) == 3
    assert len({id(arena) for _, arena, _ in outcomes}) == 3
    for _, _, graph in outcomes:
        graph.close()


@pytest.mark.parametrize("made", ["nothing", "the driver"])
def test_threads_whose_first_use_of_the_library_comes_at_once_find_one_driver_and_one_framework(made: str) -> None:
    """In a fresh process, where all is still to be made. A second one would be another device, or other scopes."""
    done = child(
        """
        import os, sys, threading, warnings
        import numpy as np
        import breakgraph as bg
        from breakgraph import frameworks

        sys.setswitchinterval(1e-6)
        warnings.simplefilter("error")
        meet, found, wrong = threading.Barrier(8, timeout=4), [], []
        if os.environ["MADE"] == "the driver":
            bg.driver.current().ensure_context()

        def work():
            try:
                meet.wait()
                driver = bg.driver.current()
                framework = frameworks.taking_part(driver)[0]
                context = driver.ensure_context()
                x = bg.array_namespace().zeros(4, np.float32)
                driver.stream_synchronize(0)
                with bg.capture() as graph:
                    y = x + 1
                found.append((id(driver), context, id(framework), id(frameworks.of(y, driver))))
                meet.wait()
                graph.close()
            except BaseException as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not wrong, wrong
        assert len(found) == 8, found
        print(len(set(found)))
        """,
        MADE=made,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]


def test_a_failure_in_one_thread_is_none_in_the_others(driver: Any, xp: Any) -> None:
    """One fails in a segment and one in a break, while the third is in the same place and goes on."""
    meet, fails_in = meeting(3), {0: "segment 0", 1: "break"}

    def work(at: int) -> str:
        def told(place: str) -> None:
            if place in ("segment 0", "break"):
                meet.wait()
            if place == fails_in.get(at):
                raise KeyError("planned")

        forward, graph = Forward(driver, told), bg.BreakableGraph()
        try:
            forward.capture(graph=graph)
        except KeyError:
            assert_failed_state(graph)
        if at == 0:
            meet.wait()  # the others go on to their break
        state = str(graph.state)
        forward.told = lambda place: None
        graph.reset()
        forward.capture(graph=graph)
        forward.check(graph, 6)
        forward.finish(graph)
        return state

    outcomes = all_well(in_threads(driver, *(lambda at=at: work(at) for at in range(3)), seconds=SECONDS))
    assert outcomes == ["failed", "failed", "captured"]
    assert gc.isenabled()


def assert_failed_state(graph: Any) -> None:
    """What `assert_failed_clean` asks of the thread and the graph; other threads' graphs are alive."""
    assert (graph.state, graph.steps) == ("failed", ())
    assert isinstance(graph.error, KeyError)
    assert not bg.is_capturing()
    with pytest.raises(CaptureStateError):
        graph.replay()


# --- two devices --------------------------------------------------------------------------------------------------


def contexts_of(driver: Any) -> list[int]:
    """The primary contexts of the first two devices; they are kept, as a program keeps them."""
    return [driver.device_primary_ctx_retain(device) for device in (0, 1)]


def on_two_devices(driver: Any, work: Callable[[int], Any]) -> list[Any]:
    """Run work in two threads, each with the primary context of its device current."""
    contexts = contexts_of(driver)

    def on(device: int) -> Any:
        driver.ctx_set_current(contexts[device])
        assert driver.ctx_get_device() == device
        outcome = work(device)
        assert driver.ctx_get_current() == contexts[device]
        return outcome

    return all_well(in_threads(driver, lambda: on(0), lambda: on(1), seconds=4 * SECONDS))


def test_two_threads_capture_on_two_devices_again_and_again(two_devices: Any) -> None:
    driver, meet = two_devices, meeting(2)
    rounds = 200 if driver.name == "cuda" else 25

    def work(device: int) -> int:
        forward = Forward(driver, lambda place: meet.wait())
        assert forward.device == device
        for round_ in range(rounds):
            graph = forward.capture()
            forward.check(graph, device * 1000 + round_)
            forward.finish(graph)
        return rounds

    assert on_two_devices(driver, work) == [rounds, rounds]


def test_a_graph_of_another_device_is_replayed_and_closed_in_its_own_context(two_devices: Any) -> None:
    """By the main thread, in whose context nothing of it is (C31)."""
    driver = two_devices

    def work(device: int) -> tuple[Forward, Any]:
        forward = Forward(driver)
        return forward, forward.capture(aux_streams=(forward.side,))

    made = on_two_devices(driver, work)
    here = driver.ctx_get_current()
    for value in (2, 3):
        for device, (forward, graph) in enumerate(made):
            with _context(driver, contexts_of(driver)[device]):
                driver.synchronize()
                refill(forward.x, value)
                driver.synchronize()
            graph.replay(stream=forward.stream)
            assert driver.ctx_get_current() == here
            with _context(driver, contexts_of(driver)[device]):
                driver.synchronize()
                assert holds(forward.out, (value + 1) * 3 + 10)
    for _, graph in made:
        graph.close()
        assert driver.ctx_get_current() == here


@contextmanager
def _context(driver: Any, context: int) -> Iterator[None]:
    driver.ctx_push_current(context)
    try:
        yield
    finally:
        driver.ctx_pop_current()


def test_a_context_synchronize_on_one_device_does_not_harm_a_capture_on_the_other(two_devices: Any) -> None:
    driver, meet = two_devices, meeting(2)

    def work(device: int) -> None:
        if device == 0:
            meet.wait()
            driver.ctx_synchronize()
            meet.wait()
            return
        forward = Forward(driver, lambda place: (meet.wait(), meet.wait()) if place == "segment 0" else None)
        graph = forward.capture()
        forward.check(graph, 4)
        forward.finish(graph)

    on_two_devices(driver, work)


def test_an_arena_of_another_device_is_refused_and_the_thread_is_clean(two_devices: Any) -> None:
    driver = two_devices
    arena = bg.Arena()

    def work(device: int) -> None:
        if device == 0:
            return
        with pytest.raises(CaptureStateError, match="another driver or context"), bg.capture(arena=arena):
            pytest.fail("the body of a refused capture ran")
        assert gc.isenabled()
        forward = Forward(driver)
        graph = forward.capture()
        forward.check(graph, 4)
        forward.finish(graph)

    on_two_devices(driver, work)


# --- what other threads may do meanwhile ----------------------------------------------------------------------------


def _image(driver: Any) -> bytes:
    """A module that the driver loads. A driver may have dropped the oldest targets."""
    if driver.name == "sim":
        return b""
    refused: DriverError | None = None
    for target in ("sm_50", "sm_75", "sm_90"):
        image = PTX.format(target=target).encode() + b"\0"
        try:
            driver.module_unload(driver.module_load_data(image))
        except DriverError as error:
            refused = error
        else:
            return image
    raise AssertionError("the driver loads no module") from refused


class Meddler:
    """What one thread does over and over, made in that thread."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.stream = driver.create_stream()
        self.image = _image(driver)
        self.forward: Any = None
        self.graph: Any = None

    def plain_memory(self) -> None:
        ptr = self.driver.mem_alloc(1 << 20)
        self.driver.mem_free(ptr)

    def pinned_memory(self) -> None:
        ptr = self.driver.mem_host_alloc(4096)
        self.driver.mem_free_host(ptr)

    def stream_ordered_memory(self) -> None:
        ptr = self.driver.mem_alloc_async(1 << 16, int(self.stream))
        self.driver.memset_d8_async(ptr, 1, 1 << 16, int(self.stream))
        self.driver.mem_free_async(ptr, int(self.stream))
        self.driver.stream_synchronize(int(self.stream))

    def the_pool(self) -> None:
        pool = self.driver.device_get_default_mem_pool(self.driver.ctx_get_device())
        self.driver.mem_pool_get_attribute(pool, 5)
        self.driver.mem_pool_trim_to(pool, 0)

    def modules(self) -> None:
        self.driver.module_unload(self.driver.module_load_data(self.image))

    def streams_and_events(self) -> None:
        event, stream = self.driver.event_create(EventFlag.DISABLE_TIMING), self.driver.stream_create()
        self.driver.event_record(event, stream)
        self.driver.event_query(event)
        self.driver.event_synchronize(event)
        self.driver.stream_query(stream)
        self.driver.event_destroy(event)
        self.driver.stream_destroy(stream)

    def default_stream(self) -> None:
        self.driver.stream_synchronize(0)
        self.driver.stream_query(0)

    def graphs_of_its_own(self) -> None:
        driver, stream = self.driver, int(self.stream)
        ptr = driver.mem_alloc(4096)
        driver.stream_begin_capture(stream, CaptureMode.THREAD_LOCAL)
        driver.memset_d8_async(ptr, 1, 4096, stream)
        graph = driver.stream_end_capture(stream)
        made = driver.graph_instantiate(graph)
        driver.graph_exec_update(made, graph)
        driver.graph_launch(made, stream)
        driver.stream_synchronize(stream)
        driver.graph_exec_destroy(made)
        driver.graph_destroy(graph)
        driver.mem_free(ptr)

    def captures_and_closes(self) -> None:
        self.forward = self.forward or Forward(self.driver)
        graph = self.forward.capture()
        self.forward.finish(graph)

    def replays(self) -> None:
        if self.graph is None:
            self.forward = Forward(self.driver)
            self.graph = self.forward.capture()
        self.forward.check(self.graph, 7)

    def arenas(self) -> None:
        arena = bg.Arena()
        block = arena.allocate(3 << 20)
        arena.sleep()
        arena.wake()
        del block

    def array_work(self) -> None:
        with on_stream_of(self.driver, self.stream) as xp:
            total = xp.asarray(np.arange(8, dtype=np.float32)) * 2 + 1
            assert total.get()[-1] == 15

    def collections(self) -> None:
        circle: list[Any] = [bg.BreakableGraph()]
        circle.append(circle)
        del circle
        gc.collect()

    def failed_captures(self) -> None:
        with pytest.raises(KeyError), bg.capture(arena=bg.Arena()):
            raise KeyError("planned")

    def end(self) -> None:
        if self.graph is not None:
            self.graph.close()


@contextmanager
def on_stream_of(driver: Any, stream: Any) -> Iterator[Any]:
    """The array namespace, with a stream of ours as the thread's current one."""
    xp = bg.array_namespace()
    probe = xp.zeros(1, np.float32)
    with on_stream(probe, stream):
        yield xp


MEDDLING = sorted(
    name for name, member in vars(Meddler).items() if callable(member) and not name.startswith("_") and name != "end"
)


class Meddling:
    """A thread that meddles until it is told to stop, and whose rounds can be waited for."""

    def __init__(self, driver: Any, what: str) -> None:
        self.rounds = 0
        self.stopped = False
        self.ready, self._driver, self._what = threading.Event(), driver, what

    def run(self) -> int:
        try:
            meddler = Meddler(self._driver)
            call = getattr(meddler, self._what)
            while not self.stopped:
                call()
                self.rounds += 1
                self.ready.set()
            meddler.end()
        finally:
            self.ready.set()
        return self.rounds

    def wait_for_rounds(self) -> None:
        """Until at least one whole round has been made since now."""
        wanted, until = self.rounds + 2, time.monotonic() + SECONDS / 3
        while self.rounds < wanted:
            assert time.monotonic() < until, f"{self._what} made no round meanwhile"
            time.sleep(0)


@pytest.mark.parametrize("what", MEDDLING)
def test_whatever_another_thread_does_in_each_segment_the_capture_is_good(driver: Any, xp: Any, what: str) -> None:
    meddling = Meddling(driver, what)

    def capture() -> None:
        try:
            assert meddling.ready.wait(SECONDS / 3)
            for place in ("segment 0", "break", "segment 1"):
                forward = Forward(driver, lambda now, place=place: meddling.wait_for_rounds() if now == place else None)
                graph = forward.capture()
                forward.check(graph, 5)
                forward.finish(graph)
        finally:
            meddling.stopped = True

    rounds, _ = all_well(in_threads(driver, meddling.run, capture, seconds=SECONDS))
    assert rounds >= 6


def test_all_of_it_at_once_harms_neither_captures_nor_replays(driver: Any, xp: Any) -> None:
    meddlers = [
        Meddling(driver, what) for what in ("plain_memory", "modules", "captures_and_closes", "replays", "collections")
    ]
    done: list[int] = []

    def capture(at: int) -> None:
        try:
            forward = Forward(driver)
            for round_ in range(5):
                graph = forward.capture()
                forward.check(graph, at + round_)
                forward.finish(graph)
        finally:
            done.append(at)
            if len(done) == 2:
                for one in meddlers:
                    one.stopped = True

    runs = [*(one.run for one in meddlers), lambda: capture(0), lambda: capture(1)]
    all_well(in_threads(driver, *runs, seconds=SECONDS))
    assert gc.isenabled()


@pytest.mark.parametrize("how", ["closed", "reset", "dropped"])
def test_a_graph_of_this_thread_may_be_destroyed_by_another_while_this_one_captures(
    driver: Any, xp: Any, how: str
) -> None:
    forward = Forward(driver)
    graphs = [forward.capture()]
    forward.check(graphs[0], 4)

    def destroy() -> None:
        if how == "dropped":
            graphs.clear()
            gc.collect()
        else:
            {"closed": graphs[0].close, "reset": graphs[0].reset}[how]()

    other = Forward(driver, lambda place: all_well(in_threads(driver, destroy)) if place == "segment 0" else None)
    made = other.capture()
    if driver.name == "sim":
        assert len(driver.live()["graph_exec"]) == 2, "those of the capture that went on"
    other.check(made, 5)


def test_work_that_another_thread_puts_on_the_capturing_stream_is_captured(driver: Any, xp: Any) -> None:
    """The driver's rule; a stream given by the caller is theirs to keep free of it (C1)."""
    x, out = zeros(xp), zeros(xp)

    def work() -> None:
        with on_stream(x, origin):
            np.multiply(x, 2, out=out)

    with bg.capture() as graph:
        origin = bg.current_stream()
        all_well(in_threads(driver, work))
        np.add(out, 1, out=out)
    assert graph.segments[0].nodes == 2
    refill(x, 3)
    graph.replay()
    assert holds(out, 7)


# --- the collector --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_off_from_the_first_capture_to_the_last_and_then_as_it_was(
    driver: Any, xp: Any, enabled: bool
) -> None:
    """Captures open one by one and close one by one, one of them by a failure, one by a refusal."""
    turns, seen = [threading.Event() for _ in range(8)], []

    def step(at: int) -> None:
        seen.append(gc.isenabled())
        turns[at].set()

    def work(at: int) -> None:
        x, arena = zeros(xp), bg.Arena()
        assert turns[at].wait(SECONDS)
        try:
            with bg.capture(arena=arena):
                x + 1
                step(at + 1)
                assert turns[at + 4].wait(SECONDS)
                if at == 1:
                    raise KeyError("planned")
                if at == 2:
                    with pytest.raises(CaptureStateError), bg.capture():
                        pytest.fail("the body of a refused capture ran")
        except KeyError:
            assert at == 1
        if at < 3:
            step(at + 5)
        else:
            seen.append(gc.isenabled())

    (gc.enable if enabled else gc.disable)()
    try:
        turns[0].set()
        all_well(in_threads(driver, *(lambda at=at: work(at) for at in range(4)), seconds=SECONDS))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert seen == [False] * 7 + [enabled]


# --- the one thing that does harm -----------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["end", "break", "work", "work and break"])
def test_a_context_synchronize_of_another_thread_yields_an_error_that_says_exactly_that(
    driver: Any, xp: Any, then: str
) -> None:
    x, out = zeros(xp), zeros(xp)
    with pytest.raises(RuntimeError) as raised, bg.capture(name="forward") as graph:
        np.add(x, 1, out=out)
        (theirs,) = in_threads(driver, driver.ctx_synchronize)
        if "work" in then:
            np.add(out, 1, out=out)
        if "break" in then:
            bg.break_graph()
    assert isinstance(theirs, DriverError)
    assert theirs.code == 900
    if then == "end":
        assert isinstance(raised.value, CaptureFailed)
        assert isinstance(raised.value.__cause__, CaptureInvalidated)
    elif then == "break" or driver.name == "sim":
        assert isinstance(raised.value, CaptureInvalidated)
    said = full_text(raised.value)
    assert "another thread" in said
    assert "synchroniz" in said
    assert "context or device" in said
    assert re.search("(?i)nothing (that|in) this thread", said)
    assert "segment 0" in said
    assert "such a call cannot be recorded" not in said, "the call that was told so is not the one that did it"
    assert_failed_clean(graph, driver)
    assert gc.isenabled()
    assert_next_capture_works(xp)


def test_a_context_synchronize_in_a_break_of_another_threads_capture_harms_nobody(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    driver.synchronize()
    with bg.capture() as graph:
        t = x + 1
        bg.break_here(lambda: all_well(in_threads(driver, driver.ctx_synchronize)), bg.IN_PLACE)
        y = t + 1
    refill(x, 3)
    graph.replay()
    assert holds(y, 5)


def test_a_context_synchronize_takes_every_capture_of_the_context_and_the_next_ones_are_good(
    driver: Any, xp: Any
) -> None:
    meet = meeting(3)

    def work(at: int) -> None:
        forward = Forward(driver, lambda place: (meet.wait(), meet.wait()) if place == "segment 0" else None)
        with pytest.raises(RuntimeError) as raised:
            forward.capture()
        assert "another thread" in full_text(raised.value)
        meet.wait()
        forward.told = lambda place: None
        graph = forward.capture()
        forward.check(graph, at)
        forward.finish(graph)

    def synchronizes() -> None:
        meet.wait()
        with pytest.raises(DriverError):
            driver.ctx_synchronize()
        meet.wait()
        meet.wait()

    all_well(in_threads(driver, lambda: work(0), lambda: work(1), synchronizes, seconds=SECONDS))


# --- replays ---------------------------------------------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("shared", [False, True], ids=["arenas of their own", "one arena"])
def test_different_graphs_may_be_replayed_by_different_threads_at_once(driver: Any, xp: Any, shared: bool) -> None:
    """On one arena they take turns, on several they overlap; the values are the same."""
    arena, meet = bg.Arena(), meeting(3)
    inside, most = [0], [0]

    def told(place: str) -> None:
        if place == "replay":
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if not shared:
                meet.wait()  # all three are in their break
                most[0] = max(most[0], inside[0])
                meet.wait()
            inside[0] -= 1

    forwards = [Forward(driver, told) for _ in range(3)]
    for forward in forwards:
        forward.arena = arena if shared else forward.arena
    graphs = [forward.capture() for forward in forwards]

    def work(at: int) -> None:
        for value in range(5):
            forwards[at].check(graphs[at], at * 10 + value)

    all_well(in_threads(driver, *(lambda at=at: work(at) for at in range(3)), seconds=SECONDS))
    assert [graph.replays for graph in graphs] == [5, 5, 5]
    assert most[0] == (1 if shared else 3)


@every_schedule
def test_a_capture_goes_on_while_other_threads_replay(driver: Any, xp: Any) -> None:
    meet, forward = meeting(2), Forward(driver)
    graph = forward.capture()

    def replay() -> None:
        for _ in range(2):
            meet.wait()
            forward.check(graph, 4)
            meet.wait()

    def capture() -> None:
        mine = Forward(driver, lambda place: (meet.wait(), meet.wait()) if place.startswith("segment") else None)
        made = mine.capture()
        mine.told = lambda place: None
        mine.check(made, 6)
        mine.finish(made)

    all_well(in_threads(driver, replay, capture, seconds=SECONDS))
    assert graph.replays == 2


def test_one_graph_is_replayed_by_one_of_many_threads_and_refused_to_the_others(driver: Any, xp: Any) -> None:
    meet, inside = meeting(4), threading.Lock()

    def told(place: str) -> None:
        if place == "replay":
            assert inside.acquire(blocking=False), "two replays of one graph at once"
            meet.wait()  # the other three have been refused
            inside.release()

    forward = Forward(driver, told)
    graph = forward.capture()
    driver.synchronize()
    refill(forward.x, 4)
    driver.synchronize()

    def work() -> str:
        try:
            graph.replay(stream=forward.stream)
        except CaptureStateError as error:
            meet.wait()
            return error.what
        return "replayed"

    outcomes = all_well(in_threads(driver, work, work, work, work, seconds=SECONDS))
    assert outcomes.count("replayed") == 1
    assert sum("is being replayed by another thread" in outcome for outcome in outcomes) == 3
    assert graph.replays == 1
    driver.synchronize()
    assert holds(forward.out, 25)
    forward.told = lambda place: None
    forward.check(graph, 5)


@pytest.mark.parametrize("call", ["close", "reset", "abandon"])
def test_a_graph_is_not_emptied_under_a_replay_of_another_thread(driver: Any, xp: Any, call: str) -> None:
    outcomes: list[Any] = []

    def told(place: str) -> None:
        if place == "replay":
            outcomes.extend(in_threads(driver, getattr(graph, call)))

    forward = Forward(driver, told)
    graph = forward.capture()
    for value in (5, 6):
        forward.check(graph, value)
    assert [type(outcome) for outcome in outcomes] == [CaptureStateError] * 2
    assert graph.captured
    assert graph.replays == 2


# --- threads that end -----------------------------------------------------------------------------------------


def test_a_graph_outlives_the_thread_that_captured_it(driver: Any, xp: Any) -> None:
    """Its stream, its event and its default arena were that thread's own."""

    def work() -> Any:
        x = zeros(xp)
        driver.stream_synchronize(0)
        with bg.capture() as graph:
            t = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
            y = t + 3
        return graph, x, y

    ((graph, x, y),) = all_well(in_threads(driver, work))
    gc.collect()
    for value in (3, 4):
        refill(x, value)
        graph.replay()
        assert holds(y, (value + 1) * 2 + 3)
    all_well(in_threads(driver, lambda: graph.replay(stream=driver.create_stream())))
    assert graph.replays == 3
    graph.close()
    assert_next_capture_works(xp)


@pytest.mark.parametrize("where", ["segment", "break"])
def test_a_thread_that_dies_of_an_exception_leaves_nothing_shut(driver: Any, xp: Any, where: str) -> None:
    arena, graph = bg.Arena(), bg.BreakableGraph()

    def work() -> None:
        x = zeros(xp)
        with bg.capture(graph, arena=arena):
            t = x + 1
            if where == "segment":
                raise SystemExit
            bg.break_here(_exits, bg.IN_PLACE)
            t + 1

    (outcome,) = in_threads(driver, work)
    assert isinstance(outcome, SystemExit)
    del outcome
    assert gc.isenabled()
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp, arena=arena)


def _exits() -> None:
    raise SystemExit


@pytest.mark.parametrize("scope", ["dropped in the thread", "kept until the thread is gone"])
@pytest.mark.parametrize("own_stream", [True, False], ids=["stream of the caller", "stream of the thread"])
@pytest.mark.filterwarnings("ignore::breakgraph.errors.BreakgraphWarning")
def test_a_thread_that_ends_without_leaving_its_scope_leaves_nothing_shut(
    driver: Any, xp: Any, scope: str, own_stream: bool
) -> None:
    """Nobody can end that capture as it should be ended; once the scope is dropped, the graph has failed."""
    arena, graph = bg.Arena(), bg.BreakableGraph()
    side, order, kept = driver.create_stream(), Order(driver), []
    mine = driver.create_stream() if own_stream else None

    def work() -> None:
        x = zeros(xp)
        driver.stream_synchronize(0)
        opened = bg.capture(graph, arena=arena, stream=mine)
        opened.__enter__()
        order(bg.current_stream(), side)
        with on_stream(x, side):
            np.add(x, 1, out=x)
        if scope.startswith("kept"):
            kept.append(opened)

    all_well(in_threads(driver, work))
    if kept:
        assert graph.state == "capturing"
        with pytest.raises(CaptureStateError):
            graph.replay()
        probe, current = zeros(xp), driver.create_stream()
        with on_stream(probe, current):
            kept.clear()
            assert stream_of(probe) == int(current), "the scope's current stream was the dead thread's, not ours"
        assert stream_of(probe) == 0
    gc.collect()
    assert gc.isenabled()
    assert graph.state == "failed"
    assert driver.stream_is_capturing(int(side)) == CaptureStatus.NONE
    if mine is not None:
        assert driver.stream_is_capturing(int(mine)) == CaptureStatus.NONE
    if driver.name == "sim":
        assert not driver.live()["capture"]
        assert not driver.live()["graph"]
    x = zeros(xp)
    driver.synchronize()
    with bg.capture(arena=arena, stream=mine) as again:
        y = x + 1
    refill(x, 3)
    again.replay()
    assert holds(y, 4)


def test_a_replay_whose_thread_died_in_a_break_lets_the_arena_go(driver: Any, xp: Any) -> None:
    forward = Forward(driver, lambda place: _exits() if place == "replay" else None)
    graph = forward.capture()
    (outcome,) = in_threads(driver, lambda: graph.replay(stream=forward.stream))
    assert isinstance(outcome, SystemExit)
    del outcome
    forward.told = lambda place: None
    all_well(in_threads(driver, lambda: forward.check(graph, 5), lambda: None))
    forward.check(graph, 6)


# --- tasks of an event loop -----------------------------------------------------------------------------------


def test_a_capture_of_another_task_is_refused_while_one_awaits_in_its_scope(driver: Any, xp: Any) -> None:
    """Tasks share their thread's slot: the second capture is a nested one. The first goes on, and is good."""
    x, out = zeros(xp), zeros(xp)
    log: list[str] = []

    async def first() -> Any:
        with bg.capture() as graph:
            np.add(x, 1, out=out)
            entered.set()
            await asyncio.wait_for(tried.wait(), SECONDS)
            bg.break_graph()
            np.add(out, 1, out=out)
        log.append("first")
        return graph

    async def second() -> None:
        await asyncio.wait_for(entered.wait(), SECONDS)
        with pytest.raises(CaptureStateError, match="inside another one of the same thread"), bg.capture():
            pytest.fail("the body of a refused capture ran")
        log.append("refused")
        tried.set()

    async def main() -> Any:
        graph, _ = await asyncio.gather(first(), second())
        with bg.capture() as later:  # and then it is its turn
            np.add(x, 1, out=out)
        return graph, later

    entered, tried = asyncio.Event(), asyncio.Event()
    graph, later = asyncio.run(main())
    assert log == ["refused", "first"]
    assert len(graph.segments) == 2
    refill(x, 5)
    graph.replay()
    assert holds(out, 7)
    assert later.captured


def test_work_of_another_task_is_captured_while_one_awaits_in_its_scope(driver: Any, xp: Any) -> None:
    """Which is why one awaits before the scope or after it: the current stream is the thread's, not the task's."""
    x, out = zeros(xp), zeros(xp)

    async def other() -> None:
        assert bg.is_capturing()
        np.multiply(x, 2, out=out)

    async def main() -> Any:
        with bg.capture() as graph:
            np.add(x, 1, out=x)
            await asyncio.create_task(other())
        assert not bg.is_capturing()
        return graph

    graph = asyncio.run(main())
    assert graph.segments[0].nodes == 2
    driver.synchronize()
    refill(x, 3)
    graph.replay()
    assert holds(out, 8)


def test_a_task_that_is_cancelled_in_its_scope_leaves_the_thread_clean(driver: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()

    async def captures() -> None:
        with bg.capture(graph):
            x + 1
            await asyncio.sleep(SECONDS)

    async def main() -> None:
        task = asyncio.create_task(captures())
        await asyncio.sleep(0)
        assert bg.is_capturing()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not bg.is_capturing()
        assert_next_capture_works(xp)

    asyncio.run(main())
    assert_failed_clean(graph, driver)


def test_tasks_may_capture_in_threads_of_their_own(driver: Any, xp: Any) -> None:
    meet, context = meeting(3), driver.ctx_get_current()

    def work(at: int) -> float:
        driver.ctx_set_current(context)
        forward = Forward(driver, lambda place: meet.wait())
        graph = forward.capture()
        forward.check(graph, at)
        forward.finish(graph)
        return at

    async def main() -> list[float]:
        return await asyncio.wait_for(asyncio.gather(*(asyncio.to_thread(work, at) for at in range(3))), SECONDS)

    assert asyncio.run(main()) == [0, 1, 2]
    assert not bg.is_capturing()


@pytest.mark.parametrize("form", ["function", "method", "partial", "generator", "object"])
def test_a_coroutine_of_any_form_is_refused_as_a_break(driver: Any, xp: Any, form: str) -> None:
    class Service:
        async def method(self) -> None: ...

        async def __call__(self) -> None: ...

    async def function() -> None: ...

    async def generator() -> Any:
        yield 1

    work = {
        "function": function,
        "method": Service().method,
        "partial": partial(function),
        "generator": generator,
        "object": Service(),
    }[form]
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(BreakgraphError, match="coroutine") as raised, bg.capture(graph):
        np.add(x, 1, out=x)
        bg.break_here(work, bg.IN_PLACE)
    assert "await before or after" in raised.value.remedy
    assert_failed_clean(graph, driver)
    assert thread_mode(driver) == CaptureMode.GLOBAL
    assert_next_capture_works(xp)
