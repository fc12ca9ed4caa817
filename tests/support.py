"""What several test files share: small forwards, values, child processes, the order of steps in a log."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import breakgraph as bg
from breakgraph import frameworks

ROOT = Path(__file__).resolve().parent.parent

every_schedule = pytest.mark.parametrize(
    "driver", ["sim-fifo", "sim-lazy", "sim-random", "cuda"], indirect=True, ids=["fifo", "lazy", "random", "cuda"]
)

#: For a forward whose work is all in breaks, which is worth a warning (C10) and not the point of the test.
nothing_captured = pytest.mark.filterwarnings("ignore:.*recorded no work.*:breakgraph.errors.BreakgraphWarning")


def floats(xp: Any, *values: float) -> Any:
    """A float32 device array of these values."""
    return xp.asarray(np.asarray(values, np.float32))


def zeros(xp: Any, *shape: int) -> Any:
    """A float32 device array of zeros: 4 of them, if no shape is given."""
    return xp.zeros(shape or (4,), np.float32)


def on_stream(array: Any, stream: Any) -> Any:
    """A scope in which ``stream`` is the current stream of the library that the array is of."""
    return _framework(array).stream_scope(int(stream))


def stream_of(array: Any) -> int:
    """Handle of the current stream of the library that the array is of."""
    return _framework(array).current_stream()


def _framework(array: Any) -> Any:
    framework = frameworks.of(array, bg.driver.current())
    assert framework is not None
    return framework


def refill(array: Any, value: Any) -> None:
    """Give every element of a device array new values, in place."""
    array.set(np.ascontiguousarray(np.broadcast_to(np.asarray(value, array.dtype), array.shape)))


def holds(array: Any, value: Any) -> bool:
    """Whether every element of a device array is exactly this value, NaN included."""
    host = array.get()
    return bool(np.array_equal(host, np.broadcast_to(np.asarray(value, host.dtype), host.shape), equal_nan=True))


@contextmanager
def not_refused() -> Iterator[None]:
    """A refusal in here is a wrong answer, and said as one."""
    try:
        yield
    except bg.errors.BreakgraphError as error:
        pytest.fail(f"refused: {error}")


def assert_next_capture_works(xp: Any, **options: Any) -> None:
    """A fresh capture of +1, E*2, +3 in this thread is good, and replays."""
    x, out = zeros(xp), zeros(xp)
    with bg.capture(**options) as graph:
        doubled = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        np.add(doubled, 3, out=out)
    assert graph.state == "captured"
    assert holds(out, 5)
    refill(x, 10)
    graph.replay()
    assert holds(out, 25)
    graph.close()


def assert_failed_clean(graph: Any, driver: Any, others: Any = None) -> None:
    """A failed graph holds no step and no driver object, and its thread is not capturing (C5).

    ``others`` is a captured graph that is alive beside it.
    """
    assert graph.state == "failed"
    assert graph.error is not None
    assert not graph.captured
    assert not bg.is_capturing()
    with pytest.raises(bg.errors.CaptureStateError):
        graph.replay()
    if driver.name == "sim":
        segments = others.segments if others is not None else ()
        assert live(driver, "graph") == len(segments)
        assert live(driver, "graph_exec") == sum(segment.nodes > 0 for segment in segments)


def live(driver: Any, kind: str) -> int:
    """How many objects of a kind the simulated driver holds."""
    return len(driver.live().get(kind, ()))


def steps_of(driver: Any, start: int = 0) -> list[str]:
    """The simulator's log from an index on, reduced to what a replay is made of: launches and marks."""
    steps = []
    for entry in list(driver.log)[start:]:
        if entry.name == "graph_launch":
            steps.append("segment")
        elif entry.name == "mark":
            steps.append(entry.args[0])
    return steps


def child(source: str, *, driver: str = "sim", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run source in a fresh interpreter, with the checkout on its path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**inherited, "PYTHONPATH": path, "BREAKGRAPH_DRIVER": driver, **environment},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


class Order:
    """Orders streams by events that live as long as this does: a fork, or a join."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._events: list[Any] = []

    def __call__(self, before: Any, after: Any) -> None:
        """Let stream ``after`` wait for what is on stream ``before`` now."""
        event = self.event()
        self._driver.event_record(event, int(before))
        self._driver.stream_wait_event(int(after), event)

    def event(self) -> int:
        """A new event."""
        self._events.append(bg.driver.Event(self._driver.event_create(), self._driver.event_destroy))
        return int(self._events[-1].handle)


def in_threads(driver: Any, *work: Callable[[], Any], seconds: float = 20.0, context: int | None = None) -> list[Any]:
    """Run each in a thread of its own, in the caller's context; a thread that hangs fails the test.

    Returns what each returned, or the exception that it raised.
    """
    context = driver.ctx_get_current() if context is None else context
    outcomes: list[Any] = [None] * len(work)

    def run(at: int, call: Callable[[], Any]) -> None:
        if context:
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
        pytest.fail(f"threads {hung} of {len(threads)} are still running after {seconds} s")
    return outcomes


def all_well(outcomes: Iterable[Any]) -> list[Any]:
    """The outcomes of `in_threads`, none of which may be an exception."""
    outcomes = list(outcomes)
    raised = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for error in sorted(raised, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # the others have waited for its thread in vain
    return outcomes
