"""The simulator's arrays as a framework."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from breakgraph import driver as drivers
from breakgraph.driver import Region
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.base import Allocate, Block, Framework, Pushed
from breakgraph.frameworks.sim import functions, memory
from breakgraph.frameworks.sim.array import SimArray
from breakgraph.frameworks.sim.namespace import SimNamespace
from breakgraph.frameworks.sim.state import ThreadState, state

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["SimFramework"]


class SimFramework(Framework):
    """`breakgraph.frameworks.base.Framework` over `SimArray`, on whichever simulated device is current."""

    name = "sim"
    driver_name = "sim"

    def owns(self, obj: object) -> bool:
        return isinstance(obj, SimArray)

    def view(self, array: SimArray) -> Region:
        if array._driver is not _device():
            raise BreakgraphError(
                "an array of another simulated device than the current one was used",
                why="its address means nothing here",
                remedy="make it, and use it, where bg.driver.current() is its device",
            )
        return array.region

    def over(self, region: Region, owner: object = None) -> SimArray:
        return SimArray(_device(), region, owner)

    def like(self, array: SimArray, region: Region, owner: object = None) -> SimArray:
        return type(array)(array._driver, region, owner)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> SimArray:
        return cast(SimArray, self.namespace().empty(shape, dtype))

    def copy(self, dst: SimArray, src: SimArray, stream: int) -> None:
        with self.stream_scope(stream):
            functions.assign(dst, src)

    def zero(self, dst: SimArray, stream: int) -> None:
        with self.stream_scope(stream):
            functions.assign(dst, 0, name="zero")

    def current_stream(self) -> int:
        return _state().stream

    def stream_scope(self, stream: int) -> AbstractContextManager[object]:
        return Pushed(_state().streams, stream)

    def allocator_scope(self, allocate: Allocate) -> AbstractContextManager[object]:
        allocators = _state().allocators
        return Pushed(allocators, (allocate, allocators[-1][0]))

    def outside_scope(self) -> AbstractContextManager[object]:
        allocators = _state().allocators
        before = allocators[-1][1]
        return Pushed(allocators, (before, before))

    def noted_scope(self, note: Callable[[Block], object]) -> AbstractContextManager[object]:
        allocators, driver = _state().allocators, _device()
        allocate, before = allocators[-1]

        def noting(nbytes: int) -> Block:
            block = memory.fresh(driver, nbytes) if allocate is None else allocate(nbytes)
            return memory.NotedMemory(block, note(block))

        return Pushed(allocators, (noting, before))

    def namespace(self) -> ModuleType:
        driver = _device()
        found = driver.__dict__.get("_array_namespace")
        if found is None:
            found = driver.__dict__.setdefault("_array_namespace", SimNamespace(driver))
        return cast(ModuleType, found)


def _device() -> SimDriver:
    return cast("SimDriver", drivers.current())


def _state() -> ThreadState:
    return state(_device())
