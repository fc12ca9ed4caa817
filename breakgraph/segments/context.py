"""The forward context: what one forward wants its breaks to see, live at every replay (C19)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from breakgraph.driver.here import here
from breakgraph.segments.state import replay_under_way

__all__ = ["active_forward", "current_forward", "current_valid_rows"]

T = TypeVar("T")


@contextmanager
def active_forward(ctx: T) -> Iterator[T]:
    """Publish the calling thread's forward context inside the block; blocks may nest.

    Parameters
    ----------
    ctx
        Whatever the breaks of one forward want to see: lengths, positions, a request. A break argument that *is* the
        context published at capture is replaced by the one published at replay (C19); it is told by identity.

    Yields
    ------
    ctx
        The same object.
    """
    here.contexts.append(ctx)
    try:
        yield ctx
    finally:
        here.contexts.pop()


def current_forward() -> Any:
    """The context published last in this thread, or None."""
    return here.contexts[-1] if here.contexts else None


def current_valid_rows() -> int | None:
    """``valid_rows`` of the replay under way in this thread; None outside one, and where none was given.

    In the breaks of a capture that `breakgraph.graphed` makes of a padded call, it is what it will be at replay.
    """
    running, capture = replay_under_way(), here.capture
    if running is not None and running.inside is capture:  # the replay is the inner one of the two
        return running.valid_rows
    return capture.valid_rows if capture is not None else None
