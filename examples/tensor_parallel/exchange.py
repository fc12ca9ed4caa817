"""How partial sums become sums over all ranks: the all-reduces, inside a segment and as a break."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import breakgraph as bg

from .block import ROWS, WIDTH, Batch

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

__all__ = ["Alone", "Exchange", "Nccl", "ThroughHost", "make_nccl_id"]


class Exchange(Protocol):
    """Adds partial sums of (ROWS, WIDTH), float32: this rank's own, and those of the others."""

    captured: int  #: all-reduces that became part of a segment
    breaks: int  #: all-reduces in a forward that are breaks

    def sum_inside(self, partials: Sequence[Any], batch: Batch) -> Any:
        """The sum over all ranks: inside a segment, where the exchange can be captured."""

    def sum_as_break(self, partials: Sequence[Any], batch: Batch) -> Any:
        """The sum over all ranks, by a break."""


class Alone:
    """One rank that has every shard: the same sum, of the same partials, and nobody to talk to."""

    captured = breaks = 0

    def sum_inside(self, partials: Sequence[Any], batch: Batch) -> Any:
        return functools.reduce(np.add, partials)  # in the order of the ranks

    sum_as_break = sum_inside


class Nccl:
    """NCCL, through cupy's own bindings. One process has one rank, and a GPU that no other rank has.

    To be destroyed after every graph that holds one of its all-reduces: NCCL waits for them.
    """

    breaks = 1

    def __init__(self, rank: int, ranks: int, nccl_id: Any) -> None:
        # NCCL would export the buffers of captured all-reduces to the other process. Those of an arena cannot be
        # exported, and must not be: what another process has open does not come back from the device at sleep().
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        nccl = _nccl()
        self.captured = 0
        self._float32, self._sum = nccl.NCCL_FLOAT32, nccl.NCCL_SUM
        self._communicator = nccl.NcclCommunicator(ranks, nccl_id, rank)  # returns when every rank has called it

    def sum_inside(self, partials: Sequence[Any], batch: Batch) -> Any:
        (partial,) = partials
        self.captured += bg.is_capturing()
        return self._add_up(partial)

    def sum_as_break(self, partials: Sequence[Any], batch: Batch) -> Any:
        (partial,) = partials
        return bg.break_here(self.all_reduce, bg.INFER, partial, batch)

    def all_reduce(self, partial: Any, batch: Batch) -> Any:
        """What runs at the break. Its result is a fresh array: INFER gives it a place to land."""
        batch.log.append("all_reduce")
        return self._add_up(partial)

    def destroy(self) -> None:
        self._communicator.destroy()

    def _add_up(self, partial: Any) -> Any:
        """Put the all-reduce on the stream that work belongs on now, which records it where that stream captures."""
        import cupy

        stream = bg.current_stream()
        handle = cupy.cuda.get_current_stream().ptr if stream is None else int(stream)
        total = cupy.empty_like(partial)
        self._communicator.allReduce(partial.data.ptr, total.data.ptr, partial.size, self._float32, self._sum, handle)
        return total


class ThroughHost:
    """Host memory that the processes share, for ranks without a GPU. It waits for the others, so it is a break."""

    captured = 0
    breaks = 2

    def __init__(self, rank: int, ranks: int, shared: Any, barrier: Barrier) -> None:
        self._rank = rank
        self._board = np.frombuffer(shared, np.float32).reshape(ranks, ROWS, WIDTH)
        self._barrier = barrier

    def sum_inside(self, partials: Sequence[Any], batch: Batch) -> Any:
        (partial,) = partials
        return bg.break_here(self.all_reduce, bg.INFER, partial, batch)

    sum_as_break = sum_inside

    def all_reduce(self, partial: Any, batch: Batch) -> Any:
        """What runs at the break."""
        batch.log.append("all_reduce")
        self._board[self._rank] = partial.get()
        self._wait("every rank has written")
        total = functools.reduce(np.add, self._board)  # in the order of the ranks, as one rank does
        self._wait("every rank has read, and the board may be written again")
        return bg.array_namespace().asarray(total)

    def destroy(self) -> None:
        """There is nothing to destroy."""

    def _wait(self, until: str) -> None:
        try:
            self._barrier.wait()
        except BrokenBarrierError:
            raise RuntimeError(f"rank {self._rank} waited in vain until {until}") from None


def make_nccl_id() -> Any:
    """By which the ranks find each other; bytes, before cupy 14 a tuple. Its maker must live until they have."""
    return _nccl().get_unique_id()


def _nccl() -> Any:
    from cupy.cuda import nccl

    if not nccl.available:
        raise bg.errors.BreakgraphError(
            "cupy finds no NCCL", why="the ranks exchange through it", remedy="pip install nvidia-nccl-cu13 (or -cu12)"
        )
    return nccl
