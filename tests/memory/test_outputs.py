"""What leaves a captured forward: outputs that are pinned, outputs that are not, and what stays behind by accident.

Proves the fifth point of graph memory: an array that the forward returned is the arena's, and the next graph on that
arena may overwrite it; `graph.output` copies it into memory of the graph's own, valid until the next replay of this
very graph, whatever becomes of the arena, the other graphs, and the graph. And C18's last part: an array that a
segment made and that outlives the capture unreturned is listed, and warned about where an earlier graph uses its bytes.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from memory_support import address, overlap
from support import Order, assert_next_capture_works, child, every_schedule, holds, in_threads, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, BreakgraphWarning, CaptureStateError, NotCopyable

ROWS = 1024


def scratch(x: Any, out: Any, n: float) -> None:
    """(x + n) * 2 into ``out``; whatever it takes from the arena is free again afterwards."""
    t = x + n
    t = t * 2
    np.add(t, 0, out=out)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Box:
    array: Any
    label: str


# --- an output that is pinned ---------------------------------------------------------------------------------


@every_schedule
def test_a_pinned_output_is_refreshed_by_each_replay_of_its_graph(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        out = graph.output(bg.break_here(lambda a: a * 2, bg.INFER, x + 1) + 1)
    assert holds(out, 3)
    at = address(out)
    for value in (5, 6, -1):
        refill(x, value)
        graph.replay()
        assert holds(out, (value + 1) * 2 + 1)
    assert address(out) == at


def test_a_pinned_output_is_not_the_arenas_and_overlaps_nothing(driver: Any, xp: Any) -> None:
    x, arena = zeros(xp, ROWS), bg.Arena()
    with bg.capture(arena=arena) as graph:
        y = x + 1
        out, again = graph.output(y), graph.output(y)
        assert arena.block_at(address(y)) is not None
    for one in (out, again):
        assert arena.block_at(address(one)) is None
        assert not overlap(one, y)
        assert not overlap(one, x)
    assert not overlap(out, again)
    assert type(out) is type(y)
    assert (out.shape, out.dtype) == (y.shape, y.dtype)


@every_schedule
def test_a_pinned_output_outlasts_the_replays_of_others_and_an_unpinned_one_does_not(driver: Any, xp: Any) -> None:
    arena = bg.Arena()
    x, sink = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=arena, name="first") as first:
        scratch(x, sink, 100)
    with bg.capture(arena=arena) as second:
        unpinned = x + 1
        pinned = second.output(unpinned)
    with bg.capture(arena=arena) as third:
        scratch(x, sink, 300)
    refill(x, 4)
    second.replay()
    for other in (first, third, first):
        other.replay()
        assert holds(pinned, 5)
    assert not holds(unpinned, 5), "the control: it lay where the first graph has its temporaries"
    second.replay()
    assert holds(unpinned, 5)


def test_captures_and_failed_captures_on_the_same_arena_do_not_touch_it(driver: Any, xp: Any) -> None:
    arena = bg.Arena()
    x, sink = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=arena) as graph:
        pinned = graph.output(x + 1)
    with bg.capture(arena=arena) as other:
        scratch(x, sink, 7)
    with pytest.raises(ValueError, match="planned"), bg.capture(arena=arena):
        scratch(x, sink, 9)
        bg.break_graph()
        raise ValueError("planned")
    other.close()
    assert holds(pinned, 1)


def test_an_output_holds_what_the_array_was_where_it_was_declared(driver: Any, xp: Any) -> None:
    """The copy is a node in the place of the call: what the forward does to the array afterwards is not seen."""
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        before = graph.output(y)
        np.add(y, 10, out=y)
        between = graph.output(y)
        bg.break_here(lambda a: np.add(a, 100, out=a), bg.IN_PLACE, y)
        after = graph.output(y)
    for value in (0, 4):
        refill(x, value)
        graph.replay()
        assert holds(before, value + 1)
        assert holds(between, value + 11)
        assert holds(after, value + 111)


def test_with_execute_false_an_output_is_filled_by_the_first_replay(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena(), execute=False) as graph:
        out = graph.output(x + 1)
    if driver.name == "sim":
        assert holds(out, np.nan), "nothing ran yet: fresh memory is poison"
    refill(x, 2)
    graph.replay()
    assert holds(out, 3)


def test_an_output_of_work_on_a_fork_is_copied_after_that_work(driver: Any, xp: Any) -> None:
    x, side, order = zeros(xp, ROWS), driver.create_stream(), Order(driver)
    with bg.capture(arena=bg.Arena()) as graph:
        order(bg.current_stream(), side)
        with on_stream(x, side):
            out = graph.output(x * 2 + 1)
        order(side, bg.current_stream())
    refill(x, 4)
    graph.replay()
    driver.synchronize()
    assert holds(out, 9)


def test_an_output_on_a_stream_that_the_caller_gave_is_read_in_that_order(driver: Any, xp: Any) -> None:
    x, stream = zeros(xp, ROWS), driver.create_stream()
    driver.synchronize()
    with on_stream(x, stream):
        with bg.capture(arena=bg.Arena()) as graph:
            out = graph.output(x + 1)
        np.add(x, 5, out=x)
        graph.replay()
        np.add(out, 100, out=out)
        assert out.get().tolist() == [106.0] * ROWS
        driver.stream_synchronize(int(stream))


# --- its form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda a, b: (a, b), lambda t: (t[0], t[1])),
        (lambda a, b: [a, b], lambda t: (t[0], t[1])),
        (lambda a, b: {"a": a, "b": b}, lambda t: (t["a"], t["b"])),
        (Pair, lambda t: (t.first, t.second)),
        (lambda a, b: (Box(a, "one"), Box(b, "two")), lambda t: (t[0].array, t[1].array)),
        (lambda a, b: {"deep": [Pair((a,), Box(b, "text"))]}, lambda t: (t["deep"][0][0][0], t["deep"][0][1].array)),
    ],
    ids=["tuple", "list", "dict", "namedtuple", "dataclass", "nested"],
)
def test_a_tree_comes_back_in_its_own_form_with_pinned_arrays(driver: Any, xp: Any, wrap: Any, unwrap: Any) -> None:
    x, sink, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    with bg.capture(arena=arena) as first:
        scratch(x, sink, 100)
    with bg.capture(arena=arena) as graph:
        parts = x + 1, x + 2
        given = wrap(*parts)
        tree = graph.output(given)
    assert type(tree) is type(given)
    assert tree is not given
    assert len(parts) == 2
    refill(x, 4)
    graph.replay()
    first.replay()
    for array, original, n in zip(unwrap(tree), unwrap(given), (1, 2), strict=True):
        assert holds(array, 4 + n)
        assert arena.block_at(address(array)) is None
        assert arena.block_at(address(original)) is not None, "the caller's tree is as it was"


def test_plain_values_of_a_tree_come_back_as_they_are(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        array, number, text, nothing, box = graph.output((x + 1, 2.5, "text", None, Box(x + 2, "label")))
    assert (number, text, nothing, box.label) == (2.5, "text", None, "label")
    assert holds(array, 1)
    assert holds(box.array, 2)


@pytest.mark.parametrize("value", [None, (), 2.5, SimpleNamespace(y=None), {1, 2}], ids=repr)
def test_what_holds_no_device_array_is_no_output(driver: Any, xp: Any, value: Any) -> None:
    """It would be taken to be safe, and is not kept."""
    x, out = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        np.add(x, 1, out=out)
        with pytest.raises(NotCopyable, match="no device array"):
            graph.output(value)
    assert graph.captured, "it was refused before anything was lost"


def test_a_type_with_a_handler_of_its_own_is_no_output(driver: Any, xp: Any) -> None:
    class Packed:
        def __init__(self, array: Any) -> None:
            self.array = array

    bg.copy_output.register(Packed)(lambda dst, src: dst)
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        with pytest.raises(NotCopyable, match="Packed"):
            graph.output((y, Packed(y)))
    assert graph.captured


def test_an_output_declared_while_a_side_stream_is_current_is_ordered_with_both(driver: Any, xp: Any) -> None:
    x, arena, side = zeros(xp, ROWS), bg.Arena(), driver.create_stream()
    event = driver.event_create()
    with bg.capture(arena=arena) as graph:
        y = x + 1
        driver.event_record(event, int(bg.current_stream()))
        driver.stream_wait_event(int(side), event)
        with on_stream(x, side):
            np.multiply(y, 3, out=y)
            pinned = graph.output(y)
            np.add(y, 100, out=y)  # after the copy
    refill(x, 4)
    driver.synchronize()
    graph.replay()
    driver.synchronize()
    assert holds(pinned, 15)
    driver.event_destroy(event)


def test_an_array_that_stands_in_a_tree_twice_has_the_same_values_in_both_places(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        first, (second,) = graph.output((y, [y]))
    refill(x, 4)
    graph.replay()
    assert holds(first, 5)
    assert holds(second, 5)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[1:, ::2],
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a[2],
        lambda a: a[1:2],
        lambda a: np.broadcast_to(a[0], (3, 6)),
        lambda a: a.reshape(-1)[5:],
    ],
    ids=["transposed", "strided", "reversed", "negative", "row", "one row", "broadcast", "offset"],
)
def test_a_view_is_pinned_with_its_values_in_their_places(driver: Any, xp: Any, view: Any) -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    x, sink, arena = xp.asarray(host), zeros(xp, 4, 6), bg.Arena()
    with bg.capture(arena=arena) as first:
        scratch(x, sink, 100)
    with bg.capture(arena=arena) as graph:
        out = graph.output(view(x * 3))
    for factor in (1, -2):
        x.set(np.ascontiguousarray(host * factor))
        graph.replay()
        first.replay()
        wanted = view(host * factor * 3)
        assert out.shape == wanted.shape
        assert np.array_equal(out.get(), wanted)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "int32", "float64", "complex64"])
def test_an_output_keeps_its_dtype(driver: Any, xp: Any, dtype: str) -> None:
    x = xp.asarray(np.arange(5).astype(np.float32))
    with bg.capture(arena=bg.Arena()) as graph:
        out = graph.output((x - 1).astype(dtype))
    graph.replay()
    assert out.dtype == np.dtype(dtype)
    assert np.array_equal(out.get(), (np.arange(5, dtype=np.float32) - 1).astype(dtype))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)], ids=str)
def test_an_output_without_elements_needs_no_memory_and_no_copy(driver: Any, xp: Any, shape: tuple[int, ...]) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        out = graph.output(xp.empty(shape, np.float32))
        kept = graph.output(y)
    graph.replay()
    assert (out.shape, out.dtype, out.get().size) == (shape, np.float32, 0)
    assert holds(kept, 1)
    if driver.name == "sim":
        assert graph.segments[0].nodes == 2


def test_a_scalar_array_is_an_output_too(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        out = graph.output((x + 1).sum())
    refill(x, 1)
    graph.replay()
    assert out.shape == ()
    assert float(out.get()) == 2 * ROWS


def test_what_a_cell_holds_can_be_pinned_and_the_cell_serve_another_graph(driver: Any, xp: Any) -> None:
    """A cell is no arena's, but two captures may land in it in turn."""
    x, cell = zeros(xp, ROWS), bg.Cell(ROWS, np.float32)
    graphs, outputs = [], []
    for n in (1, 2):
        with bg.capture(arena=bg.Arena()) as graph:
            bg.break_here(lambda a, n=n: a * n, cell, x + n)
            of_cell, of_array = graph.output(cell), graph.output(cell.array)
        graphs.append(graph)
        outputs.append((getattr(of_cell, "array", of_cell), of_array))
    refill(x, 10)
    for graph in graphs:
        graph.replay()
    for n, pinned in zip((1, 2), outputs, strict=True):
        for one in pinned:
            assert holds(one, (10 + n) * n)
            assert not overlap(one, cell.array)


def test_an_input_of_the_forward_can_be_pinned_as_it_was_at_the_last_replay(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        seen = graph.output(x)
        np.add(x, 1, out=x)
    refill(x, 6)
    graph.replay()
    assert holds(seen, 6)
    assert holds(x, 7)


def test_the_account_of_a_graph_says_what_its_outputs_take(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
    assert graph.memory.outputs == 0
    with bg.capture(arena=bg.Arena()) as other:
        pinned = other.output((x + 1, (x + 2)[:7]))
    assert 4 * (ROWS + 7) <= other.memory.outputs <= 4 * (ROWS + 7) + 2 * 512
    assert len(pinned) == 2
    other.close()
    assert other.memory.outputs == 0
    assert holds(y, 1)


# --- who lets go first ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "reset", "drop"])
def test_an_output_outlives_its_graph_and_arena(driver: Any, xp: Any, end: str) -> None:
    x, arena = zeros(xp, ROWS), bg.Arena()
    with bg.capture(arena=arena) as graph:
        out = graph.output(bg.break_here(lambda a: a * 2, bg.INFER, x + 1))
    refill(x, 4)
    graph.replay()
    if end != "drop":
        getattr(graph, end)()
    del graph, arena
    gc.collect()
    junk = [zeros(xp, ROWS) + 77 for _ in range(8)]
    assert holds(out, 10)
    assert len(junk) == 8


@every_schedule
def test_a_graph_outlives_its_output_and_goes_on_writing_where_nothing_else_lies(driver: Any, xp: Any) -> None:
    x, sink = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        out = graph.output(y)
        np.add(y, 1, out=sink)
    del out
    gc.collect()
    junk = [zeros(xp, ROWS) + 77 for _ in range(8)]
    refill(x, 4)
    graph.replay()
    driver.synchronize()
    assert all(holds(one, 77) for one in junk)
    assert holds(sink, 6)


@pytest.mark.parametrize("first", ["graph", "output"])
def test_its_memory_goes_when_both_are_gone(sim: Any, xp: Any, first: str) -> None:
    x, arena = zeros(xp, ROWS), bg.Arena()
    with bg.capture(arena=arena):
        x + 1
    gc.collect()
    settle(sim, xp)
    before = sim.mem_get_info()[0]
    with bg.capture(arena=arena) as graph:
        held = {"output": graph.output(x + 1)}
    held["graph"] = graph
    del graph
    settle(sim, xp)
    assert before - sim.mem_get_info()[0] >= 4 * ROWS
    del held[first]
    settle(sim, xp)
    assert before - sim.mem_get_info()[0] >= 4 * ROWS, "the other one needs it"
    held.clear()
    settle(sim, xp)
    assert sim.mem_get_info()[0] == before


def settle(sim: Any, xp: Any) -> None:
    """Memory of arrays goes back at the next allocation."""
    gc.collect()
    zeros(xp, 1)
    sim.synchronize()
    zeros(xp, 1)
    sim.synchronize()


def test_a_graph_that_is_reset_pins_new_outputs_and_leaves_the_old_ones(driver: Any, xp: Any) -> None:
    x, graph = zeros(xp, ROWS), bg.BreakableGraph()
    with bg.capture(graph, arena=bg.Arena()):
        old = graph.output(x + 1)
    graph.reset()
    with bg.capture(graph, arena=bg.Arena()):
        new = graph.output(x + 2)
    refill(x, 4)
    graph.replay()
    assert holds(old, 1)
    assert holds(new, 6)


# --- where it is refused --------------------------------------------------------------------------------------


def test_in_a_break_it_is_refused_and_the_capture_goes_on(driver: Any, xp: Any) -> None:
    x, refused = zeros(xp, ROWS), []

    def work(a: Any) -> Any:
        with pytest.raises(CaptureStateError):
            graph.output(a)
        refused.append(True)
        return a * 2

    with bg.capture(arena=bg.Arena()) as graph:
        out = graph.output(bg.break_here(work, bg.INFER, x + 1))
    refill(x, 4)
    graph.replay()
    assert holds(out, 10)
    assert refused == [True, True], "at capture and at replay"


def test_outside_its_scope_it_is_refused_and_nothing_is_changed(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    graph, closed, failed = bg.BreakableGraph(), bg.BreakableGraph(), bg.BreakableGraph()
    closed.close()
    with pytest.raises(ValueError, match="planned"), bg.capture(failed):
        raise ValueError("planned")
    for one in (graph, closed, failed):
        state = one.state
        with pytest.raises(CaptureStateError):
            one.output(x)
        assert one.state == state
    with bg.capture(graph, arena=bg.Arena()):
        out = x + 1
    with pytest.raises(CaptureStateError):
        graph.output(out)
    graph.replay()
    assert holds(out, 1)


def test_on_another_graph_than_the_one_being_captured_it_is_refused(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as other:
        x + 1
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        with pytest.raises(CaptureStateError):
            other.output(y)
        out = graph.output(y)
    graph.replay()
    assert holds(out, 1)
    other.replay()


def test_in_another_thread_it_is_refused(driver: Any, xp: Any) -> None:
    x = zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena()) as graph:
        y = x + 1
        (error,) = in_threads(driver, lambda: graph.output(y))
        out = graph.output(y)
    assert isinstance(error, CaptureStateError)
    graph.replay()
    assert holds(out, 1)


def test_an_inert_graph_hands_the_tree_back() -> None:
    with bg.driver.use("sim", can_capture=False):
        x = zeros(bg.array_namespace(), ROWS)
        with bg.capture() as graph:
            tree = (x + 1, {"a": x + 2})
            assert graph.output(tree) is tree
        assert graph.state == "inert"
        assert holds(tree[1]["a"], 2)


def test_a_graph_that_the_kill_switch_made_inert_hands_the_tree_back() -> None:
    done = child(
        """
        import breakgraph as bg, numpy as np
        x = bg.array_namespace().zeros(4, np.float32)
        with bg.capture() as graph:
            tree = [x + 1]
            assert graph.output(tree) is tree
        assert graph.state == "inert"
        assert tree[0].get().tolist() == [1.0] * 4
        print("handed back")
        """,
        BREAKGRAPH_DISABLE="1",
    )
    assert done.stdout == "handed back\n", done.stderr


def test_after_the_forward_was_lost_it_hands_the_tree_back_and_the_scope_raises(driver: Any, xp: Any) -> None:
    """The rest of the body runs eagerly (C6), and an output is no reason for it not to."""
    x = zeros(xp, ROWS)

    def broken(a: Any) -> Any:
        raise ValueError("planned")

    with pytest.raises(bg.errors.CaptureFailed), bg.capture(arena=bg.Arena()) as graph:
        with suppress(ValueError):
            bg.break_here(broken, bg.INFER, x + 1)
        y = x + 2
        out = graph.output(y)
        assert holds(out, 2)
    assert graph.state == "failed"


@pytest.mark.parametrize("code", [2, 999])
def test_whatever_call_of_an_output_fails_the_capture_is_failed_and_nothing_is_left(code: int) -> None:
    calls, complaints = Counter(calls_of_an_output()), []
    assert calls
    for name, count in sorted(calls.items()):
        for at in range(1, count + 1):
            try:
                fail_in_an_output(name, at, code)
            except (AssertionError, BreakgraphError, pytest.fail.Exception) as error:
                complaints.append(f"{name} #{at}: {error}"[:300])
    assert not complaints, "\n".join(complaints)


def calls_of_an_output() -> Counter[str]:
    with bg.driver.use("sim") as driver:
        x = zeros(bg.array_namespace(), ROWS)
        with bg.capture() as graph:
            y = x + 1
            before = Counter(driver.calls)
            graph.output(y)
            calls = Counter(driver.calls) - before
        graph.close()
        return calls


def fail_in_an_output(name: str, at: int, code: int) -> None:
    with bg.driver.use("sim") as driver:
        xp = bg.array_namespace()
        x = zeros(xp, ROWS)
        assert_next_capture_works(xp)
        settle(driver, xp)
        free, graph = driver.mem_get_info()[0], bg.BreakableGraph()
        try:
            with bg.capture(graph):
                y = x + 1
                with driver.fail(name, at=at, code=code):
                    out = graph.output(y)
        except BreakgraphError:
            assert graph.state == "failed"
            assert not driver.live()["graph"]
            assert not driver.live()["graph_exec"]
        else:
            graph.replay()
            assert holds(out, 1)
            del out
        assert not bg.is_capturing()
        assert gc.isenabled()
        graph.reset()
        del y
        settle(driver, xp)
        assert driver.mem_get_info()[0] == free
        assert_next_capture_works(xp)
        driver.synchronize()
        assert not driver.races


# --- what stays behind: survivors -----------------------------------------------------------------------------


class Shelf:
    """Where a library would keep what it builds at first use: not a variable of anyone on the stack."""

    kept: Any = None

    @classmethod
    def table(cls, x: Any) -> Any:
        if cls.kept is None:
            cls.kept = x * 0 + 3
        return cls.kept


@pytest.fixture(autouse=True)
def _empty_shelf() -> Any:
    yield
    Shelf.kept = None


def first_graph(x: Any, arena: Any) -> tuple[Any, Any]:
    """A graph named "first" that leaves nothing alive in the arena, and where it writes its result."""
    sink = bg.array_namespace().zeros(x.shape, x.dtype)
    with bg.capture(arena=arena, name="first") as graph:
        scratch(x, sink, 100)
    assert graph.survivors == ()
    return graph, sink


def test_a_table_built_at_first_use_in_a_later_capture_is_listed_with_who_overwrites_it(driver: Any, xp: Any) -> None:
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    first, _ = first_graph(x, arena)
    with bg.capture(arena=arena, name="second") as second:
        np.add(x, Shelf.table(x), out=out)
    (survivor,) = second.survivors
    assert survivor.ptr == address(Shelf.kept)
    assert survivor.nbytes == 4 * ROWS
    assert survivor.segment == 0
    assert list(survivor.overwritten_by) == ["first"]
    assert "overwritten by first" in second.report()
    first.replay()
    assert not holds(Shelf.kept, 3), "it is true"


def test_debug_warns_of_it_at_the_callers_scope(driver: Any, xp: Any) -> None:
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    first, _ = first_graph(x, arena)
    with pytest.warns(BreakgraphWarning, match="first") as told, bg.capture(arena=arena, debug=True) as second:
        np.add(x, Shelf.table(x), out=out)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "graph.output" in str(told[0].message)
    assert first.captured
    assert second.captured, "it is a warning"


def test_it_names_the_segment_and_every_earlier_graph(driver: Any, xp: Any) -> None:
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    first, _ = first_graph(x, arena)
    with bg.capture(arena=arena, name="other") as other:
        scratch(x, out, 5)

    with bg.capture(arena=arena) as graph:
        np.add(x, 1, out=out)
        bg.break_graph()
        np.add(x, Shelf.table(x), out=out)
    (survivor,) = graph.survivors
    assert survivor.segment == 1
    assert list(survivor.overwritten_by) == ["first", "other"]
    assert first.captured
    assert other.captured


def test_a_capture_that_waited_for_its_turn_knows_who_was_before_it(driver: Any, xp: Any) -> None:
    """Entered first, it has its turn second: what counts is the order of the turns."""
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    entered, found = threading.Event(), []

    def other() -> None:
        entered.set()
        with bg.capture(arena=arena) as graph:
            np.add(x, Shelf.table(x), out=out)
        found.append(graph)

    thread = threading.Thread(target=other)
    with bg.capture(arena=arena, name="before") as before:
        thread.start()
        entered.wait()
        scratch(x, out, 5)
    thread.join(20)
    assert not thread.is_alive()
    assert list(found[0].survivors[0].overwritten_by) == ["before"]
    assert before.captured


def test_a_pinned_output_is_neither_listed_nor_warned_about(driver: Any, xp: Any) -> None:
    x, arena, box = zeros(xp, ROWS), bg.Arena(), Shelf()
    first, _ = first_graph(x, arena)
    with bg.capture(arena=arena) as graph:
        box.kept = graph.output(x + 1)
    assert graph.survivors == ()
    first.replay()
    assert holds(box.kept, 1)


def test_in_a_first_capture_nothing_is_warned_about(driver: Any, xp: Any) -> None:
    x, out = zeros(xp, ROWS), zeros(xp, ROWS)
    with bg.capture(arena=bg.Arena(), debug=True) as graph:
        np.add(x, Shelf.table(x), out=out)
    (survivor,) = graph.survivors
    assert (survivor.ptr, survivor.nbytes) == (address(Shelf.kept), 4 * ROWS)
    assert not survivor.overwritten_by


def test_a_table_of_a_first_capture_is_safe_from_later_ones(driver: Any, xp: Any) -> None:
    """A live block is handed to nobody, so the order of building and capturing is what matters."""
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    with bg.capture(arena=arena):
        np.add(x, Shelf.table(x), out=out)
    second, _ = first_graph(x, arena)
    second.replay()
    assert holds(Shelf.kept, 3)


@pytest.mark.parametrize("end", ["close", "reset", "drop"])
def test_an_earlier_graph_that_is_gone_is_no_reason_to_warn(driver: Any, xp: Any, end: str) -> None:
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    first, _ = first_graph(x, arena)
    if end != "drop":
        getattr(first, end)()
    del first
    gc.collect()
    with bg.capture(arena=arena, debug=True) as graph:
        np.add(x, Shelf.table(x), out=out)
    (survivor,) = graph.survivors
    assert not survivor.overwritten_by


def test_a_graph_of_another_arena_is_no_reason_to_warn(driver: Any, xp: Any) -> None:
    x, out = zeros(xp, ROWS), zeros(xp, ROWS)
    first, _ = first_graph(x, bg.Arena())
    with bg.capture(arena=bg.Arena()):
        np.add(x, Shelf.table(x), out=out)
    first.replay()
    assert holds(Shelf.kept, 3)


def test_an_earlier_graph_that_uses_other_bytes_is_no_reason_to_warn(driver: Any, xp: Any) -> None:
    """What an earlier forward returned is alive, so a table made later lies elsewhere."""
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    with bg.capture(arena=arena, name="first") as first:
        returned = x + 1
    with bg.capture(arena=arena, debug=True) as graph:
        np.add(x, Shelf.table(x), out=out)
    (survivor,) = graph.survivors
    assert not survivor.overwritten_by
    refill(x, 5)
    first.replay()
    assert holds(Shelf.kept, 3)
    assert holds(returned, 6)


def test_a_failed_capture_before_it_is_no_reason_to_warn(driver: Any, xp: Any) -> None:
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    with pytest.raises(ValueError, match="planned"), bg.capture(arena=arena):
        scratch(x, out, 100)
        raise ValueError("planned")
    with bg.capture(arena=arena):
        np.add(x, Shelf.table(x), out=out)


def test_the_destinations_of_breaks_are_not_listed(driver: Any, xp: Any) -> None:
    """They are written by every replay of their own graph, as the captured arrays of a forward are."""
    x, arena = zeros(xp, ROWS), bg.Arena()
    first, _ = first_graph(x, arena)
    with bg.capture(arena=arena) as graph:
        Shelf.kept = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        kept = Shelf.kept + 1
    assert [one.ptr for one in graph.survivors] == [address(kept)]
    assert first.captured


def test_a_table_built_before_the_capture_is_the_remedy(driver: Any, xp: Any) -> None:
    x, out, arena = zeros(xp, ROWS), zeros(xp, ROWS), bg.Arena()
    first, _ = first_graph(x, arena)
    Shelf.table(x)
    with bg.capture(arena=arena, debug=True) as graph:
        np.add(x, Shelf.table(x), out=out)
    assert graph.survivors == ()
    first.replay()
    assert holds(Shelf.kept, 3)
