"""Device memory for libraries that leave allocating to the driver."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.driver.contexts import in_context
from breakgraph.errors import DriverError

__all__ = ["DeviceMemory"]


class DeviceMemory:
    """Bytes of the device, freed when it is dropped; either may happen in the middle of anybody's capture (C8)."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.nbytes = nbytes
        with drivers.relaxed(driver):
            self.ptr = driver.mem_alloc(nbytes)
        self._free = partial(_free, driver, driver.ctx_get_current(), self.ptr)
        self._driver, self._pid = driver, os.getpid()

    def __del__(self) -> None:
        if hasattr(self, "_pid") and os.getpid() == self._pid and not sys.is_finalizing():  # C27
            self._driver.finalize(self._free)


def _free(driver: Driver, context: int, ptr: int) -> None:
    with suppress(DriverError), in_context(driver, context), drivers.relaxed(driver):  # or its context is gone
        driver.mem_free(ptr)
