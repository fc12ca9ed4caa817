"""One array into (the leading rows of) another: do they fit, and the copy."""

from __future__ import annotations

from breakgraph import driver as drivers
from breakgraph.driver import Region
from breakgraph.errors import DTypeMismatch, ShapeMismatch
from breakgraph.frameworks.base import Array, Framework
from breakgraph.frameworks.dtypes import dtype_name

__all__ = ["ArrayCopy", "fit"]


def fit(dst: Region, src: Region, path: str) -> Region:
    """The part of ``dst`` that ``src`` fills: all of it, or the leading rows of a longer first axis (C15)."""
    if dst.dtype != src.dtype:
        raise DTypeMismatch(
            f"{path} is {dtype_name(src.dtype)} and its destination {dtype_name(dst.dtype)}",
            why="later segments read the destination's bytes as its own dtype (C15)",
            remedy=f"convert it in the break: result.astype({dtype_name(dst.dtype)!r}), or torch's result.to(...)",
        )
    target = dst
    if src.ndim and src.ndim == dst.ndim and src.shape[0] < dst.shape[0]:
        target = dst.rows(0, src.shape[0])
    if target.shape != src.shape or target.nbytes != src.nbytes:
        raise ShapeMismatch(
            f"{path} has shape {src.shape} and its destination {dst.shape}",
            why="sizes agree, or only the first axis is shorter and fills the leading rows (C15)",
            remedy="return the shape the destination was made with",
        )
    return target


class ArrayCopy:
    """Elements from one array into (the leading rows of) another, both on the device."""

    def __init__(self, framework: Framework, dst: Array, target: Region, src: Array, source: Region) -> None:
        self._framework, self._dst, self._src = framework, dst, src
        self.target, self.source = target, source

    def stage(self, stream: int | None = None) -> None:
        """Take the source aside, so that nothing this copy's neighbours write can reach it."""
        spare = self._framework.empty(self.source.shape, self.source.dtype)
        region = self._framework.view(spare)
        ArrayCopy(self._framework, spare, region, self._src, self.source).run(stream)
        self._src, self.source = spare, region

    def run(self, stream: int | None = None) -> None:
        """Copy on ``stream``, or the destination's framework's current one, unless the elements are there already."""
        if self.target == self.source or not self.target.size:
            return
        if self.target.overlaps(self.source):
            self.stage(stream)
        if stream is None:
            stream = self._framework.current_stream() or 0
        if self.target.contiguous and self.source.contiguous:
            drivers.current().memcpy_dtod_async(self.target.ptr, self.source.ptr, self.source.nbytes, stream)
        else:
            over = self._framework.over
            self._framework.copy(over(self.target, self._dst), over(self.source, self._src), stream)
