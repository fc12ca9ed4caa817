"""The kill switch: ``BREAKGRAPH_DISABLE=1`` makes every capture of the process inert (C7)."""

from __future__ import annotations

import os
from functools import cache

__all__ = ["capture_disabled"]


@cache
def capture_disabled() -> bool:
    """Whether capture is switched off; the environment is read once per process."""
    return os.environ.get("BREAKGRAPH_DISABLE", "") not in ("", "0")
