"""Who lives where in the arena, from when to when: the history of a capture's blocks on an axis of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from breakgraph.inspect.schema import BlockDescription
from breakgraph.memory import BlockEvent

__all__ = ["memory_map"]


def memory_map(
    history: Sequence[BlockEvent], steps: int, holds: Mapping[tuple[int, int], str]
) -> list[BlockDescription]:
    """The blocks of a capture of so many ``steps``, in the order in which they were made.

    ``holds`` names what lies at an address after a step: its key is (step, address).
    """
    history = [event for event in history if event.step < steps]  # what dies later has outlived the forward
    of_step = Counter(event.step for event in history)
    seen: Counter[int] = Counter()
    blocks: dict[int, BlockDescription] = {}  # by generation
    for step, block, made in history:
        moment = round(step + seen[step] / of_step[step], 4)
        seen[step] += 1
        if made:
            blocks[block.generation] = BlockDescription(
                ptr=block.ptr,
                bytes=block.nbytes,
                spans=[list(span) for span in block.spans],
                made_in=step,
                freed_in=None,
                start=moment,
                end=None,
                holds=holds.get((step, block.ptr), ""),
            )
        elif block.generation in blocks:
            blocks[block.generation]["freed_in"] = step
            blocks[block.generation]["end"] = moment
    return list(blocks.values())
