"""The calling thread's current stream and allocator on a simulated driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakgraph import driver as drivers
from breakgraph.frameworks.base import Allocate

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["ThreadState", "state"]


class ThreadState:
    """One thread's, on one driver: two stacks that the framework's scopes push to."""

    def __init__(self) -> None:
        self.streams: list[int] = [0]  # the default stream
        #: The allocator in force, and the one before the innermost scope; None is the driver's own.
        self.allocators: list[tuple[Allocate | None, Allocate | None]] = [(None, None)]

    @property
    def stream(self) -> int:
        """The current stream's handle."""
        return self.streams[-1]


def state(driver: SimDriver) -> ThreadState:
    """It lives on the driver, so that a fresh device never meets an older one's streams."""
    place = drivers.per_thread(driver).__dict__
    found: ThreadState | None = place.get("sim_arrays")
    if found is None:
        found = place["sim_arrays"] = ThreadState()
    return found
