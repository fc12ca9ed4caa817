"""The C extension and its twin in Python, for the fixture ``twin``, and C functions for them to call."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from breakgraph.driver import portable, quick


def twin_called(name: str) -> ModuleType:
    """One of the twins; the test is skipped where the extension is not there."""
    if name == "portable":
        return portable
    if not quick.NATIVE:
        pytest.skip("the C extension was not built, or BREAKGRAPH_NATIVE=0")
    from breakgraph.driver import _native

    return _native


class Refused(Exception):
    """What a result code becomes."""


class Owner:
    """Whoever takes a claim."""


class Place:
    """Where a sequence runs."""

    stream = 0


def c_function(function: Callable[..., int], words: int) -> Any:
    """A function of C's calling convention, which must be kept alive as long as it may be called."""
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * words)(function)


def address(function: Any) -> int:
    """Where a C function is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def launcher(twin: ModuleType, answer: Callable[[int, int], int]) -> tuple[Any, Any]:
    """A launch call that ``answer`` answers, and what must be kept alive for it."""
    function = c_function(lambda graph_exec, stream: answer(graph_exec or 0, stream or 0), 2)
    return twin.Call(address(function), "ww", Refused), function


def growth(work: Callable[[], object], times: int = 10_000) -> float:
    """How many blocks of memory are left of doing something, on the average of many times."""
    for _ in range(100):
        work()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
        work()
    gc.collect()
    return (sys.getallocatedblocks() - before) / times
