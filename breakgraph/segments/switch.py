"""What the environment decides for every capture of the process, read once."""

from __future__ import annotations

import os
from functools import cache

__all__ = ["capture_disabled", "debug_everywhere"]


@cache
def capture_disabled() -> bool:
    """The kill switch ``BREAKGRAPH_DISABLE=1``: every capture is inert (C7)."""
    return _is_set("BREAKGRAPH_DISABLE")


@cache
def debug_everywhere() -> bool:
    """``BREAKGRAPH_DEBUG=1``: every capture is one with ``debug=True``."""
    return _is_set("BREAKGRAPH_DEBUG")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")
