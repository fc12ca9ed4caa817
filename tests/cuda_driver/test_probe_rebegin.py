"""``probes/rebegin.py`` asks what it says it asks, and reads nothing else as a verdict.

Its questions are put to the simulated driver, whose answers are no verdict about a driver: what is shown is
that they are the right questions, that each way of going wrong lands where it belongs, and the exit codes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from breakgraph.driver.api import CaptureMode
from breakgraph.driver.sim import SimDriver

from .simulated_bindings import simulated_bindings
from .surface import ROOT

sys.path.append(str(ROOT))
from probes import rebegin

PROBE = ROOT / "probes" / "rebegin.py"


@pytest.fixture(params=["fifo", "lazy", "random"])
def sim(request: pytest.FixtureRequest) -> SimDriver:
    return SimDriver(schedule=request.param)


def asking(sim: SimDriver, change: Callable[[ModuleType], object] = lambda _: None) -> rebegin.Run:
    bindings = simulated_bindings(sim)
    change(bindings)
    return rebegin.Run(rebegin.Asker(bindings=bindings), say=lambda _: None)


@pytest.mark.parametrize("major", [12, 13])
def test_the_simulated_driver_answers_every_question_and_replays_without_a_mismatch(sim: SimDriver, major: int) -> None:
    run = rebegin.Run(rebegin.Asker(bindings=simulated_bindings(sim, major)), say=lambda _: None)
    rebegin.put_the_question(run)
    assert run.replays == [{"base": base, "mismatches": 0} for base in (100, 200, 300)]
    assert sim.races == []


def test_capture_is_begun_four_times_on_one_stream_with_an_eager_break_and_an_empty_segment(sim: SimDriver) -> None:
    run = asking(sim)
    rebegin.put_the_question(run)
    asked = [str(step["step"]) for step in run.steps if step["phase"] == "question"]
    begun = [at for at, step in enumerate(asked) if step.endswith("begin capture")]
    assert len(begun) == 4
    assert "break" in asked[begun[1] - 1]
    assert not any("kernel" in step for step in asked[begun[2] : begun[3]])


def test_every_step_is_recorded_with_its_result_code(sim: SimDriver) -> None:
    run = asking(sim)
    rebegin.put_the_question(run)
    refused = {(step["phase"], step["code"]) for step in run.steps if step["code"]}
    assert refused == {("mode", 900), ("mode", 901)}
    assert all(step["result"] == "CUDA_SUCCESS" for step in run.steps if not step["code"])


# In order: the control begins once, the mode is proved twice, the question begins four times.
@pytest.mark.parametrize(
    ("occurrence", "verdict"),
    [(1, "COULD NOT ASK"), (2, "COULD NOT ASK"), (3, "COULD NOT ASK"), (4, "ILLEGAL"), (5, "ILLEGAL"), (7, "ILLEGAL")],
)
def test_a_refused_begin_is_a_verdict_only_after_control_and_mode(occurrence: int, verdict: str) -> None:
    sim = SimDriver()
    run = asking(sim)
    with sim.fail("stream_begin_capture", at=occurrence, code=401):
        judged = rebegin.judge(run)
    assert judged["verdict"] == verdict
    if verdict == "ILLEGAL":
        assert (judged["call"], judged["code"]) == ("cuStreamBeginCapture", 401)


@pytest.mark.parametrize(
    ("call", "name"), [("stream_end_capture", "cuStreamEndCapture"), ("graph_launch", "cuGraphLaunch")]
)
def test_a_refusal_inside_the_question_is_illegal_with_its_call_and_code(call: str, name: str) -> None:
    sim = SimDriver()
    run = asking(sim)
    with sim.fail(call, at=5, code=999):
        judged = rebegin.judge(run)
    assert (judged["verdict"], judged["call"], judged["code"]) == ("ILLEGAL", name, 999)


def test_wrong_values_are_illegal_though_every_call_succeeds() -> None:
    def lose_the_break(bindings: ModuleType) -> None:
        write, calls = bindings.cuMemcpyHtoDAsync, []

        def write_some(*args: Any) -> Any:
            calls.append(args)
            # Writes: control input, capture-pass input, capture-pass break, then three for each replay.
            return (bindings.CUresult(0),) if len(calls) == 6 else write(*args)

        bindings.cuMemcpyHtoDAsync = write_some

    judged = rebegin.judge(asking(SimDriver(), lose_the_break))
    assert (judged["verdict"], judged["code"]) == ("ILLEGAL", 0)
    assert "values are wrong" in str(judged["why"])


@pytest.mark.parametrize("mode", [CaptureMode.GLOBAL, CaptureMode.RELAXED])
def test_an_entry_that_does_not_heed_the_mode_is_could_not_ask(mode: CaptureMode) -> None:
    def legacy(bindings: ModuleType) -> None:
        begin = bindings.cuStreamBeginCapture
        bindings.cuStreamBeginCapture = lambda stream, _: begin(stream, mode)

    judged = rebegin.judge(asking(SimDriver(), legacy))
    assert judged["verdict"] == "COULD NOT ASK"
    assert str(judged["why"]).startswith("mode: thread-local")


def test_an_entry_point_without_a_mode_is_could_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = rebegin.Asker(bindings=simulated_bindings(SimDriver()))
    without_mode = rebegin._proc_address(asker, "cuStreamBeginCapture", 10000, 0)
    monkeypatch.setattr(rebegin, "_bound_pointers", lambda: {"__cuStreamBeginCapture_v2": without_mode})
    with pytest.raises(rebegin.CouldNotAsk, match="takes no mode"):
        rebegin.entry_points(asker)


def test_entry_points_are_told_by_what_the_bindings_bound_and_the_driver_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = rebegin.Asker(bindings=simulated_bindings(SimDriver()))
    monkeypatch.setattr(rebegin, "_bound_pointers", lambda: {"__cuGraphLaunch": 77})
    points = {point["call"]: point for point in rebegin.entry_points(asker)}
    assert points["cuGraphLaunch"]["bound"] == 77
    assert points["cuStreamBeginCapture"]["bound"] is None
    assert points["cuStreamBeginCapture"]["named"] != points["cuStreamBeginCapture"]["without_mode"]


def test_a_code_that_the_bindings_do_not_know_keeps_its_number() -> None:
    def unknown(bindings: ModuleType) -> None:
        def upload(*_: object) -> tuple[int]:
            raise ValueError("4711 is not a valid CUresult")

        bindings.cuGraphUpload = upload

    with pytest.raises(rebegin.Refused) as refused:
        asking(SimDriver(), unknown).asker.call("cuGraphUpload", 1, 2)
    assert refused.value.code == 4711


# --- the script ---------------------------------------------------------------------------------------


def script(*arguments: str, hide_bindings: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the probe as a script; without a GPU visible, and without bindings on request."""
    hide = "sys.modules['cuda'] = None" if hide_bindings else ""
    program = f"""
import runpy, sys
{hide}
sys.argv = {["rebegin.py", *arguments]!r}
runpy.run_path({str(PROBE)!r}, run_name="__main__")
"""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)


def test_without_bindings_it_could_not_ask_and_exits_2() -> None:
    done = script(hide_bindings=True)
    assert done.returncode == 2
    assert "COULD NOT ASK: cuda.bindings cannot be imported" in done.stdout


def test_without_a_gpu_it_could_not_ask_exits_2_and_records_why(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = script("--json", str(path), "--commit", "abc123", "--no-dirty")
    assert (done.returncode, done.stderr) == (2, "")
    record = json.loads(path.read_text())
    assert record["verdict"] == "COULD NOT ASK"
    assert record["why"] in done.stdout
    assert record["stdout"] == done.stdout.rstrip("\n")
    assert record["probe_sha256"] == hashlib.sha256(PROBE.read_bytes()).hexdigest()
    assert (record["mode"], record["steps"], record["rows"]) == ("thread_local", [], [])


def test_a_record_that_cannot_be_written_is_no_verdict(tmp_path: Path) -> None:
    done = script("--json", str(tmp_path / "missing" / "record.json"))
    assert done.returncode == 2
    assert "there is no folder" in done.stderr


def test_a_record_begins_with_the_fields_that_every_record_has(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings_package = pytest.importorskip("cuda.bindings", reason="no bindings are installed")
    asker = rebegin.Asker(bindings=simulated_bindings(SimDriver()))
    args = SimpleNamespace(commit="abc123", dirty=False, argv=["--json", "out.json"])
    monkeypatch.setattr(rebegin, "driver_release", lambda: "580.159.04")
    head = rebegin.header("rebegin", asker, args, PROBE)
    assert list(head) == ["what", "gpu", "driver", "cuda", "versions", "commit", "dirty", "date", "command"]
    assert (head["commit"], head["dirty"], head["driver"]) == ("abc123", False, "580.159.04")
    assert head["command"] == "python probes/rebegin.py --json out.json"
    assert head["versions"]["cuda-bindings"] == bindings_package.__version__
    assert isinstance(head["cuda"], int)


def test_the_tree_is_asked_of_git_unless_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BREAKGRAPH_COMMIT", raising=False)
    probe = tmp_path / "probe.py"
    probe.write_text("")

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert rebegin.tree_state(probe, None, None) == ("unknown", None)
    git("init", "-q")
    assert rebegin.tree_state(probe, None, None) == ("unknown", None)  # a file that the tree does not hold
    git("add", "probe.py")
    git("commit", "-q", "-m", "a")
    assert rebegin.tree_state(probe, None, None) == (git("rev-parse", "HEAD"), False)
    probe.write_text("changed")
    assert rebegin.tree_state(probe, None, None) == (git("rev-parse", "HEAD"), True)
    assert rebegin.tree_state(probe, "abc123", False) == ("abc123", False)


def test_the_release_probe_says_what_it_lacks_where_there_is_no_gpu() -> None:
    done = subprocess.run(
        [sys.executable, str(PROBE.with_name("release.py"))],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.startswith("COULD NOT ASK: ")
