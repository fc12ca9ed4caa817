"""Capture inside a program that owns its context and its stream, and whose arrays are plain device addresses.

`host_runtime.py` beside this file stands for that program. Its forward is captured on its stream and replayed there,
once by a thread that has no context, and context and stream are afterwards what they were before. What to watch:

- Say which stream: ``capture(stream=...)``, ``replay(stream=...)``. breakgraph cannot know the program's.
- ``frameworks=()`` leaves array libraries alone that the program has imported for something else.
- What a segment reads and writes is baked by address: keep the memory until the graph is closed, and write new inputs
  into it. Numbers are baked too, so one that changes lies in device memory, as ``factor`` does.
- A break works on the stream of the replay (``bg.current_stream()``). Here that is always the program's own, so the
  calls that a break makes are those that it always made.
- Allocate before the capture or in a break: in a segment the driver refuses it.
- Close graphs before their context goes.

    python examples/embed/own_stream.py
    BREAKGRAPH_DRIVER=sim python examples/embed/own_stream.py     # no GPU
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed will do

import numpy as np
from host_runtime import COUNT, OnGpu, OnSimulator  # the files beside this script
from needs import needed

import breakgraph as bg

__all__ = ["main"]

Runtime = OnGpu | OnSimulator


@bg.break_point(dst=bg.IN_PLACE)
def choose_factor(runtime: Runtime, y: int, factor: int) -> None:
    """One over the largest value, which the host looks for: no graph can hold that."""
    runtime.write(factor, [1 / runtime.read(y).max()])


def forward(runtime: Runtime, x: int, one: int, y: int, factor: int, out: int) -> None:
    """The program's own, but for the break: (x + 1) / max(x + 1)."""
    runtime.multiply_add(y, x, one, plus=1)
    choose_factor(runtime, y, factor)
    runtime.multiply_add(out, y, factor, plus=0)


def expected(x: Any) -> Any:
    """The forward in NumPy."""
    return (x + 1) * (1 / (x + 1).max())


def main() -> None:
    """Capture the forward, replay it on fresh inputs, and compare with NumPy."""
    with needed(gpu=False):
        runtime: Runtime = OnSimulator() if bg.driver.current().name == "sim" else OnGpu()
    arrays = x, one, _, _, out = tuple(runtime.allocate() for _ in range(5))
    first, *fresh, last = np.random.default_rng(0).uniform(0, 9, (5, COUNT)).astype(np.float32)
    runtime.write(one, [1])
    runtime.write(x, first)
    before = runtime.state()

    with bg.capture(stream=runtime.stream, frameworks=(), name="forward") as graph:
        forward(runtime, *arrays)
    print(graph.report())
    np.testing.assert_array_equal(runtime.read(out), expected(first))  # the capture is itself one forward

    for values in fresh:
        runtime.write(x, values)
        graph.replay(stream=runtime.stream)
        np.testing.assert_array_equal(runtime.read(out), expected(values))

    runtime.write(x, last)
    worker = threading.Thread(target=graph.replay, kwargs={"stream": runtime.stream})
    worker.start()
    worker.join()
    np.testing.assert_array_equal(runtime.read(out), expected(last))

    print(f"{graph.replays} replays equal NumPy")
    graph.close()
    assert runtime.state() == before == (runtime.context, 0)
    print("context and stream are as they were")
    runtime.close()


if __name__ == "__main__":
    main()
