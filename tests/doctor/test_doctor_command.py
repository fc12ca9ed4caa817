"""``breakgraph doctor``: its exit status says whether captures work here, its output can be pasted or parsed."""

from __future__ import annotations

import json

import pytest
from test_cli import command


def test_where_captures_work_it_exits_0() -> None:
    done = command("doctor", BREAKGRAPH_DRIVER="sim")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "Captures work here, on the sim driver."
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("environment", "code"),
    [({"BREAKGRAPH_DISABLE": "1"}, "switched-off"), ({"BREAKGRAPH_DRIVER": "metal"}, "unknown-driver")],
)
def test_where_they_do_not_it_exits_1_and_says_why(environment: dict[str, str], code: str) -> None:
    done = command("doctor", **{"BREAKGRAPH_DRIVER": "sim", **environment})
    assert done.returncode == 1
    assert f"[{code}]" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Captures do not work here")
    assert done.stderr == ""


def test_without_a_gpu_it_exits_1_and_says_how_to_choose_the_simulator(no_gpu: str) -> None:
    if not no_gpu:
        pytest.skip("there is a GPU")
    done = command("doctor")
    assert done.returncode == 1
    assert "BREAKGRAPH_DRIVER=sim" in done.stdout


def test_on_a_gpu_it_exits_0_and_names_it(no_gpu: str) -> None:
    if no_gpu:
        pytest.skip(no_gpu)
    done = command("doctor", "--json", BREAKGRAPH_DRIVER="cuda")
    told = json.loads(done.stdout)
    assert done.returncode == 0, told["findings"]
    assert told["nvidia"]["visible"]
    assert told["nvidia"]["kernel_module"]


def test_as_json_it_prints_one_object_and_exits_the_same() -> None:
    done = command("doctor", "--json", BREAKGRAPH_DRIVER="sim", BREAKGRAPH_DISABLE="1")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["schema"], told["works"]) == (1, False)
    assert told["findings"][0]["code"] == "switched-off"
    assert told["environment"]["BREAKGRAPH_DISABLE"] == "1"
