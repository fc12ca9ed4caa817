"""``probes/legality.py`` measures the rows of the data files, by the steps that give their answers.

Each row's steps are put to the simulated driver, which is itself held against those files elsewhere: a probe
that did something else than the row says would get another answer. And: what it compares, and its exit codes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from breakgraph.driver.sim import SimDriver

from .simulated_bindings import simulated_bindings
from .surface import ROOT

sys.path.append(str(ROOT))
from probes import legality, rebegin
from probes._legality_bench import Bench
from probes._legality_compare import differences, load, rows_of, table_of

PROBE = ROOT / "probes" / "legality.py"
DATA = {
    "capture-legality": ROOT / "tests/data/capture_legality_h200_r580.json",
    "capture-cases": ROOT / "tests/data/capture_cases_h200_r580.json",
    "capture-sequences": ROOT / "tests/data/capture_sequences_h200_r580.json",
}

#: Rows that ask of something that only a driver library has, by the call that the simulator lacks.
ONLY_ON_A_DRIVER = {
    "cuMemcpyDtoDAsync v1 symbol (self)",
    "cuMemcpyDtoDAsync v2 (self)",
    "cuMemcpyDtoDAsync_v1_dlsym(capturing)",
    "cuMemcpyDtoDAsync_v2_dlsym(capturing)",
    "cuFuncGetAttribute",
    "cuPointerGetAttribute",
    "cuStreamWriteValue32(capturing)",
    "cuStreamWaitValue32(capturing)",
}


def naming(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("call", "case", "caller", "capture_stream", "mode") if key in row}


@pytest.mark.parametrize("table", DATA)
def test_the_rows_are_those_of_the_data_file_in_its_order(table: str) -> None:
    assert [naming(row) for row in rows_of(load(DATA[table]))] == legality.TABLES[table].ROWS


@pytest.mark.parametrize("table", DATA)
def test_each_row_asks_what_its_name_says(table: str) -> None:
    different: list[Any] = []
    left_out: set[str] = set()
    for wanted in rows_of(load(DATA[table])):
        if wanted.get("call", wanted.get("case")) in ONLY_ON_A_DRIVER:
            left_out.add(wanted.get("call", wanted.get("case")))
            continue
        asker = rebegin.Asker(bindings=simulated_bindings(SimDriver()))
        measured = legality.TABLES[table].measure(asker, naming(wanted))
        Bench._kept.clear()  # a probe's own process keeps what it measured with; here it is a device for each row
        if measured != wanted:
            different.append((wanted, measured))
    assert different == []
    assert left_out == {
        name
        for name in ONLY_ON_A_DRIVER
        if name in {row.get("call") or row.get("case") for row in legality.TABLES[table].ROWS}
    }


def test_a_table_is_known_by_its_rows() -> None:
    assert {table: table_of(load(path)) for table, path in DATA.items()} == {table: table for table in DATA}


# --- comparing ----------------------------------------------------------------------------------------


def record(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"gpu": "any", "rows": list(rows)}


ALLOC = {"case": "cuMemAlloc", "mode": "global", "result": "CUDA_SUCCESS", "nodes_in_graph": 1}
FREE = {"case": "cuMemFree", "mode": "global", "result": "CUDA_SUCCESS", "nodes_in_graph": 1}


def test_equal_rows_do_not_differ_whatever_the_header_and_the_order() -> None:
    assert differences(record(ALLOC, FREE), {"gpu": "other", "rows": [FREE, ALLOC]}) == []


def test_a_field_that_changed_is_named_with_both_values() -> None:
    assert differences(record(ALLOC), record(ALLOC | {"nodes_in_graph": 2})) == [
        "cuMemAlloc / global: nodes_in_graph was 1, is 2"
    ]


def test_rows_that_one_side_lacks_are_named() -> None:
    assert differences(record(ALLOC), record(FREE)) == [
        "only before: cuMemAlloc / global",
        "only now: cuMemFree / global",
    ]


def test_a_field_that_one_side_lacks_differs() -> None:
    assert differences(record(ALLOC), record(ALLOC | {"error": "x"})) == ["cuMemAlloc / global: error was None, is 'x'"]


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record; what is measured now answers the same of cuMemAlloc, and that cuMemFree is refused."""
    now = record(ALLOC, FREE | {"result": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"})
    monkeypatch.setattr(legality, "measure_all", lambda args: {"capture-cases": now})
    path = tmp_path / "before.json"
    path.write_text(json.dumps(record(ALLOC, FREE)))
    return path


def test_it_exits_0_where_what_it_measures_is_as_recorded(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before.write_text(json.dumps(legality.measure_all(None)["capture-cases"]))  # type: ignore[arg-type]
    assert legality.main(["--compare", str(before)]) == 0
    assert "2 rows, 0 differences" in capsys.readouterr().out


def test_it_exits_1_and_prints_what_differs(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert legality.main(["--compare", str(before)]) == 1
    assert "cuMemFree / global: result was 'CUDA_SUCCESS'" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{}", "[]", "not json"])
def test_a_file_that_is_no_record_is_could_not_ask(before: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    before.write_text(text)
    assert legality.main(["--compare", str(before)]) == 2
    assert "COULD NOT ASK" in capsys.readouterr().out


# --- the script and its children ----------------------------------------------------------------------


def test_without_a_gpu_it_could_not_ask_exits_2_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROBE), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("COULD NOT ASK: ")
    assert list(tmp_path.iterdir()) == []


class Children:
    """Stands in for child processes: each measures in this process, and dies in the rows it is told to."""

    def __init__(self, deadly: set[int]) -> None:
        self.deadly, self.started = deadly, []

    def __call__(self, command: list[str]) -> str:
        table, start, answers = command[-3], int(command[-2]), Path(command[-1])
        self.started.append(start)
        rows = legality.TABLES[table].ROWS
        with answers.open("w") as lines:
            for index in range(start, min(start + 20, len(rows))):
                if index in self.deadly:
                    return "the process ended with -11"
                print(json.dumps(rows[index] | {"result": "CUDA_SUCCESS"}), file=lines)
        return ""


def test_a_row_that_kills_its_process_is_recorded_and_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children({0, 25, 48})
    monkeypatch.setattr(legality, "_run", children)
    rows = legality._measure_table("capture-sequences", 0)
    assert [naming(row) for row in rows] == legality.TABLES["capture-sequences"].ROWS
    assert [at for at, row in enumerate(rows) if "error" in row] == [0, 25, 48]
    assert rows[25]["error"] == "the process ended with -11"
    assert children.started == [0, 1, 21, 26, 46]


def test_children_that_give_no_answers_end_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legality, "_run", Children(set(range(49))))
    with pytest.raises(rebegin.CouldNotAsk, match="give no answers"):
        legality._measure_table("capture-sequences", 0)


def test_a_child_measures_its_group_and_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(legality, "Asker", lambda device: rebegin.Asker(device, simulated_bindings(SimDriver())))
    monkeypatch.setattr(
        legality._legality_calls, "CALLS", {name: lambda *_: "CUDA_SUCCESS" for name in legality._legality_calls.CALLS}
    )
    answers = tmp_path / "answers.jsonl"
    assert legality._child(0, "capture-legality", 31, answers) == 0
    measured = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [naming(row) for row in measured] == legality.TABLES["capture-legality"].ROWS[31:62]


def test_a_row_that_raises_is_recorded_with_its_text_and_its_process_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(legality, "Asker", lambda device: rebegin.Asker(device, simulated_bindings(SimDriver())))
    answers = tmp_path / "answers.jsonl"
    cases = legality._legality_cases
    start = cases.ROWS.index({"case": "cuFuncGetAttribute", "mode": "global"})
    assert legality._child(0, "capture-cases", start, answers) == 0
    (row,) = [json.loads(line) for line in answers.read_text().splitlines()]
    assert row["result"] == "NO ANSWER"
    assert "the simulated driver has no cuFuncGetAttribute" in row["error"]
