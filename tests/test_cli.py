"""The ``breakgraph`` command: what works from the base install, which driver it takes, and its exit status.

Proves that ``--help``, ``--version`` and ``probe`` need NumPy alone, that a missing extra is named, that the
simulator is chosen only where CUDA cannot be had and that this is printed, and that a probe's exit status is the
command's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

import breakgraph as bg
from breakgraph import cli


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m breakgraph`` in a fresh process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "breakgraph", *arguments],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def _driver_restored() -> Iterator[None]:
    with bg.driver.use("sim"):
        yield


def test_help_names_the_commands() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "probe" in done.stdout


def test_version_is_the_packages_own() -> None:
    assert command("--version").stdout.strip() == f"breakgraph {bg.__version__}"


def test_the_demo_without_its_extra_names_what_is_missing_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["demo", "--driver", "sim"]) == 2
    said = capsys.readouterr().err
    assert "scikit-learn and rich" in said
    assert "pip install 'breakgraph[demo]'" in said


@pytest.mark.usefixtures("_driver_restored")
def test_where_there_is_no_gpu_the_simulator_is_chosen_and_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_gpu: str
) -> None:
    if not no_gpu:
        pytest.skip("there is a GPU")
    monkeypatch.delenv("BREAKGRAPH_DRIVER", raising=False)
    cli.choose_driver(None)
    assert bg.driver.current().name == "sim"
    assert "running on the simulated driver" in capsys.readouterr().out


@pytest.mark.usefixtures("_driver_restored")
def test_a_driver_asked_for_is_never_replaced(no_gpu: str) -> None:
    if not no_gpu:
        pytest.skip("there is a GPU")
    done = command("demo", "--driver", "cuda")
    assert done.returncode == 2
    assert "simulat" in done.stderr, "the error says how to choose the simulator"
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("_driver_restored")
def test_the_environment_chooses_the_driver_where_no_option_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BREAKGRAPH_DRIVER", "sim")
    cli.choose_driver(None)
    assert bg.driver.current().name == "sim"
    assert not capsys.readouterr().out


def test_an_unknown_driver_in_the_environment_is_refused_by_name() -> None:
    done = command("demo", BREAKGRAPH_DRIVER="metal")
    assert done.returncode == 2
    assert "metal" in done.stderr


def test_a_probe_is_given_its_arguments_and_its_exit_status_is_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rebegin.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    monkeypatch.setattr(cli, "probe_directory", lambda: tmp_path)
    assert cli.main(["probe", "rebegin", "--json", "record.json"]) == 7
    assert capfd.readouterr().out.strip() == "['--json', 'record.json']"


@pytest.mark.parametrize("probe", cli.PROBES)
def test_a_probe_explains_itself(probe: str) -> None:
    done = command("probe", probe, "--help")
    assert done.returncode == 0, done.stderr
    assert f"{probe}.py" in done.stdout, "it is the script's own help"


def test_without_a_driver_the_re_begin_probe_says_that_it_could_not_ask(no_gpu: str) -> None:
    if not no_gpu:
        pytest.skip("there is a GPU")
    done = command("probe", "rebegin")
    assert done.returncode == 2
    assert "COULD NOT ASK" in done.stdout
