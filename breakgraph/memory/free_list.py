"""Which bytes of a range are free: best fit, neighbours joined. Bookkeeping only; no driver."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

__all__ = ["FreeList"]


class FreeList:
    """Free spans by address, in bytes.

    `take` gives the smallest span that fits (the lowest of equals), so that a large span is kept whole for
    a large request; `give` joins a span with its free neighbours at once.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted
        self._sizes: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []  # sorted (size, start)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(start, size) of each span, lowest first."""
        return ((start, self._sizes[start]) for start in self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def fit(self, size: int) -> int | None:
        """Bytes of the span that `take` would cut from, None where no span is large enough."""
        at = bisect_left(self._by_size, (size, -1))
        return None if at == len(self._by_size) else self._by_size[at][0]

    def take(self, size: int) -> int | None:
        """Start of ``size`` bytes that are free no more, None where no span is large enough."""
        at = bisect_left(self._by_size, (size, -1))
        if at == len(self._by_size):
            return None
        span, start = self._by_size[at]
        self._remove(start)
        if span > size:
            self._insert(start + size, span - size)
        return start

    def holds(self, start: int, size: int) -> bool:
        """Whether all of these bytes are free."""
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and self._starts[at] + self._sizes[self._starts[at]] >= start + size

    def cut(self, start: int, size: int) -> None:
        """Make these bytes, all of which are free, free no more."""
        span = self._starts[bisect_right(self._starts, start) - 1]
        end = span + self._remove(span)
        if span < start:
            self._insert(span, start - span)
        if start + size < end:
            self._insert(start + size, end - start - size)

    def remove(self, start: int, size: int) -> None:
        """Make those of these bytes that are free, free no more."""
        end = start + size
        for span in [one for one in self._starts if one < end and one + self._sizes[one] > start]:
            low, high = max(span, start), min(span + self._sizes[span], end)
            self.cut(low, high - low)

    def give(self, start: int, size: int) -> None:
        """Make ``size`` bytes at ``start`` free."""
        at = bisect_right(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            size += self._remove(self._starts[at])
        if at and (before := self._starts[at - 1]) + self._sizes[before] == start:
            start, size = before, self._remove(before) + size
        self._insert(start, size)

    def tail(self, end: int) -> int:
        """Bytes free directly below ``end``."""
        if self._starts and self._starts[-1] + self._sizes[self._starts[-1]] == end:
            return self._sizes[self._starts[-1]]
        return 0

    def _insert(self, start: int, size: int) -> None:
        insort(self._starts, start)
        insort(self._by_size, (size, start))
        self._sizes[start] = size

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        del self._by_size[bisect_left(self._by_size, (size, start))]
        return size
