"""Device memory that outlives a segment: the arena, cells, and the way of a result into its destination."""

from breakgraph.memory.arena import Arena, ArenaBlock, BlockInfo, default_arena
from breakgraph.memory.cell import Cell
from breakgraph.memory.copying import Landing, Plan, copy_output, is_registered, plan_copy

__all__ = [
    "Arena",
    "ArenaBlock",
    "BlockInfo",
    "Cell",
    "Landing",
    "Plan",
    "copy_output",
    "default_arena",
    "is_registered",
    "plan_copy",
]
