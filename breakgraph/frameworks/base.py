"""What the layers above need to know of an array library, and no more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

from breakgraph.driver.api import Driver
from breakgraph.driver.region import Region

__all__ = ["Allocate", "Array", "Block", "Framework"]

#: An array of whichever library: opaque here, and only ever handed back to its framework.
Array = Any


class Block(Protocol):
    """Memory handed to a framework: it is given back when the last array over it has died."""

    @property
    def ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


#: From a size in bytes to a block of at least that size.
Allocate = Callable[[int], Block]


class Framework(Protocol):
    """One array library, on one driver.

    Streams are handles. Current stream and allocator are per thread, as in the libraries themselves.
    """

    name: str
    driver_name: str  #: ``"cuda"`` or ``"sim"``: the driver whose memory its arrays are in

    def owns(self, obj: object) -> bool:
        """Whether ``obj`` is one of its arrays. Must be cheap, must not import anything."""

    def check_context(self, driver: Driver) -> None:
        """Raise `CaptureStateError` where the library cannot work in the current context (C31)."""

    def view(self, array: Array) -> Region:
        """Where the array lies."""

    def over(self, region: Region, owner: object = None) -> Array:
        """An array over given memory. It keeps ``owner`` alive, and nothing else."""

    def like(self, array: Array, region: Region, owner: object = None) -> Array:
        """`over`, with whatever else makes ``array`` what it is (a subclass, a device)."""

    def copy(self, dst: Array, src: Array, stream: int) -> None:
        """Copy elements between two arrays of any strides and equal shape and dtype, on ``stream``."""

    def zero(self, dst: Array, stream: int) -> None:
        """Fill an array of any strides with zeros, on ``stream``."""

    def current_stream(self) -> int:
        """The handle of its current stream (0 for the default stream)."""

    def stream_scope(self, stream: int) -> AbstractContextManager[object]:
        """Make ``stream`` its current stream inside the scope."""

    def allocator_scope(self, allocate: Allocate) -> AbstractContextManager[object]:
        """Take its allocations from ``allocate`` inside the scope, in this thread."""

    def outside_scope(self) -> AbstractContextManager[object]:
        """Inside an `allocator_scope`: take allocations from where they came from before it."""

    def namespace(self) -> ModuleType:
        """The library's NumPy-like functions and constructors."""
