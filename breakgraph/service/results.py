"""What a captured function returned, held without being kept alive, and handed to each caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from breakgraph import driver as drivers
from breakgraph.driver import Region
from breakgraph.errors import BreakgraphError, NotCopyable, ShapeMismatch
from breakgraph.frameworks import Array, Framework
from breakgraph.memory import Arena, Cell, is_registered, tree
from breakgraph.segments.callers import warn
from breakgraph.segments.destinations import Ownership
from breakgraph.segments.steps import Break
from breakgraph.service.declaration import Declaration

__all__ = ["Results"]


class Results:
    """The arrays of one captured call, at the addresses that its segments and breaks write.

    Those in the arena do not keep their bytes: other graphs use them between two calls of this one.

    Parameters
    ----------
    value
        What the function returned.
    breaks
        That its capture has recorded. A warning tells if one has handed an array on that is returned.
    size
        Rows that it was captured with; None where shapes are exact.

    Raises
    ------
    ShapeMismatch
        An array that is to be sliced has another number of rows.
    NotCopyable
        There is no device array in a value that is not None, or one of a type that only its own handler copies.
    """

    def __init__(
        self, value: Any, ownership: Ownership, *, size: int | None, declared: Declaration, breaks: Iterable[Break]
    ) -> None:
        self._ownership, self._size, self._name = ownership, size, declared.name
        self._stale = [(one, array) for one in breaks for array in one.stale]
        self._frozen = declared.options.get("frozen", "allow")
        self._found = False
        self._sliced: set[int] = set()  # ids of the arrays that have a row for each of the size
        if size is not None:
            self._read_slices(value, declared.slice_outputs, "the result")
        self._template = tree.rebuild(value, self._hold, objects=True, is_leaf=ownership.is_storage, origins={})
        if not self._found and any(leaf is not None for leaf in tree.leaves(value)):
            raise NotCopyable(
                f"{self._name} returned {value!r:.80} (type {type(value).__name__}), which holds no device array",
                why="replay could not change a value of the host, so every later call would get this one",
                remedy="return arrays of the device, and read them on the host after the call",
            )

    def _read_slices(self, value: Any, sliced: Any, path: str) -> None:
        if isinstance(sliced, bool):
            for leaf in tree.leaves(value, objects=True, is_leaf=self._ownership.is_storage):
                self._check(_uncell(leaf), sliced, path)
            return
        parts = _parts(value)
        if parts is None or (named := _parts(sliced)) is None or parts.keys() != named.keys():
            raise BreakgraphError(
                f"slice_outputs={sliced!r} of {self._name} does not have the form of {path}, a {type(value).__name__}",
                why="it says for each part whether there is a row for each row of the batched inputs",
                remedy="give True, False, or a tuple, list or mapping of these with the parts that are returned",
            )
        for key, part in parts.items():
            self._read_slices(part, named[key], f"{path}[{key!r}]")

    def _check(self, leaf: Any, sliced: bool, path: str) -> None:
        framework = self._ownership.framework(leaf)
        if framework is None or not sliced:
            return
        shape = framework.view(leaf).shape
        if not shape or shape[0] != self._size:
            raise ShapeMismatch(
                f"an array in {path} of {self._name} has shape {shape}, at a size of {self._size} rows",
                why="what a graph of padded rows returns is cut to the real rows, and this has none to cut",
                remedy="say which outputs have a row for each row of the batched inputs:"
                " bg.graphed(slice_outputs=(True, False)), or False for none",
            )
        self._sliced.add(id(leaf))

    def _hold(self, leaf: Any) -> Any:
        array = _uncell(leaf)
        framework = self._ownership.framework(array)
        if framework is not None:
            self._found = True
            held = self._ownership.hold(array)
            region = framework.view(held)
            self._warn_if_stale(region)
            return _Output(framework, held, region, id(array) in self._sliced)
        if is_registered(leaf):
            raise NotCopyable(
                f"{self._name} returned an object of type {type(leaf).__name__}",
                why="its handler copies into a destination, and there is none",
                remedy="return arrays, or tuples, lists, mappings or objects of them",
            )
        if leaf is not None and self._frozen != "allow":
            self._tell_frozen(leaf)
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    def _warn_if_stale(self, region: Region) -> None:
        for one, array in self._stale:
            framework = self._ownership.framework(array)
            if framework is not None and framework.view(array).overlaps(region):
                warn(
                    f"{self._name} returned what {one!r}, called at {one.site}, has handed on (NO_WRITEBACK): no replay"
                    " writes it again, so every later call gets it as it is now. Mend: declare the break with"
                    " dst=bg.INFER"
                )

    def _tell_frozen(self, leaf: object) -> None:
        what = f"{self._name} returned {leaf!r:.80}, which every later call will get as it is now"
        if self._frozen == "refuse":
            raise BreakgraphError(
                what,
                why="only arrays are live at replay (C19)",
                remedy="return arrays, or declare frozen='allow'",
            )
        warn(what)

    # for each call ----------------------------------------------------------------------------------------
    def copied(self, rows: int | None, stream: int) -> Any:
        """The value with new arrays, copied on ``stream``, of the real rows."""
        return self._filled(lambda output: output.copied(rows, stream))

    def in_place(self, rows: int | None, arena: Arena) -> Any:
        """The value with views of where the arrays are; they keep the arena, and not their bytes."""
        return self._filled(lambda output: output.view(rows, arena))

    def _filled(self, fill: Any) -> Any:
        if isinstance(self._template, _Output):
            return fill(self._template)
        # With lists and mappings of its own for each caller, those without an array too.
        return tree.rebuild(self._template, partial(_leaf, fill), objects=True, is_leaf=_is_output, origins={})


class _Output:
    """One array of the result."""

    __slots__ = ("_array", "_framework", "_region", "_sliced")

    def __init__(self, framework: Framework, array: Array, region: Region, sliced: bool) -> None:
        self._framework, self._array, self._region, self._sliced = framework, array, region, sliced

    def _real(self, rows: int | None) -> Region:
        return self._region.rows(0, rows) if self._sliced and rows is not None else self._region

    def copied(self, rows: int | None, stream: int) -> Array:
        framework, source = self._framework, self._real(rows)
        made = framework.empty(source.shape, source.dtype)
        target = framework.view(made)
        if type(made) is not type(self._array):
            made = framework.like(self._array, target, made)
        if not source.contiguous:
            framework.copy(made, framework.over(source), stream)
        elif source.nbytes:
            drivers.current().memcpy_dtod_async(target.ptr, source.ptr, source.nbytes, stream)
        return made

    def view(self, rows: int | None, arena: Arena) -> Array:
        return self._framework.like(self._array, self._real(rows), (arena, self._array))


def _is_output(node: object) -> bool:
    return isinstance(node, _Output)


def _leaf(fill: Any, leaf: Any) -> Any:
    if isinstance(leaf, _Output):
        return fill(leaf)
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _uncell(leaf: Any) -> Any:
    return leaf.array if isinstance(leaf, Cell) else leaf


def _parts(value: Any) -> dict[Any, Any] | None:
    """The parts of a container by index, key or attribute; None for what is none."""
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, Mapping):
        return dict(value)
    return tree.attributes(value) if tree.is_object(value) else None
