"""The examples do what they say, by the one command that a person types.

Proves that two ranks in two processes compute the bits of one rank in the capture and in every replay, with a barrier
before each break at capture and none at replay; that NCCL's all-reduce, played by a stand-in, becomes a node of a
segment in one place and a break in the other; that threads capture side by side on two devices; that a wrong value, a
wrong order, a wrong split, a rank or a thread that fails is told and fails the command; and that a record is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import ROOT

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver import Region

sys.path.append(str(ROOT / "examples"))
from tensor_parallel import one_rank, threads
from tensor_parallel.block import HEADS, ROWS, WIDTH, Batch, Weights, forward, make_inputs, reference
from tensor_parallel.exchange import Nccl
from tensor_parallel.ranks import RankResult
from tensor_parallel.report import TOLERANCE, Report

INPUTS, CAPTURES = 20, 6


@dataclass(frozen=True)
class Run:
    """One run of ``examples/tensor_parallel.py`` and the record that it wrote, if it did."""

    code: int
    out: str
    err: str
    record: dict[str, Any]

    @property
    def rows(self) -> dict[str, Any]:
        return {row["name"]: row for row in self.record["rows"]}


def tensor_parallel(*arguments: str, to: Path, **environment: str) -> Run:
    """Run the script in a process of its own; what it needs of the checkout it finds by itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "tensor_parallel.py"), *arguments, "--json", str(to)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        cwd=to.parent,
        timeout=300,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr, json.loads(to.read_text()) if to.exists() else {})


@pytest.fixture(scope="module", params=["sim", "cuda"])
def found(request: pytest.FixtureRequest, no_gpu: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What the command finds with two ranks, where it can have two devices."""
    if request.param == "cuda":
        if no_gpu:
            pytest.skip(no_gpu)
        with bg.driver.use("cuda") as driver:
            if driver.device_get_count() < 2:
                pytest.skip("there is one GPU, and NCCL takes one for each rank")
    to = tmp_path_factory.mktemp("examples") / "tensor-parallel.json"
    arguments = ("--inputs", str(INPUTS), "--captures", str(CAPTURES))
    return tensor_parallel(*arguments, to=to, BREAKGRAPH_DRIVER=request.param)


def test_one_command_runs_both_ranks_to_their_end(found: Run) -> None:
    assert found.code == 0, found.err
    for trouble in ("Traceback", "RaceWarning", "BreakgraphWarning"):
        assert trouble not in found.err, found.err
    for rank in (0, 1):
        assert f"rank {rank}: replayed {INPUTS} times" in found.err, "progress is told"
        assert found.rows[f"rank {rank}: ended by itself and well"]["value"] == 1


def test_two_ranks_give_the_bits_of_one_rank_at_capture_and_over_20_fresh_inputs(found: Run) -> None:
    assert found.rows["replay: forwards of each rank"]["value"] == INPUTS
    assert found.rows["capture: values of all ranks compared with one rank"]["value"] == 2 * ROWS * WIDTH
    assert found.rows["replay: values of all ranks compared with one rank"]["value"] == 2 * INPUTS * ROWS * WIDTH
    for what in ("capture", "replay"):
        assert found.rows[f"{what}: mismatches"] == {
            "name": f"{what}: mismatches",
            "value": 0,
            "unit": "values",
            "bound": 0,
            "holds": True,
        }


def test_at_capture_a_barrier_comes_before_each_break_and_at_replay_none_does(found: Run) -> None:
    on_sim = found.record["gpu"] is None
    assert len(found.record["ranks"]) == 2
    for rank in found.record["ranks"]:
        if on_sim:  # both all-reduces wait for the host
            assert rank["log at capture"] == ["barrier", "attention", "barrier", "all_reduce", "barrier", "all_reduce"]
            assert rank["logs at replay"] == [["attention", "all_reduce", "all_reduce"]] * INPUTS
        else:
            assert rank["log at capture"] == ["barrier", "attention", "barrier", "all_reduce"]
            assert rank["logs at replay"] == [["attention", "all_reduce"]] * INPUTS
        breaks = len(rank["logs at replay"][0])
        assert [step.partition(" ")[0] for step in rank["steps"]] == ["segment", *["break", "segment"] * breaks]


def test_threads_capture_on_two_devices_of_one_process_without_a_failure(found: Run) -> None:
    assert found.rows["threads: captures"]["value"] == 2 * CAPTURES
    assert found.rows["threads: failures"]["value"] == 0
    assert found.rows["threads: values compared with eager"]["value"] == 2 * CAPTURES * ROWS * WIDTH
    assert found.rows["threads: mismatches"]["value"] == 0


def test_the_record_has_the_form_of_every_record_and_the_table_that_was_printed(found: Run) -> None:
    record = found.record
    assert list(record)[:9] == ["what", "gpu", "driver", "cuda", "versions", "commit", "dirty", "date", "command"]
    assert record["what"] == "tensor-parallel"
    assert record["command"].startswith(f"python examples/tensor_parallel.py --inputs {INPUTS}")
    assert record["stdout"] == found.out
    assert all(row["name"] in found.out for row in record["rows"])
    assert ("nccl" in record["versions"]) == (record["gpu"] is not None)


def test_four_ranks_of_one_head_each_give_the_same_sums_where_these_are_added_in_the_ranks_order(
    tmp_path: Path,
) -> None:
    run = tensor_parallel(
        "--ranks", "4", "--inputs", "2", "--captures", "1", to=tmp_path / "found.json", BREAKGRAPH_DRIVER="sim"
    )
    assert run.code == 0, run.err
    assert run.rows["replay: values of all ranks compared with one rank"]["value"] == 4 * 2 * ROWS * WIDTH
    assert run.rows["replay: mismatches"]["value"] == 0


def test_a_rank_that_fails_is_named_and_fails_the_command_and_the_threads_are_tried_all_the_same(
    tmp_path: Path,
) -> None:
    run = tensor_parallel(
        "--inputs",
        "1",
        "--captures",
        "1",
        to=tmp_path / "found.json",
        BREAKGRAPH_DRIVER="sim",
        BREAKGRAPH_DISABLE="1",  # nothing is captured then, so a replay is refused
    )
    assert run.code == 1
    assert "failed:" in run.err
    assert "cannot be replayed" in run.err
    assert not run.rows["2 ranks, a process each: stopped by RuntimeError"]["holds"]
    assert run.rows["threads: failures"]["value"] == 2


def test_without_a_gpu_the_command_cannot_be_tried_and_says_how_to_choose_the_simulator(tmp_path: Path) -> None:
    run = tensor_parallel(to=tmp_path / "found.json", BREAKGRAPH_DRIVER="cuda", CUDA_VISIBLE_DEVICES="")
    assert run.code == 2
    assert "BREAKGRAPH_DRIVER=sim" in run.err
    assert "Traceback" not in run.err
    assert not run.record


# the block and its split --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shards", [1, 2, HEADS])
def test_however_many_shards_it_is_split_into_the_block_is_the_same_function(driver: Any, shards: int) -> None:
    weights, inputs = Weights.random(), make_inputs(3)
    assert len({one.lengths for one in inputs}) == 3, "sequences change from input to input"
    assert all(sum(one.lengths) == ROWS and min(one.lengths) > 0 for one in inputs)
    whole = np.stack([reference(weights, one) for one in inputs])
    np.testing.assert_allclose(one_rank.eager(weights, shards, inputs), whole, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("part", ["qkv", "project", "up", "down"])
def test_a_shard_with_the_part_of_another_rank_shows_against_the_whole_block(
    driver: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    weights, inputs = Weights.random(), make_inputs(1)
    right = Weights.shard

    def wrong(self: Weights, rank: int, ranks: int) -> Any:
        other = right(self, ranks - 1 - rank, ranks)
        return dataclasses.replace(right(self, rank, ranks), **{part: getattr(other, part)})

    monkeypatch.setattr(Weights, "shard", wrong)
    report = Report(["python"])
    report.add_split(weights, inputs, one_rank.eager(weights, 2, inputs))
    assert not report.good


def test_attention_sees_no_row_of_another_sequence_and_none_that_comes_later(driver: Any) -> None:
    weights, (one,) = Weights.random(), make_inputs(1)
    one = dataclasses.replace(one, lengths=(10, ROWS - 10))
    later = one.values.copy()
    later[7:] += 1  # rows 7 to 9 of the first sequence, and all of the second
    other = dataclasses.replace(one, values=later)
    before, after = one_rank.eager(weights, 2, [one, other])
    np.testing.assert_array_equal(before[:7], after[:7])
    assert (before[7:] != after[7:]).any(axis=1).all()


# NCCL, played by a stand-in -----------------------------------------------------------------------------------------
class Communicator:
    """cupy's, for one of two ranks on the simulator: the other's partial sum is 0.5 everywhere."""

    made: Communicator

    def __init__(self, ranks: int, nccl_id: object, rank: int) -> None:
        assert (ranks, nccl_id, rank) == (2, b"id", 0)
        self.called = self.run = 0
        self.destroyed = False
        Communicator.made = self

    def allReduce(self, send: int, receive: int, count: int, dtype: int, op: int, stream: int) -> None:  # noqa: N802
        assert (dtype, op) == (7, 0)
        self.called += 1
        driver: Any = bg.driver.current()
        regions = [Region.contiguous_at(ptr, (count,), np.dtype(np.float32)) for ptr in (send, receive)]
        driver.launch(stream, self._kernel, reads=regions[:1], writes=regions[1:], name="all-reduce")

    def _kernel(self, partial: Any, total: Any) -> None:
        self.run += 1
        np.add(partial, np.float32(0.5), out=total)

    def destroy(self) -> None:
        self.destroyed = True


@pytest.fixture
def nccl(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nccl]:
    """The exchange of rank 0 of 2 over the stand-in."""

    def module(name: str, **members: Any) -> ModuleType:
        made = ModuleType(name)
        made.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def current_stream() -> Any:
        framework = frameworks.of(bg.array_namespace().zeros(1), sim)
        assert framework is not None
        return SimpleNamespace(ptr=framework.current_stream())

    library = module("cupy.cuda.nccl", available=True, NCCL_FLOAT32=7, NCCL_SUM=0, NcclCommunicator=Communicator)
    cuda = module("cupy.cuda", nccl=library, get_current_stream=current_stream)
    module("cupy", cuda=cuda, empty_like=np.empty_like)
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")
    exchange = Nccl(0, 2, b"id")
    yield exchange
    exchange.destroy()
    assert Communicator.made.destroyed


def test_an_all_reduce_of_nccl_is_a_node_in_one_place_and_a_break_in_the_other(nccl: Nccl, xp: Any) -> None:
    shards = [Weights.random().shard(0, 2)]
    first, second = make_inputs(2)
    x, out, eager = (xp.zeros((ROWS, WIDTH), np.float32) for _ in range(3))
    communicator = Communicator.made
    x.set(second.values)
    forward(shards, x, eager, Batch(second.lengths), nccl)  # outside a capture: both run at once
    bg.driver.current().synchronize()
    assert (communicator.called, communicator.run, nccl.captured) == (2, 2, 0)

    x.set(first.values)
    batch = Batch(first.lengths)
    with (
        bg.active_forward(batch),
        bg.capture(barrier=lambda: batch.log.append("barrier"), frozen="refuse") as graph,
    ):
        forward(shards, x, out, batch, nccl)
    assert batch.log == ["barrier", "attention", "barrier", "all_reduce"]
    assert (len(graph.segments), len(graph.breaks), nccl.captured) == (3, 2, 1)
    bg.driver.current().synchronize()
    assert (communicator.called, communicator.run) == (4, 4)

    x.set(second.values)
    out.fill(np.nan)
    batch = Batch(second.lengths)
    with bg.active_forward(batch):
        graph.replay()
    np.testing.assert_array_equal(out.get(), eager.get())
    assert batch.log == ["attention", "all_reduce"]
    assert (communicator.called, communicator.run) == (5, 6), "the one in the segment runs, and nobody calls it"
    graph.close()


# a run that is not good ---------------------------------------------------------------------------------------------
EXPECTED = np.linspace(-1, 1, 3 * ROWS * WIDTH, dtype=np.float32).reshape(3, ROWS, WIDTH)
GOOD = RankResult(
    rank=0,
    device="a GPU",
    steps=(),
    outputs=EXPECTED,
    logs=(
        ("barrier", "attention", "barrier", "all_reduce", "barrier", "all_reduce"),
        *[("attention", "all_reduce", "all_reduce")] * 2,
    ),
    captured=0,
    breaks=2,
    setup=0.0,
    ended_well=True,
)


def one_bit_off(at: int) -> Any:
    outputs = EXPECTED.copy()
    outputs[at, 5, 6] = np.nextafter(outputs[at, 5, 6], np.float32(2))
    return outputs


@pytest.mark.usefixtures("sim")
@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"outputs": one_bit_off(0)}, False),
        ({"outputs": one_bit_off(2)}, False),
        ({"outputs": np.full_like(EXPECTED, np.nan)}, False),
        ({"logs": (GOOD.logs[1], *GOOD.logs[1:])}, False),  # no barrier at capture
        ({"logs": (*GOOD.logs[:2], GOOD.logs[0])}, False),  # one at a replay
        ({"logs": (*GOOD.logs[:2], ("all_reduce", "attention", "all_reduce"))}, False),
        ({"captured": 1}, False),
        ({"breaks": 1}, False),
        ({"ended_well": False}, False),
    ],
)
def test_a_report_is_good_only_if_values_order_and_end_of_every_rank_are(changes: dict[str, Any], good: bool) -> None:
    report = Report(["python"])
    report.add_ranks([GOOD, dataclasses.replace(GOOD, rank=1, **changes)], EXPECTED)
    assert report.good is good
    assert ("FAILS" in report.text) is not good


@pytest.mark.usefixtures("sim")
def test_a_part_that_stops_is_a_row_that_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(["python"])
    with report.part("two ranks"):
        raise RuntimeError("no such luck")
    assert [row["name"] for row in report.rows] == ["two ranks: stopped by RuntimeError"]
    assert not report.good
    assert "no such luck" in capsys.readouterr().err


def test_a_thread_that_fails_ends_the_rounds_of_all_and_what_is_left_counts_as_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captured: list[str] = []

    def failing(*arguments: Any) -> None:
        forward(*arguments)
        if bg.is_capturing():
            driver = bg.driver.current()
            captured.append(driver.device_get_name(driver.ctx_get_device()))
            if captured.count("simulated GPU 1") == 3:
                raise RuntimeError("no such luck")

    monkeypatch.setattr(threads, "forward", failing)
    with bg.driver.use("sim", devices=2) as driver:
        inputs = make_inputs(2)
        results = threads.capture_side_by_side(Weights.random(), inputs, threads=2, captures=5)
        assert not driver.live()["capture"]
        report = Report(["python"])
        report.add_threads(results)
        assert not report.good
    assert [result.captures for result in results] in ([2, 2], [3, 2])  # the other may have got through its third
    assert "no such luck" in capsys.readouterr().err
