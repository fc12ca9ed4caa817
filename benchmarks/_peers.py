"""What breakgraph is compared with, and the reason where one of them is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

import breakgraph as bg
from breakgraph import frameworks

__all__ = [
    "BREAKABLE",
    "CTYPES",
    "CUPY",
    "FLOOR",
    "TORCH",
    "Missing",
    "breakable",
    "cupy",
    "current_stream",
    "present",
    "torch",
]

T = TypeVar("T")

FLOOR = "C loop"
CTYPES = "ctypes loop"  # the floor of what has no extension
BREAKABLE = "breakable-cuda-graphs"
TORCH = "torch.cuda.CUDAGraph"
CUPY = "cupy.cuda.Graph"


class Missing(Exception):
    """One of the things to compare is not there; the message says why."""


def torch() -> Any:
    """The module torch. Raises `Missing`."""
    module = _imported("torch", "the extra `peers` installs it")
    if not module.cuda.is_available():
        raise Missing("torch finds no CUDA device")
    return module


def breakable() -> Any:
    """The module breakable_cuda_graphs. Raises `Missing`."""
    torch()
    return _imported("breakable_cuda_graphs", "the extra `peers` installs it")


def cupy() -> Any:
    """The module cupy. Raises `Missing`."""
    return _imported("cupy", "the extras `cuda12` and `cuda13` install it")


def present(report: Any, makers: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each of the makers makes, by name; one that raises `Missing` is left out, and the report says why."""
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except Missing as reason:
            report.skip(name, str(reason))
    return made


@contextmanager
def current_stream() -> Iterator[int]:
    """A new non-blocking stream, current in every array library that is installed: breakgraph's and the peers'."""
    for load in (cupy, torch):
        with suppress(Missing):
            load()
    driver = bg.driver.current()
    stream = driver.create_stream()
    with ExitStack() as scopes:
        for framework in frameworks.taking_part(driver):
            scopes.enter_context(framework.stream_scope(int(stream)))
        yield int(stream)
        driver.synchronize()


def _imported(name: str, remedy: str) -> Any:
    if bg.driver.current().name != "cuda":
        raise Missing("it needs a GPU, and the driver is simulated")
    try:
        return import_module(name)
    except ImportError as error:
        raise Missing(f"{error}; {remedy}") from error
