"""The report says everything that was found out, as text and as JSON, and nothing of who asks."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from machines import NO_LIBRARY, SIM, SOUND, failed, machine, no_driver

from breakgraph.doctor.diagnosis import diagnose
from breakgraph.doctor.facts import Facts
from breakgraph.doctor.report import as_json, as_text

BROKEN = replace(machine(no_driver(), failed(), environment={"BREAKGRAPH_DEBUG": "1"}), simulator=SIM)


def text(facts: Facts) -> str:
    return as_text(facts, diagnose(facts))


def strings(value: object) -> list[str]:
    """Every string among the values of nested facts."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [string for one in inner for string in strings(one)]


@pytest.mark.parametrize("facts", [SOUND, BROKEN], ids=["sound", "broken"])
def test_the_text_has_every_value_that_was_found_out(facts: Facts) -> None:
    told, values = text(facts), asdict(facts)
    tried = [trial for trial in (values.pop("trial"), values.pop("simulator")) if trial]
    steps = [outcome[part] for trial in tried for outcome in trial["steps"].values() for part in ("state", "what")]
    assert [value for value in strings(values) + steps if value not in told] == []
    assert all(f"{name}={value}" in told for name, value in facts.environment.items())


def test_of_a_sound_machine_it_says_that_captures_work() -> None:
    assert text(SOUND).splitlines()[-1] == "Captures work here, on the cuda driver."
    assert (
        "GPU 0          NVIDIA H200, compute capability 9.0, 140.4 GiB, 138.8 GiB free, compute mode default, MIG off"
        in text(SOUND)
    )


def test_of_a_broken_one_it_names_the_first_thing_to_mend_and_that_the_simulator_works() -> None:
    assert text(BROKEN).splitlines()[-1] == (
        "Captures do not work here: there is no CUDA driver library (libcuda.so.1);"
        " the simulator works (BREAKGRAPH_DRIVER=sim)."
    )


def test_each_finding_has_its_reason_and_its_remedy() -> None:
    (finding,) = diagnose(BROKEN)
    lines = text(BROKEN).splitlines()
    at = lines.index(f"  error  {finding.what} [no-driver-library]")
    assert lines[at + 1] == f"    why  {NO_LIBRARY}"
    assert lines[at + 2] == f"    do   {finding.remedy}"


def test_a_step_that_was_not_reached_is_said_to_be() -> None:
    assert text(BROKEN).count("not reached") == 2


def test_a_trial_and_an_asking_that_ended_badly_say_so() -> None:
    facts = machine({"ended": "was ended by SIGBUS"}, replace(failed(), ended="did not end within 120 s"))
    assert "the process was ended by SIGBUS" in text(facts)
    assert "did not end within 120 s" in text(facts)


def test_the_json_holds_the_facts_and_the_findings_under_names_that_stay() -> None:
    told = json.loads(as_json(BROKEN, diagnose(BROKEN)))
    assert told["schema"] == 1
    assert told["works"] is False
    assert [set(finding) for finding in told["findings"]] == [{"severity", "code", "what", "why", "remedy"}]
    assert told == json.loads(
        json.dumps({"schema": 1, "works": False, "findings": list(map(asdict, diagnose(BROKEN))), **asdict(BROKEN)})
    )
    assert {section: set(told[section]) for section in ("source", "python", "system", "nvidia", "trial")} == {
        "source": {"version", "location", "installed", "commit", "dirty"},
        "python": {"version", "executable", "free_threaded"},
        "system": {"name", "release", "machine", "libc", "container"},
        "nvidia": {
            "kernel_module", "devices", "library", "library_error", "cuda",
            "init", "init_name", "gpus", "visible", "ended",
        },
        "trial": {"driver", "chosen_by", "can_capture", "steps", "ended"},
    }  # fmt: skip


@pytest.mark.parametrize("tell", [as_text, as_json])
def test_the_home_directory_is_not_told(tell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/secretive"))
    source = replace(SOUND.source, location="/home/secretive/src/breakgraph")
    facts = replace(
        SOUND, source=source, environment={"CUDA_HOME": "/home/secretive", "LD_PRELOAD": "/home/secretive2/x.so"}
    )
    told = tell(facts, [])  # type: ignore[operator]
    assert "~/src/breakgraph" in told
    assert "/home/secretive2/x.so" in told
    assert told.count("secretive") == 1
