"""Arrays made in a segment that are alive when the capture closes (C18).

Most are what the forward returned. But a table that was built at first use and is kept for later, or an FFT plan's
buffer, is made once and read for ever, and a graph captured earlier may use the same bytes as scratch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from breakgraph.memory import Arena, Footprint

__all__ = ["Survivor", "find_survivors"]


class Survivor(NamedTuple):
    """An arena block that outlives the capture: address, bytes, the segment that made it.

    ``overwritten_by`` names graphs captured earlier whose replays use the same bytes.
    """

    ptr: int
    nbytes: int
    segment: int
    overwritten_by: tuple[str, ...]


def find_survivors(arena: Arena, footprint: Footprint, inferred: Collection[int]) -> tuple[Survivor, ...]:
    """The live blocks of a capture that are not destinations of its breaks (``inferred``: their generations)."""
    earlier = arena.captured_before(footprint)
    return tuple(
        Survivor(
            block.ptr,
            block.nbytes,
            block.segment,
            tuple(one.label for one in earlier if any(one.covers(*span) for span in block.spans)),
        )
        for block in arena.blocks_of(footprint.capture)
        if block.generation not in inferred
    )
