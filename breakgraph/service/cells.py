"""Where a graph reads its live inputs: blocks of its arena, written anew by each call."""

from __future__ import annotations

from collections.abc import Sequence

from breakgraph.driver import Driver, Region
from breakgraph.frameworks import Array
from breakgraph.memory import Arena
from breakgraph.memory.array_copy import ArrayCopy
from breakgraph.service.inputs import Inputs, Live

__all__ = ["InputCell", "write"]


class InputCell:
    """The fixed place of one input, with room for ``size`` rows where it is batched; C-contiguous.

    It does not keep its bytes: once the capture is over other graphs of the arena use them between two calls of this
    one, so all of it is written each time, the padding with zeros.
    """

    __slots__ = ("_framework", "_owner", "_region")

    def __init__(self, arena: Arena, like: Live, size: int | None) -> None:
        shape = (size, *like.region.shape[1:]) if like.batched and size is not None else like.region.shape
        block = arena.allocate(Region.contiguous_at(0, shape, like.region.dtype).nbytes)
        self._region = Region.contiguous_at(block.ptr, shape, like.region.dtype)
        self._framework = like.framework
        self._owner: Array | None = like.framework.like(like.array, self._region, block)

    def take(self) -> Array:
        """The array that owns the bytes, to capture with. Whoever takes it has it, and drops it afterwards."""
        owner, self._owner = self._owner, None
        return owner

    def write(self, driver: Driver, array: Array, source: Region, stream: int) -> None:
        """Copy an array of equally many or fewer rows on ``stream``, and zero the rows after them."""
        region, nbytes = self._region, source.nbytes
        if source.contiguous:
            if nbytes:
                driver.memcpy_dtod_async(region.ptr, source.ptr, nbytes, stream)
        else:
            target = region if source.shape == region.shape else region.rows(0, source.shape[0])
            self._framework.copy(self._framework.over(target), array, stream)
        if nbytes < region.nbytes:
            driver.memset_d8_async(region.ptr + nbytes, 0, region.nbytes - nbytes, stream)


def write(driver: Driver, arena: Arena, cells: Sequence[InputCell], inputs: Inputs, stream: int) -> None:
    """Copy the inputs of a call into their cells, on ``stream``.

    Those that lie in the arena are taken aside first: cells written before them may be where they are, at another
    address too.
    """
    sources = [
        _aside(one, stream) if arena.contains(one.region.ptr) else (one.array, one.region) for one in inputs.live
    ]
    for cell, (array, region) in zip(cells, sources, strict=True):
        cell.write(driver, array, region, stream)


def _aside(one: Live, stream: int) -> tuple[Array, Region]:
    spare = one.framework.empty(one.region.shape, one.region.dtype)
    region = one.framework.view(spare)
    ArrayCopy(one.framework, spare, region, one.array, one.region).run(stream)
    return spare, region
