"""What a captured graph costs in memory, and its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from breakgraph.segments.steps import Break, Segment

if TYPE_CHECKING:
    from breakgraph.segments.graph import BreakableGraph

__all__ = ["GraphMemory", "readable", "report"]


@dataclass(frozen=True)
class GraphMemory:
    """Bytes that one captured graph accounts for.

    Attributes
    ----------
    allocated
        What its segments asked the arena for, all together; a block that is handed on counts each time.
    footprint
        Bytes of the arena that its segments and breaks use, each once; shared with the arena's other graphs.
    live
        Bytes of the arena that its arrays still hold.
    outputs
        Memory of its own, made by `BreakableGraph.output`.
    execs
        Device memory that instantiating its execs took, as the driver reports it: what other threads and programs
        allocate in the same moment counts too, and an exec that fits into what the driver has spare counts as nothing.
    """

    allocated: int = 0
    footprint: int = 0
    live: int = 0
    outputs: int = 0
    execs: int = 0


def report(graph: BreakableGraph) -> str:
    """A table of a graph's steps, and its accounts below."""
    lines = [repr(graph)]
    rows = [("step", "what", "nodes", "allocated", "landing", "called at")]
    for step in graph.steps:
        if isinstance(step, Segment):
            what = "segment, shared exec" if step.shared else "segment"
            rows.append((str(step.index), what, str(step.nodes), readable(step.allocated), "", ""))
        elif isinstance(step, Break):
            rows.append(("", f"break {step.index} {step.name!r}", "", "", str(step.landing), step.site))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    memory = graph.memory
    lines.append(
        f"memory: {readable(memory.footprint)} of the arena ({readable(memory.live)} live), {readable(memory.outputs)}"
        f" outputs, {readable(memory.execs)} execs"
    )
    if graph.arena is not None:
        lines.append(f"arena: {graph.arena!r}")
    for one in graph.survivors:
        also = f", overwritten by {', '.join(one.overwritten_by)}" if one.overwritten_by else ""
        lines.append(f"outlives the capture: {readable(one.nbytes)} made in segment {one.segment}{also}")
    return "\n".join(lines)


def readable(nbytes: int) -> str:
    """A size with a binary unit: ``512 B``, ``1.5 MiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
