"""What the calling thread is doing, in one place, since every replay asks for all of it."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["Thread", "here"]


class Thread:
    """Stands for a thread, and dies with it; its number may be another thread's afterwards."""

    __slots__ = ("__weakref__",)


class _Here(threading.local):
    """The calling thread's own.

    Attributes
    ----------
    me, reference
        Who it is, and a weak reference to that.
    streams
        Of the open scopes of libraries that have no current stream themselves, the innermost last.
    capture
        The open capture, or who stands in for it; or None (C4).
    inert
        The open capture scopes that only run their bodies (C7).
    replays
        Those under way, the innermost last. Weakly: one that was interrupted is under way no more.
    contexts
        The forward contexts that are published, the innermost last (C19).
    """

    def __init__(self) -> None:
        self.me = Thread()
        self.reference = weakref.ref(self.me)
        self.streams: list[int] = []
        self.capture: Any = None
        self.inert: list[object] = []
        self.replays: list[weakref.ref[Any]] = []
        self.contexts: list[Any] = []


here = _Here()
