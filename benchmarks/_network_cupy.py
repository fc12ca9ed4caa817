"""The transformer's kernels over cupy: raw kernels in half precision, products by cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import breakgraph as bg
from benchmarks._network import Affine
from benchmarks._peers import Missing, cupy

__all__ = ["SOURCE", "OverCupy", "attention_products"]

_THREADS = 256
_HALF, _SINGLE_SUMS, _ANY_ALGORITHM = 2, 68, -1  # CUDA_R_16F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
_AS_IS, _TRANSPOSED = 0, 1
_WORKSPACE = 32 << 20  # bytes; what cuBLAS asks for on Hopper

SOURCE = r"""
// The conversions in PTX, so that no header of a toolkit is needed.
typedef unsigned short half_t;
__device__ float load(half_t h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
__device__ half_t stored(float f) { half_t h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }

__device__ float sum_of_warp(float value) {
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

__device__ float max_of_warp(float value) {
    for (int step = 16; step; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
    return value;
}

__device__ float sum_of_block(float value) {
    __shared__ float warps[32];
    value = sum_of_warp(value);
    __syncthreads();  // the sum before this one has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    return sum_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0);
}

// A block for each row.
extern "C" __global__ void layer_norm(const half_t *x, const half_t *scale, const half_t *shift, half_t *y, int width) {
    const half_t *row = x + (size_t)blockIdx.x * width;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += load(row[i]);
    float mean = sum_of_block(sum) / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float centred = load(row[i]) - mean;
        squares += centred * centred;
    }
    float scaled = rsqrtf(sum_of_block(squares) / width + 1e-5f);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        y[(size_t)blockIdx.x * width + i] = stored((load(row[i]) - mean) * scaled * load(scale[i]) + load(shift[i]));
}

extern "C" __global__ void add_bias(const half_t *bias, half_t *y, int width, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) y[i] = stored(load(y[i]) + load(bias[i % width]));
}

extern "C" __global__ void gelu(half_t *y, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    float v = load(y[i]);
    y[i] = stored(0.5f * v * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v))));
}

extern "C" __global__ void add(const half_t *x, const half_t *y, half_t *out, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) out[i] = stored(load(x[i]) + load(y[i]));
}

// A warp for each row of (heads, tokens, tokens); what lies after the query's own token has no part in it.
extern "C" __global__ void causal_softmax(half_t *scores, int tokens, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    half_t *of = scores + (size_t)row * tokens;
    int seen = row % tokens + 1;
    float most = -1e30f, sum = 0;
    for (int i = lane; i < seen; i += 32) most = fmaxf(most, load(of[i]));
    most = max_of_warp(most);
    for (int i = lane; i < seen; i += 32) sum += __expf(load(of[i]) - most);
    sum = sum_of_warp(sum);
    for (int i = lane; i < tokens; i += 32) of[i] = stored(i < seen ? __expf(load(of[i]) - most) / sum : 0);
}
"""


class OverCupy:
    """`benchmarks._network.Kernels` over cupy's arrays of float16; products are breakgraph's unless another is given.

    Raises `Missing` without cupy or nvmath-python.
    """

    dtype = np.dtype(np.float16)

    def __init__(self, product: Callable[[Any, Any], Any] | None = None) -> None:
        self._cupy = cupy()
        self.product = product or _matmul()
        self._gemm = _Gemm(self._cupy)
        module = self._cupy.RawModule(code=SOURCE)
        names = ("layer_norm", "add_bias", "gelu", "add", "causal_softmax")
        self._norm, self._add_bias, self._gelu, self._add, self._softmax = map(module.get_function, names)

    def empty(self, *shape: int) -> Any:
        return self._cupy.empty(shape, self.dtype)

    def norm(self, x: Any, affine: Affine, y: Any) -> None:
        rows, width = x.shape
        self._norm((rows,), (_THREADS,), (x, *affine, y, np.int32(width)))

    def add_bias(self, bias: Any, y: Any) -> None:
        self._add_bias(_blocks(y.size), (_THREADS,), (bias, y, np.int32(y.shape[1]), np.int32(y.size)))

    def gelu(self, y: Any) -> None:
        self._gelu(_blocks(y.size), (_THREADS,), (y, np.int32(y.size)))

    def add(self, x: Any, y: Any, out: Any) -> None:
        self._add(_blocks(out.size), (_THREADS,), (x, y, out, np.int32(out.size)))

    @bg.break_point(out="out")
    def attend(self, inward: Any, *, heads: int, out: Any) -> None:
        tokens = len(inward)
        scores = self.empty(heads, tokens, tokens)
        of_scores, of_values = attention_products(
            inward.data.ptr, scores.data.ptr, out.data.ptr, tokens=tokens, width=out.shape[1], heads=heads
        )
        self._gemm(*of_scores)
        rows = heads * tokens
        self._softmax(_blocks(32 * rows), (_THREADS,), (scores, np.int32(tokens), np.int32(rows)))
        self._gemm(*of_values)


#: Operations on A and B; m, n, k; alpha; address, leading dimension and stride between heads of A, B and C; heads.
Product = tuple[int, int, int, int, int, float, int, int, int, int, int, int, int, int, int, int]


def attention_products(
    inward: int, scores: int, out: int, tokens: int, width: int, heads: int
) -> tuple[Product, Product]:
    """The two products of attention over half-precision arrays at these addresses, as cuBLAS counts: by columns.

    ``inward`` is (tokens, 3 * width), ``scores`` (heads, tokens, tokens), ``out`` (tokens, width), all by rows. By
    columns each is its own transpose, so scores' = keys queries' and out' = values' scores'.
    """
    size, long, square = width // heads, 3 * width, tokens * tokens
    queries, keys, values = (inward + 2 * width * at for at in range(3))
    of_scores = (
        *(_TRANSPOSED, _AS_IS, tokens, tokens, size, size**-0.5),
        *(keys, long, size, queries, long, size, scores, tokens, square, heads),
    )
    of_values = (
        *(_AS_IS, _AS_IS, size, tokens, tokens, 1.0),
        *(values, long, size, scores, tokens, square, out, width, size, heads),
    )
    return of_scores, of_values


class _Gemm:
    """cublasGemmStridedBatchedEx on the current stream.

    Its handle and workspace are its own, so that a capture may hold it too.
    """

    def __init__(self, cupy: Any) -> None:
        from nvmath.bindings import cublas

        self._current = cupy.cuda.get_current_stream
        self._cublas, self._handle = cublas, cublas.create()
        self._workspace = cupy.empty(_WORKSPACE, np.uint8)
        self._factors: dict[float, _Factor] = {}

    def __call__(self, *product: Any) -> None:
        on_a, on_b, m, n, k, alpha, a, lda, next_a, b, ldb, next_b, c, ldc, next_c, heads = product
        self._cublas.set_stream(self._handle, self._current().ptr)
        self._cublas.set_workspace(self._handle, self._workspace.data.ptr, _WORKSPACE)  # setting the stream forgets it
        self._cublas.gemm_strided_batched_ex(
            *(self._handle, on_a, on_b, m, n, k, self._factor(alpha)),
            *(a, _HALF, lda, next_a, b, _HALF, ldb, next_b, self._factor(0.0), c, _HALF, ldc, next_c),
            *(heads, _SINGLE_SUMS, _ANY_ALGORITHM),
        )

    def _factor(self, value: float) -> int:
        """Address of a factor on the host, alive as long as this."""
        found = self._factors.get(value)
        if found is None:
            factor = np.full(1, value, np.float32)
            found = self._factors[value] = _Factor(factor.ctypes.data, factor)
        return found.address


class _Factor(NamedTuple):
    address: int
    owner: Any


def _blocks(threads: int) -> tuple[int]:
    return (-(-threads // _THREADS),)


def _matmul() -> Any:
    try:
        import nvmath.bindings.cublas  # noqa: F401

        from breakgraph.frameworks.cupy import matmul
    except ImportError as error:
        raise Missing(f"{error}; captured products need nvmath-python") from error
    return matmul
