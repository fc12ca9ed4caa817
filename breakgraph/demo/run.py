"""Capture the forward once, replay it over every held-out digit, and hold it against the same code uncaptured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph.demo.forward import BREAKS, SEGMENTS, Batch, forward, place
from breakgraph.demo.network import CLASSES, PIXELS, Digits, Floats, load_digits, train

__all__ = ["ROWS", "Outcome", "run"]

ROWS = 64  # of every batch; the last one is padded
_ROUNDS = 5  # over all batches: the first is compared and scored, all are timed

#: Told what is being done and which fraction of it is done.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Outcome:
    """What one run of the demo found. Times are medians over batches, in seconds."""

    driver: str
    segments: int
    breaks: int
    nodes: tuple[int, ...]  #: per segment
    replays: int
    rows: int  #: held-out scans
    mismatches: int  #: values whose bits differ from the eager ones
    accuracy: float
    replay_seconds: float
    eager_seconds: float

    REQUIRED_ACCURACY = 0.95

    @property
    def problems(self) -> list[str]:
        """What a good run does not have; empty for a good run."""
        found = []
        if (self.segments, self.breaks) != (SEGMENTS, BREAKS):
            found.append(f"{self.segments} segments and {self.breaks} breaks, not {SEGMENTS} and {BREAKS}")
        if self.mismatches:
            found.append(f"{self.mismatches} values differ from the eager ones")
        if self.accuracy <= self.REQUIRED_ACCURACY:
            found.append(f"the accuracy is {self.accuracy:.1%}, not above {self.REQUIRED_ACCURACY:.0%}")
        return found


def run(progress: Progress = lambda what, fraction: None) -> Outcome:
    """Train, capture, replay and compare on the current driver.

    Raises `CaptureStateError` where captures are inert (``BREAKGRAPH_DISABLE=1``): nothing could be replayed.
    """
    digits = load_digits()
    weights = train(digits, progress=lambda fraction: progress("train", fraction))
    network = place(weights, digits)
    xp = bg.array_namespace()
    pixels = xp.zeros((ROWS, PIXELS), np.float32)
    captured_out = xp.zeros((ROWS, CLASSES), np.float32)
    eager_out = xp.zeros((ROWS, CLASSES), np.float32)

    full = Batch(ROWS)
    with bg.active_forward(full), bg.capture(name="digits") as graph:
        forward(network, pixels, captured_out, full)
    progress("capture", 1.0)
    with_graph = _Timed(lambda batch: graph.replay(valid_rows=batch.rows))
    without = _Timed(lambda batch: forward(network, pixels, eager_out, batch))

    mismatches = correct = 0
    for round_ in range(_ROUNDS):
        for index, (host, labels) in enumerate(_batches(digits)):
            batch = Batch(len(labels))
            pixels.set(host)
            bg.scrub_padding_tail(batch.rows, pixels)
            with bg.active_forward(batch):
                with_graph(batch)
                without(batch)
            if round_ == 0:
                replayed, expected = (out.get()[: batch.rows] for out in (captured_out, eager_out))
                mismatches += int(np.count_nonzero(replayed.view(np.uint32) != expected.view(np.uint32)))
                correct += int(np.count_nonzero(replayed.argmax(axis=1) == labels))
            done = round_ * _batch_count(digits) + index + 1
            progress("replay", done / (_ROUNDS * _batch_count(digits)))

    outcome = Outcome(
        driver=bg.driver.current().name,
        segments=len(graph.segments),
        breaks=len(graph.breaks),
        nodes=tuple(segment.nodes for segment in graph.segments),
        replays=graph.replays,
        rows=len(digits.held_out_labels),
        mismatches=mismatches,
        accuracy=correct / len(digits.held_out_labels),
        replay_seconds=statistics.median(with_graph.seconds),
        eager_seconds=statistics.median(without.seconds),
    )
    graph.close()
    return outcome


class _Timed:
    """Calls a function on a batch, waits for the device, and keeps how long that took."""

    def __init__(self, work: Callable[[Batch], object]) -> None:
        self._work = work
        self.seconds: list[float] = []

    def __call__(self, batch: Batch) -> None:
        driver = bg.driver.current()
        driver.synchronize()
        start = time.perf_counter()
        self._work(batch)
        driver.synchronize()
        self.seconds.append(time.perf_counter() - start)


def _batches(digits: Digits) -> Iterator[tuple[Floats, Any]]:
    """The held-out scans in batches of `ROWS` rows, and the labels of the real rows.

    The staging array is used again, so the tail of a short batch holds rows of the one before.
    """
    staging = np.zeros((ROWS, PIXELS), np.float32)
    for start in range(0, len(digits.held_out_labels), ROWS):
        labels = digits.held_out_labels[start : start + ROWS]
        staging[: len(labels)] = digits.held_out_pixels[start : start + ROWS]
        yield staging, labels


def _batch_count(digits: Digits) -> int:
    return -(-len(digits.held_out_labels) // ROWS)
