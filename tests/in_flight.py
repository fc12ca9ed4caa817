"""How far a log of the simulated driver says that the host ran ahead of what it knew to be done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["InFlight"]

ENQUEUED = ("graph_launch", "memcpy_dtod_async", "memset_d8_async")


class InFlight:
    """Of the launches and copies of some entries: the most at a time that no event had told to be done.

    The events are those that were queried, which only a backlog does.
    """

    def __init__(self, entries: Iterable[Any]) -> None:
        log = list(entries)
        events = {entry.args[0] for entry in log if entry.name == "event_query"}
        recorded: dict[object, int] = {}
        come = self.enqueued = self.most = self.waits = 0
        for entry in log:
            if entry.name in ENQUEUED:
                self.enqueued += 1
                self.most = max(self.most, self.enqueued - come)
            elif entry.name == "event_record" and entry.args[0] in events:
                recorded[entry.args[0]] = self.enqueued
            elif entry.name == "event_query":
                self.waits += 1
                come = max(come, recorded.get(entry.args[0], 0))
