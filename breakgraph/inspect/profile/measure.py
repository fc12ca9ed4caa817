"""The replays of a profile. Three kinds of them run in turn, so that what changes on the machine changes for all.

    plain      |<---------------------- wall time ---------------------->|
    whole      e ----------------------------------------------------- e |
    in steps   e segment 0 e break 0 e segment 1 e break 1 e segment 2 e |

An event (e) is recorded between two steps, and the host notes when it came there and when it left. What the events of
a replay in steps cost is what it takes longer than a whole one, from its first event to its last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np

from breakgraph import driver as drivers
from breakgraph.driver import Driver, Event
from breakgraph.driver.api import EventFlag
from breakgraph.driver.contexts import in_context
from breakgraph.errors import CaptureStateError
from breakgraph.inspect.profile.advice import advise
from breakgraph.inspect.profile.timeline import Samples, Timeline
from breakgraph.segments.flat_list import Call
from breakgraph.segments.graph import BreakableGraph, row_count
from breakgraph.segments.landing import Place
from breakgraph.segments.replay import Marks, Prepared, Replay
from breakgraph.segments.steps import Break, Segment, Step
from breakgraph.segments.timing import Profile, StepProfile

__all__ = ["profile"]

_WARM = 2  # rounds that do not count
_EMPTY = 64  # events in a row, to see what noting the time costs the host


def profile(graph: BreakableGraph, n: int, *, stream: object, valid_rows: int | None) -> Profile:
    """See `Viewed.profile`."""
    replay = graph.replayable()
    valid_rows = None if valid_rows is None else row_count(valid_rows)
    if n < 1:
        raise ValueError(f"n is how many replays are timed, and at least 1, not {n}")
    holdings, steps = graph.holdings, graph.steps
    assert holdings is not None  # it can be replayed
    driver = replay.driver
    with in_context(driver, holdings.context), _events(driver, len(steps) + 1) as events:
        bench = _Bench(graph, replay, stream, valid_rows, events)
        samples = bench.run(n)
        device = driver.device_get_name(driver.ctx_get_device())
    timeline = Timeline.of(samples)
    rows = tuple(_row(at, step, timeline) for at, step in enumerate(steps))
    return Profile(
        name=graph.name or "",
        device=device,
        simulated=driver.name == "sim",
        rounds=n,
        replays=bench.replays,
        wall_us=timeline.wall,
        before_us=timeline.before,
        after_us=timeline.after,
        steps=rows,
        event_us=timeline.event_us,
        advice=advise(rows, timeline.total),
    )


def _row(at: int, step: Step, timeline: Timeline) -> StepProfile:
    cpu, gap, gpu = timeline.cpu[at], timeline.gap[at], timeline.gpu[at]
    is_break = isinstance(step, Break)
    return StepProfile(
        at=at,
        kind="break" if is_break else "segment",
        index=step.index,
        name=step.name if isinstance(step, Break) else "",
        site=step.site if isinstance(step, Break) else "",
        tag=step.tag if isinstance(step, Break) else None,
        nodes=step.nodes if isinstance(step, Segment) else 0,
        cpu_us=cpu,
        gap_us=gap,
        gpu_us=gpu,
        share=(gap.typical + gpu.typical) / timeline.total,
    )


@contextmanager
def _events(driver: Driver, count: int) -> Iterator[list[Event]]:
    """Events that tell the time, which are destroyed at the end."""
    events: list[Event] = []
    try:
        for _ in range(count):
            events.append(Event(driver.event_create(EventFlag.DEFAULT), driver.event_destroy))  # noqa: PERF401 - C5
        yield events
    finally:
        for event in events:
            event.close()


@dataclass
class _Stamps:
    """When the host came to each event of one replay and left it, in nanoseconds, one after the other."""

    ns: list[int] = field(default_factory=list)

    def mark(self, driver: Driver, event: Event, place: Place) -> Call:
        """What records an event where a replay has come to."""
        handle, record = event.handle, driver.event_record

        def tick() -> None:
            entered = perf_counter_ns()
            record(handle, place.stream)
            self.ns += (entered, perf_counter_ns())

        return tick


class _Bench:
    """One graph, and the replays of it that are timed."""

    def __init__(
        self, graph: BreakableGraph, replay: Replay, stream: object, valid_rows: int | None, events: list[Event]
    ) -> None:
        self._graph, self._replay, self._driver = graph, replay, replay.driver
        self._stream, self._valid_rows = stream, valid_rows
        self._handle = replay.stream_for(graph, stream)
        self._events = events
        self._stamps = _Stamps()
        last = len(events) - 2
        rows = valid_rows is not None
        self._in_steps = replay.prepare(rows=rows, marks=[self._marks(range(last + 1))])
        self._whole = replay.prepare(rows=rows, marks=[self._marks((last,))])
        self.replays = 0

    def _marks(self, after: range | tuple[int, ...]) -> Marks:
        """An event before the first step, and one after each of these."""
        places = iter(range(len(self._events) - 1))

        def marks(_: Step, place: Place) -> tuple[Call | None, Call | None]:
            at = next(places)
            first = self._stamps.mark(self._driver, self._events[0], place) if at == 0 else None
            return first, self._stamps.mark(self._driver, self._events[at + 1], place) if at in after else None

        return marks

    def run(self, n: int) -> Samples:
        """Replay ``n`` times in each of the ways, after the rounds that do not count."""
        found: dict[str, list[Any]] = {name: [] for name in ("wall", "whole", "entered", "left", "device", "ended")}
        events = range(1, len(self._events))

        def plain() -> None:
            _, spent = self._timed(lambda: self._graph.replay(stream=self._stream, valid_rows=self._valid_rows))
            found["wall"].append(spent)

        def whole() -> None:
            self._timed(lambda: self._run(self._whole))
            found["whole"].append(self._reached(events[-1]))

        def in_steps() -> None:
            start, spent = self._timed(lambda: self._run(self._in_steps))
            stamps = (np.array(self._stamps.ns) - start) / 1e3
            found["entered"].append(stamps[::2])
            found["left"].append(stamps[1::2])
            found["device"].append([0.0, *map(self._reached, events)])
            found["ended"].append(spent)

        ways = (plain, whole, in_steps)
        self._wait()
        empty = self._empty()
        for at in range(_WARM + n):
            for way in (*ways[at % 3 :], *ways[: at % 3]):
                way()
        return Samples(**{name: np.array(values[_WARM:]) for name, values in found.items()}, empty=empty)

    def _run(self, prepared: Prepared) -> None:
        if not self._replay.run(self._graph, self._stream, self._valid_rows, prepared):
            raise CaptureStateError(
                f"{self._graph!r} was reset while it was profiled",
                why="the steps that were being timed are gone",
                remedy="let the profile end first",
            )
        self._graph.replays += 1

    def _timed(self, replay: Call) -> tuple[int, float]:
        """When it began, in nanoseconds, and how long it took until the device was done, in microseconds."""
        self._stamps.ns.clear()
        start = perf_counter_ns()
        replay()
        self._wait()
        spent = perf_counter_ns() - start
        self.replays += 1
        return start, spent / 1e3

    def _wait(self) -> None:
        with drivers.relaxed(self._driver):  # where another thread captures in global mode, waiting would harm it (C8)
            self._driver.stream_synchronize(self._handle)

    def _reached(self, at: int) -> float:
        """Microseconds of the device from the first event to another one."""
        return 1e3 * self._driver.event_elapsed_time(self._events[0].handle, self._events[at].handle)

    def _empty(self) -> float:
        """What the host needs from one event to the next with no step between them."""
        place = Place()
        tick = self._stamps.mark(self._driver, self._events[0], place)
        self._stamps.ns.clear()
        self._driver.sequence([(0, tick)] * _EMPTY, place).run(self._handle)
        self._wait()
        stamps = np.array(self._stamps.ns)
        return float(np.median(stamps[2::2] - stamps[1:-1:2])) / 1e3
