"""Who called the library: the nearest frame outside the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

__all__ = ["caller", "in_package", "site"]

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def in_package(frame: FrameType) -> bool:
    """Whether it runs code of the library itself."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def caller() -> FrameType:
    """The frame of the nearest caller outside the package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and in_package(frame):
        frame = frame.f_back
    return frame


def site() -> str:
    """``file:line`` of the nearest caller outside the package."""
    frame = caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
