"""Where a break lands (C13): the three forms that are not an array, and what a capture remembers of each."""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from breakgraph import frameworks
from breakgraph.driver import Driver, Region
from breakgraph.errors import AliasedDestination
from breakgraph.frameworks.base import Array, Framework
from breakgraph.memory import Arena, Cell, Landing, is_registered, plan_copy, tree
from breakgraph.segments.landing import Place, direct_landing

__all__ = ["HANDED_ON", "INFER", "IN_PLACE", "NO_WRITEBACK", "WRITTEN", "Claims", "Destination", "Landed", "Ownership"]


class Destination(enum.Enum):
    """A destination that is a rule, not an array (C13)."""

    INFER = "infer"
    IN_PLACE = "in_place"
    NO_WRITEBACK = "no_writeback"

    def __repr__(self) -> str:
        return f"bg.{self.name}"


INFER = Destination.INFER  #: the library makes a destination like the first result; None means IN_PLACE
IN_PLACE = Destination.IN_PLACE  #: the function writes its arguments itself
NO_WRITEBACK = Destination.NO_WRITEBACK  #: the value is handed on, and replay writes nothing back

_NOTHING = object()
_NONE: Mapping[Any, Any] = MappingProxyType({})


class Landed(NamedTuple):
    """How one break landed at capture, and all that replay needs to land there again.

    ``kept`` is the destination as the closure holds it, ``targets`` its arrays: those that replay writes.
    It is a copy, so that an entry rebound later is not written in place of the one that was baked; ``origins`` are
    the caller's containers, in which plain values are set. A function that writes its destination itself (``out=``)
    may return None. ``stale`` are arrays of a first result that was handed on, which no replay writes again.
    """

    landing: Landing
    kept: Any = _NOTHING
    inferred: bool = False
    written_by_function: bool = False
    handed_on: Mapping[str, object] = _NONE
    origins: Mapping[int, Any] = _NONE
    targets: tuple[Array, ...] = ()
    stale: tuple[Array, ...] = ()

    @property
    def copies(self) -> bool:
        """Whether there is a destination to copy to."""
        return self.kept is not _NOTHING

    def landing_at(self, place: Place) -> Callable[[object], None] | None:
        """What takes the result of a replay to its destination, on the stream of ``place``; None where nothing does."""
        if not self.copies:
            return None

        def land(result: object) -> None:
            if not (result is None and self.written_by_function):
                plan_copy(self.kept, result, inferred=self.inferred, origins=self.origins).run(place.stream)

        return direct_landing(self.kept, place, land)

    @property
    def form(self) -> str:
        """The destination as the call stated it, or its type; ``none`` for a break without a function."""
        if self.landing is Landing.BARE:
            return "none"
        if self.inferred:
            return repr(INFER)
        for rule in (IN_PLACE, NO_WRITEBACK):
            if self.landing.value == rule.value:
                return repr(rule)
        return type(self.kept).__name__


HANDED_ON = Landed(Landing.NO_WRITEBACK)  #: of a function without a result, which would go nowhere
WRITTEN = Landed(Landing.IN_PLACE)  #: of a function that has written what it names to nobody


class Ownership:
    """Which arrays a capture's closures may own (C17, C18).

    What this capture allocated from its arena is held without being kept alive: an earlier step writes it
    again before the closure reads it, and its block serves others once the forward has dropped it.
    """

    def __init__(self, driver: Driver, arena: Arena, capture: int) -> None:
        self.inferred: set[int] = set()  # generations of the blocks that `infer` made
        self._driver, self._arena, self._capture = driver, arena, capture

    def framework(self, obj: object) -> Framework | None:
        return frameworks.of(obj, self._driver)

    def is_array(self, obj: object) -> bool:
        return frameworks.of(obj, self._driver) is not None

    def hold(self, array: Array) -> Array:
        """The array as a closure holds it."""
        framework = frameworks.of(array, self._driver)
        if framework is None:
            return array
        region = framework.view(array)
        block = self._arena.block_at(region.ptr)
        if block is None or block.capture != self._capture:
            return array
        return framework.like(array, region)

    def generation(self, region: Region) -> int:
        """The generation of the arena block that holds a region; 0 outside the arena, where closures own."""
        block = self._arena.block_at(region.ptr)
        return block.generation if block else 0

    def infer(self, result: Any) -> tuple[Any, list[Array]]:
        """A destination of the result's form, and those of its arrays that are new.

        New arrays are arena blocks, owned by the arrays themselves. A cell lies at an address that replay keeps
        already, so it is its own destination.
        """
        made: list[Array] = []

        def place(leaf: Any) -> Any:
            framework = frameworks.of(leaf, self._driver)
            if framework is None:
                return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
            region = framework.view(leaf)
            block = self._arena.allocate(region.nbytes)
            self.inferred.add(block.generation)
            made.append(framework.like(leaf, Region.contiguous_at(block.ptr, region.shape, region.dtype), block))
            return made[-1]

        return tree.rebuild(result, place, objects=True, is_leaf=self.is_storage), made

    def is_storage(self, node: object) -> bool:
        """Whether a destination's walk ends here: an array, a cell, or a type that `copy_output` was taught."""
        return self.is_array(node) or isinstance(node, Cell) or is_registered(node)

    def snapshot(self, destination: Any) -> tuple[Any, dict[int, Any]]:
        """A caller's destination as the closure holds it, and the containers of the caller that it stands for."""
        origins: dict[int, Any] = {}
        held = tree.rebuild(destination, self.hold, objects=True, is_leaf=self.is_storage, origins=origins)
        return held, origins

    def targets(self, destination: object, *, shared: bool = True) -> list[Array]:
        """The device arrays of a destination tree, with or without those of shared cells."""
        if isinstance(destination, Destination):
            return []

        def is_leaf(node: object) -> bool:
            return isinstance(node, Cell) or self.is_array(node)

        found = list(tree.leaves(destination, objects=True, is_leaf=is_leaf))
        cells = [leaf.array for leaf in found if isinstance(leaf, Cell) and (shared or not leaf.shared)]
        return cells + [leaf for leaf in found if self.is_array(leaf)]


class Claims:
    """The places in which the breaks of one capture land: no two may overlap (C16).

    A place is bytes of one live allocation. Outside the arena the closures keep destinations alive, so there
    an address says all; in the arena the block's generation does, since an address may serve again.
    """

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._places: dict[int, _Places] = {}

    def claim(self, destination: object, name: str) -> None:
        """Take a destination for a break; ``name`` is its index and function.

        Raises `AliasedDestination`, naming both breaks, where one of its arrays overlaps an earlier claim.
        """
        claimed = []
        for array in self._ownership.targets(destination, shared=False):  # for shared cells the caller vouches
            framework = self._ownership.framework(array)
            assert framework is not None  # targets() yields nothing else
            region = framework.view(array)
            places = self._places.setdefault(self._ownership.generation(region), _Places())
            if (holder := places.holder(region)) is not None:
                raise AliasedDestination(
                    f"break {name} would land at {region.ptr:#x}, where break {holder} lands already",
                    why="at replay the second result would overwrite the first, which segments may still read (C16)",
                    remedy="give each break a destination of its own, or bg.Cell(..., shared=True) if each result is"
                    " consumed before the next one lands",
                )
            claimed.append((places, region))
        for places, region in claimed:  # after the checks: arrays of one destination may overlap
            places.add(region, name)


class _Places:
    """Claimed regions of one allocation, by address, so that thousands of them stay cheap to search."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int]] = []  # (first byte, index)
        self._regions: list[tuple[Region, str]] = []
        self._longest = 0

    def holder(self, region: Region) -> str | None:
        low, high = region.bounds
        for _, index in islice(self._sorted, bisect_left(self._sorted, (low - self._longest, 0)), None):
            other, name = self._regions[index]
            if other.bounds[0] >= high:
                return None
            if other.overlaps(region):
                return name
        return None

    def add(self, region: Region, name: str) -> None:
        low, high = region.bounds
        insort(self._sorted, (low, len(self._regions)))
        self._regions.append((region, name))
        self._longest = max(self._longest, high - low)
