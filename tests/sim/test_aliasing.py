"""Physical memory mapped at several addresses is the same bytes at each: in value, in count, and to the race finder.

Whatever is mapped or unmapped beside it, an address that is not mapped faults, and the host gets its memory back
with the last mapping (S2, S7; CUDA programming guide, "Virtual Aliasing Support").
"""

from __future__ import annotations

import errno
import gc
import itertools
import math
import os
import random
import resource
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from breakgraph.driver.region import Region
from breakgraph.driver.sim import RaceWarning
from breakgraph.driver.sim.aliases import Aliases
from breakgraph.driver.sim.backing import Backing
from breakgraph.errors import OutOfMemory

from .world import SUCCESS, World, answer, floats

PAGE = 2 << 20
ILLEGAL_ADDRESS = "CUDA_ERROR_ILLEGAL_ADDRESS"
INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"


class Aliased(World):
    """Addresses for eight pages at ``base``; pages are mapped where a test wants them."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.base = self.driver.mem_address_reserve(8 * PAGE)

    def at(self, page: int) -> int:
        return self.base + page * PAGE

    def map(self, page: int, handle: int = 0) -> int:
        """Map a handle, or new physical memory, at one of the eight pages; the handle."""
        handle = handle or self.driver.mem_create(PAGE, 0)
        self.driver.mem_map(self.at(page), PAGE, handle)
        self.driver.mem_set_access(self.at(page), PAGE, 0)
        return handle

    def unmap(self, page: int) -> None:
        self.driver.mem_unmap(self.at(page), PAGE)

    def twice(self) -> int:
        """New physical memory at pages 0 and 4."""
        return self.map(4, self.map(0))

    def touch(self, ptr: int) -> str:
        """The answer to waiting for a kernel that reads some floats."""
        self.driver.launch(self.stream, lambda values: values.sum(), reads=[floats(ptr, 4)], name="touch")
        return answer(lambda: self.driver.stream_synchronize(self.stream))

    def write(self, name: str, stream: int, region: Region) -> None:
        self.driver.launch(stream, lambda a: None, writes=[region], name=name)

    def read(self, name: str, stream: int, region: Region) -> None:
        self.driver.launch(stream, lambda a: None, reads=[region], name=name)

    def order(self, first: int, second: int) -> None:
        """What comes on the second stream comes after what is on the first."""
        self.driver.event_record(self.event, first)
        self.driver.stream_wait_event(second, self.event)

    def captured(self, *nodes: tuple[str, Region]) -> int:
        """An exec of one node after the other, each of which writes."""
        self.begin()
        for name, region in nodes:
            self.write(name, self.stream, region)
        return self.driver.graph_instantiate(self.end()[1])

    @property
    def free(self) -> int:
        return self.driver.mem_get_info()[0]

    @property
    def host_pages(self) -> float:
        """Host memory behind physical memory, in pages."""
        return self.driver.virtual.backing.host_bytes / PAGE

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(race.first, race.second) for race in self.driver.races]


@pytest.fixture
def world() -> Aliased:
    return Aliased(memory=64 << 20)


# bytes -----------------------------------------------------------------------------------------------------
def test_a_write_through_one_address_is_read_through_the_other(world: Aliased) -> None:
    world.twice()
    world.fill(world.at(0) + 64, 1, 2)
    assert world.values(world.at(4) + 64, 2) == [1, 2]
    world.fill(world.at(4) + 64, 3)
    assert world.values(world.at(0) + 64, 2) == [3, 2]


def test_kernels_copies_and_sets_see_the_same_bytes(world: Aliased) -> None:
    world.twice()
    driver, one, two = world.driver, world.at(0), world.at(4)
    driver.launch(world.stream, lambda a: a.fill(5), writes=[floats(one, 4)])
    driver.launch(world.stream, lambda a, b: np.add(a, 1, out=b), reads=[floats(two, 4)], writes=[floats(two, 4)])
    driver.memcpy_dtod_async(one + 16, one, 8, world.stream)
    driver.memset_d32_async(two + 4, 0, 1, world.stream)
    assert world.values(one, 6) == world.values(two, 6) == [6, 0, 6, 6, 6, 6]


def test_a_graph_writes_what_another_address_shows(world: Aliased) -> None:
    world.twice()
    world.begin()
    world.driver.memset_d32_async(world.at(4), 0x3F800000, 4, world.stream)
    made = world.driver.graph_instantiate(world.end()[1])
    world.fill(world.at(0), 7, 7, 7, 7)
    world.driver.graph_launch(made, world.stream)
    assert world.values(world.at(0), 4) == [1, 1, 1, 1]


def test_fresh_physical_memory_is_poison_and_a_second_mapping_keeps_what_is_there(world: Aliased) -> None:
    handle = world.map(0)
    assert all(math.isnan(value) for value in world.values(world.at(1) - 16, 4))
    world.fill(world.at(0), 7)
    world.map(4, handle)
    assert world.values(world.at(4), 1) == [7]
    assert math.isnan(world.values(world.at(4) + 4, 1)[0])


def test_memory_that_another_one_gave_back_is_poison_again(world: Aliased) -> None:
    handle = world.twice()
    world.fill(world.at(0), *range(8))
    world.driver.mem_release(handle)
    world.unmap(0)
    world.unmap(4)
    world.twice()
    for page in (0, 4):
        assert all(math.isnan(value) for value in world.values(world.at(page), 8))


def test_a_page_may_lie_in_several_reservations_and_at_many_addresses(world: Aliased) -> None:
    handle = world.twice()
    others = [world.driver.mem_address_reserve(PAGE) for _ in range(20)]
    for other in others:
        world.driver.mem_map(other, PAGE, handle)
        world.driver.mem_set_access(other, PAGE, 0)
    world.fill(others[7], 1.5)
    assert all(world.values(ptr, 1) == [1.5] for ptr in (world.at(0), world.at(4), *others))


def test_neighbours_of_one_place_may_be_strangers_at_another(world: Aliased) -> None:
    first, second = world.map(0), world.map(1)
    world.map(5, first)
    world.map(4, second)
    across = [1.0, 2.0, 3.0, 4.0]
    world.fill(world.at(1) - 8, *across)
    assert world.values(world.at(6) - 8, 2) == across[:2]
    assert world.values(world.at(4), 2) == across[2:]


def test_content_stays_while_it_is_mapped_anywhere_and_nowhere(world: Aliased) -> None:
    handle = world.twice()
    world.fill(world.at(0), 7)
    world.unmap(0)
    world.fill(world.at(4) + 4, 8)
    assert world.values(world.at(4), 2) == [7, 8]
    world.unmap(4)
    world.map(2, handle)
    world.map(0, handle)
    assert world.values(world.at(2), 2) == world.values(world.at(0), 2) == [7, 8]


# what may be touched ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("gone", [0, 4])
def test_an_unmapped_address_faults_while_the_other_one_is_used(world: Aliased, gone: int) -> None:
    world.twice()
    world.fill(world.at(0), 1, 2, 3, 4)
    world.unmap(gone)
    assert world.touch(world.at(4 - gone)) == SUCCESS
    assert world.values(world.at(4 - gone), 4) == [1, 2, 3, 4]
    assert world.touch(world.at(gone)) == ILLEGAL_ADDRESS


def test_access_is_given_to_each_address_by_itself(world: Aliased) -> None:
    handle = world.map(0)
    world.driver.mem_map(world.at(4), PAGE, handle)
    assert world.touch(world.at(0)) == SUCCESS
    assert world.touch(world.at(4)) == ILLEGAL_ADDRESS


def test_other_memory_may_take_the_place_of_one_mapping(world: Aliased) -> None:
    world.twice()
    world.fill(world.at(0), 1)
    world.unmap(0)
    world.map(0)
    world.fill(world.at(0), 2)
    assert (world.values(world.at(0), 1), world.values(world.at(4), 1)) == ([2], [1])


@pytest.mark.parametrize(
    "ask",
    [
        lambda w, handle: w.map(4, handle),
        lambda w, handle: w.driver.mem_map(w.at(3), 2 * PAGE, handle),
        lambda w, handle: w.driver.mem_unmap(w.at(2), PAGE),
        lambda w, handle: w.driver.mem_address_free(w.base, 8 * PAGE),
        lambda w, handle: (w.driver.mem_release(handle), w.map(2, handle)),
    ],
    ids=["map-over-itself", "map-over-another-size", "unmap-elsewhere", "free-addresses", "map-what-is-released"],
)
def test_a_wrong_use_is_refused_and_changes_nothing(world: Aliased, ask: Callable[[Aliased, int], object]) -> None:
    handle = world.twice()
    world.fill(world.at(0), 3)
    free = world.free
    assert answer(lambda: ask(world, handle)) == INVALID_VALUE
    assert (world.values(world.at(0), 1), world.values(world.at(4), 1), world.free) == ([3], [3], free)


# the device's memory, and the host's -----------------------------------------------------------------------
def test_physical_memory_counts_once_however_often_it_is_mapped(world: Aliased) -> None:
    free = world.free
    handle = world.twice()
    for page in (1, 2, 3):
        world.map(page, handle)
    assert world.free == free - PAGE


@pytest.mark.parametrize("order", list(itertools.permutations(["unmap 0", "unmap 4", "unmap 6", "release"])))
def test_memory_is_given_back_by_the_last_of_its_mappings_and_its_handle(order: tuple[str, ...]) -> None:
    world = Aliased()
    free = world.free
    handle = world.twice()
    world.map(6, handle)
    world.fill(world.at(0), 5)
    mapped = [0, 4, 6]
    for step in order:
        assert world.free == free - PAGE
        assert world.host_pages == 1
        if step == "release":
            world.driver.mem_release(handle)
        else:
            mapped.remove(int(step[-1]))
            world.unmap(int(step[-1]))
        assert all(world.values(world.at(page), 1) == [5] for page in mapped)
        assert len(world.driver.live()["physical"]) == ("release" not in order[: order.index(step) + 1])
    assert world.free == free
    assert world.host_pages == 0
    assert not world.driver.aliases
    world.driver.mem_address_free(world.base, 8 * PAGE)


def test_host_memory_is_taken_by_the_first_mapping_and_not_by_others(world: Aliased) -> None:
    handle = world.driver.mem_create(PAGE, 0)
    assert world.host_pages == 0
    for page in range(8):
        world.map(page, handle)
        world.fill(world.at(page) + 4 * page, page)
    assert world.host_pages == 1
    assert world.values(world.base, 8) == list(range(8))


def test_memory_of_many_pages_goes_page_by_page(world: Aliased) -> None:
    handles = [world.map(page) for page in range(8)]
    assert world.host_pages == 8
    for left, handle in zip(reversed(range(8)), handles, strict=True):
        world.driver.mem_release(handle)
        world.unmap(7 - left)
        assert world.host_pages == left


def host_maps() -> int:
    """Parts of this process's memory that show physical memory."""
    return Path("/proc/self/maps").read_text().count("memfd:breakgraph")


@pytest.fixture
def _collected() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


@pytest.mark.usefixtures("_collected")
def test_an_unmapped_address_shows_nothing_to_the_host_either(world: Aliased) -> None:
    before = host_maps()
    world.twice()
    assert host_maps() == before + 2
    world.driver.synchronize()
    world.unmap(0)
    assert host_maps() == before + 1
    world.unmap(4)
    assert host_maps() == before


@pytest.mark.usefixtures("_collected")
def test_a_device_that_is_dropped_leaves_no_mapping_and_no_file_behind() -> None:
    before = host_maps(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        world = Aliased()
        world.twice()
        world.fill(world.at(0), 1)
        assert host_maps() == before[0] + 2
        del world
        gc.collect()
        assert (host_maps(), len(os.listdir("/proc/self/fd"))) == before


def test_an_array_over_a_mapping_may_outlive_the_device() -> None:
    world = Aliased()
    world.twice()
    kept: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
    world.driver.launch(world.stream, kept.append, writes=[floats(world.at(4), 4)])
    world.driver.synchronize()
    world.fill(world.at(0), 1, 2, 3, 4)
    del world
    gc.collect()
    assert kept[0].tolist() == [1, 2, 3, 4]


def test_thousands_of_pages_and_reservations_take_one_file_descriptor() -> None:
    world = Aliased(memory=16 << 30)
    driver = world.driver
    handles = [driver.mem_create(PAGE, 0) for _ in range(3000)]
    files = len(os.listdir("/proc/self/fd"))
    reserved = [driver.mem_address_reserve((1 + at % 128) * PAGE) for at in range(3000)]
    for handle, ptr in zip(handles[:20], reserved, strict=False):  # a few: each one takes the host's memory
        driver.mem_map(ptr, PAGE, handle)
    first = reserved[-1]
    for at in range(50):
        driver.mem_map(first + at * PAGE, PAGE, handles[at % 20])
    driver.mem_set_access(first, 50 * PAGE, 0)
    world.fill(first + 45 * PAGE, 4)
    assert [world.values(first + at * PAGE, 1) for at in (5, 25)] == [[4], [4]]
    assert len(os.listdir("/proc/self/fd")) == files
    assert files < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    driver.mem_unmap(first, 50 * PAGE)
    for ptr in reserved[:20]:
        driver.mem_unmap(ptr, PAGE)
    for handle in handles:
        driver.mem_release(handle)
    for at, ptr in enumerate(reserved):
        driver.mem_address_free(ptr, (1 + at % 128) * PAGE)
    assert world.host_pages == 0
    assert driver.mem_address_reserve(PAGE) == reserved[0]


def test_addresses_that_were_given_back_are_in_no_reservation(world: Aliased) -> None:
    handle, behind = world.twice(), world.driver.mem_address_reserve(PAGE)
    world.driver.mem_address_free(world.reserved, PAGE)
    assert answer(lambda: world.driver.mem_map(world.reserved, PAGE, handle)) == INVALID_VALUE
    world.driver.mem_map(behind, PAGE, handle)
    assert world.driver.mem_address_reserve(PAGE) == world.reserved
    world.driver.mem_map(world.reserved, PAGE, handle)


def test_bytes_that_the_host_refused_are_there_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space is left")

    backing = Backing()
    first = backing.take(PAGE)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space is left"):
        patch.setattr(os, "ftruncate", refuse)
        backing.take(PAGE)
    assert backing.take(PAGE) == first + PAGE
    backing.give(first, PAGE)
    assert backing.take(PAGE) == first


@pytest.mark.parametrize("call", ["take", "fill", "show"])
def test_what_the_host_refuses_is_out_of_memory_and_leaves_all_as_it_was(
    world: Aliased, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(self: Backing, *_: object) -> int:
        raise OSError(errno.ENOMEM, "no memory is left")

    handle = world.map(0)
    world.fill(world.at(0), 2)
    free, before = world.free, world.driver.live()
    fresh = world.driver.mem_create(PAGE, 0) if call == "fill" else handle
    with monkeypatch.context() as patch:
        patch.setattr(Backing, call, refuse)
        with pytest.raises(OutOfMemory, match="no memory is left"):
            world.driver.mem_create(PAGE, 0) if call == "take" else world.map(4, fresh)
    if call == "fill":
        world.driver.mem_release(fresh)
    assert (world.free, world.driver.live()) == (free, before)
    world.map(4, handle)
    assert world.values(world.at(4), 1) == [2]


def test_where_there_is_no_memory_file_a_temporary_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    world = Aliased()
    handle = world.twice()
    assert math.isnan(world.values(world.at(0), 1)[0])
    world.fill(world.at(0), 6)
    assert world.values(world.at(4), 1) == [6]
    world.driver.mem_release(handle)
    world.unmap(0)
    world.unmap(4)
    world.twice()
    assert math.isnan(world.values(world.at(4), 1)[0])


def test_a_forked_child_that_drops_the_device_takes_nothing_from_its_parent(world: Aliased) -> None:
    handle = world.twice()
    world.fill(world.at(0), 9)
    child = os.fork()
    if not child:
        world.driver.mem_unmap(world.at(0), PAGE)
        world.driver.mem_unmap(world.at(4), PAGE)
        world.driver.mem_release(handle)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert world.values(world.at(4), 1) == [9]


# races -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("schedule", ["fifo", "lazy", "random"])
@pytest.mark.parametrize(("first", "second"), [(0, 4), (4, 0), (4, 4)])
def test_accesses_through_two_addresses_race(schedule: str, first: int, second: int) -> None:
    world = Aliased(schedule=schedule)
    world.twice()
    world.write("produce", world.stream, floats(world.at(first), 8))
    with pytest.warns(RaceWarning, match=r"produce .* and consume .* touch the 16 bytes"):
        world.read("consume", world.other, floats(world.at(second) + 16, 100))
    (race,) = world.driver.races
    assert (race.start, race.end) == (world.at(0) + 16, world.at(0) + 32)


def test_an_order_between_the_streams_serves_every_address(world: Aliased) -> None:
    world.twice()
    world.write("produce", world.stream, floats(world.at(0), 8))
    world.order(world.stream, world.other)
    world.write("use again", world.other, floats(world.at(4), 8))
    world.driver.stream_synchronize(world.other)
    world.read("after a wait", world.stream, floats(world.at(0), 8))
    assert world.pairs == []


def test_other_bytes_of_the_page_and_two_reads_are_no_race(world: Aliased) -> None:
    world.twice()
    world.write("front", world.stream, floats(world.at(0), 8))
    world.write("back", world.other, floats(world.at(4) + 32, 8))
    world.driver.synchronize()
    world.read("one", world.stream, floats(world.at(0), 8))
    world.read("two", world.other, floats(world.at(4), 8))
    assert world.pairs == []


def test_work_from_before_the_second_mapping_races_with_work_through_it(world: Aliased) -> None:
    handle = world.map(0)
    world.write("produce", world.stream, floats(world.at(0), 8))
    world.map(4, handle)
    with pytest.warns(RaceWarning):
        world.read("consume", world.other, floats(world.at(4), 8))
    assert world.pairs == [("produce", "consume")]


def test_the_race_is_found_after_the_first_mapping_is_gone(world: Aliased) -> None:
    handle = world.twice()
    world.write("produce", world.stream, floats(world.at(4), 8))
    world.unmap(0)
    world.map(0)
    world.write("other memory", world.other, floats(world.at(0), 8))
    assert world.pairs == []
    world.map(6, handle)
    with pytest.warns(RaceWarning):
        world.read("consume", world.other, floats(world.at(6), 8))
    assert world.pairs == [("produce", "consume")]


@pytest.mark.parametrize("unmapped", list(itertools.permutations([0, 4, 6], 2)))
def test_an_unmap_races_with_work_through_its_own_address_alone(world: Aliased, unmapped: tuple[int, int]) -> None:
    world.map(6, world.twice())
    other, own = unmapped
    world.write("pending", world.stream, floats(world.at(own), 8))
    world.unmap(other)
    world.map(other)
    assert world.pairs == []
    with pytest.warns(RaceWarning, match="pending .* and mem_unmap"):
        world.unmap(own)


def test_only_the_part_behind_an_alias_is_compared_with_its_other_address(world: Aliased) -> None:
    first, middle, last = world.map(0), world.map(1), world.map(2)
    world.map(5, middle)
    large = floats(world.at(0), 3 * PAGE // 4)
    world.write("large", world.stream, large)
    with pytest.warns(RaceWarning, match="large .* and small .* touch the 32 bytes"):
        world.write("small", world.other, floats(world.at(6) - 32, 8))
    world.driver.synchronize()
    world.map(4, last)
    world.map(6, first)
    before = len(world.pairs)
    world.write("large again", world.stream, floats(world.at(4), 3 * PAGE // 4))
    with pytest.warns(RaceWarning):
        world.write("end", world.other, floats(world.at(3) - 8, 1))
    assert world.pairs[before:] == [("large again", "end")]
    (race,) = world.driver.races[before:]
    assert race.start == world.at(3) - 8


def test_a_race_across_a_border_of_pages_is_found(world: Aliased) -> None:
    first, second = world.map(0), world.map(1)
    world.map(6, first)
    world.map(4, second)
    world.write("across", world.stream, floats(world.at(1) - 4, 2))
    for name, ptr in (("before", world.at(7) - 4), ("after", world.at(4))):
        with pytest.warns(RaceWarning, match="touch the 4 bytes"):
            world.read(name, world.other, floats(ptr, 1))
    world.read("beside", world.other, floats(world.at(4) + 4, 1))
    assert world.pairs == [("across", "before"), ("across", "after")]


def test_all_that_an_operation_touches_is_compared_where_a_part_of_it_is_aliased(world: Aliased) -> None:
    world.twice()
    parts = [floats(world.memory, 4), floats(world.at(4), 4), floats(world.source, 4)]
    world.driver.launch(world.stream, lambda *_: None, writes=parts, name="all")
    for name, region in (("before", parts[0]), ("alias", floats(world.at(0), 4)), ("after", parts[2])):
        with pytest.warns(RaceWarning):
            world.read(name, world.other, region)
    assert world.pairs == [("all", "before"), ("all", "alias"), ("all", "after")]


def test_interleaved_columns_at_two_addresses_are_no_race(world: Aliased) -> None:
    def column(page: int, at: int, rows: int = 8) -> Region:
        return Region(world.at(page) + 4 * at, (rows,), (16,), np.dtype(np.float32))

    first, second = world.map(0), world.map(1)
    world.map(4, first)
    world.map(5, second)
    world.write("even", world.stream, column(0, 0))
    world.write("odd", world.other, column(4, 1))
    rows = 2 * PAGE // 16
    world.driver.synchronize()
    world.write("even of both pages", world.stream, column(4, 0, rows))
    world.write("odd of both pages", world.other, column(0, 1, rows))
    assert world.pairs == []
    with pytest.warns(RaceWarning):
        world.write("even again", world.other, column(0, 0))
    assert world.pairs == [("even of both pages", "even again")]


def test_a_launch_races_through_the_mapping_of_the_launch_and_not_of_the_capture(world: Aliased) -> None:
    one, two = world.map(0), world.map(1)
    made = world.captured(("node", floats(world.at(4), 8)))
    world.map(4, one)
    world.driver.graph_launch(made, world.stream)
    with pytest.warns(RaceWarning):
        world.read("first", world.other, floats(world.at(0), 8))
    world.driver.synchronize()
    world.unmap(4)
    world.map(4, two)
    world.driver.graph_launch(made, world.stream)
    world.read("not there any more", world.other, floats(world.at(0), 8))
    with pytest.warns(RaceWarning):
        world.read("second", world.other, floats(world.at(1), 8))
    assert world.pairs == [("node", "first"), ("node", "second")]


def test_branches_of_a_graph_race_once_their_addresses_mean_the_same_bytes(world: Aliased) -> None:
    handle = world.map(0)
    kept = world.map(4)
    world.begin()
    world.fork(world.other)
    world.write("side", world.other, floats(world.at(4), 8))
    world.write("main", world.stream, floats(world.at(0), 8))
    world.join(world.other)
    made = world.driver.graph_instantiate(world.end()[1])
    world.driver.graph_launch(made, world.stream)
    world.driver.synchronize()
    world.map(6, kept)
    world.driver.graph_launch(made, world.stream)
    assert world.pairs == []
    world.driver.synchronize()
    world.unmap(4)
    world.map(4, handle)
    with pytest.warns(RaceWarning):
        world.driver.graph_launch(made, world.stream)
    assert world.pairs == [("side", "main")]


def test_a_graph_is_not_compared_with_itself_again_while_its_bytes_are_the_same(
    world: Aliased, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    within_graph = world.driver.finder.within_graph

    def counted(*given: object) -> None:
        compared.append(1)
        within_graph(*given)

    monkeypatch.setattr(world.driver.finder, "within_graph", counted)
    handle = world.twice()
    made = world.captured(("one", floats(world.at(4), 8)), ("two", floats(world.at(0), 8)))
    for page in (None, 1, 2):
        if page is not None:
            world.map(page, handle)
        world.driver.graph_launch(made, world.stream)
    assert len(compared) == 1
    world.driver.synchronize()
    world.unmap(0)
    world.driver.graph_launch(made, world.stream)
    assert len(compared) == 2


@pytest.mark.parametrize("seed", range(12))
def test_races_through_any_addresses_are_those_through_one(seed: int) -> None:
    """The same random program twice: each page at one address, and at three that are mapped and unmapped as it runs."""
    draw = random.Random(seed)
    plain, aliased = Aliased(), Aliased()
    _, handles = [[world.map(page) for page in (0, 1)] for world in (plain, aliased)]
    places: list[list[int]] = [[0], [1]]
    streams = [(world.stream, world.other, world.driver.stream_create()) for world in (plain, aliased)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RaceWarning)
        for at in range(150):
            page, start, count = draw.randrange(2), draw.randrange(12), draw.randrange(1, 4)
            deed = draw.choice(["write", "write", "read", "read", "order", "wait", "map", "unmap", "launch"])
            one, two = draw.randrange(3), draw.randrange(3)
            place = draw.choice(places[page])
            if deed in ("write", "read", "launch"):
                for world, where, mine in ((plain, page, streams[0]), (aliased, place, streams[1])):
                    region = floats(world.at(where) + 4 * start, count)
                    if deed == "launch":
                        world.driver.graph_launch(world.captured((f"node {at}", region)), mine[one])
                    else:
                        getattr(world, deed)(f"{deed} {at}", mine[one], region)
            elif deed == "order":
                plain.order(streams[0][one], streams[0][two])
                aliased.order(streams[1][one], streams[1][two])
            elif deed == "wait" and draw.random() < 0.3:
                plain.driver.synchronize()
                aliased.driver.synchronize()
            elif deed == "map":
                unused = [spot for spot in range(8) if not any(spot in mapped for mapped in places)]
                if unused:
                    places[page].append(draw.choice(unused))
                    aliased.map(places[page][-1], handles[page])
            elif deed == "unmap" and len(places[page]) > 1 and draw.random() < 0.5:
                plain.driver.synchronize()
                aliased.driver.synchronize()
                places[page].remove(place)
                aliased.unmap(place)
    assert plain.pairs == aliased.pairs
    assert len(plain.pairs) > 5


# the table -------------------------------------------------------------------------------------------------
def test_the_pieces_of_a_range_are_the_whole_range_each_byte_at_its_first_address() -> None:
    draw = random.Random(3)
    for _ in range(300):
        aliases, first = Aliases(), dict(zip(range(40), range(40), strict=True))
        for start in draw.sample(range(0, 40, 4), draw.randrange(1, 8)):
            home = draw.randrange(100, 140)
            aliases.add(start, 4, home)
            first.update({start + at: home + at for at in range(4)})
            if draw.random() < 0.3:
                aliases.remove(start)
                first.update({start + at: start + at for at in range(4)})
        low = draw.randrange(39)
        high = draw.randrange(low + 1, 41)
        pieces = aliases.pieces(low, high)
        met = any(first[byte] != byte for byte in range(low, high))
        assert bool(pieces) == met
        if met:
            assert [byte + shift for start, end, shift in pieces for byte in range(start, end)] == [
                first[byte] for byte in range(low, high)
            ]
            assert all(one[1] == two[0] and one[2] != two[2] for one, two in itertools.pairwise(pieces))


def test_nothing_is_resolved_while_nothing_is_mapped_twice(world: Aliased, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(*_: object) -> None:
        pytest.fail("an access was resolved")

    handle = world.map(0)
    monkeypatch.setattr(Aliases, "pieces", pieces)
    world.write("one", world.stream, floats(world.at(0), 8))
    world.driver.graph_launch(world.captured(("two", floats(world.at(0), 8))), world.stream)
    world.driver.synchronize()
    world.map(4, handle)
    with pytest.raises(pytest.fail.Exception):
        world.write("three", world.stream, floats(world.at(0), 8))
