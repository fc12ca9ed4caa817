"""Automatic garbage collection is off while any capture is open in the process (C8).

A collection inside a segment may run a foreign destructor that frees device memory or destroys a handle,
which invalidates the capture.
"""

from __future__ import annotations

import gc
import threading

__all__ = ["pause_collector", "resume_collector"]

_lock = threading.Lock()
_open = 0
_was_enabled = False


def pause_collector() -> None:
    """Count one more open capture; the first one switches automatic collection off."""
    global _open, _was_enabled
    with _lock:
        if not _open:
            _was_enabled = gc.isenabled()
            gc.disable()
        _open += 1


def resume_collector() -> None:
    """Count one fewer; the last one restores what was found."""
    global _open
    with _lock:
        _open -= 1
        if not _open and _was_enabled:
            gc.enable()
