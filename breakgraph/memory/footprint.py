"""What one capture asked of its arena: how much in each segment, which bytes over all of them, and when."""

from __future__ import annotations

from bisect import bisect_right
from itertools import count
from typing import NamedTuple

from breakgraph.memory.blocks import BlockInfo

__all__ = ["BlockEvent", "Footprint", "SegmentUse"]

_captures = count(1)


class SegmentUse(NamedTuple):
    """What one segment asked for: how many blocks, how many bytes; a block handed on counts each time."""

    allocations: int
    nbytes: int


_NOTHING = SegmentUse(0, 0)

#: While the capture recorded a step (0 is segment 0, 1 break 0, 2 segment 1) a block was made (True) or taken back.
BlockEvent = tuple[int, BlockInfo, bool]


class Footprint:
    """Filled by the arena while the capture holds it.

    Attributes
    ----------
    capture
        A number never used twice in the process; by it a block tells which capture it was made in. Captures that
        use one arena have theirs in the order of their turns; before its turn a capture has 0.
    label
        What messages call the graph.
    segments
        What each segment ended so far asked for.
    history
        When its blocks were made and taken back, in that order. What is taken back later has outlived the capture.
    in_segment
        Whether what comes next counts for a segment; `end_segment` ends it.
    """

    def __init__(self, label: str = "") -> None:
        self.capture = 0
        self.label = label
        self.segments: list[SegmentUse] = []
        self.history: list[BlockEvent] = []
        self.in_segment = False
        self._open = _NOTHING
        self._blocks: dict[int, int] = {}  # address: bytes, the most at that address
        self._spans: list[tuple[int, int]] | None = None

    @property
    def segment(self) -> int:
        """Index of the segment that is being captured, or that comes next."""
        return len(self.segments)

    def begin(self) -> None:
        """The capture's turn on its arena has come."""
        self.capture = next(_captures)

    @property
    def _step(self) -> int:
        """The step that is being recorded; -1 before the first."""
        return 2 * len(self.segments) - (not self.in_segment)

    def note(self, block: BlockInfo) -> None:
        """A block was made for this capture, by a segment or for the result of a break."""
        self.history.append((self._step, block, True))
        if self.in_segment:
            self._open = SegmentUse(self._open.allocations + 1, self._open.nbytes + block.nbytes)
        for ptr, nbytes in block.spans:
            self._blocks[ptr] = max(nbytes, self._blocks.get(ptr, 0))
        self._spans = None

    def note_end(self, block: BlockInfo) -> None:
        """The arena has taken a block back; it may be another capture's."""
        if block.capture == self.capture:
            self.history.append((self._step, block, False))

    def end_segment(self) -> SegmentUse:
        """Close the account of a segment; what comes next counts for the break after it."""
        ended = self._open
        self._open = _NOTHING
        self.in_segment = False
        self.segments.append(ended)
        return ended

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First byte and the one past the last of each range ever used, sorted and disjoint."""
        if self._spans is None:
            merged: list[tuple[int, int]] = []
            for ptr, nbytes in sorted(self._blocks.items()):
                if merged and ptr <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(merged[-1][1], ptr + nbytes))
                else:
                    merged.append((ptr, ptr + nbytes))
            self._spans = merged
        return self._spans

    @property
    def nbytes(self) -> int:
        """Bytes of the arena that it uses, each counted once."""
        return sum(end - start for start, end in self.spans)

    def covers(self, ptr: int, nbytes: int) -> bool:
        """Whether any of these bytes were ever its own."""
        spans = self.spans
        at = bisect_right(spans, (ptr + nbytes - 1, 1 << 63)) - 1
        return at >= 0 and spans[at][1] > ptr
