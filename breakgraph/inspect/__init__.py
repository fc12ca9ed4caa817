"""Read-only views of a graph: report, DOT, traces, the page. All are drawn from one description.

`BreakableGraph` has them as methods; importing this room is what puts them there.
"""

from breakgraph.inspect import views
from breakgraph.inspect.description import describe
from breakgraph.inspect.schema import SCHEMA, GraphDescription, load
from breakgraph.segments.views import Viewed

__all__ = ["SCHEMA", "GraphDescription", "describe", "load"]

Viewed.views = views
