"""Free address ranges, handed out first fit, so that a freed address is soon used again."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["FreeRanges"]


class FreeRanges:
    """Free ranges between ``start`` and ``end``, coalesced, sorted by address. Sizes in bytes."""

    def __init__(self, start: int, end: int) -> None:
        self._starts = [start]
        self._ends = [end]

    def take(self, nbytes: int) -> int | None:
        """The lowest address with ``nbytes`` free bytes from it, now taken; None if there is none."""
        for at, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            if end - start >= nbytes:
                if end - start == nbytes:
                    del self._starts[at], self._ends[at]
                else:
                    self._starts[at] = start + nbytes
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Make a taken range free again."""
        end = start + nbytes
        at = bisect_left(self._starts, start)
        joins_next = at < len(self._starts) and self._starts[at] == end
        joins_last = at > 0 and self._ends[at - 1] == start
        if joins_last and joins_next:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif joins_last:
            self._ends[at - 1] = end
        elif joins_next:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)
