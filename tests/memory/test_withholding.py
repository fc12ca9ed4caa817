"""A block that dies in a segment while forked work may be running serves nobody who could overtake that work.

Proves C28. A fork is opened with events, blocks die on either side of it, and both sides allocate again. Whatever the
schedule did, the race finder compares all accesses that no edge orders, so one schedule would do; several seeds show
the wrong value as well. Then the other half: after the join, and after the segment, the bytes do serve again, and a
forward that never forks hands each block on at once.

       origin  --a--+-----b-----+--c--     b is not given the bytes of a, which the side may still read;
       side         +---reads a-+          c may have them
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import _left_as_found
from memory_support import MIB, address, overlap
from support import Order, holds, on_stream, refill, zeros

import breakgraph as bg

ROWS = 1024  # floats: 4 KiB, so that a block is worth handing on


@pytest.fixture(params=["fifo", "lazy", 1, 2, 3, 4, "cuda"], ids=lambda one: f"seed{one}" if one in range(9) else one)
def driver(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The driver under more schedules than usual; the simulated ones are checked for races by `_left_as_found`."""
    if request.param == "cuda":
        yield request.getfixturevalue("gpu")
        return
    schedule, seed = (request.param, 0) if isinstance(request.param, str) else ("random", request.param)
    with bg.driver.use("sim", schedule=schedule, seed=seed) as made, _left_as_found(made, request):
        yield made


class Scene:
    """Buffers outside the arena, an arena, side streams, and the order between streams."""

    def __init__(self, driver: Any, xp: Any, sides: int = 1) -> None:
        self.driver = driver
        self.arena = bg.Arena()
        self.x = zeros(xp, ROWS)
        self.main, self.side = zeros(xp, ROWS), zeros(xp, ROWS)
        self.streams = [driver.create_stream() for _ in range(sides)]
        self.order = Order(driver)
        driver.synchronize()

    def fork(self, at: int = 0, source: Any = None) -> Any:
        """Draw a side stream into the open segment; returns the scope in which it is the current one."""
        self.order(bg.current_stream() if source is None else source, self.streams[at])
        return on_stream(self.x, self.streams[at])

    def join(self, at: int = 0, into: Any = None) -> None:
        self.order(self.streams[at], bg.current_stream() if into is None else into)

    def replay(self, graph: Any, x: float) -> None:
        """Replay with new input, out of step with whatever the caller's stream did before."""
        refill(self.x, x)
        refill(self.main, -1)
        refill(self.side, -1)
        self.driver.synchronize()
        graph.replay()
        self.driver.synchronize()


@pytest.fixture
def scene(driver: Any, xp: Any) -> Scene:
    return Scene(driver, xp)


# --- while the fork is open -----------------------------------------------------------------------------------


def test_a_block_that_the_side_still_reads_is_not_given_to_the_origin(scene: Scene) -> None:
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        with scene.fork():
            np.multiply(a, 2, out=scene.side)
        at = address(a)
        del a
        b = scene.x + 100
        c = b + 100
        assert at not in (address(b), address(c))
        np.add(c, 0, out=scene.main)
        scene.join()
    scene.replay(graph, 3)
    assert holds(scene.side, 8)
    assert holds(scene.main, 203)


def test_a_block_that_the_origin_still_reads_is_not_given_to_the_side(scene: Scene) -> None:
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        with scene.fork():
            np.multiply(scene.x, 2, out=scene.side)
        np.add(a, 5, out=scene.main)
        at = address(a)
        del a
        with on_stream(scene.x, scene.streams[0]):
            b = scene.x + 100
            assert address(b) != at
            np.add(scene.side, b, out=scene.side)
        scene.join()
    scene.replay(graph, 3)
    assert holds(scene.main, 9)
    assert holds(scene.side, 109)


def test_a_block_that_was_made_and_dropped_on_the_side_is_not_given_to_the_origin(scene: Scene) -> None:
    with bg.capture(arena=scene.arena) as graph:
        with scene.fork():
            t = scene.x + 1
            np.multiply(t, 2, out=scene.side)
            at = address(t)
            del t
        b = scene.x + 100
        assert address(b) != at
        np.add(b, 0, out=scene.main)
        scene.join()
    scene.replay(graph, 3)
    assert holds(scene.side, 8)
    assert holds(scene.main, 103)


def test_an_empty_fork_is_given_nothing_that_died_on_the_origin(scene: Scene) -> None:
    """The side has recorded no node yet, so the graph alone would say that nothing is forked."""
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        side = scene.fork()
        np.add(a, 5, out=scene.main)  # after the fork: the side will not wait for this
        at = address(a)
        del a
        with side:
            b = scene.x + 100
            assert address(b) != at
            np.add(b, 0, out=scene.side)
        scene.join()
    scene.replay(graph, 3)
    assert holds(scene.main, 9)
    assert holds(scene.side, 103)


def test_a_block_that_died_before_an_empty_fork_is_not_given_to_the_side(scene: Scene) -> None:
    """It was handed on to the origin meanwhile and dropped again, and the side does not wait for those reads."""
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        at = address(a)
        del a
        side = scene.fork()
        again = scene.x + 7
        np.add(again, 5, out=scene.main)
        del again
        with side:
            b = scene.x + 100
            assert address(b) != at
            np.add(b, 0, out=scene.side)
        scene.join()
    scene.replay(graph, 3)
    assert holds(scene.main, 15)
    assert holds(scene.side, 103)


def test_what_dies_while_a_fork_of_a_fork_is_open_waits_for_both(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp, sides=2)
    first, second = scene.streams
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        with scene.fork(0):
            b = a + 10
        with scene.fork(1, source=first):
            np.add(a, b, out=scene.side)
        dead = {address(a), address(b)}
        del a, b
        c = scene.x + 100
        assert address(c) not in dead
        scene.join(1, into=first)
        d = scene.x + 200
        assert address(d) not in dead, "the first side has taken the second in, and is still out itself"
        scene.join(0)
        e = scene.x + 300
        assert address(e) in dead
        np.add(c + d, e, out=scene.main)
    scene.replay(graph, 3)
    assert holds(scene.side, 18)
    assert holds(scene.main, 609)
    assert len({int(first), int(second), int(graph.capture_stream)}) == 3


@pytest.mark.parametrize("joined", [0, 1])
def test_a_partial_join_hands_on_nothing_that_the_other_side_may_use(driver: Any, xp: Any, joined: int) -> None:
    scene = Scene(driver, xp, sides=2)
    other = 1 - joined
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        outs = scene.side, scene.main
        for at in (0, 1):
            with scene.fork(at):
                np.multiply(a, at + 2, out=outs[at])
        at = address(a)
        del a
        scene.join(joined)
        b = scene.x + 100
        assert address(b) != at
        np.add(outs[joined], b, out=outs[joined])
        scene.join(other)
        c = scene.x + 200
        assert address(c) == at
        np.add(outs[other], c, out=outs[other])
    scene.replay(graph, 3)
    assert holds(outs[joined], 4 * (joined + 2) + 103)
    assert holds(outs[other], 4 * (other + 2) + 203)


def test_a_joined_side_that_runs_on_holds_blocks_again(scene: Scene) -> None:
    """The join was for what the side had done until then."""
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        with scene.fork():
            np.multiply(a, 2, out=scene.side)
        scene.join()
        with on_stream(scene.x, scene.streams[0]):
            np.add(scene.side, a, out=scene.side)
        at = address(a)
        del a
        b = scene.x + 100
        assert address(b) != at
        np.add(b, 0, out=scene.main)
        scene.join()
    scene.replay(graph, 3)
    assert holds(scene.side, 12)
    assert holds(scene.main, 103)


def test_both_sides_may_allocate_in_turn_and_nothing_overlaps_in_time(scene: Scene) -> None:
    with bg.capture(arena=scene.arena) as graph:
        with scene.fork():
            s = scene.x + 1
        m = scene.x + 1
        for n in range(6):
            with on_stream(scene.x, scene.streams[0]):
                s = s * 2 + n
            m = m * 3 - n
        with on_stream(scene.x, scene.streams[0]):
            np.add(s, 0, out=scene.side)
        np.add(m, 0, out=scene.main)
        scene.join()
    scene.replay(graph, 1)
    side = main = 2.0
    for n in range(6):
        side, main = side * 2 + n, main * 3 - n
    assert holds(scene.side, side)
    assert holds(scene.main, main)


def test_a_block_from_an_earlier_segment_may_serve_either_side(scene: Scene) -> None:
    """A segment is launched after the one before it, and its forks with it."""
    with bg.capture(arena=scene.arena) as graph:
        blocks = [scene.x + n for n in range(4)]
        dead = {address(block) for block in blocks}
        del blocks
        bg.break_graph()
        with scene.fork():
            s = scene.x + 10
            np.add(s, 1, out=scene.side)
        m = scene.x + 20
        np.add(m, 1, out=scene.main)
        assert {address(s), address(m)} <= dead
        assert not overlap(s, m)
        scene.join()
    mapped = scene.arena.mapped
    scene.replay(graph, 3)
    assert holds(scene.side, 14)
    assert holds(scene.main, 24)
    assert scene.arena.mapped == mapped


def test_a_breaks_result_is_not_given_bytes_that_a_fork_of_the_segment_before_it_used_unjoined(scene: Scene) -> None:
    """The break runs after the whole segment, so what was withheld serves its result."""
    with bg.capture(arena=scene.arena) as graph:
        with scene.fork():
            t = scene.x + 1
            np.multiply(t, 2, out=scene.side)
        del t
        scene.join()
        y = bg.break_here(lambda a: a + 50, bg.INFER, scene.side)
        np.add(y, 1, out=scene.main)
    scene.replay(graph, 3)
    assert holds(scene.side, 8)
    assert holds(scene.main, 59)


def test_a_view_keeps_its_whole_block_out_of_use(scene: Scene) -> None:
    with bg.capture(arena=scene.arena) as graph:
        a = scene.x + 1
        with scene.fork():
            half = a[: ROWS // 2]
            del a
            b = scene.x + 9
            np.add(half, 1, out=scene.side[: ROWS // 2])
            np.add(b[ROWS // 2 :], 1, out=scene.side[ROWS // 2 :])
            assert not overlap(half, b)
        scene.join()
        np.add(scene.side, 0, out=scene.main)
    scene.replay(graph, 3)
    assert holds(scene.main[: ROWS // 2], 5)
    assert holds(scene.main[ROWS // 2 :], 13)


# --- after it -------------------------------------------------------------------------------------------------


def test_after_the_join_the_bytes_serve_again_and_the_peak_does_not_grow(scene: Scene) -> None:
    with bg.capture(arena=scene.arena) as graph:
        for n in range(8):
            a = scene.x + n
            with scene.fork():
                b = a * 2
                np.add(b, 0, out=scene.side)
            scene.join()
            addresses = {address(a), address(b)}
            del a, b
            c = scene.x + 1
            assert address(c) in addresses
            del c
            if not n:
                peak, mapped = scene.arena.peak, scene.arena.mapped
    assert scene.arena.peak <= peak + 2 * 4 * ROWS, "a side is given no bytes of its own segment, so it took two more"
    assert scene.arena.mapped == mapped
    scene.replay(graph, 3)
    assert holds(scene.side, 20)


def test_bytes_that_serve_again_after_a_join_are_joined_with_their_neighbours(scene: Scene) -> None:
    with bg.capture(arena=scene.arena):
        parts = [scene.x + n for n in range(4)]
        low = min(map(address, parts))
        with scene.fork():
            np.multiply(parts[0], 2, out=scene.side)
        parts.clear()
        scene.join()
        large = np.concatenate([scene.x, scene.x, scene.x, scene.x])
        assert address(large) == low


def test_the_end_of_the_segment_hands_everything_on(scene: Scene) -> None:
    peaks = []
    with bg.capture(arena=scene.arena) as graph:
        for _ in range(6):
            a = scene.x + 1
            with scene.fork():
                b = a * 2
                np.add(b, 0, out=scene.side)
                del a, b
            scene.join()
            bg.break_graph()
            peaks.append(scene.arena.peak)
    assert len(set(peaks)) == 1
    scene.replay(graph, 3)
    assert holds(scene.side, 8)


def test_a_capture_that_fails_with_an_open_fork_withholds_nothing_afterwards(scene: Scene) -> None:
    def forward() -> None:
        a = scene.x + 1
        with scene.fork():
            np.multiply(a, 2, out=scene.side)
        del a
        b = scene.x + 100
        np.add(b, 0, out=scene.main)

    with pytest.raises(ValueError, match="planned"), bg.capture(arena=scene.arena):
        forward()
        raise ValueError("planned")
    gc.collect()
    peak, mapped = scene.arena.peak, scene.arena.mapped
    assert scene.arena.used == 0
    whole = scene.arena.allocate(mapped)
    assert scene.arena.mapped == mapped, "all of it is one span again"
    del whole
    with bg.capture(arena=scene.arena) as graph:
        forward()
        scene.join()
    assert (scene.arena.peak, scene.arena.mapped) == (max(peak, mapped), mapped)
    scene.replay(graph, 3)
    assert holds(scene.side, 8)
    assert holds(scene.main, 103)


def test_a_fork_in_one_segment_withholds_nothing_in_the_next(scene: Scene) -> None:
    with bg.capture(arena=scene.arena) as graph:
        with scene.fork():
            np.multiply(scene.x, 2, out=scene.side)
        scene.join()
        bg.break_graph()
        addresses = set()
        y = scene.x + 0
        for n in range(8):
            y = y + n
            addresses.add(address(y))
        np.add(y, 0, out=scene.main)
    assert len(addresses) == 2
    scene.replay(graph, 3)
    assert holds(scene.main, 31)


def test_a_forward_on_one_stream_hands_each_block_on_at_once(scene: Scene) -> None:
    nbytes = 4 * ROWS
    with bg.capture(arena=scene.arena) as graph:
        y = scene.x + 0
        for n in range(50):
            y = y + n
        np.add(y, 0, out=scene.main)
    assert scene.arena.peak == 2 * nbytes
    scene.replay(graph, 3)
    assert holds(scene.main, 3 + sum(range(50)))


def test_other_captures_may_use_what_a_forked_one_has_dropped(scene: Scene) -> None:
    """Captures on one arena run one after another, whatever streams they fork to (C25)."""
    with bg.capture(arena=scene.arena) as first:
        a = scene.x + 1
        with scene.fork():
            b = a * 2
            np.add(b, 0, out=scene.side)
            del a, b
        scene.join()
    peak = scene.arena.peak
    with bg.capture(arena=scene.arena) as second:
        c = scene.x + 40
        np.add(c * 2, 0, out=scene.main)
        del c
    assert scene.arena.peak == peak
    scene.replay(first, 3)
    scene.replay(second, 3)
    assert holds(scene.main, 86)
    scene.replay(first, 5)
    assert holds(scene.side, 12)


# --- at any order of all this ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_random_forks_joins_and_drops_are_right_and_free_of_races(seed: int) -> None:
    """Three streams, values that each stream computes from its own; drops, forks and joins at random."""
    draw = np.random.default_rng(seed)
    with bg.driver.use("sim", schedule="random", seed=seed) as driver:
        xp = bg.array_namespace()
        scene = Scene(driver, xp, sides=2)
        outs = [zeros(xp, ROWS) for _ in range(3)]
        with bg.capture(arena=scene.arena) as graph:
            origin = bg.current_stream()
            places = [origin, *scene.streams]
            live: list[list[tuple[Any, float, float]]] = [[], [], []]  # per stream: array, and factor and offset of x
            out = [False, False]
            for _ in range(60):
                at = int(draw.integers(3))
                if at and not out[at - 1]:
                    scene.order(origin, places[at])
                    live[at] += live[0]  # the fork may read what the origin has made
                    out[at - 1] = True
                elif at and draw.random() < 0.2:
                    scene.order(places[at], origin)
                    live[0] += live[at]
                    live[at] = []
                    out[at - 1] = False
                elif live[at] and draw.random() < 0.4:
                    gone = live[at].pop(int(draw.integers(len(live[at]))))[0]
                    for one in live:
                        one[:] = [entry for entry in one if entry[0] is not gone]
                    del gone
                else:
                    with on_stream(scene.x, places[at]):
                        if live[at] and draw.random() < 0.7:
                            array, factor, offset = live[at][int(draw.integers(len(live[at])))]
                            live[at].append((array + 1, factor, offset + 1))
                            del array
                        else:
                            live[at].append((scene.x * 2, 2.0, 0.0))
            for at in (1, 2):
                if out[at - 1]:
                    scene.order(places[at], origin)
            expected = [0.0, 0.0, 0.0]
            for at in range(3):
                for array, factor, offset in live[at]:
                    np.add(outs[at], array, out=outs[at])
                    expected[at] += factor * 5 + offset
                    del array
            live.clear()
        refill(scene.x, 5)
        for one in outs:
            refill(one, 0)
        driver.synchronize()
        graph.replay()
        driver.synchronize()
        assert not driver.races, driver.races
        for one, value in zip(outs, expected, strict=True):
            assert holds(one, value)
        graph.close()
        assert scene.arena.mapped == 2 * MIB
