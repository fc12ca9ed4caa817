"""Whoever lets go first, no replay reads or writes memory that is somebody else's by then.

Proves C17, C18, C25 and C27 in all orders: graph, arena, output and cell dropped in every permutation with replays in
between; results of breaks that are read late; inputs of breaks made before, inside and between captures; memory freed
and handed out again at the same address; captures of many sizes in any order on one arena, replayed from several
streams and threads; threads that would wait for each other for ever. Freed memory is poison on the simulator, so a
stale read is NaN, and a stale write hits an array that is looked at afterwards.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from memory_support import GRANULE, address, overlap
from support import all_well, child, every_schedule, holds, in_threads, live, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.errors import CaptureStateError

ROWS = 256


def junk(xp: Any, count: int = 12, rows: int = ROWS) -> list[Any]:
    """Arrays that take whatever memory was freed, with contents that a stale write would change."""
    return [zeros(xp, rows) + 77 for _ in range(count)]


# --- every order of dropping ----------------------------------------------------------------------------------


class Holder:
    """A graph with an output in its arena and a cell, each of which can be dropped on its own.

    t = x + 1; cell = t * 2 (a break); mid = (cell + t) * 3 (a break, INFER); out = mid + 1; sink = out + cell.
    """

    def __init__(self, driver: Any, xp: Any) -> None:
        self.driver, self.xp = driver, xp
        self.x, self.sink = zeros(xp, ROWS), zeros(xp, ROWS)
        self.held: dict[str, Any] = {"arena": bg.Arena(), "cell": bg.Cell(ROWS, np.float32)}
        cell = self.held["cell"]
        with bg.capture(arena=self.held["arena"]) as graph:
            t = self.x + 1
            bg.break_here(lambda a: a * 2, cell, t)
            mid = bg.break_here(lambda a: a * 3, bg.INFER, cell.array + t)
            out = mid + 1
            np.add(out, cell.array, out=self.sink)
        self.held |= {"graph": graph, "output": out}
        self.value = 0.0
        self.outside: list[Any] = []

    def drop(self, name: str) -> None:
        del self.held[name]
        gc.collect()
        self.outside += junk(self.xp, 3)
        if "arena" in self.held:  # another graph takes whatever bytes the arena has to give
            y = zeros(self.xp, ROWS)
            with bg.capture(arena=self.held["arena"]) as other:
                t = y + 500
                np.add(t * 2, 0, out=y)
                del t
            other.replay()
            other.close()

    def replay(self, value: float) -> None:
        if "graph" not in self.held:
            return
        self.value = value
        refill(self.x, value)
        refill(self.sink, -1)
        self.held["graph"].replay()

    def check(self) -> None:
        cell = (self.value + 1) * 2
        out = (cell + self.value + 1) * 3 + 1
        assert holds(self.sink, out + cell)
        if "output" in self.held:
            assert holds(self.held["output"], out)
        if "cell" in self.held:
            assert holds(self.held["cell"].array, cell)
        assert all(holds(one, 77) for one in self.outside), "a replay wrote where it owns nothing"


@every_schedule
@pytest.mark.parametrize("order", list(itertools.permutations(["graph", "arena", "output", "cell"])), ids="-".join)
def test_graph_arena_output_and_cell_may_go_in_any_order(driver: Any, xp: Any, order: tuple[str, ...]) -> None:
    holder = Holder(driver, xp)
    holder.check()
    for n, name in enumerate(order):
        holder.replay(n + 1)
        holder.drop(name)
        holder.check()
        holder.replay(n + 10)
        holder.check()
    driver.synchronize()
    if driver.name == "sim":
        assert live(driver, "graph_exec") == live(driver, "graph") == 0
        assert not driver.live()["physical"], "the last one took the arena's memory with it"
        assert not driver.live()["reservation"]


@every_schedule
@pytest.mark.parametrize("order", list(itertools.permutations(["graph", "arena", "output", "cell"])), ids="-".join)
def test_they_may_go_while_the_last_replay_is_still_running(driver: Any, xp: Any, order: tuple[str, ...]) -> None:
    """Nothing waits but the library: each goes right after a replay that was only enqueued."""
    holder = Holder(driver, xp)
    refill(holder.x, 6)
    holder.value = 6
    held = holder.held
    stream = driver.create_stream()
    driver.synchronize()
    held["graph"].replay(stream=stream)
    for name in order:
        del held[name]
    gc.collect()
    holder.outside = junk(xp)
    driver.synchronize()
    holder.check()


def test_an_output_keeps_the_arenas_memory_and_not_its_graph(sim: Any, xp: Any) -> None:
    arena = bg.Arena()
    with bg.capture(arena=arena) as graph:
        out = zeros(xp, ROWS) + 5
    gone = weakref.ref(graph), weakref.ref(arena)
    del graph, arena
    gc.collect()
    assert gone[0]() is None
    assert live(sim, "graph_exec") == 0
    assert holds(out, 5)
    assert len(sim.live()["physical"]) == 1
    del out, gone
    gc.collect()
    assert not sim.live()["physical"]


def test_a_graph_keeps_its_arena_and_names_it(driver: Any, xp: Any) -> None:
    arena, x, out = bg.Arena(), zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=arena) as graph:
        np.add(x + 1, 1, out=out)
    assert graph.arena is arena
    del arena
    gc.collect()
    graph.replay()
    assert holds(out, 2)
    graph.close()
    assert graph.arena is None or isinstance(graph.arena, bg.Arena)


def test_graphs_of_one_thread_share_an_arena_by_default_and_another_thread_has_its_own(driver: Any, xp: Any) -> None:
    def arena() -> Any:
        stream = driver.create_stream()
        with on_stream(x, stream):
            with bg.capture() as graph:
                x + 1
            driver.stream_synchronize(int(graph.capture_stream))
            found = graph.arena
            graph.close()
        return found

    x = zeros(xp, ROWS)
    driver.synchronize()
    mine = arena()
    assert arena() is mine
    (other,) = all_well(in_threads(driver, arena))
    assert other is not mine


def test_the_end_of_the_interpreter_takes_them_in_any_order_without_a_word() -> None:
    """Module globals are cleared in an order of the interpreter's own; half of them are in cycles here."""
    done = child(
        """
        import sys, numpy as np, breakgraph as bg
        driver = bg.driver.current()
        xp = bg.array_namespace()
        x = xp.zeros(256, np.float32)
        cache = bg.ExecCache()
        kept = []
        for n in range(4):
            arena, cell = bg.Arena(), bg.Cell(256, np.float32)
            with bg.capture(arena=arena, execs=cache) as graph:
                bg.break_here(lambda a: a * 2, cell, x + n)
                pinned = graph.output(cell.array + 1)
                out = pinned + 1
            graph.replay()
            if n % 2:
                arena.sleep(backup=True)
            one = [graph, arena, cell, out, pinned]
            if n > 1:
                one.append(one)
            kept.append(one)
            setattr(sys.modules["breakgraph"], f"stray_{n}", out)
        print("end", flush=True)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# --- what breaks give out -------------------------------------------------------------------------------------


@every_schedule
def test_two_results_of_one_shape_that_are_both_read_later_are_two_places(driver: Any, xp: Any) -> None:
    x, out = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        first = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        second = bg.break_here(lambda a: a * 3, bg.INFER, x + 1)
        assert not overlap(first, second)
        third = bg.break_here(lambda a, b: a - b, bg.INFER, second, first)
        np.add(first * 100 + second * 10, third, out=out)
        del first, second, third
    for value in (0, 4, 9):
        refill(x, value)
        graph.replay()
        assert holds(out, (value + 1) * (200 + 30 + 1))


@every_schedule
def test_many_results_of_one_shape_are_read_at_the_end_in_any_order(driver: Any, xp: Any) -> None:
    x, out, draw = zeros(xp, ROWS), zeros(xp, ROWS), random.Random(5)
    with bg.capture(arena=bg.Arena()) as graph:
        results = [bg.break_here(lambda a, n=n: a * (n + 1), bg.INFER, x + n) for n in range(12)]
        assert len({address(one) for one in results}) == 12
        draw.shuffle(results)
        total = x * 0
        while results:
            total = total * 0.5 + results.pop()
        np.add(total, 0, out=out)
    eager = []
    for value in (1, 3):
        draw = random.Random(5)
        results = [(value + n) * (n + 1) for n in range(12)]
        draw.shuffle(results)
        total = 0.0
        while results:
            total = total * 0.5 + results.pop()
        eager.append(total)
    for value, wanted in zip((1, 3), eager, strict=True):
        refill(x, value)
        graph.replay()
        assert holds(out, wanted)


@every_schedule
def test_a_result_that_is_dropped_serves_the_next_break_and_all_values_are_right(driver: Any, xp: Any) -> None:
    arena, x, out = bg.Arena(), zeros(xp, ROWS), zeros(xp, ROWS)
    peaks = []
    with bg.capture(arena=arena) as graph:
        y = bg.break_here(lambda a: a + 1, bg.INFER, x)
        for n in range(10):
            y = bg.break_here(lambda a, n=n: a * 2 - n, bg.INFER, y + 1)
            peaks.append(arena.peak)
        np.add(y, 0, out=out)
        del y
    assert len(set(peaks[1:])) == 1, "each result takes the place of one before it"
    for value in (0, 3):
        refill(x, value)
        graph.replay()
        wanted = value + 1.0
        for n in range(10):
            wanted = (wanted + 1) * 2 - n
        assert holds(out, wanted)


@every_schedule
def test_a_result_that_is_held_past_the_capture_is_safe_from_later_captures(driver: Any, xp: Any) -> None:
    """Live blocks are handed to nobody; dropped ones to the next capture, whose replays may write them."""
    arena, x = bg.Arena(), zeros(xp, ROWS)
    kept = []
    for n in range(4):
        with bg.capture(arena=arena) as graph:
            result = bg.break_here(lambda a, n=n: a + n, bg.INFER, x + 1)
            result_of_segment = result + 1
        kept.append((graph, result, result_of_segment))
    refill(x, 5)
    for graph, _, _ in kept:
        graph.replay()
    for n, (_, result, result_of_segment) in enumerate(kept):
        assert holds(result, 6 + n)
        assert holds(result_of_segment, 7 + n)


# --- what breaks are given ------------------------------------------------------------------------------------


def seeing(seen: list[float]) -> Callable[[Any], None]:
    """A break's function that notes the first element of what it is given, and whether it is all the same."""

    def look(array: Any) -> None:
        host = array.get()
        seen.append(float(host.flat[0]) if np.all(host == host.flat[0]) else float("nan"))

    return look


@every_schedule
def test_an_input_made_before_the_capture_is_kept(driver: Any, xp: Any) -> None:
    x, seen = zeros(xp, ROWS), []
    before = zeros(xp, ROWS) + 9
    with bg.capture(arena=bg.Arena()) as graph:
        bg.break_here(seeing(seen), bg.IN_PLACE, before)
        y = x + 1
    del before
    gc.collect()
    outside = junk(xp)
    graph.replay()
    assert seen == [9, 9]
    assert all(holds(one, 77) for one in outside)
    assert holds(y, 1)


@every_schedule
def test_an_input_made_inside_the_capture_is_computed_again_before_it_is_read(driver: Any, xp: Any) -> None:
    """Its block has served others since, in this capture and in later ones; the segment before the break refills it."""
    arena, x, seen, sink = bg.Arena(), zeros(xp, ROWS), [], zeros(xp, ROWS)
    with bg.capture(arena=arena) as graph:
        t = x + 1
        at = address(t)
        bg.break_here(seeing(seen), bg.IN_PLACE, t)
        del t
        again = x + 100
        assert address(again) == at
        bg.break_here(seeing(seen), bg.IN_PLACE, again)
        del again
    with bg.capture(arena=arena) as other:
        u = x + 1000
        np.add(u, 0, out=sink)
        del u
    for value in (3, 4):
        refill(x, value)
        other.replay()
        graph.replay()
    assert seen == [1, 100, 4, 103, 5, 104]
    assert holds(sink, 1004)


@every_schedule
def test_an_input_made_between_captures_is_kept_by_the_capture_that_uses_it(driver: Any, xp: Any) -> None:
    arena, x, seen = bg.Arena(), zeros(xp, ROWS), []
    with bg.capture(arena=arena) as first:
        one = x + 1
    between = one * 10
    with bg.capture(arena=arena) as second:
        bg.break_here(seeing(seen), bg.IN_PLACE, between)
        two = x + 2
    del between
    gc.collect()
    outside = junk(xp)
    refill(x, 5)
    first.replay()
    second.replay()
    assert seen == [10, 10]
    assert all(holds(one, 77) for one in outside)
    assert holds(two, 7)


@every_schedule
def test_an_input_from_another_capture_is_kept_and_read_as_that_capture_left_it(driver: Any, xp: Any) -> None:
    """It lies in the same arena, and its own graph may rewrite it; but nobody else is given its block."""
    arena, x, seen = bg.Arena(), zeros(xp, ROWS), []
    with bg.capture(arena=arena) as first:
        shared = x + 1
    with bg.capture(arena=arena) as second:
        bg.break_here(seeing(seen), bg.IN_PLACE, shared)
        two = x + 2
    at, used = address(shared), arena.used
    del shared
    gc.collect()
    assert arena.used == used, "the second graph's break keeps it"
    with bg.capture(arena=arena) as third:
        three = [x + n for n in range(4)]
        assert at not in [address(one) for one in three]
    refill(x, 5)
    second.replay()
    third.replay()
    second.replay()
    first.replay()
    second.replay()
    assert seen == [1, 1, 1, 6]
    assert holds(two, 7)
    second.close()
    gc.collect()
    assert arena.used == used - 4 * ROWS + 4 * 4 * ROWS
    assert len(three) == 4


@every_schedule
def test_views_and_trees_of_inputs_are_kept_or_computed_as_their_arrays_are(driver: Any, xp: Any) -> None:
    arena, x, seen = bg.Arena(), zeros(xp, 16, 16), []

    def look(tree: dict[str, Any]) -> None:
        seen.append([float(view.get().flat[0]) for view in tree["views"]] + [tree["views"][0].strides])

    before = zeros(xp, 16, 16) + 9
    with bg.capture(arena=arena) as graph:
        t = x + 1
        bg.break_here(look, bg.IN_PLACE, {"views": (before.T, before[3:, ::2], t.T, t[5])})
        del t
        u = x + 1000
    del before
    gc.collect()
    outside = junk(xp)
    refill(x, 4)
    graph.replay()
    assert seen == [[9, 9, 1, 1, (4, 64)], [9, 9, 5, 5, (4, 64)]]
    assert all(holds(one, 77) for one in outside)
    assert holds(u, 1004)


# --- freed, and handed out again at the same address ----------------------------------------------------------


@every_schedule
def test_a_destination_that_its_caller_dropped_is_not_handed_out_again(driver: Any, xp: Any) -> None:
    x, arena = zeros(xp, ROWS), bg.Arena()
    destination, cell = zeros(xp, ROWS), bg.Cell(ROWS, np.float32)
    sink = zeros(xp, ROWS)
    with bg.capture(arena=arena) as graph:
        bg.break_here(lambda a: a * 2, destination, x + 1)
        bg.break_here(lambda a: a * 3, cell, x + 1)
        np.add(destination, cell.array, out=sink)
    taken = {address(destination), cell.ptr}
    del destination, cell
    gc.collect()
    driver.synchronize()
    outside = junk(xp, 40)
    assert not taken & {address(one) for one in outside}
    refill(x, 4)
    graph.replay()
    driver.synchronize()
    assert all(holds(one, 77) for one in outside)
    assert holds(sink, 25)


@every_schedule
def test_an_array_of_the_arena_whose_address_recurs_in_later_captures_is_right_in_each(driver: Any, xp: Any) -> None:
    arena, x, graphs = bg.Arena(), zeros(xp, ROWS), []
    addresses, sinks = set(), [zeros(xp, ROWS) for _ in range(6)]
    for n, sink in enumerate(sinks):
        with bg.capture(arena=arena) as graph:
            t = x + n
            addresses.add(address(t))
            t = bg.break_here(lambda a: a * 2, bg.INFER, t)
            addresses.add(address(t))
            np.add(t, n, out=sink)
            del t
        graphs.append(graph)
    assert len(addresses) == 2
    refill(x, 3)
    driver.synchronize()
    for graph in graphs[::-1]:
        graph.replay()
    for n, sink in enumerate(sinks):
        assert holds(sink, (3 + n) * 2 + n)


def test_memory_that_a_graph_was_told_to_keep_is_not_handed_out_again(driver: Any, xp: Any) -> None:
    x, sink = zeros(xp, ROWS), zeros(xp, ROWS)
    weight = zeros(xp, ROWS) + 3
    with bg.capture(arena=bg.Arena()) as graph:
        np.multiply(x, weight, out=sink)  # no break is given it: the segment alone reads it
    graph.keep(weight)
    at = address(weight)
    del weight
    gc.collect()
    outside = junk(xp)
    assert at not in {address(one) for one in outside}
    refill(x, 5)
    graph.replay()
    assert holds(sink, 15)


@every_schedule
def test_rounds_of_capture_replay_and_drop_leave_memory_flat(driver: Any, xp: Any) -> None:
    arena, x, sink = bg.Arena(), zeros(xp, 4 * ROWS), zeros(xp, 4 * ROWS)
    readings = []
    for n in range(30):
        rows = ROWS * (n % 4 + 1)
        with bg.capture(arena=arena) as graph:
            y = bg.break_here(lambda a: a * 2, bg.INFER, x[:rows] + 1)
            pinned = graph.output(y + n)
            np.add(pinned, 1, out=sink[:rows])
        graph.replay()
        assert holds(sink[:rows], 3 + n)
        assert holds(pinned, 2 + n)
        if n % 2:
            graph.close()
        del graph, y, pinned
        gc.collect()
        assert arena.used == 0
        readings.append((arena.mapped, arena.peak))
    assert len(set(readings[4:])) == 1, "the fourth round is the largest"
    if driver.name == "sim":
        assert live(driver, "graph_exec") == live(driver, "graph") == 0
        assert live(driver, "allocation") < 20


# --- many sizes on one arena ----------------------------------------------------------------------------------

SIZES = (64, 256, 1000, 4096, 40_000)


class Size:
    """(x + n) * 2, * 3 in a break, + n, into a sink of its own outside the arena; temporaries as large as the input."""

    def __init__(self, xp: Any, rows: int, arena: Any) -> None:
        self.n = rows % 7 + 1
        self.x, self.sink = zeros(xp, rows), zeros(xp, rows)
        with bg.capture(arena=arena, name=f"{rows} rows") as self.graph:
            t = (self.x + self.n) * 2
            t = bg.break_here(lambda a: a * 3, bg.INFER, t)
            np.add(t, self.n, out=self.sink)
            del t

    def run(self, value: float, stream: Any) -> None:
        """Replay on a stream, and look at the result on it; other streams are not waited for."""
        with on_stream(self.x, stream):
            refill(self.x, value)
            refill(self.sink, -1)
            self.graph.replay()
            host = self.sink.get()
        wanted = (value + self.n) * 6 + self.n
        assert host.tolist() == [wanted] * host.size, f"{self.graph.name}: {host[:3]} and not {wanted}"


@every_schedule
@pytest.mark.parametrize("seed", range(3))
def test_sizes_captured_in_any_order_replay_in_any_order_on_any_stream(driver: Any, xp: Any, seed: int) -> None:
    draw, arena = random.Random(seed), bg.Arena()
    order = draw.sample(SIZES, len(SIZES))
    sizes = [Size(xp, rows, arena) for rows in order]
    streams = [driver.create_stream() for _ in range(3)]
    driver.synchronize()
    for n in range(30):
        draw.choice(sizes).run(n, draw.choice(streams))
    assert arena.used == 0
    assert arena.peak <= 3 * 4 * max(SIZES), "the largest, not the sum"
    assert arena.mapped <= 4 * GRANULE


@every_schedule
def test_enqueued_replays_of_many_sizes_on_several_streams_run_one_after_another(driver: Any, xp: Any) -> None:
    """Nobody waits between them, so their order on the device is the arena's doing alone."""
    arena, draw = bg.Arena(), random.Random(2)
    sizes = [Size(xp, rows, arena) for rows in SIZES]
    streams = [driver.create_stream() for _ in range(3)]
    for n, size in enumerate(sizes):
        refill(size.x, n)
        refill(size.sink, -1)
    driver.synchronize()
    for _ in range(25):
        draw.choice(sizes).graph.replay(stream=draw.choice(streams))
    for size in sizes:
        size.graph.replay(stream=draw.choice(streams))
    driver.synchronize()
    for n, size in enumerate(sizes):
        assert holds(size.sink, (n + size.n) * 6 + size.n)


@pytest.mark.parametrize("sim", ["fifo", "lazy", "random"], indirect=True)
def test_threads_replay_sizes_that_share_an_arena_each_on_its_own_stream(sim: Any, xp: Any) -> None:
    arena = bg.Arena()
    sizes = [Size(xp, rows, arena) for rows in (*SIZES[:4], 500, 2000)]
    streams = [sim.create_stream() for _ in range(3)]
    sim.synchronize()

    def work(at: int) -> None:
        draw = random.Random(at)
        for n in range(10):
            sizes[at + 3 * draw.randrange(2)].run(n + at, streams[at])

    all_well(in_threads(sim, *(lambda at=at: work(at) for at in range(3))))
    assert arena.used == 0


@pytest.mark.parametrize("sim", ["fifo", "lazy", "random"], indirect=True)
def test_threads_capture_into_a_shared_arena_while_others_replay(sim: Any, xp: Any) -> None:
    arena = bg.Arena()
    steady = Size(xp, 1000, arena)
    streams = [sim.create_stream() for _ in range(2)]
    origin = sim.create_stream()
    fresh = [(zeros(xp, rows), zeros(xp, rows)) for rows in (64, 300, 2000, 64)]
    sim.synchronize()

    def capturing() -> None:
        for n, (x, sink) in enumerate(fresh):
            with on_stream(x, streams[0]):
                with bg.capture(arena=arena, stream=origin) as graph:
                    t = x + 1
                    t = bg.break_here(lambda a: a * 2, bg.INFER, t)
                    np.add(t, n, out=sink)
                    del t
                refill(x, n)
                graph.replay()
                assert sink.get().tolist() == [(n + 1) * 2.0 + n] * x.size
                graph.close()

    def replaying() -> None:
        for n in range(8):
            steady.run(n, streams[1])

    all_well(in_threads(sim, capturing, replaying))
    assert arena.used == 0


# --- threads that would wait for each other -------------------------------------------------------------------


class Ring:
    """Graphs on arenas of their own, each with a break that asks for the next one's arena once all are under way."""

    def __init__(self, driver: Any, xp: Any, count: int, ask: str) -> None:
        self.driver, self.xp, self.ask = driver, xp, ask
        self.count = count
        self.arenas = [bg.Arena() for _ in range(count)]
        self.streams = [driver.create_stream() for _ in range(count)]
        self.met = threading.Barrier(count)
        self.armed = False
        self.refusals: list[str] = []  # not the errors: their frames hold what the breaks were given
        self.x = zeros(xp, ROWS)
        self.wanted = []
        for arena in self.arenas:
            with bg.capture(arena=arena) as graph:
                self.x + 1
            self.wanted.append(graph)
        self.graphs, self.outs = [], []
        for at in range(count):
            self.outs.append(zeros(xp, ROWS))
            self.graphs.append(self.capture(at))
        driver.synchronize()
        self.armed = True

    def capture(self, at: int) -> Any:
        with bg.capture(arena=self.arenas[at], stream=self.driver.create_stream()) as graph:
            y = bg.break_here(lambda a: self.work(a, at), bg.INFER, self.x + at)
            np.add(y, 1, out=self.outs[at])
        return graph

    def work(self, a: Any, at: int) -> Any:
        if self.armed:
            self.met.wait(20)
            try:
                self.take((at + 1) % self.count)
            except CaptureStateError as error:
                self.refusals.append(str(error))
        return a * 2

    def take(self, at: int) -> None:
        if self.ask == "replay":
            self.wanted[at].replay(stream=self.driver.create_stream())
        else:
            self.arenas[at].sleep()
            self.arenas[at].wake()

    def check(self) -> None:
        """All of it works afterwards."""
        self.armed = False
        self.driver.synchronize()
        refill(self.x, 5)
        self.driver.synchronize()
        for at, graph in enumerate(self.graphs):
            graph.replay(stream=self.streams[at])
        self.driver.synchronize()
        for at, out in enumerate(self.outs):
            assert holds(out, (5 + at) * 2 + 1)
        for graph in self.wanted:
            graph.replay()


@pytest.mark.parametrize("ask", ["replay", "sleep"])
@pytest.mark.parametrize("count", [2, 3])
def test_of_threads_that_each_ask_for_the_nexts_arena_one_is_refused(sim: Any, xp: Any, count: int, ask: str) -> None:
    ring = Ring(sim, xp, count, ask)
    all_well(in_threads(sim, *(lambda at=at: ring.graphs[at].replay(stream=ring.streams[at]) for at in range(count))))
    assert len(ring.refusals) == 1, "the one that closes the ring; the others wait, and have their turn when it is done"
    assert "wait" in ring.refusals[0]
    assert [graph.replays for graph in ring.graphs] == [1] * count
    ring.check()


@pytest.mark.parametrize("ask", ["replay", "sleep"])
def test_a_refusal_that_leaves_the_break_ends_that_replay_and_lets_the_other_go_on(sim: Any, xp: Any, ask: str) -> None:
    ring = Ring(sim, xp, 2, ask)

    def work(a: Any, at: int) -> Any:
        if ring.armed:
            ring.met.wait(20)
            ring.take(1 - at)
        return a * 2

    ring.work = work  # type: ignore[method-assign]
    outcomes = in_threads(sim, *(lambda at=at: ring.graphs[at].replay(stream=ring.streams[at]) for at in range(2)))
    errors = [one for one in outcomes if one is not None]
    assert len(errors) == 1
    assert isinstance(errors[0], CaptureStateError)
    assert sorted(graph.replays for graph in ring.graphs) == [0, 1]
    assert all(graph.state == "captured" for graph in ring.graphs)
    ring.check()


def test_it_is_told_too_where_the_arenas_are_held_by_captures(sim: Any, xp: Any) -> None:
    ring = Ring(sim, xp, 2, "replay")
    for graph in ring.graphs:
        graph.close()

    def work(at: int) -> Any:
        with on_stream(ring.x, ring.streams[at]):
            return ring.capture(at)

    outcomes = in_threads(sim, lambda: work(0), lambda: work(1))
    all_well(outcomes)
    assert len(ring.refusals) == 1
    ring.graphs = outcomes
    ring.check()


def test_waiting_without_a_circle_is_not_refused(sim: Any, xp: Any) -> None:
    """The first holds A and asks for B; the second holds B, and asks for nothing."""
    a, b = bg.Arena(), bg.Arena()
    x, order = zeros(xp, ROWS), []
    both, armed = threading.Barrier(2), []

    def asking(v: Any) -> Any:
        if armed:
            both.wait(20)
            inner.replay(stream=streams[0])
            order.append("asked")
        return v * 2

    def content(v: Any) -> Any:
        if armed:
            both.wait(20)
            threading.Event().wait(0.1)
            order.append("content")
        return v * 3

    streams = [sim.create_stream() for _ in range(3)]
    with bg.capture(arena=b) as inner:
        x + 1
    with bg.capture(arena=a) as outer:
        out = bg.break_here(asking, bg.INFER, x + 1)
    with bg.capture(arena=b) as other:
        also = bg.break_here(content, bg.INFER, x + 1)
    sim.synchronize()
    armed.append(True)
    all_well(in_threads(sim, lambda: outer.replay(stream=streams[1]), lambda: other.replay(stream=streams[2])))
    assert order == ["content", "asked"]
    sim.synchronize()
    assert holds(out, 2)
    assert holds(also, 3)


def test_a_thread_that_was_refused_may_ask_again_when_the_circle_is_gone(sim: Any, xp: Any) -> None:
    ring = Ring(sim, xp, 2, "replay")
    done = threading.Event()

    def work(a: Any, at: int) -> Any:
        if ring.armed:
            ring.met.wait(20)
            try:
                ring.take(1 - at)
            except CaptureStateError as error:
                ring.refusals.append(str(error))
                retry.append(1 - at)
        return a * 2

    retry: list[int] = []
    ring.work = work  # type: ignore[method-assign]

    def run(at: int) -> None:
        ring.graphs[at].replay(stream=ring.streams[at])
        if retry == [1 - at]:
            done.wait(5)
            ring.take(1 - at)
        else:
            done.set()

    all_well(in_threads(sim, lambda: run(0), lambda: run(1)))
    assert len(ring.refusals) == 1
    ring.check()
