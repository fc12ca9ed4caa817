"""cuda.core's buffers as a framework. Checked against cuda.core 1.2 (_buffer.pyx, _stream.pyx).

The rest of cuda.core needs no help. Its streams have ``__cuda_stream__``, and it takes what has it: work goes on
``Stream.from_handle(int(bg.current_stream()))``. A ``Graph`` of its own is launched in a break: the driver takes no
launch of a graph into a capture.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from breakgraph.driver import Region
from breakgraph.frameworks.base import Array, Framework, ScopedStreams

__all__ = ["CudaCoreFramework"]

_BYTE = np.dtype(np.uint8)


class CudaCoreFramework(ScopedStreams, Framework):
    """`breakgraph.frameworks.base.Framework` over ``cuda.core.Buffer``: an array of bytes with one axis."""

    name = "cuda.core"
    driver_name = "cuda"

    def __init__(self) -> None:
        from cuda.core import Buffer

        super().__init__()
        self._buffer: Any = Buffer

    def owns(self, obj: object) -> bool:
        return isinstance(obj, self._buffer)

    def view(self, array: Array) -> Region:
        return Region.contiguous_at(int(array.handle or 0), (array.size,), _BYTE)

    def over(self, region: Region, owner: object = None) -> Array:
        return self._buffer.from_handle(region.ptr, region.nbytes, owner=owner)
