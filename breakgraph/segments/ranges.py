"""NVTX ranges around the steps of every replay, for Nsight Systems and other tools: ``BREAKGRAPH_NVTX=1``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from breakgraph.segments.callers import warn
from breakgraph.segments.landing import Place
from breakgraph.segments.steps import Break, Step

__all__ = ["Ranges", "ranges_asked_for"]


class Ranges:
    """The ranges of one graph's replays, of which at most one is open: a thread replays a graph at a time.

    Called with a step, it gives what opens and what closes its range.
    """

    def __init__(self, domain: Any) -> None:
        self._domain = domain
        self._open = False

    def __call__(self, step: Step, place: Place) -> tuple[Callable[[], object], Callable[[], object]]:
        name = f"break {step.index} {step.name}" if isinstance(step, Break) else f"segment {step.index}"
        attributes = self._domain.get_event_attributes(message=name)

        def push() -> None:
            self._domain.push_range(attributes)
            self._open = True

        return push, self.close

    def close(self) -> None:
        """Close the range that is open, if one is: a step that raises has left it so."""
        if self._open:
            self._open = False
            self._domain.pop_range()


def ranges_asked_for() -> Ranges | None:
    """Ranges for another graph; None where they are not asked for, or nvtx is not installed."""
    domain = _domain()
    return None if domain is None else Ranges(domain)


@cache
def _domain() -> Any:
    """The domain of all ranges; the environment is read once per process."""
    if os.environ.get("BREAKGRAPH_NVTX", "") in ("", "0"):
        return None
    try:
        import nvtx
    except ImportError:
        warn(
            "BREAKGRAPH_NVTX is set, and nvtx is not installed: replays have no ranges; pip install 'breakgraph[nvtx]'"
        )
        return None
    return nvtx.get_domain("breakgraph")
