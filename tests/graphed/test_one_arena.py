"""What the graphs of one function cost: the largest of them, for as long as someone can call it.

Proves that inputs, temporaries and results of all sizes share one arena, that nothing grows once every size is
captured, that the arena sleeps and wakes between two calls, that several functions may share it, and that graphs die
with the function or the instance that they belong to, copies of which begin without any.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from graphed_support import Forward, batch, same
from support import every_schedule, floats, holds, live, zeros

import breakgraph as bg

SIZES = (8, 16, 32, 64)
WIDE = 1024  # columns: a full size of rows is 256 KiB


def chain(x: Any) -> Any:
    """Temporaries, a break, and a result of the input's size."""
    y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
    return (y + x) * 3


def test_sizes_share_the_bytes_of_the_largest_inputs_and_results_included(driver: Any, xp: Any) -> None:
    service = bg.graphed(chain, buckets=SIZES)
    service(batch(xp, 64, width=WIDE))
    largest = service.graphs[0].memory.footprint
    mapped = service.arena.mapped
    for rows in (32, 5, 16, 9, 64):
        x = batch(xp, rows, width=WIDE)
        assert same(service(x), chain(x))
    assert len(service.graphs) == 4
    assert service.arena.mapped == mapped
    assert service.arena.peak <= largest + 512
    assert service.arena.used == 0, "between two calls nothing in it is anybody's"
    assert not any(graph.survivors for graph in service.graphs)
    assert all(graph.memory.outputs == 0 for graph in service.graphs)


def test_what_a_graph_writes_of_its_inputs_is_in_its_footprint(driver: Any, xp: Any) -> None:
    """So that an array of a later capture that outlives it is told to be overwritten by their copies too (C18)."""
    table = []

    def keeps(x: Any) -> Any:
        table.append(x + 5)
        return x + 1

    first = bg.graphed(lambda x: x.sum(axis=1, keepdims=True) + 0, name="first")
    x = batch(xp, 64, width=WIDE)
    first(x)
    bg.graphed(keeps, arena=first.arena, name="second")(x[:8] + 0)
    later = bg.graphed(keeps, arena=first.arena, name="third")
    later(x[:8] + 0)
    (survivor,) = later.graphs[0].survivors
    assert any(name.startswith("first") for name in survivor.overwritten_by)


def test_calls_of_every_size_leave_the_device_as_it_is(sim: Any, xp: Any) -> None:
    service = bg.graphed(chain, buckets=SIZES)

    def calls(seed: int) -> None:
        for rows in np.random.default_rng(seed).integers(0, 65, 40):
            x = batch(xp, int(rows))
            assert same(service(x), chain(x))

    def device() -> Any:
        gc.collect()
        zeros(xp)  # gives back what has died
        sim.synchronize()
        return {kind: len(handles) for kind, handles in sim.live().items()}, sim.mem_get_info()

    service.precapture(batch(xp, 64))
    calls(1)
    settled = device()
    for seed in range(2, 5):
        calls(seed)
        assert device() == settled
    assert service.stats.captures == len(SIZES)


@every_schedule
def test_the_arena_may_sleep_between_two_calls(driver: Any, xp: Any) -> None:
    eager, service = Forward(xp), bg.graphed(Forward(xp), buckets=[4, 8])
    results = []
    for seed in range(3):
        for rows in (3, 7):
            x = batch(xp, rows, seed)
            results.append((x, service(x)))
        service.arena.sleep()
        assert service.arena.mapped == 0
        for x, y in results:
            assert same(y, eager(x)), "results are not in it"
        service.arena.wake()
    assert service.stats.captures == 2


def test_functions_may_share_an_arena(driver: Any, xp: Any) -> None:
    arena = bg.Arena()
    one, other = (bg.graphed(function, buckets=SIZES, arena=arena) for function in (chain, lambda x: x.sum(axis=1)))
    for rows in (64, 3, 33, 64):
        x = batch(xp, rows, width=WIDE)
        assert same(one(x), chain(x))
        assert same(other(x), x.sum(axis=1))
    assert one.arena is other.arena is arena
    assert arena.peak <= max(graph.memory.footprint for graph in one.graphs) + 512


def test_a_function_that_is_dropped_takes_its_graphs_with_it(sim: Any, xp: Any) -> None:
    """By reference count alone: what holds device memory must not wait for the collector."""
    gc.collect()
    gc.disable()
    try:
        service = bg.graphed(chain, buckets=SIZES)
        for rows in (3, 12, 3):
            service(batch(xp, rows))
        assert live(sim, "graph_exec") > 0
        reserved = live(sim, "reservation")
        del service
        assert live(sim, "graph") == live(sim, "graph_exec") == 0
        assert live(sim, "reservation") == reserved - 1
    finally:
        gc.enable()


def test_neither_arguments_nor_context_outlive_their_call(driver: Any, xp: Any) -> None:
    class Context:
        scale = 2.0

    service = bg.graphed(lambda x, ctx: bg.break_here(lambda a, c: a * c.scale, bg.INFER, x + 1, ctx), buckets=[4])
    for _ in range(2):
        x, ctx = zeros(xp, 3), Context()
        alive = weakref.ref(x), weakref.ref(ctx)
        with bg.active_forward(ctx):
            service(x, ctx)
        del x, ctx
        gc.collect()
        assert [ref() for ref in alive] == [None, None]


# --- instances --------------------------------------------------------------------------------------------------


class Layer:
    """Its break is a method too: the graph refers to the instance, and the instance to the graph."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    @bg.graphed(buckets=[4])
    def forward(self, x: Any) -> Any:
        return self._attend(x + 1) * self.weight

    @bg.break_point
    def _attend(self, a: Any) -> Any:
        return a * 2

    def doubled(self, x: Any) -> Any:
        return x * 2

    @bg.graphed
    def plain(self, x: Any) -> Any:
        return x * self.weight


def test_an_instance_that_is_dropped_takes_its_graphs_with_it(sim: Any, xp: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        layer = Layer(floats(xp, 3))
        assert holds(layer.plain(zeros(xp)), 0)
        alive = weakref.ref(layer)
        del layer
        assert alive() is None
        assert live(sim, "graph") == live(sim, "graph_exec") == 0
    finally:
        gc.enable()
    layer = Layer(floats(xp, 3))
    for _ in range(2):
        assert holds(layer.forward(zeros(xp, 2)), 6)
    alive = weakref.ref(layer)
    del layer
    gc.collect()  # its break holds it
    assert alive() is None
    assert live(sim, "graph") == live(sim, "graph_exec") == 0


def test_a_copy_of_an_instance_begins_without_graphs(driver: Any, xp: Any) -> None:
    """They have baked the original's weights."""
    layer = Layer(floats(xp, 3))
    layer.plain(zeros(xp))
    for duplicate in (copy.copy(layer), copy.deepcopy(StandIn(layer)).layer):
        duplicate.weight = floats(xp, 5)
        assert holds(duplicate.plain(floats(xp, 1)), 5)
        assert duplicate.plain.stats.captures == 1
    assert holds(layer.plain(floats(xp, 1)), 3)
    layer.weight = None
    assert pickle.loads(pickle.dumps(layer)).plain.stats.calls == 0


@bg.graphed
def of_a_module(x: Any) -> Any:
    return x + 1


def test_a_graphed_function_is_copied_without_its_graphs_and_pickled_by_name(driver: Any, xp: Any) -> None:
    layer = Layer(floats(xp, 3))
    layer.attached = bg.graphed(layer.doubled)
    layer.attached(zeros(xp))
    duplicate = copy.deepcopy(StandIn(layer)).layer
    assert duplicate.attached.stats.calls == 0
    assert duplicate.attached.__wrapped__.__self__ is duplicate
    assert copy.copy(layer.attached).__wrapped__.__self__ is layer
    assert pickle.loads(pickle.dumps(of_a_module)) is of_a_module


class StandIn:
    """Deep copies all of an instance but its arrays, which are not copied through the host."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        memo[id(self.layer.weight)] = self.layer.weight
        return StandIn(copy.deepcopy(self.layer, memo))


@pytest.mark.parametrize("how", ["reset", "close"])
def test_graphs_are_destroyed_once_their_last_calls_are_done(sim: Any, xp: Any, how: str) -> None:
    service = bg.graphed(chain, buckets=SIZES)
    results = [(x, service(x)) for x in (batch(xp, rows) for rows in (3, 20, 3))]
    getattr(service, how)()
    assert live(sim, "graph") == live(sim, "graph_exec") == 0
    for x, y in results:
        assert same(y, chain(x))


def test_graphs_cannot_be_ended_inside_a_call_of_theirs(driver: Any, xp: Any) -> None:
    def forward(x: Any) -> Any:
        return bg.break_here(ends, bg.INFER, x + 1)

    def ends(a: Any) -> Any:
        with pytest.raises(bg.errors.CaptureStateError, match="to end graphs inside a capture or replay"):
            service.reset()
        return a + 0

    service = bg.graphed(forward)
    for _ in range(2):
        assert holds(service(zeros(xp)), 1)
