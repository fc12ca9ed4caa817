"""The way of a break's result to its destination at replay, where both are arrays: one driver call, and no plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from breakgraph import driver as drivers
from breakgraph import frameworks
from breakgraph.memory import Cell, is_registered

__all__ = ["Place", "direct_landing"]


class Place:
    """Where the replay of one graph runs now, and how many of its rows are real. Prepared calls refer to it."""

    __slots__ = ("stream", "valid_rows")

    def __init__(self) -> None:
        self.stream = 0
        self.valid_rows: int | None = None


def direct_landing(destination: Any, place: Place, otherwise: Callable[[object], None]) -> Callable[[object], None]:
    """A landing that copies at once what is of the destination's type and layout; anything else goes ``otherwise``."""
    array = destination.array if isinstance(destination, Cell) else destination
    driver = drivers.current()
    framework = frameworks.of(array, driver)
    if framework is None or is_registered(array):
        return otherwise
    region = framework.view(array)
    if not region.contiguous or not region.size:
        return otherwise
    ptr, nbytes, kind = region.ptr, region.nbytes, type(array)
    address, copy = framework.address, driver.memcpy_dtod_async

    def land(result: object) -> None:
        source = address(result, region) if type(result) is kind else 0
        if source == ptr:
            return
        if source and not -nbytes < source - ptr < nbytes:  # what overlaps is staged
            copy(ptr, source, nbytes, place.stream)
        else:
            otherwise(result)

    return land
