"""Views of a graph: report, DOT, traces, the page, all drawn from one description; and its verification.

`BreakableGraph` has them as methods; importing this room is what puts them there.
"""

from breakgraph.inspect import views
from breakgraph.inspect.description import describe
from breakgraph.inspect.schema import SCHEMA, GraphDescription, load
from breakgraph.inspect.verify import Cause, Difference, Verification
from breakgraph.segments.views import Viewed

__all__ = ["SCHEMA", "Cause", "Difference", "GraphDescription", "Verification", "describe", "load"]

Viewed.views = views
