"""What is declared wrongly is told where it is declared, not in the first call.

Proves the refusals of `bg.graphed` itself, and that each option of a capture reaches the captures.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support import Order, floats, holds, on_stream, zeros

import breakgraph as bg
from breakgraph.errors import BreakgraphError, BreakgraphWarning


def forward(x: Any, y: Any = None, *, mode: str = "a") -> Any:
    return x + 1


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"buckets": [4], "batched": "z"}, BreakgraphError, r"no parameter 'z'(.|\n)*choose from x, y, mode"),
        ({"static": ["x", "weights"]}, BreakgraphError, "no parameter 'weights'"),
        ({"batched": "x"}, BreakgraphError, "batched= without buckets="),
        ({"buckets": [4], "batched": "x", "static": "x"}, BreakgraphError, "x of forward cannot be both"),
        ({"slice_outputs": False}, ValueError, "without buckets="),
        ({"buckets": [0, 4]}, ValueError, "at least 1, not 0"),
        ({"buckets": [4, -1]}, ValueError, "at least 1, not -1"),
        ({"buckets": [2.5]}, TypeError, "float"),
        ({"buckets": 8}, TypeError, "int"),
        ({"max_graphs": 0}, ValueError, "max_graphs is at least 1"),
        ({"warmup": -1}, ValueError, "warmup at least 0"),
        ({"fallback": "sometimes"}, ValueError, "fallback is allow, warn or refuse, not 'sometimes'"),
        ({"arena": 3}, TypeError, "arena is of type Arena"),
        ({"mode": "strict"}, ValueError, "mode is one of"),
        ({"frozen": "never"}, ValueError, "frozen is allow, warn or refuse"),
        ({"execs": {}}, TypeError, "execs is of type ExecCache"),
        ({"stream": 1}, TypeError, "stream"),
        ({"execute": False}, TypeError, "execute"),
        ({"colour": "red"}, TypeError, "colour"),
    ],
    ids=str,
)
def test_a_declaration_that_cannot_be_right_is_refused(options: dict[str, Any], error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        bg.graphed(forward, **options)


async def coroutine(x: Any) -> Any:
    return x


def generator(x: Any) -> Any:
    yield x


class Later:
    async def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize("function", [coroutine, generator, partial(coroutine), Later()], ids=repr)
def test_a_function_that_runs_later_is_refused(function: Any) -> None:
    with pytest.raises(BreakgraphError, match="coroutine or generator"):
        bg.graphed(function)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="not an object of type int"):
        bg.graphed(3)


def test_it_decorates_with_and_without_arguments(driver: Any, xp: Any) -> None:
    for service in (bg.graphed(forward), bg.graphed()(forward), bg.graphed(buckets=[8, 4, 4])(forward)):
        assert holds(service(zeros(xp)), 1)
        assert service.stats.captures == 1


def test_options_of_a_capture_reach_it(driver: Any, xp: Any) -> None:
    log, cache, side = [], bg.ExecCache(), driver.create_stream()
    order = Order(driver)
    tagged = bg.break_point(tag="attention")(lambda a: a * 2)
    untagged = bg.break_point(lambda a: a * 3)

    def body(x: Any, number: int) -> Any:
        y = tagged(x + 1)
        with on_stream(x, side):
            z = y + number
        order(side, bg.current_stream())
        return untagged(z)

    service = bg.graphed(
        body,
        break_on={"attention"},
        barrier=lambda: log.append("barrier"),
        aux_streams=[side],
        execs=cache,
        frozen="refuse",
        mode="relaxed",
        name="encoder",
    )
    for value in (1, 2):
        assert holds(service(floats(xp, value), 1), ((value + 1) * 2 + 1) * 3)
    assert [graph.name for graph in service.graphs] == ["encoder[1]"]
    assert len(service.graphs[0].breaks) == 1
    assert log == ["barrier"]
    assert cache.execs == 2
    frozen = bg.graphed(lambda x, n: bg.break_here(lambda a, n: a * n, bg.INFER, x + 1, n), frozen="warn")
    with pytest.warns(BreakgraphWarning, match="is frozen at 3"):
        frozen(zeros(xp), 3)
    with pytest.raises(BreakgraphError, match="no framework of that name"):
        bg.graphed(forward, frameworks=["nothing"])(zeros(xp))
