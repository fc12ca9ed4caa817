"""The open allocator scopes of a thread: what cupy's allocator was before, and what a segment keeps until it ends."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

from breakgraph.frameworks.base import Allocate, Block, Pushed

__all__ = ["Scope", "entered", "outside", "segment"]


class Scope:
    """An open allocator scope: the arena's ``allocate``, and the allocator that cupy had ``before``, that of breaks."""

    def __init__(self, before: Any, allocate: Allocate) -> None:
        self.before = before
        self._allocate = allocate
        self._workspaces: dict[int, Block] = {}

    @property
    def is_entered(self) -> bool:
        """Whether what this thread does belongs to it: no break has left it."""
        scopes = _open.scopes
        innermost = bool(scopes) and scopes[-1] is self
        return innermost or any(one is self and above is not None for one, above in pairwise(scopes))

    def workspace(self, stream: int, nbytes: int) -> Block:
        """Scratch memory of the arena for work on a stream: one and the same until the segment ends.

        What is on one stream runs one after another, at replay too, so it can share. Were the block dropped after each
        use, the arena would withhold it as long as work is forked (C28), and the next use would take another.
        """
        if stream not in self._workspaces:
            self._workspaces[stream] = self._allocate(nbytes)
        return self._workspaces[stream]

    def end_segment(self) -> None:
        """The segment has ended: what was kept for it may serve others."""
        self._workspaces.clear()


def segment() -> Scope | None:
    """The scope of the segment that this thread is in; None in a break, and where nothing is captured."""
    return _open.scopes[-1] if _open.scopes else None


def entered(scope: Scope) -> Pushed:
    """Be in a segment of a scope inside the block."""
    return Pushed(_open.scopes, scope)


class _Outside:
    """The scope of a break: in no segment, and nothing of the last one is kept."""

    def __enter__(self) -> None:
        scopes = _open.scopes
        scope = scopes[-1]
        assert scope is not None  # it is inside an allocator scope
        scope.end_segment()
        scopes.append(None)

    def __exit__(self, *_: object) -> None:
        _open.scopes.pop()


outside = _Outside()  #: one for all breaks, which it knows nothing of


class _Open(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope | None] = []  # None for a break


_open = _Open()
