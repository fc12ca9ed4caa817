"""The demo does its job on real input: a forward captured once gives the eager bits for every held-out digit.

Proves the exact number of segments and breaks of the demo's forward, that replay equals the uncaptured forward bit
for bit in padded batches, that a break's work depends on values read from the device, that a bad run is called
bad, and that the command shows and records what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import command

import breakgraph as bg
from breakgraph.demo import forward as demo_forward
from breakgraph.demo import network as demo_network
from breakgraph.demo import report, show
from breakgraph.demo import run as demo_run
from breakgraph.demo.forward import Batch, Network, forward, place
from breakgraph.demo.network import CLASSES, PIXELS, Digits, Weights
from breakgraph.demo.run import ROWS, Outcome

GOOD = Outcome("sim", 6, 5, (1, 2, 3, 3, 9, 3), 50, 600, 0, 0.98, 1e-3, 2e-3)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return demo_network.load_digits()


@pytest.fixture(scope="module")
def weights(digits: Digits) -> Weights:
    return demo_network.train(digits)


@pytest.fixture
def network(driver: Any, digits: Digits, weights: Weights) -> Network:
    return place(weights, digits)


@contextlib.contextmanager
def captured(network: Network) -> Iterator[tuple[Any, Any, Any]]:
    """The graph of the demo's forward, its pixels and its output."""
    xp = bg.array_namespace()
    pixels, out = xp.zeros((ROWS, PIXELS), np.float32), xp.zeros((ROWS, CLASSES), np.float32)
    batch = Batch(ROWS)
    with bg.active_forward(batch), bg.capture() as graph:
        forward(network, pixels, out, batch)
    with contextlib.closing(graph):
        yield graph, pixels, out


def test_the_demo_forward_has_exactly_6_segments(network: Network) -> None:
    refused, segments, breaks = None, (), ()
    try:
        with captured(network) as (graph, _, _):
            segments, breaks = graph.segments, graph.breaks
    except bg.errors.BreakgraphError as error:
        refused = error
    assert refused is None, "its blocks land in local arrays of their own, and that is no aliasing"
    assert len(segments) == 6
    assert [step.name.rpartition(".")[2] for step in breaks] == ["stem", *["matmul"] * 3, "second_look"]
    assert all(segment.nodes for segment in segments), "every segment holds work"


def test_replay_in_padded_batches_gives_the_eager_bits_for_every_held_out_digit(driver: Any) -> None:
    outcome = demo_run.run()
    assert outcome.driver == driver.name
    assert outcome.rows == 600
    assert outcome.replays == 50
    assert outcome.mismatches == 0
    assert outcome.accuracy > 0.95
    assert not outcome.problems


def test_the_second_look_works_on_exactly_the_rows_that_the_network_is_unsure_of(
    network: Network, digits: Digits, weights: Weights
) -> None:
    looked_at = []
    with captured(network) as (graph, pixels, out):
        for start in (0, ROWS, 2 * ROWS):
            host = digits.held_out_pixels[start : start + ROWS]
            odds = np.exp(demo_network.host_scores(weights, host))
            plain = odds / odds.sum(axis=1, keepdims=True)
            ranked = np.sort(plain, axis=1)
            unsure = ranked[:, -1] - ranked[:, -2] < 0.9
            pixels.set(host)
            with bg.active_forward(Batch(ROWS)):
                graph.replay()
            # A whole vote is added, which moves some probability by 0.02 or more where the lead is below 0.9.
            changed = np.abs(out.get() - plain).max(axis=1) > 0.01
            np.testing.assert_array_equal(changed, unsure)
            looked_at.append(int(unsure.sum()))
    assert len(set(looked_at)) > 1, "the amount of work differs from batch to batch"


def test_padding_rows_come_out_as_zeros_and_do_not_change_the_others(network: Network, digits: Digits) -> None:
    with captured(network) as (graph, pixels, out):
        pixels.set(digits.held_out_pixels[:ROWS])
        with bg.active_forward(Batch(ROWS)):
            graph.replay()
        whole = out.get()
        with bg.active_forward(Batch(5)):
            graph.replay(valid_rows=5)
        np.testing.assert_allclose(out.get()[:5], whole[:5], rtol=1e-5)  # the second look's products are smaller now
        assert not out.get()[5:].any()


def test_training_on_the_host_reaches_the_accuracy_by_itself(digits: Digits, weights: Weights) -> None:
    scores = demo_network.host_scores(weights, digits.held_out_pixels)
    assert (scores.argmax(axis=1) == digits.held_out_labels).mean() > 0.95


def test_no_held_out_digit_was_trained_on(digits: Digits) -> None:
    assert len(digits.training_labels) == 1197
    assert len(digits.held_out_labels) == 600
    trained_on = {row.tobytes() for row in digits.training_pixels}
    assert not [row for row in digits.held_out_pixels if row.tobytes() in trained_on]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"segments": 5, "breaks": 4}, "5 segments and 4 breaks"),
        ({"mismatches": 1}, "1 values differ"),
        ({"accuracy": 0.95}, "not above 95%"),
    ],
)
def test_a_bad_run_is_called_bad(change: dict[str, Any], problem: str) -> None:
    assert not GOOD.problems
    (found,) = dataclasses.replace(GOOD, **change).problems
    assert problem in found


@pytest.mark.usefixtures("sim")
def test_a_wrong_value_in_replay_is_counted_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong_when_captured(network: Network, pixels: Any, out: Any, batch: Batch) -> None:
        if bg.is_capturing():
            pixels = pixels * np.float32(1.001)
        demo_forward.forward(network, pixels, out, batch)

    monkeypatch.setattr(demo_run, "forward", wrong_when_captured)
    monkeypatch.setattr(demo_run, "_ROUNDS", 1)
    assert not show.show()
    assert "values differ from the eager ones" in capsys.readouterr().out


def test_the_command_prints_the_table_and_writes_a_record(tmp_path: Path, driver: Any) -> None:
    done = command("demo", "--driver", driver.name, "--json", str(tmp_path / "demo.json"))
    assert done.returncode == 0, done.stderr
    for line in (
        "driver",
        "segments",
        "breaks",
        "nodes",
        "replays",
        "mismatching values",
        "accuracy",
        "time per replay",
    ):
        assert line in done.stdout
    record = json.loads((tmp_path / "demo.json").read_text())
    rows = {row["name"]: row for row in record["rows"]}
    assert record["what"] == "demo"
    assert rows["segments"]["value"] == 6
    assert rows["mismatching values against eager"]["holds"]
    assert rows["accuracy"]["bound"] == 0.95
    assert (record["gpu"] is None) == (driver.name == "sim"), "the simulator's answer is not a record of a GPU"
    assert record["stdout"].strip() in done.stdout


def test_a_record_names_the_tree_it_was_told_of(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKGRAPH_COMMIT", "abc123")
    monkeypatch.setenv("BREAKGRAPH_DIRTY", "1")
    record = report.record(GOOD, "")
    assert record["commit"] == "abc123"
    assert record["dirty"] is True


def test_with_captures_switched_off_the_demo_says_so_and_is_no_success() -> None:
    done = command("demo", "--driver", "sim", BREAKGRAPH_DISABLE="1")
    assert done.returncode == 2
    assert "BREAKGRAPH_DISABLE" in done.stderr
    assert "Traceback" not in done.stderr
