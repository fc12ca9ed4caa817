"""docs/doctor.md is true: its table is of the findings that there are, its commands run, and its example is real."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support import ROOT
from test_cli import command
from test_diagnosis import BROKEN

from breakgraph.compare.changes import compare
from breakgraph.compare.records import Question, read
from breakgraph.compare.report import as_text

PAGE = (ROOT / "docs/doctor.md").read_text()
SHELL = [line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines()]
COMMANDS = [line for line in SHELL if line.startswith("breakgraph ")]


def test_the_table_names_every_finding_with_its_severity() -> None:
    told = re.findall(r"^\| `([\w-]+)` \| (error|warning|note) \|", PAGE, re.M)
    assert dict(told) == {broken.code: broken.severity for broken in BROKEN.values()}
    assert len(told) == len(dict(told))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one_that_there_is(line: str, tmp_path: Path, no_gpu: str) -> None:
    """Without a GPU the doctor finds no driver, and a probe could not ask."""
    (tmp_path / "rebegin.json").write_bytes((ROOT / "probes/records/rebegin-h200-580.json").read_bytes())
    _, *arguments = shlex.split(line.replace("/tmp/new", str(tmp_path)))
    if not no_gpu and arguments[:2] == ["probe", "legality"]:
        pytest.skip("it measures for a minute, and tests/cuda_driver runs its questions")
    done = command(*arguments)
    assert "usage:" not in done.stderr
    asks = arguments[0] == "probe" and "--compare" not in arguments
    assert done.returncode == (0 if not no_gpu or "--compare" in arguments else 2 if asks else 1), (
        done.stdout + done.stderr
    )


def test_the_commands_are_the_doctor_every_probe_and_a_comparison() -> None:
    assert {tuple(line.split()[1:3]) for line in COMMANDS} == {
        ("doctor",), ("doctor", "--json"), ("probe", "rebegin"), ("probe", "legality"), ("probe", "release"),
        ("probe", "exec_update"), ("probe", "queue"), ("probe", "cublas"), ("probe", "--compare"),
    }  # fmt: skip


def test_the_example_of_a_change_is_what_it_prints() -> None:
    (example,) = re.findall(r"^```\n(was .*?)^```$", PAGE, re.M | re.S)
    path = ROOT / "probes/records/capture-cases-h200-580.json"
    now = read(path)
    legal = {"result": "CUDA_SUCCESS", "status_after": "ACTIVE", "end_capture": "CUDA_SUCCESS", "nodes_in_graph": 1}
    now.answers[Question("cuGraphExecDestroy", mode="thread_local")] = legal
    assert example in as_text(compare(read(path), now))
