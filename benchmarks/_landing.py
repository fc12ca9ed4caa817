"""Landing a break's fresh result of 4 KiB in its destination, against one bare copy of as many bytes.

A replay of 64 breaks and one kernel is timed with breaks that do nothing, with breaks whose result lands in a
destination each, and with breaks that make the bare copy themselves. What each adds to the first, for one break, is
what is compared with the bare copy in a loop: `cuMemcpyDtoDAsync` of the bindings on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

import breakgraph as bg
from benchmarks import _peers
from benchmarks._report import Report
from benchmarks._timing import in_turn, per_call, ratio, timed
from breakgraph import frameworks

__all__ = ["measure"]

_BREAKS = 64
_ELEMENTS = 1024  # float32
_RESULTS = 97  # arrays that are returned in turn: a break never sees again at once what it has just returned
_BOUND = 1.3

NOTHING, LANDED, COPIED = "break that does nothing", "break whose result lands", "break that copies"
BARE = "bare copy in a loop"


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add a line of what was timed, one of what it means for one break, and the row that has a bound."""
    breaks = 3 if small else _BREAKS
    with _peers.current_stream() as stream, ExitStack() as stack, report.part("landing of 4 KiB", family="landing"):
        forward = _Forward(breaks, stream)
        replays = {arm: stack.enter_context(closing(forward.captured(arm))).replay for arm in (NOTHING, LANDED, COPIED)}
        arms = {arm: timed(replay) for arm, replay in replays.items()}
        arms[BARE] = per_call(forward.bare_copy, breaks)
        times = in_turn(arms, rounds, between=partial(bg.driver.current().stream_synchronize, stream))
        loop = times.pop(BARE)
        report.compare(f"replay of {breaks} breaks, the call", times)
        each = {arm: times[arm].minus(times[NOTHING]).over(breaks) for arm in (LANDED, COPIED)} | {BARE: loop}
        report.compare("of one break", each)
        report.speed(f"{LANDED}/{BARE}", ratio(each[LANDED], loop), bound=_BOUND)
        report.speed(f"{LANDED}/{COPIED}", ratio(each[LANDED], each[COPIED]))
        report.add("results that did not land", forward.not_landed(replays[LANDED]), "count", bound=0)


class _Forward:
    """Breaks in a row, and a kernel at the end, since a capture without any work is worth a warning (C10)."""

    def __init__(self, breaks: int, stream: int) -> None:
        xp = bg.array_namespace()
        self._results = [xp.full(_ELEMENTS, number + 1, np.float32) for number in range(_RESULTS)]
        self._destinations = [xp.zeros(_ELEMENTS, np.float32) for _ in range(breaks)]
        self._last = xp.zeros(1, np.float32)
        self._target = xp.zeros(_ELEMENTS, np.float32)
        copy, target, nbytes = _copy_call(), _address(self._target), self._target.nbytes
        sources = [_address(result) for result in self._results]
        nothing, result, source = cycle([None]), cycle(self._results), cycle(sources)
        self.bare_copy = partial(copy, target, sources[0], nbytes, stream)
        self._breaks: dict[str, Callable[[], object]] = {
            NOTHING: lambda: next(nothing),
            LANDED: lambda: next(result),
            COPIED: lambda: copy(target, next(source), nbytes, stream),
        }

    def captured(self, arm: str) -> bg.BreakableGraph:
        with bg.capture(arena=bg.Arena()) as graph:
            for destination in self._destinations:
                bg.break_here(self._breaks[arm], destination if arm == LANDED else bg.NO_WRITEBACK)
            np.add(self._last, 1, out=self._last)
        return graph

    def not_landed(self, replay: Callable[[], object]) -> int:
        """How many destinations do not hold one of the results after a replay."""
        for destination in self._destinations:
            destination.fill(0)
        replay()
        bg.driver.current().synchronize()
        landed = [destination.get() for destination in self._destinations]
        return sum(not (host[0] > 0 and np.all(host == host[0])) for host in landed)


def _copy_call() -> Callable[[int, int, int, int], object]:
    """The call itself, with nothing of breakgraph around it."""
    if bg.driver.current().name == "sim":
        return bg.driver.current().memcpy_dtod_async
    from cuda.bindings import driver

    call: Callable[[int, int, int, int], object] = driver.cuMemcpyDtoDAsync
    return call


def _address(array: Any) -> int:
    framework = frameworks.of(array, bg.driver.current())
    assert framework is not None
    return framework.view(array).ptr
