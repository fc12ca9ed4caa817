"""The doctor's self-test: on a driver that works it works, and no fault of a driver passes for working.

Proves that each step captures, breaks and replays on either driver; that a refused call, a wrong value, a missing
library and the kill switch come out as what they are; and that the steps stop at the first that failed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from cuda_driver.simulated_bindings import simulated_bindings
from support import child

import breakgraph as bg
from breakgraph.doctor import trial
from breakgraph.doctor.child import ask
from breakgraph.doctor.facts import STEPS, Outcome
from breakgraph.driver.cuda import CudaDriver
from breakgraph.driver.sim import SimDriver


@pytest.mark.parametrize("step", ["take_driver", "bare"])
def test_a_step_works_on_a_driver_that_does(driver: Any, step: str) -> None:
    assert trial.attempt(getattr(trial, step)) == Outcome("works")


def test_the_step_with_arrays_works_or_is_left_out_where_there_is_no_cupy(driver: Any) -> None:
    outcome = trial.attempt(trial.arrays)
    assert outcome == Outcome("works") or (driver.name == "cuda" and outcome.what == "cupy is not installed")


@pytest.mark.parametrize("major", [12, 13])
def test_a_capture_with_driver_calls_alone_works_over_the_bindings_of_either_release(major: int) -> None:
    with bg.driver.use(CudaDriver(simulated_bindings(SimDriver(), major))):
        assert trial.attempt(trial.bare) == Outcome("works")


def test_a_capture_really_is_made_and_replayed(sim: Any) -> None:
    for step in (trial.bare, trial.arrays):
        before = sim.calls["graph_launch"]
        step()
        assert sim.calls["graph_launch"] - before == 2 * (1 + len(trial.BASES))


@pytest.mark.keeps_handles
@pytest.mark.parametrize("call", ["stream_begin_capture", "stream_end_capture", "graph_instantiate", "graph_launch"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_call_that_the_driver_refuses_is_the_outcome(sim: Any, call: str, at: int) -> None:
    with sim.fail(call, at=at, code=999):
        outcome = trial.attempt(trial.bare)
    assert outcome.state == "failed"
    assert call in outcome.what + outcome.why


@pytest.mark.keeps_handles
def test_a_replay_that_does_nothing_gives_wrong_values(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bg.BreakableGraph, "replay", lambda self, **_: None)
    outcome = trial.attempt(trial.bare)
    assert outcome.state == "wrong"
    assert outcome.what == "of 256 values 256 in the replay on 100, 256 in the replay on 200 are wrong"


def test_a_break_that_became_part_of_the_segment_would_be_seen(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bg, "break_here", lambda fn, dst, *args: fn(*args))
    assert trial.attempt(trial.bare).state == "failed", "a wait inside a segment is refused"


def test_cuda_without_cupy_leaves_the_arrays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.importlib.util, "find_spec", lambda name: None)
    with bg.driver.use(CudaDriver(simulated_bindings(SimDriver()))):
        assert trial.attempt(trial.arrays) == Outcome("left out", what="cupy is not installed")


def test_an_error_that_is_not_ours_is_an_outcome_with_its_class() -> None:
    def step() -> Outcome:
        raise OSError("libnvrtc.so.13 is missing")

    assert trial.attempt(step) == Outcome("failed", "OSError", "libnvrtc.so.13 is missing")


def run(driver: str = "sim", **environment: str) -> Any:
    return ask("-m", "breakgraph.doctor.trial", seconds=60, environment={"BREAKGRAPH_DRIVER": driver, **environment})


def states(answer: Any) -> dict[str, str]:
    return {step: answer.said[step]["state"] for step in STEPS if step in answer.said}


def test_as_a_process_it_says_what_came_of_each_step(driver: Any) -> None:
    answer = run(driver.name)
    assert answer.ended == ""
    assert states(answer) | {"arrays": "works"} == dict.fromkeys(STEPS, "works")
    assert answer.said["can_capture"] is True


def test_where_capture_is_switched_off_it_says_so_and_stops() -> None:
    assert states(run(BREAKGRAPH_DISABLE="1")) == {"driver": "works", "bare": "inert"}


def test_without_a_driver_it_gives_the_librarys_own_error(no_gpu: str) -> None:
    if not no_gpu:
        pytest.skip("there is a GPU")
    answer = run("cuda")
    assert states(answer) == {"driver": "failed"}
    assert answer.said["driver"]["error"] == "DriverNotFound"
    assert "BREAKGRAPH_DRIVER=sim" in answer.said["driver"]["remedy"]


def test_a_driver_that_kills_the_process_leaves_the_steps_before_it_known() -> None:
    program = """
        import os
        from breakgraph.doctor import trial
        trial.bare = lambda: os.abort()
        trial.main()
    """
    done = child(program)
    assert done.returncode != 0
    assert '"driver": {"state": "works"' in done.stdout
    assert '"bare"' not in done.stdout


def test_an_array_library_that_is_not_in_order_is_an_outcome(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bg, "array_namespace", lambda: ModuleType("broken"))
    outcome = trial.attempt(trial.arrays)
    assert (outcome.state, outcome.error) == ("failed", "AttributeError")
