"""Where the arrays were, at capture, that the forward reaches by a name: globals, attributes, closures.

A segment has their addresses baked. Where such a name leads to another array afterwards, eager code uses the new one,
and a replay goes on with the old.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from breakgraph import frameworks
from breakgraph.driver import Driver

__all__ = ["AddressBook", "Moved"]

_ABSENT = object()


class Moved(NamedTuple):
    """A name that leads elsewhere than at capture.

    Attributes
    ----------
    name
        How code reaches the array.
    before, now
        Its address at capture, and now; ``now`` is 0 where the name leads to no array any more.
    died
        Whether the array of the capture is gone, as far as can be told, so that its memory may serve others.
    """

    name: str
    before: int
    now: int
    died: bool

    def __str__(self) -> str:
        now = f"is at {self.now:#x} now" if self.now else "leads to no array now"
        return f"{self.name} was at {self.before:#x} when captured, and {now}" + (
            "; the array that was there has died" if self.died else ""
        )


class _Entry(NamedTuple):
    name: str
    look: Callable[[], object]
    ptr: int
    array: weakref.ref[Any] | None


class AddressBook:
    """Filled in a debug capture; it keeps no array alive."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._entries: dict[tuple[object, ...], _Entry] = {}
        self._seen: set[tuple[CodeType, int]] = set()

    def note_function(self, function: object) -> None:
        """What a break reaches: by its closure, its globals, and the object that it is a method of."""
        if isinstance(function, partial):
            return self.note_function(function.func)
        if isinstance(function, MethodType):
            self._note_attributes(function.__self__)
            function = function.__func__
        if not isinstance(function, FunctionType):
            return None
        self._note_globals(function.__code__, function.__globals__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._note((id(cell),), f"{name!r} in the closure of {function.__qualname__}", partial(_content, cell))
        return None

    def note_code(self, code: CodeType, variables: dict[str, Any], owner: object) -> None:
        """What code that runs in a segment reaches: by its globals, and by the attributes of its ``self``."""
        key = (code, id(owner))
        if key in self._seen:
            return
        self._seen.add(key)
        self._note_globals(code, variables)
        if owner is not None:
            self._note_attributes(owner)

    def moved(self) -> Iterator[Moved]:
        """The names that lead elsewhere now."""
        for entry in self._entries.values():
            now = self._address(entry.look())
            if now != entry.ptr:
                yield Moved(entry.name, entry.ptr, now, entry.array is not None and entry.array() is None)

    def _note_globals(self, code: CodeType, variables: dict[str, Any]) -> None:
        module = variables.get("__name__", "?")
        for name in code.co_names:
            if name in variables:
                self._note((id(variables), name), f"the global {module}.{name}", partial(_item, variables, name))

    def _note_attributes(self, owner: object) -> None:
        try:
            held = weakref.ref(owner)
        except TypeError:
            return
        for name in getattr(owner, "__dict__", ()):
            what = f"the attribute {name!r} of a {type(owner).__qualname__}"
            self._note((id(owner), name), what, partial(_attribute, held, name))

    def _note(self, key: tuple[object, ...], name: str, look: Callable[[], object]) -> None:
        array = look()
        if key not in self._entries and (ptr := self._address(array)):
            try:
                held = weakref.ref(array)
            except TypeError:
                held = None
            self._entries[key] = _Entry(name, look, ptr, held)

    def _address(self, array: object) -> int:
        framework = frameworks.of(array, self._driver)
        return 0 if framework is None else framework.view(array).bounds[0]


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _ABSENT


def _item(variables: dict[str, Any], name: str) -> object:
    return variables.get(name, _ABSENT)


def _attribute(held: weakref.ref[Any], name: str) -> object:
    return getattr(held(), "__dict__", {}).get(name, _ABSENT)
