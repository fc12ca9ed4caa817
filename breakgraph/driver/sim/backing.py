"""Host memory behind physical memory: bytes that may lie at any number of host addresses at once.

All of them are parts of one file without a name, so that thousands of pieces need one file descriptor.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import weakref

from breakgraph.driver.sim.ranges import FreeRanges

__all__ = ["ANONYMOUS", "Backing", "map_anonymous"]

_FIXED = 0x10  # MAP_FIXED, which Python's mmap does not name
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # memory is taken when touched, not when mapped
_PUNCH_HOLE = 0x03  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE

ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE  #: flags of host memory that nothing else shows

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_fallocate = getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Backing:
    """A file that grows as pieces of it are taken. Sizes and offsets are multiples of the page size, in bytes.

    Whatever the host refuses is an OSError that leaves all as it was. A forked child shares the bytes, as it shares
    pinned memory; they are its parent's, and it gives none of them back.
    """

    def __init__(self) -> None:
        self._free = FreeRanges(0, 1 << 62)
        self._file = -1  # until the first piece is taken: most simulated devices map nothing
        self._size = 0
        self._pid = os.getpid()

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that it takes at the moment."""
        return os.fstat(self._file).st_blocks * 512 if self._file >= 0 else 0

    def take(self, nbytes: int) -> int:
        """The offset of ``nbytes`` bytes. They take host memory when they are filled or touched."""
        if self._file < 0:
            self._file = _nameless_file()
            weakref.finalize(self, os.close, self._file).atexit = False
        offset = self._free.take(nbytes)
        assert offset is not None  # no host has so many bytes
        if offset + nbytes > self._size:
            try:
                os.ftruncate(self._file, offset + nbytes)
            except BaseException:
                self._free.give(offset, nbytes)
                raise
            self._size = offset + nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Give bytes back, and the host its memory."""
        self._free.give(offset, nbytes)
        if _fallocate is not None and os.getpid() == self._pid:
            _fallocate(self._file, _PUNCH_HOLE, offset, nbytes)  # where the file system cannot, they stay until reused

    def fill(self, offset: int, content: bytes) -> None:
        """Write bytes, which is half as dear as touching each page at an address."""
        while content:
            written = os.pwrite(self._file, content, offset)
            offset, content = offset + written, content[written:]

    def show(self, address: int, nbytes: int, offset: int) -> None:
        """Let host addresses that the caller has mapped show these bytes, in place of what is there."""
        _map_over(address, nbytes, mmap.MAP_SHARED, self._file, offset)


def map_anonymous(address: int, nbytes: int) -> None:
    """Let host addresses that the caller has mapped show memory of their own again, untouched."""
    _map_over(address, nbytes, ANONYMOUS, -1, 0)


def _map_over(address: int, nbytes: int, flags: int, file: int, offset: int) -> None:
    if _mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags | _FIXED, file, offset) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("breakgraph")
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())
