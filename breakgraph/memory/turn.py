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

from breakgraph.driver.here import Thread, here
from breakgraph.driver.quick import Claim
from breakgraph.errors import CaptureStateError

__all__ = ["Owner", "Turn"]


class Owner:
    """Somebody who takes a turn."""

    __slots__ = ("__weakref__",)

    def check(self, holder: Owner) -> None:
        """Raise where it makes no sense to wait for ``holder``, who has the turn."""


class Turn:
    """The right to use one arena, held by an owner from the first step of its capture or replay to the last.

    Giving back what one does not have is nothing, so an owner can promise to give it back before it takes it; and the
    turn of an owner that is dead has ended. So whatever an interrupt breaks into, no turn is held for ever.
    """

    _lock = threading.RLock()  # one for all arenas: a circle goes through several
    _changed = threading.Condition(_lock)
    waiting: dict[Thread, Turn] = {}  # noqa: RUF012 - who waits for which; for all arenas too

    def __init__(self) -> None:
        self.claim = Claim()

    @property
    def owner(self) -> Owner | None:
        """Who has it."""
        owner: Owner | None = self.claim.owner
        return owner

    @property
    def mine(self) -> bool:
        """Whether the calling thread has it."""
        return self.owner is not None and self.claim.thread is here.me

    def take(self, owner: Owner) -> None:
        """Wait until it is free.

        Raises `CaptureStateError` where the calling thread has it already, or where waiting would never end; and what
        the owner's own check raises.
        """
        reference, thread = weakref.ref(owner, self.wake_waiting), here.reference
        if not self.claim.take(reference, thread):
            self._wait(owner, reference, thread)

    def _wait(self, owner: Owner, reference: weakref.ref[Owner], thread: weakref.ref[Thread]) -> None:
        me = here.me
        with self._lock:
            self.waiting[me] = self  # first: whoever gives it back from now on wakes us
            try:
                while not self.claim.take(reference, thread):
                    if (holder := self.owner) is not None:
                        self._refuse_waiting_for(me)
                        owner.check(holder)
                        self._changed.wait(1)  # an interrupt may have kept somebody from telling us
            finally:
                self.waiting.pop(me, None)

    def give(self, owner: Owner) -> None:
        """End the owner's turn, if it has it."""
        if self.claim.give(owner):
            self.wake_waiting()

    def _refuse_waiting_for(self, me: Thread) -> None:
        turn: Turn | None = self
        first = True
        while turn is not None and (holder := turn.owner) is not None:
            thread = turn.claim.thread
            if turn.owner is not holder:
                return  # has ended meanwhile, so the thread may be another one's, or have ended too
            if thread is None:
                raise _ended()
            if thread is me:
                raise _nested() if first else _circle()
            turn, first = self.waiting.get(thread), False

    def wake_waiting(self, _: object = None) -> None:
        """Somebody's turn has ended, by whatever way."""
        if self.waiting:
            with self._lock:
                self._changed.notify_all()


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
