"""A break's arguments are bound once, when it is captured; only the forward context is put in at each replay.

Proves that a replay of breaks without the context rebuilds nothing and hands on the very same objects; that the
context is replaced at the top level by position and by name without a rebuild, and in containers of any kind with one;
and that what is replaced is live at each replay, also in a nested one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import floats, holds, nothing_captured, refill, zeros

import breakgraph as bg
from breakgraph.memory import tree


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Config:
    context: Any
    scale: float = 2.0


class Context:
    """A forward context."""


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The trees that were rebuilt."""
    trees: list[object] = []
    rebuild = tree.rebuild

    def noted(one: object, *args: Any, **kwargs: Any) -> Any:
        trees.append(one)
        return rebuild(one, *args, **kwargs)

    monkeypatch.setattr(tree, "rebuild", noted)
    return trees


@nothing_captured
def test_without_the_context_the_very_same_objects_are_handed_on_and_nothing_is_rebuilt(
    driver: Any, xp: Any, rebuilt: list[object]
) -> None:
    seen: list[Any] = []
    x, plain = zeros(xp), object()
    arguments = (x, [x, 1], {"k": (x,)}, Pair(x, 2), Config(None), plain)
    with bg.capture() as graph:
        bg.break_here(lambda *args, **kwargs: seen.append((*args, *kwargs.values())), bg.IN_PLACE, *arguments, key=[x])
    assert rebuilt
    rebuilt.clear()
    graph.replay()
    graph.replay(valid_rows=1)
    assert not rebuilt
    _, first, second = seen
    assert len(first) == 7
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert first[5] is plain


@nothing_captured
def test_a_break_without_arguments_is_called_as_it_is(driver: Any, xp: Any) -> None:
    seen: list[tuple[Any, ...]] = []
    with bg.capture() as graph:
        bg.break_here(lambda *args, **kwargs: seen.append((args, kwargs)), bg.IN_PLACE)
    graph.replay(stream=driver.create_stream())
    assert seen == [((), {})] * 2


def test_keyword_arguments_are_the_functions_own_dictionary_each_time(driver: Any, xp: Any) -> None:
    """A function that takes its keywords apart does so once for each replay."""

    def add(a: Any, **options: Any) -> Any:
        return a + options.pop("value")

    x, out = zeros(xp), zeros(xp)
    with bg.capture() as graph:
        y = bg.break_here(add, bg.INFER, x + 0, value=3)
        bg.break_here(lambda a: a * 1, out, y)
    for value in (1, 2):
        refill(x, value)
        graph.replay()
        assert holds(out, value + 3)


@nothing_captured
@pytest.mark.parametrize("place", ["first", "last", "keyword", "twice"])
def test_the_context_at_the_top_level_is_replaced_and_nothing_is_rebuilt(
    driver: Any, xp: Any, place: str, rebuilt: list[object]
) -> None:
    seen: list[dict[str, Any]] = []

    def function(a: Any = None, b: Any = None, c: Any = None, *, d: Any = None) -> None:
        seen.append({"a": a, "b": b, "c": c, "d": d})

    published, held = Context(), [zeros(xp), 1]
    given: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "first": ((published, held), {}),
        "last": ((held, 2, published), {}),
        "keyword": ((held,), {"d": published}),
        "twice": ((published, held, published), {"d": published}),
    }
    args, kwargs = given[place]
    with bg.active_forward(published), bg.capture() as graph:
        bg.break_here(function, bg.IN_PLACE, *args, **kwargs)
    rebuilt.clear()
    for _ in range(2):
        live = Context()
        with bg.active_forward(live):
            graph.replay()
        for name, value in seen[0].items():
            if value is published:
                assert seen[-1][name] is live, name
            elif name != "b" and not isinstance(value, list):
                assert seen[-1][name] == value, name
    assert not rebuilt
    held_again = [next(value for value in call.values() if isinstance(value, list)) for call in seen[1:]]
    assert held_again[0] is held_again[1]


NESTED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda c: [1, c], lambda held: held[1]),
    "tuple": (lambda c: (c, 1), lambda held: held[0]),
    "named tuple": (lambda c: Pair(1, c), lambda held: held.second),
    "mapping": (lambda c: {"c": c}, lambda held: held["c"]),
    "dataclass": (lambda c: Config(c), lambda held: held.context),
    "deeper": (lambda c: {"a": [(1, Config(c))]}, lambda held: held["a"][0][1].context),
}


@nothing_captured
@pytest.mark.parametrize("also", ["in it alone", "at the top level too"])
@pytest.mark.parametrize("kind", NESTED)
def test_the_context_in_a_container_is_replaced_too(driver: Any, xp: Any, kind: str, also: str) -> None:
    make, find = NESTED[kind]
    seen: list[Any] = []
    published, top = Context(), also != "in it alone"
    with bg.active_forward(published), bg.capture() as graph:
        bg.break_here(lambda *args: seen.append(args), bg.IN_PLACE, make(published), *((published,) if top else ()))
    containers = []
    for _ in range(2):
        live = Context()
        with bg.active_forward(live):
            graph.replay()
        assert find(seen[-1][0]) is live
        assert [one is live for one in seen[-1][1:]] == [True] * top
        containers.append(seen[-1][0])
    assert containers[0] is not containers[1], "what one replay was given, the next one leaves alone"


def test_a_replay_in_a_break_has_the_context_that_is_published_there(driver: Any, xp: Any) -> None:
    seen: list[Any] = []
    x, published, first, second = zeros(xp), Context(), Context(), Context()
    with bg.active_forward(published), bg.capture(arena=bg.Arena()) as inner:
        np.add(x, 1, out=x)
        bg.break_here(seen.append, bg.IN_PLACE, published)

    @bg.break_point(stub=lambda context: None)
    def nested(context: Any) -> None:
        seen.append(context)
        with bg.active_forward(second):
            inner.replay()
        assert bg.current_forward() is first

    with bg.active_forward(published), bg.capture(arena=bg.Arena()) as outer:
        np.add(x, 1, out=x)
        nested(published)
        np.multiply(x, 2, out=x)
    seen.clear()
    refill(x, 1)
    with bg.active_forward(first):
        outer.replay()
    assert [one is context for one, context in zip(seen, (first, second), strict=True)] == [True, True]
    assert holds(x, 6)


@nothing_captured
def test_arrays_of_the_capture_are_handed_on_as_the_views_they_were(driver: Any, xp: Any) -> None:
    """Made in a segment, they are held without being kept alive; each replay is handed the same view."""
    seen: list[Any] = []
    x = floats(xp, 1, 2)
    with bg.capture() as graph:
        bg.break_here(seen.append, bg.IN_PLACE, x)
    graph.replay(stream=driver.create_stream())
    graph.replay(stream=driver.create_stream())
    assert seen[1] is seen[2]
