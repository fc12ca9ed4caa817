"""Clean-up calls: each is tried twice, and what cannot be cleaned up is told in the error that it belongs to (C5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from breakgraph.errors import DriverError

__all__ = ["add_note", "add_notes", "attempt"]


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


def add_note(error: BaseException, note: str) -> None:
    """Let an error tell more, if it takes notes: one that is a frozen dataclass does not, and goes on as it is."""
    with suppress(Exception):
        error.add_note(note)


def add_notes(error: BaseException, notes: Iterable[str]) -> None:
    """Let an error tell what could not be cleaned up after it."""
    for note in notes:
        add_note(error, f"breakgraph: {note}")
