"""cupy's arrays as a framework, and matrix products of them that a segment records."""

from __future__ import annotations

from breakgraph.frameworks.cupy.framework import CupyFramework
from breakgraph.frameworks.cupy.products import gemm, matmul

__all__ = ["CupyFramework", "gemm", "matmul"]
