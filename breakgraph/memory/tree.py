"""Values made of arrays: walked and rebuilt container by container.

A tree's containers are tuples (named ones too), lists, mappings, dataclasses, and, where asked, plain
objects with attributes; everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["attributes", "is_object", "leaves", "rebuild"]

#: Types that have a ``__dict__`` and are values all the same.
_VALUES = (type, ModuleType, enum.Enum, np.ndarray, np.generic, BaseException)


def attributes(obj: object) -> dict[str, Any]:
    """The attributes an object carries itself: its fields, its ``__dict__``, its slots."""
    if dataclasses.is_dataclass(obj):
        return {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj) if hasattr(obj, field.name)}
    found = dict(getattr(obj, "__dict__", ()))
    for kind in type(obj).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(obj, name):
                found[name] = getattr(obj, name)
    return found


def is_object(obj: object) -> bool:
    """Whether ``obj`` is a dataclass instance or a plain object, to be taken attribute by attribute."""
    if isinstance(obj, _VALUES) or callable(obj):
        return False
    return dataclasses.is_dataclass(obj) or bool(attributes(obj))


def leaves(tree: object, *, objects: bool = False, is_leaf: Callable[[object], bool] | None = None) -> Iterator[Any]:
    """The leaves of a tree, each container visited once."""
    found: list[object] = []

    def note(leaf: object) -> object:
        found.append(leaf)
        return leaf

    _Rebuild(note, objects, is_leaf or _never)(tree)
    return iter(found)


def rebuild(
    tree: object,
    leaf: Callable[[Any], Any],
    *,
    objects: bool = False,
    is_leaf: Callable[[object], bool] | None = None,
    origins: dict[int, Any] | None = None,
) -> Any:
    """The tree with ``leaf(x)`` in place of each leaf ``x``.

    Containers are made anew, of the same type, only where a leaf below them was replaced; two references
    to one container, or to one leaf that ``is_leaf`` names, stay two references to one. ``is_leaf`` stops the
    walk at what it is true of.

    With ``origins`` every list and mutable mapping (with ``objects``, every object) is made anew, so that later
    changes to the caller's are not seen, and the dict is filled: from the ``id`` of each new container to the one
    it stands for.
    """
    return _Rebuild(leaf, objects, is_leaf or _never, origins)(tree)


def _never(_: object) -> bool:
    return False


class _Rebuild:
    def __init__(
        self,
        leaf: Callable[[Any], Any],
        objects: bool,
        is_leaf: Callable[[object], bool],
        origins: dict[int, Any] | None = None,
    ) -> None:
        self._origins = origins
        self._leaf = leaf
        self._objects = objects
        self._is_leaf = is_leaf
        self._done: dict[int, Any] = {}  # keeps sharing, and ends cycles
        self._alive: list[object] = []  # so that no id is used twice meanwhile

    def __call__(self, node: Any) -> Any:
        if id(node) in self._done:
            return self._done[id(node)]
        if self._is_leaf(node):
            return self._keep(node, self._leaf(node))
        if isinstance(node, (tuple, list)):
            return self._keep(node, self._sequence(node))
        if isinstance(node, Mapping):
            return self._keep(node, self._mapping(node))
        if is_object(node) and (self._objects or dataclasses.is_dataclass(node)):
            return self._keep(node, self._object(node))
        return self._leaf(node)

    def _keep(self, node: Any, made: Any) -> Any:
        self._alive.append(node)
        self._done[id(node)] = made
        return made

    def _made(self, node: Any, made: Any) -> Any:
        if self._origins is not None:
            self._origins[id(made)] = node
        return made

    def _unchanged(self, pairs: Iterable[tuple[Any, Any]], *, mutable: bool) -> bool:
        return not (mutable and self._origins is not None) and all(new is old for new, old in pairs)

    def _sequence(self, node: Any) -> Any:
        self._keep(node, node)
        items = [self(item) for item in node]
        if self._unchanged(zip(items, node, strict=True), mutable=isinstance(node, list)):
            return node
        if isinstance(node, list):
            made = copy.copy(node)
            made[:] = items
            return self._made(node, made)
        return self._made(node, type(node)(*items) if hasattr(node, "_fields") else type(node)(items))

    def _mapping(self, node: Mapping[Any, Any]) -> Any:
        self._keep(node, node)
        items = {key: self(value) for key, value in node.items()}
        if self._unchanged(((items[key], node[key]) for key in items), mutable=isinstance(node, MutableMapping)):
            return node
        if not isinstance(node, MutableMapping):
            return self._made(node, items)
        made = copy.copy(node)
        made.update(items)
        return self._made(node, made)

    def _object(self, node: Any) -> Any:
        self._keep(node, node)
        before = attributes(node)
        after = {name: self(value) for name, value in before.items()}
        if self._unchanged(((after[name], before[name]) for name in after), mutable=self._objects):
            return node
        made = copy.copy(node)
        for name, value in after.items():
            object.__setattr__(made, name, value)  # also through a frozen dataclass
        return self._made(node, made)
