"""Calls that copy and set memory.

The plain forms work on the legacy stream. A copy to or from the host is over when the call returns; one on
the device, and a set, is not (CUDA driver API, "API synchronization behavior").
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from breakgraph.driver.api import STREAM_LEGACY, NodeType
from breakgraph.driver.sim.call import call
from breakgraph.driver.sim.machine import Machine
from breakgraph.driver.sim.memory import Fault
from breakgraph.driver.sim.operations import Work
from breakgraph.driver.sim.races import Access
from breakgraph.driver.sim.results import Refuse, Result
from breakgraph.driver.sim.streams import Stream

__all__ = ["CopyCalls"]


class CopyCalls(Machine):
    """Copies and sets."""

    @call()
    def memcpy_htod(self, dst: int, src: int, nbytes: int) -> None:
        stream = self.used_stream(STREAM_LEGACY)
        self.submit(stream, self._from_host("memcpy_htod", dst, src, nbytes))
        self.wait_for_stream(stream)

    @call()
    def memcpy_dtoh(self, dst: int, src: int, nbytes: int) -> None:
        stream = self.used_stream(STREAM_LEGACY)
        self.submit(stream, self._to_host("memcpy_dtoh", dst, src, nbytes))
        self.wait_for_stream(stream)

    @call()
    def memcpy_dtod(self, dst: int, src: int, nbytes: int) -> None:
        self.submit(self.used_stream(STREAM_LEGACY), self._on_device("memcpy_dtod", dst, src, nbytes))

    @call()
    def memcpy_htod_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        target = self.used_stream(stream)
        work = self._from_host("memcpy_htod_async", dst, src, nbytes)
        if nbytes and target.capture is None and not self.host.pinned(src):
            work = self._from_staging("memcpy_htod_async", dst, src, nbytes)
        self.submit(target, work)

    @call()
    def memcpy_dtoh_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        target = self.used_stream(stream)
        self.submit(target, self._to_host("memcpy_dtoh_async", dst, src, nbytes))
        if target.capture is None and not self.host.pinned(dst):
            self.wait_for_stream(target)

    @call()
    def memcpy_dtod_async(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        self.submit(self.used_stream(stream), self._on_device("memcpy_dtod_async", dst, src, nbytes))

    @call()
    def memset_d8(self, dst: int, value: int, count: int) -> None:
        self._set("memset_d8", dst, value, count, 1, self.used_stream(STREAM_LEGACY))

    @call()
    def memset_d8_async(self, dst: int, value: int, count: int, stream: int) -> None:
        self._set("memset_d8_async", dst, value, count, 1, self.used_stream(stream))

    @call()
    def memset_d32_async(self, dst: int, value: int, count: int, stream: int) -> None:
        self._set("memset_d32_async", dst, value, count, 4, self.used_stream(stream))

    # what they share ------------------------------------------------------------------------------------
    def _from_host(self, name: str, dst: int, src: int, nbytes: int) -> Work:
        def run() -> None:
            self.host.check(src, nbytes)
            ctypes.memmove(self._address(dst, nbytes), src, nbytes)

        return _copy(name, run, dst, src, nbytes)

    def _from_staging(self, name: str, dst: int, src: int, nbytes: int) -> Work:
        try:
            self.host.check(src, nbytes)
        except Fault as fault:  # the copy out of pageable memory is the call's own doing, not the device's
            raise Refuse(Result.INVALID_VALUE, str(fault)) from None
        staged = ctypes.string_at(src, nbytes)

        def run() -> None:
            ctypes.memmove(self._address(dst, nbytes), staged, nbytes)

        return Work(name, NodeType.MEMCPY, run, (Access(dst, dst + nbytes, True, name),))

    def _to_host(self, name: str, dst: int, src: int, nbytes: int) -> Work:
        def run() -> None:
            self.host.check(dst, nbytes)
            ctypes.memmove(dst, self._address(src, nbytes), nbytes)

        return _copy(name, run, dst, src, nbytes)

    def _on_device(self, name: str, dst: int, src: int, nbytes: int) -> Work:
        def run() -> None:
            self.space.bytes(dst, nbytes)[:] = self.space.bytes(src, nbytes)

        return _copy(name, run, dst, src, nbytes)

    def _set(self, name: str, dst: int, value: int, count: int, width: int, stream: Stream) -> None:
        if dst % width:
            raise Refuse(Result.INVALID_VALUE, f"{dst:#x} is not aligned to {width} bytes")
        pattern = (value % (1 << 8 * width)).to_bytes(width, "little")

        def run() -> None:
            destination = self.space.bytes(dst, count * width)
            if width == 1:
                destination.fill(pattern[0])
            else:
                destination.view(f"V{width}")[:] = pattern

        if count:
            work = Work(name, NodeType.MEMSET, run, (Access(dst, dst + count * width, True, name),))
        else:
            work = Work(name, NodeType.MEMSET, _nothing)
        self.submit(stream, work)

    def _address(self, ptr: int, nbytes: int) -> int:
        area = self.space.locate(ptr, ptr + nbytes)
        return area.address + ptr - area.base


def _nothing() -> None:
    """No bytes, no addresses: null ones are fine."""


def _copy(name: str, run: Callable[[], None], dst: int, src: int, nbytes: int) -> Work:
    if not nbytes:
        return Work(name, NodeType.MEMCPY, _nothing)
    accesses = (Access(src, src + nbytes, False, name), Access(dst, dst + nbytes, True, name))
    return Work(name, NodeType.MEMCPY, run, accesses)
