"""A progress bar, where there is a person to see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["track"]

T = TypeVar("T")


def track(items: Sequence[T], what: str) -> Iterator[T]:
    """Go through ``items``, and show how far that is: on stderr if it is a terminal, with rich if it is installed."""
    if not sys.stderr.isatty():
        yield from items
        return
    try:
        from rich.console import Console
        from rich.progress import track as bar
    except ImportError:
        for at, item in enumerate(items, start=1):
            print(f"\r{what}: {at} of {len(items)}", end="", file=sys.stderr, flush=True)
            yield item
        print(file=sys.stderr)
        return
    yield from bar(items, what, console=Console(stderr=True))
