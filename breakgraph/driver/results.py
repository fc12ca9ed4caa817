"""From what the bindings return or raise to the typed errors of breakgraph (E1).

The one place that reads a result code. It is given functions of the bindings and imports none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from breakgraph.errors import DriverError, DriverNotFound, driver_error

__all__ = ["SIMULATE", "call", "initialize", "integer", "newest", "raise_translated", "ready", "snake"]

_NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND, what cuGetProcAddress itself answers for a symbol the driver lacks
_NOT_READY = 600  # CUDA_ERROR_NOT_READY: a query's "no", not an error
_UNKNOWN = 999  # CUDA_ERROR_UNKNOWN

#: The advice for whoever has no GPU.
SIMULATE = (
    'without a GPU choose the simulator: set BREAKGRAPH_DRIVER=sim in the environment or call bg.driver.use("sim")'
)


def call(function: Callable[..., tuple[Any, ...]], *args: object) -> tuple[Any, ...]:
    """Make one driver call. Returns its values after the result code; raises the typed error of that code."""
    try:
        result = function(*args)
    except (RuntimeError, ValueError) as error:
        raise_translated(error, function)
    if result[0]:
        raise driver_error(int(result[0]), snake(function.__name__), result[0].name)
    return result[1:]


def newest(bindings: ModuleType, bare: str, suffix: str, wanted: bool) -> Callable[..., tuple[Any, ...]]:
    """The form of a function that has a suffix, where it is wanted and there; else the one with the bare name."""
    newer = getattr(bindings, bare + suffix, None) if wanted else None
    function: Callable[..., tuple[Any, ...]] = newer or getattr(bindings, bare)
    return function


def integer(function: Callable[..., tuple[Any, ...]], *args: object) -> int:
    """Make one driver call that answers a single number or handle."""
    (value,) = call(function, *args)
    return int(value)


def ready(query: Callable[..., tuple[Any, ...]], handle: int) -> bool:
    """Make one query: True for done, False for not ready."""
    try:
        call(query, handle)
    except DriverError as error:
        if error.code != _NOT_READY:
            raise
        return False
    return True


def raise_translated(error: Exception, function: Callable[..., object]) -> NoReturn:
    """Raise the typed error for what the bindings themselves raise; anything else as it is."""
    text = str(error)
    if isinstance(error, ValueError) and "CUresult" in text:  # a code that the bindings' enum does not have
        number = re.search(r"(\d+) is not a valid CUresult", text)
        raise driver_error(int(number[1]) if number else _UNKNOWN, snake(function.__name__)) from error
    if re.search(r"function \W?cu\w+\W? (is )?not found", text, re.IGNORECASE):  # a symbol the driver does not have
        missing = driver_error(_NOT_FOUND, snake(function.__name__), "CUDA_ERROR_NOT_FOUND")
        missing.why, missing.remedy = f"the driver is older than this call ({text})", "update the NVIDIA driver"
        raise missing from error
    raise error


def snake(name: str) -> str:
    """``cuMemcpyHtoDAsync`` as ``memcpy_htod_async``, ``cuGraphGetEdges_v2`` as ``graph_get_edges``."""
    name = re.sub(r"_v\d+$", "", name).removeprefix("cu")
    name = re.sub(r"[HD]to[HD]", lambda pair: pair[0].capitalize(), name)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def initialize(bindings: ModuleType) -> None:
    """Initialize the driver; raise `DriverNotFound`, saying why, where there is none to use."""
    try:
        call(bindings.cuInit, 0)
        version, devices = integer(bindings.cuDriverGetVersion), integer(bindings.cuDeviceGetCount)
    except RuntimeError as error:  # the loader's own error, of a class that differs between releases, or ours
        reason = error.what if isinstance(error, DriverError) else str(error)
        raise DriverNotFound(
            "there is no usable CUDA driver",
            why=reason,
            remedy=f"check that nvidia-smi lists a GPU here; {SIMULATE}",
        ) from error
    wanted, offered = bindings.CUDA_VERSION // 1000, version // 1000
    if wanted > offered:
        fitting = f"pip install 'breakgraph[cuda{offered}]', or " if offered >= 12 else ""
        raise DriverNotFound(
            f"the installed bindings are for CUDA {wanted}, the driver is for CUDA {offered}",
            why="bindings of a newer major version call entry points that this driver does not have",
            remedy=f"{fitting}update the driver",
        )
    if not devices:
        raise DriverNotFound(
            "there is no CUDA device",
            why="the driver counts 0 devices (CUDA_VISIBLE_DEVICES may hide them)",
            remedy=SIMULATE,
        )
