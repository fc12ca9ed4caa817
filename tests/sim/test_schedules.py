"""Streams are asynchronous: when work runs is the schedule's choice, among the orders that are allowed (S3).

Values tell: each kernel notes its name when it runs, and an order that streams, events and edges forbid must
never be seen, while one that they allow must be seen for some seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from breakgraph.driver.api import STREAM_LEGACY, STREAM_PER_THREAD, StreamFlag

from .world import World, floats

SEEDS = range(20)
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


class Tracing(World):
    """A world whose kernels note their names when they run."""

    def __init__(self, *, schedule: str = "lazy", seed: int = 0) -> None:
        super().__init__(schedule=schedule, seed=seed)
        self.ran: list[str] = []

    def kernel(self, name: str, stream: int) -> None:
        self.driver.launch(stream, lambda: self.ran.append(name), name=name)

    def before_each_other(self, first: int, second: int, event: int = 0) -> None:
        """``second`` waits for what is on ``first`` now."""
        made = event or self.driver.event_create()
        self.driver.event_record(made, first)
        self.driver.stream_wait_event(second, made)

    def finished(self) -> str:
        self.driver.synchronize()
        return "".join(self.ran)


def orders(build: Callable[[Tracing], None]) -> set[str]:
    """The orders in which kernels ran, over the seeds."""
    seen = set()
    for seed in SEEDS:
        world = Tracing(schedule="random", seed=seed)
        build(world)
        seen.add(world.finished())
    return seen


def test_fifo_runs_at_once_in_the_order_of_submission() -> None:
    world = Tracing(schedule="fifo")
    for name, stream in zip("abc", (world.stream, world.other, world.stream), strict=True):
        world.kernel(name, stream)
    assert world.ran == ["a", "b", "c"]


def test_lazy_runs_nothing_before_it_must_and_then_only_what_is_waited_for() -> None:
    world = Tracing()
    world.kernel("a", world.stream)
    world.kernel("b", world.other)
    world.kernel("c", world.stream)
    assert world.ran == []
    world.driver.stream_synchronize(world.stream)
    assert world.ran == ["a", "c"]
    assert world.finished() == "acb"


def test_lazy_runs_what_an_event_depends_on_and_no_more() -> None:
    world = Tracing()
    world.kernel("a", world.other)
    world.before_each_other(world.other, world.stream)
    world.kernel("b", world.stream)
    world.driver.event_record(world.event, world.stream)
    world.kernel("c", world.stream)
    world.driver.event_synchronize(world.event)
    assert world.ran == ["a", "b"]


def test_polling_comes_to_an_end() -> None:
    world = Tracing()
    for name in "abc":
        world.kernel(name, world.stream)
    world.driver.event_record(world.event, world.stream)
    polls = 1
    while not world.driver.event_query(world.event):
        polls += 1
    assert world.ran == ["a", "b", "c"]
    assert polls == 5  # three kernels and the event, one a poll
    assert world.driver.stream_query(world.stream)


def test_a_queue_that_is_full_runs_its_oldest_work() -> None:
    world = Tracing()
    for _ in range(5000):
        world.kernel("a", world.stream)
    assert 0 < len(world.ran) < 5000


def test_work_on_a_destroyed_stream_still_completes() -> None:
    world = Tracing()
    blocking = world.driver.stream_create(StreamFlag.DEFAULT)
    world.kernel("a", blocking)
    world.driver.stream_destroy(blocking)
    world.kernel("b", STREAM_LEGACY)
    world.driver.stream_synchronize(STREAM_LEGACY)
    assert world.ran == ["a", "b"]


@pytest.mark.parametrize("schedule", ["fifo", "lazy", "random"])
def test_a_wait_covers_what_was_recorded_before_it_and_not_what_comes_after(schedule: str) -> None:
    world = Tracing(schedule=schedule)
    world.kernel("a", world.stream)
    world.before_each_other(world.stream, world.other, world.event)
    world.driver.event_record(world.event, world.stream)  # recorded again: the wait keeps what it saw
    world.kernel("b", world.other)
    ran = world.finished()
    assert ran.index("a") < ran.index("b")


def test_random_shows_every_order_that_two_streams_allow() -> None:
    def build(world: Tracing) -> None:
        world.kernel("a", world.stream)
        world.kernel("b", world.stream)
        world.kernel("x", world.other)

    assert orders(build) == {"abx", "axb", "xab"}


def test_random_never_breaks_an_order_that_an_event_makes() -> None:
    def build(world: Tracing) -> None:
        world.kernel("a", world.stream)
        world.before_each_other(world.stream, world.other)
        world.kernel("b", world.other)
        world.kernel("c", world.stream)
        world.before_each_other(world.other, world.stream)
        world.kernel("d", world.stream)

    assert orders(build) == {"abcd", "acbd"}


def test_random_is_the_same_for_the_same_seed() -> None:
    def ran(seed: int) -> str:
        world = Tracing(schedule="random", seed=seed)
        for at in range(30):
            world.kernel(chr(65 + at), (world.stream, world.other, 0)[at % 3])
        return world.finished()

    assert [ran(seed) for seed in SEEDS] == [ran(seed) for seed in SEEDS]
    assert len({ran(seed) for seed in SEEDS}) > 10


@pytest.mark.parametrize("stream", [0, STREAM_LEGACY])
def test_the_legacy_stream_comes_between_the_work_of_blocking_streams(stream: int) -> None:
    def build(world: Tracing) -> None:
        blocking = world.driver.stream_create(StreamFlag.DEFAULT)
        world.kernel("a", blocking)
        world.kernel("b", STREAM_PER_THREAD)
        world.kernel("-", stream)
        world.kernel("c", blocking)
        world.kernel("d", STREAM_PER_THREAD)

    assert orders(build) == {"ab-cd", "ba-cd", "ab-dc", "ba-dc"}


def test_a_non_blocking_stream_takes_no_part_in_that() -> None:
    def build(world: Tracing) -> None:
        world.kernel("a", world.stream)
        world.kernel("-", STREAM_LEGACY)

    assert orders(build) == {"a-", "-a"}


def test_plain_copies_on_the_device_do_not_wait_and_plain_copies_to_the_host_do() -> None:
    world = Tracing()
    world.kernel("a", 0)
    world.driver.memcpy_dtod(world.memory, world.source, 16)
    world.driver.memset_d8(world.memory, 0, 16)
    assert world.ran == []
    world.driver.memcpy_dtoh(world.host.ctypes.data, world.memory, 16)
    assert world.ran == ["a"]


def test_the_nodes_of_a_launch_run_in_every_order_that_the_edges_allow() -> None:
    def build(world: Tracing) -> None:
        world.begin()
        world.kernel("a", world.stream)
        world.fork(world.other)
        world.kernel("x", world.other)
        world.kernel("b", world.stream)
        world.join(world.other)
        world.kernel("z", world.stream)
        world.driver.graph_launch(world.driver.graph_instantiate(world.end()[1]), world.stream)

    assert orders(build) == {"axbz", "abxz"}


def test_launches_of_one_exec_run_one_after_another_on_whatever_streams() -> None:
    def build(world: Tracing) -> None:
        world.begin()
        world.kernel("a", world.stream)
        world.kernel("b", world.stream)
        made = world.driver.graph_instantiate(world.end()[1])
        for stream in (world.stream, world.other):
            world.driver.graph_launch(made, stream)

    assert orders(build) == {"abab"}


def test_an_empty_graph_has_its_place_in_the_order_too() -> None:
    def build(world: Tracing) -> None:
        made = world.driver.graph_instantiate(world.driver.graph_create())
        world.kernel("a", world.stream)
        world.driver.graph_launch(made, world.stream)
        world.driver.graph_launch(made, world.other)
        world.kernel("b", world.other)

    assert orders(build) == {"ab"}


def _consume(seed: int, *, waits: bool) -> list[float]:
    """What a consumer on one stream sees of a producer's work on another."""
    world = World(schedule="random", seed=seed)
    world.fill(world.memory, 0, 0)
    x, y = floats(world.memory, 2), floats(world.source, 2)
    world.driver.launch(world.stream, lambda a: a.fill(1), writes=[x], name="produce")
    if waits:
        world.driver.event_record(world.event, world.stream)
        world.driver.stream_wait_event(world.other, world.event)
    world.driver.launch(world.other, _copy, reads=[x], writes=[y], name="consume")
    return world.values(world.source, 2)


def _copy(source: Floats, out: Floats) -> None:
    out[:] = source


@pytest.mark.filterwarnings("ignore::breakgraph.driver.sim.RaceWarning")
def test_a_missing_wait_shows_in_wrong_values_within_20_seeds() -> None:
    assert any(_consume(seed, waits=False) == [0, 0] for seed in SEEDS)
    assert all(_consume(seed, waits=True) == [1, 1] for seed in SEEDS)


@pytest.mark.filterwarnings("ignore::breakgraph.driver.sim.RaceWarning")
def test_a_missing_wait_shows_on_the_lazy_schedule_at_once() -> None:
    world = World()
    world.fill(world.memory, 0, 0)
    x, y = floats(world.memory, 2), floats(world.source, 2)
    world.driver.launch(world.stream, lambda a: a.fill(1), writes=[x], name="produce")
    world.driver.launch(world.other, _copy, reads=[x], writes=[y], name="consume")
    world.driver.stream_synchronize(world.other)
    assert world.values(world.source, 2) == [0, 0]


def test_a_schedule_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="fifo, lazy, random"):
        World(schedule="eager")
