"""Making a failing program smaller: whatever can be left out, as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from .breaks import Difference
from .program import Drawn, GraphUse, Program, Spec

__all__ = ["failure", "shrink"]

Run = Callable[[Program], None]


def failure(run: Run, program: Program) -> BaseException | None:
    """What a program raises."""
    try:
        run(program)
    except Exception as error:
        return error
    return None


def shrink(run: Run, program: Program, error: BaseException, *, seconds: float = 20.0) -> tuple[Program, BaseException]:
    """The smallest program found that fails as ``program`` does, and with what; within a time."""
    until = time.monotonic() + seconds
    before = None
    while program != before:
        before = program
        for smaller in (_fewer_actions, _fewer_graphs, _fewer_intents, _simpler, _smaller):
            program, error = _while_it_fails(run, program, error, smaller, until)
    return program, error


def _while_it_fails(
    run: Run, program: Program, error: BaseException, smaller: Callable[[Program], Iterator[Program]], until: float
) -> tuple[Program, BaseException]:
    goes_on = True
    while goes_on:
        goes_on = False
        for candidate in smaller(program):
            if time.monotonic() > until:
                return program, error
            found = failure(run, candidate)
            if found is not None and _kind(found) == _kind(error):
                program, error, goes_on = candidate, found, True
                break
    return program, error


def _kind(error: BaseException) -> tuple[type, str]:
    return type(error), error.kind if isinstance(error, Difference) else ""


def _fewer_actions(program: Program) -> Iterator[Program]:
    for actions in _without_some(program.actions):
        yield replace(program, actions=actions)


def _fewer_graphs(program: Program) -> Iterator[Program]:
    for at in range(len(program.graphs) - 1, 0, -1):
        yield replace(program, graphs=program.graphs[:at] + program.graphs[at + 1 :])
    used = {use.forward % len(program.forwards) for use in program.graphs}
    for at, drawn in enumerate(program.forwards):
        if at not in used and drawn != Drawn(()):
            yield _with_forward(program, at, Drawn(()))


def _fewer_intents(program: Program) -> Iterator[Program]:
    for at, drawn in enumerate(program.forwards):
        for intents in _without_some(drawn.intents):
            yield _with_forward(program, at, replace(drawn, intents=intents))


def _simpler(program: Program) -> Iterator[Program]:
    for at, drawn in enumerate(program.forwards):
        for simple in _simpler_forwards(drawn):
            yield _with_forward(program, at, simple)
    for at, use in enumerate(program.graphs):
        plain = GraphUse(forward=use.forward)
        for name in ("arena", "cached", "stream", "caller", "mode", "execute", "debug"):
            if getattr(use, name) != getattr(plain, name):
                yield _with_graph(program, at, replace(use, **{name: getattr(plain, name)}))
    for schedule in ("fifo", "lazy") if program.schedule == "random" else ():
        yield replace(program, schedule=schedule)
    if program.blocking:
        yield replace(program, blocking=())


def _smaller(program: Program) -> Iterator[Program]:
    for at, action in enumerate(program.actions):
        for numbers in _smaller_numbers(action.numbers):
            yield replace(program, actions=_with(program.actions, at, action._replace(numbers=numbers)))
    for at, drawn in enumerate(program.forwards):
        for place, intent in enumerate(drawn.intents):
            for numbers in _smaller_numbers(intent.numbers):
                intents = _with(drawn.intents, place, intent._replace(numbers=numbers))
                yield _with_forward(program, at, replace(drawn, intents=intents))


def _simpler_forwards(drawn: Drawn) -> Iterator[Drawn]:
    if drawn.inputs != (Spec((2,), "float32"),):
        yield replace(drawn, inputs=(Spec((2,), "float32"),))
        yield replace(drawn, inputs=drawn.inputs[:1])
    for name, value in (("width", 0), ("context", False), ("break_on", None), ("aux", ()), ("streams", 0)):
        if getattr(drawn, name) != value and not (name == "streams" and drawn.aux):
            yield replace(drawn, **{name: value})


def _without_some(items: tuple) -> Iterator[tuple]:
    """The items without a run of them, the longest runs first."""
    length = len(items)
    while length:
        for start in range(0, len(items), length):
            yield items[:start] + items[start + length :]
        length //= 2


def _smaller_numbers(numbers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for length in (0, len(numbers) // 2, len(numbers) - 1):
        if length < len(numbers):
            yield numbers[:length]
    for at, number in enumerate(numbers):
        if number:
            yield _with(numbers, at, 0)
            if number > 1:
                yield _with(numbers, at, number // 2)
                yield _with(numbers, at, number - 1)


def _with(items: tuple, at: int, item: object) -> tuple:
    return (*items[:at], item, *items[at + 1 :])


def _with_forward(program: Program, at: int, drawn: Drawn) -> Program:
    return replace(program, forwards=_with(program.forwards, at, drawn))


def _with_graph(program: Program, at: int, use: GraphUse) -> Program:
    return replace(program, graphs=_with(program.graphs, at, use))
