"""A random program as data: forwards as drawn, the graphs that capture them, and what is done with those.

Everything here is plain values, so a program can be printed, shrunk, and written into a test by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import NamedTuple, TypeVar

__all__ = ["Action", "Choices", "Drawn", "GraphUse", "Intent", "Program", "Spec", "source"]

T = TypeVar("T")


class Spec(NamedTuple):
    """Shape and dtype of an array that lives from one run to the next."""

    shape: tuple[int, ...]
    dtype: str


class Intent(NamedTuple):
    """What a step of a forward wants to be: a kind, and numbers that choose among what is possible there.

    `plan.plan` makes a valid step of it, or none, whatever the numbers are and whichever steps come before: so any
    list of intents is a program, and so is any part of it.
    """

    kind: str
    numbers: tuple[int, ...] = ()


class Choices:
    """Numbers that choose; when they are used up, the first of everything is chosen."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._numbers = iter(numbers)

    def number(self, below: int) -> int:
        return next(self._numbers, 0) % below

    def pick(self, options: list[T] | tuple[T, ...]) -> T:
        return options[self.number(len(options))]


@dataclass(frozen=True)
class Drawn:
    """A forward as drawn.

    Attributes
    ----------
    streams
        How many side streams it may use.
    aux
        Which of them are declared in ``aux_streams``.
    break_on
        As in `bg.capture`: None, or tags out of ``"a"`` and ``"b"``.
    context
        Whether it runs under a forward context.
    width
        Length of a last axis that every array has beyond what is planned, for arrays of megabytes; 0 for none.
    """

    intents: tuple[Intent, ...]
    inputs: tuple[Spec, ...] = (Spec((4, 4), "float32"),)
    streams: int = 0
    aux: tuple[int, ...] = ()
    break_on: tuple[str, ...] | None = None
    context: bool = False
    width: int = 0


@dataclass(frozen=True)
class GraphUse:
    """How one graph is captured: which forward, in which arena (None: the thread's own), and with what options.

    ``stream`` is the origin: None for the library's own, else one of the program's. ``caller`` is the stream that is
    current around the capture, None for the default one.
    """

    forward: int = 0
    arena: int | None = 0
    cached: bool = False
    stream: int | None = None
    caller: int | None = None
    mode: str = "thread_local"
    execute: bool = True
    debug: bool = False


class Action(NamedTuple):
    """One thing done with the graphs: a kind, and numbers that choose the rest (see `run.World`)."""

    kind: str
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """Forwards, graphs over them, and what is done; on a simulated device with this schedule and seed."""

    forwards: tuple[Drawn, ...]
    graphs: tuple[GraphUse, ...]
    actions: tuple[Action, ...]
    schedule: str = "fifo"
    seed: int = 0
    blocking: tuple[int, ...] = ()  #: which of the program's streams synchronize with the default one


def source(value: object, indent: str = "") -> str:
    """The Python expression that makes a program or a part of it, without what is so by default."""
    if isinstance(value, (Intent, Action)):
        return f"{type(value).__name__}({value.kind!r}{f', {value.numbers}' if value.numbers else ''})"
    if is_dataclass(value):
        given = [(one.name, getattr(value, one.name)) for one in fields(value)]
        told = [f"{name}={source(part, indent)}" for name, part in given if part != _DEFAULTS[type(value)].get(name)]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, tuple) and not isinstance(value, Spec) and any(isinstance(one, _PARTS) for one in value):
        inner = indent + "    "
        return "(\n" + "".join(f"{inner}{source(one, inner)},\n" for one in value) + f"{indent})"
    return repr(value)


_PARTS = (Intent, Action, Drawn, GraphUse)
_DEFAULTS: dict[type, dict[str, object]] = {
    kind: {one.name: one.default for one in fields(kind)} for kind in (Drawn, GraphUse, Program)
}
