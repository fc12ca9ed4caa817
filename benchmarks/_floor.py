"""The floors: `_floor.c`, built on the spot with the system's compiler and loaded; and what Python does at least."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns

from benchmarks._peers import Missing
from benchmarks._timing import Arm
from breakgraph.errors import driver_error

__all__ = ["by_ctypes", "launches"]

_SOURCE = Path(__file__).with_name("_floor.c")
_COMPILERS = ("cc", "gcc", "clang")  # after $CC
_DRIVER = "libcuda.so.1"


class launches:  # noqa: N801 - called like a function: launches(execs, stream)
    """A C loop that launches each exec once on a stream; called, it runs and returns its nanoseconds, timed in C.

    Raises `Missing` where there is no C compiler or no driver library. A launch that fails raises its driver error.
    """

    def __init__(self, execs: Sequence[int], stream: int, *, wait: bool = False, driver: str = _DRIVER) -> None:
        self._launch = _opened(driver).floor_launch
        self._execs = (ctypes.c_void_p * len(execs))(*execs)
        self._stream = ctypes.c_void_p(stream)
        self._wait = int(wait)
        self._result = ctypes.c_int()

    def __call__(self) -> float:
        spent = self._launch(self._execs, len(self._execs), self._stream, self._wait, ctypes.byref(self._result))
        if self._result.value:
            raise driver_error(self._result.value, "a C loop over cuGraphLaunch")
        return float(spent)


def by_ctypes(execs: Sequence[int], stream: int, call: Callable[[], object], *, driver: str = _DRIVER) -> Arm:
    """The least that Python does with no extension and with the interpreter lock kept: `ctypes.PyDLL`, and calls.

    Each exec is launched once, and ``call`` is called between two of them. Raises `Missing` where there is no driver.
    """
    try:
        launch = ctypes.PyDLL(driver).cuGraphLaunch
    except OSError as problem:
        raise Missing(f"ctypes has no driver to call: {problem}") from problem
    *others, last = map(ctypes.c_void_p, execs)
    on = ctypes.c_void_p(stream)

    def run() -> float:
        start = perf_counter_ns()
        for graph_exec in others:
            if launch(graph_exec, on):
                break
            call()
        code = launch(last, on)
        spent = perf_counter_ns() - start
        if code:  # of a context that an earlier one has broken, too
            raise driver_error(code, "a loop over cuGraphLaunch by ctypes")
        return spent

    return run


@functools.cache
def _opened(driver: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="breakgraph-floor-") as scratch:  # once loaded, the file may go
        floor = ctypes.CDLL(_built_in(Path(scratch)))
    floor.floor_open.argtypes, floor.floor_open.restype = [ctypes.c_char_p], ctypes.c_char_p
    floor.floor_launch.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    floor.floor_launch.restype = ctypes.c_longlong
    problem = floor.floor_open(driver.encode())
    if problem is not None:
        raise Missing(f"the C loop has no driver to call: {problem.decode()}")
    return floor


def _built_in(scratch: Path) -> str:
    compiler = next(filter(None, map(shutil.which, filter(None, (os.environ.get("CC"), *_COMPILERS)))), None)
    if compiler is None:
        raise Missing(f"no C compiler to build the C loop with: neither $CC nor {', '.join(_COMPILERS)}")
    built = str(scratch / "floor.so")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", built, str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"the C loop does not build: {done.stderr.strip()}")
    return built
