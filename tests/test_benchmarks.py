"""The benchmarks measure what they say: their values are right, their bounds are judged, their records are whole.

Proves that the memory benchmark runs to its end on the simulator and on a GPU, that every value it replays is the
eager one and repeated replays make no update, that a bound that does not hold or a part that stops fails the
command, and that the eager peak, the stand-in for a product and the comparison are what they are taken for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT, floats

import breakgraph as bg
from breakgraph import record

sys.path.append(str(ROOT))
from benchmarks import memory
from benchmarks._eager import eager_peak
from benchmarks._mlp import Mlp, fresh_inputs
from benchmarks._report import Report
from benchmarks._values import Comparison

ROUNDS = 60


@pytest.fixture(scope="module", params=["sim", "cuda"])
def rows(request: pytest.FixtureRequest, no_gpu: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rows of a small run in a process of its own, by name."""
    if request.param == "cuda" and no_gpu:
        pytest.skip(no_gpu)
    path = tmp_path_factory.mktemp("benchmarks") / "memory.json"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--small", "--rounds", str(ROUNDS), "--json", str(path)],
        env={**inherited, "BREAKGRAPH_DRIVER": request.param},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "RaceWarning" not in done.stderr, done.stderr
    found = json.loads(path.read_text())
    assert (found["gpu"] is None) == (request.param == "sim"), "the simulator's answer is not a record of a GPU"
    assert found["command"].startswith("python -m benchmarks.memory --small")
    assert found["stdout"].strip() in done.stdout
    assert done.returncode == int(not all(row.get("holds", True) for row in found["rows"]))
    return {row["name"]: row for row in found["rows"]}


def test_every_part_of_the_memory_benchmark_runs_to_its_end(rows: dict[str, Any]) -> None:
    assert not [name for name in rows if "stopped by" in name]
    for widths in ("1024 2048 4096", "1024 4096"):
        assert rows[f"widths {widths}: mapped/eager peak, largest first"]["bound"] == 1.02
        assert rows[f"widths {widths}: mapped/eager peak, worst order"]["bound"] == 1.10
        assert rows[f"widths {widths}: orders of the sizes"]["value"] == 24
    assert rows["replay right after a change of size"]["unit"] == "us"
    assert rows["one arena: rounds"]["value"] == ROUNDS


def test_every_value_that_the_memory_benchmark_replays_is_the_eager_one(rows: dict[str, Any]) -> None:
    mismatches = {name: row["value"] for name, row in rows.items() if "mismatches" in name}
    assert len(mismatches) == 10
    assert not any(mismatches.values()), mismatches
    assert all(row["value"] > 1000 for name, row in rows.items() if "values compared" in name)


def test_later_sizes_need_no_more_memory_when_the_largest_was_captured_first(rows: dict[str, Any]) -> None:
    growth = [row for name, row in rows.items() if "growth from the second capture on" in name]
    assert [row["value"] for row in growth] == [0, 0]


def test_repeated_replays_of_one_size_make_no_update_and_a_change_makes_one_for_each_segment(
    rows: dict[str, Any],
) -> None:
    assert rows["updates in 20 more replays of one size"]["value"] == 0
    assert rows["updates at a change of size, one a segment"]["value"] == rows["segments of one size"]["value"] > 0


def test_a_cache_holds_the_execs_of_one_size_and_of_each_topology_once(rows: dict[str, Any]) -> None:
    segments = rows["segments of one size"]["value"]
    assert rows["execs, every size, one cache"]["value"] == segments
    assert rows["execs, every size, two topologies"]["value"] == 2 * segments - 1


def test_sleep_gives_the_arena_back_to_the_device(rows: dict[str, Any]) -> None:
    assert rows["back with the device after sleep/mapped"]["value"] >= 0.99
    assert rows["back with the device, with a backup/mapped"]["value"] >= 0.99
    assert rows["live in the arena"]["value"] > 0


def test_capturing_and_dropping_over_and_over_leaves_device_memory_flat(rows: dict[str, Any]) -> None:
    growth = {name: row["value"] for name, row in rows.items() if "growth of device memory" in name}
    assert len(growth) == 2
    assert not any(growth.values()), growth


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize(("measured", "code"), [(1, 0), (2, 1)])
def test_the_command_fails_where_a_bound_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: int, code: int
) -> None:
    def measure(report: Report, **_: object) -> None:
        with report.part("one part"):
            report.add("measured", measured, "count", bound=1)

    for part in (memory._sharing, memory._execs, memory._sleeping, memory._churn):
        monkeypatch.setattr(part, "measure", measure)
    assert memory.main(["--json", str(tmp_path / "found.json")]) == code
    assert [row["holds"] for row in json.loads((tmp_path / "found.json").read_text())["rows"]] == [not code] * 4


@pytest.mark.usefixtures("sim")
def test_a_part_that_stops_is_a_row_that_does_not_hold_and_the_next_part_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report("memory", ["python"])
    with report.part("first"):
        report.add("before", 1, "count")
        raise RuntimeError("no such luck")
    with report.part("second"):
        report.add("after", 1, "count")
    assert [row["name"] for row in report.rows] == ["before", "first: stopped by RuntimeError", "after"]
    assert not report.good
    assert "no such luck" in capsys.readouterr().err


def test_the_eager_peak_counts_what_is_live_at_once_in_steps_of_512_bytes(driver: Any, xp: Any) -> None:
    x = floats(xp, *range(300))  # 1200 bytes

    def forward() -> None:
        first = x + 1
        second = first + 1  # two live: the peak
        del first
        second = second[:1] + 1  # 512 beside 1536

    assert eager_peak(forward, x) == 2 * 1536


def test_an_eager_forward_whose_arrays_outlive_it_has_no_peak_of_its_own(driver: Any, xp: Any) -> None:
    x, kept = floats(xp, 1), []
    with pytest.raises(RuntimeError, match="512 bytes"):
        eager_peak(lambda: kept.append(x + 1), x)


def test_the_stand_in_for_a_product_sums_over_four_taps_of_every_row(driver: Any, xp: Any) -> None:
    network = Mlp.of_widths(8, 32)
    (host,) = fresh_inputs(3, 8, 1)
    expected = host
    for weight, bias in network.layers:
        w, (inputs, outputs) = weight.get(), weight.shape
        taps = [[(c + tap * (inputs // 4)) % inputs for c in range(outputs)] for tap in range(4)]
        product = sum(expected[:, at] * w[at, range(outputs)] for at in taps)
        expected = np.maximum(product + bias.get(), 0)
    assert [weight.shape for weight, _ in network.layers] == [(8, 32), (32, 8)] * 4
    np.testing.assert_allclose(network.forward(xp.asarray(host)).get(), expected, rtol=1e-4)


def test_a_comparison_is_of_bits(driver: Any, xp: Any) -> None:
    compared = Comparison()
    compared.compare(floats(xp, 1, np.nan, 2), floats(xp, 1, np.nan, 2))
    assert (compared.values, compared.mismatches) == (3, 0)
    compared.compare(floats(xp, 0.0, 1, 2), floats(xp, -0.0, 1, np.nextafter(np.float32(2), np.float32(3))))
    assert (compared.values, compared.mismatches) == (6, 2)
    with pytest.raises(ValueError, match="compared"):
        compared.compare(floats(xp, 1), floats(xp, 1, 2))


def test_a_row_with_a_bound_says_whether_it_holds() -> None:
    assert record.row("a", 2, "count") == {"name": "a", "value": 2, "unit": "count"}
    assert record.row("a", 2, "count", bound=2)["holds"] is True
    assert record.row("a", 3, "count", bound=2)["holds"] is False
    assert record.row("a", 3, "count", bound=2, holds=True)["holds"] is True


def test_a_header_says_what_was_run_where_and_of_which_tree(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKGRAPH_COMMIT", "abc123")
    monkeypatch.setenv("BREAKGRAPH_DIRTY", "0")
    header = record.header("memory", ["python", "-m", "benchmarks.memory", "--json", "a b.json"])
    assert list(header) == ["what", "gpu", "driver", "cuda", "versions", "commit", "dirty", "date", "command"]
    assert (header["what"], header["commit"], header["dirty"]) == ("memory", "abc123", False)
    assert header["command"] == "python -m benchmarks.memory --json 'a b.json'"
    assert (header["gpu"] is None) == (bg.driver.current().name == "sim")
    assert header["versions"]["numpy"] == np.__version__
