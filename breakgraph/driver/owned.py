"""Streams and events that destroy themselves once: when they are closed, or dropped."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress

from breakgraph.driver.stream import StreamHandle
from breakgraph.errors import DriverError

__all__ = ["Event", "Owned", "Stream"]


class Owned:
    """Owns one handle.

    Of the driver, whose method ``destroy`` is, it holds a weak reference: what a driver keeps for a thread must
    not keep the driver, and a driver that is gone has nothing left to destroy.
    """

    def __init__(self, handle: int, destroy: Callable[[int], None]) -> None:
        self.handle = handle
        self._finalizer = weakref.finalize(self, _destroy, handle, weakref.WeakMethod(destroy), os.getpid())
        self._finalizer.atexit = False  # at exit the driver takes everything with it (C27)

    def close(self) -> None:
        """Destroy it now; a second call does nothing."""
        self._finalizer()


class Stream(StreamHandle, Owned):
    """A stream of its own. Work already on it completes after it is destroyed."""

    def __init__(self, handle: int, destroy: Callable[[int], None]) -> None:
        Owned.__init__(self, handle, destroy)


class Event(Owned):
    """An event of its own."""


def _destroy(handle: int, method: weakref.WeakMethod[Callable[[int], None]], pid: int) -> None:
    destroy = method()
    if destroy and os.getpid() == pid and not sys.is_finalizing():  # a forked child's handles are its parent's
        with suppress(DriverError):  # its context is gone, and it with it
            destroy(handle)
