"""Segments of one topology share an exec, updated in place only when another graph used it last.

Proves the seventh point of graph memory: how many execs there are, when an update is made and when none is, that a
refused update costs an exec and never a value, and that each exec is destroyed once, when the last graph that uses it
is gone, in any order of closing graphs and dropping the cache. Values are checked throughout: an exec that still has
another graph's addresses would compute the other graph's forward.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support import Order, all_well, every_schedule, floats, holds, in_threads, live, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, CaptureStateError, DriverError

REFUSED = 910  # CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
UNKNOWN, OUT_OF_MEMORY = 999, 2


class Layers:
    """A forward of segments given by their numbers of kernels, over inputs and an output of its own.

    ``(2, 1, 2)`` is three segments, with a break that adds 10 between two of them; kernel k of segment s adds s + k.
    The output is outside the arena, so that no other graph's replay can hide a missing one of ours.
    """

    def __init__(self, xp: Any, kernels: tuple[int, ...], rows: int = 16, **options: Any) -> None:
        self.kernels = kernels
        self.x, self.out = zeros(xp, rows), zeros(xp, rows)
        self.graph = bg.BreakableGraph(name=f"{kernels} of {rows}")
        self._capture(options)

    def _capture(self, options: dict[str, Any]) -> None:
        with bg.capture(self.graph, **options):
            y = self.x
            for s, count in enumerate(self.kernels):
                if s:
                    y = bg.break_here(lambda a: a + 10, bg.INFER, y)
                for k in range(count):
                    y = np.add(y, s + k, out=self.out) if s + 1 == len(self.kernels) and k + 1 == count else y + (s + k)

    def expected(self, value: float) -> float:
        added = sum(s + k for s, count in enumerate(self.kernels) for k in range(count))
        return value + added + 10 * (len(self.kernels) - 1)

    def check(self, value: float, **options: Any) -> None:
        """A replay with this input is right. Waits for the device, so that only this replay can have done it."""
        refill(self.x, value)
        refill(self.out, -1)
        bg.driver.current().synchronize()
        self.graph.replay(**options)
        bg.driver.current().synchronize()
        assert holds(self.out, self.expected(value)), self.graph.name


def updates(driver: Any) -> int:
    return int(driver.calls["graph_exec_update"])


# --- how many execs, and which --------------------------------------------------------------------------------


def test_sizes_of_one_topology_need_the_execs_of_one(driver: Any, xp: Any) -> None:
    cache, arena = bg.ExecCache(), bg.Arena()
    sizes = [Layers(xp, (2, 1, 3), rows, arena=arena, execs=cache) for rows in (64, 32, 16, 8)]
    assert cache.execs == 3
    handles = [[segment.exec for segment in one.graph.segments] for one in sizes]
    assert handles[1:] == handles[:-1]
    assert len(set(handles[0])) == 3
    assert all(segment.shared for one in sizes for segment in one.graph.segments)
    for one in (*sizes, *sizes[::-1]):
        one.check(5)


def test_an_exec_is_instantiated_once_for_all_sizes(sim: Any, xp: Any) -> None:
    cache, arena = bg.ExecCache(), bg.Arena()
    before = sim.calls["graph_instantiate"], live(sim, "graph_exec")
    sizes = [Layers(xp, (1,) * 8, rows, arena=arena, execs=cache) for rows in (64, 32, 16, 8, 4)]
    assert sim.calls["graph_instantiate"] - before[0] == 8
    assert live(sim, "graph_exec") - before[1] == cache.execs == 8
    for one in sizes:
        one.check(2)
    assert sim.calls["graph_instantiate"] - before[0] == 8


def test_without_a_cache_every_segment_has_its_own(sim: Any, xp: Any) -> None:
    one, other = Layers(xp, (2, 1)), Layers(xp, (2, 1))
    handles = [segment.exec for layers in (one, other) for segment in layers.graph.segments]
    assert len(set(handles)) == 4
    assert not any(segment.shared for layers in (one, other) for segment in layers.graph.segments)
    one.check(1)
    other.check(2)
    assert updates(sim) == 0


def test_two_caches_share_nothing(driver: Any, xp: Any) -> None:
    caches = bg.ExecCache(), bg.ExecCache()
    pairs = [[Layers(xp, (2, 1), execs=cache) for cache in caches] for _ in range(2)]
    assert [cache.execs for cache in caches] == [2, 2]
    handles = [{s.exec for pair in pairs for s in pair[at].graph.segments} for at in (0, 1)]
    assert not handles[0] & handles[1]
    for one in itertools.chain(*pairs):
        one.check(3)


def test_a_topology_that_occurs_several_times_has_as_many_execs(driver: Any, xp: Any) -> None:
    """Within one forward no exec serves twice, or each replay would update it again and again."""
    cache = bg.ExecCache()
    five = Layers(xp, (2,) * 5, execs=cache)
    three = Layers(xp, (2,) * 3, execs=cache)
    assert cache.execs == 5
    assert len({segment.exec for segment in five.graph.segments}) == 5
    assert [s.exec for s in three.graph.segments] == [s.exec for s in five.graph.segments][:3]
    for one in (five, three, five):
        one.check(4)
    five.graph.close()
    assert cache.execs == 3
    three.check(5)


def test_a_later_graph_with_more_of_a_topology_adds_what_is_missing(driver: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    three = Layers(xp, (2,) * 3, execs=cache)
    five = Layers(xp, (2,) * 5, execs=cache)
    assert cache.execs == 5
    for one in (three, five, three):
        one.check(4)
    three.graph.close()
    assert cache.execs == 5
    five.check(6)


def test_the_kth_segment_of_a_topology_shares_with_the_kth(driver: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (1, 2, 1), execs=cache), Layers(xp, (2, 1, 2, 3), execs=cache)
    a, b, c = [segment.exec for segment in one.graph.segments]
    d, e, f, g = [segment.exec for segment in other.graph.segments]
    assert (d, e) == (b, a)
    assert len({a, b, c, f, g}) == 5
    assert cache.execs == 5
    for layers in (one, other, one, one, other):
        layers.check(3)


def test_a_mix_in_which_some_sizes_have_another_topology_is_right(driver: Any, xp: Any) -> None:
    cache, arena = bg.ExecCache(), bg.Arena()
    shapes = [(2, 2, 1), (2, 2, 1), (2, 3, 1), (2, 2, 1), (1,), (2, 3, 1)]
    sizes = [Layers(xp, shape, 8 * (n + 1), arena=arena, execs=cache) for n, shape in enumerate(shapes)]
    assert cache.execs == 4, "two of 2 kernels, one of 1, one of 3"
    draw = random.Random(3)
    for n in range(40):
        draw.choice(sizes).check(n)


def test_edges_are_part_of_a_topology(driver: Any, xp: Any) -> None:
    """Two kernels in a row, and two of which the second does not wait for the first."""
    cache, side, order = bg.ExecCache(), driver.create_stream(), Order(driver)
    x, outs = zeros(xp), [zeros(xp) for _ in range(4)]
    with bg.capture(execs=cache) as straight:
        np.add(x, 1, out=outs[0])
        np.add(x, 2, out=outs[1])
    with bg.capture(execs=cache) as forked:
        order(bg.current_stream(), side)
        with on_stream(x, side):
            np.add(x, 3, out=outs[2])
        np.add(x, 4, out=outs[3])
        order(side, bg.current_stream())
    assert straight.segments[0].nodes == forked.segments[0].nodes == 2
    assert straight.segments[0].exec != forked.segments[0].exec
    for value in (0, 5):
        refill(x, value)
        driver.synchronize()
        for graph in (straight, forked, straight):
            graph.replay()
        driver.synchronize()
        assert [float(out.get()[0]) for out in outs] == [value + n for n in (1, 2, 3, 4)]


def test_forked_segments_of_one_topology_share_too(driver: Any, xp: Any) -> None:
    cache, side, order = bg.ExecCache(), driver.create_stream(), Order(driver)
    graphs, x = [], zeros(xp)
    outs = [(zeros(xp), zeros(xp)) for _ in range(3)]
    for n, (left, right) in enumerate(outs):
        with bg.capture(execs=cache) as graph:
            t = x + n
            order(bg.current_stream(), side)
            with on_stream(x, side):
                np.add(t, 10, out=right)
            np.add(t, 20, out=left)
            order(side, bg.current_stream())
            np.add(left, right, out=left)
        graphs.append(graph)
    assert cache.execs == 1
    for value in (3, 4):
        refill(x, value)
        for graph in graphs:
            graph.replay()
        driver.synchronize()
        for n, (left, right) in enumerate(outs):
            assert holds(right, value + n + 10)
            assert holds(left, 2 * (value + n) + 30)


def test_a_segment_without_nodes_has_no_exec_to_share(sim: Any, xp: Any) -> None:
    cache, x = bg.ExecCache(), zeros(xp)
    outs = []
    for _ in range(2):
        with bg.capture(execs=cache) as graph:
            bg.break_graph()
            y = x + 1
            bg.break_graph()
        outs.append((graph, y))
    assert cache.execs == 1
    for graph, y in outs:
        assert [(segment.exec == 0, segment.shared) for segment in graph.segments] == [
            (True, False),
            (False, True),
            (True, False),
        ]
        refill(x, 3)
        graph.replay()
        assert holds(y, 4)


def test_memsets_and_copies_are_updated_with_the_kernels(driver: Any, xp: Any) -> None:
    cache, graphs = bg.ExecCache(), []
    for rows in (64, 16):
        x, out = zeros(xp, rows), zeros(xp, rows)
        with bg.capture(execs=cache, arena=bg.Arena()) as graph:
            pinned = graph.output(x + 1)  # a copy node
            stream = bg.current_stream()
            driver.memset_d8_async(out.data.ptr, 0, out.nbytes // 2, int(stream))
            np.add(out, pinned, out=out)
        graphs.append((graph, x, out, pinned))
    assert cache.execs == 1
    for graph, x, out, pinned in (*graphs, *graphs):
        refill(x, 4)
        refill(out, 100)
        graph.replay()
        half = out.shape[0] // 2
        assert holds(pinned, 5)
        assert holds(out[:half], 5)
        assert holds(out[half:], 105)


# --- when an update is made -----------------------------------------------------------------------------------


def test_a_graph_alone_makes_no_update(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one = Layers(xp, (2, 1, 2), execs=cache)
    for n in range(5):
        one.check(n)
    assert cache.updates == updates(sim) == 0


def test_repeated_replays_of_one_size_make_no_update(sim: Any, xp: Any) -> None:
    cache, arena = bg.ExecCache(), bg.Arena()
    sizes = [Layers(xp, (2, 1, 2), rows, arena=arena, execs=cache) for rows in (32, 16, 8)]
    for one in sizes:
        one.check(1)
        before = updates(sim)
        for n in range(5):
            one.check(n)
        assert updates(sim) == before
    assert cache.updates == updates(sim)


def test_a_change_of_size_updates_each_segment_once(sim: Any, xp: Any) -> None:
    cache, arena = bg.ExecCache(), bg.Arena()
    sizes = [Layers(xp, (2, 1, 2), rows, arena=arena, execs=cache) for rows in (32, 16)]
    for n in range(6):
        before = updates(sim)
        sizes[n % 2].check(n)
        assert updates(sim) - before == 3
    assert cache.updates == updates(sim)


def test_only_segments_that_another_graph_used_last_are_updated(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (1, 2, 3), execs=cache), Layers(xp, (2,), execs=cache)
    one.check(1)
    other.check(2)
    before = updates(sim)
    one.check(3)
    assert updates(sim) - before == 1


def test_a_replay_that_stops_in_a_break_leaves_the_rest_of_the_execs_alone(sim: Any, xp: Any) -> None:
    """What each exec has is known for each: a replay that ends early is not taken for a whole one."""
    cache, fails = bg.ExecCache(), [False]
    x, out = zeros(xp), zeros(xp)

    def work(a: Any) -> Any:
        if fails[0]:
            raise ValueError("planned")
        return a + 10

    with bg.capture(execs=cache) as breaking:
        y = bg.break_here(work, bg.INFER, x + 0)
        np.add(y, 1, out=out)
    other = Layers(xp, (1, 1), execs=cache)
    assert cache.execs == 2
    fails[0] = True
    with pytest.raises(ValueError, match="planned"):
        breaking.replay()
    before = updates(sim)
    other.check(5)
    assert updates(sim) - before == 1
    fails[0] = False
    refill(x, 5)
    breaking.replay()
    assert holds(out, 16)
    other.check(6)


@every_schedule
def test_replays_that_nobody_waits_for_keep_the_addresses_of_their_own_graph(driver: Any, xp: Any) -> None:
    """An update is for later launches: what was launched before is still pending on the device."""
    cache, arena = bg.ExecCache(), bg.Arena()
    sizes = [Layers(xp, (2, 1), rows, arena=arena, execs=cache) for rows in (64, 16, 4)]
    streams = [driver.create_stream() for _ in sizes]
    for n, one in enumerate(sizes):
        refill(one.x, n)
    driver.synchronize()
    for n in range(9):
        sizes[n % 3].graph.replay(stream=streams[n * 7 % 3])
    driver.synchronize()
    for n, one in enumerate(sizes):
        assert holds(one.out, one.expected(n))


def test_with_execute_false_graphs_share_and_replay_right(driver: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    sizes = [Layers(xp, (2, 1), rows, execute=False, execs=cache) for rows in (64, 16)]
    assert cache.execs == 2
    for one in (sizes[0], sizes[1], sizes[0]):
        one.check(7)


def test_a_capture_that_shares_executes_its_own_forward(driver: Any, xp: Any) -> None:
    cache, seen = bg.ExecCache(), []
    for value in (1, 2, 3):
        x = floats(xp, *[value] * 4)
        with bg.capture(execs=cache, arena=bg.Arena()) as graph:
            y = bg.break_here(lambda a: seen.append(a.get().tolist()) or a * 2, bg.INFER, x + 1)
            out = y + 1
        assert holds(out, (value + 1) * 2 + 1)
        graph.keep(graph)  # alive until the collector finds it
        del graph
    gc.collect()
    assert seen == [[value + 1.0] * 4 for value in (1, 2, 3)]
    assert cache.execs == 0


def test_a_new_graph_is_never_taken_for_one_that_is_gone(driver: Any, xp: Any) -> None:
    """Handles and the ids of Python objects may recur; whose parameters an exec has is not told by them."""
    cache = bg.ExecCache()
    steady = Layers(xp, (2, 1), execs=cache)
    for n in range(8):
        passing = Layers(xp, (2, 1), 16 + n, execs=cache)
        passing.check(n)
        if n % 2:
            passing.graph.close()
        del passing
        if n % 3:
            steady.check(n)
    gc.collect()
    steady.check(9)
    assert cache.execs == 2


def test_the_repr_of_a_cache_says_its_counts(driver: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    assert (cache.execs, cache.updates) == (0, 0)
    sizes = [Layers(xp, (2, 1), rows, execs=cache) for rows in (64, 16)]
    for n in range(4):
        sizes[n % 2].check(n)
    assert str(cache.execs) in repr(cache)
    assert str(cache.updates) in repr(cache)
    assert cache.updates >= 6


# --- what an update refuses -----------------------------------------------------------------------------------


def test_what_an_update_refuses_at_capture_gets_an_exec_of_its_own(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one = Layers(xp, (2, 1), 32, execs=cache)
    with sim.fail("graph_exec_update", at=1, code=REFUSED) as plan:
        other = Layers(xp, (2, 1), 16, execs=cache)
    assert plan.struck
    (a, b), (c, d) = ([segment.exec for segment in layers.graph.segments] for layers in (one, other))
    assert a != c
    assert b == d
    assert live(sim, "graph_exec") == 3
    for layers in (one, other, one, other):
        layers.check(4)
    before = sim.calls["graph_instantiate"]
    other.check(5)
    assert sim.calls["graph_instantiate"] == before, "it is not tried again and again"


def test_what_an_update_refuses_at_replay_is_right_all_the_same(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (2, 1), 32, execs=cache), Layers(xp, (2, 1), 16, execs=cache)
    with sim.fail("graph_exec_update", at=1, code=REFUSED) as plan:
        one.check(3)
    assert plan.struck
    first, second = one.graph.segments[0], other.graph.segments[0]
    assert first.exec != second.exec
    assert not first.shared
    for layers in (other, one, other, one):
        layers.check(4)
    one.graph.close()
    other.graph.close()
    assert live(sim, "graph_exec") == cache.execs == 0


def test_a_graph_that_the_driver_cannot_update_has_its_own_exec(sim: Any, xp: Any) -> None:
    """Kernels of two contexts: of one topology, and no exec can go from one to the other."""
    cache = bg.ExecCache()
    here = Layers(xp, (2, 1), execs=cache)
    stream, home = sim.create_stream(), sim.ctx_get_current()
    away = sim.ctx_create(0)
    there = Layers(xp, (2, 1), execs=cache, arena=bg.Arena())
    assert {s.exec for s in here.graph.segments}.isdisjoint(s.exec for s in there.graph.segments)
    there.check(2)
    sim.ctx_pop_current()
    assert sim.ctx_get_current() == home
    here.check(3, stream=stream)
    there.graph.close()
    here.check(4)
    del there
    gc.collect()
    zeros(xp)
    sim.ctx_destroy(away)


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
def test_an_update_that_fails_at_replay_is_an_error_and_the_next_replay_right(sim: Any, xp: Any, code: int) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (2, 1), 32, execs=cache), Layers(xp, (2, 1), 16, execs=cache)
    for at in (1, 2):
        other.check(1)
        with pytest.raises(DriverError), sim.fail("graph_exec_update", at=at, code=code):
            one.graph.replay()
        assert one.graph.state == "captured"
        one.check(5)
        other.check(6)
    assert cache.execs == 2


def test_a_launch_that_fails_after_an_update_leaves_both_graphs_right(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (2, 1), 32, execs=cache), Layers(xp, (2, 1), 16, execs=cache)
    for at in (1, 2):
        with pytest.raises(DriverError), sim.fail("graph_launch", at=at):
            one.graph.replay()
        other.check(6)
        one.check(5)


# --- captures that fail ---------------------------------------------------------------------------------------


def test_a_first_capture_that_fails_leaves_no_exec(sim: Any, xp: Any) -> None:
    cache, x = bg.ExecCache(), zeros(xp)
    with pytest.raises(ValueError, match="planned"), bg.capture(execs=cache):
        for n in range(3):
            x + n
            bg.break_graph()
        raise ValueError("planned")
    assert cache.execs == live(sim, "graph_exec") == live(sim, "graph") == 0
    Layers(xp, (1, 1), execs=cache).check(2)


def test_a_later_capture_that_fails_leaves_the_execs_of_the_earlier_ones(sim: Any, xp: Any) -> None:
    """It has launched them with its own addresses, which are nobody's by now: the next replay must update."""
    cache = bg.ExecCache()
    one = Layers(xp, (1, 1, 1), execs=cache)
    handles = [segment.exec for segment in one.graph.segments]
    x = zeros(xp, 64)
    with pytest.raises(ValueError, match="planned"), bg.capture(execs=cache, arena=bg.Arena()):
        for n in range(5):
            x + n
            bg.break_graph()
        raise ValueError("planned")
    gc.collect()
    assert cache.execs == live(sim, "graph_exec") == 3
    assert [segment.exec for segment in one.graph.segments] == handles
    one.check(4)
    Layers(xp, (1, 1, 1), 8, execs=cache).check(5)
    one.check(6)


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
def test_whatever_call_of_a_sharing_capture_fails_the_cache_is_good_afterwards(code: int) -> None:
    with bg.driver.use("sim") as driver:
        xp = bg.array_namespace()
        cache = bg.ExecCache()
        first = Layers(xp, (2, 1), 32, execs=cache)
        before = Counter(driver.calls)
        second = Layers(xp, (2, 1, 2), 16, execs=cache)
        calls = Counter(driver.calls) - before
        first.graph.close()
        second.graph.close()
    interesting = [name for name in calls if name.startswith("graph_") or name in ("mem_get_info", "ctx_get_id")]
    assert {"graph_exec_update", "graph_instantiate", "graph_get_edges"} <= set(interesting)
    complaints = []
    for name in sorted(interesting):
        for at in range(1, calls[name] + 1):
            try:
                fail_in_a_sharing_capture(name, at, code)
            except (AssertionError, BreakgraphError) as error:
                complaints.append(f"{name} #{at}: {type(error).__name__} {error}"[:300])
    assert not complaints, "\n".join(complaints)


def fail_in_a_sharing_capture(name: str, at: int, code: int) -> None:
    with bg.driver.use("sim") as driver:
        xp = bg.array_namespace()
        cache, failed = bg.ExecCache(), False
        first = Layers(xp, (2, 1), 32, execs=cache)
        second = Layers.__new__(Layers)
        try:
            with driver.fail(name, at=at, code=code):
                second.__init__(xp, (2, 1, 2), 16, execs=cache)
        except BreakgraphError:
            failed = True
            assert second.graph.state == "failed"
            assert cache.execs == live(driver, "graph_exec") == 2
            assert live(driver, "graph") == 2
        else:
            second.check(1)
        first.check(4)
        if failed:
            second.graph.reset()
            second._capture({"execs": cache})
        for one in (second, first, second):
            one.check(5)
        first.graph.close()
        second.check(6)
        second.graph.close()
        assert cache.execs == live(driver, "graph_exec") == live(driver, "graph") == 0
        driver.synchronize()
        assert not driver.races


# --- who goes first -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(["0", "1", "2", "cache"])), ids="-".join)
def test_graphs_and_cache_may_go_in_any_order(sim: Any, xp: Any, order: tuple[str, ...]) -> None:
    destroyed = sim.calls["graph_exec_destroy"]
    held: dict[str, Any] = {"cache": bg.ExecCache()}
    shapes = (2, 1), (2, 1, 2), (2, 1)
    for n, shape in enumerate(shapes):
        held[str(n)] = Layers(xp, shape, 8 * (n + 1), execs=held["cache"])
    made = live(sim, "graph_exec")
    assert made == 3
    for name in order:
        if name == "cache" or int(name) % 2:
            del held[name]
            gc.collect()
        else:
            held.pop(name).graph.close()
        for other in held:
            if other != "cache":
                held[other].check(4)
        used = max((len(shapes[int(other)]) for other in held if other != "cache"), default=0)
        assert live(sim, "graph_exec") == used
    assert sim.calls["graph_exec_destroy"] - destroyed == made


def test_graphs_captured_after_the_last_user_is_gone_begin_afresh(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    for n in range(4):
        one = Layers(xp, (2, 1), 8 * (n + 1), execs=cache)
        one.check(n)
        assert cache.execs == live(sim, "graph_exec") == 2
        one.graph.close()
        assert cache.execs == live(sim, "graph_exec") == 0


def test_a_graph_may_be_reset_and_captured_again_with_its_cache(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (2, 1), 32, execs=cache), Layers(xp, (2, 1), 16, execs=cache)
    for shape in ((1, 2), (2,), (2, 1)):
        one.graph.reset()
        other.check(3)
        one.kernels = shape
        one._capture({"execs": cache})
        one.check(4)
        other.check(5)
    one.graph.close()
    assert cache.execs == 2


def test_a_graph_in_a_reference_cycle_lets_its_execs_go(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (2, 1), execs=cache), Layers(xp, (2, 1, 3), execs=cache)
    other.graph.keep(other)
    del other
    gc.collect()
    assert cache.execs == live(sim, "graph_exec") == 2
    one.check(3)


def test_an_exec_is_destroyed_after_the_last_replay_that_uses_it(driver: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (2, 1), 32, execs=cache), Layers(xp, (2, 1), 16, execs=cache, arena=bg.Arena())
    stream = driver.create_stream()
    refill(one.x, 3)
    refill(other.x, 4)
    driver.synchronize()
    one.graph.replay(stream=stream)
    other.graph.replay(stream=driver.create_stream())
    one.graph.close()
    other.graph.close()
    driver.synchronize()
    assert holds(one.out, one.expected(3))
    assert holds(other.out, other.expected(4))


@pytest.mark.keeps_handles
def test_abandoning_a_graph_makes_no_driver_call_and_leaves_the_others_their_execs(sim: Any, xp: Any) -> None:
    cache = bg.ExecCache()
    one, other = Layers(xp, (2, 1), execs=cache), Layers(xp, (2, 1), execs=cache)
    calls = sum(sim.calls.values())
    one.graph.abandon()
    assert sum(sim.calls.values()) == calls
    other.check(3)
    assert cache.execs == 2


# --- several threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arenas", ["one arena", "an arena each"])
@pytest.mark.parametrize("sim", ["fifo", "lazy", "random"], indirect=True)
def test_two_threads_replay_two_graphs_of_one_cache_on_two_streams(sim: Any, xp: Any, arenas: str) -> None:
    cache, arena = bg.ExecCache(), bg.Arena()
    sizes = [
        Layers(xp, (2, 1, 2), rows, execs=cache, arena=arena if arenas == "one arena" else bg.Arena())
        for rows in (64, 16)
    ]
    streams = [sim.create_stream() for _ in sizes]
    sim.synchronize()

    def work(one: Layers, stream: Any) -> None:
        for n in range(15):
            with on_stream(one.x, stream):
                refill(one.x, n)
                one.graph.replay()
                value = one.out.get()
            assert value.tolist() == [one.expected(n)] * one.out.size

    pairs = zip(sizes, streams, strict=True)
    all_well(in_threads(sim, *(lambda one=one, stream=stream: work(one, stream) for one, stream in pairs)))
    assert cache.execs == 3


def test_an_update_and_its_launch_are_one_step_for_other_threads(sim: Any, xp: Any, monkeypatch: Any) -> None:
    """Another thread comes when the exec has been updated, and must not update it again before it is launched."""
    cache = bg.ExecCache()
    one = Layers(xp, (2,), 64, execs=cache, arena=bg.Arena())
    other = Layers(xp, (2,), 16, execs=cache, arena=bg.Arena())
    streams = [sim.create_stream() for _ in range(2)]
    for layers, value in ((one, 3), (other, 4)):
        refill(layers.x, value)
        refill(layers.out, -1)
    sim.synchronize()
    genuine, about_to_launch, go_on = sim.graph_launch, threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        if not about_to_launch.is_set():
            about_to_launch.set()
            go_on.wait(0.3)  # the other thread has this long to get in between
        genuine(*args)

    monkeypatch.setattr(sim, "graph_launch", slow)

    def second() -> None:
        assert about_to_launch.wait(20)
        other.graph.replay(stream=streams[1])
        go_on.set()

    all_well(in_threads(sim, lambda: one.graph.replay(stream=streams[0]), second))
    monkeypatch.undo()
    sim.synchronize()
    assert holds(one.out, one.expected(3))
    assert holds(other.out, other.expected(4))


def test_a_replay_in_a_break_of_another_graph_of_the_cache_is_right(driver: Any, xp: Any) -> None:
    """The inner one takes over the very execs that the outer one has launched and will launch next time."""
    cache = bg.ExecCache()
    inner = Layers(xp, (1, 1), 64, execs=cache, arena=bg.Arena())
    x, out = zeros(xp), zeros(xp)

    def work(a: Any) -> Any:
        inner.graph.replay()
        return a * 2

    with bg.capture(execs=cache, arena=bg.Arena()) as outer:
        y = bg.break_here(work, bg.INFER, x + 1)
        np.add(y, 1, out=out)
    assert cache.execs == 2
    for value in (3, 4):
        refill(x, value)
        refill(inner.x, value)
        refill(inner.out, -1)
        outer.replay()
        driver.synchronize()
        assert holds(out, (value + 1) * 2 + 1)
        assert holds(inner.out, inner.expected(value))


def test_threads_may_capture_and_close_with_one_cache_at_the_same_time(sim: Any, xp: Any) -> None:
    cache, start = bg.ExecCache(), threading.Barrier(3)
    steady = Layers(xp, (2, 1), 8, execs=cache, arena=bg.Arena())
    streams = [(sim.create_stream(), sim.create_stream()) for _ in range(3)]

    def work(seed: int) -> None:
        stream, origin = streams[seed]
        start.wait(20)
        for n in range(6):
            with on_stream(steady.x, stream):
                x, out = zeros(xp, 16 + seed), zeros(xp, 16 + seed)
                with bg.capture(execs=cache, arena=bg.Arena(), stream=origin) as graph:
                    y = bg.break_here(lambda a: a + 10, bg.INFER, x + 1 + seed)
                    np.add(y, n, out=out)
                refill(x, n)
                graph.replay()
                assert out.get().tolist() == [2.0 * n + 11 + seed] * out.size
                graph.close()

    all_well(in_threads(sim, *(lambda seed=seed: work(seed) for seed in range(3))))
    steady.check(5)
    assert cache.execs == live(sim, "graph_exec") == 2


# --- two devices ----------------------------------------------------------------------------------------------


def test_graphs_of_two_drivers_do_not_share(sim: Any, xp: Any) -> None:
    """Two simulated devices number their handles alike, so a handle alone would be taken for the other's."""
    cache = bg.ExecCache()
    here = Layers(xp, (2, 1), execs=cache)
    with bg.driver.use("sim") as other:
        try:
            there = Layers(bg.array_namespace(), (2, 1), execs=cache)
        except CaptureStateError:
            there = None
        if there is not None:
            there.check(2)
            there.graph.close()
        assert not other.live()["graph_exec"]
        del there
    here.check(3)
    assert live(sim, "graph_exec") == 2
