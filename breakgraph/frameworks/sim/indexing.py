"""``x[index]`` and ``x[index] = value``: views for basic indices, one kernel for index arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from breakgraph.frameworks.sim.functions import assign, call
from breakgraph.frameworks.sim.hostcopy import download, upload
from breakgraph.frameworks.sim.kernels import view_of
from breakgraph.frameworks.sim.storage import HostArray, S, Storage

__all__ = ["read", "write"]


def read(array: S, index: Any) -> S:
    """A view for integers, slices, None and an ellipsis; a new array for integer or boolean index arrays.

    A boolean array's result has as many elements as it has true ones: as on cupy they are counted, and the
    host waits for the count.
    """
    entries = _entries(array, index)
    if _is_basic(entries):
        return _basic(array, entries)
    if any(isinstance(entry, Storage) and entry.dtype.kind == "b" for entry in entries):
        entries = _without_masks(entries)
    found: S = call(_take, (array, entries), {})
    return found


def write(array: Storage, index: Any, value: Any) -> None:
    """Write a device array or a scalar, broadcasting; a host array is refused, as on cupy."""
    entries = _entries(array, index)
    if _is_basic(entries):
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill: use set()")
        assign(_basic(array, entries), value)
    elif len(entries) == 1 and isinstance(entries[0], Storage) and entries[0].dtype.kind == "b":
        mask = entries[0]
        spread = call(np.reshape, (mask, mask.shape + (1,) * (array.ndim - mask.ndim)), {})
        assign(array, value, where=spread, name="put")
    else:
        call(_put, (array, entries, value), {}, array)


def _entries(array: Storage, index: Any) -> tuple[Any, ...]:
    """The index as a tuple; its lists and host arrays as device arrays, as cupy sends them to the device."""
    entries = index if isinstance(index, tuple) else (index,)
    return tuple(
        upload(array, np.asarray(entry, None if np.size(entry) else np.intp))
        if isinstance(entry, (list, np.ndarray))
        else entry
        for entry in entries
    )


def _is_basic(entries: tuple[Any, ...]) -> bool:
    return not any(isinstance(entry, (Storage, bool, np.bool_)) for entry in entries)


def _basic(array: S, entries: tuple[Any, ...]) -> S:
    if not any(entry is Ellipsis for entry in entries):
        entries = (*entries, ...)  # so that even one element is a view
    view = view_of(array, lambda host: host[entries])
    assert view is not None
    return view


def _without_masks(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, Storage) and entry.dtype.kind == "b":
            places = np.nonzero(download(entry))
            found += [upload(entry, np.ascontiguousarray(place)) for place in places]
        else:
            found.append(entry)
    return tuple(found)


def _take(array: HostArray, entries: tuple[Any, ...]) -> HostArray:
    taken: HostArray = array[_wrapped(entries, array.shape)]
    return taken


def _put(array: HostArray, entries: tuple[Any, ...], value: Any) -> None:
    array[_wrapped(entries, array.shape)] = value


def _wrapped(entries: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Index arrays taken modulo their axis, since a kernel cannot raise (cupy does the same)."""
    consumed = sum(_axes(entry) for entry in entries)
    axis, found = 0, []
    for entry in entries:
        if entry is Ellipsis:
            axis += len(shape) - consumed
        elif isinstance(entry, np.ndarray) and entry.dtype.kind in "iu":
            entry = entry % max(shape[axis], 1)
            axis += 1
        else:
            axis += _axes(entry)
        found.append(entry)
    return tuple(found)


def _axes(entry: Any) -> int:
    if entry is None or entry is Ellipsis or isinstance(entry, (bool, np.bool_)):
        return 0
    if isinstance(entry, np.ndarray) and entry.dtype.kind == "b":
        return entry.ndim
    if not isinstance(entry, (slice, np.ndarray)):
        operator.index(entry)
    return 1
