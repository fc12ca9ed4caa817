"""Breakable CUDA graph capture: a forward as graph segments split at plain Python breaks. No torch.

The names below are the public API; README.md says what they promise.
"""

from breakgraph import driver, errors
from breakgraph import inspect as inspect  # not in __all__, where it would hide the standard library's
from breakgraph.frameworks import array_namespace
from breakgraph.memory import Arena, Cell, copy_output
from breakgraph.segments.break_points import break_graph, break_here, break_point
from breakgraph.segments.capture import capture
from breakgraph.segments.context import active_forward, current_forward, current_valid_rows
from breakgraph.segments.destinations import IN_PLACE, INFER, NO_WRITEBACK
from breakgraph.segments.execs import ExecCache
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.padding import scrub_padding_tail, size_ladder, slice_to_real_rows
from breakgraph.segments.state import current_stream, is_capturing
from breakgraph.service.graphed import graphed

__version__ = "0.1.0"

__all__ = [
    "INFER",
    "IN_PLACE",
    "NO_WRITEBACK",
    "Arena",
    "BreakableGraph",
    "Cell",
    "ExecCache",
    "active_forward",
    "array_namespace",
    "break_graph",
    "break_here",
    "break_point",
    "capture",
    "copy_output",
    "current_forward",
    "current_stream",
    "current_valid_rows",
    "driver",
    "errors",
    "graphed",
    "is_capturing",
    "scrub_padding_tail",
    "size_ladder",
    "slice_to_real_rows",
]
