"""One NumPy call on device arrays as one kernel on the current simulated stream.

A call is taken apart: its arrays become places in a template, so that what is queued holds addresses and no
array. What it will return is learned by running it on shadows: host arrays of the same layout, full of zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from breakgraph.driver.region import Region
from breakgraph.frameworks.sim.state import state
from breakgraph.frameworks.sim.storage import HostArray, S, Storage

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["Call", "launch", "run", "shadow", "take_apart", "view_of"]

Compute = Callable[[list[HostArray], list[HostArray]], object]


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands in a template for the array of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments, with places where device arrays were."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def on(self, arrays: Sequence[HostArray]) -> Any:
        """Call the function with host arrays in the places."""
        args = [_fill(arg, arrays) for arg in self.args]
        return self.function(*args, **{name: _fill(value, arrays) for name, value in self.kwargs.items()})


def take_apart(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Call, list[Storage]]:
    """A call and the device arrays in it, tuples and lists of arguments included.

    Raises `TypeError` for a host array: as on cupy, nothing is copied to the device unasked.
    """
    arrays: list[Storage] = []
    taken = tuple(_take(arg, arrays) for arg in args)
    named = {name: _take(value, arrays) for name, value in kwargs.items()}
    if len({id(array._driver) for array in arrays}) > 1:
        raise ValueError("the arrays of one operation must be of one driver")
    return Call(function, taken, named), arrays


def launch(driver: SimDriver, name: str, compute: Compute, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
    """Queue ``compute(views of reads, views of writes)`` as one kernel on the thread's current stream.

    Nothing is queued where nothing is written, as cupy does for empty results.
    """
    if not any(array.size for array in writes):
        return
    driver.ensure_context()
    regions = [array.region for array in (*reads, *writes)]
    split = len(reads)

    def kernel(*views: HostArray) -> None:
        given = iter(views)
        operands = [next(given) if region.size else np.empty(region.shape, region.dtype) for region in regions]
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # a device has no way to warn
            compute(operands[:split], operands[split:])

    driver.launch(
        state(driver).stream,
        kernel,
        reads=[region for region in regions[:split] if region.size],
        writes=[region for region in regions[split:] if region.size],
        name=name,
    )


def run(name: str, call: Call, arrays: Sequence[Storage], out: Sequence[Storage] = ()) -> Any:
    """Run a call as one kernel, or as none where its result is a view of its arrays.

    ``out`` are those of its arrays that it writes. Returns what NumPy would, in device arrays (a scalar result
    is a 0-dimensional one).
    """
    shadows = [shadow(array.region) for array in arrays]
    with np.errstate(all="ignore"):
        result = call.on(shadows)
    several = isinstance(result, (tuple, list))
    returned: list[Any] = [None] * len(result) if several else [None]
    made: dict[int, Storage] = {}  # which results the kernel has to fill
    for number, one in enumerate(result if several else [result]):
        if one is not None:
            host = np.asarray(one)
            found = _same_memory(host, arrays, shadows)
            if found is None:
                found = made[number] = arrays[0]._empty(host.shape, host.dtype)
            returned[number] = found
    written = [number for number, array in enumerate(arrays) if any(array is one for one in out)]
    read = [number for number in range(len(arrays)) if number not in written]

    def compute(reads: list[HostArray], writes: list[HostArray]) -> None:
        views = dict(zip([*read, *written], [*reads, *writes], strict=False))
        computed = call.on([views[number] for number in range(len(views))])
        for number, place in zip(numbers, writes[len(written) :], strict=True):
            np.copyto(place, computed[number] if several else computed)

    numbers = list(made)
    if made or written:
        writes = [*(arrays[number] for number in written), *made.values()]
        launch(arrays[0]._driver, name, compute, [arrays[number] for number in read], writes)
    return type(result)(returned) if several else returned[0]


def shadow(region: Region) -> HostArray:
    """A writable host array of a region's shape, strides and dtype, full of zeros.

    Its memory spans as many bytes as the region does; the system gives pages of it only where they are touched.
    """
    low, high = region.bounds
    memory = np.zeros(high - low, np.uint8)
    return np.ndarray(region.shape, region.dtype, memory, region.ptr - low if region.size else 0, region.strides)


def translate(host: HostArray, region: Region, cast: HostArray) -> Region:
    """The region that a view of a shadow stands for."""
    return Region(region.ptr + host.ctypes.data - cast.ctypes.data, host.shape, host.strides, host.dtype)


def view_of(array: S, function: Callable[[HostArray], HostArray]) -> S | None:
    """The view that ``function`` takes of an array, or None where it would copy."""
    cast = shadow(array.region)
    found = function(cast)
    if not found.size or np.may_share_memory(found, cast):
        return array._view(translate(found, array.region, cast))
    return None


def _same_memory(host: HostArray, arrays: Sequence[Storage], shadows: Sequence[HostArray]) -> Storage | None:
    for array, cast in zip(arrays, shadows, strict=True):
        if host is cast:
            return array
        if host.size and np.may_share_memory(host, cast):
            return array._view(translate(host, array.region, cast))
    return None


def _take(node: Any, arrays: list[Storage]) -> Any:
    if isinstance(node, Storage):
        arrays.append(node)
        return _Place(len(arrays) - 1)
    if type(node) in (tuple, list):
        return type(node)(_take(item, arrays) for item in node)
    if isinstance(node, np.ndarray):
        if node.ndim:
            raise TypeError(f"Unsupported type {type(node)}: copy it to the device first, with asarray")
        return node[()]
    return node


def _fill(node: Any, arrays: Sequence[HostArray]) -> Any:
    if isinstance(node, _Place):
        return arrays[node.number]
    if type(node) in (tuple, list):
        return type(node)(_fill(item, arrays) for item in node)
    return node
