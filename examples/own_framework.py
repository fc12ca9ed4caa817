"""A runtime of one's own in captures: an array class, its streams, its allocator, and the framework that tells of them.

`Vector` stands for the arrays of a runtime that breakgraph knows nothing of. `VectorFramework` is all that it takes to
let them take part: results of breaks come back as vectors, segments allocate from the arena, and the current stream is
the capture's. docs/frameworks.md goes through it.

    BREAKGRAPH_DRIVER=sim python examples/own_framework.py

Its kernels are Python functions, which only the simulator can run. Exit 0: the replays gave what they should.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed will do

import numpy as np

import breakgraph as bg
from breakgraph.driver import Region
from breakgraph.frameworks import Allocate, Framework, register

__all__ = ["Vector", "VectorFramework", "main"]

FLOAT = np.dtype(np.float32)


# --- the runtime: nothing in it knows of captures --------------------------------------------------------------------
class Memory:
    """Device memory from the driver, freed when it is dropped."""

    def __init__(self, nbytes: int) -> None:
        self._driver: Any = bg.driver.current()
        self.ptr, self.nbytes = self._driver.mem_alloc(nbytes), nbytes
        weakref.finalize(self, _free, self._driver, self._driver.ctx_get_current(), self.ptr)


def _free(driver: Any, context: int, ptr: int) -> None:
    """In whatever thread a destructor runs, which may have no context current."""
    driver.ctx_push_current(context)
    driver.mem_free(ptr)
    driver.ctx_pop_current()


class Runtime(threading.local):
    """What is current in a thread: the stream that kernels go to, and where memory comes from."""

    stream = 0
    allocate: Callable[[int], Any] = staticmethod(Memory)


runtime = Runtime()


class Vector:
    """Floats on the device. Each operation is one kernel on the current stream, into a new vector."""

    def __init__(self, count: int, ptr: int | None = None, memory: object = None) -> None:
        self.count = count
        self.memory = runtime.allocate(4 * count) if ptr is None else memory
        self.ptr = self.memory.ptr if ptr is None else ptr

    @classmethod
    def of(cls, values: Sequence[float]) -> Vector:
        made = cls(len(values))
        made.set(values)
        return made

    def set(self, values: Sequence[float]) -> None:
        driver, host = bg.driver.current(), np.asarray(values, np.float32)
        driver.memcpy_htod(self.ptr, host.ctypes.data, host.nbytes)

    def get(self) -> list[float]:
        driver, host = bg.driver.current(), np.zeros(self.count, np.float32)
        driver.synchronize()
        driver.memcpy_dtoh(host.ctypes.data, self.ptr, host.nbytes)
        return host.tolist()

    def __add__(self, number: float) -> Vector:
        return self._kernel(lambda a, out: np.add(a, np.float32(number), out=out))

    def __mul__(self, number: float) -> Vector:
        return self._kernel(lambda a, out: np.multiply(a, np.float32(number), out=out))

    def _kernel(self, body: Callable[[Any, Any], object]) -> Vector:
        out = Vector(self.count)
        driver: Any = bg.driver.current()  # the simulator's, which runs Python as kernels
        reads, writes = [where(self)], [where(out)]
        driver.launch(runtime.stream, body, reads=reads, writes=writes)
        return out


def where(vector: Vector) -> Region:
    """The memory of a vector, as breakgraph describes memory."""
    return Region.contiguous_at(vector.ptr, (vector.count,), FLOAT)


# --- the framework: all that breakgraph needs to know ----------------------------------------------------------------
class VectorFramework(Framework):
    """Tells breakgraph of vectors."""

    name = "vector"
    driver_name = "sim"

    def owns(self, obj: object) -> bool:
        return isinstance(obj, Vector)

    def view(self, array: Vector) -> Region:
        return where(array)

    def over(self, region: Region, owner: object = None) -> Vector:
        return Vector(region.size, region.ptr, owner)

    def current_stream(self) -> int:
        return runtime.stream

    def stream_scope(self, stream: int) -> AbstractContextManager[object]:
        return setting("stream", stream)

    # Without these two a segment must not allocate: the driver refuses it there.
    def allocator_scope(self, allocate: Allocate) -> AbstractContextManager[object]:
        return setting("allocate", allocate)

    def outside_scope(self) -> AbstractContextManager[object]:
        return setting("allocate", Memory)


@contextmanager
def setting(name: str, value: object) -> Iterator[None]:
    """The runtime with another value, in this thread, for a while."""
    before = getattr(runtime, name)
    setattr(runtime, name, value)
    try:
        yield
    finally:
        setattr(runtime, name, before)


# --- a program that uses both ----------------------------------------------------------------------------------------
@bg.break_point
def scaled_by_its_largest(x: Vector) -> Vector:
    """Reads values on the host, which no graph can hold."""
    return x * max(x.get())


def main() -> int:
    """Capture a forward over vectors, replay it on fresh inputs, print what comes out. Returns the exit code."""
    bg.driver.current().ensure_context()
    register(VectorFramework())
    x, right = Vector.of([1, 2, 3]), True
    with bg.capture() as graph:
        y = graph.output(scaled_by_its_largest(x + 1) + 0.5)
    print(graph.report())
    for values in ([1, 2, 3], [4, 0, -1], [0, 0, 7]):
        x.set(values)
        graph.replay()
        expected = [(value + 1) * (max(values) + 1) + 0.5 for value in values]
        right = right and type(y) is Vector and y.get() == expected
        print(f"{values} -> {y.get()}")
    graph.close()
    return 0 if right else 1


if __name__ == "__main__":
    if bg.driver.current().name != "sim":
        sys.exit("own_framework: its kernels run on the simulator alone: set BREAKGRAPH_DRIVER=sim")
    sys.exit(main())
