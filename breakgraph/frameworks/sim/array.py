"""The simulator's array: NumPy's API over memory of a simulated device, with cupy's rules where the two differ.

Each operation is one kernel on the thread's current stream. Views are taken on the host and cost no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike

from breakgraph.frameworks.sim import functions, indexing
from breakgraph.frameworks.sim.hostcopy import download, may_wait, overwrite
from breakgraph.frameworks.sim.kernels import view_of
from breakgraph.frameworks.sim.storage import HostArray, Storage, device_dtype
from breakgraph.frameworks.sim.ufuncs import apply_ufunc

__all__ = ["SimArray"]


class Flags(NamedTuple):
    """The part of ``numpy.ndarray.flags`` that says how an array lies in memory."""

    c_contiguous: bool
    f_contiguous: bool


class Pointer(NamedTuple):
    """``array.data``, as on cupy: ``ptr`` is the address of the first element."""

    ptr: int


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy function of an array as a method, as numpy.ndarray has it."""

    def method(self: SimArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = function.__name__
    method.__doc__ = f"``numpy.{function.__name__}`` of this array."
    return method


class SimArray(Storage, NDArrayOperatorsMixin):
    """An array in simulated device memory. Made by the functions of `breakgraph.array_namespace`.

    It answers NumPy's operators, ufuncs and most functions. It never turns into a host array by itself
    (`get` does it), and its address means nothing to a real device, so it has no ``__cuda_array_interface__``.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # mutable, as numpy.ndarray is

    # NumPy's protocols ----------------------------------------------------------------------------------
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return apply_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return functions.apply_function(function, args, kwargs)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed."
            " Please use `.get()` to construct a NumPy array explicitly."
        )

    # to and from the host -------------------------------------------------------------------------------
    def get(self, stream: Any = None) -> HostArray:
        """The elements as a host array; waits for ``stream``, by default the current one.

        Raises `RuntimeError` inside a segment.
        """
        return download(self, None if stream is None else _handle(stream))

    def set(self, arr: HostArray, stream: Any = None) -> None:
        """Copy a host array of the same shape over the elements.

        Raises `TypeError` or `ValueError` for another dtype or shape, `RuntimeError` inside a segment.
        """
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to a device array")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        overwrite(self, arr, None if stream is None else _handle(stream))

    def item(self, *args: int) -> Any:
        """One element as a Python scalar; waits for the current stream."""
        return (self[args] if args else self).get().item()

    def tolist(self) -> Any:
        """The elements in nested lists; waits for the current stream."""
        return self.get().tolist()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __repr__(self) -> str:
        if may_wait(self._driver):
            return repr(self.get())
        return f"<SimArray {self.shape} {self.dtype} at {self.data.ptr:#x}: its stream is capturing>"

    # layout ---------------------------------------------------------------------------------------------
    @property
    def data(self) -> Pointer:
        """``data.ptr`` is the simulated address."""
        return Pointer(self._region.ptr)

    @property
    def flags(self) -> Flags:
        region = self._region
        turned = type(region)(region.ptr, region.shape[::-1], region.strides[::-1], region.dtype)
        return Flags(region.contiguous, turned.contiguous)

    @property
    def T(self) -> SimArray:  # noqa: N802 - NumPy's name
        return self.transpose()

    @property
    def mT(self) -> SimArray:  # noqa: N802 - NumPy's name
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> SimArray:
        found: SimArray = np.real(self)
        return found

    @property
    def imag(self) -> SimArray:
        found: SimArray = np.imag(self)
        return found

    def transpose(self, *axes: Any) -> SimArray:
        """A view with its axes in another order, reversed by default."""
        return self._derived(lambda host: host.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> SimArray:
        """A view with two axes exchanged."""
        return self._derived(lambda host: host.swapaxes(axis1, axis2))

    def view(self, dtype: DTypeLike | None = None) -> SimArray:
        """The same bytes, read as another dtype."""
        kind = self.dtype if dtype is None else device_dtype(dtype)
        return self._derived(lambda host: host.view(kind))

    def reshape(self, *shape: Any, order: Any = "C") -> SimArray:
        """A view where the layout allows it, otherwise a copy."""
        wanted = shape[0] if len(shape) == 1 else shape
        made: SimArray = functions.call(np.reshape, (self, wanted), {"order": order})
        return made

    def _derived(self, function: Callable[[HostArray], HostArray]) -> SimArray:
        found = view_of(self, function)
        assert found is not None  # these always are views
        return found

    # elements -------------------------------------------------------------------------------------------
    def __getitem__(self, index: Any) -> SimArray:
        return indexing.read(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        indexing.write(self, index, value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[SimArray]:
        return (self[row] for row in range(len(self)))

    def fill(self, value: Any) -> None:
        """Write a scalar into every element."""
        functions.assign(self, value, name="fill")

    def copy(self, order: Any = "C") -> SimArray:
        """A C-contiguous copy in new memory."""
        return self.astype(self.dtype)

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> SimArray:
        """A copy as another dtype; this array itself where ``copy`` is false and nothing changes."""
        kind = device_dtype(dtype)
        if not copy and kind == self.dtype:
            return self
        made = self._empty(self.shape, kind)
        functions.assign(made, self, name="astype" if kind != self.dtype else "copy")
        return made

    def flatten(self) -> SimArray:
        """A one-dimensional copy."""
        return self.copy().reshape(-1)

    def dot(self, b: Any, out: Any = None) -> SimArray:
        """``numpy.dot`` of this array and ``b``."""
        made: SimArray = functions.call(np.dot, (self, b), {} if out is None else {"out": out}, out)
        return made

    sum = _method(np.sum)
    prod = _method(np.prod)
    mean = _method(np.mean)
    std = _method(np.std)
    var = _method(np.var)
    max = _method(np.max)
    min = _method(np.min)
    argmax = _method(np.argmax)
    argmin = _method(np.argmin)
    all = _method(np.all)
    any = _method(np.any)
    cumsum = _method(np.cumsum)
    cumprod = _method(np.cumprod)
    trace = _method(np.trace)
    clip = _method(np.clip)
    round = _method(np.round)
    conj = _method(np.conjugate)
    ravel = _method(np.ravel)
    squeeze = _method(np.squeeze)
    diagonal = _method(np.diagonal)
    take = _method(np.take)
    repeat = _method(np.repeat)
    argsort = _method(np.argsort)
    put = _method(np.put)


def _handle(stream: Any) -> int:
    return int(getattr(stream, "ptr", stream))
