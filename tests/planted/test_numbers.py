"""A replay that gives wrong numbers is found, with the step, the array, the element and the likeliest cause.

The table of planted mistakes is `numbers.NUMBERS`. Then `BreakableGraph.verify` itself: what it compares, what it
leaves behind, that nothing which did not run can pass, and what it refuses. And escapes, which a debug capture tells.
"""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from planted.lines import LINES
from planted.numbers import NUMBERS, Layer, expected_warning, line
from support import assert_next_capture_works, child, every_schedule, floats, holds, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, BreakgraphWarning, CaptureStateError, ReplayDiffers
from breakgraph.inspect import Cause


def test_there_are_twenty_planted_mistakes_and_every_kind_of_cause() -> None:
    assert len(LINES) + len(NUMBERS) >= 20
    assert len(NUMBERS) >= 10


@pytest.mark.races
@pytest.mark.parametrize("kind", NUMBERS)
def test_a_planted_mistake_is_found_with_its_cause(driver: Any, xp: Any, kind: str) -> None:
    x = zeros(xp)
    asked = NUMBERS[kind](driver, xp, x)
    found = asked.graph.verify(asked.forward, asked.inputs, outputs=asked.outputs)
    said = str(found)
    difference = found.difference
    assert difference is not None, said
    assert not found.ok
    assert difference.cause is asked.cause, said
    assert difference.step.startswith(asked.step), said
    assert difference.array.startswith(asked.array), said
    assert all(word in said for word in asked.words), said
    assert "likeliest" in said
    with pytest.raises(ReplayDiffers) as raised:
        found.raise_if_different()
    assert difference.step in str(raised.value)
    asked.graph.close()
    del asked, found, difference
    assert_next_capture_works(xp)


@pytest.mark.races
def test_a_replay_that_is_right_only_if_each_step_is_waited_for_lacks_an_order(sim: Any, xp: Any) -> None:
    """The break's work is on a stream that nothing orders; a GPU may be quick enough to hide it."""
    x, cell, out, side = zeros(xp), zeros(xp), zeros(xp), sim.create_stream()
    sim.synchronize()

    def beside(a: Any) -> None:
        with on_stream(a, side):
            np.add(a, 1, out=cell)

    def forward(a: Any) -> Any:
        bg.break_here(beside, bg.IN_PLACE, a + 1)
        if not bg.is_capturing():
            sim.synchronize()
        return np.add(cell, 1, out=out)

    with bg.capture() as graph:
        forward(x)
    sim.synchronize()
    found = graph.verify(forward, x).difference
    assert found is not None
    assert found.cause is Cause.UNCAPTURED, found
    assert "if each of its steps is waited for" in found.evidence


# --- what it compares ---------------------------------------------------------------------------------------------


@bg.break_point
def scaled_to_one(a: Any) -> Any:
    return a / a.get().max()


def captured(xp: Any, **options: Any) -> tuple[Any, Any, Any]:
    x, out = floats(xp, 1, 2, 3, 4), zeros(xp)

    def forward(a: Any) -> Any:
        return np.multiply(scaled_to_one(a + 1), 10, out=out)

    with bg.capture(**options) as graph:
        forward(x)
    return graph, forward, x


@every_schedule
@pytest.mark.parametrize("debug", [False, True])
def test_a_right_graph_passes_bit_by_bit_in_every_round(driver: Any, xp: Any, debug: bool) -> None:
    graph, forward, x = captured(xp, debug=debug)
    found = graph.verify(forward, x, rounds=4)
    assert found.ok, found
    assert found.rounds == 4
    assert found.difference is None
    found.raise_if_different()
    assert "argument 'a' of break 0 'scaled_to_one'" in found.compared
    assert "the result of break 0 'scaled_to_one'" in found.compared
    assert "output" in found.compared
    assert "equals eager in 4 rounds" in str(found)


def test_inputs_are_as_they_were_and_the_graph_replays_as_before(driver: Any, xp: Any) -> None:
    graph, forward, x = captured(xp)
    assert graph.verify(forward, [x]).ok
    assert holds(x, [1, 2, 3, 4])
    assert not bg.is_capturing()
    assert bg.current_stream() is None
    refill(x, [1, 3, 7, 0])
    graph.replay()
    assert holds(forward(x), np.float32(10) * (np.float32([2, 4, 8, 1]) / np.float32(8)))
    assert_next_capture_works(xp)


def test_outputs_of_the_graph_need_not_be_named(driver: Any, xp: Any) -> None:
    x = floats(xp, 1, 2, 3, 4)

    def forward(a: Any) -> Any:
        return graph.output(scaled_to_one(a + 1) * 10)

    graph = bg.BreakableGraph()
    with bg.capture(graph):
        forward(x)
    found = graph.verify(forward, x)
    assert found.ok, found
    assert "graph.output 0" in found.compared


def test_an_output_may_be_a_new_array_if_the_captured_one_is_named(driver: Any, xp: Any) -> None:
    x = floats(xp, 1, 2, 3, 4)

    def forward(a: Any) -> Any:
        return scaled_to_one(a + 1) * 10

    with bg.capture() as graph:
        y = forward(x)
    assert graph.verify(forward, x, outputs=y).ok
    with pytest.raises(BreakgraphError, match="outputs="):
        graph.verify(forward, x)
    with pytest.raises(BreakgraphError, match="2 arrays"):
        graph.verify(forward, x, outputs=(y, x))


def test_a_forward_that_returns_nothing_is_compared_by_what_it_writes(driver: Any, xp: Any) -> None:
    x, out, factor = floats(xp, 1, 2, 3, 4), zeros(xp), [2.0]

    def forward(a: Any) -> None:
        np.multiply(a, factor[0], out=out)

    with bg.capture() as graph:
        forward(x)
    assert graph.verify(forward, x, outputs=out).ok
    factor[0] = 3.0
    assert not graph.verify(forward, x, outputs=out).ok
    with pytest.raises(BreakgraphError, match="nothing to compare"):
        graph.verify(forward, x)


def test_the_step_that_wrote_an_output_is_named_not_the_last(driver: Any, xp: Any) -> None:
    x, first, last, factor = floats(xp, 1, 2, 3, 4), zeros(xp), zeros(xp), [2.0]

    def forward(a: Any) -> Any:
        bg.break_graph()
        np.multiply(a, factor[0], out=first)
        bg.break_graph()
        np.add(a, 1, out=last)
        return last, first

    with bg.capture() as graph:
        forward(x)
    factor[0] = 3.0
    found = graph.verify(forward, x).difference
    assert found is not None
    assert (found.step, found.array, found.count, found.size) == ("segment 1", "output[1]", 4, 4)


@pytest.mark.parametrize("written", ["in part", "after it is read"])
def test_an_output_may_depend_on_what_was_in_it(driver: Any, xp: Any, written: str) -> None:
    """Eager and replay begin with different bytes there; from the same ones they come to the same."""
    x, out = floats(xp, 1, 2), zeros(xp, 4) if written == "in part" else zeros(xp, 2)

    def forward(a: Any) -> Any:
        y = bg.break_here(lambda b: b * 2, bg.INFER, a + 1)
        np.add(y, 1 if written == "in part" else out, out=out[:2])
        return out

    with bg.capture() as graph:
        forward(x)
    assert graph.verify(forward, [x]).ok


def test_the_element_is_named_with_both_values(driver: Any, xp: Any) -> None:
    x, out, mask = zeros(xp, 2, 3), zeros(xp, 2, 3), xp.zeros((2, 3), np.float32)
    other = floats(xp, 0, 0, 0, 0, 5, 0).reshape(2, 3)
    used = [mask]

    def forward(a: Any) -> Any:
        return np.add(a, used[0], out=out)

    def fresh(draw: int) -> Any:
        refill(x, draw)
        return x

    with bg.capture() as graph:
        forward(x)
    used[0] = other
    found = graph.verify(forward, fresh).difference
    assert found is not None
    assert (found.index, found.count, found.size) == ((1, 1), 1, 6)
    assert (found.eager, found.replay) == (5, 0)
    graph.keep(mask)


def test_a_difference_within_the_tolerance_is_none(driver: Any, xp: Any) -> None:
    x, out, eps = floats(xp, 1, 2, 3, 4), zeros(xp), [0.0]

    def forward(a: Any) -> Any:
        return np.add(a, eps[0], out=out)

    with bg.capture() as graph:
        forward(x)
    eps[0] = 1e-4
    assert not graph.verify(forward, x).ok
    assert graph.verify(forward, x, atol=1e-3).ok
    assert not graph.verify(forward, x, atol=1e-6).ok


def test_nan_equals_nan_and_integers_are_compared_too(driver: Any, xp: Any) -> None:
    x, out = xp.asarray(np.arange(4, dtype=np.int32)), xp.zeros(4, np.int32)
    nans = zeros(xp)

    def forward(a: Any) -> Any:
        np.log(np.float32(-1) - a.astype(np.float32) * 0, out=nans)
        return np.add(a, 1, out=out), nans

    with bg.capture() as graph:
        forward(x)
    found = graph.verify(forward, x)
    assert found.ok, found
    assert holds(x, [0, 1, 2, 3])


def test_the_forward_context_that_is_published_is_the_one_of_both(driver: Any, xp: Any) -> None:
    @dataclass
    class Context:
        factor: float

    x, out = floats(xp, 1, 2, 3, 4), zeros(xp)
    scaled = bg.break_point(lambda a, ctx: a * ctx.factor)

    def forward(a: Any) -> Any:
        return np.add(scaled(a + 1, bg.current_forward()), 1, out=out)

    with bg.active_forward(Context(2.0)), bg.capture() as graph:
        forward(x)
    with bg.active_forward(Context(5.0)):
        assert graph.verify(forward, x).ok
    with pytest.raises(CaptureStateError):
        graph.verify(forward, x)


def test_a_break_that_was_not_selected_is_no_step(driver: Any, xp: Any) -> None:
    x, out = floats(xp, 1, 2, 3, 4), zeros(xp)
    one = bg.break_point(tag="one")(lambda a: a + 1)
    two = bg.break_point(tag="two")(lambda a: a + 2)

    def forward(a: Any) -> Any:
        return np.add(two(one(a)), 1, out=out)

    with bg.capture(break_on={"two"}) as graph:
        forward(x)
    found = graph.verify(forward, x)
    assert found.ok, found
    assert len(graph.breaks) == 1


def test_inputs_that_the_forward_changes_are_put_back_before_each_run(driver: Any, xp: Any) -> None:
    x, cache, out = floats(xp, 1, 2, 3, 4), zeros(xp), zeros(xp)

    def append(a: Any, into: Any) -> None:
        np.add(into, a, out=into)

    def forward(a: Any, state: Any) -> Any:
        bg.break_here(append, bg.IN_PLACE, a + 1, state)
        return np.add(state, a, out=out)

    with bg.capture() as graph:
        forward(x, cache)
    refill(cache, 8)
    found = graph.verify(forward, [x, cache])
    assert found.ok, found
    assert holds(cache, 8)


def test_a_replay_that_does_nothing_cannot_pass(driver: Any, xp: Any) -> None:
    """Not even where eager code has just left the right values, and the outputs never change."""
    x, out = zeros(xp), zeros(xp)

    def forward(a: Any) -> Any:
        if not bg.is_capturing():
            np.add(a * 0, 1, out=out)
        return out

    with expected_warning(), bg.capture() as graph:
        forward(x)
    found = graph.verify(forward, x).difference
    assert found is not None
    assert found.cause is Cause.UNCAPTURED
    assert "has written" in found.evidence


# --- what it refuses ----------------------------------------------------------------------------------------------


def test_a_graph_that_cannot_be_replayed_is_refused(driver: Any, xp: Any) -> None:
    with pytest.raises(CaptureStateError, match="cannot be replayed"):
        bg.BreakableGraph().verify(lambda: None, [])


def test_less_than_a_round_and_an_open_capture_are_refused(driver: Any, xp: Any) -> None:
    graph, forward, x = captured(xp)
    with pytest.raises(ValueError, match="rounds"):
        graph.verify(forward, x, rounds=0)

    def verified_in_a_break() -> None:
        with pytest.raises(CaptureStateError, match="while a capture is open"):
            graph.verify(forward, x)

    with bg.capture(arena=bg.Arena()):
        x + 1
        bg.break_here(verified_in_a_break, bg.IN_PLACE)


def test_what_the_forward_raises_goes_on_and_leaves_nothing_behind(driver: Any, xp: Any) -> None:
    graph, forward, x = captured(xp)

    def raises(a: Any) -> Any:
        scaled_to_one(a + 1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graph.verify(raises, x)
    assert not bg.is_capturing()
    assert gc.isenabled()
    assert holds(x, [1, 2, 3, 4])
    assert graph.verify(forward, x).ok
    assert_next_capture_works(xp)


def test_a_replay_that_faults_is_told_with_the_arrays_that_have_moved() -> None:
    """On the simulator memory that was freed is no one's, so a replay that reads it cannot go on."""
    done = child(
        """
        import numpy as np
        import breakgraph as bg
        xp = bg.array_namespace()
        driver, x, out = bg.driver.current(), xp.ones(4, np.float32), xp.zeros(4, np.float32)
        library, ptr = bg.frameworks.of(x, driver), driver.mem_alloc(16)
        w = library.over(bg.driver.Region.contiguous_at(ptr, (4,), x.dtype))
        def forward(a):
            return np.multiply(a, w, out=out)
        with bg.capture(debug=True) as graph:
            forward(x)
        w = xp.ones(4, np.float32) * 2
        driver.synchronize()
        driver.mem_free(ptr)
        try:
            graph.verify(forward, x)
        except bg.errors.DriverError as error:
            print(error, *error.__notes__)
        """
    )
    assert "700" in done.stdout, done.stderr
    assert "the global __main__.w was at" in done.stdout
    assert "has died" in done.stdout


# --- escapes, at capture ------------------------------------------------------------------------------------------


def test_debug_warns_of_an_array_that_outlives_its_break_unreturned(driver: Any, xp: Any) -> None:
    layer, x = Layer(), zeros(xp)
    with warnings.catch_warnings(record=True) as told, bg.capture(debug=True) as graph:
        warnings.simplefilter("always")
        bg.break_here(layer.look, bg.IN_PLACE, x + 1)
        np.add(layer.hidden, 1, out=x)
    (warning,) = told
    assert warning.category is BreakgraphWarning
    said = str(warning.message)
    assert line("escaped") in said
    assert "16 bytes" in said
    assert "Layer.look" in said
    assert warning.filename == __file__
    assert graph.captured


@pytest.mark.parametrize("how", ["declared", "returned", "in a cycle", "temporary", "without debug", "into a cell"])
def test_nothing_is_said_of_an_array_that_may_stay(driver: Any, xp: Any, how: str) -> None:
    layer, x, kept, cell = Layer(), zeros(xp), [], bg.Cell(4, np.float32)

    @bg.break_point(dst=bg.IN_PLACE if how != "returned" else bg.NO_WRITEBACK, keeps=how == "declared")
    def look(a: Any) -> Any:
        if how in ("declared", "without debug"):
            layer.look(a)
        made = a * 3 + 1
        if how == "in a cycle":
            loop: list[Any] = [made]
            loop.append(loop)
        if how == "returned":
            kept.append(made)
            return {"made": made}
        if how == "into a cell":
            cell.write(made)
        return None

    with warnings.catch_warnings(record=True) as told, bg.capture(debug=how != "without debug") as graph:
        warnings.simplefilter("always")
        look(x + 1)
        x + 1
    assert graph.captured
    assert not told, told[0].message


def test_outputs_that_were_declared_around_the_forward_are_known(driver: Any, xp: Any) -> None:
    """``y = graph.output(forward(x))``, where the forward that is given to verify declares nothing."""
    x = zeros(xp)

    def forward(a: Any) -> Any:
        return bg.break_here(lambda b: b * 2, bg.INFER, a + 1) + 1

    with bg.capture() as graph:
        graph.output(forward(x))
    found = graph.verify(forward, x)
    assert found.ok, str(found)
