"""The two ways in which breakgraph replays, in one process: as it was installed, and as if it had no C extension."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from types import TracebackType
from typing import Any
from unittest import mock

import breakgraph as bg
from benchmarks._peers import Missing

__all__ = ["AS_INSTALLED", "PLAIN", "has_extension", "plain_break_point", "scope_of"]

AS_INSTALLED = "breakgraph"
PLAIN = "breakgraph, no extension"


def has_extension() -> bool:
    """Whether the package has its C extension, and uses it."""
    if find_spec("breakgraph.driver.quick") is None:
        return False
    from breakgraph.driver import quick

    return bool(quick.NATIVE)


def scope_of(arm: str) -> AbstractContextManager[object]:
    """The scope in which an arm captures and replays; it may be entered again and again.

    Raises `Missing` where there is no extension to do without.
    """
    if arm == AS_INSTALLED:
        return nullcontext()
    if not has_extension():
        raise Missing("the C extension is not built, so breakgraph is without it anyway")
    if bg.driver.current().name != "cuda":
        raise Missing("the extension launches by the driver's addresses, and the driver is simulated")
    return _WithoutExtension()


def plain_break_point(function: Callable[..., object]) -> Callable[..., object]:
    """A break point as it is without the extension. Raises `Missing` as `scope_of` does."""
    scope_of(PLAIN)
    from breakgraph.driver import portable
    from breakgraph.segments import break_points

    with mock.patch.object(break_points, "detour", portable.detour):
        return bg.break_point(function)


class _WithoutExtension:
    """Gives the CUDA driver the Python twins of what the extension has."""

    def __init__(self) -> None:
        from breakgraph.driver import cuda, entries, portable
        from breakgraph.driver.api import STREAM_PER_THREAD
        from breakgraph.memory import backlog

        self._module: Any = cuda
        self._backlog: Any = backlog
        self._driver: Any = bg.driver.current()
        of_extension: Any = entries.Call
        entries.Call = portable.Call
        try:
            per_thread = self._driver.resolve_stream(0) == STREAM_PER_THREAD
            edge_data = self._driver.driver_get_version() >= cuda._EDGE_DATA_SINCE
            self._plain = (
                entries.Entries(self._driver._cu, per_thread=per_thread, edge_data=edge_data),
                portable.Sequence,
                portable.Round,
                portable.Room,
            )
        finally:
            entries.Call = of_extension

    def __enter__(self) -> None:
        self._before = self._driver._entries, self._module.Sequence, self._module.Round, self._backlog.Room
        self._use(*self._plain)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._use(*self._before)

    def _use(self, entries: Any, sequence: Any, round_: Any, room: Any) -> None:
        self._driver._entries, self._module.Sequence, self._module.Round = entries, sequence, round_
        self._backlog.Room = room
