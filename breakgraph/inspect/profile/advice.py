"""Which breaks keep the device waiting, and what deselecting or merging them would save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal

from breakgraph.inspect.text import count
from breakgraph.segments.break_points import BARE
from breakgraph.segments.timing import Advice, StepProfile

__all__ = ["advise"]

_LEAST = 0.01  # of the whole: what saves less is not worth a line
_SMALL = 2  # nodes of a segment that a break could as well launch itself


def advise(steps: Sequence[StepProfile], total: float) -> tuple[Advice, ...]:
    """What would save most first. ``total`` is the sum of all parts in microseconds."""
    found = [*_deselect(steps, total), *_merge(steps, total)]
    return tuple(sorted((one for one in found if one.share >= _LEAST), key=lambda one: -one.saves_us))


def _deselect(steps: Sequence[StepProfile], total: float) -> list[Advice]:
    """Without a break the device waits neither for it nor for the launch of the segment after it."""
    groups: dict[tuple[str | None, str], list[StepProfile]] = {}
    for step in steps:
        if step.kind == "break":
            groups.setdefault((step.tag, "" if step.tag else step.site), []).append(step)
    made = []
    for (tag, site), breaks in groups.items():
        saves = sum(one.gap_us.typical + steps[one.at + 1].gap_us.typical for one in breaks)
        where = PurePath(site).name
        if tag:
            how = f"leave {tag!r} out of break_on, where it can be captured"
        elif breaks[0].name == BARE.name:
            how = f"drop the break_graph() at {where}"
        else:
            how = f"let {breaks[0].name!r} at {where} be captured, where it can be"
        made.append(_advice("deselect", breaks, saves, total, how))
    return made


def _merge(steps: Sequence[StepProfile], total: float) -> list[Advice]:
    """In one break for two the device waits no more for the launch of the segment between them."""
    groups: dict[tuple[str, str], list[tuple[StepProfile, StepProfile, StepProfile]]] = {}
    for at in range(1, len(steps) - 2, 2):
        first, between, second = steps[at : at + 3]
        if between.nodes <= _SMALL:
            groups.setdefault((first.site, second.site), []).append((first, between, second))
    made = []
    for (first_site, second_site), found in groups.items():
        saves = sum(between.gap_us.typical for _, between, _ in found)
        breaks = list({one.at: one for first, _, second in found for one in (first, second)}.values())
        sites = " and ".join(dict.fromkeys(PurePath(site).name for site in (first_site, second_site)))
        made.append(_advice("merge", breaks, saves, total, f"merge the neighbours at {sites}"))
    return made


def _advice(
    action: Literal["deselect", "merge"], breaks: Sequence[StepProfile], saves: float, total: float, how: str
) -> Advice:
    cpu, share = sum(one.cpu_us.typical for one in breaks), saves / total
    costs = f"{count(len(breaks), 'break')}, {cpu:.1f} us of the host"
    text = f"{how}: {costs}, saves at most {saves:.1f} us ({share:.0%})"
    return Advice(action, tuple(one.index for one in breaks), cpu, saves, share, text)
