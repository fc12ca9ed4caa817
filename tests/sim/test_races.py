"""Two accesses to the same bytes, one of them a write, that nothing orders, are found on any schedule (S7)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from breakgraph.driver.api import EventFlag, StreamFlag
from breakgraph.driver.region import Region
from breakgraph.driver.sim import RaceWarning, SimDriver

from .world import World, floats, in_thread

schedules = pytest.mark.parametrize("schedule", ["fifo", "lazy", "random"])


class Racing(World):
    def write(self, name: str, stream: int, region: Region | None = None) -> None:
        self.driver.launch(stream, lambda a: None, writes=[region or floats(self.memory, 8)], name=name)

    def read(self, name: str, stream: int, region: Region | None = None) -> None:
        self.driver.launch(stream, lambda a: None, reads=[region or floats(self.memory, 8)], name=name)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(race.first, race.second) for race in self.driver.races]


@pytest.fixture
def world() -> Racing:
    return Racing()


@schedules
def test_a_missing_wait_is_found_at_once(schedule: str) -> None:
    world = Racing(schedule=schedule)
    world.write("produce", world.stream)
    with pytest.warns(RaceWarning, match=r"produce .* and consume .* touch the 16 bytes at .* nothing orders them"):
        world.read("consume", world.other, floats(world.memory + 16, 100))
    (race,) = world.driver.races
    assert race.streams == (world.stream, world.other)
    assert (race.start, race.end) == (world.memory + 16, world.memory + 32)


@schedules
def test_a_wait_for_an_event_orders(schedule: str) -> None:
    world = Racing(schedule=schedule)
    world.write("produce", world.stream)
    world.driver.event_record(world.event, world.stream)
    world.driver.stream_wait_event(world.other, world.event)
    world.read("consume", world.other)
    assert world.pairs == []


def test_a_wait_orders_nothing_that_was_enqueued_after_the_record(world: Racing) -> None:
    world.driver.event_record(world.event, world.stream)
    world.write("produce", world.stream)
    world.driver.stream_wait_event(world.other, world.event)
    with pytest.warns(RaceWarning):
        world.read("consume", world.other)


def test_order_reaches_through_a_third_stream(world: Racing) -> None:
    third = world.driver.stream_create()
    world.write("produce", world.stream)
    for first, second in ((world.stream, third), (third, world.other)):
        world.driver.event_record(world.event, first)
        world.driver.stream_wait_event(second, world.event)
    world.read("consume", world.other)
    assert world.pairs == []


def test_two_reads_are_no_race_and_a_later_write_races_with_both(world: Racing) -> None:
    world.read("one", world.stream)
    world.read("two", world.other)
    assert world.pairs == []
    with pytest.warns(RaceWarning):
        world.write("three", world.driver.stream_create())
    assert world.pairs == [("one", "three"), ("two", "three")]


def test_interleaved_columns_of_one_buffer_are_no_race(world: Racing) -> None:
    def column(at: int) -> Region:
        return Region(world.memory + 4 * at, (8,), (16,), np.dtype(np.float32))

    world.write("even", world.stream, column(0))
    world.write("odd", world.other, column(1))
    assert world.pairs == []
    with pytest.warns(RaceWarning):
        world.write("even again", world.other, column(0))


@pytest.mark.parametrize(
    "wait",
    [
        lambda w: w.driver.stream_synchronize(w.stream),
        lambda w: w.driver.ctx_synchronize(),
        lambda w: w.driver.event_synchronize(w.event),
        lambda w: [None for _ in iter(lambda: w.driver.stream_query(w.stream), True)],
        lambda w: [None for _ in iter(lambda: w.driver.event_query(w.event), True)],
        lambda w: w.driver.memcpy_dtoh_async(w.host.ctypes.data, w.source, 4, w.stream),
        lambda w: w.driver.mem_free(w.spare),
    ],
    ids=["stream", "context", "event", "stream-query", "event-query", "pageable-copy", "free"],
)
def test_what_the_host_has_waited_for_is_before_what_it_enqueues_later(
    world: Racing, wait: Callable[[World], object]
) -> None:
    world.write("produce", world.stream)
    world.driver.event_record(world.event, world.stream)
    wait(world)
    world.read("consume", world.other)
    assert world.pairs == []


def test_a_host_wait_for_another_stream_orders_nothing(world: Racing) -> None:
    world.write("produce", world.stream)
    world.driver.stream_synchronize(world.other)
    with pytest.warns(RaceWarning):
        world.read("consume", world.other)


def test_a_query_that_says_not_yet_orders_nothing(world: Racing) -> None:
    world.write("first", world.stream)
    world.write("second", world.stream)
    assert not world.driver.stream_query(world.stream)
    with pytest.warns(RaceWarning):
        world.read("consume", world.other)


def test_a_wait_in_one_thread_counts_for_work_that_another_enqueues_later(world: Racing) -> None:
    world.write("produce", world.stream)
    world.driver.stream_synchronize(world.stream)
    world.elsewhere(lambda: world.read("consume", world.other))
    assert world.pairs == []


def test_threads_that_enqueue_without_a_wait_race(world: Racing) -> None:
    world.write("produce", world.stream)

    def consume() -> None:
        world.driver.ctx_set_current(world.context)
        with pytest.warns(RaceWarning):
            world.read("consume", world.other)

    in_thread(consume)


def test_the_legacy_stream_orders_blocking_streams_and_not_others(world: Racing) -> None:
    blocking = world.driver.stream_create(StreamFlag.DEFAULT)
    world.write("one", blocking)
    world.write("two", 0)
    world.write("three", blocking)
    assert world.pairs == []
    with pytest.warns(RaceWarning):
        world.write("four", world.stream)
    assert world.pairs == [("three", "four")] or ("three", "four") in world.pairs


def test_a_plain_copy_to_the_device_is_over_when_it_returns(world: Racing) -> None:
    world.fill(world.memory, 1, 2)
    world.read("consume", world.stream)
    assert world.pairs == []


def test_a_set_on_the_legacy_stream_is_not(world: Racing) -> None:
    world.driver.memset_d8(world.memory, 0, 16)
    with pytest.warns(RaceWarning, match="memset_d8 "):
        world.read("consume", world.stream)


def test_branches_of_one_graph_race_at_its_first_launch(world: Racing) -> None:
    world.begin()
    world.fork(world.other)
    world.write("side", world.other)
    world.write("main", world.stream)
    world.join(world.other)
    world.read("after", world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    with pytest.warns(RaceWarning):
        world.driver.graph_launch(made, world.stream)
    assert world.pairs == [("side", "main")]
    world.driver.graph_launch(made, world.stream)
    assert len(world.driver.races) == 1


def test_edges_of_a_graph_order(world: Racing) -> None:
    world.begin()
    world.write("first", world.stream)
    world.fork(world.other)
    world.read("side", world.other)
    world.read("main", world.stream)
    world.join(world.other)
    world.write("last", world.stream)
    world.driver.graph_launch(world.driver.graph_instantiate(world.end()[1]), world.stream)
    assert world.pairs == []


def test_a_launch_races_with_work_on_another_stream_and_names_the_node(world: Racing) -> None:
    world.begin()
    world.read("early", world.stream, floats(world.source, 8))
    world.write("late", world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    world.driver.graph_launch(made, world.stream)
    with pytest.warns(RaceWarning):
        world.read("consume", world.other)
    assert world.pairs == [("late", "consume")]


def test_launches_of_one_exec_on_two_streams_are_ordered(world: Racing) -> None:
    world.begin()
    world.write("node", world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    world.driver.graph_launch(made, world.stream)
    world.driver.graph_launch(made, world.other)
    assert world.pairs == []


def test_an_updated_exec_is_remembered_with_what_it_touched_before_and_after(world: Racing) -> None:
    def graph(name: str, ptr: int) -> int:
        world.begin()
        world.write(name, world.stream, floats(ptr, 8))
        return world.end()[1]

    made = world.driver.graph_instantiate(graph("before", world.memory))
    world.driver.graph_launch(made, world.stream)
    world.driver.graph_exec_update(made, graph("after", world.source))
    world.driver.graph_launch(made, world.stream)
    with pytest.warns(RaceWarning):
        world.read("one", world.other, floats(world.memory, 8))
    with pytest.warns(RaceWarning):
        world.read("two", world.other, floats(world.source, 8))
    assert world.pairs == [("before", "one"), ("after", "two")]


def test_an_external_event_orders_a_launch_after_what_it_waits_for(world: Racing) -> None:
    world.begin()
    world.driver.stream_wait_event(world.stream, world.before, EventFlag.EXTERNAL)
    world.read("node", world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    world.write("produce", world.other)
    world.driver.event_record(world.before, world.other)
    world.driver.graph_launch(made, world.stream)
    assert world.pairs == []


def test_a_free_in_stream_order_is_a_write(world: Racing) -> None:
    ptr = world.driver.mem_alloc_async(64, world.stream)
    world.driver.stream_synchronize(world.stream)
    world.read("use", world.other, floats(ptr, 4))
    with pytest.warns(RaceWarning, match=r"use .* and mem_free_async"):
        world.driver.mem_free_async(ptr, world.stream)


def test_an_unmap_races_with_what_the_host_has_not_waited_for(world: Racing) -> None:
    driver = world.driver
    driver.mem_map(world.reserved, 2 << 20, driver.mem_create(2 << 20, 0))
    driver.mem_set_access(world.reserved, 2 << 20, 0)
    world.read("waited for", world.stream, floats(world.reserved, 4))
    driver.stream_synchronize(world.stream)
    world.read("pending", world.stream, floats(world.reserved, 4))
    with pytest.warns(RaceWarning, match="pending .* and mem_unmap"):
        driver.mem_unmap(world.reserved, 2 << 20)
    assert world.pairs == [("pending", "mem_unmap")]


def test_work_of_a_destroyed_stream_is_known_after_a_context_synchronize(world: Racing) -> None:
    gone = world.driver.stream_create()
    world.write("produce", gone)
    world.driver.stream_destroy(gone)
    world.driver.ctx_synchronize()
    world.read("consume", world.other)
    assert world.pairs == []


def test_each_pair_is_reported_once(world: Racing) -> None:
    with warnings.catch_warnings(record=True) as emitted:
        warnings.simplefilter("always")
        for _ in range(3):
            world.write("one", world.stream)
            world.write("two", world.other)
    assert world.pairs == [("one", "two"), ("two", "one")]
    assert [str(warning.message) for warning in emitted] == [str(race) for race in world.driver.races]


def test_the_last_of_several_launches_is_the_one_that_counts(world: Racing) -> None:
    world.begin()
    world.write("node", world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    world.driver.graph_launch(made, world.stream)
    world.write("between", world.stream, floats(world.source, 8))
    world.driver.event_record(world.event, world.stream)
    world.driver.stream_wait_event(world.other, world.event)
    world.driver.graph_launch(made, world.stream)
    with pytest.warns(RaceWarning, match="node .* and consume"):
        world.read("consume", world.other)


def test_what_is_remembered_does_not_grow_with_replays(world: Racing) -> None:
    world.begin()
    world.write("node", world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    for _ in range(100):
        world.driver.graph_launch(made, world.stream)
        world.write("eager", world.stream)
    history = world.driver.finder._history
    assert sum(len(lane) for lane in history.values()) == 2
    world.driver.synchronize()
    assert not history


def test_clocks_do_not_grow_with_streams_that_came_and_went(world: Racing) -> None:
    for _ in range(20):
        stream = world.driver.stream_create()
        world.write("passing", stream)
        world.driver.event_record(world.event, stream)
        world.driver.stream_wait_event(world.stream, world.event)
        world.driver.stream_destroy(stream)
        world.driver.synchronize()
    world.write("last", world.stream)
    assert len(world.driver.streams.get(world.stream).lane.clock) == 1


def test_memory_that_came_back_in_stream_order_is_nobodys_race_however_much_came_back() -> None:
    """The finder remembers so many frees only; what it forgets it takes to be ordered (a program of the fuzz)."""
    sim = SimDriver(schedule="fifo")
    sim.ensure_context()
    one, other = sim.stream_create(), sim.stream_create()
    blocks = [sim.mem_alloc_async(512, one) for _ in range(600)]
    for ptr in blocks:
        sim.mem_free_async(ptr, one)
    for _ in range(600):
        sim.memset_d8_async(sim.mem_alloc_async(512, other), 7, 512, other)
    assert not sim.races
