"""`python -m benchmarks` measures every family to its end, says what it left out, and writes what it found.

Proves that the forwards it times are right, that each comparison is drawn, that a floor stands beside the replays where
there is a GPU, and that times of the simulator are never held against a bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from speed_support import ROOT

from benchmarks import __main__ as command
from benchmarks._peers import BREAKABLE, CUPY, FLOOR, TORCH

FAMILIES = [family for family, (record, _) in command.FAMILIES.items() if record == "speed"]


class Found(NamedTuple):
    record: dict[str, Any]
    folder: Path
    done: subprocess.CompletedProcess[str]

    def rows(self, family: str) -> list[dict[str, Any]]:
        return [row for row in self.record["rows"] if row["family"] == family]


@pytest.fixture(scope="module", params=["sim", "cuda"])
def found(request: pytest.FixtureRequest, no_gpu: str, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What a small run in a process of its own finds."""
    if request.param == "cuda" and no_gpu:
        pytest.skip(no_gpu)
    folder = tmp_path_factory.mktemp("speed") / "new"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    arguments = ["--small", "--rounds", "10", "--only", ",".join(FAMILIES), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        env={**inherited, "BREAKGRAPH_DRIVER": request.param},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "RaceWarning" not in done.stderr, done.stderr
    (path,) = folder.glob("*.json")
    assert (path.name == "speed-sim.json") == (request.param == "sim"), path
    return Found(json.loads(path.read_text()), folder, done)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_measured_to_its_end(found: Found, family: str) -> None:
    rows = found.rows(family)
    assert any("arm" in row for row in rows)
    assert not [row["name"] for row in rows if "stopped by" in row["name"]]


def test_what_is_timed_computes_what_it_should(found: Found) -> None:
    wrong = {row["name"]: row["value"] for row in found.record["rows"] if "mismatches" in row["name"]}
    wrong |= {row["name"]: row["value"] for row in found.rows("landing") if "did not land" in row["name"]}
    assert len(wrong) >= 3
    assert not any(wrong.values()), wrong
    near = [row for row in found.rows("transformer") if "difference to the host" in row["name"]]
    assert near
    assert all(row["holds"] for row in near), near


def test_a_record_says_what_was_compared_how_often_and_what_was_missing(found: Found) -> None:
    assert found.record["command"].startswith("python -m benchmarks --small")
    assert found.record["host"]["cores"] >= 1
    timed = [row for row in found.rows("replay") if "arm" in row]
    assert all(row["rounds"] >= 10 and row["p10"] <= row["value"] <= row["p99"] for row in timed)
    arms = {row["arm"] for row in timed}
    assert arms | found.record["missing"].keys() >= {"breakgraph", FLOOR, BREAKABLE, TORCH, CUPY}
    for arm, reason in found.record["missing"].items():
        assert f"not measured: {arm}: {reason}" in found.done.stdout


def test_the_floor_stands_beside_the_replays_where_there_is_a_gpu(found: Found) -> None:
    beside = FLOOR in {row.get("arm") for row in found.rows("replay")}
    assert beside == (found.record["gpu"] is not None)
    assert beside or found.record["missing"][FLOOR]


def test_times_of_the_simulator_have_no_bound(found: Found) -> None:
    ratios = [row for row in found.record["rows"] if row["unit"] == "ratio" and "arm" not in row]
    assert ratios
    if found.record["gpu"] is None:
        assert not [row["name"] for row in ratios if "bound" in row]
        assert found.done.returncode == 0


def test_each_family_has_a_picture_or_the_reason_why_not(found: Found) -> None:
    pictures = {path.name.rpartition("-")[0] for path in found.folder.glob("*.png")}
    if find_spec("matplotlib"):
        assert {name.partition("-")[0] for name in pictures} == set(FAMILIES)
    else:
        assert not pictures
        assert "no pictures" in found.done.stderr


def test_a_family_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "replay,nonsense"])
    assert "'nonsense' is none of replay, busy" in capsys.readouterr().err
