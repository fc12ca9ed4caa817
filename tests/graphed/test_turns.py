"""Calls from several threads, streams and array libraries are in order, and none waits for ever.

Proves that threads that call at once take turns, capture each size once and get their own results; that inputs are
read, and results written, in the order of whichever stream the caller is on; that calls which would wait in a circle
run the function instead; and that two libraries with different current streams are ordered around a call.

The race finder looks on at every schedule; whatever could wait for ever waits for a limited time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphed_support import WIDTH, Forward, batch, poison, same
from support import ROOT, all_well, every_schedule, floats, holds, in_threads, on_stream, refill, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.errors import BreakgraphWarning, CaptureStateError

SIZES = (4, 8, 16)
SECONDS = 15.0


@pytest.fixture(autouse=True)
def _eager_switches() -> Iterator[None]:
    """Threads change places in the middle of things, not after 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


# --- streams ----------------------------------------------------------------------------------------------------


@every_schedule
def test_calls_on_one_stream_after_another_are_ordered(driver: Any, xp: Any) -> None:
    """The cells of one call are written only once the call before has read them, wherever that was."""
    service, eager = bg.graphed(Forward(xp), buckets=SIZES), Forward(xp)
    streams = [driver.create_stream() for _ in range(3)]
    inputs = [batch(xp, rows, seed) for seed, rows in enumerate((7, 5, 16, 8, 3, 8, 5, 1, 12))]
    expected = [eager(x) for x in inputs]
    driver.synchronize()
    results = []
    for at, x in enumerate(inputs):
        with on_stream(x, streams[at % 3]):
            results.append(service(x))
            poison(x)  # behind the call, on its stream
    driver.synchronize()
    assert all(same(y, e) for y, e in zip(results, expected, strict=True))
    assert service.stats.captures == 3


@every_schedule
def test_a_result_is_ready_for_what_comes_next_on_the_callers_stream(driver: Any, xp: Any) -> None:
    stream, x = driver.create_stream(), batch(xp, 5)
    service, eager = bg.graphed(Forward(xp), buckets=SIZES), Forward(xp)
    driver.synchronize()
    with on_stream(x, stream):
        y = x
        for _ in range(3):
            y = service(y - 1) % 5
        host = y.get()
    expected = x
    for _ in range(3):
        expected = eager(expected - 1) % 5
    assert np.array_equal(host, expected.get())


# --- threads ----------------------------------------------------------------------------------------------------


@every_schedule
def test_threads_that_call_at_once_capture_each_size_once_and_get_their_own(driver: Any, xp: Any) -> None:
    forward, meet = Forward(xp), threading.Barrier(4, timeout=SECONDS / 2)
    service = bg.graphed(forward, buckets=SIZES)
    weights = forward.w.get()

    def work(at: int) -> None:
        stream = driver.create_stream()
        random = np.random.default_rng(at)
        mine = xp.zeros((1, WIDTH), np.float32)
        with on_stream(mine, stream):
            for call, rows in enumerate((*SIZES, *random.integers(0, 17, 8))):
                if call < len(SIZES):
                    meet.wait()  # all see the size for the first time at once
                host = random.integers(-3, 4, (rows, WIDTH)).astype(np.float32)
                x = xp.asarray(host)
                y = service(x)
                poison(x)
                product = host @ weights
                assert np.array_equal(y.get(), (product + product.sum(axis=0)) * 2), (at, rows)
            driver.stream_synchronize(int(stream))

    all_well(in_threads(driver, *(lambda at=at: work(at) for at in range(4)), seconds=SECONDS))
    assert (service.stats.captures, service.stats.calls) == (3, 44)
    assert service.stats.hits == 41
    assert forward.bodies == 3


def test_a_thread_waits_for_the_call_of_another_and_is_not_refused(driver: Any, xp: Any) -> None:
    inside, go = threading.Event(), threading.Event()

    def forward(x: Any) -> Any:
        return bg.break_here(pauses, bg.INFER, x + 1)

    def pauses(a: Any) -> Any:
        inside.set()
        assert go.wait(SECONDS)
        return a * 2

    service = bg.graphed(forward)

    def second() -> bool:
        assert inside.wait(SECONDS)
        threading.Timer(0.05, go.set).start()
        return holds(service(floats(xp, 5)), 12)

    assert all_well(in_threads(driver, lambda: holds(service(floats(xp, 1)), 4), second, seconds=SECONDS)) == [True] * 2
    assert (service.stats.captures, service.stats.hits) == (1, 1)


def test_two_that_call_each_other_in_breaks_do_not_wait_for_ever(driver: Any, xp: Any) -> None:
    """Each thread holds one arena, and its break asks for the other's: one of them runs the function instead."""
    meet = threading.Barrier(2, timeout=SECONDS / 2)
    nested = threading.local()
    services: list[Any] = []

    def make(at: int) -> Any:
        def crosses(a: Any) -> Any:
            if getattr(nested, "deep", False):
                return a + 1
            nested.deep = True
            try:
                meet.wait()
                return services[1 - at](a)
            finally:
                nested.deep = False

        return bg.graphed(lambda x: bg.break_here(crosses, bg.INFER, x + 1) * 2)

    services += [make(0), make(1)]
    x = floats(xp, 1)
    for service in services:  # first alone: there must be graphs, or C4 decides
        nested.deep = True
        service(x)
    driver.synchronize()

    def call(at: int) -> bool:
        nested.deep = False
        return holds(services[at](floats(xp, 1)), ((2 + 1) + 1) * 2 * 2)

    with pytest.warns(BreakgraphWarning, match="its arena cannot be had: a break would wait"):
        assert all_well(in_threads(driver, lambda: call(0), lambda: call(1), seconds=SECONDS)) == [True, True]
    refused = sum(service.stats.fallbacks.get("refused", 0) for service in services)
    assert 1 <= refused <= 2


def test_graphs_may_be_reset_while_others_call(driver: Any, xp: Any) -> None:
    service, done = bg.graphed(lambda x: x + 1, buckets=SIZES), threading.Event()

    def calls() -> None:
        try:
            for at in range(60):
                assert holds(service(zeros(xp, at % 16)), 1)
        finally:
            done.set()

    def resets() -> None:
        while not done.wait(0.005):
            service.reset()

    all_well(in_threads(driver, calls, resets, seconds=SECONDS))
    assert service.stats.captures > 3
    assert not service.stats.fallbacks


@pytest.mark.parametrize("attempt", range(10))
def test_no_graph_is_left_by_a_call_that_waited_while_it_was_closed(driver: Any, xp: Any, attempt: int) -> None:
    """Whichever of the two has the first turn."""
    arena = bg.Arena()
    service = bg.graphed(lambda x: x + 1, arena=arena, fallback="allow")
    context, results, about = driver.ctx_get_current(), [], threading.Barrier(3)

    def call() -> None:
        driver.ctx_set_current(context)
        x = floats(xp, 1, 2)
        about.wait()
        results.append(service(x).get().tolist())

    def close() -> None:
        driver.ctx_set_current(context)
        about.wait()
        time.sleep(0.001)  # the call is likely to be let in before, and to wait
        service.close()

    threads = [threading.Thread(target=work) for work in (call, close)]
    with arena.exclusively("asked for by a test"):
        for thread in threads:
            thread.start()
        about.wait()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert results == [[2, 3]]
    assert service.graphs == ()


def test_a_close_that_is_refused_changes_nothing(driver: Any, xp: Any) -> None:
    def forward(x: Any) -> Any:
        if not refused:
            with pytest.raises(CaptureStateError) as told:
                service.close()
            refused.append(told)
        return x + 1

    refused: list[Any] = []
    service = bg.graphed(forward)
    for _ in range(2):
        assert holds(service(zeros(xp)), 1)
    assert (service.stats.captures, service.stats.hits) == (1, 1)


def test_instances_meet_their_graphs_from_every_thread(driver: Any, xp: Any) -> None:
    class Layer:
        @bg.graphed
        def forward(self, x: Any) -> Any:
            return x + 1

    layer, meet = Layer(), threading.Barrier(4, timeout=SECONDS / 2)

    def call() -> None:
        x = zeros(xp)
        driver.stream_synchronize(0)
        meet.wait()
        assert holds(layer.forward(x), 1)

    all_well(in_threads(driver, *[call] * 4, seconds=SECONDS))
    assert (layer.forward.stats.captures, layer.forward.stats.hits) == (1, 3)


def test_each_context_has_its_graphs(sim: Any) -> None:
    """A thread for each device calls one function."""
    with bg.driver.use("sim", devices=2, schedule="random", seed=5) as driver:
        xp, service = bg.array_namespace(), bg.graphed(lambda x: x * 3, buckets=[4])

        def work(device: int) -> int:
            context = driver.device_primary_ctx_retain(device)
            driver.ctx_set_current(context)
            for value in (1, 2):
                assert holds(service(floats(xp, value)), 3 * value)
            driver.synchronize()
            return id(service.arena)

        arenas = all_well(in_threads(driver, lambda: work(0), lambda: work(1), seconds=SECONDS))
        assert len(set(arenas)) == 2
        assert (service.stats.captures, service.stats.hits) == (2, 2)
        assert not driver.races
        driver.ctx_set_current(driver.device_primary_ctx_retain(0))
        service.close()


def test_graphs_of_one_driver_are_not_taken_for_anothers(sim: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: x + 1)
    assert holds(service(zeros(xp)), 1)
    with bg.driver.use("sim"):
        assert holds(service(zeros(bg.array_namespace())), 1)
    assert holds(service(zeros(xp)), 1)
    assert (service.stats.captures, service.stats.hits) == (2, 1)


# --- libraries with different current streams -------------------------------------------------------------------

sys.path.append(str(ROOT / "examples"))
from own_framework import Vector, VectorFramework, runtime  # noqa: E402


@pytest.mark.parametrize("sim", ["fifo", "lazy", "random"], indirect=True)
def test_libraries_on_different_streams_are_ordered_around_a_call(sim: Any, xp: Any) -> None:
    frameworks.register(VectorFramework())
    streams = sim.create_stream(), sim.create_stream()

    def forward(v: Vector, x: Any) -> Any:
        return v + 1, x * 2

    service = bg.graphed(forward)
    runtime.stream = int(streams[0])
    try:
        for value in (1, 2, 3):
            v, x = Vector.of([value, value]), floats(xp, value)
            sim.synchronize()
            with on_stream(x, streams[1]):
                v, x = v * 10, x + 5  # on the stream of each
                w, y = service(v, x)
                assert type(w) is Vector
                w, y = w * 1, y + 1
                refill(x, -1)
                assert runtime.stream == int(streams[0])
                sim.synchronize()
                assert w.get() == [value * 10 + 1] * 2
                assert holds(y, (value + 5) * 2 + 1)
        assert (service.stats.captures, service.stats.hits) == (1, 2)
        assert not sim.races
    finally:
        runtime.stream = 0
