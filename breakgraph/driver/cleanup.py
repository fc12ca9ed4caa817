"""Clean-up calls: each is tried twice, and what cannot be cleaned up is told in the error that it belongs to (C5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from breakgraph.errors import DriverError

__all__ = ["add_notes", "attempt"]


def attempt(notes: list[str], what: str, call: Callable[[], object]) -> bool:
    """Make a clean-up call; where it fails, make it once more; where it fails again, note what is left."""
    for last in (False, True):
        try:
            call()
        except DriverError as error:
            if last:
                notes.append(f"{what} failed twice and is left as it is: {error.what}")
        else:
            return True
    return False


def add_notes(error: BaseException, notes: Iterable[str]) -> None:
    """Let an error tell what could not be cleaned up after it."""
    for note in notes:
        error.add_note(f"breakgraph: {note}")
