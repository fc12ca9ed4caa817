"""Streams and events: what is enqueued last on them, and the captures they are part of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from breakgraph.driver.api import EdgeData
from breakgraph.driver.sim.operations import Operation
from breakgraph.driver.sim.races import Clock, Lane

if TYPE_CHECKING:
    from breakgraph.driver.sim.capture import Capture
    from breakgraph.driver.sim.contexts import Context
    from breakgraph.driver.sim.graphs import Node

__all__ = ["Event", "Record", "Stream"]

Heads = dict["Node", EdgeData]


class Stream:
    """A stream. ``heads`` are the nodes that its next node depends on, while it is in a capture."""

    def __init__(self, handle: int, context: Context, *, blocking: bool) -> None:
        self.handle = handle
        self.context = context
        self.blocking = blocking
        self.lane = Lane()
        self.capture: Capture | None = None
        self.heads: Heads = {}
        self._frontier: list[Operation] = []

    @property
    def frontier(self) -> list[Operation]:
        """The enqueued operations that the next one on this stream comes after, the legacy stream's rules aside."""
        self._frontier = [operation for operation in self._frontier if not operation.done]
        return self._frontier

    def follow(self, operations: list[Operation]) -> None:
        """The next operation comes after these as well."""
        self._frontier = self.frontier + [one for one in operations if not one.done and one not in self._frontier]

    def advance(self, operation: Operation) -> None:
        """``operation`` is the last one now."""
        self._frontier = [operation]


class Record:
    """One recording of an event: done when its operation is. ``time`` in seconds, once it is."""

    __slots__ = ("_operation", "clock", "time")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._operation: Operation | None = None
        self.time = 0.0

    @property
    def operation(self) -> Operation:
        """The operation in the stream, enqueued right after the recording was made."""
        assert self._operation is not None
        return self._operation

    @operation.setter
    def operation(self, operation: Operation) -> None:
        self._operation = operation

    def reach(self) -> None:
        """The stream has come to it."""
        self.time = time.perf_counter()


class Event:
    """An event: last recorded in a stream (``record``), or in a capture (``capture`` and ``heads``), or never."""

    def __init__(self, handle: int, context: Context, *, timing: bool) -> None:
        self.handle = handle
        self.context = context
        self.timing = timing
        self.record: Record | None = None
        self.capture: Capture | None = None
        self.heads: Heads = {}
