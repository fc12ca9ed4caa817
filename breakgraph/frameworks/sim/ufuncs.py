"""``__array_ufunc__``: NumPy's ufuncs and their methods on device arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from breakgraph.frameworks.sim.kernels import Call, launch, run, take_apart
from breakgraph.frameworks.sim.storage import DType, HostArray, Storage

__all__ = ["apply_ufunc"]


def apply_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``ufunc`` or one of its methods as one kernel."""
    out = tuple(array for array in kwargs.get("out") or () if array is not None)
    for array in out:
        if not isinstance(array, Storage):
            raise TypeError(f"return arrays must be device arrays, not {type(array).__name__}")
    if kwargs.get("where") is True:
        del kwargs["where"]
    if method == "__call__" and ufunc.signature is None:
        return _elementwise(ufunc, inputs, kwargs)
    if method == "at":
        if not isinstance(inputs[0], Storage):
            raise TypeError("the first operand of a ufunc's at() must be a device array")
        out = (inputs[0],)
    function = ufunc if method == "__call__" else getattr(ufunc, method)
    call, arrays = take_apart(function, inputs, kwargs)
    return run(ufunc.__name__, call, arrays, out)


def _elementwise(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Shape by broadcasting and dtype by a try on single zeros: nothing of the arrays' size is touched twice."""
    outs = list(kwargs.pop("out", ()) or ())
    outs += [None] * (ufunc.nout - len(outs))
    call, arrays = take_apart(ufunc, inputs, kwargs)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    dtypes = _result_dtypes(ufunc, call, arrays, outs)
    results = []
    for out, dtype in zip(outs, dtypes, strict=True):
        if out is not None and out.shape != shape:
            raise ValueError(f"Out shape is mismatched: {out.shape} for a result of {shape}")
        like = arrays[0] if arrays else next(given for given in outs if given is not None)
        results.append(like._empty(shape, dtype) if out is None else out)

    def compute(views: list[HostArray], written: list[HostArray]) -> None:
        Call(call.function, call.args, {**call.kwargs, "out": tuple(written)}).on(views)

    first = results[0]
    launch(first._driver, ufunc.__name__, compute, arrays, results)
    return first if len(results) == 1 else tuple(results)


def _result_dtypes(ufunc: np.ufunc, call: Call, arrays: list[Storage], outs: list[Storage | None]) -> list[DType]:
    zeros = [np.zeros((), array.dtype) for array in arrays]
    trial = tuple(None if out is None else np.zeros((), out.dtype) for out in outs)
    with np.errstate(all="ignore"):
        found = Call(ufunc, call.args, {**call.kwargs, "out": trial}).on(zeros)
    return [np.asarray(one).dtype for one in (found if isinstance(found, tuple) else (found,))]
