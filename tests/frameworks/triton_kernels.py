"""Kernels for test_mixed. In a file of their own, which is imported where there is Triton: it reads their source."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["square_plus"]


@triton.jit
def square_plus(out, a, plus, n, size: tl.constexpr):
    """Write a * a + plus into out."""
    at = tl.program_id(0) * size + tl.arange(0, size)
    inside = at < n
    value = tl.load(a + at, mask=inside)
    tl.store(out + at, value * value + plus, mask=inside)
