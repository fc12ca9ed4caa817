"""The schedules and the race finder agree: a program without a race gives one result, on every schedule (S3, S7).

Programs are random: kernels on streams and inside a graph, events, waits, host waits. A kernel mixes what it
reads into what it writes, in a way that no other order gives the same bytes. If the race finder missed an
unordered pair, or a schedule broke an order, some program here would have two results and no race.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakgraph.driver.api import STREAM_LEGACY, StreamFlag
from breakgraph.driver.region import Region

from .world import World

SCHEDULES = [("fifo", 0), ("lazy", 0), *(("random", seed) for seed in range(6))]
CELLS = 3
STREAMS = 4  # two non-blocking, one blocking, the legacy one
EVENTS = 2


class Step(NamedTuple):
    what: str
    stream: int
    first: int
    second: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["kernel", "kernel", "kernel", "order", "order", "record", "wait", "synchronize", "launch"]),
        st.integers(0, STREAMS - 1),
        st.integers(0, CELLS - 1),
        st.integers(0, CELLS - 1),
    ),
    max_size=24,
)
GRAPH = st.lists(
    st.builds(
        Step,
        st.sampled_from(["kernel", "fork", "join"]),
        st.integers(0, 1),
        st.integers(0, CELLS - 1),
        st.integers(0, CELLS - 1),
    ),
    max_size=8,
)


class Program(World):
    """Runs steps, and tells the values at the end and whether there was a race."""

    def __init__(self, schedule: str, seed: int) -> None:
        super().__init__(schedule=schedule, seed=seed)
        driver = self.driver
        self.streams = [self.stream, self.other, driver.stream_create(StreamFlag.DEFAULT), STREAM_LEGACY]
        self.events = [driver.event_create() for _ in range(EVENTS)]
        self.made = 0
        driver.memset_d8(self.memory, 0, 8 * CELLS)
        driver.synchronize()

    def cell(self, at: int) -> Region:
        return Region.contiguous_at(self.memory + 8 * at, (1,), np.dtype(np.uint64))

    def kernel(self, stream: int, source: int, target: int) -> None:
        self.made += 1

        def mix(read: np.ndarray, written: np.ndarray, salt: int = self.made) -> None:  # type: ignore[type-arg]
            written[:] = written * np.uint64(6364136223846793005) + read * np.uint64(3) + np.uint64(salt)

        self.driver.launch(
            stream, mix, reads=[self.cell(source)], writes=[self.cell(target)], name=f"kernel {self.made}"
        )

    def capture(self, steps: list[Step]) -> int:
        self.begin()
        side = self.other
        self.fork(side)
        for step in steps:
            if step.what == "kernel":
                self.kernel((self.stream, side)[step.stream], step.first, step.second)
            elif step.what == "fork":
                self.fork(side)
            else:
                self.join(side)
        self.join(side)
        return self.driver.graph_instantiate(self.end()[1])

    def run(self, steps: list[Step], graph: list[Step]) -> tuple[tuple[int, ...], bool]:
        driver, made = self.driver, self.capture(graph)
        for step in steps:
            stream, event = self.streams[step.stream], self.events[step.first % EVENTS]
            if step.what == "kernel":
                self.kernel(stream, step.first, step.second)
            elif step.what == "order":  # the stream waits for what is on another one now
                driver.event_record(event, self.streams[step.second])
                driver.stream_wait_event(stream, event)
            elif step.what == "record":
                driver.event_record(event, stream)
            elif step.what == "wait":
                driver.stream_wait_event(stream, event)
            elif step.what == "synchronize":
                driver.stream_synchronize(stream)
            else:
                driver.graph_launch(made, stream)
        driver.synchronize()
        out = np.empty(CELLS, np.uint64)
        driver.memcpy_dtoh(out.ctypes.data, self.memory, out.nbytes)
        return tuple(out.tolist()), bool(driver.races)


@pytest.mark.filterwarnings("ignore::breakgraph.driver.sim.RaceWarning")
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(STEPS, GRAPH)
def test_every_schedule_gives_the_same_values_where_no_race_is_found(steps: list[Step], graph: list[Step]) -> None:
    outcomes = [Program(schedule, seed).run(steps, graph) for schedule, seed in SCHEDULES]
    raced = {race for _, race in outcomes}
    assert len(raced) == 1, "the race finder's verdict depends on the schedule"
    if raced == {False}:
        assert len({values for values, _ in outcomes}) == 1


@pytest.mark.filterwarnings("ignore::breakgraph.driver.sim.RaceWarning")
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(STEPS, GRAPH)
def test_the_same_seed_gives_the_same_values_even_with_races(steps: list[Step], graph: list[Step]) -> None:
    assert Program("random", 5).run(steps, graph) == Program("random", 5).run(steps, graph)
