"""The peak of an eager forward: what its arrays would need if memory were never fragmented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import breakgraph as bg
from breakgraph import frameworks

__all__ = ["eager_peak", "pool_total"]

_GRANULARITY = 512  # bytes; what cupy's pool rounds to


def eager_peak(run: Callable[[], object], array: Any) -> int:
    """Most bytes that were live at once, of what ``run`` allocated in the framework that ``array`` is of.

    Each allocation is the driver's own (cuMemAlloc) and is freed when its array dies; it counts rounded up to 512.
    """
    driver = bg.driver.current()
    framework = frameworks.of(array, driver)
    assert framework is not None
    counted = _Counted(driver)
    with framework.allocator_scope(counted.allocate):
        run()
    driver.synchronize()
    if counted.live:
        raise RuntimeError(f"{counted.live} bytes of an eager forward outlived it, so its peak is not its own")
    return counted.peak


def pool_total(run: Callable[[], object]) -> int:
    """Bytes that a fresh pool of cupy's has taken from the device when ``run`` is over."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        run()
    return int(pool.total_bytes())


class _Counted:
    """An allocator that knows how much of what it gave is alive."""

    def __init__(self, driver: bg.driver.Driver) -> None:
        self.driver = driver
        self.live = self.peak = 0

    def allocate(self, nbytes: int) -> _Allocation:
        size = -(-nbytes // _GRANULARITY) * _GRANULARITY
        made = _Allocation(self, self.driver.mem_alloc(size), size)
        self.live += size
        self.peak = max(self.peak, self.live)
        return made


class _Allocation:
    def __init__(self, counted: _Counted, ptr: int, nbytes: int) -> None:
        self._counted = counted
        self.ptr = ptr
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._counted.live -= self.nbytes
        self._counted.driver.mem_free(self.ptr)  # waits for the kernels that still use it
