"""What a stream is to the rest of the library: a handle, however it is given."""

from __future__ import annotations

from typing import SupportsInt

import numpy as np

__all__ = ["StreamHandle", "stream_handle"]


class StreamHandle:
    """A stream that somebody else owns.

    Accepted wherever a stream is: it has ``__int__`` and CUDA's ``__cuda_stream__`` protocol (version 0 and
    the handle). Equal to whatever has the same handle, ints too.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __int__(self) -> int:
        return self.handle

    __index__ = __int__

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StreamHandle):
            return other.handle == self.handle
        try:
            return stream_handle(other) == self.handle
        except TypeError:
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.handle:#x}>"


def stream_handle(stream: object) -> int:
    """The handle of an int, of anything with ``__cuda_stream__``, or of cupy's, numba's and torch's streams.

    Raises `TypeError` for anything else.
    """
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if not isinstance(stream, bool) and isinstance(stream, (int, np.integer)):
        return int(stream)
    if type(stream).__name__.endswith("Stream"):
        for attribute in ("cuda_stream", "ptr"):  # torch's, cupy's
            if isinstance(handle := getattr(stream, attribute, None), int):
                return handle
        if isinstance(stream, SupportsInt):  # numba's
            return int(stream)
    raise TypeError(f"not a stream: {stream!r}; give an int handle or an object with __cuda_stream__")
