"""The benchmark of profiles runs to its end, and says how far the parts of a replay are from its wall time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from speed_support import ROOT

NAMES = ("5 one-kernel segments", "transformer of 2 layers, 8 wide, 2 heads, 2 tokens")


@pytest.fixture(scope="module", params=["sim", "cuda"])
def rows(request: pytest.FixtureRequest, no_gpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rows of a small run in a process of its own, by name."""
    if request.param == "cuda" and no_gpu:
        pytest.skip(no_gpu)
    folder: Path = tmp_path_factory.mktemp("profile")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--small", "--rounds", "40", "--only", "profile", "--out", str(folder)],
        env={**inherited, "BREAKGRAPH_DRIVER": request.param},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    (path,) = folder.glob("profile-*.json")
    found = json.loads(path.read_text())
    assert (found["gpu"] is None) == (request.param == "sim")
    assert done.returncode == int(not all(row.get("holds", True) for row in found["rows"]))
    return {row["name"]: row for row in found["rows"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_that_it_tells_are_its_sum(rows: dict[str, Any], name: str) -> None:
    parts = ("before", "segments, gap", "segments, GPU", "breaks, gap", "breaks, GPU", "after")
    total = sum(rows[f"{name}: {part}"]["value"] for part in parts)
    assert total == pytest.approx(rows[f"{name}: sum"]["value"])
    ratio = rows[f"{name}: sum of the parts / wall"]["value"]
    assert ratio == pytest.approx(total / rows[f"{name}: wall"]["value"])
    assert rows[f"{name}: how far the sum is from the wall"]["value"] == pytest.approx(abs(1 - ratio))


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_one_tenth_and_is_for_a_gpu_alone(rows: dict[str, Any], name: str, request: Any) -> None:
    on_a_gpu = "cuda" in request.node.name
    assert rows[f"{name}: how far the sum is from the wall"].get("bound") == (0.10 if on_a_gpu else None)
