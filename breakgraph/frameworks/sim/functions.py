"""``__array_function__``: the NumPy functions that device arrays answer.

A function is answered if the shape of its result does not depend on values. What would have to look at
values on the host is not, and NumPy then says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from breakgraph.frameworks.sim.kernels import launch, run, shadow, take_apart
from breakgraph.frameworks.sim.storage import HostArray, Storage, device_dtype, shape_of

__all__ = ["ANSWERED", "apply_function", "assign", "call", "empty_like"]


def _names(*groups: str) -> frozenset[str]:
    return frozenset(" ".join(groups).split())


#: Functions answered by one kernel or by a view; those that also take ``out`` by position are in ``_OUT_AT``.
_FUNCTIONS = _names(
    "count_nonzero average",
    "where nan_to_num sinc isclose allclose array_equal angle select",
    "vstack hstack dstack column_stack append tile repeat roll pad tril triu diff sort argsort",
    "take_along_axis searchsorted copy interp",
    "vdot inner tensordot einsum kron cross",
    "reshape ravel transpose permute_dims matrix_transpose swapaxes moveaxis rollaxis squeeze expand_dims",
    "broadcast_to broadcast_arrays atleast_1d atleast_2d atleast_3d flip fliplr flipud rot90",
    "split array_split hsplit vsplit dsplit unstack diagonal diag real imag",
)

_OUT_AT = {
    name: position
    for position, names in {
        1: "fix isposinf isneginf",
        2: "amax amin max min all any ptp argmax argmin nanmax nanmin median around round concatenate stack choose"
        " dot outer",
        3: "sum prod mean std var cumsum cumprod nansum nanmean clip take",
        5: "trace",
    }.items()
    for name in names.split()
}

#: Functions that write their first argument and return nothing.
_IN_PLACE = {"put", "putmask", "place", "put_along_axis", "fill_diagonal"}

#: Functions that ask about shape and dtype alone, answered on the host.
_HOST = {"shape", "ndim", "size", "result_type", "can_cast", "iscomplexobj", "isrealobj", "common_type"}


def apply_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a NumPy function; `NotImplemented` where device arrays do not know it."""
    name = function.__name__
    if getattr(np, name, None) is not function:  # np.linalg and np.fft have some of the same names
        return NotImplemented
    if name == "copyto":
        return _copyto(*args, **kwargs)
    if name in _HOST:
        taken, arrays = take_apart(function, args, kwargs)
        return taken.on([shadow(array.region) for array in arrays])
    if name in _LIKE:
        return _LIKE[name](*args, **kwargs)
    if name in _IN_PLACE:
        return call(function, args, kwargs, args[0])
    if name not in ANSWERED or _depends_on_values(name, args, kwargs):
        return NotImplemented
    if name == "take" and len(args) < 5:
        kwargs = {"mode": "wrap", **kwargs}  # what a device does with an index out of range: it cannot raise
    position = _OUT_AT.get(name, len(args))
    out = args[position] if position < len(args) else kwargs.get("out")
    return call(function, args, kwargs, out)


def _depends_on_values(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the values of an argument decide the shape of the result."""
    if name == "where":
        return len(args) + len(kwargs) < 3
    return name == "repeat" and isinstance(kwargs.get("repeats", args[-1] if len(args) > 1 else None), Storage)


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any = None) -> Any:
    """Run any function of this kind as one kernel; ``out`` is the argument that it writes."""
    if out is not None and not isinstance(out, Storage):
        raise TypeError(f"an array to be written must be a device array, not {type(out).__name__}")
    taken, arrays = take_apart(function, args, kwargs)
    return run(function.__name__, taken, arrays, () if out is None else (out,))


def assign(dst: Storage, value: Any, *, casting: Any = "unsafe", where: Any = True, name: str = "copy") -> None:
    """Write an array or a scalar into every element of ``dst``, broadcasting, as one kernel."""
    if not isinstance(dst, Storage):
        raise TypeError(f"cannot copy into {type(dst)} from the device: use get()")
    if isinstance(value, Storage) and value.region == dst.region and where is True:
        return  # what x[i] += 1 ends with
    taken, arrays = take_apart(np.copyto, (value,), {} if where is True else {"where": where})
    for array in arrays:
        if not _fits(array.shape, dst.shape):
            raise ValueError(f"could not broadcast input array from shape {array.shape} into shape {dst.shape}")
    trial = [np.zeros((), array.dtype) for array in arrays]
    with np.errstate(all="ignore"):
        type(taken)(_into(np.zeros((), dst.dtype), casting), taken.args, taken.kwargs).on(trial)

    def compute(views: list[HostArray], written: list[HostArray]) -> None:
        type(taken)(_into(written[0], casting), taken.args, taken.kwargs).on(views)

    launch(dst._driver, name, compute, arrays, [dst])


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts into another, leading axes of one element apart."""
    extra = max(len(shape) - len(into), 0)
    pairs = zip(reversed(shape), reversed(into), strict=False)
    return all(extent == 1 for extent in shape[:extra]) and all(a in (1, b) for a, b in pairs)


def _into(dst: HostArray, casting: Any) -> Callable[..., None]:
    def copy(value: Any, where: Any = True) -> None:
        np.copyto(dst, value, casting=casting, where=where)

    return copy


def empty_like(a: Storage, dtype: DTypeLike | None = None, *_: Any, shape: Any = None, **__: Any) -> Storage:
    """A C-contiguous array of the shape and dtype of ``a``, unless others are given. NumPy's ``order`` is ignored."""
    return a._empty(a.shape if shape is None else shape_of(shape), a.dtype if dtype is None else device_dtype(dtype))


def _full_like(a: Storage, fill_value: Any, *args: Any, **kwargs: Any) -> Storage:
    made = empty_like(a, *args, **kwargs)
    assign(made, fill_value, name="fill")
    return made


_LIKE: dict[str, Callable[..., Storage]] = {
    "empty_like": empty_like,
    "full_like": _full_like,
    "zeros_like": lambda a, *args, **kwargs: _full_like(a, 0, *args, **kwargs),
    "ones_like": lambda a, *args, **kwargs: _full_like(a, 1, *args, **kwargs),
}


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    assign(dst, src, casting=casting, where=where)


#: Every function name that `apply_function` answers.
ANSWERED = frozenset({*_FUNCTIONS, *_OUT_AT, *_IN_PLACE, *_HOST, *_LIKE, "copyto"})
