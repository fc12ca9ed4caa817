"""What the tests of graph memory share: addresses, forks by event, threads that must come to an end."""

from __future__ import annotations

from typing import Any

import breakgraph as bg
from breakgraph import frameworks

MIB = 1 << 20
GRANULE = 2 * MIB  # what physical memory is mapped in


def region(array: Any) -> Any:
    """Where a device array lies."""
    framework = frameworks.of(array, bg.driver.current())
    assert framework is not None
    return framework.view(array)


def address(array: Any) -> int:
    """First byte of a device array."""
    return int(region(array).ptr)


def overlap(one: Any, other: Any) -> bool:
    """Whether two device arrays share a byte."""
    return bool(region(one).overlaps(region(other)))


def round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple
