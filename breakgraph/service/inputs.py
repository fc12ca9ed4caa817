"""The arguments of one call: which of them are arrays to copy, and which graph the call belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from breakgraph import frameworks
from breakgraph.driver import Driver, Region
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks import Array, Framework
from breakgraph.memory import tree
from breakgraph.segments.context import current_forward
from breakgraph.service.declaration import Declaration

__all__ = ["Inputs", "Live"]


class Live(NamedTuple):
    """An array that each call brings anew: ``batched`` if its rows are padded to a size."""

    name: str
    framework: Framework
    array: Array
    region: Region
    batched: bool


class Inputs:
    """One call's: the value of each parameter, and what follows from them.

    Raises `BreakgraphError`, naming the argument, where no graph can be chosen by it.

    Attributes
    ----------
    live
        The arrays to copy, each once.
    rows, size
        Real rows of the batched ones, and the size to pad them to; None where shapes are exact. ``size`` is also None
        where no size holds the rows.
    key
        Equal for calls that one graph can serve.
    """

    __slots__ = ("_declared", "_driver", "key", "live", "rows", "size", "values")

    def __init__(self, declared: Declaration, driver: Driver, values: tuple[Any, ...], size: int | None = None) -> None:
        self._declared, self._driver, self.values = declared, driver, values
        reading, batched = _Reading(driver), declared.batched or ()
        form = tuple(
            reading.form(value, name, name in batched)
            for name, value in zip(declared.names, values, strict=True)
            if name not in declared.static
        )
        self.live = live = reading.live
        self.rows, self.size = None, size
        if declared.sizes is not None:
            if declared.batched is None and len(live) == 1:
                live[0] = live[0]._replace(batched=True)
            self.rows = _common_rows(declared, live)
            self.size = size or declared.size_for(self.rows)
        arrays = tuple(
            (type(one.array), one.region.dtype, one.region.shape[1:] if one.batched else one.region.shape)
            for one in live
        )
        constants = tuple(_constants(declared.static_values(values), set())) if declared.static else ()
        self.key: Hashable = (self.size, form, constants, arrays, current_forward() is not None)

    @property
    def label(self) -> str:
        """What its graph is for, in few words: the size, or the shapes."""
        if self.size is not None:
            return str(self.size)
        return ", ".join("x".join(map(str, one.region.shape)) for one in self.live)

    def cut(self, size: int | None) -> Inputs:
        """The same call for one size: with rows beyond it left out, and padded to it where there are fewer."""
        instead = {
            id(one.array): one.framework.like(one.array, one.region.rows(0, size), one.array)
            for one in self.live
            if one.batched and size is not None and one.region.shape[0] > size
        }
        return Inputs(self._declared, self._driver, tuple(self.with_arrays(instead)), size)

    def with_arrays(self, instead: Mapping[int, Array]) -> list[Any]:
        """The values with other arrays in place of live ones, given by the ``id`` of those."""
        context = current_forward()

        def is_leaf(node: object) -> bool:
            return (context is not None and node is context) or id(node) in instead

        def replaced(value: Any) -> Any:
            return tree.rebuild(value, lambda leaf: instead.get(id(leaf), leaf), is_leaf=is_leaf)

        named = zip(self._declared.names, self.values, strict=True)
        return [value if name in self._declared.static else replaced(value) for name, value in named]


_ARRAY, _CONTEXT = object(), object()
_SIMPLE = frozenset({int, bool, str, bytes, type(None)})


class _Reading:
    """Walks arguments, notes their arrays, and tells of everything else by what it is equal to."""

    def __init__(self, driver: Driver) -> None:
        self.live: list[Live] = []
        self._driver = driver
        self._context = current_forward()
        self._places: dict[int, int] = {}  # of an array by its id: a call with one array twice is another kind of call

    def form(self, value: Any, name: str, batched: bool) -> Hashable:
        kind = type(value)
        if kind in _SIMPLE:
            return kind, value
        if self._context is not None and value is self._context:
            return _CONTEXT  # live at every replay (C19)
        framework = frameworks.of(value, self._driver)
        if framework is not None:
            return _ARRAY, self._note(Live(name, framework, value, framework.view(value), batched))
        if isinstance(value, (tuple, list)):
            return kind, tuple(self.form(item, name, batched) for item in value)
        if isinstance(value, Mapping):
            return kind, tuple(value), tuple(self.form(item, name, batched) for item in value.values())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = tree.attributes(value)
            return kind, tuple(fields), tuple(self.form(item, name, batched) for item in fields.values())
        return kind, _plain(value, name)

    def _note(self, one: Live) -> int:
        place = self._places.setdefault(id(one.array), len(self.live))
        if place == len(self.live):
            self.live.append(one)
        elif self.live[place].batched != one.batched:
            raise BreakgraphError(
                f"the array given as {one.name!r} is {self.live[place].name!r} too, and only one of them is batched",
                why="what is batched is padded, and the other is not",
                remedy="give a copy",
            )
        return place


def _constants(values: Iterable[Any], walked: set[int]) -> Iterator[Hashable]:
    """What has its values baked beside static arrays: plain values and keys, not the attributes of other objects."""
    for value in values:
        if isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
            yield type(value), _plain(value, "static")
        elif id(value) not in walked:
            walked.add(id(value))
            if isinstance(value, (tuple, list)):
                yield from _constants(value, walked)
            elif isinstance(value, Mapping):
                yield tuple(value)
                yield from _constants(value.values(), walked)
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                yield from _constants(tree.attributes(value).values(), walked)


_HOST_ARRAYS = ("__array_interface__", "__array__", "__dlpack__")


def _plain(value: Any, name: str) -> Hashable:
    """What a value that is no array is told apart by. 1, 1.0 and True are equal, and so are 0.0 and -0.0: not here."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return value.real.hex(), value.imag.hex()
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()  # a day and a second have the same bytes and type
    if not isinstance(value, type) and any(hasattr(value, mark) for mark in _HOST_ARRAYS):
        raise BreakgraphError(
            f"input {name!r} is an array of the host (type {type(value).__name__})",
            why="a graph would have its values baked, or those of its address; only arrays of the device are copied",
            remedy="copy it to the device first: bg.array_namespace().asarray(x). What breaks read on the host belongs"
            " in the forward context: with bg.active_forward(ctx): ...",
        )
    try:
        hash(value)
    except TypeError as error:
        raise BreakgraphError(
            f"input {name!r} is {value!r:.60} (type {type(value).__name__}), which has no hash",
            why="a value that is no array is baked into the graph, so another value must be told from it",
            remedy="pass tuples, frozensets or frozen objects; what changes from call to call belongs in an array or in"
            " the forward context",
        ) from error
    return value  # type: ignore[no-any-return]


def _common_rows(declared: Declaration, live: list[Live]) -> int:
    batched = [one for one in live if one.batched]
    if not batched:
        found = f"{len(live)} arrays are given" if live else "no array is given"
        raise BreakgraphError(
            f"{declared.name} has buckets, and {found}",
            why="only if there is one array, its rows are meant without a word",
            remedy='say which parameters have rows to pad: bg.graphed(buckets=..., batched=("tokens", "positions"))',
        )
    for one in batched:
        if not one.region.ndim or one.region.shape[0] != (batched[0].region.shape or (None,))[0]:
            shapes = ", ".join(f"{each.name} {each.region.shape}" for each in batched)
            raise BreakgraphError(
                f"the batched inputs of {declared.name} have no common number of rows: {shapes}",
                why="rows are the first axis of each",
                remedy="give arrays of equally many rows, and leave those without rows out of batched=",
            )
    return batched[0].region.shape[0]
