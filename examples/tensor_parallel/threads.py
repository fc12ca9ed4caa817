"""Threads of one process that capture on a GPU each, all at the same time."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

import breakgraph as bg

from . import one_rank
from .block import ROWS, WIDTH, Batch, HostArray, Input, Weights, forward
from .devices import use_device
from .exchange import Alone

__all__ = ["ThreadResult", "capture_side_by_side"]

_PATIENCE = 120.0  # seconds


@dataclass
class ThreadResult:
    """What one thread found."""

    asked: int  #: captures it was to make
    captures: int = 0  #: captures made, replayed and compared
    values: int = 0  #: values compared with eager ones of the same device
    mismatches: int = 0  #: of those, values with other bits

    @property
    def failures(self) -> int:
        return self.asked - self.captures


def capture_side_by_side(
    weights: Weights, inputs: Sequence[Input], *, threads: int, captures: int
) -> list[ThreadResult]:
    """Let each of ``threads`` capture the whole block so often on a device of its own, and replay each capture once.

    In each round the threads meet inside their first segment, so their captures are open at the same time. A thread
    that fails breaks the round for all of them, and what is left counts as failed.
    """
    meeting = threading.Barrier(threads, timeout=_PATIENCE)

    def work(ordinal: int) -> ThreadResult:
        result = ThreadResult(captures)
        try:
            _capture_in_rounds(ordinal, weights, inputs, meeting, result)
        except threading.BrokenBarrierError:
            pass  # another thread has said why
        except Exception:
            traceback.print_exc()
            meeting.abort()
        return result

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


def _capture_in_rounds(
    ordinal: int,
    weights: Weights,
    inputs: Sequence[Input],
    meeting: threading.Barrier,
    result: ThreadResult,
) -> None:
    use_device(ordinal)
    expected = one_rank.eager(weights, 1, inputs)  # on this device
    xp = bg.array_namespace()
    shards = [weights.shard(0, 1)]
    x, out = (xp.zeros((ROWS, WIDTH), np.float32) for _ in range(2))
    for number in range(result.asked):
        seen, fresh = (inputs[(number + later) % len(inputs)] for later in range(2))
        x.set(seen.values)
        batch = Batch(seen.lengths)
        # The arena is this thread's own for this device, as long as nothing else is asked for.
        with bg.active_forward(batch), bg.capture(name=f"device {ordinal}, round {number}") as graph:
            meeting.wait()
            forward(shards, x, out, batch, Alone())
        x.set(fresh.values)
        out.fill(np.nan)
        with bg.active_forward(Batch(fresh.lengths)):
            graph.replay()
        _compare(out.get(), expected[(number + 1) % len(inputs)], result)
        graph.close()
        result.captures += 1


def _compare(got: HostArray, expected: HostArray, result: ThreadResult) -> None:
    result.values += got.size
    result.mismatches += int(np.count_nonzero(got.view(np.uint32) != expected.view(np.uint32)))
