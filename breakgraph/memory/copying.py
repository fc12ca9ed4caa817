"""How a break's result reaches its destination (C12 to C15).

A copy is planned first: the whole tree is walked and checked, and nothing is written until all of it fits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from breakgraph import driver as drivers
from breakgraph import frameworks
from breakgraph.driver import Region
from breakgraph.errors import NotCopyable, ShapeMismatch
from breakgraph.memory import tree
from breakgraph.memory.array_copy import ArrayCopy, fit
from breakgraph.memory.cell import Cell

__all__ = ["Landing", "Plan", "copy_output", "is_registered", "plan_copy"]

T = TypeVar("T")
_ABSENT = object()
Handler = Callable[[Any, Any], object]


class Landing(enum.StrEnum):
    """Which branch a result took into its destination (C14), or why none was needed (C13)."""

    SAME = "same"  #: the result is the destination
    REGISTERED = "registered"
    ARRAY = "array"
    SEQUENCE = "sequence"
    MAPPING = "mapping"
    OBJECT = "object"
    IN_PLACE = "in_place"
    NO_WRITEBACK = "no_writeback"
    BARE = "bare"  #: a break without a function


@dataclass
class Plan:
    """A checked copy: `run` cannot fail for a reason that could have been known before.

    ``value`` is what later code holds, ``landing`` the branch taken at the top of the tree, ``handed_on``
    the plain values inside it that cannot change at replay, by path.
    """

    value: Any = None
    landing: Landing = Landing.SAME
    handed_on: dict[str, object] = field(default_factory=dict)
    arrays: list[ArrayCopy] = field(default_factory=list)
    actions: list[Callable[[], object]] = field(default_factory=list)

    def run(self, stream: int | None = None) -> Any:
        """Copy, on ``stream`` or else each destination's framework's current one. Returns ``value``."""
        if len(self.arrays) > 1:
            self._stage_sources(stream)
        for copy in self.arrays:
            copy.run(stream)
        for action in self.actions:
            action()
        return self.value

    def _stage_sources(self, stream: int | None) -> None:
        """Take a source aside where an earlier copy of this plan would overwrite it: ``(b, a)`` into ``(a, b)``."""
        for at, copy in enumerate(self.arrays):
            if any(before.target.overlaps(copy.source) for before in self.arrays[:at]):
                copy.stage(stream)


def is_registered(obj: object) -> bool:
    """Whether `copy_output` was taught the type of ``obj``."""
    return _handler(type(obj)) is not None


def plan_copy(dst: object, src: object, *, inferred: bool = False, origins: Mapping[int, Any] | None = None) -> Plan:
    """Check that ``src`` fits into ``dst``, everywhere, and say how it will be copied.

    ``inferred`` destinations are the library's own: their plain values were handed on and are not set again.
    Where ``dst`` is a copy, ``origins`` says for which containers it stands: plain values are set in those.

    Raises `ShapeMismatch`, `DTypeMismatch` or `NotCopyable`, naming the place in the tree.
    """
    plan = Plan()
    planner = _Planner(plan, inferred, origins or {})
    plan.value, plan.landing = planner.node(dst, src, "result")
    return plan


class _Planner:
    def __init__(self, plan: Plan, inferred: bool, origins: Mapping[int, Any]) -> None:
        self._plan = plan
        self._origins = origins
        self._inferred = inferred
        self._driver = drivers.current()
        self._open: set[tuple[int, int]] = set()  # pairs on the way down: ends cycles

    def node(self, dst: Any, src: Any, path: str) -> tuple[Any, Landing]:
        """What later code holds in place of ``dst``, and the branch taken. The order of branches is C14's."""
        dst, src = _uncell(dst), _uncell(src)
        if dst is src and not (self._inferred and not self._is_plain(dst)):  # inferred: look for plain values in it
            return dst, Landing.SAME
        if (handler := _handler(type(dst))) is not None:
            if dst is not src:
                self._plan.actions.append(lambda: handler(dst, src))
            return dst, Landing.REGISTERED
        if self._array(dst, src, path):
            return dst, Landing.ARRAY
        if isinstance(dst, (tuple, list)) and isinstance(src, (tuple, list)):
            return self._sequence(dst, src, path), Landing.SEQUENCE
        if isinstance(dst, Mapping) and isinstance(src, Mapping):
            return self._mapping(dst, src, path), Landing.MAPPING
        if tree.is_object(dst) and isinstance(src, type(dst)):
            return self._object(dst, src, path), Landing.OBJECT
        raise NotCopyable(
            f"{path} is {_show(src)} and cannot be copied into {_show(dst)}",
            why="a break's result must land where later segments read it, and these have no array in common (C14)",
            remedy="return the arrays that later code reads; or hand a plain value on with dst=bg.NO_WRITEBACK, if it"
            " is the same at each replay or nobody reads it",
        )

    def _array(self, dst: Any, src: Any, path: str) -> bool:
        if isinstance(dst, np.ndarray) and isinstance(src, np.ndarray):
            target = fit(_host_region(dst), _host_region(src), path)
            rows = dst[: target.shape[0]] if dst.ndim else dst
            self._plan.actions.append(lambda: np.copyto(rows, src))
            return True
        framework, other = frameworks.of(dst, self._driver), frameworks.of(src, self._driver)
        if framework is None or other is None:
            return False
        source = other.view(src)
        target = fit(framework.view(dst), source, path)
        self._plan.arrays.append(ArrayCopy(framework, dst, target, src, source))
        return True

    def _child(self, dst: Any, src: Any, path: str) -> tuple[Any, bool]:
        """The value in place of ``dst``, and whether it is a plain one: those are handed on, arrays are copied."""
        if self._is_plain(dst) and self._is_plain(src):
            self._plan.handed_on[path] = src
            return src, True
        if (id(dst), id(src)) in self._open:
            return dst, False
        self._open.add((id(dst), id(src)))
        return self.node(dst, src, path)[0], False

    def _is_plain(self, value: object) -> bool:
        if isinstance(value, (Cell, tuple, list, Mapping, np.ndarray)) or _handler(type(value)) is not None:
            return False
        return frameworks.of(value, self._driver) is None and not tree.is_object(value)

    def _sequence(self, dst: Any, src: Any, path: str) -> Any:
        if len(dst) != len(src):
            raise ShapeMismatch(
                f"{path} has {len(src)} items and its destination {len(dst)}",
                remedy="return as many as the destination has",
            )
        items = []
        for at, (into, value) in enumerate(zip(dst, src, strict=True)):
            item, plain = self._child(into, value, f"{path}[{at}]")
            if plain and isinstance(dst, list) and not self._inferred:
                self._set(f"{path}[{at}]", self._origin(dst).__setitem__, at, item)
            items.append(item)
        if isinstance(dst, list) or all(new is old for new, old in zip(items, dst, strict=True)):
            return dst
        return type(dst)(*items) if hasattr(dst, "_fields") else type(dst)(items)

    def _mapping(self, dst: Mapping[Any, Any], src: Mapping[Any, Any], path: str) -> Any:
        if dst.keys() != src.keys():
            odd = sorted(map(repr, dst.keys() ^ src.keys()))
            raise NotCopyable(
                f"{path} and its destination have different keys: {', '.join(odd)}", remedy="return the keys it has"
            )
        for key in dst:
            item, plain = self._child(dst[key], src[key], f"{path}[{key!r}]")
            if plain and not self._inferred:
                if not isinstance(dst, MutableMapping):
                    raise NotCopyable(f"{path}[{key!r}] is a plain value and its destination cannot be changed")
                self._set(f"{path}[{key!r}]", self._origin(dst).__setitem__, key, item)
        return dst

    def _object(self, dst: Any, src: Any, path: str) -> Any:
        into, values = tree.attributes(dst), tree.attributes(src)
        if into.keys() != values.keys():
            odd = sorted(into.keys() ^ values.keys())
            raise NotCopyable(
                f"{path} and its destination have different attributes: {', '.join(odd)}",
                remedy="return an object with the attributes it has",
            )
        for name in into:
            item, plain = self._child(into[name], values[name], f"{path}.{name}")
            if plain and item is not getattr(self._origin(dst), name, _ABSENT) and not self._inferred:
                self._set(f"{path}.{name}", partial(setattr, self._origin(dst)), name, item)
        return dst

    def _origin(self, container: Any) -> Any:
        return self._origins.get(id(container), container)

    def _set(self, path: str, setter: Callable[[Any, Any], object], key: Any, value: object) -> None:
        del self._plan.handed_on[path]  # it is set anew each time, so nothing about it is frozen
        self._plan.actions.append(lambda: setter(key, value))


def _host_region(array: np.ndarray[Any, Any]) -> Region:
    return Region(array.ctypes.data, array.shape, array.strides, array.dtype)


def _uncell(value: Any) -> Any:
    return value.array if isinstance(value, Cell) else value


def _show(value: object) -> str:
    """The type, and a plain value itself; a device array's values would have to be fetched."""
    name = type(value).__name__
    return f"{value!r:.60} (type {name})" if isinstance(value, (bool, int, float, complex, str, bytes)) else name


# --- the public function ----------------------------------------------------------------------------------

_handlers: dict[type, Handler] = {}


def _handler(kind: type) -> Handler | None:
    if not _handlers:
        return None
    return next((_handlers[base] for base in kind.__mro__ if base in _handlers), None)


class _CopyOutput:
    """``copy_output(dst, src)``: copy a tree of arrays into another of the same form.

    Branches, in order (C14): the same object; a registered type; array into array; tuple, list or namedtuple
    of equal length; mapping; dataclass or plain object, attribute by attribute. The whole tree is checked
    before anything is copied. Device arrays are copied on their framework's current stream, asynchronously;
    a source with a shorter first axis fills the leading rows. ``@copy_output.register(Cache)`` above a function of
    ``dst`` and ``src`` teaches it a type.

    Returns
    -------
    object
        What later code should hold: ``dst``, or a tuple with ``dst``'s arrays and ``src``'s plain values.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, NotCopyable
        Something in ``src`` does not fit its place in ``dst``, which the message names.
    """

    def __call__(self, dst: object, src: object) -> Any:
        return plan_copy(dst, src).run()

    @staticmethod
    def register(kind: type[T]) -> Callable[[Callable[[T, Any], object]], Callable[[T, Any], object]]:
        """Teach it a type: ``@copy_output.register(Cache)`` above ``def _(dst, src)``, which copies by itself.

        A registered handler runs after all checks of the tree have passed; subclasses use it too.
        """

        def remember(handler: Callable[[T, Any], object]) -> Callable[[T, Any], object]:
            _handlers[kind] = handler
            return handler

        return remember


copy_output = _CopyOutput()
