"""Which device a process or a thread works on."""

from __future__ import annotations

import breakgraph as bg

__all__ = ["use_device"]


def use_device(ordinal: int) -> str:
    """Make a device the calling thread's, for the driver and for cupy; returns its name.

    It is the device's primary context that becomes current: cupy works in no other (C31).
    """
    driver = bg.driver.current()
    driver.ctx_set_current(driver.device_primary_ctx_retain(ordinal))
    if driver.name == "cuda":
        import cupy

        cupy.cuda.Device(ordinal).use()
    return driver.device_get_name(ordinal)
