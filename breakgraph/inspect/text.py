"""Words and columns: what the views that are plain text share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from breakgraph.inspect.schema import GraphDescription, SegmentDescription

__all__ = ["columns", "count", "kinds", "segments_of", "shorten"]


def shorten(text: str, width: int) -> str:
    """A text on one line of at most ``width`` columns; a long one is cut in the middle, where names differ least."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(line) <= width:
        return line
    head = (width - 3 + 1) // 2
    return f"{line[:head]}...{line[len(line) - (width - 3 - head) :]}"


def count(number: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {what}{'s' * (number != 1)}"


def columns(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Aligned lines of at most ``width`` columns: where that is too few, the widest cells are cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widths[widths.index(max(widths))] -= 1
    return [
        "  ".join(shorten(cell, to).ljust(to) for cell, to in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def segments_of(description: GraphDescription) -> list[SegmentDescription]:
    """Its segments, without the breaks between them."""
    return [step for step in description["steps"] if step["kind"] == "segment"]


def kinds(segments: Iterable[SegmentDescription]) -> Counter[str]:
    """How many nodes there are of each kind."""
    return Counter(node["kind"] for segment in segments for node in segment["nodes"])
