"""Capture a forward with one break on the driver that a program would get, replay it on fresh inputs, compare values.

Three steps, each only if the one before came out right: take the driver; capture with driver calls alone; capture
with arrays. Run as a module it says what came of each at once, for it may hang or crash in the next.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph.doctor.child import say
from breakgraph.doctor.facts import Outcome

__all__ = ["arrays", "attempt", "bare", "main"]

COUNT = 256  # elements of 4 bytes
BASES = (100, 200)


def main() -> None:
    """Take the steps and say what came of each."""
    steps: dict[str, Callable[[], Outcome]] = {"driver": take_driver, "bare": bare, "arrays": arrays}
    for name, step in steps.items():
        outcome = attempt(step)
        say({name: asdict(outcome)})
        if outcome.state != "works":
            break
        if name == "driver":
            say({"can_capture": bg.driver.current().can_capture})


def attempt(step: Callable[[], Outcome]) -> Outcome:
    """What came of a step; what it raises is an outcome too."""
    try:
        return step()
    except bg.errors.BreakgraphError as error:
        return Outcome("failed", type(error).__name__, error.what, error.why, error.remedy)
    except Exception as error:  # of a library that is not in order: to find out is what this is for
        return Outcome("failed", type(error).__name__, str(error) or type(error).__name__)


def take_driver() -> Outcome:
    """The driver can be had, and a context made."""
    bg.driver.current().synchronize()
    return Outcome("works")


def bare() -> Outcome:
    """Capture and replay ``x + 3`` with driver calls alone: copies in the segments, the sum on the host in a break."""
    driver = bg.driver.current()
    driver.ensure_context()
    host = np.zeros(COUNT, np.uint32)
    x, y, out = (driver.mem_alloc(host.nbytes) for _ in range(3))  # not freed: the process ends
    stream = driver.create_stream()

    def here() -> int:
        return int(bg.current_stream() or stream)

    # Copies go through the stream and are waited for: a plain one is not ordered with a non-blocking stream.
    def write(ptr: int, values: Any) -> None:
        host[:] = values
        driver.memcpy_htod_async(ptr, host.ctypes.data, host.nbytes, here())
        driver.stream_synchronize(here())

    def read(ptr: int) -> Any:
        driver.memcpy_dtoh_async(host.ctypes.data, ptr, host.nbytes, here())
        driver.stream_synchronize(here())
        return host.copy()

    def forward() -> None:
        driver.memcpy_dtod_async(y, x, host.nbytes, here())
        bg.break_here(lambda: write(y, read(y) + 3), bg.IN_PLACE)
        driver.memcpy_dtod_async(out, y, host.nbytes, here())

    def fill(values: Any) -> None:
        write(x, values)
        write(out, 0)

    return _compare(
        forward,
        write=fill,
        read=lambda: read(out),
        expected=lambda values: values + 3,
        stream=stream,
    )


def arrays() -> Outcome:
    """Capture and replay with arrays of `bg.array_namespace`, the sum in a break again."""
    if bg.driver.current().name == "cuda" and importlib.util.find_spec("cupy") is None:
        return Outcome("left out", what="cupy is not installed")
    xp = bg.array_namespace()
    x, out = xp.zeros(COUNT, np.uint32), xp.zeros(COUNT, np.uint32)

    def forward() -> None:
        np.multiply(bg.break_here(lambda a: xp.asarray(a.get() + np.uint32(3)), bg.INFER, x + 1), 2, out=out)

    def fill(values: Any) -> None:
        x.set(values)
        out.fill(0)

    return _compare(
        forward,
        write=fill,
        read=out.get,
        expected=lambda values: (values + 4) * 2,
    )


def _compare(
    forward: Callable[[], None],
    *,
    write: Callable[[Any], None],
    read: Callable[[], Any],
    expected: Callable[[Any], Any],
    stream: Any = None,
) -> Outcome:
    """Capture the forward and replay it on each base; the inputs and the poisoned output are written before each."""
    wrong: dict[str, int] = {}

    def check(when: str, values: Any, run: Callable[[], None]) -> None:
        write(values)
        run()
        bg.driver.current().synchronize()
        wrong[when] = int(np.count_nonzero(read() != expected(values)))

    graph = bg.BreakableGraph()

    def capture() -> None:
        with bg.capture(graph, stream=stream):
            forward()

    rows = np.arange(COUNT, dtype=np.uint32)
    check("in the capture", rows, capture)
    try:
        if graph.state == "inert":
            return Outcome("inert", what="the forward ran eagerly and nothing was captured")
        for base in BASES:
            check(f"in the replay on {base}", rows + np.uint32(base), lambda: graph.replay(stream=stream))
    finally:
        graph.close()
    if any(wrong.values()):
        told = ", ".join(f"{count} {when}" for when, count in wrong.items() if count)
        return Outcome("wrong", what=f"of {COUNT} values {told} are wrong")
    return Outcome("works")


if __name__ == "__main__":
    main()
