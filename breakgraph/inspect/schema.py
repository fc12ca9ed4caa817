"""The description of a captured graph as plain data: what a JSON file of `BreakableGraph.save_trace` holds.

Sizes are bytes, times microseconds. Addresses and handles are hexadecimal text, since many readers of JSON take
numbers for doubles, which have 53 bits. A change that an older reader would misread raises `SCHEMA`; keys that are
added do not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal, TypedDict, cast

from breakgraph.errors import BreakgraphError

__all__ = [
    "SCHEMA",
    "BlockDescription",
    "BreakDescription",
    "GraphDescription",
    "MemoryDescription",
    "NodeDescription",
    "SegmentDescription",
    "StepDescription",
    "Times",
    "load",
]

SCHEMA = 1  #: the version of what follows


class Times(TypedDict):
    """What was measured of one step: the CPU's launch, the GPU's wait before it, the GPU's run of it."""

    cpu_us: float
    gap_us: float
    gpu_us: float


class NodeDescription(TypedDict):
    """One node. ``layer`` and ``lane`` are its place in a drawing: what it runs after is in lower layers."""

    kind: str  #: as CUgraphNodeType, in lower case
    name: str  #: of a kernel its function's; else what it does
    grid: list[int] | None  #: blocks; kernels only
    block: list[int] | None  #: threads; kernels only
    shared_bytes: int | None  #: dynamic shared memory; kernels only
    bytes: int | None  #: copies and sets
    layer: int
    lane: int


class SegmentDescription(TypedDict):
    """A segment. ``edges`` are pairs of places in ``nodes``: the second runs after the first."""

    kind: Literal["segment"]
    index: int
    nodes: list[NodeDescription]
    edges: list[list[int]]
    branches: int  #: how many lanes its nodes are in: chains that may run beside each other
    joined: int  #: branches that the forward left open and the capture joined
    streams: list[str]  #: seen to take part, the origin first
    allocations: int
    allocated: int
    shared_exec: bool
    times: Times | None


class TargetDescription(TypedDict):
    """An array that a break writes at replay."""

    ptr: str
    shape: list[int]
    dtype: str
    bytes: int


class FrozenDescription(TypedDict):
    """What a break was given, or handed on, that stays as it was; the value as it prints, shortened."""

    name: str
    value: str


class BreakDescription(TypedDict):
    """A break."""

    kind: Literal["break"]
    index: int
    name: str
    tag: str | None
    site: str
    destination: str
    landing: str
    frozen: list[FrozenDescription]
    targets: list[TargetDescription]
    times: Times | None


StepDescription = SegmentDescription | BreakDescription


class BlockDescription(TypedDict):
    """A block of the arena, and when it lives.

    ``start`` and ``end`` lie on an axis of steps: step ``n`` reaches from ``n`` to ``n + 1``, and what happens in it is
    spread evenly over that. A block that outlives the capture has no ``end`` and no ``freed_in``.
    """

    ptr: str
    bytes: int
    spans: list[
        list[int]
    ]  #: what lies behind it, as offsets from ``base`` and bytes; several where pages are mapped twice
    made_in: int  #: place in ``steps``
    freed_in: int | None
    start: float
    end: float | None
    holds: str  #: what is known to be in it; may be empty


class SurvivorDescription(TypedDict):
    """An array made in a segment that was alive when the capture closed."""

    ptr: str
    bytes: int
    segment: int
    overwritten_by: list[str]


class MemoryDescription(TypedDict):
    """What the graph costs (`GraphMemory`), and who lives where in its arena from when to when."""

    allocated: int
    footprint: int
    live: int
    outputs: int
    execs: int | None
    arena: dict[str, int]  #: used, peak, mapped, reserved; of all graphs that share it
    base: str  #: the lowest address of the blocks
    blocks: list[BlockDescription]
    survivors: list[SurvivorDescription]


class GraphDescription(TypedDict):
    """A graph in any state; one that is not captured has no steps."""

    schema: int
    name: str | None
    state: str
    driver: str
    device: str
    capture_stream: str
    replays: int
    steps: list[StepDescription]
    memory: MemoryDescription


def load(file: str | os.PathLike[str]) -> GraphDescription:
    """The description in a JSON file.

    Raises
    ------
    BreakgraphError
        The file cannot be read, holds something else, or is of a newer schema.
    """
    remedy = "give it a file that graph.save_trace(file) wrote"
    try:
        read = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BreakgraphError(f"{os.fspath(file)} cannot be read", why=str(error), remedy=remedy) from error
    if not isinstance(read, dict) or "schema" not in read or "steps" not in read:
        raise BreakgraphError(f"{os.fspath(file)} does not describe a graph", remedy=remedy)
    if read["schema"] != SCHEMA:
        raise BreakgraphError(
            f"{os.fspath(file)} is of schema {read['schema']}, and this version reads {SCHEMA}",
            remedy="view it with the version of breakgraph that wrote it, or a newer one",
        )
    return cast(GraphDescription, read)
