"""Strided copies and fills by the driver alone: one call for each run of bytes without a gap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from breakgraph.driver import Driver, Region

__all__ = ["copy_runs", "runs", "zero_runs"]


def copy_runs(driver: Driver, dst: Region, src: Region, stream: int) -> None:
    """Copy between regions of equal shape and item size. Columns of a matrix take a call for each element."""
    for (into, source), nbytes in runs(dst, src):
        driver.memcpy_dtod_async(into, source, nbytes, stream)


def zero_runs(driver: Driver, dst: Region, stream: int) -> None:
    """Fill a region with zero bytes."""
    for (into,), nbytes in runs(dst):
        driver.memset_d8_async(into, 0, nbytes, stream)


def runs(*regions: Region) -> Iterator[tuple[tuple[int, ...], int]]:
    """Addresses in each region, and the bytes from there that lie together in all of them."""
    shape, nbytes = list(regions[0].shape), regions[0].dtype.itemsize
    if not regions[0].size:
        return
    while shape and all(shape[-1] == 1 or region.strides[len(shape) - 1] == nbytes for region in regions):
        nbytes *= shape.pop()
    for index in np.ndindex(*shape):
        yield tuple(region.ptr + sum(map(int.__mul__, index, region.strides)) for region in regions), nbytes
