"""Sizes can be captured ahead, from an example.

Proves that every size is captured once, the largest first, each after its warm-up, and that calls then capture nothing;
that an example with more or fewer rows serves all sizes; that what is there is left alone; and that progress is shown
to a person alone.
"""

from __future__ import annotations

import builtins
import io
import sys
from typing import Any

import pytest
from graphed_support import Forward, batch, same
from support import every_schedule, floats, holds, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphWarning

SIZES = (4, 8, 16)


@every_schedule
@pytest.mark.parametrize("rows", [16, 40, 3, 0])
def test_every_size_is_captured_largest_first_and_no_call_captures_any_more(driver: Any, xp: Any, rows: int) -> None:
    forward, eager = Forward(xp), Forward(xp)
    service = bg.graphed(forward, buckets=SIZES, warmup=2)
    assert service.precapture(batch(xp, rows)) == 3
    assert [graph.name for graph in service.graphs] == ["Forward[16]", "Forward[8]", "Forward[4]"]
    assert forward.bodies == 3 * (2 + 1)
    real = [min(size, rows) for size in (16, 8, 4)]
    assert [seen for seen in forward.rows if seen is not None] == real
    for n in (5, 3, 16):
        assert same(service(batch(xp, n)), eager(batch(xp, n)))
    assert (service.stats.captures, service.stats.hits, service.stats.calls) == (3, 3, 3)
    assert service.stats.rows == 24, "examples are no calls"


def test_what_is_captured_already_is_left_alone(driver: Any, xp: Any) -> None:
    forward = Forward(xp)
    service = bg.graphed(forward, buckets=SIZES, warmup=0)
    service(batch(xp, 7))
    assert service.precapture(batch(xp, 16)) == 2
    assert service.precapture(batch(xp, 16)) == 0
    assert forward.bodies == 3


def test_other_arguments_and_inputs_without_rows_are_part_of_the_example(driver: Any, xp: Any) -> None:
    @bg.graphed(buckets=SIZES, batched="x", static="w", warmup=0)
    def scaled(x: Any, table: Any, w: Any, *, mode: str) -> Any:
        return (x + table[0]) * w if mode == "times" else x + 0

    w, table = floats(xp, 2), zeros(xp, 5)
    for mode in ("times", "none"):
        assert scaled.precapture(zeros(xp, 20), table, w, mode=mode) == 3
    assert holds(scaled(zeros(xp, 3) + 1, table + 1, w, mode="times"), 4)
    assert (scaled.stats.captures, scaled.stats.hits) == (6, 1)


def test_without_sizes_the_shapes_of_the_example_are_captured(driver: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: x + 1)
    assert service.precapture(zeros(xp, 3, 2)) == 1
    assert holds(service(zeros(xp, 3, 2)), 1)
    assert service.stats.hits == 1


def test_a_method_is_precaptured_for_its_instance(driver: Any, xp: Any) -> None:
    class Layer:
        @bg.graphed(buckets=SIZES)
        def forward(self, x: Any) -> Any:
            return x + 1

    layer = Layer()
    assert layer.forward.precapture(zeros(xp, 16)) == 3
    assert len(layer.forward.graphs) == 3


def test_a_capture_that_is_refused_ends_it_with_a_warning(sim: Any, xp: Any) -> None:
    service = bg.graphed(lambda x: x + 1, buckets=SIZES)
    told = pytest.warns(BreakgraphWarning, match="its capture was refused")
    with told, sim.fail("stream_begin_capture", at=2, code=999):
        assert service.precapture(zeros(xp, 16)) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_progress_is_shown_to_a_person_alone(
    sim: Any, xp: Any, monkeypatch: pytest.MonkeyPatch, terminal: bool, rich: bool
) -> None:
    import_ = builtins.__import__

    def without_rich(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(name)
        return import_(name, *args)

    service, shown = (
        bg.graphed(lambda x: x + 1, buckets=SIZES, name="encoder"),
        (Terminal if terminal else io.StringIO)(),
    )
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", shown)
        if not rich:
            patch.setattr(builtins, "__import__", without_rich)
        assert service.precapture(zeros(xp, 16)) == 3
    if not terminal:
        assert not shown.getvalue()
    else:
        assert "capturing encoder" in shown.getvalue()
        assert ("3 of 3" in shown.getvalue()) != rich
