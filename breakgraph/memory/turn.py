"""An arena serves one capture or replay at a time (C25): who has the turn, and who waits for whom.

asks for it             while it is held by            what happens
any thread              nobody                         has the turn
the thread that has it  itself                         refused: the inner one would overwrite the outer one's bytes
another thread          a thread that goes on          waits
another thread          a thread that has ended       refused: nobody can end that turn any more
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


_nobody = weakref.ref(Owner())
_local = threading.local()


def _this_thread() -> Owner:
    """Stands for the calling thread, and dies with it; its number may be another thread's afterwards."""
    me: Owner = _local.__dict__.setdefault("me", Owner())
    return me


class Turn:
    """The right to use one arena, held by an owner from the first step of its capture or replay to the last.

    Giving back what one does not have is nothing, so an owner can promise to give it back before it takes it; and the
    turn of an owner that is dead has ended. So whatever an interrupt breaks into, no turn is held for ever.
    """

    _lock = threading.RLock()  # one for all arenas: a circle goes through several
    _changed = threading.Condition(_lock)
    _waiting: dict[Owner, Turn] = {}  # noqa: RUF012 - for all arenas too

    def __init__(self) -> None:
        self._owner: weakref.ref[object] | None = None
        self._thread: weakref.ref[Owner] = _nobody

    @property
    def taken(self) -> bool:
        """Whether somebody has it."""
        return self._owner is not None and self._owner() is not None

    @property
    def mine(self) -> bool:
        """Whether the calling thread has it."""
        return self.taken and self._thread() is _this_thread()

    def held_by(self, owner: object) -> bool:
        return self._owner is not None and self._owner() is owner

    def take(self, owner: object) -> None:
        """Wait until it is free.

        Raises `CaptureStateError` where the calling thread has it already, or where waiting would never end.
        """
        with self._lock:
            me = _this_thread()
            try:
                while self.taken:
                    self._refuse_waiting_for(me)
                    self._waiting[me] = self
                    self._changed.wait()
            finally:
                self._waiting.pop(me, None)
            self._thread = weakref.ref(me)
            self._owner = weakref.ref(owner, self._wake_waiting)

    def give(self, owner: object) -> None:
        """End the owner's turn, if it has it."""
        with self._lock:
            if self.held_by(owner):
                self._owner = None
                self._wake_waiting()

    def _refuse_waiting_for(self, me: Owner) -> None:
        turn: Turn | None = self
        first = True
        while turn is not None and turn.taken:
            thread = turn._thread()
            if thread is None:
                raise _ended()
            if thread is me:
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


def _ended() -> CaptureStateError:
    return CaptureStateError(
        "the arena is used by a capture whose thread has ended",
        why="nobody can close that capture any more, so waiting for it would never end (C25)",
        remedy="leave a capture scope in the thread that entered it; give other graphs an arena of their own",
    )


def _circle() -> CaptureStateError:
    return CaptureStateError(
        "a break would wait for an arena whose user waits for the arena of this break",
        why="an arena serves one capture or replay at a time (C25), so both threads would wait for ever",
        remedy="give the graphs that breaks replay arenas that no other thread uses: bg.capture(arena=bg.Arena())",
    )
