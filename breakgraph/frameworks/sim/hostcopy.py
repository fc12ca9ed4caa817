"""Copies between the host and arrays of the simulator, on the current stream.

Host memory here is pageable, so a copy cannot be captured: as on cupy it is refused before the driver is
asked, and the capture survives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from breakgraph.driver.region import Region
from breakgraph.frameworks.sim.functions import assign
from breakgraph.frameworks.sim.memory import collect, is_capturing
from breakgraph.frameworks.sim.state import state
from breakgraph.frameworks.sim.storage import HostArray, S, Storage, device_dtype

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["download", "may_wait", "overwrite", "upload"]


def download(array: Storage, stream: int | None = None) -> HostArray:
    """The elements as a host array; waits for ``stream``, by default the current one.

    Raises `RuntimeError` where that stream is capturing.
    """
    driver = array._driver
    stream = _stream(driver, stream, "D2H")
    collect(driver)
    packed = array
    if not array.region.contiguous:
        packed = array._empty(array.shape, array.dtype)
        assign(packed, array)
    host = np.empty(array.shape, array.dtype)
    if host.size:
        driver.memcpy_dtoh_async(host.ctypes.data, packed.region.ptr, host.nbytes, stream)
        driver.stream_synchronize(stream)
    return host


def overwrite(array: Storage, host: HostArray, stream: int | None = None) -> None:
    """Copy a host array of the same shape and dtype over a C- or F-contiguous array.

    The host values are read before it returns. Raises `RuntimeError` for an array that is neither, or where
    the stream is capturing.
    """
    driver = array._driver
    if array.region.contiguous:
        packed = np.ascontiguousarray(host)
    elif _turned(array.region).contiguous:
        packed = np.asfortranarray(host)
    else:
        raise RuntimeError("Cannot set to non-contiguous array")
    stream = _stream(driver, stream, "H2D")
    collect(driver)
    if packed.size:
        driver.memcpy_htod_async(array.region.ptr, packed.ctypes.data, packed.nbytes, stream)


def upload(like: S, host: HostArray) -> S:
    """A new device array with the elements of ``host``."""
    _stream(like._driver, None, "H2D")
    made = like._empty(host.shape, device_dtype(host.dtype))
    overwrite(made, host)
    return made


def may_wait(driver: SimDriver) -> bool:
    """Whether a host copy on the current stream is possible now."""
    return not is_capturing(driver, state(driver).stream)


def _turned(region: Region) -> Region:
    return Region(region.ptr, region.shape[::-1], region.strides[::-1], region.dtype)


def _stream(driver: SimDriver, stream: int | None, transfer: str) -> int:
    driver.ensure_context()
    stream = state(driver).stream if stream is None else stream
    if is_capturing(driver, stream):
        raise RuntimeError(
            f"the current stream is capturing, so {transfer} transfers are disallowed: copy in a break, or before the"
            " capture"
        )
    return stream
