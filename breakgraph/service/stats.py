"""What a graphed function has done so far."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["Counts", "Fallback", "GraphedStats"]


class Fallback(enum.StrEnum):
    """Why a call ran the function itself."""

    INERT = "inert"  #: capture is switched off, or the driver cannot (C7)
    DISABLED = "disabled"  #: there are no buckets: ``buckets=()``
    INSIDE = "inside"  #: in a segment, whose capture it became a part of; in a break that cannot capture or replay it
    LARGER = "larger"  #: more rows than the largest bucket
    FULL = "full"  #: ``max_graphs`` are captured
    REFUSED = "refused"  #: the capture was refused before anything of the function ran
    FAILED = "failed"  #: the library or the driver gave up an earlier capture of the same kind
    CLOSED = "closed"


@dataclass(frozen=True)
class GraphedStats:
    """A snapshot.

    Attributes
    ----------
    calls
        All of them: ``hits``, ``captures``, those that ran the function itself, and those that raised.
    hits
        Calls that a graph served.
    captures
        Graphs captured, by calls and by `precapture`.
    fallbacks
        How many calls ran the function itself, by reason.
    rows, padded_rows
        Real rows of the calls with buckets that a graph served or was captured by, and those added to them.
    by_size
        How many such calls there were of each size.
    """

    calls: int = 0
    hits: int = 0
    captures: int = 0
    fallbacks: Mapping[Fallback, int] = field(default_factory=dict)
    rows: int = 0
    padded_rows: int = 0
    by_size: Mapping[int, int] = field(default_factory=dict)

    @property
    def padding(self) -> float:
        """The fraction of all rows computed that was padding."""
        return self.padded_rows / max(self.rows + self.padded_rows, 1)


class Counts:
    """Counts for a `GraphedStats`, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a destructor may call a graphed function in the middle of it
        self._calls = self._hits = self._captures = self._rows = self._padded = 0
        self._fallbacks: Counter[Fallback] = Counter()
        self._by_size: Counter[int] = Counter()

    def call(self) -> None:
        with self._lock:
            self._calls += 1

    def fallback(self, reason: Fallback) -> bool:
        """Count one. Whether it is the first for this reason."""
        with self._lock:
            self._fallbacks[reason] += 1
            return self._fallbacks[reason] == 1

    def served(self, rows: int | None, size: int | None, *, captured: bool) -> None:
        with self._lock:
            self._captures += captured
            self._hits += not captured
            if rows is not None and size is not None:
                self._rows += rows
                self._padded += size - rows
                self._by_size[size] += 1

    def precaptured(self, count: int) -> None:
        with self._lock:
            self._captures += count

    def snapshot(self) -> GraphedStats:
        with self._lock:
            fallbacks, by_size = MappingProxyType(dict(self._fallbacks)), MappingProxyType(dict(self._by_size))
            return GraphedStats(self._calls, self._hits, self._captures, fallbacks, self._rows, self._padded, by_size)
