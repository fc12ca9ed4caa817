"""The functions behind the methods of `breakgraph.segments.views.Viewed`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from breakgraph.errors import BreakgraphError
from breakgraph.inspect import chrome, dot, notebook, page
from breakgraph.inspect import report as reports
from breakgraph.inspect.description import describe
from breakgraph.inspect.profile import profile, profile_table
from breakgraph.inspect.verify import verify
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.views import StepTimes, TraceFormat

__all__ = ["profile", "profile_table", "report", "save_trace", "summary_html", "to_dot", "verify"]


def report(graph: BreakableGraph) -> str:
    """See `Viewed.report`."""
    return reports.report(describe(graph))


def to_dot(graph: BreakableGraph) -> str:
    """See `Viewed.to_dot`."""
    return dot.to_dot(describe(graph))


def summary_html(graph: BreakableGraph) -> str:
    """See `Viewed._repr_html_`."""
    return notebook.summary(describe(graph))


def save_trace(
    graph: BreakableGraph,
    file: str | os.PathLike[str],
    *,
    format: TraceFormat,  # noqa: A002 - the name that users of traces know
    times: Sequence[StepTimes] | None,
) -> None:
    """See `Viewed.save_trace`."""
    description = describe(graph, times)
    if format == "json":
        text = json.dumps(description, indent=1)
    elif format == "chrome":
        text = json.dumps(chrome.chrome_trace(description))
    elif format == "html":
        text = page.page(description)
    else:
        raise BreakgraphError(f"no trace has the format {format!r}", remedy='choose "json", "chrome" or "html"')
    Path(file).write_text(text, encoding="utf-8")
