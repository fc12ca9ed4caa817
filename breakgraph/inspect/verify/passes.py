"""One run of the forward, eagerly or as a replay, with what was seen at each break."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from breakgraph.inspect.verify.values import Device, Reading
from breakgraph.segments.arguments import Arguments, Frozen, bind_names
from breakgraph.segments.break_points import BreakPoint
from breakgraph.segments.context import current_forward
from breakgraph.segments.destinations import Ownership
from breakgraph.segments.escapes import Escape, Escapes
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.rehearsal import rehearsing
from breakgraph.segments.steps import Break, Segment, Step

__all__ = ["AtBreak", "Pass", "eager_pass", "replay_pass"]


@dataclass
class AtBreak:
    """What a break was called with, what it made of that, and what it gave."""

    before: list[Reading]
    after: list[Reading] = field(default_factory=list)
    result: list[Reading] = field(default_factory=list)
    frozen: tuple[Frozen, ...] = ()
    left: tuple[Escape, ...] = ()


@dataclass
class Pass:
    """One run.

    Attributes
    ----------
    breaks
        What was seen at each.
    looks
        The watched arrays after each step.
    returned
        The arrays that an eager forward has returned; they are kept alive.
    ends
        Their values at its end; where it returned none, those of the outputs that the caller named.
    declared
        What it has given to `BreakableGraph.output`: the segment in which it did, and the values then.
    kept
        Keeps that alive too.
    """

    breaks: list[AtBreak] = field(default_factory=list)
    looks: list[list[Reading]] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    ends: list[Reading] = field(default_factory=list)
    declared: list[tuple[int, list[Reading]]] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)


def eager_pass(
    graph: BreakableGraph,
    device: Device,
    forward: Callable[..., Any],
    args: Iterable[Any],
    outputs: list[Any],
    watched: Iterable[tuple[str, Any]] = (),
) -> Pass:
    """Run the forward as it is, on the current stream."""
    seen, watched = Pass(), list(watched)
    holdings = graph.holdings
    assert holdings is not None  # it is captured
    ownership = Ownership(holdings.driver, holdings.arena, 0)  # of no capture: all is held as it is

    def call(point: BreakPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.looks.append(_look(device, watched))
        arguments = partial(_arguments, device, f"break {len(seen.breaks)} {point.name!r}")
        at = AtBreak(arguments(point.function, args, kwargs))
        seen.breaks.append(at)
        context = current_forward()
        at.frozen = Arguments.of(point.function, args, kwargs, ownership=ownership, context=context).frozen
        result = point.call_plainly(args, kwargs)
        at.after = arguments(point.function, args, kwargs)
        at.result = device.read(result, _result(len(seen.breaks) - 1, point.name), plain=True)
        seen.looks.append(_look(device, watched))
        return result

    def output(value: Any) -> None:
        name = f"graph.output {len(seen.declared)}"
        seen.declared.append((len(seen.breaks), device.read(value, name)))
        seen.kept.append(value)

    with rehearsing(graph, call, output):
        seen.returned = device.arrays(forward(*args), objects=True)
    seen.ends = device.read(seen.returned or outputs, "output")
    seen.looks.append(_look(device, watched))
    return seen


def replay_pass(graph: BreakableGraph, device: Device, watched: Iterable[tuple[str, Any]]) -> Pass:
    """Replay on the current stream, waiting for each step."""
    seen, watched = Pass(), list(watched)
    replay = graph.replayable()
    holdings = graph.holdings
    assert holdings is not None  # it is captured
    escapes: list[Escapes] = []

    def around(step: Break, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = partial(_arguments, device, f"break {step.index} {step.name!r}")
        at = AtBreak(arguments(function, args, kwargs))
        seen.breaks.append(at)
        escapes.append(Escapes(holdings.driver))
        with escapes[-1].watching(replay.frameworks):
            result = function(*args, **kwargs)
        escapes[-1].returned(result)
        at.after = arguments(function, args, kwargs)
        if not step.lands:
            at.result = device.read(result, _result(step.index, step.name), plain=True)
        return result

    def after(step: Step) -> None:
        if not isinstance(step, Segment):
            at = seen.breaks[-1]
            if step.lands:
                at.result = device.read(list(step.targets), _result(step.index, step.name))
            if not step.keeps:
                at.left = escapes[-1].left()
        seen.looks.append(_look(device, watched))

    replay.observe(graph, after, around)
    return seen


def _look(device: Device, watched: Iterable[tuple[str, Any]]) -> list[Reading]:
    return [reading for name, array in watched for reading in device.read(array, name)]


def _arguments(
    device: Device, of: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Reading]:
    named = bind_names(function, args, kwargs)
    return [reading for name, value in named for reading in device.read(value, f"argument {name!r} of {of}")]


def _result(index: int, name: str) -> str:
    return f"the result of break {index} {name!r}"
