"""The form of what is found, and of the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from breakgraph.doctor.facts import Facts

__all__ = ["Check", "Finding", "Severity"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing found: an ``error`` stops captures, a ``warning`` will hurt some, a ``note`` explains.

    ``code`` is its name for programs, and stays the same between versions.
    """

    severity: Severity
    code: str
    what: str
    why: str
    remedy: str


#: One check: what it finds in the facts, if anything.
Check = Callable[[Facts], Finding | None]
