"""Draw the picture of docs/pictures.md, in two steps that may be on two machines.

``python docs/images/graph_page.py measure graph.json`` captures a decoder of 32 layers on the current driver and
measures its replay; ``... draw graph.json`` takes a screenshot of its page in headless Chromium
(``BREAKGRAPH_CHROMIUM``, or the one on the path), which needs ``pip install -e '.[dev]'``.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.inspect.page import page

HERE = Path(__file__).resolve().parent
LAYERS, ROWS, WIDTH, HEADS = 32, 64, 512, 2
REPLAYS = 25


@bg.break_point(tag="attention")
def attention(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """Attention, which waits for the GPU as a kernel that plans on the host would."""
    bg.driver.current().stream_synchronize(int(bg.current_stream()))
    q, k, v = (x.get().reshape(ROWS, HEADS, -1).swapaxes(0, 1) for x in (q, k, v))
    scores = np.where(np.tri(ROWS, dtype=bool) | (not causal), q @ k.swapaxes(1, 2), -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ v
    return bg.array_namespace().asarray(np.ascontiguousarray(mixed.swapaxes(0, 1)).reshape(ROWS, WIDTH))


def layer(x: Any, scales: Any, side: Any, events: list[int]) -> Any:
    """One layer: a norm, three projections of which one runs on a side stream, attention, a gate."""
    driver, origin = bg.driver.current(), int(bg.current_stream())
    library = frameworks.of(x, driver)
    assert library is not None
    normed = x * (1 / np.sqrt((x * x).sum(axis=1, keepdims=True) + 1e-5))
    driver.event_record(events[0], origin)
    driver.stream_wait_event(int(side), events[0])
    with library.stream_scope(int(side)):
        v = normed * scales[2]
        driver.event_record(events[1], int(side))
    q, k = normed * scales[0], normed * scales[1]
    driver.stream_wait_event(origin, events[1])
    mixed = attention(q, k, v, causal=True)
    return x + mixed * (1 / (1 + np.exp(-mixed)))


def capture() -> bg.BreakableGraph:
    """The forward, captured."""
    xp, driver = bg.array_namespace(), bg.driver.current()
    numbers = np.random.default_rng(7)
    x = xp.asarray(numbers.standard_normal((ROWS, WIDTH), np.float32))
    scales = [[xp.asarray(numbers.standard_normal(WIDTH, np.float32)) for _ in range(3)] for _ in range(LAYERS)]
    out, side = xp.zeros((ROWS, WIDTH), np.float32), driver.create_stream()
    events = [driver.event_create() for _ in range(2)]
    driver.synchronize()
    with bg.capture(name=f"decoder of {LAYERS} layers") as graph:
        y = x
        for one in scales:
            y = layer(y, one, side, events)
        np.multiply(y, 0.5, out=out)
    graph.keep(x, scales, out, side)
    return graph


def measure(file: Path) -> None:
    """Capture, profile, write the trace."""
    if bg.driver.current().name == "sim":
        bg.driver.use("sim", schedule="fifo")  # work runs when it is launched, so that it can be timed at all
    graph = capture()
    profile = graph.profile(REPLAYS)
    graph.save_trace(file, times=profile.times)
    print(graph.report(), profile, sep="\n\n")


def draw(file: Path) -> None:
    """Write graph-page.png beside this script."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("BREAKGRAPH_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as play:
        shown = play.chromium.launch(executable_path=chromium).new_page(viewport={"width": 1280, "height": 900})
        shown.set_content(page(bg.inspect.load(file)))
        shown.locator("#query").fill("divide")
        shown.screenshot(path=HERE / "graph-page.png", full_page=True)


if __name__ == "__main__":
    {"measure": measure, "draw": draw}[sys.argv[1]](Path(sys.argv[2]))
