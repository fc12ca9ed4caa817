"""The arguments of a break, as its closure holds them (C18, C19)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from breakgraph.memory import Cell, tree
from breakgraph.segments.context import current_forward
from breakgraph.segments.destinations import Ownership

__all__ = ["Arguments", "Frozen", "bind_names"]


class Frozen(NamedTuple):
    """A value that stays as it was at capture: the argument's name, or the place in the result."""

    name: str
    value: object


class _LiveContext:
    """Stands in bound arguments for the forward context of the replay under way."""

    def __repr__(self) -> str:
        return "<the live forward context>"


_LIVE_CONTEXT = _LiveContext()


class Arguments:
    """Positional and keyword arguments, bound once at capture.

    Arrays are held as `Ownership` says, containers rebuilt around them, the forward context is left open,
    and everything else is frozen and listed.
    """

    __slots__ = ("_args", "_context_at_top", "_kwargs", "_ownership", "frozen", "uses_context")

    def __init__(self) -> None:
        """None at all."""
        self.uses_context = False
        self._context_at_top = True  # of the arguments, wherever it occurs: not in a container
        self._ownership: Ownership | None = None  # without arguments there is nothing to own
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self.frozen: tuple[Frozen, ...] = ()

    @classmethod
    def of(
        cls,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        ownership: Ownership,
        context: object | None,
    ) -> Arguments:
        """The arguments of a call; the capture's own ``context`` is not the graph's to keep alive."""
        if not args and not kwargs:
            return _NONE
        made = cls()
        made._hold(function, args, kwargs, ownership, context)
        return made

    def _hold(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        ownership: Ownership,
        context: object | None,
    ) -> None:
        self._ownership = ownership
        frozen: list[Frozen] = []
        held = []
        name = ""

        def is_leaf(node: object) -> bool:
            return (context is not None and node is context) or self._is_leaf(node)

        def hold(leaf: Any) -> Any:
            if context is not None and leaf is context:
                self.uses_context, self._context_at_top = True, False
                return _LIVE_CONTEXT
            if isinstance(leaf, (Cell, np.ndarray)):
                return leaf
            if ownership.is_array(leaf):
                return ownership.hold(leaf)
            frozen.append(Frozen(name, leaf))
            return leaf

        for name, value in bind_names(function, args, kwargs):  # noqa: B007 - hold() reads the name
            if context is not None and value is context:
                self.uses_context = True
                held.append(_LIVE_CONTEXT)
            else:
                held.append(tree.rebuild(value, hold, is_leaf=is_leaf, origins={}))
        self._args = tuple(held[: len(args)])
        self._kwargs = dict(zip(kwargs, held[len(args) :], strict=True))
        self.frozen = tuple(frozen)

    def _is_leaf(self, node: object) -> bool:
        return isinstance(node, Cell) or (self._ownership is not None and self._ownership.is_array(node))

    def bind(self, function: Callable[..., object]) -> Callable[[], object]:
        """``function`` with its arguments: bound once, but for the forward context of the replay under way."""
        if not self.uses_context:
            return partial(function, *self._args, **self._kwargs) if self._args or self._kwargs else function

        def call() -> object:
            args, kwargs = self._live(current_forward())
            return function(*args, **kwargs)

        return call

    def _live(self, context: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def fill(leaf: Any) -> Any:
            return context if leaf is _LIVE_CONTEXT else leaf

        if self._context_at_top:
            return tuple(map(fill, self._args)), {name: fill(value) for name, value in self._kwargs.items()}
        return tree.rebuild((self._args, self._kwargs), fill, is_leaf=self._is_leaf)  # type: ignore[no-any-return]

    def named(self, names: tuple[str, ...], function: Callable[..., object]) -> list[Any]:
        """The held arguments called ``names``: also ``*args`` and ``**kwargs``, and those left at their default."""
        if not names:
            return []
        try:
            bound = inspect.signature(function).bind(*self._args, **self._kwargs)
        except (TypeError, ValueError):
            found = dict(bind_names(function, self._args, self._kwargs))
        else:
            bound.apply_defaults()
            found = {**bound.arguments, **self._kwargs}
        return [found[name] for name in names if name in found]


_NONE = Arguments()  # of every call without any: nothing changes them once they are made


def bind_names(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Each argument with its parameter's name, in the order given: positional ones first."""
    if args:
        names, rest = _positional(function)
        known = len(names)
        names += [f"{rest}[{at - known}]" if rest else f"argument {at}" for at in range(known, len(args))]
        yield from zip(names, args, strict=False)
    yield from kwargs.items()


def _positional(function: Callable[..., object]) -> tuple[list[str], str]:
    """Names of the positional parameters, and of the one that takes the rest, or an empty string."""
    if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
        code = function.__code__  # a hundred times as quick as a signature
        rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else ""
        return list(code.co_varnames[: code.co_argcount]), rest
    names, rest = [], ""
    try:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                rest = parameter.name
    except (TypeError, ValueError):
        pass  # a builtin without a signature: by position
    return names, rest
