"""Device memory that outlives a segment: the arena, cells, and the way of a result into its destination."""

from breakgraph.memory.arena import Arena, ArenaBlock, default_arena
from breakgraph.memory.blocks import BlockInfo
from breakgraph.memory.cell import Cell
from breakgraph.memory.copying import Landing, Plan, copy_output, is_registered, plan_copy
from breakgraph.memory.footprint import BlockEvent, Footprint, SegmentUse

__all__ = [
    "Arena",
    "ArenaBlock",
    "BlockEvent",
    "BlockInfo",
    "Cell",
    "Footprint",
    "Landing",
    "Plan",
    "SegmentUse",
    "copy_output",
    "default_arena",
    "is_registered",
    "plan_copy",
]
