"""What a captured graph costs in memory."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GraphMemory", "readable"]


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
        None where the capture was not made with ``debug=True``: asking takes about as long as all else of a segment.
    """

    allocated: int = 0
    footprint: int = 0
    live: int = 0
    outputs: int = 0
    execs: int | None = 0


def readable(nbytes: int) -> str:
    """A size with a binary unit: ``512 B``, ``1.5 MiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
