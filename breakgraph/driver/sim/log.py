"""S6: the ordered log of driver calls, with marks in it, and their counts."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

__all__ = ["CallLog", "Entry"]

_LONGEST = 400_000  # entries; beyond it the older half goes, so that a service may run for days


@dataclass(slots=True)
class Entry:
    """One driver call, or a mark.

    ``name`` is the call's name (``"mark"`` for a mark, its text being the only one of ``args``), ``thread``
    the identity of the calling thread, ``result`` what the call returned, ``error`` the result code it
    failed with (0 if it did not).
    """

    name: str
    args: tuple[object, ...]
    thread: int
    result: object = None
    error: int = 0


class CallLog:
    """Keeps what was called, in order. Holds ints and names only, so it keeps no array alive."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.calls: Counter[str] = Counter()

    def begin(self, name: str, args: tuple[object, ...]) -> Entry:
        """Note that a call was made. Its outcome is filled in when it returns."""
        entry = Entry(name, args, threading.get_ident())
        if len(self.entries) >= _LONGEST:
            del self.entries[: _LONGEST // 2]
        self.entries.append(entry)
        self.calls[name] += 1
        return entry

    def mark(self, text: str) -> None:
        """Place a mark between two calls. It is not counted as a call."""
        self.entries.append(Entry("mark", (text,), threading.get_ident()))
