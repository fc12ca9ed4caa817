"""Automatic garbage collection is off while any capture is open in the process (C8).

A collection inside a segment may run a foreign destructor that frees device memory or destroys a handle,
which invalidates the capture.
"""

from __future__ import annotations

import gc
import threading

__all__ = ["pause_collector", "resume_collector"]

_lock = threading.Lock()
_open: set[object] = set()
_was_enabled = False


def pause_collector(capture: object) -> None:
    """One more capture is open; the first one switches automatic collection off."""
    global _was_enabled
    with _lock:
        if not _open:
            _was_enabled = gc.isenabled()
        _open.add(capture)
        gc.disable()


def resume_collector(capture: object) -> None:
    """A capture is open no more, if it was; the last one restores what was found."""
    with _lock:
        if _open == {capture} and _was_enabled:
            gc.enable()
        _open.discard(capture)
