"""What libraries that keep their caches per device ask of the current context (C31)."""

from __future__ import annotations

from breakgraph.driver import Driver
from breakgraph.errors import CaptureStateError

__all__ = ["refuse_other_than_primary"]


def refuse_other_than_primary(driver: Driver, library: str) -> None:
    """Raise `CaptureStateError` unless the current context is the device's primary one, or there is none."""
    current = driver.ctx_get_current()
    if not current:
        return  # the library makes the primary one current
    device = driver.ctx_get_device()
    primary = driver.device_primary_ctx_retain(device)
    driver.device_primary_ctx_release(device)
    if current != primary:
        raise CaptureStateError(
            f"{library} takes part in a capture on a context that is not the primary one of its device",
            why=f"{library} keeps modules and memory per device, so what it made in one context breaks in another",
            remedy=f"make the primary context current, or leave {library} out: bg.capture(frameworks=())",
        )
