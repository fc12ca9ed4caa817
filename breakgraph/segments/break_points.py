"""Where a forward is split: the decorator, the explicit call, and the bare break."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, overload

from breakgraph.driver.here import here
from breakgraph.driver.quick import detour
from breakgraph.errors import BreakgraphError
from breakgraph.memory import Cell, copy_output
from breakgraph.segments.callers import call_site
from breakgraph.segments.collector import open_captures
from breakgraph.segments.destinations import IN_PLACE, INFER, Destination

__all__ = ["BARE", "BreakPoint", "break_graph", "break_here", "break_point"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class BreakPoint:
    """What is known of a break before it is called."""

    function: Callable[..., Any]
    dst: Any = INFER
    out: str | None = None
    writes: tuple[str, ...] = ()
    stub: Callable[..., Any] | None = None
    tag: str | None = None
    rows: bool = True
    keeps: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _name(self.function))  # once, though each capture asks for it

    @property
    def is_plain(self) -> bool:
        """Whether the function's result goes nowhere but to its caller, where it is no break."""
        return self.out is None and isinstance(self.dst, Destination)

    def call_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function as if it were no break; a destination it names is written all the same (C20)."""
        if self.is_plain:
            return self.function(*args, **kwargs)
        destination = self.destination(kwargs)
        result = self.function(*args, **self.with_destination(kwargs, destination))
        if result is None and self.out is not None:
            return destination.array if isinstance(destination, Cell) else destination
        return copy_output(destination, result)

    def destination(self, kwargs: dict[str, Any]) -> Any:
        """Where this call lands: ``dst``, or for ``out`` the keyword that the caller gave."""
        if self.out is None or not isinstance(self.dst, Destination):
            return self.dst
        if kwargs.get(self.out) is None:
            raise BreakgraphError(
                f"break {self.name!r} was called without {self.out}=",
                why=f"it was declared with out={self.out!r}, so the call or dst= must say where it writes",
                remedy=f"pass {self.out}=array, or declare dst=",
            )
        return kwargs[self.out]

    def with_destination(self, kwargs: dict[str, Any], destination: Any) -> dict[str, Any]:
        """The keyword arguments, with the destination's array under the name that ``out`` gives."""
        if self.out is None:
            return kwargs
        return {**kwargs, self.out: destination.array if isinstance(destination, Cell) else destination}


@overload
def break_point(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def break_point(
    *,
    dst: Any = ...,
    out: str | None = ...,
    writes: Iterable[str] = ...,
    stub: Callable[..., Any] | None = ...,
    tag: str | None = ...,
    rows: bool = ...,
    keeps: bool = ...,
    enable: bool = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def break_point(
    function: Callable[..., Any] | None = None,
    /,
    *,
    dst: Any = INFER,
    out: str | None = None,
    writes: Iterable[str] = (),
    stub: Callable[..., Any] | None = None,
    tag: str | None = None,
    rows: bool = True,
    keeps: bool = False,
    enable: bool = True,
) -> Any:
    """Make a function a break: inside a capture it runs eagerly, between two segments, and again at each replay.

    Parameters
    ----------
    dst
        Where the result lands (C13): an array, a `Cell`, a tree of them, or `INFER`, `IN_PLACE`, `NO_WRITEBACK`.
    out
        Name of the keyword under which the function is given its destination, and writes it itself.
    writes
        Names of the arguments that an IN_PLACE function writes; ``valid_rows`` zeroes their padding.
    stub
        Called instead of the function at capture only.
    tag
        By which ``capture(break_on=...)`` selects it.
    rows
        False keeps ``valid_rows`` from zeroing the padding of its destinations.
    keeps
        The function keeps arrays that it makes, for Python alone (a cache, a log): ``debug`` does not warn of them.
    enable
        False leaves the function as it is.

    Raises
    ------
    BreakgraphError
        For a coroutine function, since a break runs to its end between two launches; for names in ``out`` and
        ``writes`` that the function does not have.

    Notes
    -----
    Outside a capture, inside another break, and where ``break_on`` does not select it, it is a plain call (C20).
    What can be wrong with a result is raised where the function is called: `NotCopyable`, `ShapeMismatch`,
    `DTypeMismatch`, `AliasedDestination`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not enable:
            return function
        _check_function(function)
        names = (writes,) if isinstance(writes, str) else tuple(writes)
        _refuse_unknown(function, (*names, out) if out else names)
        point = BreakPoint(function, dst, out, names, stub, tag, rows, keeps)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            capture = here.capture
            if capture is None or not capture.selects(tag):
                return point.call_plainly(args, kwargs)
            return capture.record(point, args, kwargs, call_site())

        if not point.is_plain:
            return call
        # While no capture is open in the process, nothing needs to be asked about this thread (C20).
        return functools.update_wrapper(detour(function, call, open_captures), function)

    return decorate if function is None else decorate(function)


def break_here(fn: Callable[..., Any], dst: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Make one call a break that lands in ``dst``; where a function always is one, use `break_point`.

    Parameters
    ----------
    fn
        The function, a plain one.
    dst
        Where its result lands, as for `break_point`.
    args, kwargs
        What it is called with. Arrays keep their addresses, all else but the forward context is frozen.

    Returns
    -------
    object
        What later code holds: the destination, or the value for `IN_PLACE` and `NO_WRITEBACK`.

    Raises
    ------
    BreakgraphError
        As `break_point` does.
    """
    _check_function(fn)
    point = BreakPoint(fn, dst)
    capture = here.capture
    if capture is None or not capture.selects(None):
        return point.call_plainly(args, kwargs)
    return capture.record(point, args, kwargs, call_site())


def break_graph() -> None:
    """A bare break: end the segment and begin the next. Outside a capture it does nothing."""
    capture = here.capture
    if capture is not None and capture.selects(None):
        capture.record(BARE, (), {}, call_site())


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _nothing() -> None:
    return None


_nothing.__qualname__ = "break_graph"
_AWAITED = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
BARE = BreakPoint(_nothing, IN_PLACE, rows=False)  #: what `break_graph` records


def _check_function(function: Callable[..., Any]) -> None:
    if not callable(function):
        raise BreakgraphError(
            f"a break is a function, not an object of type {type(function).__name__}",
            remedy="write bg.break_here(fn, dst, *args), or @bg.break_point(dst=...) above the function",
        )
    if isinstance(function, FunctionType) and not function.__dict__ and not function.__code__.co_flags & _AWAITED:
        return  # as nearly all are, and much sooner known
    called = function if hasattr(function, "__code__") else getattr(function, "func", type(function).__call__)
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in (function, called)):
        raise BreakgraphError(
            f"{_name(function)!r} is a coroutine function and cannot be a break",
            why="a break runs to its end between two launches; awaiting would let other tasks into the forward (C21)",
            remedy="make it a plain function, and await before or after the forward",
        )


def _refuse_unknown(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # a builtin that does not tell
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in names:
        if name not in parameters:
            raise BreakgraphError(
                f"{_name(function)!r} has no parameter {name!r}",
                why="writes= and out= name the parameters through which a break writes",
                remedy=f"choose from {', '.join(parameters) or 'none: it takes no arguments'}",
            )
