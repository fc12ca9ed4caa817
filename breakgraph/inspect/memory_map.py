"""Who lives where in the arena, from when to when: the history of a capture's blocks on an axis of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from breakgraph.inspect.schema import BlockDescription
from breakgraph.memory import BlockEvent

__all__ = ["memory_map"]


def memory_map(
    history: Sequence[BlockEvent], steps: int, holds: Mapping[tuple[int, str], str]
) -> tuple[int, list[BlockDescription]]:
    """The lowest address of the blocks of a capture of so many ``steps``, and they in the order of their making.

    ``holds`` names what lies at an address after a step: its key is (step, address).
    """
    history = [event for event in history if event[0] < steps]  # what dies later has outlived the forward
    of_step = Counter(step for step, _, _ in history)
    seen: Counter[int] = Counter()
    blocks: dict[int, BlockDescription] = {}  # by generation
    base = min((span.ptr for _, block, _ in history for span in block.spans), default=0)
    for step, block, made in history:
        moment = round(step + seen[step] / of_step[step], 4)
        seen[step] += 1
        if made:
            blocks[block.generation] = BlockDescription(
                ptr=hex(block.ptr),
                bytes=block.nbytes,
                spans=[[span.ptr - base, span.nbytes] for span in block.spans],
                made_in=step,
                freed_in=None,
                start=moment,
                end=None,
                holds=holds.get((step, hex(block.ptr)), ""),
            )
        elif block.generation in blocks:
            blocks[block.generation]["freed_in"] = step
            blocks[block.generation]["end"] = moment
    return base, list(blocks.values())
