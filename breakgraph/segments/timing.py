"""What `BreakableGraph.profile` finds: the times of each step, and what could be saved. Microseconds throughout."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from breakgraph.segments.views import StepTimes, Viewed

__all__ = ["Advice", "Profile", "Spread", "StepProfile"]


@dataclass(frozen=True)
class Spread:
    """One time, in all replays that were measured.

    Attributes
    ----------
    typical
        The mean over the middle half of the replays, by their whole time. Those of all parts add up to that of the
        whole, which percentiles do not.
    p50, p90, p99
        Percentiles over all replays.
    """

    typical: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class StepProfile:
    """The times of one step.

    Attributes
    ----------
    at
        Its place among the steps.
    kind, index
        ``"segment"`` or ``"break"``, and its place among those.
    name, site, tag
        Of a break; empty and None for a segment.
    nodes
        Of a segment; 0 for a break.
    cpu_us
        Of the host: the launch, or the call of the break with the copy of its result.
    gap_us
        In which the device was done with all steps before, and the host not yet with this one.
    gpu_us
        Of the device after that, until it was done with this step.
    share
        Of gap and GPU time in the sum of all parts, 0 to 1.
    """

    at: int
    kind: Literal["segment", "break"]
    index: int
    name: str
    site: str
    tag: str | None
    nodes: int
    cpu_us: Spread
    gap_us: Spread
    gpu_us: Spread
    share: float


@dataclass(frozen=True)
class Advice:
    """What some breaks cost together, and what would save that.

    Attributes
    ----------
    action
        ``"deselect"``: let these breaks be captured with what is around them. ``"merge"``: do the work of the small
        segments between them inside one break.
    breaks
        Their indices among the breaks.
    cpu_us
        Of the host in these breaks.
    saves_us
        At most: the gaps of one replay that would not be.
    share
        Of that in the sum of all parts, 0 to 1.
    text
        The same in a sentence.
    """

    action: Literal["deselect", "merge"]
    breaks: tuple[int, ...]
    cpu_us: float
    saves_us: float
    share: float
    text: str


@dataclass(frozen=True)
class Profile:
    """Where the time of a replay goes. As a string a table of at most 120 columns.

    Attributes
    ----------
    name, device
        Of the graph, and where it was replayed.
    simulated
        The times are those of the simulator, and not of a device.
    rounds, replays
        How many replays were timed step by step, and how many were run in all.
    wall_us
        From the call of `replay` until the device is done, with nothing in between.
    before_us, after_us
        Before the first step, and from the end of the last one until the host knows.
    steps
        The times of each step.
    event_us
        What timing cost each step, which is taken off the times.
    advice
        What would save most first; only what saves 1% at least.
    """

    name: str
    device: str
    simulated: bool
    rounds: int
    replays: int
    wall_us: Spread
    before_us: Spread
    after_us: Spread
    steps: tuple[StepProfile, ...]
    event_us: float
    advice: tuple[Advice, ...]

    @property
    def sum_us(self) -> float:
        """All parts together: before the first step, the gap and the GPU time of each step, after the last."""
        inner = sum(step.gap_us.typical + step.gpu_us.typical for step in self.steps)
        return self.before_us.typical + inner + self.after_us.typical

    @property
    def coverage(self) -> float:
        """The sum of the parts over the wall time, which is measured in replays that are not timed step by step."""
        return self.sum_us / self.wall_us.typical

    @property
    def times(self) -> list[StepTimes]:
        """The typical times of each step, in the form that `BreakableGraph.save_trace` takes."""
        return [
            {"cpu_us": step.cpu_us.typical, "gap_us": step.gap_us.typical, "gpu_us": step.gpu_us.typical}
            for step in self.steps
        ]

    def to_dict(self) -> dict[str, Any]:
        """All of it, as data that `json.dumps` takes."""
        return {**asdict(self), "sum_us": self.sum_us, "coverage": self.coverage}

    def __str__(self) -> str:
        return Viewed.views.profile_table(self)
