"""Automatic garbage collection is off while any capture is open in the process (C8).

A collection inside a segment may run a foreign destructor that frees device memory or destroys a handle,
which invalidates the capture.
"""

from __future__ import annotations

import gc
import threading

__all__ = ["open_captures", "pause_collector", "resume_collector"]

_lock = threading.Lock()
open_captures: set[object] = set()  #: of the whole process
_was_enabled = False


def pause_collector(capture: object) -> None:
    """One more capture is open; the first one switches automatic collection off."""
    global _was_enabled
    with _lock:
        if not open_captures:
            _was_enabled = gc.isenabled()
        open_captures.add(capture)
        gc.disable()


def resume_collector(capture: object) -> None:
    """A capture is open no more, if it was; the last one restores what was found."""
    with _lock:
        if open_captures == {capture} and _was_enabled:
            gc.enable()
        open_captures.discard(capture)
