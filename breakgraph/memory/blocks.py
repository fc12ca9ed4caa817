"""Which bytes of an arena are whose: live blocks, and what may be handed on to whom. Bookkeeping only; no driver."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import NamedTuple

from breakgraph.memory.free_list import FreeList

__all__ = ["BlockInfo", "Blocks", "Span", "fewest"]

_generations = count(1)


class Span(NamedTuple):
    """Bytes of the range: first address and size."""

    ptr: int
    nbytes: int


class BlockInfo(NamedTuple):
    """A live block: address, bytes, a ``generation`` never used twice (C16's identity), its capture and segment.

    ``capture`` is 0 for a block that was made for no capture. ``spans`` are the bytes of the range that lie behind it:
    itself, or the pages that a second mapping shows as one.
    """

    ptr: int
    nbytes: int
    generation: int
    capture: int
    segment: int
    spans: tuple[Span, ...]


class Blocks:
    """The blocks of one range of addresses that grows at its end, page by page.

    Outside a segment a block that dies is free at once. Inside one it is withheld at first, since work forked
    onto another stream may still use it (C28); once all work is joined to the origin it may serve what the origin
    allocates, and when the segment has ended it may serve everyone:

        dies in a segment -> withheld -> within (the origin only) -> free
                                    join                       end

    Where no free span is large enough, free pages from anywhere may be shown as one by mapping them a second time
    (`second_mapping`). All is derived from the live blocks, and is derived anew where an interrupt has
    broken into a change.

    Attributes
    ----------
    dead
        Generations of blocks whose owners have died: destructors append, on any thread and at any point.
    in_segment
        Whether a segment is open; set when one begins, and `end_segment` ends it.
    """

    def __init__(self) -> None:
        self.dead: deque[int] = deque()
        self.used = 0
        self.peak = 0
        self._pages: list[Span] = []  # by address, without gaps
        self._second: list[tuple[int, int, tuple[Span, ...]]] = []  # second mappings: sorted (bytes, address, pages)
        self._live: dict[int, BlockInfo] = {}  # by generation
        self._by_ptr: list[tuple[int, int]] = []  # sorted (address, generation)
        self._free = FreeList()
        self._within = FreeList()
        self._withheld: list[Span] = []
        self.in_segment = False
        self._sound = True

    def new_generation(self) -> int:
        return next(_generations)

    # the range ------------------------------------------------------------------------------------------
    def missing(self, size: int, *, origin: bool) -> int:
        """How many bytes the range must grow by, at least, for a block of ``size`` in one span."""
        with self:
            end = self._pages[-1].ptr + self._pages[-1].nbytes if self._pages else 0
            return size - self._all_for(origin).tail(end)

    def whole_pages(self, *, origin: bool) -> list[Span]:
        """The pages that are wholly free, for the origin or for another stream of the open segment."""
        with self:
            serving = self._all_for(origin)
            return [page for page in self._pages if serving.holds(*page)]

    def adopt(self, pages: Sequence[Span]) -> list[Span]:
        """Take in those pages of the range, at its end, that are new; they were nobody's. Returns them."""
        with self:
            new = list(pages[len(self._pages) :])
            for page in new:
                self._free.give(*page)
                self._pages.append(page)
            return new

    def second_mapping(self, ptr: int, pages: tuple[Span, ...]) -> None:
        """These pages are also mapped one after the other at another address."""
        insort(self._second, (sum(page.nbytes for page in pages), ptr, pages))

    def _all_for(self, origin: bool) -> FreeList:
        """What may serve the origin, neighbours of both kinds joined, or another stream. Only to look at."""
        if not (origin and self._within):
            return self._free
        joined = FreeList()
        for span in (*self._free, *self._within):
            joined.give(*span)
        return joined

    # blocks ---------------------------------------------------------------------------------------------
    def take(self, size: int, generation: int, *, origin: bool, capture: int, segment: int) -> BlockInfo | None:
        """A block of ``size`` bytes for the origin or for another stream of the open segment; None without room."""
        with self:
            ptr = self._take(size) if origin else self._free.take(size)
            if ptr is not None:
                spans: tuple[Span, ...] = (Span(ptr, size),)
            elif (found := self._take_pages(size, self._all_for(origin))) is not None:
                ptr, spans = found
            else:
                return None
            info = self._live[generation] = BlockInfo(ptr, size, generation, capture, segment, spans)
            insort(self._by_ptr, (ptr, generation))
            self.used += size
            self.peak = max(self.peak, self.used)
            return info

    def _take(self, size: int) -> int | None:
        within, free = self._within.fit(size), self._free.fit(size)
        if within is not None and (free is None or within <= free):
            return self._within.take(size)
        if free is not None or not self._within:
            return self._free.take(size)
        ptr = self._all_for(origin=True).take(size)  # neither has room, but joined they may
        if ptr is not None:
            self._remove(Span(ptr, size))
        return ptr

    def _remove(self, span: Span) -> None:
        self._free.remove(*span)
        self._within.remove(*span)

    def _take_pages(self, size: int, serving: FreeList) -> tuple[int, tuple[Span, ...]] | None:
        for at in range(bisect_right(self._second, (size - 1, 1 << 63)), len(self._second)):
            _, ptr, pages = self._second[at]
            if self._fits(size, pages) and all(serving.holds(*page) for page in pages):
                for page in pages:
                    self._remove(page)
                return ptr, pages
        return None

    @staticmethod
    def _fits(size: int, pages: tuple[Span, ...]) -> bool:
        """Whether the size needs all of the pages."""
        return sum(page.nbytes for page in pages) - size < min(page.nbytes for page in pages)

    def at(self, ptr: int) -> BlockInfo | None:
        """The live block that holds an address."""
        with self:
            at = bisect_right(self._by_ptr, (ptr, 1 << 63))
            if not at:
                return None
            info = self._live[self._by_ptr[at - 1][1]]
            return info if ptr < info.ptr + info.nbytes else None

    def live(self) -> tuple[BlockInfo, ...]:
        """The live blocks, lowest first."""
        with self:
            return tuple(self._live[generation] for _, generation in self._by_ptr)

    def collect(self) -> list[BlockInfo]:
        """Take back the blocks whose owners have died. Returns them."""
        collected = []
        while self.dead:
            with self:
                info = self._live.pop(self.dead[0], None)  # None where an interrupt came before it was made
                if info is not None:
                    del self._by_ptr[bisect_right(self._by_ptr, (info.ptr, info.generation)) - 1]
                    self.used -= info.nbytes
                    if self.in_segment:
                        self._withheld += info.spans
                    else:
                        for span in info.spans:
                            self._free.give(*span)
                    collected.append(info)
                self.dead.popleft()
        return collected

    # segments -------------------------------------------------------------------------------------------
    @property
    def withheld(self) -> bool:
        """Whether a block waits for the join."""
        return bool(self._withheld) or not self._sound

    def join(self) -> None:
        """All work captured so far is ordered before what the origin does next."""
        with self:
            for span in self._withheld:
                self._within.give(*span)
            self._withheld = []

    def end_segment(self) -> None:
        """Segments run one after another, so whatever died in this one may serve everyone."""
        if self._withheld or self._within or not self._sound:
            with self:
                for span in (*self._withheld, *self._within):
                    self._free.give(*span)
                self._withheld, self._within, self.in_segment = [], FreeList(), False
        self.in_segment = False

    # interrupts -----------------------------------------------------------------------------------------
    def __enter__(self) -> None:
        """Begin a change of what is derived."""
        if not self._sound:
            self._derive()
        self._sound = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._sound = kind is None  # where the block raised, the next change derives everything anew

    def _derive(self) -> None:
        self._by_ptr = sorted((info.ptr, info.generation) for info in self._live.values())
        self.used = sum(info.nbytes for info in self._live.values())
        gaps = FreeList()
        for page in self._pages:
            gaps.give(*page)
        for info in self._live.values():
            for span in info.spans:
                gaps.cut(*span)
        self._within = FreeList()
        self._free, self._withheld = (FreeList(), [Span(*gap) for gap in gaps]) if self.in_segment else (gaps, [])


def fewest(pages: list[Span], size: int) -> tuple[Span, ...]:
    """Pages that together have ``size`` bytes and no page to spare, in the order of their addresses."""
    left, chosen = size, []
    for page in sorted(pages, key=lambda page: -page.nbytes):
        if left > 0:
            chosen.append(page)
            left -= page.nbytes
    for page in reversed(chosen):  # the smallest first: a large one taken later may have made it needless
        if left + page.nbytes <= 0:
            chosen.remove(page)
            left += page.nbytes
    return tuple(sorted(chosen))
