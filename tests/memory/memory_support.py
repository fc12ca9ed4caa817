"""What the tests of graph memory share: addresses, forks by event, threads that must come to an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import breakgraph as bg
from breakgraph import frameworks

MIB = 1 << 20
GRANULE = 2 * MIB  # what physical memory is mapped in


def region(array: Any) -> Any:
    """Where a device array lies."""
    framework = frameworks.of(array, bg.driver.current())
    assert framework is not None
    return framework.view(array)


def address(array: Any) -> int:
    """First byte of a device array."""
    return int(region(array).ptr)


def overlap(one: Any, other: Any) -> bool:
    """Whether two device arrays share a byte."""
    return bool(region(one).overlaps(region(other)))


def round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


class Order:
    """Orders streams by events, which live as long as this does, so that none is destroyed inside a segment."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._events: list[Any] = []

    def __call__(self, before: Any, after: Any) -> None:
        """Let stream ``after`` wait for what is on stream ``before`` now: a fork, or a join."""
        event = bg.driver.Event(self._driver.event_create(), self._driver.event_destroy)
        self._events.append(event)
        self._driver.event_record(event.handle, int(before))
        self._driver.stream_wait_event(int(after), event.handle)


def in_threads(driver: Any, *work: Callable[[], Any], seconds: float = 20.0) -> list[Any]:
    """Run each in a thread of its own, in the caller's context; a thread that hangs fails the test.

    Returns what each returned, or the exception that it raised.
    """
    context = driver.ctx_get_current()
    outcomes: list[Any] = [None] * len(work)

    def run(at: int, call: Callable[[], Any]) -> None:
        driver.ctx_set_current(context)
        try:
            outcomes[at] = call()
        except BaseException as error:
            outcomes[at] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(work)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    hung = [at for at, thread in enumerate(threads) if thread.is_alive()]
    if hung:
        pytest.fail(f"threads {hung} of {len(threads)} are still waiting after {seconds} s")
    return outcomes


def all_well(outcomes: list[Any]) -> list[Any]:
    """The outcomes of `in_threads`, none of which may be an exception."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes
