"""Each broken machine is told what is wrong with it and how to mend it; a sound one is told nothing.

Proves that every check fires on the machine it is for, with the remedy, that an error is found exactly where a capture
did not work, and that what the checks hold for too old is what the package asks for.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from typing import NamedTuple

import pytest
from machines import H200, NOT_FOUND, SIM, SOUND, failed, in_mode, machine, no_device, no_driver
from support import ROOT

from breakgraph.doctor import causes, cautions
from breakgraph.doctor.diagnosis import diagnose
from breakgraph.doctor.facts import Facts, Nvidia, Outcome, System, release

INERT = Outcome("inert", what="the forward ran eagerly and nothing was captured")
CONTAINER = System("Linux", "6.8.0-31-generic", "x86_64", "glibc 2.39", container=True)
BUSY = Outcome("failed", "DriverError", "device_primary_ctx_retain answered CUDA_ERROR_DEVICE_UNAVAILABLE (46)")
NVRTC = Outcome("failed", "RuntimeError", "Failed to dlopen libnvrtc.so.13")


class Broken(NamedTuple):
    """A machine, what is found on it first, and what its remedy says."""

    code: str
    severity: str
    facts: Facts
    remedy: str


BROKEN = {
    "an unknown driver is asked for": Broken(
        "unknown-driver", "error", machine(trial=replace(failed(), driver="metal")), "cuda or sim"
    ),
    "the kill switch is set": Broken(
        "switched-off",
        "error",
        machine(trial=failed("bare", INERT), environment={"BREAKGRAPH_DISABLE": "1"}),
        "unset BREAKGRAPH_DISABLE",
    ),
    "the driver cannot capture": Broken(
        "switched-off", "error", machine(trial=failed("bare", INERT)), "use a driver that can"
    ),
    "no bindings, driver 12": Broken(
        "no-bindings", "error", machine({"cuda": 12080}, failed(), without=("cuda-bindings",)), "breakgraph[cuda12]"
    ),
    "no bindings, driver 13": Broken(
        "no-bindings", "error", machine({}, failed(), without=("cuda-bindings",)), "pip install 'breakgraph[cuda13]'"
    ),
    "no bindings, driver 14": Broken(
        "no-bindings", "error", machine({"cuda": 14000}, failed(), without=("cuda-bindings",)), "breakgraph[cuda13]"
    ),
    "no bindings, no driver": Broken(
        "no-bindings", "error", machine(no_driver(), failed(), without=("cuda-bindings",)), "BREAKGRAPH_DRIVER=sim"
    ),
    "bindings that cannot be imported": Broken(
        "broken-bindings",
        "error",
        machine(trial=failed(), imports={"cuda.bindings.driver": "ended with 1: ImportError: undefined symbol"}),
        "--force-reinstall cuda-bindings",
    ),
    "no GPU and no driver": Broken(
        "no-driver-library", "error", machine(no_driver(), failed()), "BREAKGRAPH_DRIVER=sim"
    ),
    "a container that was given the GPU but not the libraries": Broken(
        "no-driver-library",
        "error",
        machine(no_driver() | {"devices": ("/dev/nvidia0",)}, failed(), system=CONTAINER),
        "NVIDIA_DRIVER_CAPABILITIES",
    ),
    "bindings newer than the driver": Broken(
        "newer-bindings", "error", machine({"cuda": 12080}, failed()), "pip install 'breakgraph[cuda12]'"
    ),
    "a driver too old for any bindings": Broken(
        "newer-bindings", "error", machine({"cuda": 11080}, failed()), "update the driver to 525 or newer"
    ),
    "a container without device files": Broken(
        "no-device-files", "error", machine(no_device(devices=(), gpus=()), failed(), system=CONTAINER), "--gpus all"
    ),
    "a kernel module that is not loaded": Broken(
        "no-device-files", "error", machine(no_device(devices=(), gpus=()), failed()), "modprobe nvidia"
    ),
    "a driver that was updated under the running kernel": Broken(
        "uninitialized",
        "error",
        machine({"init": 803, "init_name": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "visible": (), "gpus": ()}, failed()),
        "reboot",
    ),
    "no fabric manager": Broken(
        "uninitialized",
        "error",
        machine({"init": 802, "init_name": "CUDA_ERROR_SYSTEM_NOT_READY", "visible": ()}, failed()),
        "nvidia-fabricmanager",
    ),
    "the stub library": Broken(
        "uninitialized",
        "error",
        machine({"init": 34, "init_name": "CUDA_ERROR_STUB_LIBRARY", "visible": ()}, failed()),
        "stubs folder out of LD_LIBRARY_PATH",
    ),
    "a result that nobody knows": Broken(
        "uninitialized",
        "error",
        machine({"init": 12345, "init_name": "CUDA_ERROR_12345", "visible": ()}, failed()),
        "nvidia-smi",
    ),
    "CUDA_VISIBLE_DEVICES is empty": Broken(
        "hidden-gpus",
        "error",
        machine(no_device(), failed(), environment={"CUDA_VISIBLE_DEVICES": ""}),
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "a MIG GPU without instances": Broken(
        "mig-without-instances",
        "error",
        machine(no_device(gpus=(replace(H200, mig=True),)), failed()),
        "nvidia-smi mig -cgi",
    ),
    "a driver that counts no GPU": Broken("no-gpu", "error", machine(no_device(gpus=()), failed()), "nvidia-smi"),
    "a prohibited GPU": Broken(
        "prohibited", "error", machine(in_mode("prohibited"), failed()), "nvidia-smi -c DEFAULT"
    ),
    "an exclusive GPU that another process has": Broken(
        "taken", "error", machine(in_mode("exclusive process"), failed("driver", BUSY)), "end that process"
    ),
    "a driver that hangs": Broken(
        "process-ended",
        "error",
        machine(trial=replace(SOUND.trial, steps={}, ended="did not end within 120 s")),
        "nvidia-smi",
    ),
    "a capture that crashes": Broken(
        "process-ended",
        "error",
        machine(trial=replace(failed("driver", Outcome("works")), ended="was ended by SIGSEGV")),
        "faulthandler",
    ),
    "a process that crashes as it ends": Broken(
        "process-ended", "error", machine(trial=replace(SOUND.trial, ended="was ended by SIGSEGV")), "faulthandler"
    ),
    "NVIDIA's libraries crash": Broken(
        "process-ended",
        "error",
        machine({"init": None, "visible": (), "ended": "was ended by SIGBUS"}, failed()),
        "nvidia-smi",
    ),
    "wrong values": Broken(
        "wrong-values",
        "error",
        machine(trial=failed("bare", Outcome("wrong", what="of 256 values 256 in the replay on 100 are wrong"))),
        "breakgraph probe rebegin",
    ),
    "cupy without its compiler": Broken(
        "no-arrays", "error", machine(trial=failed("arrays", NVRTC)), "pip install 'breakgraph[cuda13]'"
    ),
    "a failure that no check explains": Broken(
        "failed", "error", machine(trial=failed("bare", NOT_FOUND)), NOT_FOUND.remedy
    ),
    "a simulator that fails, and no CUDA": Broken(
        "failed",
        "error",
        machine(no_driver(), replace(failed(), driver="sim"), without=("cuda-bindings",)),
        NOT_FOUND.remedy,
    ),
    "two cupys": Broken(
        "two-cupys",
        "warning",
        machine(packages={"cupy-cuda12x": "14.0.1"}),
        "pip uninstall cupy-cuda13x cupy-cuda12x",
    ),
    "cupy for a newer CUDA than the driver's": Broken(
        "cupy-for-newer-cuda",
        "warning",
        machine({"cuda": 12080}, packages={"cuda-bindings": "12.9.2"}),
        "pip install cupy-cuda12x",
    ),
    "cupy-cuda12x with driver 11": Broken(
        "cupy-for-newer-cuda",
        "warning",
        machine(
            {"cuda": 11080},
            without=("cupy-cuda13x",),
            packages={"cupy-cuda12x": "14.0.1"},
            environment={"CUDA_MODULE_LOADING": "EAGER"},
        ),
        "update the driver",
    ),
    "no cupy": Broken("no-cupy", "warning", machine(without=("cupy-cuda13x",)), "pip install 'breakgraph[cuda13]'"),
    "an old cupy": Broken("too-old", "warning", machine(packages={"cupy-cuda13x": "13.6.0"}), "--upgrade"),
    "a torch for the CPU": Broken("torch-for-cpu", "warning", machine(torch_cuda=""), "CUDA build"),
    "numba and NumPy at odds": Broken(
        "not-importable",
        "warning",
        machine(imports={"numba.cuda": "ended with 1: ImportError: Numba needs NumPy 2.2 or less. Got NumPy 2.4."}),
        "the NumPy that it asks for",
    ),
    "a triton that cannot be imported": Broken(
        "not-importable", "warning", machine(imports={"triton": "was ended by SIGILL"}), "reinstall"
    ),
    "launches that block": Broken(
        "launch-blocking", "warning", machine(environment={"CUDA_LAUNCH_BLOCKING": "1"}), "capture(debug=True)"
    ),
    "lazy loading on an old driver": Broken(
        "loads-lazily",
        "warning",
        machine(
            {"cuda": 12020}, without=("cupy-cuda13x",), packages={"cupy-cuda12x": "14.0.1", "cuda-bindings": "12.9.2"}
        ),
        "CUDA_MODULE_LOADING=EAGER",
    ),
    "a free-threaded Python": Broken(
        "free-threaded", "warning", machine(python=replace(SOUND.python, free_threaded=True)), "interpreter lock"
    ),
    "another system": Broken(
        "other-system",
        "warning",
        machine(trial=SIM, system=System("Darwin", "24.1", "arm64", ""), nvidia=no_driver()),
        "simulator",
    ),
    "no nvmath": Broken("no-nvmath", "note", machine(without=("nvmath-python",)), "pip install nvmath-python"),
    "the simulator beside a GPU": Broken(
        "simulator-beside-a-gpu", "note", machine(trial=SIM), "unset BREAKGRAPH_DRIVER"
    ),
    "under compute-sanitizer": Broken(
        "tool-attached", "note", machine(environment={"NV_SANITIZER_INJECTION_PORT_BASE": "49152"}), "without the tool"
    ),
    "an exclusive GPU": Broken("exclusive", "note", machine(in_mode("exclusive process")), "nvidia-smi -c DEFAULT"),
    "numba's own simulator": Broken(
        "numba-simulated", "note", machine(environment={"NUMBA_ENABLE_CUDASIM": "1"}), "unset it"
    ),
}


def test_a_sound_machine_is_told_nothing() -> None:
    assert diagnose(SOUND) == []


@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_machine_is_told_what_is_wrong_and_how_to_mend_it(broken: Broken) -> None:
    found = {finding.code: finding for finding in diagnose(broken.facts)}
    assert broken.code in found
    finding = found[broken.code]
    assert finding.severity == broken.severity
    assert broken.remedy in finding.remedy
    assert finding.what
    assert finding.why


@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
def test_there_is_an_error_exactly_where_a_capture_does_not_work(broken: Broken) -> None:
    errors = [finding for finding in diagnose(broken.facts) if finding.severity == "error"]
    assert bool(errors) == (not broken.facts.trial.works)


@pytest.mark.parametrize("name", [name for name, broken in BROKEN.items() if broken.severity == "error"])
def test_one_fault_is_one_error(name: str) -> None:
    errors = [finding.code for finding in diagnose(BROKEN[name].facts) if finding.severity == "error"]
    assert errors == (
        [BROKEN[name].code, "no-driver-library"] if name == "no bindings, no driver" else [BROKEN[name].code]
    )


def test_every_check_has_a_machine_on_which_it_fires() -> None:
    checks = (*causes.ANY_DRIVER, *causes.CUDA, *cautions.CAUTIONS)
    idle = [check.__name__ for check in checks if not any(check(broken.facts) for broken in BROKEN.values())]
    assert idle == []


def test_no_two_checks_share_a_code() -> None:
    checks = (*causes.ANY_DRIVER, *causes.CUDA, *cautions.CAUTIONS)
    of = {
        check.__name__: {found.code for broken in BROKEN.values() if (found := check(broken.facts))} for check in checks
    }
    codes = [code for found in of.values() for code in found]
    assert len(codes) == len(set(codes)) == len(checks)


def test_findings_come_worst_first() -> None:
    facts = machine(
        no_driver(), failed(), without=("cuda-bindings",), environment={"NUMBA_ENABLE_CUDASIM": "1"},
        python=replace(SOUND.python, free_threaded=True),
    )  # fmt: skip
    assert [finding.severity for finding in diagnose(facts)] == ["error", "error", "warning", "note"]


def test_what_is_wrong_with_cuda_is_no_matter_where_the_simulator_was_chosen() -> None:
    assert diagnose(machine(no_driver(), SIM, without=("cuda-bindings", "cupy-cuda13x", "nvmath-python"))) == []


def test_a_trial_that_said_nothing_has_not_worked() -> None:
    facts = machine(trial=replace(SOUND.trial, steps={}))
    assert [finding.code for finding in diagnose(facts)] == ["failed"]


def test_an_exclusive_gpu_is_not_blamed_for_another_failure() -> None:
    codes = {finding.code for finding in diagnose(machine(in_mode("exclusive process"), failed()))}
    assert codes == {"failed"}


def test_windows_reaches_its_gpu_without_device_files() -> None:
    wsl = System("Linux", "5.15.153.1-microsoft-standard-WSL2", "x86_64", "glibc 2.39")
    codes = {finding.code for finding in diagnose(machine(no_device(devices=(), gpus=()), failed(), system=wsl))}
    assert codes == {"no-gpu"}


def test_a_driver_without_a_known_version_gets_advice_for_both() -> None:
    assert "cuda13" in Nvidia().extra
    assert "cuda12" in Nvidia().extra


def test_what_is_too_old_is_older_than_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [need for extra in ("cuda12", "cuda13") for need in project["optional-dependencies"][extra]]
    asked = dict(re.match(r"([\w-]+)>=([\d.]+)", need).groups() for need in [*project["dependencies"], *extras])  # type: ignore[union-attr]
    assert cautions.OLDEST["numpy"] == asked["numpy"]
    assert cautions.OLDEST["cupy"] == asked["cupy-cuda12x"] == asked["cupy-cuda13x"]
    (oldest_bindings,) = {
        re.search(r">=([\d.]+)", need)[1] for need in extras if need.startswith("cuda-python") and "<13" in need
    }  # type: ignore[index]
    assert cautions.OLDEST["cuda-bindings"] == oldest_bindings
    assert f"torch, {cautions.OLDEST['torch']} or later" in (ROOT / "docs/frameworks.md").read_text()


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.0", (2, 0)), ("13.0.1rc1", (13, 0, 1)), ("2.11.0+cu130", (2, 11, 0)), ("14", (14,)), ("unknown", (0,))],
)
def test_versions_compare_as_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers
