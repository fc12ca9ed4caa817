"""``probes/exec_update.py`` asks what it says it asks, and a driver that does otherwise than documented is seen.

Its questions are put to the simulated driver, whose answers are no record of a driver. Where there is a record of
one, the simulator is held to it here: each result, each yes or no.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from breakgraph.driver.sim import SimDriver
from breakgraph.driver.sim.graphs import Exec, Graph
from breakgraph.driver.sim.results import Refuse, Result

from .simulated_bindings import simulated_bindings
from .surface import ROOT

sys.path.append(str(ROOT))
from probes import exec_update, rebegin
from probes._exec_update_bench import Bench
from probes._exec_update_questions import QUESTIONS

PROBE = ROOT / "probes" / "exec_update.py"
RECORDS = sorted((ROOT / "probes" / "records").glob("exec-update-*.json"))
KEPT_BACK = "it was still kept back when the update had returned"


def answers(
    sim: SimDriver, *, major: int = 13, change: Callable[[ModuleType], object] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """The rows by name."""
    bindings = simulated_bindings(sim, major)
    change(bindings)
    rows = exec_update.ask(Bench(rebegin.Asker(bindings=bindings), repeats=2))
    named = {row["name"]: row for row in rows}
    assert len(named) == len(rows), "two rows have one name"
    return named


def unexpected(rows: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, row in rows.items() if not row.get("holds", True)]


@pytest.mark.parametrize("major", [12, 13])
@pytest.mark.parametrize("schedule", ["fifo", "lazy", "random"])
def test_the_simulated_driver_answers_every_question_as_documented(major: int, schedule: str) -> None:
    sim = SimDriver(schedule=schedule)
    rows = answers(sim, major=major)
    missed = [name for name in unexpected(rows) if KEPT_BACK not in name]
    assert missed == []
    assert sim.races == []
    assert not sim.live()["capture"]


def test_where_work_is_kept_back_the_probe_sees_that_it_is() -> None:
    assert unexpected(answers(SimDriver(schedule="lazy"))) == []
    assert [KEPT_BACK in name for name in unexpected(answers(SimDriver(schedule="fifo")))] == [True, True]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_simulator_answers_as_a_recorded_driver_did(path: Path) -> None:
    recorded = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    compared = ("CUresult", "bool", "words", "nodes")
    answered = {name: row["value"] for name, row in answers(SimDriver()).items() if row["unit"] in compared}
    assert answered == {name: row["value"] for name, row in recorded.items() if row["unit"] in compared}


# --- what would be seen -------------------------------------------------------------------------------


def test_an_update_that_reaches_a_launch_made_before_it_is_seen() -> None:
    def launch_late(bindings: ModuleType) -> None:
        launch, waiting = bindings.cuGraphLaunch, []

        def flushing(call: Callable[..., Any]) -> Callable[..., Any]:
            def flush_and_call(*args: object) -> Any:
                while waiting:
                    launch(*waiting.pop(0))
                return call(*args)

            return flush_and_call

        def launch_later(*args: object) -> Any:
            waiting.append(args)
            return (bindings.CUresult(0),)

        bindings.cuGraphLaunch = launch_later
        for name in ("cuStreamSynchronize", "cuMemcpyDtoHAsync", "cuCtxSynchronize"):
            setattr(bindings, name, flushing(getattr(bindings, name)))

    missed = unexpected(answers(SimDriver(), change=launch_late))
    wrong = "the old work by the launch before the update: wrong words"
    assert {name for name in missed if name.endswith(wrong)} == {
        f"under a launch kept back on {stream}: {wrong}" for stream in ("the same stream", "another stream")
    }


def test_a_refused_update_that_changes_something_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Exec.update

    def take_what_matches(made: Exec, graph: Graph) -> None:
        try:
            update(made, graph)
        except Refuse:
            both = min(len(made.works), len(graph.nodes))
            made.works[:both] = [node.work for node in graph.nodes[:both]]
            raise

    monkeypatch.setattr(Exec, "update", take_what_matches)
    missed = unexpected(answers(SimDriver()))
    for name in ("one node more", "one node less", "another last node", "another first node", "other edges"):
        assert f"{name}: then the old work: wrong words" in missed


def test_an_update_that_succeeds_and_does_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exec, "update", lambda made, graph: None)
    missed = unexpected(answers(SimDriver()))
    assert "other addresses and grids: then the new work: wrong words" in missed
    assert "one node more: update" in missed


def test_a_driver_that_updates_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(made: Exec, graph: Graph) -> None:
        raise Refuse(Result.GRAPH_EXEC_UPDATE_FAILURE)

    monkeypatch.setattr(Exec, "update", refuse)
    rows = answers(SimDriver())
    assert "other addresses and grids: update" in unexpected(rows)
    assert rows["other addresses and grids: then the old work: wrong words"]["holds"]
    assert rows["device memory of execs: not put to its end"]["value"] == 910


def test_a_question_that_fails_is_told_in_a_row_and_leaves_no_capture_to_the_next() -> None:
    sim = SimDriver()
    with sim.fail("stream_get_capture_info", at=1, code=999):
        rows = answers(sim)
    assert unexpected(rows) == ["fork and join: not put to its end"]
    assert "cuStreamGetCaptureInfo answered CUDA_ERROR_UNKNOWN (999)" in rows[unexpected(rows)[0]]["error"]
    assert rows["graph destroyed right after an update: the exec's work: wrong words"]["value"] == 0


def test_why_an_update_was_refused_is_told_by_the_driver_itself_since_the_bindings_do_not() -> None:
    def without_the_entry(bindings: ModuleType) -> None:
        bindings.cuGetProcAddress = lambda *_: (bindings.CUresult(1), None, None)

    told, untold = answers(SimDriver()), answers(SimDriver(), change=without_the_entry)
    why = "one node more: why"
    assert (told[why]["value"], told[why]["result"]) == (1, "ERROR")
    assert untold[why]["value"] is None
    results = [name for name, row in told.items() if row["unit"] == "CUresult"]
    assert [untold[name]["value"] for name in results] == [told[name]["value"] for name in results]


def test_a_driver_on_which_a_plain_capture_gives_wrong_values_is_not_asked() -> None:
    def lose_launches(bindings: ModuleType) -> None:
        bindings.cuGraphLaunch = lambda *_: (bindings.CUresult(0),)

    with pytest.raises(rebegin.CouldNotAsk, match="gives wrong values"):
        answers(SimDriver(), change=lose_launches)


def test_the_questions_about_memory_come_first() -> None:
    assert next(iter(QUESTIONS)) == "device memory of execs"  # destroyed execs would hide what is taken


# --- the script ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "status"), [("lazy", 0), ("fifo", 1)])
def test_it_prints_and_records_every_row_and_exits_1_where_one_is_not_as_expected(
    schedule: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cuda.bindings", reason="no bindings are installed")
    bindings = simulated_bindings(SimDriver(schedule=schedule))
    monkeypatch.setattr(exec_update, "Asker", lambda device: rebegin.Asker(device, bindings))
    monkeypatch.setattr(exec_update, "Bench", partial(Bench, repeats=2))
    path = tmp_path / "record.json"
    assert exec_update.main(["--json", str(path), "--commit", "abc123", "--no-dirty"]) == status
    record = json.loads(path.read_text())
    assert (record["what"], record["commit"], record["dirty"]) == ("exec-update", "abc123", False)
    assert record["stdout"] == capsys.readouterr().out.rstrip("\n")
    assert len(record["stdout"].splitlines()) == len(record["rows"]) > 100
    assert {"name", "value", "unit"} <= set.intersection(*(set(row) for row in record["rows"]))
    assert ("EXPECTED True" in record["stdout"]) == bool(status)


def test_without_a_gpu_it_could_not_ask_exits_2_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, str(PROBE), "--json", str(path)],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("COULD NOT ASK: ")
    assert not path.exists()


def test_a_record_that_cannot_be_written_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        exec_update.main(["--json", str(tmp_path / "missing" / "record.json")])
    assert stopped.value.code == 2
    assert "there is no folder" in capsys.readouterr().err
