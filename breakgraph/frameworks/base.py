"""What the layers above need to know of an array library, and no more: the protocol that anyone can implement."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Protocol

from breakgraph import driver as drivers
from breakgraph.driver.api import Driver
from breakgraph.driver.here import here
from breakgraph.driver.region import Region
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.device_memory import DeviceMemory
from breakgraph.frameworks.runs import copy_runs, zero_runs

__all__ = ["Allocate", "Array", "Block", "Framework", "Pushed", "ScopedStreams"]

#: An array of whichever library: opaque here, and only ever handed back to its framework.
Array = Any


class Block(Protocol):
    """Memory handed to a framework: it is given back when the last array over it has died."""

    @property
    def ptr(self) -> int:
        """Its address."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""


class Allocate(Protocol):
    """From a size in bytes to a block of at least that size."""

    @property
    def arena(self) -> object:
        """The arena that it comes from: one and the same for graphs that share memory."""

    def __call__(self, nbytes: int) -> Block:
        """A block of at least ``nbytes`` bytes."""


class Framework(Protocol):
    """One array library, on one driver.

    Derive from it and implement the abstract methods: the others have a default that is right for a library without
    the feature. Then `breakgraph.frameworks.register` an instance; docs/frameworks.md has a worked example.

    Streams are handles. Current stream and allocator are per thread, as in the libraries themselves. Nothing here may
    wait for the device, or make a call that a capture forbids, except in `empty` and `outside_scope`.
    """

    name: str  #: by which ``capture(frameworks=...)`` knows it
    driver_name: str  #: ``"cuda"`` or ``"sim"``: the driver whose memory its arrays are in
    names_streams: bool = False  #: each call of the library names its stream, so its default does not move a replay

    # arrays -----------------------------------------------------------------------------------------------
    @abstractmethod
    def owns(self, obj: object) -> bool:
        """Whether ``obj`` is one of its arrays. Must be cheap, must not import anything; asked about any object."""

    @abstractmethod
    def view(self, array: Array) -> Region:
        """Where the array lies."""

    def address(self, array: Array, like: Region) -> int:
        """Where an array of its type lies, if it is laid out as ``like``; 0 if it is not. Asked at each replay."""
        if not self.owns(array):
            return 0
        found = self.view(array)
        same = found.shape == like.shape and found.strides == like.strides and found.dtype == like.dtype
        return found.ptr if same else 0

    @abstractmethod
    def over(self, region: Region, owner: object = None) -> Array:
        """An array over the memory of ``region``. It, and every view of it, keeps ``owner`` alive, and nothing else."""

    def like(self, array: Array, region: Region, owner: object = None) -> Array:
        """``over(region, owner)``, with whatever else makes ``array`` what it is (a subclass, a device)."""
        return self.over(region, owner)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A new C-contiguous array of this ``shape``, of a ``dtype`` that `view` has told, from its current allocator.

        By default memory of the driver's own.
        """
        region = Region.contiguous_at(0, shape, dtype)
        if not region.size:
            return self.over(region)
        memory = DeviceMemory(drivers.current(), region.nbytes)
        return self.over(Region.contiguous_at(memory.ptr, shape, dtype), memory)

    def copy(self, dst: Array, src: Array, stream: int) -> None:
        """Copy all elements of ``src`` to ``dst``, of equal shape and dtype and any strides, on ``stream``.

        By default a copy of the driver's for each contiguous run of both.
        """
        copy_runs(drivers.current(), self.view(dst), self.view(src), stream)

    def zero(self, dst: Array, stream: int) -> None:
        """Fill ``dst``, of any strides, with zeros on ``stream``. By default one fill for each contiguous run."""
        zero_runs(drivers.current(), self.view(dst), stream)

    # streams ----------------------------------------------------------------------------------------------
    @abstractmethod
    def current_stream(self) -> int | None:
        """The handle of its current stream (0 for the default stream); None where there is no such thing."""

    def stream_source(self) -> Callable[[], int | None]:
        """A callable that answers as `current_stream` does while the current context is the one that it is now.

        Each replay calls it, so a library may have a quicker one.
        """
        return self.current_stream

    @abstractmethod
    def stream_scope(self, stream: int) -> AbstractContextManager[object]:
        """Make ``stream`` its current stream inside the scope."""

    # allocations and contexts -----------------------------------------------------------------------------
    def allocator_scope(self, allocate: Allocate) -> AbstractContextManager[object]:
        """Take its allocations from ``allocate`` inside the scope, in this thread.

        What the scope gives (``with ... as kept``) lives as long as the captured graph. By default the library goes
        on as before, and what the driver forbids in a capture is an error there.
        """
        return nullcontext()

    def outside_scope(self) -> AbstractContextManager[object]:
        """Inside an `allocator_scope`: take allocations from where they came from before it."""
        return _NOTHING

    def noted_scope(self, note: Callable[[Block], object]) -> AbstractContextManager[object]:
        """Take allocations from where they come from, and keep with each, as long as it lives, what ``note`` gives.

        For debugging, outside segments. By default nothing is noted.
        """
        return nullcontext()

    def check_context(self, driver: Driver) -> None:
        """Raise `CaptureStateError` where the library cannot work in the current context of ``driver`` (C31)."""
        return

    def namespace(self) -> ModuleType:
        """The library's NumPy-like functions and constructors, if it has them."""
        raise BreakgraphError(f"{self.name} has no functions that answer as NumPy's do")


_NOTHING = nullcontext()


class ScopedStreams:
    """Current streams for a library that has none: the one of the innermost scope, in this thread.

    It is one for all such libraries, so a scope for one of them is a scope for each.
    """

    names_streams = True

    def current_stream(self) -> int | None:
        streams = here.streams
        return streams[-1] if streams else None

    def stream_scope(self, stream: int) -> AbstractContextManager[object]:
        return Pushed(here.streams, stream)


class Pushed:
    """A scope in which an item is the last of a stack; what an interrupted one has left above it goes with it."""

    __slots__ = ("_depth", "_item", "_stack")

    def __init__(self, stack: list[Any], item: Any) -> None:
        self._stack = stack
        self._item = item

    def __enter__(self) -> None:
        self._depth = len(self._stack)
        self._stack.append(self._item)

    def __exit__(self, *_: object) -> None:
        del self._stack[self._depth :]
