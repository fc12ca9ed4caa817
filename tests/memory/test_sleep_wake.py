"""A sleeping arena has no physical memory and keeps every address; after waking its graphs replay correctly.

Proves C30: what sleep waits for, what is refused meanwhile, what a backup carries, and that the bytes are really the
device's again. Each driver call of a sleep and of a wake fails in turn: the arena is usable or can be woken then, no
byte is lost, and a backup that was promised is kept.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from memory_support import GRANULE, MIB, address
from support import all_well, assert_next_capture_works, every_schedule, holds, in_threads, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, CaptureStateError, DriverError, OutOfMemory

UNKNOWN, OUT_OF_MEMORY = 999, 2

backups = pytest.mark.parametrize("backup", [False, True], ids=["without backup", "with backup"])


def free_bytes(driver: Any) -> int:
    return int(driver.mem_get_info()[0])


def forward(x: Any, n: int) -> Any:
    """(x + n) * 2 + n, with a break in the middle and a temporary in each segment."""
    y = bg.break_here(lambda a: a * 2, bg.INFER, x + n)
    return y + n


class Sizes:
    """Graphs of several sizes that share an arena, their inputs outside it and their outputs in it."""

    def __init__(self, driver: Any, xp: Any, *rows: int, **options: Any) -> None:
        self.driver = driver
        self.arena = bg.Arena(**options)
        self.inputs = [zeros(xp, count) for count in rows]
        self.graphs: list[Any] = []
        self.outputs: list[Any] = []
        for n, x in enumerate(self.inputs):
            with bg.capture(arena=self.arena, name=f"size {x.size}") as graph:
                out = forward(x, n)
            self.outputs.append(out)
            self.graphs.append(graph)

    def check_replays(self, value: float) -> None:
        """Each replays right. An output is read before the next graph may use its bytes."""
        for n, (graph, x, out) in enumerate(zip(self.graphs, self.inputs, self.outputs, strict=True)):
            refill(x, value + n)
            graph.replay()
            assert holds(out, (value + n + n) * 2 + n)

    def close(self) -> None:
        for graph in self.graphs:
            graph.close()


# --- the memory really goes, and the addresses stay -----------------------------------------------------------


@backups
def test_a_sleeping_arena_has_given_its_physical_memory_back(sim: Any, xp: Any, backup: bool) -> None:
    before = free_bytes(sim)
    arena = bg.Arena()
    blocks = [arena.allocate(3 * MIB) for _ in range(4)]
    reserved, mapped = arena.reserved, arena.mapped
    assert before - free_bytes(sim) >= mapped == 6 * GRANULE
    physical = len(sim.live()["physical"])
    arena.sleep(backup=backup)
    assert (arena.asleep, arena.mapped, arena.reserved) == (True, 0, reserved)
    assert arena.used == 12 * MIB, "live blocks are live"
    assert before - free_bytes(sim) <= 512
    assert sim.live()["physical"] == ()
    arena.wake()
    assert (arena.asleep, arena.mapped, arena.reserved) == (False, mapped, reserved)
    assert before - free_bytes(sim) >= mapped
    assert len(sim.live()["physical"]) == physical
    assert len(blocks) == 4


def test_nearly_all_bytes_are_back_with_the_device(driver: Any, xp: Any) -> None:
    sizes = Sizes(driver, xp, 4 * MIB, 2 * MIB, MIB)
    driver.synchronize()
    mapped, awake = sizes.arena.mapped, free_bytes(driver)
    sizes.arena.sleep()
    assert free_bytes(driver) - awake >= 0.99 * mapped
    sizes.arena.wake()
    assert free_bytes(driver) - awake <= 0.01 * mapped
    sizes.check_replays(3)


@every_schedule
@backups
def test_graphs_of_every_size_replay_right_after_several_rounds(driver: Any, xp: Any, backup: bool) -> None:
    sizes = Sizes(driver, xp, 1024, 700_000, 4, 4096)
    addresses = [address(out) for out in sizes.outputs]
    mapped = sizes.arena.mapped
    for count in range(3):
        sizes.check_replays(count)
        sizes.arena.sleep(backup=backup)
        assert sizes.arena.mapped == 0
        sizes.arena.wake()
        sizes.check_replays(count + 10)
    assert [address(out) for out in sizes.outputs] == addresses
    assert sizes.arena.mapped == mapped


def test_blocks_are_the_same_after_waking_and_what_was_free_serves(driver: Any) -> None:
    arena = bg.Arena()
    blocks = [arena.allocate(100_000) for _ in range(30)]
    del blocks[3], blocks[7:12]
    known = [arena.block_at(block.ptr) for block in blocks]
    arena.sleep()
    assert [arena.block_at(block.ptr) for block in blocks] == known
    arena.wake()
    assert [arena.block_at(block.ptr) for block in blocks] == known
    mapped = arena.mapped
    again = [arena.allocate(100_000) for _ in range(6)]
    assert arena.mapped == mapped
    assert len({block.ptr for block in (*blocks, *again)}) == 30


def test_blocks_that_die_in_its_sleep_serve_after_waking(driver: Any) -> None:
    arena = bg.Arena()
    blocks = [arena.allocate(MIB) for _ in range(4)]
    low = blocks[0].ptr
    arena.sleep(backup=True)
    blocks.clear()
    assert arena.used == 0
    arena.wake()
    assert arena.allocate(4 * MIB).ptr == low


def test_an_arena_that_grows_after_waking_sleeps_and_wakes_again(driver: Any, xp: Any) -> None:
    sizes = Sizes(driver, xp, 1024)
    sizes.arena.sleep()
    sizes.arena.wake()
    x = zeros(xp, 2 * MIB)
    with bg.capture(arena=sizes.arena) as graph:
        out = forward(x, 1)
    mapped = sizes.arena.mapped
    assert mapped > 4 * GRANULE
    sizes.arena.sleep(backup=True)
    assert sizes.arena.mapped == 0
    sizes.arena.wake()
    assert sizes.arena.mapped == mapped
    assert holds(out, 3)
    refill(x, 5)
    graph.replay()
    assert holds(out, 13)
    sizes.check_replays(2)


def test_the_arena_that_a_graph_uses_by_default_sleeps_too(driver: Any, xp: Any) -> None:
    x = zeros(xp, MIB)
    with bg.capture() as graph:
        out = forward(x, 1)
    graph.arena.sleep()
    assert graph.arena.asleep
    with pytest.raises(CaptureStateError):
        graph.replay()
    graph.arena.wake()
    graph.replay()
    assert holds(out, 3)


# --- contents -------------------------------------------------------------------------------------------------


@every_schedule
def test_a_backup_carries_what_live_arrays_hold(driver: Any, xp: Any) -> None:
    draw = np.random.default_rng(3)
    x = xp.asarray(draw.random(300_000, np.float32))
    with bg.capture(arena=bg.Arena()) as graph:
        kept = []
        for n in range(8):
            kept.append(x[: 30_000 * n + 1] * n)
            kept.append(kept[-1] + 1)
            del kept[len(kept) // 2]
        view = kept[-1][::-2]
    values = [array.get() for array in (*kept, view)]
    graph.arena.sleep(backup=True)
    junk = [zeros(xp, 300_000) for _ in range(4)]
    graph.arena.wake()
    for array, value in zip((*kept, view), values, strict=True):
        assert np.array_equal(array.get(), value)
    assert len(junk) == 4


@every_schedule
def test_a_backup_holds_what_the_last_replay_wrote_though_nobody_waited_for_it(driver: Any, xp: Any) -> None:
    sizes = Sizes(driver, xp, 4096)
    refill(sizes.inputs[0], 9)
    stream = driver.create_stream()
    driver.synchronize()
    sizes.graphs[0].replay(stream=stream)
    sizes.arena.sleep(backup=True)
    sizes.arena.wake()
    assert holds(sizes.outputs[0], 18)


def test_without_a_backup_the_contents_are_gone_and_a_replay_computes_them(sim: Any, xp: Any) -> None:
    sizes = Sizes(sim, xp, 4096)
    sizes.check_replays(3)
    sizes.arena.sleep()
    sizes.arena.wake()
    assert holds(sizes.outputs[0], np.nan), "poison: nothing of the old contents is left"
    sizes.check_replays(3)


def test_a_backup_is_let_go_of_when_it_has_been_put_back(driver: Any, xp: Any) -> None:
    """A second sleep without one must not restore the contents of the first."""
    sizes = Sizes(driver, xp, 4096)
    sizes.check_replays(3)
    sizes.arena.sleep(backup=True)
    sizes.arena.wake()
    sizes.check_replays(4)
    sizes.arena.sleep()
    sizes.arena.wake()
    assert not holds(sizes.outputs[0], 6)
    sizes.check_replays(5)


def test_a_block_made_after_waking_keeps_its_own_contents_over_the_next_backup(driver: Any, xp: Any) -> None:
    arena, x = bg.Arena(), zeros(xp, 4096)
    with bg.capture(arena=arena):
        old = x + 1
    at = address(old)
    arena.sleep(backup=True)
    arena.wake()
    del old
    with bg.capture(arena=arena):
        new = x + 2
    assert address(new) == at
    arena.sleep(backup=True)
    arena.wake()
    assert holds(new, 2)


def test_memory_of_the_graphs_own_is_not_put_to_sleep(driver: Any, xp: Any) -> None:
    x = zeros(xp, 4096)
    with bg.capture(arena=bg.Arena()) as graph:
        pinned = graph.output(forward(x, 1))
    refill(x, 4)
    graph.replay()
    graph.arena.sleep()
    assert holds(pinned, 11)
    graph.arena.wake()
    assert holds(pinned, 11)
    graph.replay()
    assert holds(pinned, 11)


def test_a_cell_is_not_the_arenas_and_stays_awake(driver: Any, xp: Any) -> None:
    x, cell = zeros(xp, 1024), bg.Cell(1024, np.float32)
    with bg.capture(arena=bg.Arena()) as graph:
        bg.break_here(lambda a: a * 3, cell, x + 1)
        bg.break_graph()
    graph.arena.sleep()
    assert holds(cell.array, 3)
    graph.arena.wake()
    refill(x, 1)
    graph.replay()
    assert holds(cell.array, 6)


# --- doing it twice, or to nothing ----------------------------------------------------------------------------


@backups
def test_sleeping_twice_and_waking_twice_do_nothing_more(sim: Any, xp: Any, backup: bool) -> None:
    sizes = Sizes(sim, xp, 4096)
    sizes.check_replays(3)
    physical = ("mem_create", "mem_map", "mem_set_access", "mem_unmap", "mem_release", "memcpy_dtoh_async")
    sizes.arena.wake()
    sizes.arena.sleep(backup=backup)
    before = [sim.calls[name] for name in physical]
    sizes.arena.sleep(backup=not backup)
    sizes.arena.sleep(backup=backup)
    assert [sim.calls[name] for name in physical] == before
    sizes.arena.wake()
    before = [sim.calls[name] for name in physical]
    sizes.arena.wake()
    assert [sim.calls[name] for name in physical] == before
    assert holds(sizes.outputs[0], 6 if backup else np.nan), "the first sleep decides about the backup"
    sizes.check_replays(5)


def test_sleeping_twice_asks_nothing_of_a_device_that_is_full(sim: Any, xp: Any) -> None:
    sizes = Sizes(sim, xp, 4096)
    sizes.arena.sleep()
    taken = sim.mem_create(free_bytes(sim) // GRANULE * GRANULE, 0)
    rest = sim.mem_alloc(free_bytes(sim)) if free_bytes(sim) else 0
    sizes.arena.sleep()
    assert sizes.arena.asleep
    sim.mem_release(taken)
    sim.mem_free(rest)
    sizes.arena.wake()
    sizes.check_replays(2)


@backups
def test_an_arena_that_has_mapped_nothing_yet_may_sleep(driver: Any, xp: Any, backup: bool) -> None:
    arena = bg.Arena()
    arena.sleep(backup=backup)
    assert (arena.asleep, arena.mapped) == (True, 0)
    with pytest.raises(CaptureStateError):
        arena.allocate(1)
    arena.wake()
    assert (arena.asleep, arena.mapped) == (False, 0)
    assert_next_capture_works(xp, arena=arena)


# --- what is refused meanwhile --------------------------------------------------------------------------------


@backups
def test_a_sleeping_graph_is_not_replayed_and_nothing_is_changed(driver: Any, xp: Any, backup: bool) -> None:
    sizes = Sizes(driver, xp, 4096, 16)
    sizes.check_replays(3)
    counts = [graph.replays for graph in sizes.graphs]
    sizes.arena.sleep(backup=backup)
    for graph in sizes.graphs:
        with pytest.raises(CaptureStateError, match="sleep"):
            graph.replay()
        with pytest.raises(CaptureStateError, match="sleep"):
            graph.replay(stream=driver.create_stream())
        assert graph.state == "captured"
    assert [graph.replays for graph in sizes.graphs] == counts
    assert sizes.arena.mapped == 0
    assert bg.current_stream() is None
    sizes.arena.wake()
    sizes.check_replays(4)


def test_no_break_of_a_sleeping_graph_runs(sim: Any, xp: Any) -> None:
    ran: list[int] = []
    with bg.capture(arena=bg.Arena()) as graph:
        bg.break_here(lambda: ran.append(1), bg.IN_PLACE)
        zeros(xp) + 1
    graph.arena.sleep()
    launches = sim.calls["graph_launch"]
    with pytest.raises(CaptureStateError):
        graph.replay()
    assert ran == [1]
    assert sim.calls["graph_launch"] == launches
    graph.arena.wake()


def test_a_capture_on_a_sleeping_arena_is_refused_before_it_begins(driver: Any, xp: Any) -> None:
    sizes = Sizes(driver, xp, 4096)
    sizes.arena.sleep()
    graph = bg.BreakableGraph()
    begun = driver.calls["stream_begin_capture"] if driver.name == "sim" else 0
    with pytest.raises(CaptureStateError, match="sleep"), bg.capture(graph, arena=sizes.arena):
        pytest.fail("the body ran")
    if driver.name == "sim":
        assert driver.calls["stream_begin_capture"] == begun
    assert graph.state == "empty"
    assert not bg.is_capturing()
    assert gc.isenabled()
    assert_next_capture_works(xp, arena=bg.Arena())
    sizes.arena.wake()
    with bg.capture(graph, arena=sizes.arena):
        out = forward(sizes.inputs[0], 1)
    graph.replay()
    assert holds(out, 3)


def test_a_sleeping_arena_gives_no_block(driver: Any) -> None:
    arena = bg.Arena()
    block = arena.allocate(MIB)
    arena.sleep()
    accounts = (arena.used, arena.peak, arena.mapped)
    for nbytes in (1, MIB, 8 * MIB):
        with pytest.raises(CaptureStateError, match="sleep"):
            arena.allocate(nbytes)
    assert (arena.used, arena.peak, arena.mapped) == accounts
    arena.wake()
    assert arena.allocate(MIB).ptr == block.ptr + MIB


def test_other_arenas_are_awake(driver: Any, xp: Any) -> None:
    asleep, awake = Sizes(driver, xp, 4096), Sizes(driver, xp, 4096)
    asleep.arena.sleep()
    awake.check_replays(3)
    asleep.arena.wake()
    asleep.check_replays(4)
    awake.check_replays(5)


@backups
def test_an_arena_is_not_put_to_sleep_in_a_break_or_a_segment_that_uses_it(driver: Any, xp: Any, backup: bool) -> None:
    arena, x, refused = bg.Arena(), zeros(xp, 1024), []

    def drowsy(a: Any) -> Any:
        for call in (lambda: arena.sleep(backup=backup), arena.wake):
            with pytest.raises(CaptureStateError):
                call()
        refused.append(True)
        return a * 2

    with bg.capture(arena=arena) as graph:
        y = x + 1
        with pytest.raises(CaptureStateError):
            arena.sleep(backup=backup)
        out = bg.break_here(drowsy, bg.INFER, y) + 1
    assert not arena.asleep
    refill(x, 4)
    graph.replay()
    assert holds(out, 11)
    assert refused == [True, True]
    arena.sleep(backup=backup)
    arena.wake()
    graph.replay()
    assert holds(out, 11)


def test_another_arena_may_be_put_to_sleep_and_woken_in_a_break(driver: Any, xp: Any) -> None:
    other, x = Sizes(driver, xp, 4096), zeros(xp, 1024)

    def work(a: Any) -> Any:
        other.arena.sleep(backup=True)
        assert other.arena.mapped == 0
        other.arena.wake()
        return a * 2

    with bg.capture(arena=bg.Arena()) as graph:
        out = bg.break_here(work, bg.INFER, x + 1) + 1
    refill(x, 4)
    graph.replay()
    assert holds(out, 11)
    other.check_replays(2)


# --- what it waits for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["replay", "capture"])
def test_sleep_waits_for_the_replay_or_capture_of_another_thread(driver: Any, xp: Any, use: str) -> None:
    arena, x, order = bg.Arena(), zeros(xp, 1024), []
    in_break, go_on = threading.Event(), threading.Event()

    def work(a: Any) -> Any:
        if waiting:
            in_break.set()
            assert go_on.wait(20)
            order.append(use)
        return a * 2

    def run() -> Any:
        with bg.capture(arena=arena) as made:
            out = bg.break_here(work, bg.INFER, x + 1) + 1
        return made, out

    waiting: list[int] = []
    graph, out = run()
    waiting.append(1)

    def busy() -> None:
        if use == "replay":
            graph.replay()
        else:
            run()[0].close()

    def sleeper() -> None:
        assert in_break.wait(20)
        threading.Timer(0.1, go_on.set).start()
        arena.sleep()
        order.append("asleep")

    all_well(in_threads(driver, busy, sleeper))
    assert order == [use, "asleep"]
    assert (arena.asleep, arena.mapped) == (True, 0)
    waiting.clear()
    arena.wake()
    refill(x, 4)
    graph.replay()
    assert holds(out, 11)


@every_schedule
@backups
def test_sleep_waits_for_whatever_the_device_still_does_with_the_arrays(driver: Any, xp: Any, backup: bool) -> None:
    """The program reads an output on a stream of its own, of which the library knows nothing."""
    sizes = Sizes(driver, xp, 4096)
    total, stream = zeros(xp, 4096), driver.create_stream()
    driver.synchronize()
    with on_stream(total, stream):
        for _ in range(20):
            np.add(total, sizes.outputs[0], out=total)
    sizes.arena.sleep(backup=backup)
    driver.synchronize()
    assert holds(total, 0)
    sizes.arena.wake()
    sizes.check_replays(2)


@pytest.mark.parametrize("mode", ["thread_local", "global"])
@backups
def test_sleeping_and_waking_harm_no_capture_that_another_thread_has_open(
    driver: Any, xp: Any, mode: Any, backup: bool
) -> None:
    sizes, x = Sizes(driver, xp, 4096), zeros(xp, 1024)
    sizes.check_replays(3)
    driver.synchronize()
    with bg.capture(arena=bg.Arena(), mode=mode) as graph:
        y = x + 1

        def sleeper() -> None:
            sizes.arena.sleep(backup=backup)
            sizes.arena.wake()

        all_well(in_threads(driver, sleeper))
        out = y + 1
    assert graph.captured
    assert holds(out, 2)
    if backup:
        assert holds(sizes.outputs[0], 6)
    sizes.check_replays(4)


def test_a_replay_that_waited_for_its_turn_while_the_arena_fell_asleep_is_refused(driver: Any, xp: Any) -> None:
    """It asked when the arena was awake, and must find out when it gets its turn; and it gives the turn back."""
    arena, x = bg.Arena(), zeros(xp, 1024)
    in_break, go_on, armed = threading.Event(), threading.Event(), []

    def work(a: Any) -> Any:
        if armed:
            in_break.set()
            assert go_on.wait(20)
        return a * 2

    with bg.capture(arena=arena) as first:
        bg.break_here(work, bg.IN_PLACE, x + 1)
        y = x + 1
    with bg.capture(arena=arena) as second:
        z = x + 2
    armed.append(True)

    def late(call: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            assert in_break.wait(20)
            call()

        return run

    def release() -> None:
        assert in_break.wait(20)
        threading.Event().wait(0.1)  # both of the others are waiting by now
        go_on.set()

    outcomes = in_threads(driver, first.replay, late(arena.sleep), late(second.replay), release)
    assert outcomes[:2] == [None, None]
    assert arena.asleep
    assert second.replays == (outcomes[2] is None)
    if outcomes[2] is not None:  # else it was before the sleeper
        assert isinstance(outcomes[2], CaptureStateError)
    del outcomes
    arena.wake()
    armed.clear()
    first.replay()
    second.replay()
    assert (holds(y, 1), holds(z, 2)) == (True, True)


def test_a_thread_without_a_context_may_put_an_arena_to_sleep(sim: Any, xp: Any) -> None:
    sizes = Sizes(sim, xp, 4096)
    sizes.check_replays(1)
    seen = []

    def elsewhere() -> None:
        sizes.arena.sleep(backup=True)
        seen.append(sim.ctx_get_current())
        sizes.arena.wake()
        seen.append(sim.ctx_get_current())

    thread = threading.Thread(target=elsewhere, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert seen == [0, 0], "the thread's context is left as it was (C31)"
    assert holds(sizes.outputs[0], 2)
    sizes.check_replays(5)


def test_an_arena_sleeps_and_wakes_from_another_context(sim: Any, xp: Any) -> None:
    sizes = Sizes(sim, xp, 4096)
    sizes.check_replays(1)
    away = sim.ctx_create(0)
    sizes.arena.sleep(backup=True)
    assert sim.ctx_get_current() == away
    sizes.arena.wake()
    assert sim.ctx_get_current() == away
    sim.ctx_pop_current()
    sim.ctx_destroy(away)
    assert holds(sizes.outputs[0], 2)
    sizes.check_replays(5)


# --- the end of a sleeping arena ------------------------------------------------------------------------------


@backups
def test_dropping_a_sleeping_arena_releases_everything(sim: Any, xp: Any, backup: bool) -> None:
    kinds = ("graph", "graph_exec", "reservation", "physical", "host_allocation")
    zeros(xp)
    gc.collect()
    before = [sim.live()[kind] for kind in kinds]
    events = len(sim.live()["event"])
    sizes = Sizes(sim, xp, 4096, 16)
    sizes.check_replays(2)
    sizes.arena.sleep(backup=backup)
    assert sim.live()["reservation"] != before[2]
    del sizes
    gc.collect()
    assert [sim.live()[kind] for kind in kinds] == before
    assert len(sim.live()["event"]) <= events + 1, "this thread keeps one for its captures"


def test_graphs_and_outputs_may_die_while_their_arena_sleeps(driver: Any, xp: Any) -> None:
    sizes = Sizes(driver, xp, 4096, 16)
    sizes.arena.sleep(backup=True)
    sizes.graphs.pop(0).close()
    sizes.outputs.pop(0)
    sizes.inputs.pop(0)
    gc.collect()
    sizes.arena.wake()
    assert holds(sizes.outputs[0], 3)
    sizes.graphs[0].replay()
    assert holds(sizes.outputs[0], 3)


# --- when the device has no memory to wake with ---------------------------------------------------------------


@backups
@pytest.mark.parametrize("left", [0, GRANULE, 4 * GRANULE])
def test_an_arena_that_cannot_wake_sleeps_on_with_nothing_half_mapped(
    sim: Any, xp: Any, backup: bool, left: int
) -> None:
    sizes = Sizes(sim, xp, 1024, MIB, 2 * MIB)  # grown in several steps
    sizes.check_replays(3)
    value = sizes.outputs[-1].get()
    mapped = sizes.arena.mapped
    assert mapped > 5 * GRANULE
    sizes.arena.sleep(backup=backup)
    taken = sim.mem_create(free_bytes(sim) // GRANULE * GRANULE - left, 0)
    free, physical = free_bytes(sim), sim.live()["physical"]
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            sizes.arena.wake()
        assert (sizes.arena.asleep, sizes.arena.mapped) == (True, 0)
        assert (free_bytes(sim), sim.live()["physical"]) == (free, physical)
        with pytest.raises(CaptureStateError):
            sizes.graphs[0].replay()
    sim.mem_release(taken)
    sizes.arena.wake()
    assert (sizes.arena.asleep, sizes.arena.mapped) == (False, mapped)
    if backup:
        assert np.array_equal(sizes.outputs[-1].get(), value)
    sizes.check_replays(4)


# --- when a driver call fails ---------------------------------------------------------------------------------


@contextmanager
def scene(asleep: bool, backup: bool) -> Iterator[tuple[Any, Sizes, int]]:
    """A device, sizes whose outputs hold known values, and the bytes that the device has without the arena's."""
    with bg.driver.use("sim", schedule="lazy") as driver:
        sizes = Sizes(driver, bg.array_namespace(), 1024, 600_000)
        sizes.check_replays(3)
        driver.synchronize()
        total = free_bytes(driver) + sizes.arena.mapped
        if asleep:
            sizes.arena.sleep(backup=backup)
        yield driver, sizes, total
        sizes.close()


def each_failure(asleep: bool, backup: bool, code: int, check: Callable[[Any, Sizes, int, bool], None]) -> None:
    """Sleep (or wake, where ``asleep``) once for each driver call of it, with that call failing."""
    with scene(asleep, backup) as (driver, sizes, _):
        before = Counter(driver.calls)
        sizes.arena.wake() if asleep else sizes.arena.sleep(backup=backup)
        calls = Counter(driver.calls) - before
    assert sum(calls.values()) > 3
    complaints = []
    for name, count in sorted(calls.items()):
        for at in range(1, count + 1):
            with scene(asleep, backup) as (driver, sizes, total):
                failed = False
                try:
                    with driver.fail(name, at=at, code=code):
                        sizes.arena.wake() if asleep else sizes.arena.sleep(backup=backup)
                except BreakgraphError:
                    failed = True
                try:
                    check(driver, sizes, total, failed)
                except (AssertionError, BreakgraphError, pytest.fail.Exception) as error:
                    complaints.append(f"{name} #{at}: {type(error).__name__} {error}"[:400])
    assert not complaints, f"{len(complaints)} of {sum(calls.values())}:\n" + "\n".join(complaints)


def check_whole(driver: Any, sizes: Sizes, total: int) -> None:
    """Awake, all bytes accounted for, and every graph right; a further round of sleep is clean."""
    assert not sizes.arena.asleep
    assert abs(free_bytes(driver) + sizes.arena.mapped - total) <= 512
    sizes.check_replays(5)
    sizes.arena.sleep()
    assert sizes.arena.mapped == 0
    assert driver.live()["physical"] == ()
    assert abs(free_bytes(driver) - total) <= 512
    sizes.arena.wake()
    sizes.check_replays(6)
    driver.synchronize()
    assert not driver.races, driver.races


@backups
@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
@pytest.mark.parametrize("again", ["wake", "sleep"])
def test_whatever_call_of_a_sleep_fails_the_arena_is_usable_or_can_be_woken(
    backup: bool, code: int, again: str
) -> None:
    def check(driver: Any, sizes: Sizes, total: int, failed: bool) -> None:
        assert failed or sizes.arena.mapped == 0
        assert free_bytes(driver) + sizes.arena.mapped <= total + 512
        if again == "sleep":
            sizes.arena.sleep(backup=backup)
            assert sizes.arena.mapped == 0
        sizes.arena.wake()
        if backup:
            assert holds(sizes.outputs[-1], 11), "what the backup was for is lost"
        check_whole(driver, sizes, total)

    each_failure(False, backup, code, check)


@backups
@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
def test_whatever_call_of_a_wake_fails_the_arena_can_be_woken(backup: bool, code: int) -> None:
    def check(driver: Any, sizes: Sizes, total: int, failed: bool) -> None:
        if sizes.arena.asleep:
            assert sizes.arena.mapped == 0
            assert driver.live()["physical"] == ()
        assert failed or not sizes.arena.asleep
        assert abs(free_bytes(driver) + sizes.arena.mapped - total) <= 512
        sizes.arena.wake()
        if backup:
            assert holds(sizes.outputs[-1], 11), "what the backup was for is lost"
        check_whole(driver, sizes, total)

    each_failure(True, backup, code, check)


@backups
def test_an_arena_whose_sleep_failed_is_dropped_when_the_device_is_done_with_it(backup: bool) -> None:
    """Whatever a sleep used up for its own wait, the arena's end waits once more."""

    def check(driver: Any, sizes: Sizes, total: int, failed: bool) -> None:
        xp = bg.array_namespace()
        if sizes.arena.asleep:
            return
        stream, out = driver.create_stream(), zeros(xp, 600_000)
        driver.synchronize()
        with on_stream(out, stream):
            np.add(sizes.outputs[-1], out, out=out)  # pending, while the arena goes
        sizes.close()
        sizes.graphs.clear()
        sizes.outputs.clear()
        del sizes.arena
        gc.collect()
        driver.synchronize()
        assert not driver.races, driver.races
        assert driver.live()["physical"] == ()

    each_failure(False, backup, UNKNOWN, check)


def test_dropping_an_arena_whose_sleep_failed_midway_releases_everything(sim: Any, xp: Any) -> None:
    sizes = Sizes(sim, xp, 1024, MIB)
    with pytest.raises(DriverError), sim.fail("mem_unmap", at=2):
        sizes.arena.sleep()
    del sizes
    gc.collect()
    assert sim.live()["physical"] == ()
    assert sim.live()["reservation"] == ()
