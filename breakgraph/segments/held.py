"""A turn of an arena, for a capture or replay and what belongs to it before and after (C25)."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self

from breakgraph.driver.cleanup import add_notes, attempt
from breakgraph.driver.here import here
from breakgraph.memory import Arena, Footprint
from breakgraph.segments.landing import Place
from breakgraph.segments.state import Running

__all__ = ["Held"]


class Held(Running):
    """The arena is ours inside the scope, and its last use is what is on ``stream`` at the end.

    Without a ``place`` it waits for whoever has it; see `Running.check`. Raises `CaptureStateError` where it cannot be
    had (`Arena.acquire`).
    """

    __slots__ = ("arena", "footprint")

    def __init__(self, arena: Arena, stream: int, valid_rows: int | None = None, place: Place | None = None) -> None:
        super().__init__(place, stream, valid_rows, here.capture)
        self.arena = arena
        self.footprint: Footprint | None = None

    def __enter__(self) -> Self:
        try:
            self.arena.acquire(self, self.stream)
        except BaseException:
            self.arena.release(self)  # the turn may have come before the error
            raise
        return self

    def begin_capture(self) -> Footprint:
        """What is allocated from here on is the capture's that follows in this turn."""
        self.footprint = Footprint()
        self.arena.begin_capture(self.footprint)
        return self.footprint

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if error is None:
                self.arena.record_use(self.stream)
                return
            notes: list[str] = []
            attempt(notes, "marking the arena's last use", partial(self.arena.record_use, self.stream))
            add_notes(error, notes)
        finally:
            self.arena.release(self)
