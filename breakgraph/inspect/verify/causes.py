"""What is likeliest to blame for a difference: each cause has something that speaks for it, asked in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from breakgraph.inspect.verify.differences import Found
from breakgraph.inspect.verify.passes import Pass
from breakgraph.inspect.verify.values import Tolerance, spoiled
from breakgraph.segments.addresses import Moved
from breakgraph.segments.destinations import NO_WRITEBACK
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.holdings import Holdings
from breakgraph.segments.verification import Cause

__all__ = ["Case", "cause_of"]


@dataclass(frozen=True)
class Case:
    """What is known of a difference.

    Attributes
    ----------
    found
        What differs.
    expected
        What eager gave there.
    eager, other, replay
        Eager on the inputs of the round, on others, and the replay.
    unsteady
        Whether eager on the same inputs gave other values the second time.
    raced
        Whether the replay was right as long as each of its steps was waited for.
    moved
        Names that lead to other arrays than at capture.
    deaf
        Runs the forward with one input changed after the other, and names those that eager follows and replay does not.
    """

    graph: BreakableGraph
    found: Found
    expected: Any
    eager: Pass
    other: Pass
    replay: Pass
    unsteady: bool
    raced: bool
    moved: tuple[Moved, ...]
    deaf: Callable[[], list[str]]


def cause_of(case: Case) -> tuple[Cause, str]:
    """The likeliest cause, and what speaks for it."""
    for cause, ask in _ASKED:
        if evidence := next(ask(case), ""):
            return cause, evidence
    return Cause.UNKNOWN, "a library that keeps state, or memory that nobody keeps alive for a segment, may do it too"


def _unsteady(case: Case) -> Iterator[str]:
    if case.unsteady:
        yield "run eagerly on the same inputs once more, it gave other values"


def _frozen(case: Case) -> Iterator[str]:
    breaks = case.graph.breaks
    if len(case.eager.breaks) != len(breaks):
        yield "eager took another way through the forward than the capture, whose choices stay as they were"
    for at, step in enumerate(breaks[: (case.found.step + 1) // 2]):
        for was, now in zip(step.frozen, case.eager.breaks[at].frozen, strict=False):
            if was.name == now.name and Tolerance().mismatch(was.value, now.value):
                yield (
                    f"argument {was.name!r} of {_of(case, at)} is {was.value!r:.80} at every replay, as at capture;"
                    f" eager gave it {now.value!r:.80}"
                )
    for at, step in enumerate(breaks[: (case.found.step + 1) // 2]):
        if step.destination == repr(NO_WRITEBACK) or step.frozen:
            ours, others = (seen.breaks[at].result for seen in (case.eager, case.other))
            for one, two in zip(ours, others, strict=False):
                if not one.ptr and Tolerance().mismatch(one.value, two.value):
                    yield (
                        f"{_of(case, at)} hands on {one.value!r:.80} here and {two.value!r:.80} for other inputs, and"
                        " the segments after it have the value of the capture baked in"
                    )


def _escaped(case: Case) -> Iterator[str]:
    for at, seen in enumerate(case.replay.breaks[: (case.found.step + 1) // 2]):
        if seen.left:
            yield f"{_of(case, at)} keeps what it does not return: {'; '.join(map(str, seen.left))}"


def _untouched(case: Case) -> Iterator[str]:
    value = case.expected
    if (
        isinstance(value, np.ndarray)
        and value.size
        and not Tolerance().mismatch(spoiled(value), case.found.replay.value)
    ):
        yield f"no step of the replay has written {case.found.name}{_strays(case)}"
    segment = case.graph.segments[case.found.step // 2]
    if case.found.step % 2 == 0 and not segment.nodes:
        yield f"segment {segment.index} has recorded no work at all{_strays(case)}"


def _reused(case: Case) -> Iterator[str]:
    holdings: Holdings | None = case.graph.holdings
    if holdings is None or holdings.footprint is None:
        return
    ptr, mine = case.found.replay.ptr, holdings.footprint
    for one in case.moved:
        if one.died and not mine.covers(one.before, 1):  # what a segment makes, each replay makes anew
            yield str(one)
    block = holdings.arena.block_at(ptr)
    if ptr and mine.covers(ptr, 1) and block is not None and block.capture != mine.capture:
        yield f"the arena has given the bytes at {ptr:#x} to another capture"
    for survivor in case.graph.survivors:
        if survivor.overwritten_by:
            yield (
                f"{survivor.nbytes} bytes that segment {survivor.segment} made are kept for later, and replays of"
                f" {', '.join(survivor.overwritten_by)} use them too"
            )


def _moved(case: Case) -> Iterator[str]:
    yield from map(str, case.moved)
    if not case.raced and (deaf := case.deaf()) and not _strays(case):
        yield f"the replay does not follow {', '.join(deaf)}, as eager does: it was captured with another array"


def _uncaptured(case: Case) -> Iterator[str]:
    if case.raced:
        yield f"the replay is right if each of its steps is waited for, so something is not ordered{_strays(case)}"
    if strays := _strays(case):
        yield f"the replay leaves something out{strays}"


def _strays(case: Case) -> str:
    holdings = case.graph.holdings
    strays = holdings.strays if holdings is not None else []
    told = ", ".join(f"stream {stream:#x} was used in {segment} without being part of it" for segment, stream in strays)
    return f"; {told}" if told else ""


def _of(case: Case, at: int) -> str:
    step = case.graph.breaks[at]
    return f"break {at} {step.name!r}, called at {step.site}"


_ASKED: tuple[tuple[Cause, Callable[[Case], Iterator[str]]], ...] = (
    (Cause.UNSTEADY, _unsteady),
    (Cause.FROZEN, _frozen),
    (Cause.ESCAPED, _escaped),
    (Cause.UNCAPTURED, _untouched),
    (Cause.REUSED, _reused),
    (Cause.MOVED, _moved),
    (Cause.UNCAPTURED, _uncaptured),
)
