"""The public names exist with the signatures that others write against; what is not built is absent, not ignored."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import breakgraph as bg

EMPTY = inspect.Parameter.empty


def parameters(function: Any) -> dict[str, Any]:
    """Names and defaults of a callable's parameters, ``self`` left out."""
    found = inspect.signature(function).parameters
    return {name: one.default for name, one in found.items() if name != "self"}


def kinds(function: Any) -> dict[str, Any]:
    return {name: one.kind for name, one in inspect.signature(function).parameters.items() if name != "self"}


NAMES = {
    "Arena",
    "BreakableGraph",
    "Cell",
    "IN_PLACE",
    "INFER",
    "NO_WRITEBACK",
    "active_forward",
    "array_namespace",
    "break_graph",
    "break_here",
    "break_point",
    "capture",
    "copy_output",
    "current_forward",
    "current_stream",
    "current_valid_rows",
    "driver",
    "errors",
    "graphed",
    "is_capturing",
    "scrub_padding_tail",
    "size_ladder",
    "slice_to_real_rows",
}


def test_every_public_name_is_there_and_listed() -> None:
    assert set(bg.__all__) >= NAMES
    for name in bg.__all__:
        assert hasattr(bg, name)


@pytest.mark.parametrize("name", ["report", "profile", "verify"])
def test_names_of_later_issues_are_absent(name: str) -> None:
    assert not hasattr(bg, name)


def test_capture_has_the_parameters_that_are_built_and_no_other() -> None:
    assert parameters(bg.capture) == {
        "graph": None,
        "stream": None,
        "mode": "thread_local",
        "arena": None,
        "execute": True,
        "break_on": None,
        "barrier": None,
        "aux_streams": (),
        "frameworks": None,
        "frozen": "allow",
        "debug": False,
        "execs": None,
        "name": None,
    }
    kind = kinds(bg.capture)
    assert kind.pop("graph") is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert set(kind.values()) == {inspect.Parameter.KEYWORD_ONLY}


def test_break_point_has_its_parameters() -> None:
    found = parameters(bg.break_point)
    options = {"dst": bg.INFER, "out": None, "writes": (), "stub": None, "tag": None, "rows": True}
    options |= {"keeps": False, "enable": True}
    assert {name: default for name, default in found.items() if name in options} == options
    assert len(found) == len(options) + 1, "and the function itself"


def test_break_here_takes_function_and_destination_by_position_only() -> None:
    kind = kinds(bg.break_here)
    assert list(kind.values()) == [
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ]
    assert parameters(bg.break_graph) == {}


def test_a_graph_has_its_names() -> None:
    graph = bg.BreakableGraph()
    assert graph.state == "empty"
    assert graph.captured is False
    assert graph.error is None
    assert graph.steps == graph.segments == graph.breaks == ()
    assert graph.replays == 0
    assert parameters(graph.replay) == {"stream": None, "valid_rows": None}
    assert set(kinds(graph.replay).values()) == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters(graph.reset) == parameters(graph.close) == parameters(graph.abandon) == {}
    assert kinds(graph.keep) == {"objects": inspect.Parameter.VAR_POSITIONAL}
    assert hasattr(graph, "name")
    assert hasattr(graph, "capture_stream")


def test_steps_of_a_graph_have_their_names(sim: Any, xp: Any) -> None:
    with bg.capture() as graph:
        bg.break_here(lambda a: a, bg.INFER, xp.zeros(4) + 1)
    for name in ("index", "nodes", "exec"):
        assert isinstance(getattr(graph.segments[0], name), int)
    for name in ("index", "name", "tag", "site", "frozen", "landing"):
        assert hasattr(graph.breaks[0], name)


def test_cells_and_arenas_have_their_names() -> None:
    assert parameters(bg.Cell) == {"shape": EMPTY, "dtype": EMPTY, "shared": False}
    assert kinds(bg.Cell)["shared"] is inspect.Parameter.KEYWORD_ONLY
    assert parameters(bg.Cell.write) == {"source": EMPTY, "stream": None}
    for name in ("array", "ptr", "nbytes"):
        assert name in (bg.Cell.__doc__ or "") or hasattr(bg.Cell, name)
    assert parameters(bg.Arena) == {"limit": None}
    assert kinds(bg.Arena)["limit"] is inspect.Parameter.KEYWORD_ONLY
    for name in ("reserved", "mapped", "used", "peak", "asleep"):
        assert isinstance(getattr(bg.Arena, name), property)
    assert parameters(bg.Arena.sleep) == {"backup": False}
    assert kinds(bg.Arena.sleep)["backup"] is inspect.Parameter.KEYWORD_ONLY
    assert parameters(bg.Arena.wake) == {}


def test_graphed_has_its_parameters_and_names() -> None:
    found = parameters(bg.graphed)
    assert (found.pop("function"), found.pop("options")) == (None, EMPTY)
    assert found == {
        "buckets": None,
        "batched": None,
        "static": (),
        "slice_outputs": True,
        "copy_outputs": True,
        "max_graphs": 128,
        "fallback": "warn",
        "warmup": 1,
        "arena": None,
        "name": None,
    }
    service = bg.graphed(lambda x: x)
    assert parameters(service.reset) == parameters(service.close) == {}
    assert service.graphs == ()
    for name in ("calls", "hits", "captures", "fallbacks", "rows", "padded_rows", "padding", "by_size"):
        assert hasattr(service.stats, name)
    assert parameters(bg.size_ladder) == {"maximum": EMPTY, "sizes": None, "enabled": True}


def test_copies_and_helpers_have_their_parameters() -> None:
    assert parameters(bg.copy_output) == {"dst": EMPTY, "src": EMPTY}
    assert callable(bg.copy_output.register)
    assert list(kinds(bg.scrub_padding_tail)) == list(kinds(bg.slice_to_real_rows)) == ["n", "arrays"]
    assert list(parameters(bg.active_forward)) == ["ctx"]
    for function in (bg.current_forward, bg.current_valid_rows, bg.is_capturing, bg.current_stream, bg.array_namespace):
        assert parameters(function) == {}


def test_drivers_have_the_calls_of_the_protocol(driver: Any) -> None:
    assert isinstance(driver, bg.driver.Driver)
    assert bg.driver.current() is driver
    assert driver.name in ("cuda", "sim")
    assert driver.can_capture is True
    stream = driver.create_stream()
    assert int(stream) == stream.handle
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert parameters(driver.synchronize) == {}


def test_use_restores_the_driver_that_was_current(sim: Any) -> None:
    with bg.driver.use("sim", schedule="random", seed=7) as inner:
        assert bg.driver.current() is inner is not sim
    assert bg.driver.current() is sim
    with pytest.raises(KeyError), bg.driver.use("sim"):
        raise KeyError
    assert bg.driver.current() is sim


def test_sentinels_name_themselves() -> None:
    assert [repr(one) for one in (bg.INFER, bg.IN_PLACE, bg.NO_WRITEBACK)] == [
        "bg.INFER",
        "bg.IN_PLACE",
        "bg.NO_WRITEBACK",
    ]


@pytest.mark.parametrize(
    "thing", ["capture", "break_point", "break_here", "break_graph", "BreakableGraph", "Cell", "Arena", "graphed"]
)
def test_public_things_have_docstrings(thing: str) -> None:
    assert len(inspect.getdoc(getattr(bg, thing)) or "") > 40
