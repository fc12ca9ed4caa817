"""What the tests of streams and threads share: side streams and their forks, threads that must come to an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from support import Order, holds, on_stream, refill, zeros

import breakgraph as bg
from breakgraph.driver.api import CaptureStatus


class StreamWait:
    """Orders streams as the wait call of an array library does: by an event that nobody sees, gone at once."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __call__(self, before: Any, after: Any) -> None:
        event = self._driver.event_create()
        self._driver.event_record(event, int(before))
        self._driver.stream_wait_event(int(after), event)
        self._driver.event_destroy(event)


class Mixed:
    """Forks by events and joins by stream waits, or the other way round, in turn."""

    def __init__(self, driver: Any) -> None:
        self._ways = [Order(driver), StreamWait(driver)]

    def __call__(self, before: Any, after: Any) -> None:
        self._ways.reverse()
        self._ways[0](before, after)


WAYS: dict[str, Callable[[Any], Any]] = {"events": Order, "stream waits": StreamWait, "mixed": Mixed}


class Scene:
    """An input ``x``, an output ``main`` of the origin and one of each side stream, all outside the arena."""

    def __init__(self, driver: Any, xp: Any, sides: int = 1, way: Callable[[Any], Any] = Order) -> None:
        self.driver = driver
        self.x, self.main = zeros(xp), zeros(xp)
        self.outs = [zeros(xp) for _ in range(sides)]
        self.sides = [driver.create_stream() for _ in range(sides)]
        self.order = way(driver)
        driver.synchronize()

    def on(self, at: int = 0) -> Any:
        """A scope in which a side stream is the current one."""
        return on_stream(self.x, self.sides[at])

    def fork(self, at: int = 0, source: int | None = None) -> Any:
        """Let a side stream wait for the origin, or for the side ``source``; a scope in which it is the current one."""
        self.order(bg.current_stream() if source is None else self.sides[source], self.sides[at])
        return self.on(at)

    def join(self, at: int = 0, into: int | None = None) -> None:
        """Let the origin, or the side ``into``, wait for a side stream."""
        self.order(self.sides[at], bg.current_stream() if into is None else self.sides[into])

    def put(self, x: float) -> None:
        """New input, and outputs that no forward writes; all of it there when this returns."""
        self.driver.synchronize()
        refill(self.x, x)
        for out in (self.main, *self.outs):
            refill(out, -1)
        self.driver.synchronize()

    def replay(self, graph: Any, x: float, **options: Any) -> None:
        """Replay with new input, and wait for it."""
        self.put(x)
        graph.replay(**options)
        self.driver.synchronize()

    @property
    def values(self) -> list[float]:
        """Of ``main`` and of each side's output, which must be alike in all elements."""
        self.driver.synchronize()
        hosts = [out.get() for out in (self.main, *self.outs)]
        assert all(bool((host == host[0]).all()) for host in hosts), hosts
        return [float(host[0]) for host in hosts]

    def check_sides_usable(self) -> None:
        """Every side stream captures nothing, and work on it runs."""
        self.driver.synchronize()
        for side, out in zip(self.sides, self.outs, strict=True):
            assert self.driver.stream_is_capturing(int(side)) == CaptureStatus.NONE
            with on_stream(out, side):
                np.add(self.x, 1000, out=out)
            self.driver.stream_synchronize(int(side))
            assert holds(out, self.x.get() + 1000)


def full_text(error: BaseException | None) -> str:
    """All that an error says: itself, its notes, and those it was raised from."""
    said: list[str] = []
    while error is not None:
        said += [str(error), *getattr(error, "__notes__", ())]
        error = error.__cause__
    return "\n".join(said)
