"""Arrays made in a segment that are alive when the capture closes (C18).

Most are what the forward returned. But a table that was built at first use and is kept for later, or an FFT plan's
buffer, is made once and read for ever, and a graph captured earlier may use the same bytes as scratch.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from breakgraph.memory import Arena, Footprint, tree
from breakgraph.segments.callers import caller

__all__ = ["Survivor", "find_survivors", "out_of_reach"]


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
    return tuple(
        Survivor(block.ptr, block.nbytes, block.segment, arena.earlier_users(block))
        for block in arena.blocks_of(footprint.capture)
        if block.generation not in inferred
    )


def out_of_reach(survivors: Iterable[Survivor], address: Callable[[object], int | None]) -> list[Survivor]:
    """Those survivors that earlier graphs overwrite, and that no variable on the stack holds.

    A variable holds an array if it is one, or a tuple, list, dict or dataclass of them. What a variable of the
    forward's caller holds was returned to it; what is held elsewhere was most likely kept for later.

    Parameters
    ----------
    address
        The address of a device array; None for any other object.
    """
    left = [one for one in survivors if one.overwritten_by]
    frame: FrameType | None = caller() if left else None
    while frame is not None and left:
        held = {found for value in _variables(frame) if (found := address(value)) is not None}
        left = [one for one in left if not any(one.ptr <= ptr < one.ptr + one.nbytes for ptr in held)]
        frame = frame.f_back
    return left


def _variables(frame: FrameType) -> Iterator[object]:
    variables = frame.f_locals
    values = list(variables.values())
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()  # before 3.13 it is a copy that the frame keeps, and it would keep the arrays alive
    yield from _inside(values, set())


def _inside(values: Iterable[Any], seen: set[int]) -> Iterator[object]:
    for value in values:
        if isinstance(value, dict):
            parts: Iterable[Any] = value.values()
        elif isinstance(value, (tuple, list)):
            parts = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = tree.attributes(value).values()
        else:
            yield value
            continue
        if id(value) not in seen:
            seen.add(id(value))
            yield from _inside(parts, seen)
