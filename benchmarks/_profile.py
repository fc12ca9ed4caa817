"""Where the time of a replay goes, by `BreakableGraph.profile`, and whether its parts add up to the wall time.

The wall time is that of replays that are not timed step by step. The parts are net of what the events between the steps
cost; how much that is, is a row of its own.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks import _chains, _peers
from benchmarks._network import Network, Shape
from benchmarks._report import Report
from benchmarks._sides import Own
from breakgraph.segments.timing import Profile

__all__ = ["measure"]

_SEGMENTS, _SMALL_SEGMENTS = 65, 5
_SHAPE, _SMALL_SHAPE = Shape(24, 1024, 16), Shape(2, 8, 2)
_TOKENS, _SMALL_TOKENS = (16, 128, 512), (2,)
_OFF = 0.10  # that the sum may be from the wall time, as a part of it


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add the parts of a chain of one-kernel segments, and of a transformer with attention as the break."""
    with _peers.current_stream(), report.part("profile of one-kernel segments", family="profile"):
        segments = _SMALL_SEGMENTS if small else _SEGMENTS
        chain = _chains.ours()(segments)
        try:
            _add(report, f"{segments} one-kernel segments", chain.graph, rounds)
        finally:
            chain.close()
    network = Network.of(_SMALL_SHAPE if small else _SHAPE)
    for tokens in _SMALL_TOKENS if small else _TOKENS:
        title = f"transformer of {network.shape}, {tokens} tokens"
        with _peers.current_stream(), report.part(f"profile of a {title}", family="profile"), ExitStack() as stack:
            side = Own(network)
            (x,) = side.network.inputs(tokens, 1)
            graph, _ = side.capture(side.place(x), stack)
            _add(report, title, graph, max(rounds // 4, 10))


def _add(report: Report, name: str, graph: Any, rounds: int) -> None:
    profile: Profile = graph.profile(rounds)
    print(profile)
    segments, breaks = ([step for step in profile.steps if step.kind == kind] for kind in ("segment", "break"))
    parts = {
        "wall": profile.wall_us.typical,
        "sum": profile.sum_us,
        "before": profile.before_us.typical,
        "segments, gap": sum(step.gap_us.typical for step in segments),
        "segments, GPU": sum(step.gpu_us.typical for step in segments),
        "breaks, gap": sum(step.gap_us.typical for step in breaks),
        "breaks, GPU": sum(step.gpu_us.typical for step in breaks),
        "after": profile.after_us.typical,
    }
    report.compare(name, parts)
    report.add(f"{name}: taken off each step for its event", profile.event_us, "us")
    report.speed(f"{name}: sum of the parts / wall", profile.coverage)
    report.speed(f"{name}: how far the sum is from the wall", abs(1 - profile.coverage), bound=_OFF)
