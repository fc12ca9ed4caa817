"""Device storage at a fixed address, in which a break's result lands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from breakgraph import driver as drivers
from breakgraph import frameworks
from breakgraph.driver import stream_handle
from breakgraph.frameworks.base import Array
from breakgraph.memory.array_copy import ArrayCopy, fit

__all__ = ["Cell"]


class Cell:
    """An uninitialized array whose address later segments may bake.

    Parameters
    ----------
    shape, dtype
        As of ``numpy.empty``.
    shared
        The caller vouches that each result is consumed before the next one lands in this cell, so several
        breaks of one capture may name it (C16).

    Attributes
    ----------
    array
        The array itself: cupy's on the cuda driver, the simulator's own on sim.
    """

    def __init__(self, shape: int | Sequence[int], dtype: DTypeLike, *, shared: bool = False) -> None:
        self.array: Array = frameworks.array_namespace().empty(shape, dtype)
        self.shared = shared
        framework = frameworks.of(self.array, drivers.current())
        assert framework is not None  # the namespace's own arrays
        self._framework = framework

    @property
    def ptr(self) -> int:
        """Device address."""
        return self._framework.view(self.array).ptr

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._framework.view(self.array).nbytes

    def write(self, source: Any, stream: object = None) -> None:
        """Copy an array into the cell.

        Parameters
        ----------
        source
            A host array, which is converted to the cell's dtype and broadcast to its shape; or a device array that
            has them, or has a shorter first axis and fills the leading rows (C15).
        stream
            A handle, or anything with ``__cuda_stream__``; by default the framework's current stream.

        Raises
        ------
        ShapeMismatch, DTypeMismatch
            The device array does not fit.
        """
        driver = drivers.current()
        with nullcontext() if stream is None else self._framework.stream_scope(stream_handle(stream)):
            other = frameworks.of(source, driver)
            if other is None:
                host = np.asarray(source, dtype=self.array.dtype)
                self.array.set(np.array(np.broadcast_to(host, self.array.shape), order="C"))  # keeps 0 dimensions
            else:
                region = other.view(source)
                ArrayCopy(
                    self._framework, self.array, fit(self._framework.view(self.array), region, "source"), source, region
                ).run()

    def __repr__(self) -> str:
        shared = ", shared" if self.shared else ""
        return f"<Cell {self.array.shape} {self.array.dtype} at {self.ptr:#x}{shared}>"
