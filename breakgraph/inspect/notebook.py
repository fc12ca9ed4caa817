"""What a notebook shows of a graph: its headline and its steps, as HTML without scripts or styles of the page's own."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from breakgraph.inspect.report import COLUMNS, frozen, headline, row
from breakgraph.inspect.schema import GraphDescription

__all__ = ["summary"]


def summary(description: GraphDescription) -> str:
    """HTML with a row for each step."""
    head = f"<p><strong>{escape(headline(description))}</strong></p>"
    if not description["steps"]:
        return head
    rows = [
        _row("td", (*row(at, step), frozen(step)), "opacity: 0.8" if step["kind"] == "break" else "")
        for at, step in enumerate(description["steps"])
    ]
    table = f"<table><thead>{_row('th', (*COLUMNS, 'frozen'))}</thead><tbody>{''.join(rows)}</tbody></table>"
    return f'{head}<div style="max-height: 24em; overflow: auto">{table}</div>'


def _row(tag: str, cells: Iterable[str], style: str = "") -> str:
    scope = ' scope="col"' if tag == "th" else ""
    inner = "".join(f'<{tag}{scope} style="text-align: left">{escape(cell)}</{tag}>' for cell in cells)
    return f'<tr style="{style}">{inner}</tr>' if style else f"<tr>{inner}</tr>"
