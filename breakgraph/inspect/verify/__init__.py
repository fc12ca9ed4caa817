"""Eager against replay, value by value: which step first gives another number, and what is likeliest to blame."""

from breakgraph.inspect.verify.rounds import verify
from breakgraph.segments.verification import Cause, Difference, Verification

__all__ = ["Cause", "Difference", "Verification", "verify"]
