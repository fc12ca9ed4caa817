"""What was declared of a graphed function: its parameters, its sizes, and how its graphs are captured."""

from __future__ import annotations

import inspect
import operator
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypedDict

from breakgraph.errors import BreakgraphError
from breakgraph.memory import Arena
from breakgraph.segments.capture import capture
from breakgraph.segments.execs import ExecCache
from breakgraph.segments.recorder import FrozenPolicy

__all__ = ["CaptureOptions", "Declaration", "FallbackPolicy", "declare"]

FallbackPolicy = Literal["allow", "warn", "refuse"]


class CaptureOptions(TypedDict, total=False):
    """Those of `breakgraph.capture` that each capture of a graphed function is given."""

    mode: Literal["global", "thread_local", "relaxed"]
    break_on: Collection[str] | None
    barrier: Callable[[], object] | None
    aux_streams: object
    frameworks: Iterable[str] | None
    frozen: FrozenPolicy
    debug: bool
    execs: ExecCache | None


@dataclass(frozen=True)
class Declaration:
    """Checked, and the same for every call; see `breakgraph.graphed` for what each means."""

    name: str
    signature: inspect.Signature
    sizes: tuple[int, ...] | None  #: ascending; None: exact shapes
    batched: frozenset[str] | None
    static: frozenset[str]
    slice_outputs: Any
    copy_outputs: bool
    max_graphs: int
    fallback: FallbackPolicy
    warmup: int
    arena: Arena | None
    options: CaptureOptions

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the parameters, in order."""
        return tuple(self.signature.parameters)

    @cached_property
    def _positional(self) -> bool:
        kinds = {one.kind for one in self.signature.parameters.values()}
        return kinds <= {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """One value for each parameter, defaults too, so that one call has one key however it is written."""
        if not kwargs and self._positional and len(args) == len(self.names):
            return args
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def call(self, function: Callable[..., Any], values: Iterable[Any]) -> Any:
        """Call the function with one value for each parameter."""
        if self._positional:
            return function(*values)
        bound = inspect.BoundArguments(self.signature, dict(zip(self.names, values, strict=True)))
        return function(*bound.args, **bound.kwargs)

    def static_values(self, values: Iterable[Any]) -> Iterator[Any]:
        """Those of the static parameters."""
        return (value for name, value in zip(self.names, values, strict=True) if name in self.static)

    def size_for(self, rows: int) -> int | None:
        """The smallest size that holds so many rows; None where none does."""
        assert self.sizes is not None  # asked only then
        at = bisect_left(self.sizes, rows)
        return self.sizes[at] if at < len(self.sizes) else None

    def of_method(self) -> Declaration:
        """The same of the function once it is bound to an instance."""
        first, *others = self.signature.parameters.values()
        bound = self.signature.replace(parameters=others)
        batched = self.batched and self.batched - {first.name}
        return replace(self, signature=bound, batched=batched, static=self.static - {first.name})


def declare(
    function: Callable[..., Any],
    *,
    buckets: Iterable[int] | None,
    batched: str | Iterable[str] | None,
    static: str | Iterable[str],
    name: str | None,
    options: CaptureOptions,
    **others: Any,
) -> Declaration:
    """Check what was declared. Raises `BreakgraphError`, `ValueError` or `TypeError`, saying what is wrong."""
    shown = name or getattr(function, "__qualname__", None) or type(function).__qualname__
    _check_function(function, shown)
    if unknown := options.keys() - CaptureOptions.__annotations__.keys():
        raise TypeError(f"graphed has no option {', '.join(sorted(unknown))}")
    capture(**options)  # tells what is wrong with the others
    sizes = None if buckets is None else _sizes(buckets)
    rows, fixed = None if batched is None else _names(batched), _names(static)
    signature = _signature(function)
    for what, names in (("batched", rows or ()), ("static", fixed)):
        for one in names:
            if one not in signature.parameters:
                raise BreakgraphError(
                    f"{shown} has no parameter {one!r}",
                    why=f"{what}= names the parameters of the function",
                    remedy=f"choose from {', '.join(signature.parameters) or 'none: it takes no arguments'}",
                )
    if rows is not None and sizes is None:
        raise BreakgraphError(
            f"{shown} was given batched= without buckets=",
            why="without sizes to pad to, each shape is captured as it is",
            remedy="give both, or neither",
        )
    if both := (rows or frozenset()) & fixed:
        raise BreakgraphError(
            f"{', '.join(sorted(both))} of {shown} cannot be both batched and static",
            why="what is batched is copied and padded, and what is static stays where it is",
            remedy="choose one",
        )
    return Declaration(shown, signature, sizes, rows, fixed, options=options, **others)


def _check_function(function: Callable[..., Any], shown: str) -> None:
    if not callable(function):
        raise TypeError(f"graphed takes a function, not an object of type {type(function).__name__}")
    called = function if hasattr(function, "__code__") else getattr(function, "func", type(function).__call__)
    if any(kind(one) for one in (function, called) for kind in _LATER):
        raise BreakgraphError(
            f"{shown!r} is a coroutine or generator function and cannot be graphed",
            why="its body runs after the call has returned, where no capture is open",
            remedy="graph a plain function that it calls",
        )


_LATER = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not tell
        return inspect.signature(lambda *args, **kwargs: None)


def _names(given: str | Iterable[str]) -> frozenset[str]:
    return frozenset((given,) if isinstance(given, str) else given)


def _sizes(buckets: Iterable[int]) -> tuple[int, ...]:
    sizes = sorted({operator.index(size) for size in buckets})
    if sizes and sizes[0] < 1:
        raise ValueError(f"buckets are numbers of rows, at least 1, not {sizes[0]}")
    return tuple(sizes)
