"""A profile as plain text of at most 120 columns."""

from __future__ import annotations

from pathlib import PurePath

from breakgraph.inspect.text import columns, count, shorten
from breakgraph.segments.timing import Profile, StepProfile

__all__ = ["profile_table"]

_WIDTH = 120
_TIMES = ("cpu us", "p90", "p99", "gap us", "p99", "gpu us", "p99", "share")
_WIDE = 7  # columns of a time
_MOST = 5  # pieces of advice


def profile_table(profile: Profile) -> str:
    """What it took, a row for each step, and what would save some of it."""
    name = repr(profile.name) if profile.name else "graph"
    lines = [f"{name}: {count(profile.rounds, 'replay')} timed step by step, on {profile.device}"]
    if profile.simulated:
        lines.append("simulated: these are not times of a device")
    wall = profile.wall_us
    lines += [
        f"wall time {_us(wall.typical)} us (p50 {_us(wall.p50)}, p90 {_us(wall.p90)}, p99 {_us(wall.p99)})",
        f"sum of the parts {_us(profile.sum_us)} us, {profile.coverage:.2f} of the wall time;"
        f" {profile.event_us:.2f} us are taken off each step for its event",
    ]
    heads = ("step", "what", "called at", *(name.rjust(_WIDE) for name in _TIMES))
    lines += columns([heads, *map(_row, profile.steps)], _WIDTH)
    lines.append(
        f"before the first step {_us(profile.before_us.typical)} us, after the last {_us(profile.after_us.typical)} us"
    )
    lines += [one.text for one in profile.advice[:_MOST]] or ["no break keeps the device waiting for 1% of the replay"]
    return "\n".join(shorten(line, _WIDTH) for line in lines)


def _row(step: StepProfile) -> tuple[str, ...]:
    what = f"segment {step.index}" if step.kind == "segment" else f"break {step.index} {step.name!r}"
    cpu, gap, gpu = step.cpu_us, step.gap_us, step.gpu_us
    times = (cpu.p50, cpu.p90, cpu.p99, gap.typical, gap.p99, gpu.typical, gpu.p99)
    cells = (*map(_us, times), f"{step.share:.1%}")
    return str(step.at), what, PurePath(step.site).name, *(cell.rjust(_WIDE) for cell in cells)


def _us(time: float) -> str:
    return f"{time:.2f}" if time < 100 else f"{time:,.0f}"
