"""S7: accesses that no stream, event, edge or host wait orders.

Each stream is a lane with a counter, and a clock tells how far of each lane lies before a point of it (a
vector clock). An access is ordered before another if the other one's clock has reached it. What the host
has waited for lies before everything enqueued later, and is forgotten.

Bytes that have several addresses are compared at those of the first mapping of their physical memory. Mappings are
taken as they are at the comparison: whatever is still compared then has the mapping that it was enqueued with, or
its end was a race with the unmap.

A wait counts for every host thread: the driver cannot see how threads hand work to each other, and a wait
that returned before a call was made is before it, whichever thread made it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from breakgraph.driver.region import Region
from breakgraph.driver.sim.aliases import Aliases
from breakgraph.errors import BreakgraphWarning

__all__ = ["Access", "Clock", "Footprint", "Lane", "Race", "RaceFinder", "RaceWarning"]

Clock = dict[int, int]

_MOST = 50_000  # accesses remembered per lane between two host waits; beyond it the oldest are forgotten


class RaceWarning(BreakgraphWarning):
    """Two operations touch the same bytes, one of them writes, and nothing orders them."""


class Access(NamedTuple):
    """Bytes from ``low`` to ``high`` (exclusive), read or written by the operation ``name``.

    ``region`` tells which of them, where they do not lie next to each other.
    """

    low: int
    high: int
    write: bool
    name: str
    region: Region | None = None

    @classmethod
    def of(cls, region: Region, write: bool, name: str) -> Access:
        low, high = region.bounds
        return cls(low, high, write, name, None if region.contiguous else region)

    def conflicts(self, other: Access) -> bool:
        """Whether both touch one byte, one of them writing."""
        if not (self.low < other.high and other.low < self.high and (self.write or other.write)):
            return False
        if self.region is None and other.region is None:
            return True
        return _region(self).overlaps(_region(other))

    def within(self, low: int, high: int, shift: int) -> Access:
        """The part from ``low`` to ``high``, at ``shift`` bytes from there.

        A strided region goes with it whole, so of two such parts it is only known whether the wholes overlap.
        """
        region = self.region
        if region is not None and shift:
            region = replace(region, ptr=region.ptr + shift)
        return Access(low + shift, high + shift, self.write, self.name, region)


@dataclass(frozen=True)
class Race:
    """Two operations and the first run of bytes, ``start`` to ``end`` (exclusive), that both touch.

    Where the bytes have several addresses, these are the ones of the first mapping.
    ``streams`` are the handles of the streams they were enqueued on (0 for a call that acts at once, such
    as an unmap).
    """

    first: str
    second: str
    streams: tuple[int, int]
    start: int
    end: int

    def __str__(self) -> str:
        one, two = self.streams
        return (
            f"race: {self.first} (stream {one:#x}) and {self.second} (stream {two:#x}) touch the"
            f" {self.end - self.start} bytes at {self.start:#x}, one of them writes, and nothing orders them"
        )


class Lane:
    """One stream's place in the order of things. Its clock is the `RaceFinder`'s business."""

    __slots__ = ("clock", "epoch", "id", "version")

    _ids = count(1)

    def __init__(self) -> None:
        self.id = next(Lane._ids)
        self.clock: Clock = {}
        self.version = 0  # of what the host knows, as far as it is in the clock already
        self.epoch = 0


class Footprint:
    """What an operation, or all nodes of a graph together, touch. Kept, it is cheaper at the next launch."""

    __slots__ = ("_bounds", "_resolved", "_version", "accesses", "high", "low")

    def __init__(self, accesses: Sequence[Access]) -> None:
        self.accesses = accesses
        self.low = min((access.low for access in accesses), default=0)
        self.high = max((access.high for access in accesses), default=0)
        self._bounds: tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], ...] | None = None
        self._version = 0
        self._resolved: Footprint | None = None  # None where it is this one

    def overlapping(self, access: Access) -> Iterable[Access]:
        """The accesses whose outer bounds meet those of ``access``."""
        if access.low >= self.high or access.high <= self.low:
            return ()
        if len(self.accesses) < 32:
            return self.accesses
        if self._bounds is None:
            self._bounds = (
                np.array([one.low for one in self.accesses], np.uint64),
                np.array([one.high for one in self.accesses], np.uint64),
            )
        lows, highs = self._bounds
        return [self.accesses[at] for at in np.flatnonzero((lows < access.high) & (highs > access.low)).tolist()]

    def resolved(self, aliases: Aliases) -> Footprint:
        """The same bytes at the addresses at which they are compared; the same object until those change."""
        if not aliases:
            return self
        if self._version != aliases.version:
            self._version = aliases.version
            accesses = _resolved(self.accesses, aliases)
            if accesses is self.accesses:
                self._resolved = None
            elif self._resolved is None or self._resolved.accesses != accesses:
                self._resolved = Footprint(accesses)
        return self if self._resolved is None else self._resolved


class _Batch:
    """What one operation, or one launch of a graph, touched."""

    __slots__ = ("at", "footprint", "stream")

    def __init__(self, at: int, stream: int, footprint: Footprint) -> None:
        self.at = at
        self.stream = stream
        self.footprint = footprint


class RaceFinder:
    """Remembers accesses that the host has not waited for, and compares new ones with those unordered to them."""

    def __init__(self, aliases: Aliases) -> None:
        self.aliases = aliases
        self.races: list[Race] = []
        self.fresh: list[Race] = []  # found, and not yet warned about
        self._pairs: set[tuple[str, str, int]] = set()
        self._known: Clock = {}
        self._version = 0
        self._epoch = 0
        self._history: dict[int, dict[Hashable, _Batch]] = {}
        self._counts: dict[int, int] = {}

    def join(self, lane: Lane, clock: Clock) -> None:
        """What lies before ``clock`` lies before the lane's next operation."""
        self._enter(lane)
        _raise_to(lane.clock, clock)

    def snapshot(self, lane: Lane) -> Clock:
        """What lies before the lane's next operation, now."""
        return dict(lane.clock)

    def touch(self, lane: Lane, stream: int, touched: Sequence[Access] | Footprint, key: Hashable = None) -> None:
        """An operation on the lane touches bytes. A later one with the same key stands for the earlier ones."""
        footprint = touched if isinstance(touched, Footprint) else Footprint(touched)
        accesses = footprint.accesses
        if not accesses:
            return
        self._enter(lane)
        at = self._counts[lane.id] = self._counts.get(lane.id, 0) + 1
        lane.clock[lane.id] = at
        batch = _Batch(at, stream, footprint)
        self._compare(batch, lane.clock)
        history = self._history.setdefault(lane.id, {})
        identity = (stream, accesses) if key is None else key
        history.pop(identity, None)  # so that a dictionary is in the order of `at`
        history[identity] = batch
        if len(history) > _MOST:
            del history[next(iter(history))]

    def touch_now(self, access: Access) -> None:
        """The host itself acts on bytes (an unmap): a race with whatever it has not waited for."""
        self._compare(_Batch(0, 0, Footprint((access,))), self._known)

    def waited(self, clock: Clock) -> None:
        """The host has waited for everything that lies before ``clock``."""
        if not _raise_to(self._known, clock):
            return
        self._version += 1
        for lane in list(clock.keys() & self._history.keys()):
            history, reached = self._history[lane], self._known[lane]
            while history:
                oldest = next(iter(history))
                if history[oldest].at > reached:
                    break
                del history[oldest]
            if not history:
                del self._history[lane]
        if not self._history:  # nothing is left to compare with: all clocks may start afresh
            self._epoch += 1
            self._known = {}

    def has_waited(self, clock: Clock) -> bool:
        """Whether the host has waited for everything that lies before ``clock``, as far as it still matters."""
        return all(self._known.get(lane, 0) >= reached for lane, reached in clock.items() if lane in self._history)

    def within_graph(self, accesses: Sequence[Sequence[Access]], before: Sequence[int]) -> None:
        """Compare the nodes of one graph. ``before[i]`` has a bit for each node ordered before node i."""
        if self.aliases:
            accesses = [_resolved(all_, self.aliases) for all_ in accesses]
        touched = sorted(((access, node) for node, all_ in enumerate(accesses) for access in all_), key=_by_low)
        open_: list[tuple[Access, int]] = []
        for access, node in touched:
            open_ = [(other, at) for other, at in open_ if other.high > access.low]
            for other, at in open_:
                first, second = (at, node) if at < node else (node, at)
                if first != second and not before[second] >> first & 1 and access.conflicts(other):
                    self._report(*((other, access) if at < node else (access, other)), (0, 0))
            open_.append((access, node))

    def _enter(self, lane: Lane) -> None:
        if lane.epoch != self._epoch:
            lane.epoch = self._epoch
            lane.clock = {}
        if lane.version != self._version:
            lane.version = self._version
            _raise_to(lane.clock, self._known)

    def _compare(self, batch: _Batch, clock: Clock) -> None:
        aliases = self.aliases
        new = batch.footprint.resolved(aliases)
        for lane, history in self._history.items():
            reached = clock.get(lane, 0)
            for earlier in reversed(history.values()):
                if earlier.at <= reached:
                    break  # and so is everything before it on that lane
                old = earlier.footprint.resolved(aliases) if aliases else earlier.footprint
                if old.low >= new.high or new.low >= old.high:
                    continue
                for access in new.accesses:
                    for other in old.overlapping(access):
                        if access.conflicts(other):
                            self._report(other, access, (earlier.stream, batch.stream))

    def _report(self, first: Access, second: Access, streams: tuple[int, int]) -> None:
        low, high = max(first.low, second.low), min(first.high, second.high)
        if (first.name, second.name, low) in self._pairs:
            return
        self._pairs.add((first.name, second.name, low))
        race = Race(first.name, second.name, streams, low, high)
        self.races.append(race)
        self.fresh.append(race)


def _raise_to(clock: Clock, other: Clock) -> bool:
    """Raise a clock to another one where that one is further; whether it was."""
    grew = False
    for lane, reached in other.items():
        if clock.get(lane, 0) < reached:
            clock[lane] = reached
            grew = True
    return grew


def _by_low(item: tuple[Access, int]) -> int:
    return item[0].low


def _resolved(accesses: Sequence[Access], aliases: Aliases) -> Sequence[Access]:
    """The accesses with each part that goes through an alias at its first address; the same object if none does."""
    found: list[Access] = []
    for at, access in enumerate(accesses):
        pieces = aliases.pieces(access.low, access.high)
        if pieces and not found:
            found += accesses[:at]
        if pieces:
            found += (access.within(*piece) for piece in pieces)
        elif found:
            found.append(access)
    return tuple(found) if found else accesses


def _region(access: Access) -> Region:
    if access.region is not None:
        return access.region
    return Region.contiguous_at(access.low, (access.high - access.low,), np.dtype(np.uint8))
