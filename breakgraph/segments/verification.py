"""What a verification found, and how it tells it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from breakgraph.errors import ReplayDiffers
from breakgraph.segments.addresses import Moved

__all__ = ["Cause", "Difference", "Verification"]


class Cause(enum.StrEnum):
    """What makes a replay give other numbers than eager."""

    UNCAPTURED = "work on a stream that was not captured"
    FROZEN = "a frozen value"
    ESCAPED = "a value that escaped a break unreturned"
    MOVED = "a moved input"
    REUSED = "memory reused"
    UNSTEADY = "the forward itself gives other values each time"
    UNKNOWN = "none of the usual causes was seen"


_REMEDY = {
    Cause.UNCAPTURED: "let the stream wait for bg.current_stream() in each segment that uses it, or declare it in"
    " capture(aux_streams=[...])",
    Cause.FROZEN: "pass it as an array, or through bg.active_forward",
    Cause.ESCAPED: "return it from the break, or copy it into a bg.Cell that the forward reads",
    Cause.MOVED: "write new values into the array that was captured (x.set(...), w[...] = new), or capture again",
    Cause.REUSED: "keep the array as long as the graph: graph.keep(w)",
    Cause.UNSTEADY: "give atol= or rtol= where that is rounding; and pass everything that the forward reads and changes"
    " among the inputs",
    Cause.UNKNOWN: "capture with debug=True, which notes where globals and attributes are, and warns of more",
}


@dataclass(frozen=True)
class Difference:
    """The first step whose outputs differ, and one element of them.

    Attributes
    ----------
    round
        In which it was seen.
    step
        ``segment 1``, or ``break 0 'name', called at file:line``.
    array
        How the forward calls the array: an argument of a break, its result, an output.
    address, index
        Where it lies at replay, and the first element that differs.
    eager, replay
        The element's values.
    count, size
        How many elements differ, and how many there are.
    cause, evidence
        The likeliest cause, and what speaks for it.
    """

    round: int
    step: str
    array: str
    address: int
    index: tuple[int, ...]
    eager: object
    replay: object
    count: int
    size: int
    cause: Cause
    evidence: str

    @property
    def what(self) -> str:
        """The step, the array and the element, with both values."""
        where = f" at {self.address:#x}" if self.address else ""
        element = f"element {self.index}" if self.size != 1 or self.index else "it"
        return (
            f"round {self.round}: {self.step} gives other values at replay than eager does\n"
            f"  {self.array}{where}: {element} is {self.eager} in eager and {self.replay} at replay;"
            f" {self.count} of {self.size} differ"
        )

    @property
    def why(self) -> str:
        """The cause, and what speaks for it."""
        return f"likeliest {self.cause}: {self.evidence}"

    @property
    def remedy(self) -> str:
        """What to do against the cause."""
        return _REMEDY[self.cause]

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do:  {self.remedy}"


@dataclass(frozen=True)
class Verification:
    """The answer of `BreakableGraph.verify`.

    Attributes
    ----------
    rounds
        How many were run; a round that differs is the last.
    compared
        Names of the arrays and values that were compared in each.
    difference
        The first, or None.
    moved
        Globals, attributes and closures that lead to another array than when the graph was captured with
        ``debug=True``. A segment goes on with the old one; a break uses the new one.
    """

    rounds: int
    compared: tuple[str, ...]
    difference: Difference | None
    moved: tuple[Moved, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every value was the same."""
        return self.difference is None

    def raise_if_different(self) -> None:
        """Raise `ReplayDiffers` where a value was not the same."""
        if (one := self.difference) is not None:
            raise ReplayDiffers(one.what, why=one.why, remedy=one.remedy)

    def __str__(self) -> str:
        if self.difference is None:
            lines = [f"replay equals eager in {self.rounds} rounds: {', '.join(self.compared)}"]
        else:
            lines = [str(self.difference)]
        return "\n".join([*lines, *(f"  note: {one}" for one in self.moved)])
