"""Devices, contexts, and what belongs to a calling thread."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from breakgraph.driver.api import CaptureMode
from breakgraph.driver.sim.races import Lane
from breakgraph.driver.sim.streams import Stream

__all__ = ["Context", "Device", "Loss", "ThreadState"]

_context_ids = count(1)  # of the process, so that no simulated device ever repeats one


@dataclass(frozen=True)
class Loss:
    """Why a context is lost: every later call on it answers ``code``."""

    code: int
    why: str
    cause: Exception | None = None


class Context:
    """One CUDA context: its own legacy stream, and the streams that synchronize with it."""

    def __init__(self, handle: int, device: Device) -> None:
        self.handle = handle
        self.id = next(_context_ids)
        self.device = device
        self.loss: Loss | None = None
        self.legacy = Stream(handle=1, context=self, blocking=True)
        self.blocking: dict[Stream, None] = {}
        self.streams: dict[Stream, None] = {self.legacy: None}
        self.departed = Lane()  # what was enqueued on streams that are destroyed


class Device:
    """One simulated GPU. Sizes in bytes."""

    def __init__(self, ordinal: int, memory: int, pool: int) -> None:
        self.ordinal = ordinal
        self.memory = memory
        self.used = 0
        self.pool = pool
        self.pool_used = 0
        self.pool_high = 0
        self.primary: Context | None = None
        self.retained = 0


class ThreadState:
    """What the driver keeps per calling thread: the context stack, the capture mode, the per-thread streams."""

    def __init__(self) -> None:
        self.stack: list[Context] = []
        self.mode = CaptureMode.GLOBAL
        self.streams: dict[Context, Stream] = {}

    @property
    def context(self) -> Context | None:
        """The current context."""
        return self.stack[-1] if self.stack else None
