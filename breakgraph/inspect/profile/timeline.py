"""From what the host noted and the events tell to the times of each step, in microseconds.

Host and device have a clock each. An event is never reached before the host has come to record it, and one recorded
where the device is idle is reached at once: so the device's clock is set as early as the first of the two allows.

    host      in|out  launch  in|out     break     in|out
    device      e0 . . . . . . [segment] e1 . . . . e2
                   |    gap   |   gpu   |  |  gap  |
                   |
                   until the host has come to the next event: what it launches meanwhile is there by then
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from breakgraph.segments.timing import Spread

__all__ = ["Samples", "Timeline", "even_excess"]

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Samples:
    """Microseconds of ``n`` replays of each kind, with ``k`` steps.

    Attributes
    ----------
    wall
        Of the plain replays until the device is done, ``(n,)``.
    whole
        From the first event to the last of the replays that have only these, ``(n,)``.
    entered, left
        When the host came to an event and left it, since the replay was begun, ``(n, k + 1)``.
    device
        When the event was reached, since the first one was, ``(n, k + 1)``.
    ended
        When the device was done, since the replay was begun, ``(n,)``.
    empty
        What the host needs from one event to the next with no step between them.
    """

    wall: Array
    whole: Array
    entered: Array
    left: Array
    device: Array
    ended: Array
    empty: float


@dataclass(frozen=True)
class Timeline:
    """The parts of a replay: ``cpu``, ``gap`` and ``gpu`` have one for each step."""

    wall: Spread
    before: Spread
    after: Spread
    cpu: list[Spread]
    gap: list[Spread]
    gpu: list[Spread]
    event_us: float
    total: float  #: of all parts but ``cpu``, the typical ones

    @classmethod
    def of(cls, samples: Samples) -> Timeline:
        """What the replays in steps say, net of what their events cost."""
        reached = samples.device + np.max(samples.entered - samples.device, axis=1, keepdims=True)
        spans = np.diff(reached, axis=1)
        idle = np.clip(samples.entered[:, 1:] - reached[:, :-1], 0, spans)
        middle = _middle(samples.ended)
        event_us = even_excess(spans[middle].mean(axis=0), float(samples.whole[_middle(samples.whole)].mean()))
        net = np.clip(spans - event_us, 0, None)
        gap = np.clip(idle - event_us, 0, None)  # first: an event makes the host later
        cpu = np.clip(samples.entered[:, 1:] - samples.left[:, :-1] - samples.empty, 0, None)
        before, after = reached[:, 0], samples.ended - reached[:, -1]
        return cls(
            wall=_spread(samples.wall, _middle(samples.wall)),
            before=_spread(before, middle),
            after=_spread(after, middle),
            cpu=[_spread(column, middle) for column in cpu.T],
            gap=[_spread(column, middle) for column in gap.T],
            gpu=[_spread(column, middle) for column in (net - gap).T],
            event_us=event_us,
            total=float((before + net.sum(axis=1) + after)[middle].mean()),
        )


def even_excess(spans: Array, total: float) -> float:
    """How much to take off each of the spans, none below 0, so that ``total`` is left; 0 where they are no more."""
    longest = np.sort(spans)[::-1]
    excess = (np.cumsum(longest) - total) / np.arange(1, len(longest) + 1)
    return max(float(excess[np.flatnonzero(longest > excess)[-1]]), 0.0) if total > 0 else 0.0


def _middle(whole: Array) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Which replays are the middle half, by their whole time."""
    few = len(whole) // 4
    return np.argsort(whole, kind="stable")[few : len(whole) - few]


def _spread(values: Array, middle: np.ndarray[Any, np.dtype[np.intp]]) -> Spread:
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf")
    return Spread(float(values[middle].mean()), float(p50), float(p90), float(p99))
