"""Addresses whose bytes have another address too, since their physical memory is mapped more than once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["Aliases"]


class Aliases:
    """Every mapping of physical memory but its first, whose addresses stand for the bytes wherever they are compared.

    Empty, and so false, as long as no physical memory is mapped twice. ``version`` grows with every change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._shifts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start: int, nbytes: int, first: int) -> None:
        """The bytes from ``start`` on are those at ``first``."""
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._ends.insert(at, start + nbytes)
        self._shifts.insert(at, first - start)
        self.version += 1

    def remove(self, start: int) -> None:
        """What was added at ``start`` is no alias any more."""
        at = bisect_left(self._starts, start)
        del self._starts[at], self._ends[at], self._shifts[at]
        self.version += 1

    def pieces(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """The bytes from ``low`` to ``high`` (exclusive) in pieces: from, to, and how far off their first address is.

        Empty where no alias is among them.
        """
        starts, ends = self._starts, self._ends
        at = bisect_right(ends, low)
        if at == len(starts) or starts[at] >= high:
            return []
        found: list[tuple[int, int, int]] = []
        while low < high:
            if at == len(starts) or starts[at] >= high:
                end, shift = high, 0
            elif starts[at] > low:
                end, shift = starts[at], 0
            else:
                end, shift = min(ends[at], high), self._shifts[at]
                at += 1
            if found and found[-1][2] == shift:  # neighbours here and there
                low = found.pop()[0]
            found.append((low, end, shift))
            low = end
        return found
