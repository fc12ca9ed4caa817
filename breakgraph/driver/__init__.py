"""The current driver: the one piece of global state, chosen once or in a ``with`` block.

The default is ``BREAKGRAPH_DRIVER`` or ``cuda``. Nothing here falls back to the simulator by itself: a
program that meant a GPU should not be answered by a CPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from breakgraph.driver import api
from breakgraph.driver.api import Driver
from breakgraph.driver.owned import Event, Stream
from breakgraph.driver.region import Region
from breakgraph.driver.stream import StreamHandle, stream_handle
from breakgraph.errors import BreakgraphError

__all__ = [
    "Driver",
    "Event",
    "Region",
    "Stream",
    "StreamHandle",
    "api",
    "choice",
    "current",
    "per_thread",
    "relaxed",
    "stream_handle",
    "use",
]


class _Choice:
    """Knows the driver in use; None until somebody asks for it."""

    __slots__ = ("driver",)

    def __init__(self) -> None:
        self.driver: Driver | None = None


choice = _Choice()
_RELAXED = api.CaptureMode.RELAXED
_first = threading.RLock()  # threads that come at once find one driver


def current() -> Driver:
    """The driver in use; the first call makes the default one.

    Raises `DriverNotFound` where there is no CUDA driver, saying how to choose the simulator.
    """
    if choice.driver is None:
        with _first:
            if choice.driver is None:
                choice.driver = _make(os.environ.get("BREAKGRAPH_DRIVER") or "cuda", {})
    return choice.driver


class use:  # noqa: N801 - reads as a verb: bg.driver.use("sim")
    """Make ``"cuda"`` or ``"sim"`` the current driver; as a context manager, only for the block.

    ``use("sim", ...)`` is a fresh simulated device each time; see `breakgraph.driver.sim.SimDriver` for its
    options (``schedule``, ``seed``, ...). ``use(driver)`` takes a driver made before.
    """

    def __init__(self, name: Literal["cuda", "sim"] | Driver, /, **options: object) -> None:
        made = _make(name, options) if isinstance(name, str) else name
        self._before, choice.driver = choice.driver, made
        self.driver = made

    def __enter__(self) -> Driver:
        return self.driver

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        choice.driver = self._before


class relaxed:  # noqa: N801 - used as a guard: with relaxed(driver): ...
    """Let the calling thread make calls that an open capture forbids, without harming it (C8).

    It lifts allocation, free, instantiation, exec destruction and waits for other streams; not a context
    synchronize (DRIVER_FACTS, and probes/records/legality).
    """

    __slots__ = ("_before", "_driver")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        self._before = self._driver.thread_exchange_stream_capture_mode(_RELAXED)

    def __exit__(self, *_: object) -> None:
        try:
            self._driver.thread_exchange_stream_capture_mode(self._before)
        except BaseException as error:  # a thread left relaxed would harm later captures: once more (C5)
            self._driver.thread_exchange_stream_capture_mode(self._before)
            if not isinstance(error, Exception):
                raise


def per_thread(driver: Driver) -> threading.local:
    """A place for what belongs to the calling thread and to this driver: it dies with either."""
    state: threading.local | None = driver.__dict__.get("_per_thread")
    if state is None:
        state = driver.__dict__.setdefault("_per_thread", threading.local())
    return state


def _make(name: str, options: dict[str, object]) -> Driver:
    makers: dict[str, Callable[..., Driver]] = {"cuda": _cuda, "sim": _sim}
    if name not in makers:
        raise BreakgraphError(f"no driver is called {name!r}", remedy='choose "cuda" or "sim"')
    return makers[name](**options)


_the_cuda_driver: Driver | None = None


def _cuda() -> Driver:
    global _the_cuda_driver
    with _first:
        if _the_cuda_driver is None:
            from breakgraph.driver.cuda import CudaDriver

            _the_cuda_driver = CudaDriver()
    return _the_cuda_driver


def _sim(**options: object) -> Driver:
    from breakgraph.driver.sim import SimDriver

    return SimDriver(**options)  # type: ignore[arg-type]  # checked by SimDriver's own signature
