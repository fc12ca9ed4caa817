"""Where the nodes of a segment are drawn: a layer for what must come first, a lane for what may run beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Place", "places"]

Place = tuple[int, int]  #: layer, lane


def places(count: int, edges: Iterable[Sequence[int]]) -> list[Place]:
    """Layer and lane of each of ``count`` nodes, no two the same. ``edges`` are pairs (before, after), without cycles.

    A layer is the length of the longest path to the node. A lane is followed as far as there is a next node, as a
    stream is, so the number of lanes tells how many chains of nodes run beside each other.
    """
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for tail, head in edges:
        before[head].append(tail)
        after[tail].append(head)
    layers = _layers(before, after)
    lanes = [0] * count
    tails: list[int] = []  # of each lane, the last node so far
    waiting = [len(heads) for heads in after]  # of each node, those that run after it and have no place yet
    for node in sorted(range(count), key=lambda one: (layers[one], one)):
        open_ended = [lanes[one] for one in before[node] if tails[lanes[one]] == one]
        ended = [lane for lane, one in enumerate(tails) if not waiting[one] and layers[one] < layers[node]]
        lane = min(open_ended or ended, default=len(tails))
        tails[lane : lane + 1] = [node]
        lanes[node] = lane
        for one in before[node]:
            waiting[one] -= 1
    return list(zip(layers, lanes, strict=True))


def _layers(before: list[list[int]], after: list[list[int]]) -> list[int]:
    layers = [0] * len(before)
    waiting = [len(one) for one in before]
    ready = [node for node, left in enumerate(waiting) if not left]
    for node in ready:  # grows while it is walked: a node is appended when all before it are done
        for one in after[node]:
            layers[one] = max(layers[one], layers[node] + 1)
            waiting[one] -= 1
            if not waiting[one]:
                ready.append(one)
    return layers
