"""How far a log of the simulated driver says that the host ran ahead of what it knew to be done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["WITHOUT_LOCK", "InFlight"]

ENQUEUED = ("graph_launch", "memcpy_dtod_async", "memset_d8_async")
WITHOUT_LOCK = "without the lock"  #: a mark before a launch that gives the interpreter lock up


class InFlight:
    """Of the kernels and copies of a log: the most at a time that no event had told to be done.

    It is looked at where something was put on a stream with the interpreter lock. ``nodes`` are those of execs that
    have more than one. The events are those that were queried; what one told has come, or is waited for at once.
    """

    def __init__(self, entries: Iterable[Any], nodes: Mapping[int, int] | None = None) -> None:
        log = list(entries)
        events = {entry.args[0] for entry in log if entry.name == "event_query"}
        recorded: dict[object, int] = {}
        come = self.enqueued = self.most = self.waits = 0
        without_lock = False
        for entry in log:
            if entry.name in ENQUEUED:
                self.enqueued += (nodes or {}).get(entry.args[0], 1) if entry.name == "graph_launch" else 1
                if not without_lock:
                    self.most = max(self.most, self.enqueued - come)
            elif entry.name == "event_record" and entry.args[0] in events:
                recorded[entry.args[0]] = self.enqueued
            elif entry.name in ("event_query", "event_synchronize"):
                self.waits += entry.name == "event_synchronize"
                if entry.result or entry.name == "event_synchronize":
                    come = max(come, recorded.get(entry.args[0], 0))
            without_lock = entry.name == "mark" and entry.args[0] == WITHOUT_LOCK
