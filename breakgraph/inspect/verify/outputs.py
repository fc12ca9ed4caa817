"""Which arrays of a replay hold what the forward gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from breakgraph.errors import BreakgraphError
from breakgraph.inspect.verify.passes import Pass
from breakgraph.inspect.verify.values import Device, Reading
from breakgraph.segments.graph import BreakableGraph

__all__ = ["Output", "outputs_of"]


@dataclass(frozen=True)
class Output:
    """One output: what eager gave, and the array in which a replay leaves the same.

    ``segment`` is the one that writes it, where that is known; ``shared`` tells that eager writes the same array.
    """

    eager: Reading
    target: Any
    segment: int
    shared: bool

    @property
    def name(self) -> str:
        return self.eager.name


def outputs_of(graph: BreakableGraph, device: Device, given: list[Any], eager: Pass, other: Pass) -> list[Output]:
    """Pair what an eager run gave with the arrays of the graph.

    They are those that the caller has ``given``, or else those of `BreakableGraph.output` and the returned ones that
    ``other``, a second run while the first one's results are alive, returned too.
    """
    last = len(graph.breaks)
    if given:
        if len(given) != len(eager.ends):
            raise BreakgraphError(
                f"outputs= holds {len(given)} arrays, and the forward returned {len(eager.ends)}",
                remedy="give what the captured forward returned, in the same form",
            )
        shared = not eager.returned
        return [Output(end, array, last, shared) for end, array in zip(eager.ends, given, strict=True)]
    holdings = graph.holdings
    assert holdings is not None  # it is captured
    pinned = device.arrays(holdings.outputs)
    declared = [(segment, one) for segment, values in eager.declared for one in values]
    if not declared and pinned and _same_form(eager.ends, device.read(pinned, "output")):
        # Declared around the forward and not in it: y = graph.output(forward(x)).
        return [Output(end, array, last, False) for end, array in zip(eager.ends, pinned, strict=True)]
    again = {device.address(array) for array in other.returned}
    known = {one.ptr for _, one in declared}
    if len(pinned) != len(declared) or any(end.ptr not in again | known for end in eager.ends):
        raise BreakgraphError(
            f"it is not known where a replay of {graph!r} leaves what its forward returns",
            why="eager code returns a new array each time, and the captured forward's is not this one",
            remedy="pass outputs=, what the captured forward returned, or capture with y = graph.output(forward(x))",
        )
    made = [Output(one, array, segment, False) for (segment, one), array in zip(declared, pinned, strict=True)]
    return made + [
        Output(end, array, last, True)
        for end, array in zip(eager.ends, eager.returned, strict=True)
        if end.ptr in again and end.ptr not in known
    ]


def _same_form(some: list[Reading], others: list[Reading]) -> bool:
    forms = [[(np.shape(one.value), np.asarray(one.value).dtype) for one in readings] for readings in (some, others)]
    return forms[0] == forms[1]
