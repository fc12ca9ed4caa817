"""The callable that captures itself: what a service uses."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from breakgraph.errors import BreakgraphError
from breakgraph.memory import Arena
from breakgraph.segments.graph import BreakableGraph
from breakgraph.service.declaration import CaptureOptions, Declaration, FallbackPolicy, declare
from breakgraph.service.graphs import Graphs
from breakgraph.service.progress import track
from breakgraph.service.stats import GraphedStats

__all__ = ["Graphed", "graphed"]

P = ParamSpec("P")
R = TypeVar("R")


class _Callable(Generic[P, R]):
    """A function and its graphs."""

    def __init__(self, function: Callable[P, R], graphs: Graphs) -> None:
        self._function, self._graphs = function, graphs

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function, once: by a replay, by the capture of a graph, or as it is."""
        result: R = self._graphs(self._function, args, kwargs)
        return result

    def precapture(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Capture ahead what calls would capture at first sight: every bucket, the largest first.

        Called as the function is, with examples: of arrays with more rows than a bucket its first rows are taken, and
        fewer are padded. Before each capture the function runs ``warmup`` times as it is, and the capture runs it once
        more, with all that it does. What is captured already is left alone. Shows a progress bar on a terminal.

        Returns
        -------
        int
            How many graphs were captured.
        """
        what = f"capturing {self._graphs.declared.name}"
        return self._graphs.precapture(self._function, args, kwargs, lambda sizes: track(sizes, what))

    @property
    def stats(self) -> GraphedStats:
        """What its calls have come to so far."""
        return self._graphs.counts.snapshot()

    @property
    def graphs(self) -> tuple[BreakableGraph, ...]:
        """The graphs captured so far; ``.name`` tells the size. Replay none of them by hand: it has stale inputs."""
        return self._graphs.graphs

    @property
    def arena(self) -> Arena:
        """The arena of its graphs, in the current context."""
        return self._graphs.arena

    def reset(self) -> None:
        """Destroy the graphs, once their last calls are done; later calls capture anew, also what has failed.

        Raises `CaptureStateError` inside a call of its own.
        """
        self._graphs.reset()

    def close(self) -> None:
        """Destroy the graphs for good; later calls run the function itself. A second call does nothing.

        Raises `CaptureStateError`, and changes nothing, inside a call of its own.
        """
        self._graphs.close()

    def __repr__(self) -> str:
        stats = self.stats
        counts = ((len(self.graphs), "graph"), (stats.calls, "call"))
        told = ", ".join(f"{number:,} {what}{'s' * (number != 1)}" for number, what in counts)
        padding = f", {stats.padding:.1%} padding" if stats.rows else ""
        return f"<Graphed {self._graphs.declared.name}: {told}{padding}>"


class Graphed(_Callable[P, R]):
    """What `graphed` makes of a function. On a class it is a method, with graphs for each instance."""

    def __init__(self, function: Callable[P, R], declared: Declaration) -> None:
        super().__init__(function, Graphs(declared))
        self._attribute = f"_graphed_{next(_numbers)}"
        functools.update_wrapper(self, function, updated=())  # an object's attributes stay its own

    def __copy__(self) -> Graphed[P, R]:
        return Graphed(self._function, self._graphs.declared)

    def __deepcopy__(self, memo: dict[int, Any]) -> Graphed[P, R]:
        """Of a bound method, with the copy of its instance, and without the graphs, which have baked the original's."""
        return Graphed(copy.deepcopy(self._function, memo), self._graphs.declared)

    def __reduce__(self) -> str:
        return str(vars(self).get("__qualname__", self._graphs.declared.name))  # by name, as functions are pickled

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> _Callable[..., R]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if isinstance(instance, type):  # of a class method: the class is an argument like others
            return MethodType(self, instance)
        return _Callable(MethodType(self._function, instance), self._graphs_of(instance))

    def _graphs_of(self, instance: object) -> Graphs:
        """Those of an instance, which has them: they die with it. A copy of it gets its own."""
        try:
            with _making:  # the first calls of several threads find the same
                kept: Graphs | None = vars(instance).get(self._attribute)
                if kept is None or not kept.belongs_to(instance):
                    kept = vars(instance)[self._attribute] = Graphs(self._graphs.declared.of_method(), instance)
                return kept
        except TypeError as error:
            raise BreakgraphError(
                f"{self._graphs.declared.name} was called on a {type(instance).__name__}, which cannot hold graphs",
                why="the graphs of a method belong to its instance, and __slots__ leaves no room for them",
                remedy='add "__dict__" and "__weakref__" to __slots__, or graph a function instead of the method',
            ) from error


_numbers = itertools.count()
_making = threading.RLock()  # a destructor in the middle of it may come here again


@overload
def graphed(
    function: Callable[P, R],
    /,
    *,
    buckets: Iterable[int] | None = ...,
    batched: str | Iterable[str] | None = ...,
    static: str | Iterable[str] = ...,
    slice_outputs: Any = ...,
    copy_outputs: bool = ...,
    max_graphs: int = ...,
    fallback: FallbackPolicy = ...,
    warmup: int = ...,
    arena: Arena | None = ...,
    name: str | None = ...,
    **options: Unpack[CaptureOptions],
) -> Graphed[P, R]: ...
@overload
def graphed(
    *,
    buckets: Iterable[int] | None = ...,
    batched: str | Iterable[str] | None = ...,
    static: str | Iterable[str] = ...,
    slice_outputs: Any = ...,
    copy_outputs: bool = ...,
    max_graphs: int = ...,
    fallback: FallbackPolicy = ...,
    warmup: int = ...,
    arena: Arena | None = ...,
    name: str | None = ...,
    **options: Unpack[CaptureOptions],
) -> Callable[[Callable[P, R]], Graphed[P, R]]: ...


def graphed(
    function: Callable[..., Any] | None = None,
    /,
    *,
    buckets: Iterable[int] | None = None,
    batched: str | Iterable[str] | None = None,
    static: str | Iterable[str] = (),
    slice_outputs: Any = True,
    copy_outputs: bool = True,
    max_graphs: int = 128,
    fallback: FallbackPolicy = "warn",
    warmup: int = 1,
    arena: Arena | None = None,
    name: str | None = None,
    **options: Unpack[CaptureOptions],
) -> Any:
    """Let a function capture itself: the first call of each size is captured, and later ones are replayed.

    A decorator, with or without arguments, of functions and methods (each instance has its own graphs). Every call runs
    the forward exactly once, whichever way, on the caller's current stream.

    Device arrays among the arguments, in tuples, lists, mappings and dataclasses too, are **live**: each call copies
    them to where the graph reads them. What the function writes into them the caller does not see. The forward
    context (`active_forward`) is live as well. Every other argument must have a hash, and each value of it is a graph
    of its own.

    Parameters
    ----------
    buckets
        Numbers of rows to pad calls to; see `size_ladder`. A call of more rows than the largest runs the function
        itself. None: each combination of shapes is captured as it is. Empty: nothing is.
    batched
        Names of the parameters whose arrays have rows along axis 0, the same number of them. Rows beyond it are zeros
        in the graph, and `current_valid_rows` tells breaks how many are real. Needed if there are several arrays.
    static
        Names of the parameters whose arrays are **not** copied but read, and written, where they are: weights, caches.
        Arrays in other objects count too. Each call checks that they have not moved.
    slice_outputs
        Which arrays that are returned have a row for each row of the batched inputs, and are cut to the real ones: True
        for all, False for none, or a tuple, list or mapping of these in the form of the result.
    copy_outputs
        Return new arrays. False returns those that the graph writes, which are valid until the next call (and the next
        capture or replay of the arena): without a copy, and yours to read in time.
    max_graphs
        How many graphs there may be; what would be one more runs the function itself.
    fallback
        What to do where the function itself runs though graphs are wanted: ``"warn"``, once for each reason;
        ``"allow"``; or ``"refuse"``, with `CaptureStateError` (but not where capture is switched off).
    warmup
        How often `Graphed.precapture` runs the function before each capture.
    arena
        Shared by the graphs of several functions, which then take turns. By default one of its own; the graphs of one
        arena need the memory of the largest, for inputs and outputs too.
    name
        For messages; by default the function's.
    **options
        Of each capture: ``mode``, ``break_on``, ``barrier``, ``aux_streams``, ``frameworks``, ``frozen``, ``debug`` and
        ``execs`` as `capture` has them. ``frozen`` also concerns what is returned and is no array.

    Returns
    -------
    Graphed
        Called as the function is; also ``.stats``, ``.graphs``, ``.precapture(...)``, ``.reset()``, ``.close()``.

    Raises
    ------
    BreakgraphError, ValueError, TypeError
        For a declaration that cannot be right: an unknown parameter or option, a coroutine function.

    Notes
    -----
    A call raises `BreakgraphError` for arguments that no graph can be chosen by (host arrays, no hash, rows that
    disagree), `InputMoved`, and whatever the function, its capture or its replay raises. If a capture is refused before
    anything of the function has run, the function runs instead. One that fails in the middle raises, since a second run
    would repeat what the first has done; where the error was the library's or the driver's, later calls like it run
    the function itself, until `Graphed.reset`.

    Inside a segment of another capture it is a plain call, and becomes a part of that.
    """
    if slice_outputs is not True and buckets is None:
        raise ValueError("slice_outputs says which outputs are cut to the real rows, and without buckets= none is")
    if max_graphs < 1 or warmup < 0:
        raise ValueError(f"max_graphs is at least 1 and warmup at least 0, not {max_graphs} and {warmup}")
    if fallback not in ("allow", "warn", "refuse"):
        raise ValueError(f"fallback is allow, warn or refuse, not {fallback!r}")
    if arena is not None and not isinstance(arena, Arena):
        raise TypeError(f"arena is of type Arena, not {type(arena).__name__}")

    def decorate(function: Callable[P, R]) -> Graphed[P, R]:
        declared = declare(
            function,
            buckets=buckets,
            batched=batched,
            static=static,
            name=name,
            options=options,
            slice_outputs=slice_outputs,
            copy_outputs=copy_outputs,
            max_graphs=max_graphs,
            fallback=fallback,
            warmup=warmup,
            arena=arena,
        )
        return Graphed(function, declared)

    return decorate if function is None else decorate(function)
