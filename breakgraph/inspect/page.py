"""The page: a graph as one HTML file that needs nothing else, and no network."""

from __future__ import annotations

import json
import re
from html import escape
from importlib import resources

from breakgraph.inspect.report import headline
from breakgraph.inspect.schema import GraphDescription
from breakgraph.inspect.text import shorten

__all__ = ["page"]

#: In the order in which they run; together they are one script.
_SCRIPTS = ("dom.js", "roving.js", "timeline.js", "nodes.js", "step.js", "memory.js", "search.js", "main.js")


def page(description: GraphDescription) -> str:
    """The page's HTML. What the description holds is data in it: nothing of it is read as markup or script."""
    parts = {
        "title": escape(shorten(headline(description), 200)),
        "style": _read("page.css"),
        "data": json.dumps(description, separators=(",", ":")).replace("<", "\\u003c"),
        "script": "".join(map(_read, _SCRIPTS)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def _read(name: str) -> str:
    return (resources.files("breakgraph.inspect") / "web" / name).read_text(encoding="utf-8")
