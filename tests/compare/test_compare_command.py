"""``breakgraph probe --compare``: its exit status is that of ``diff``, and a probe's own arguments stay the probe's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare_support import LEGAL, RECORDS, answer, changed
from test_cli import command

from breakgraph import cli

SAME = str(RECORDS["capture-cases"])


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A record with one other answer."""
    return str(changed("capture-cases", tmp_path, answer(LEGAL, case="cuMemFree", mode="thread_local")))


def test_two_records_with_the_same_answers_exit_0() -> None:
    done = command("probe", "--compare", SAME, SAME)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Nothing changed: all 234 answers are the same."


def test_a_changed_answer_exits_1_and_is_told(other: str) -> None:
    done = command("probe", "--compare", SAME, other)
    assert done.returncode == 1
    assert "  cuMemFree in thread-local mode\n" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("flag_first", [True, False])
def test_as_json_it_prints_one_object(flag_first: bool, other: str) -> None:
    arguments = ["--compare", SAME, other]
    done = command("probe", *(["--json", *arguments] if flag_first else [*arguments, "--json"]))
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["changes"]) == 1


@pytest.mark.parametrize("now", [str(RECORDS["release"]), "no/such/file.json", __file__])
def test_what_cannot_be_compared_exits_2_and_says_why(now: str) -> None:
    done = command("probe", "--compare", SAME, now)
    assert done.returncode == 2
    assert "  why: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments", [[], ["--json"], ["--json", "rebegin"], ["--compare", SAME, SAME, "rebegin"], ["--compare", SAME]]
)
def test_it_is_either_a_probe_or_a_comparison(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["probe", *arguments])
    assert ended.value.code == 2
    assert "usage: breakgraph probe" in capsys.readouterr().err


def test_a_probe_may_have_a_compare_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "legality.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.setattr(cli, "probe_directory", lambda: tmp_path)
    assert cli.main(["probe", "legality", "--compare", "record.json", "--json"]) == 0
    assert capfd.readouterr().out.strip() == "['--compare', 'record.json', '--json']"
