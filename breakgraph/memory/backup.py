"""The contents of an arena's live blocks in host memory, while the arena sleeps (C30)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from breakgraph.driver import Driver
from breakgraph.memory.blocks import BlockInfo

__all__ = ["Backup"]


class Backup:
    """A copy of blocks, made when the device is done with them.

    Copies run on a stream of their own and are waited for: the legacy stream would draw in other threads' captures.
    """

    def __init__(self, driver: Driver, blocks: Iterable[BlockInfo]) -> None:
        self._contents: dict[int, np.ndarray] = {}  # by generation
        stream = driver.create_stream()
        for block in blocks:
            host = np.empty(block.nbytes, np.uint8)
            driver.memcpy_dtoh_async(host.ctypes.data, block.ptr, block.nbytes, stream.handle)
            self._contents[block.generation] = host
        driver.stream_synchronize(stream.handle)

    def restore(self, driver: Driver, blocks: Iterable[BlockInfo]) -> None:
        """Copy back what is still wanted: the blocks that are live now."""
        stream = driver.create_stream()
        for block in blocks:
            host = self._contents.get(block.generation)
            if host is not None:
                driver.memcpy_htod_async(block.ptr, host.ctypes.data, block.nbytes, stream.handle)
        driver.stream_synchronize(stream.handle)
