"""Values as they were at one place of the forward: device arrays read to the host, compared, written back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from breakgraph import frameworks
from breakgraph.driver import Driver, Region
from breakgraph.frameworks.runs import runs
from breakgraph.memory import Cell, tree

__all__ = ["Device", "Mismatch", "Reading", "Tolerance", "spoiled"]

Host = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reading:
    """One array, or one value of the host (``ptr`` is 0), by the name that the forward has for it."""

    name: str
    ptr: int
    value: Any


@dataclass(frozen=True)
class Mismatch:
    """One element that differs, and how many do."""

    index: tuple[int, ...]
    eager: object
    replay: object
    count: int
    size: int


@dataclass(frozen=True)
class Tolerance:
    """How far floats may differ, as of ``numpy.isclose``; by 0 they are compared bit by bit."""

    atol: float = 0.0
    rtol: float = 0.0

    def mismatch(self, eager: Any, replay: Any) -> Mismatch | None:
        """Where two values differ. Of a longer first axis at replay the leading rows are meant (C15)."""
        if not (isinstance(eager, np.ndarray) and isinstance(replay, np.ndarray)):
            return None if _same(eager, replay) else Mismatch((), eager, replay, 1, 1)
        if eager.ndim and eager.ndim == replay.ndim and eager.shape[0] < replay.shape[0]:
            replay = replay[: eager.shape[0]]
        if eager.shape != replay.shape or eager.dtype != replay.dtype:
            ours, theirs = (f"{one.dtype} of shape {one.shape}" for one in (eager, replay))
            return Mismatch((), ours, theirs, eager.size, eager.size)
        differ = self._differ(eager, replay)
        count = int(differ.sum())
        if not count:
            return None
        index = tuple(map(int, np.unravel_index(int(np.argmax(differ)), differ.shape))) if differ.ndim else ()
        return Mismatch(index, eager[index], replay[index], count, eager.size)

    def _differ(self, eager: Host, replay: Host) -> Host:
        if (self.atol or self.rtol) and eager.dtype.kind in "fc":
            return ~np.isclose(replay, eager, rtol=self.rtol, atol=self.atol, equal_nan=True)
        return (_bits(eager) != _bits(replay)).any(axis=-1)  # type: ignore[no-any-return]


class Device:
    """Reads and writes arrays of whichever library, on one stream, and waits for the whole device before it reads."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self._stream = driver, stream

    def arrays(self, value: object, *, objects: bool = False) -> list[Any]:
        """The device arrays in a value, those of cells too."""
        return [leaf for leaf in self._leaves(value, objects) if self._framework(leaf) is not None]

    def read(self, value: object, name: str, *, plain: bool = False, wait: bool = True) -> list[Reading]:
        """Each array in a value as it is now, with ``plain`` also each value of the host, in order.

        Without ``wait`` only for the stream, as a caller would who reads what a replay on it gave.
        """
        if wait:
            self._driver.synchronize()
        leaves = [leaf for leaf in self._leaves(value, plain) if plain or self._framework(leaf) is not None]
        names = [name] if len(leaves) == 1 else [f"{name}[{at}]" for at in range(len(leaves))]
        return [self._reading(one, leaf) for one, leaf in zip(names, leaves, strict=True)]

    def region(self, array: Any) -> Region:
        """Where an array lies."""
        region: Region = self._framework(array).view(array)
        return region

    def address(self, array: Any) -> int:
        """Of its first byte."""
        return self.region(array).bounds[0]

    def write(self, array: Any, host: Host) -> None:
        """Set the elements of an array of whatever strides."""
        packed = np.ascontiguousarray(host)
        region = self.region(array)
        for (there, here), nbytes in runs(region, _region_of(packed, region)):
            self._driver.memcpy_htod_async(there, here, nbytes, self._stream)
        self._driver.stream_synchronize(self._stream)

    def spoil(self, array: Any, known: Any) -> None:
        """Give each element a value that it does not have to have: every bit is the other one of ``known``."""
        if isinstance(known, np.ndarray) and self.region(array).shape == known.shape:
            self.write(array, spoiled(known))

    def _reading(self, name: str, leaf: Any) -> Reading:
        if self._framework(leaf) is None:
            return Reading(name, 0, leaf.copy() if isinstance(leaf, np.ndarray) else leaf)
        region = self.region(leaf)
        host = np.empty(region.shape, region.dtype)
        for (here, there), nbytes in runs(_region_of(host, region), region):
            self._driver.memcpy_dtoh_async(here, there, nbytes, self._stream)
        self._driver.stream_synchronize(self._stream)
        return Reading(name, region.bounds[0], host)

    def _leaves(self, value: object, objects: bool) -> Iterable[Any]:
        def is_leaf(node: object) -> bool:
            return isinstance(node, Cell) or self._framework(node) is not None

        found = tree.leaves(value, objects=objects, is_leaf=is_leaf)
        return [leaf.array if isinstance(leaf, Cell) else leaf for leaf in found]

    def _framework(self, node: object) -> Any:
        return frameworks.of(node, self._driver)


def spoiled(known: Host) -> Host:
    """The host array with every bit turned."""
    return (~_bits(known)).reshape(-1).view(known.dtype).reshape(known.shape)


def _bits(host: Host) -> Host:
    """The bytes of each element, along one more axis."""
    packed = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    return packed.reshape(*host.shape, host.dtype.itemsize)


def _region_of(host: Host, like: Region) -> Region:
    return Region.contiguous_at(host.ctypes.data, like.shape, like.dtype)


def _same(eager: Any, replay: Any) -> bool:
    if eager is replay:
        return True
    try:
        return bool(eager == replay) or (eager != eager and replay != replay)
    except Exception:  # an object that cannot be compared tells nothing
        return True
