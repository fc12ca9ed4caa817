"""A graph in Graphviz's DOT language: a cluster for each segment, the breaks between them."""

from __future__ import annotations

from breakgraph.inspect.report import headline
from breakgraph.inspect.schema import BreakDescription, GraphDescription, NodeDescription, SegmentDescription
from breakgraph.inspect.text import shorten
from breakgraph.segments.accounts import readable

__all__ = ["to_dot"]

_LABEL = 60  # columns of a line in a label


def to_dot(description: GraphDescription) -> str:
    """The text of a ``digraph``. Draw it with ``dot -Tsvg``."""
    lines = [
        f"digraph {_quoted(description['name'] or 'graph')} {{",
        f"  graph [label={_quoted(headline(description))}, labelloc=t, compound=true, fontname=sans];",
        "  node [shape=box, fontname=sans, fontsize=10];",
        "  edge [arrowsize=0.7];",
    ]
    before = None
    for step in description["steps"]:
        first, last, drawn = _segment(step) if step["kind"] == "segment" else _break(step)
        lines += drawn
        if before is not None:
            lines.append(_step_edge(before, (first, step)))
        before = last, step
    return "\n".join([*lines, "}", ""])


_End = tuple[str, SegmentDescription | BreakDescription]  # a node that an edge between steps is drawn to, and its step


def _segment(segment: SegmentDescription) -> tuple[str, str, list[str]]:
    """The nodes by which it is entered and left, and its lines."""
    index = segment["index"]
    names = [f"s{index}n{at}" for at in range(len(segment["nodes"]))]
    lines = [
        f"  subgraph {_cluster(segment)} {{",
        f"    label={_quoted(f'segment {index}')}; style=rounded; color=gray50;",
    ]
    for name, node in zip(names, segment["nodes"], strict=True):
        lines.append(f"    {name} [label={_quoted(*_node_label(node))}];")
    if not names:
        names = [f"s{index}empty"]
        lines.append(f"    {names[0]} [label={_quoted('no work')}, style=dashed];")
    lines += [f"    {names[tail]} -> {names[head]};" for tail, head in segment["edges"]]
    followed, following = ({edge[end] for edge in segment["edges"]} for end in (0, 1))
    first = next(name for at, name in enumerate(names) if at not in following)
    last = next(name for at, name in enumerate(names) if at not in followed)
    return first, last, [*lines, "  }"]


def _break(step: BreakDescription) -> tuple[str, str, list[str]]:
    name = f"b{step['index']}"
    label = [f"break {step['index']} {step['name']}", f"to {step['destination']}", step["site"]]
    if step["tag"]:
        label.insert(1, f"tag {step['tag']}")
    return name, name, [f"  {name} [label={_quoted(*label)}, shape=note, style=filled, fillcolor=lightyellow];"]


def _step_edge(before: _End, after: _End) -> str:
    """An edge from a step to the next one, which ends at the border of a segment."""
    borders = [
        f"{attribute}={_cluster(step)}"
        for attribute, (_, step) in (("ltail", before), ("lhead", after))
        if step["kind"] == "segment"
    ]
    return f"  {before[0]} -> {after[0]} [style=bold, {', '.join(borders)}];"


def _cluster(segment: SegmentDescription) -> str:
    return f"cluster_{segment['index']}"


def _node_label(node: NodeDescription) -> list[str]:
    lines = [node["name"]]
    if node["grid"] and node["block"]:
        lines.append(f"{'x'.join(map(str, node['grid']))} blocks of {'x'.join(map(str, node['block']))} threads")
    if node["bytes"] is not None:
        lines.append(readable(node["bytes"]))
    return lines


def _quoted(*lines: str) -> str:
    r"""A quoted string of one or more lines.

    A backslash begins an escape of a label (``\N`` is the node's name), so those of a name are doubled.
    """
    escaped = (shorten(line, _LABEL).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
