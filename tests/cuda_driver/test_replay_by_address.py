"""Whole captures and replays over the CUDA driver's own layer, whose calls by address the simulated driver answers.

Proves, with the C extension where it was built and without it in any case, that a replay goes in a round of calls by
address, in the same order as on the simulator; that its results land; that it is refused, waited for and closed as
there; and that the host runs no further ahead than the queue holds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from in_flight import InFlight
from support import ROOT, all_well, in_threads, live

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import cuda, entries, portable
from breakgraph.driver.api import CaptureMode
from breakgraph.driver.cuda import CudaDriver
from breakgraph.driver.sim import SimDriver
from breakgraph.errors import CaptureStateError, DriverError
from breakgraph.memory import turn
from breakgraph.memory.backlog import HALF

from .simulated_bindings import simulated_bindings

sys.path.append(str(ROOT / "examples"))
from own_framework import Vector, VectorFramework


class Vectors(VectorFramework):
    """The example's runtime, as a library of CUDA's."""

    driver_name = "cuda"


class Driver(CudaDriver):
    """The layer over CUDA, with the simulator in CUDA's place, and its way to launch a kernel."""

    def __init__(self) -> None:
        self.sim = SimDriver(schedule="lazy")
        super().__init__(simulated_bindings(self.sim))
        self.launch = self.sim.launch


@pytest.fixture
def driver(twin: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(entries, "Call", twin.Call)
    monkeypatch.setattr(cuda, "Sequence", twin.Sequence)
    monkeypatch.setattr(cuda, "Round", twin.Round)
    monkeypatch.setattr(turn, "Claim", twin.Claim)
    made = Driver()
    with bg.driver.use(made):
        made.synchronize()
        frameworks.register(Vectors())
        yield made
        made.synchronize()
        assert not made.sim.races
        assert live(made.sim, "graph_exec") == live(made.sim, "graph") == 0


OF_VECTORS = ("mem_alloc", "mem_free", "ctx_get_current", "ctx_push_current", "ctx_pop_current")  # calls of their own


class Chain:
    """``(x + 1) * 2 + 1`` with the product in a break, as often as there are breaks."""

    def __init__(self, breaks: int = 1, **options: Any) -> None:
        self.x, self.breaks = Vector.of([1, 2]), breaks
        self.in_break = lambda: None
        with bg.capture(frameworks=["vector"], **options) as self.graph:
            y = self.x + 1
            for _ in range(breaks):
                y = bg.break_here(self._break, bg.INFER, y) + 1
            self.out = self.graph.output(y)

    def _break(self, a: Any) -> Any:
        self.in_break()
        return a * 2

    def check(self, value: float = 3) -> None:
        self.x.set([value, value])
        self.graph.replay()
        expected = value + 1
        for _ in range(self.breaks):
            expected = expected * 2 + 1
        assert self.out.get() == [expected] * 2


def test_a_replay_goes_in_a_round_and_its_result_lands(driver: Driver) -> None:
    chain = Chain(3)
    assert chain.graph._replay._only is not None
    start = len(driver.sim.log)
    chain.graph.replay()
    first, *entries, last = driver.sim.log[start:]
    assert (first.name, last.name) == ("ctx_get_current", "ctx_get_current")
    names = [entry.name for entry in entries if entry.name not in OF_VECTORS]
    step = ["graph_launch", "launch", "memcpy_dtod_async"]
    assert names == ["stream_is_capturing", "stream_wait_event", *step * 3, "graph_launch", "event_record"]
    for value in (3, 5):
        chain.check(value)
    chain.graph.close()


def test_what_a_step_raises_is_told_and_the_graph_is_good_afterwards(driver: Driver) -> None:
    chain = Chain(2)

    def fail() -> None:
        raise KeyError("mine")

    chain.in_break = fail
    with pytest.raises(KeyError) as raised:
        chain.graph.replay()
    assert "<Break 0 " in raised.value.__notes__[0]
    chain.in_break = lambda: None
    with pytest.raises(DriverError) as refused, driver.sim.fail("graph_launch", at=2, code=719):
        chain.graph.replay()
    assert (refused.value.code, refused.value.call, refused.value.where) == (719, "graph_launch", "segment 1")
    chain.check()
    chain.graph.close()


def test_a_stream_that_captures_is_refused_and_a_context_that_is_not_its_own_is_left_as_it_was(driver: Driver) -> None:
    chain, stream = Chain(), driver.create_stream()
    driver.stream_begin_capture(int(stream), CaptureMode.THREAD_LOCAL)
    with Vectors().stream_scope(int(stream)), pytest.raises(CaptureStateError, match="is capturing"):
        chain.graph.replay()
    driver.graph_destroy(driver.stream_end_capture(int(stream)))
    mine, other = driver.ctx_get_current(), driver.ctx_create(0)
    chain.x.set([4, 4])
    chain.graph.replay()
    assert driver.ctx_get_current() == other
    driver.ctx_pop_current()
    driver.ctx_destroy(other)
    assert driver.ctx_get_current() == mine
    assert chain.out.get() == [11, 11]
    chain.graph.close()


def test_it_runs_no_further_ahead_than_the_queue_holds(driver: Driver) -> None:
    chain, start = Chain(150), len(driver.sim.log)
    for _ in range(6):
        chain.graph.replay()
    found = InFlight(driver.sim.log[start:])
    assert found.enqueued == 6 * 301
    assert HALF < found.most <= 3 * HALF
    chain.graph.close()


def test_threads_take_turns_and_one_graph_is_replayed_by_one_of_them(driver: Driver) -> None:
    arena = bg.Arena()
    chains = [Chain(2, arena=arena) for _ in range(2)]
    refused: list[Any] = []
    chains[0].in_break = lambda: refused.extend(in_threads(driver, chains[0].graph.replay))
    chains[0].graph.replay()
    assert [type(one) for one in refused] == [CaptureStateError] * 2
    chains[0].in_break = lambda: None
    begin = threading.Barrier(2)

    def work(chain: Chain) -> None:
        begin.wait(20)
        for _ in range(20):
            chain.graph.replay()

    all_well(in_threads(driver, *(lambda chain=chain: work(chain) for chain in chains)))
    assert [chain.graph.replays for chain in chains] == [21, 20]
    for chain in chains:
        chain.check(7)
        chain.graph.close()


def test_the_chosen_twin_is_the_one_in_use(driver: Driver, twin: Any) -> None:
    chain = Chain()
    assert type(chain.graph._replay.round) is twin.Round
    assert type(driver._entries.graph_launch) is twin.Call
    assert (twin is portable) == (type(chain.graph.arena._turn.claim) is portable.Claim)
    chain.graph.close()
