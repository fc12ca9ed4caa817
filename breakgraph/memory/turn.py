"""An arena serves one capture or replay at a time (C25): who has the turn, and who waits for whom.

asks for it             while it is held by            what happens
any thread              nobody                         has the turn
the thread that has it  itself                         refused: the inner one would overwrite the outer one's bytes
another thread          a thread that goes on          waits
another thread          a thread that waits, itself    refused: both would wait for ever
                        or through others, for a turn
                        of the one that asks
"""

from __future__ import annotations

import threading
import weakref

from breakgraph.errors import CaptureStateError

__all__ = ["Owner", "Turn"]


class Owner:
    """Somebody who takes a turn, and is nothing else."""


class Turn:
    """The right to use one arena, held by an owner from the first step of its capture or replay to the last.

    Giving back what one does not have is nothing, so an owner can promise to give it back before it takes it; and the
    turn of an owner that is dead has ended. So whatever an interrupt breaks into, no turn is held for ever.
    """

    _lock = threading.RLock()  # one for all arenas: a circle goes through several
    _changed = threading.Condition(_lock)
    _waiting: dict[int, Turn] = {}  # noqa: RUF012 - for all arenas too

    def __init__(self) -> None:
        self._owner: weakref.ref[object] | None = None
        self._thread = 0

    @property
    def thread(self) -> int | None:
        """The thread that has it."""
        return None if self._owner is None or self._owner() is None else self._thread

    @property
    def mine(self) -> bool:
        """Whether the calling thread has it."""
        return self.thread == threading.get_ident()

    def held_by(self, owner: object) -> bool:
        return self._owner is not None and self._owner() is owner

    def take(self, owner: object) -> None:
        """Wait until it is free.

        Raises `CaptureStateError` where the calling thread has it already, or where waiting would never end.
        """
        with self._lock:
            me = threading.get_ident()
            try:
                while self.thread is not None:
                    self._refuse_waiting_for(me)
                    self._waiting[me] = self
                    self._changed.wait()
            finally:
                self._waiting.pop(me, None)
            self._thread = me
            self._owner = weakref.ref(owner, self._wake_waiting)

    def give(self, owner: object) -> None:
        """End the owner's turn, if it has it."""
        with self._lock:
            if self.held_by(owner):
                self._owner = None
                self._wake_waiting()

    def _refuse_waiting_for(self, me: int) -> None:
        turn: Turn | None = self
        first = True
        while turn is not None and (thread := turn.thread) is not None:
            if thread == me:
                raise _nested() if first else _circle()
            turn, first = self._waiting.get(thread), False

    def _wake_waiting(self, _: object = None) -> None:
        with self._lock:
            if self._waiting:
                self._changed.notify_all()

    def refuse_nested(self) -> None:
        """Raise `CaptureStateError` where the calling thread has it already."""
        if self.mine:
            raise _nested()


def _nested() -> CaptureStateError:
    return CaptureStateError(
        "a capture or replay was begun inside a break of another one that uses the same arena",
        why="the inner one would overwrite what the outer one's later segments still read (C25)",
        remedy="give one of them an arena of its own: bg.capture(arena=bg.Arena())",
    )


def _circle() -> CaptureStateError:
    return CaptureStateError(
        "a break would wait for an arena whose user waits for the arena of this break",
        why="an arena serves one capture or replay at a time (C25), so both threads would wait for ever",
        remedy="give the graphs that breaks replay arenas that no other thread uses: bg.capture(arena=bg.Arena())",
    )
