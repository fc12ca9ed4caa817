"""Who called the library: the nearest frame outside the package."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

import numpy as np

from breakgraph.errors import BreakgraphWarning

__all__ = [
    "CallSite",
    "call_site",
    "caller",
    "in_driver",
    "in_package",
    "is_program",
    "program",
    "site",
    "told",
    "warn",
]

#: A place in code: which instruction of it runs.
CallSite: TypeAlias = tuple[CodeType, int]

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_DRIVER = _PACKAGE + "driver" + os.sep
_NUMPY = str(Path(np.__file__).parent) + os.sep
_STDLIB = str(Path(os.__file__).parent) + os.sep


def in_package(frame: FrameType) -> bool:
    """Whether it runs code of the library itself."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def in_driver(frame: FrameType) -> bool:
    """Whether it runs code of the driver layer."""
    return frame.f_code.co_filename.startswith(_DRIVER)


def is_program(frame: FrameType) -> bool:
    """Whether it runs code of the program or a library it uses: not this one, nor Python's own or NumPy."""
    name = frame.f_code.co_filename
    if name == "<string>":  # a method that a dataclass or a named tuple was given; or python -c
        return not str(frame.f_globals.get("__name__", "")).startswith(("breakgraph.", "namedtuple_"))
    of_python = name.startswith((_STDLIB, "<frozen ")) and "site-packages" not in name
    return not of_python and not name.startswith((_PACKAGE, _NUMPY))


def caller() -> FrameType:
    """The frame of the nearest caller outside the package."""
    return _outside(sys._getframe(2))  # whoever asks is of the package


def site(frame: FrameType | None = None) -> str:
    """``file:line`` that a frame runs, by default that of the nearest caller outside the package."""
    if frame is None:
        frame = _outside(sys._getframe(2))
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def call_site() -> CallSite:
    """Where the nearest caller outside the package is. To find the line takes long, and maybe nobody asks for it."""
    frame = sys._getframe(2)  # whoever asks is of the package
    code = frame.f_code
    if code.co_filename.startswith(_PACKAGE):
        frame = _outside(frame)
        code = frame.f_code
    return code, frame.f_lasti


def told(where: CallSite) -> str:
    """``file:line`` of a place."""
    code, at = where
    line = next((line for start, end, line in code.co_lines() if start <= at < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def _outside(frame: FrameType) -> FrameType:
    """The nearest frame that is none of the package's, this one or one that called it."""
    while in_package(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def program(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, as far as they are the program's."""
    while frame is not None:
        if is_program(frame):
            yield frame
        frame = frame.f_back


def warn(message: str) -> None:
    """Warn about the line of the nearest caller outside the package, however many calls of the package lie between."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and in_package(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, BreakgraphWarning, stacklevel=level)
