"""A service calls and calls: every result is right, each size is captured once, nothing grows, and little is asked.

Proves this over thousands of calls with random sizes, contexts and streams in a random schedule; that a later call
makes the driver calls that its work needs and no other; and that the benchmark of the same, which makes a hundred
thousand calls on a GPU, runs to its end and is judged by its bounds.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphed_support import batch
from support import ROOT, holds, on_stream, zeros

import breakgraph as bg

WIDTH = 2


@pytest.mark.parametrize("sim", ["fifo", "lazy", "random"], indirect=True)
def test_thousands_of_calls_of_random_sizes_are_right_and_nothing_grows(sim: Any, xp: Any) -> None:
    @bg.break_point
    def scaled(a: Any, ctx: Any) -> Any:
        return a * ctx["scale"] + a[: bg.current_valid_rows()].sum(axis=0)

    def forward(x: Any, ctx: Any) -> Any:
        return scaled(x + 1, ctx) * 2

    service = bg.graphed(forward, buckets=bg.size_ladder(40), fallback="allow")
    random = np.random.default_rng(11)
    streams = [bg.driver.StreamHandle(0), sim.create_stream(), sim.create_stream()]
    source = batch(xp, 48, width=WIDTH)
    host = source.get()
    sim.synchronize()
    usage, larger = [], 0
    for number in range(2000):
        rows, scale = int(random.integers(0, 49)), int(random.integers(1, 9))
        larger += rows > 40
        with bg.active_forward({"scale": scale}) as ctx, on_stream(source, streams[number % 3]):
            y = service(source[:rows], ctx)
            if number % 10 == 0:
                real = host[:rows] + 1
                assert np.array_equal(y.get(), (real * scale + real.sum(axis=0)) * 2), (number, rows)
        del y
        if number % 400 == 399:
            sim.synchronize()
            gc.collect()
            zeros(xp)  # gives back what has died
            sim.synchronize()
            live = {kind: len(handles) for kind, handles in sim.live().items()}
            usage.append((live, sim.mem_get_info(), service.arena.mapped, service.arena.used))
    assert service.stats.captures == len(bg.size_ladder(40)) == len(service.graphs)
    assert service.stats.fallbacks == {"larger": larger}
    assert service.stats.calls == 2000 == service.stats.hits + service.stats.captures + larger
    assert usage[1:] == [usage[1]] * 4


def test_a_later_call_asks_the_driver_for_its_work_and_little_else(sim: Any, xp: Any) -> None:
    """One wait for the arena's last use, one copy and one fill for the input, one launch, one record."""
    service, x = bg.graphed(lambda x: x + 1, buckets=[8], copy_outputs=False), zeros(xp, 5)
    for _ in range(2):
        service(x)
    before = len(sim.log)
    service(x)
    calls = [entry.name for entry in list(sim.log)[before:]]
    assert [name for name in calls if not name.startswith("ctx_get")] == [
        "stream_is_capturing",
        "stream_wait_event",
        "memcpy_dtod_async",
        "memset_d8_async",
        "graph_launch",
        "event_record",
    ]
    assert len(calls) <= 10
    assert holds(service(zeros(xp, 8)), 1)


@pytest.mark.parametrize("driver_name", ["sim", "cuda"])
def test_the_benchmark_runs_to_its_end_and_holds_its_bounds(driver_name: str, no_gpu: str, tmp_path: Path) -> None:
    if driver_name == "cuda" and no_gpu:
        pytest.skip(no_gpu)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    path = tmp_path / "graphed.json"
    command = [sys.executable, "-m", "benchmarks.graphed", "--driver", driver_name, "--small"]
    done = subprocess.run(
        [*command, "--json", str(path)],
        env=inherited,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RaceWarning" not in done.stderr
    found = json.loads(path.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert all(row.get("holds", True) for row in rows.values())
    assert rows["captures"]["value"] == rows["captures"]["bound"] == len(bg.size_ladder(256))
    assert rows["values compared with eager"]["value"] > 1000
    assert rows["64 rows: graphed call/eager"]["unit"] == "ratio"
    assert (found["gpu"] is None) == (driver_name == "sim")
