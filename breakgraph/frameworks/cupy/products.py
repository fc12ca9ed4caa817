"""Matrix products of cupy's arrays that a segment records. Checked against cupy 14 (_routines_linalg.pyx)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from breakgraph.frameworks.base import Array
from breakgraph.frameworks.cupy.arrays import import_cupy, region_of
from breakgraph.frameworks.cupy.cublas import cublas, multiplies
from breakgraph.frameworks.cupy.plan import plan_product, product_shape
from breakgraph.frameworks.cupy.scopes import segment

__all__ = ["gemm", "matmul"]


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """The matrix product of two cupy arrays, as ``numpy.matmul``, in segments and outside.

    Parameters
    ----------
    a, b
        Arrays of (..., m, k) and (..., k, n), or of one axis. float16, bfloat16, float32, float64, complex64 and
        complex128 are multiplied by cuBLAS in the dtype that they promote to, and with the precision that cupy
        multiplies in (``CUPY_TF32``); all others by cupy's own kernels.
    out
        Where to put the result: of its shape, or of one to which it broadcasts. It may have any strides, another dtype
        of the same kind, and overlap ``a`` and ``b``.

    Returns
    -------
    cupy.ndarray
        ``out``, or a new C-contiguous array.

    Raises
    ------
    ValueError
        Shapes do not match.
    TypeError
        ``out`` is of a dtype to which the result is not cast.
    BreakgraphError
        nvmath-python is not installed.
    """
    cupy = import_cupy()
    dtype = _common_dtype(cupy, a, b)
    if dtype is None:
        return cupy.matmul(a, b, out=out)  # by a kernel of cupy's own, or refused
    shape = product_shape(a.shape, b.shape)
    if out is None:
        return _multiply(cupy, a, b, cupy.empty(shape, dtype))
    if not isinstance(out, cupy.ndarray):
        raise TypeError(f"out is a {type(out).__name__}, and not an array of cupy's")
    _check_out(out, shape, dtype, core=min(a.ndim - 1, 1) + min(b.ndim - 1, 1))
    if (out.shape, out.dtype) == (shape, dtype):
        return _multiply(cupy, a, b, out)
    out[...] = _multiply(cupy, a, b, cupy.empty(shape, dtype))
    return out


def gemm(a: Array, b: Array, c: Array | None = None, *, alpha: complex = 1.0, beta: complex = 0.0) -> Array:
    """``c = alpha * (a @ b) + beta * c``, in place: BLAS's product, of cupy arrays, in segments and outside.

    Parameters
    ----------
    a, b
        As in `matmul`, of dtypes that cuBLAS multiplies. Transposes are views: ``a.T``.
    c
        An array of the product's shape and dtype, of any strides. Without it the result is a new array.
    alpha, beta
        Numbers of the host. A segment records their values. Where ``beta`` is 0, what is in ``c`` is not read.

    Returns
    -------
    cupy.ndarray
        ``c``, or the new array.

    Raises
    ------
    ValueError
        Shapes do not match, or there is a ``beta`` and no ``c``.
    TypeError
        cuBLAS has no products of the dtype, or ``c`` is of another.
    BreakgraphError
        nvmath-python is not installed.
    """
    cupy = import_cupy()
    dtype = _common_dtype(cupy, a, b)
    if dtype is None:
        raise TypeError(f"gemm multiplies floating-point arrays of cupy, not {_told(a)} and {_told(b)}")
    shape = product_shape(a.shape, b.shape)
    if c is None:
        if beta:
            raise ValueError("gemm has a beta and no c for it to multiply")
        c = cupy.empty(shape, dtype)
    if c.dtype != dtype:
        raise TypeError(f"c is of {c.dtype}, and the product of {dtype}")
    if c.shape != shape:
        raise ValueError(f"c has shape {c.shape}, and the product {shape}")
    return _multiply(cupy, a, b, c, alpha, beta)


def _common_dtype(cupy: Any, a: Any, b: Any) -> np.dtype[Any] | None:
    """The dtype in which cuBLAS multiplies two arrays; None where it does not."""
    if not (isinstance(a, cupy.ndarray) and isinstance(b, cupy.ndarray)):
        return None
    dtype = np.promote_types(a.dtype, b.dtype)
    return dtype if multiplies(dtype) else None


def _told(operand: Any) -> str:
    return str(getattr(operand, "dtype", type(operand).__name__))


def _check_out(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any], *, core: int) -> None:
    """Refuse what ``numpy.matmul`` refuses; the last ``core`` axes are the matrices', and do not broadcast."""
    batch, own = out.shape[: out.ndim - core], out.shape[out.ndim - core :]
    if own != shape[len(shape) - core :] or not _broadcasts(shape[: len(shape) - core], batch):
        raise ValueError(f"out has shape {out.shape}, and the product {shape}")
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(f"a product of {dtype} is not cast to {out.dtype}, which is of another kind")


def _broadcasts(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, into) == into
    except ValueError:
        return False


def _multiply(cupy: Any, a: Array, b: Array, c: Array, alpha: complex = 1.0, beta: complex = 0.0) -> Array:
    """Into ``c``, which has the product's shape and dtype, and may lie anywhere."""
    if not c.size:
        return c
    if not a.shape[-1]:
        c[...] = c * beta if beta else 0
        return c
    left, right = (one.astype(c.dtype, copy=False) for one in (a, b))
    left = left if a.ndim > 1 else left[None, :]
    right = right if b.ndim > 1 else right[:, None]
    result = c if b.ndim > 1 else c[..., None]
    result = result if a.ndim > 1 else result[..., None, :]
    aside = any(region_of(result).overlaps(region_of(one)) for one in (left, right))
    target = _scratch(cupy, result, beta) if aside else result
    plan = plan_product(*(replace(region_of(one), ptr=0) for one in (left, right, target)))
    if plan.copies.result:
        target = _scratch(cupy, result, beta)
    left, right = (
        one if shape is None else cupy.ascontiguousarray(cupy.broadcast_to(one, shape))
        for one, shape in ((left, plan.copies.left), (right, plan.copies.right))
    )
    at = (left.data.ptr, right.data.ptr, target.data.ptr)
    stream = int(cupy.cuda.get_current_stream().ptr)
    nbytes = _workspace_bytes(cupy)
    scope = segment()
    # Outside segments cupy's pool hands it on to this stream alone, so it need not outlive the calls.
    workspace = scope.workspace(stream, nbytes) if scope else cupy.cuda.alloc(nbytes)
    blas = cublas()
    with blas.handle(stream, workspace.ptr, nbytes) as handle:
        blas.multiply(handle, plan, c.dtype, at, alpha=alpha, beta=beta, precision=_precision(cupy, c.dtype))
    if target is not result:
        result[...] = target
    return c


def _scratch(cupy: Any, result: Array, beta: complex) -> Array:
    """A C-contiguous array to compute a result in."""
    return result.copy() if beta else cupy.empty(result.shape, result.dtype)


def _workspace_bytes(cupy: Any) -> int:
    """What cuBLAS's documentation recommends for the current device (cublasSetWorkspace): 32 MiB from Hopper on."""
    return (32 if int(cupy.cuda.Device().compute_capability) >= 90 else 4) << 20


def _precision(cupy: Any, dtype: np.dtype[Any]) -> str:
    """How cupy is set to multiply a dtype, by the end of cuBLAS's name for it."""
    linalg = cupy._core._routines_linalg
    chosen = linalg.get_compute_type(dtype)
    if chosen == linalg.COMPUTE_TYPE_PEDANTIC:
        return "_PEDANTIC"
    return "_FAST_TF32" if chosen == linalg.COMPUTE_TYPE_TF32 and dtype.char in "fF" else ""
