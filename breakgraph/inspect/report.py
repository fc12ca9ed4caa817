"""The report: a graph as plain text of at most 120 columns."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

from breakgraph.inspect.schema import BreakDescription, GraphDescription, SegmentDescription, StepDescription
from breakgraph.inspect.text import columns, count, kinds, segments_of, shorten
from breakgraph.segments.accounts import readable

__all__ = ["COLUMNS", "frozen", "headline", "listed", "report", "row"]

_WIDTH = 120
COLUMNS = ("step", "what", "nodes, or destination", "bytes", "streams, or tag", "called at")
_KERNELS = 20  # rows; what is called less often is counted together


def headline(description: GraphDescription) -> str:
    """What a graph is, in a line."""
    name = repr(description["name"]) if description["name"] else "graph"
    steps, segments = description["steps"], segments_of(description)
    if not steps:
        return f"{name}: {description['state']}"
    told = [
        count(len(segments), "segment"),
        count(len(steps) - len(segments), "break"),
        count(sum(len(segment["nodes"]) for segment in segments), "node"),
        count(description["replays"], "replay"),
    ]
    return f"{name}: {', '.join(told)}, on {description['device']}"


def report(description: GraphDescription) -> str:
    """The steps, nodes by kind, kernels by name, and memory of a graph."""
    lines = [headline(description)]
    if steps := description["steps"]:
        header, *rows = columns([COLUMNS, *map(row, range(len(steps)), steps)], _WIDTH)
        lines.append(header)
        for line, step in zip(rows, steps, strict=True):
            lines.append(line)
            if told := frozen(step):
                lines.append(f"      frozen: {told}")
        lines += _nodes(segments_of(description))
    return "\n".join(shorten(line, _WIDTH) for line in [*lines, *_memory(description)])


def listed(counts: Counter[str]) -> str:
    """``3 kernel, 1 memcpy``: the commonest first."""
    return ", ".join(f"{number} {what}" for what, number in counts.most_common()) or "none"


def row(at: int, step: StepDescription) -> tuple[str, ...]:
    """The cells of `COLUMNS` for the step at a place."""
    return _segment_row(at, step) if step["kind"] == "segment" else _break_row(at, step)


def frozen(step: StepDescription) -> str:
    """What stays as it was at capture; empty for a segment."""
    return ", ".join(f"{one['name']}={one['value']}" for one in step["frozen"]) if step["kind"] == "break" else ""


def _segment_row(at: int, segment: SegmentDescription) -> tuple[str, ...]:
    what = f"segment {segment['index']}" + (", shared exec" if segment["shared_exec"] else "")
    streams = str(len(segment["streams"]))
    if segment["branches"] > 1:
        streams += f" ({segment['branches']} branches)"
    return str(at), what, listed(kinds([segment])), readable(segment["allocated"]), streams, ""


def _break_row(at: int, step: BreakDescription) -> tuple[str, ...]:
    nbytes = sum(target["bytes"] for target in step["targets"])
    return (
        str(at),
        f"break {step['index']} {step['name']!r}",
        f"{step['destination']} ({step['landing']})",
        readable(nbytes) if nbytes else "",
        step["tag"] or "",
        PurePath(step["site"]).name,
    )


def _nodes(segments: list[SegmentDescription]) -> list[str]:
    names = Counter(node["name"] for segment in segments for node in segment["nodes"] if node["kind"] == "kernel")
    shown = names.most_common(_KERNELS)
    lines = [f"nodes: {listed(kinds(segments))}"]
    if shown:
        lines.append("kernels:")
        lines += columns([(f"{number:>8}", name) for name, number in shown], _WIDTH)
    if rest := sum(names.values()) - sum(number for _, number in shown):
        lines.append(f"{rest:>8}  of {count(len(names) - len(shown), 'other name')}")
    return lines


def _memory(description: GraphDescription) -> list[str]:
    memory = description["memory"]
    execs = "execs not measured" if memory["execs"] is None else f"{readable(memory['execs'])} execs"
    lines = [
        f"memory: {readable(memory['footprint'])} of the arena ({readable(memory['live'])} live),"
        f" {readable(memory['outputs'])} outputs, {execs}"
    ]
    if memory["arena"]:
        lines.append("arena: " + ", ".join(f"{readable(nbytes)} {what}" for what, nbytes in memory["arena"].items()))
    for one in memory["survivors"]:
        also = f", overwritten by {', '.join(one['overwritten_by'])}" if one["overwritten_by"] else ""
        lines.append(f"outlives the capture: {readable(one['bytes'])} made in segment {one['segment']}{also}")
    return lines
