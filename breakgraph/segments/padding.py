"""Rows that pad a batch to a captured size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from breakgraph import driver as drivers
from breakgraph import frameworks
from breakgraph.driver import Driver
from breakgraph.errors import NotCopyable
from breakgraph.frameworks.base import Array, Framework

__all__ = ["row_scrubber", "scrub_padding_tail", "size_ladder", "slice_to_real_rows", "zero_rows_from"]


def scrub_padding_tail(n: int, *arrays: Any) -> None:
    """Zero the rows of device arrays that are padding, on their framework's current stream.

    Parameters
    ----------
    n
        The first row along axis 0 that is zeroed.
    arrays
        Device arrays. None is skipped; an array of ``n`` rows or fewer is left as it is.

    Raises
    ------
    NotCopyable
        One of them is no device array of the current driver.
    """
    driver = drivers.current()
    for array in arrays:
        if array is None:
            continue
        framework = frameworks.of(array, driver)
        if framework is None:
            raise NotCopyable(
                f"cannot zero the rows of a {type(array).__name__}", remedy="pass device arrays of the current driver"
            )
        zero_rows_from(driver, framework, array, n, framework.current_stream() or 0)


def zero_rows_from(driver: Driver, framework: Framework, array: Array, n: int, stream: int) -> None:
    """Zero rows ``n`` and up of one array. An array without axes has no rows."""
    region = framework.view(array)
    if not region.ndim or region.shape[0] <= n:
        return
    tail = region.rows(n)
    if tail.contiguous:
        driver.memset_d8_async(tail.ptr, 0, tail.nbytes, stream)
    else:
        framework.zero(framework.over(tail, array), stream)


def row_scrubber(driver: Driver, array: Array) -> Callable[[int, int], None]:
    """What zeroes the rows of one array from a number on, on a stream, again and again."""
    framework = frameworks.of(array, driver)
    assert framework is not None  # whoever asks has found that it is an array
    region = framework.view(array)
    if not (region.ndim and region.contiguous and region.size):
        return lambda n, stream: zero_rows_from(driver, framework, array, n, stream)
    ptr, rows, row = region.ptr, region.shape[0], region.nbytes // region.shape[0]

    def scrub(n: int, stream: int) -> None:
        if n < rows:
            driver.memset_d8_async(ptr + n * row, 0, (rows - n) * row, stream)

    return scrub


def slice_to_real_rows(n: int, *arrays: Any) -> Any:
    """The rows that are no padding, as views.

    Parameters
    ----------
    n
        How many rows of axis 0 are real.
    arrays
        Arrays of at least that many rows, or None.

    Returns
    -------
    view or tuple of views
        One for one array, a tuple for several. None stays None; an array that has just ``n`` rows is returned as it is.
    """
    sliced = tuple(array if array is None or array.shape[0] == n else array[:n] for array in arrays)
    return sliced[0] if len(sliced) == 1 else sliced


def size_ladder(maximum: int, sizes: Sequence[int] | None = None, *, enabled: bool = True) -> tuple[int, ...]:
    """Sizes worth capturing up to ``maximum`` rows, which is always the last; none where not ``enabled``.

    By default 1, 2, 4, then steps of 8 to 256; from there gaps of an eighth of the size, in multiples of 16
    and at most 512, so that padding wastes little at any size. Explicit ``sizes`` are cut at the maximum.
    """
    if maximum < 1:
        raise ValueError(f"the largest size must be at least 1, not {maximum}")
    if not enabled:
        return ()
    if sizes is not None:
        return (*sorted({size for size in sizes if 0 < size < maximum}), maximum)
    ladder = [1, 2, 4]
    while ladder[-1] < maximum:
        last = ladder[-1]
        ladder.append(last + (4 if last == 4 else 8 if last < 256 else min(last // 8 // 16 * 16, 512)))
    return (*(size for size in ladder if size < maximum), maximum)
