"""The first place at which two runs of one forward part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from breakgraph.inspect.verify.outputs import Output
from breakgraph.inspect.verify.passes import Pass
from breakgraph.inspect.verify.values import Mismatch, Reading, Tolerance

__all__ = ["Found", "first_in_breaks", "first_in_outputs", "writer"]


@dataclass(frozen=True)
class Found:
    """A value that differs: the step that gave it (0 is segment 0, 1 break 0), its name, both readings."""

    step: int
    name: str
    replay: Reading
    mismatch: Mismatch


def first_in_breaks(tolerance: Tolerance, eager: Pass, replay: Pass) -> Found | None:
    """The first break that was called with, or gave, another value. What comes before a break is its segment's."""
    for at, (ours, theirs) in enumerate(zip(eager.breaks, replay.breaks, strict=False)):
        kept = [one for one, _, _ in _differing(tolerance, ours.after, theirs.after)]
        for place, theirs_is, mismatch in _differing(tolerance, ours.before, theirs.before):
            if place in kept:  # what a break writes over is no input of it
                return Found(2 * at, theirs_is.name, theirs_is, mismatch)
        for _, theirs_is, mismatch in _differing(tolerance, ours.result, theirs.result):
            return Found(2 * at + 1, theirs_is.name, theirs_is, mismatch)
        for _, theirs_is, mismatch in _differing(tolerance, ours.after, theirs.after):
            return Found(2 * at + 1, f"{theirs_is.name}, after the call,", theirs_is, mismatch)
    if len(eager.breaks) != len(replay.breaks):
        at = min(len(eager.breaks), len(replay.breaks))
        counts = Mismatch((), len(eager.breaks), len(replay.breaks), 1, 1)
        return Found(2 * at, "how many breaks the forward came to", Reading("", 0, None), counts)
    return None


def first_in_outputs(outputs: Sequence[Output], tolerance: Tolerance, replay: Sequence[Reading]) -> Found | None:
    """The first output that differs at the end of a replay."""
    for output, theirs in zip(outputs, replay, strict=True):
        if mismatch := tolerance.mismatch(output.eager.value, theirs.value):
            return Found(2 * output.segment, output.name, theirs, mismatch)
    return None


def writer(tolerance: Tolerance, place: int, eager: Pass, replay: Pass) -> int | None:
    """The step after which a watched array, spoiled alike before both runs, first differed; None if it never did."""
    for step, (ours, theirs) in enumerate(zip(eager.looks, replay.looks, strict=False)):
        if tolerance.mismatch(ours[place].value, theirs[place].value):
            return step
    return None


def _differing(
    tolerance: Tolerance, eager: Sequence[Reading], replay: Sequence[Reading]
) -> Iterator[tuple[int, Reading, Mismatch]]:
    for place, (ours, theirs) in enumerate(zip(eager, replay, strict=False)):
        if mismatch := tolerance.mismatch(ours.value, theirs.value):
            yield place, theirs, mismatch
