"""What is asked in a child process cannot hurt the doctor.

Proves that a child that hangs, crashes, raises or prints what it likes ends as an answer: what it had said by then, and
how it ended; and that it examines the breakgraph that asked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import breakgraph as bg
from breakgraph.doctor import child
from breakgraph.doctor.child import ask

SAY = "from breakgraph.doctor.child import say; say({'first': 1}); "


def test_a_child_that_ends_well_has_said_all_it_had_to() -> None:
    answer = ask("-c", SAY + "say({'second': [2]})", seconds=60)
    assert answer.said == {"first": 1, "second": [2]}
    assert answer.ended == ""


def test_a_child_that_hangs_deaf_to_signals_is_ended_and_what_it_had_said_is_known() -> None:
    says = f"import json, os, signal, time; print({child._SAYS!r} + json.dumps({{'pid': os.getpid()}}), flush=True); "
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(300)"
    begun = time.monotonic()
    answer = ask("-c", says + deaf, seconds=3)  # without an import of ours, which takes a busy machine as long
    assert time.monotonic() - begun < 60
    assert answer.ended == "did not end within 3 s"
    with pytest.raises(ProcessLookupError):
        os.kill(answer.said["pid"], 0)


def test_a_child_that_the_kernel_holds_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(self: object, seconds: float) -> int:
        raise subprocess.TimeoutExpired("python", seconds)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    monkeypatch.setattr(child, "_KILLED", 0.1)
    assert ask("-c", "pass", seconds=0.1).ended == "did not end within 0.1 s"


def test_a_child_that_crashes_names_the_signal() -> None:
    answer = ask("-c", SAY + "import os; os.abort()", seconds=60)
    assert answer.said == {"first": 1}
    assert answer.ended.startswith(f"was ended by {signal.SIGABRT.name}")


def test_a_child_that_raises_gives_the_error() -> None:
    answer = ask("-c", "import no_such_module_anywhere", seconds=60)
    assert answer.ended == "ended with 1: ModuleNotFoundError: No module named 'no_such_module_anywhere'"


def test_what_a_library_prints_is_not_taken_for_an_answer() -> None:
    noise = "print({'first': 2}); import sys; print('a warning', file=sys.stderr); "
    assert ask("-c", noise + SAY, seconds=60).said == {"first": 1}


def test_the_child_examines_the_breakgraph_that_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "breakgraph"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit('another breakgraph')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = ask("-c", SAY + "import breakgraph; say({'file': breakgraph.__file__})", seconds=60)
    assert answer.said["file"] == bg.__file__


def test_it_adds_to_the_environment_and_changes_nothing_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKGRAPH_DRIVER", "cuda")
    tell = "import os; say({'driver': os.environ['BREAKGRAPH_DRIVER']})"
    assert ask("-c", SAY + tell, seconds=60, environment={"BREAKGRAPH_DRIVER": "sim"}).said["driver"] == "sim"
    assert os.environ["BREAKGRAPH_DRIVER"] == "cuda"
