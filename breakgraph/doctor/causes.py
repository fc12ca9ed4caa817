"""Why a capture did not work: each check explains a trial that failed, and is asked only then."""

from __future__ import annotations

from functools import partial

from breakgraph.doctor.facts import Facts
from breakgraph.doctor.finding import Check, Finding

__all__ = ["ANY_DRIVER", "CUDA", "last_resort"]

SIMULATE = "without a GPU choose the simulator: BREAKGRAPH_DRIVER=sim"
CONTAINER = "start the container with its GPUs (docker run --gpus all, or the NVIDIA device plugin of the cluster)"
DRIVERS = ("cuda", "sim")
NO_DEVICE = 100  # CUresult

_error = partial(Finding, "error")

#: What cuInit answers where the driver is there and does not start. Source: CUDA driver API, enum CUresult.
_INITIALIZATION = {
    3: ("the driver is shutting down", "start a new process"),
    34: (
        "libcuda is the stub library of a toolkit, which is for linking only",
        "take the toolkit's stubs folder out of LD_LIBRARY_PATH",
    ),
    46: ("the GPUs are busy or unavailable", "see with nvidia-smi who uses them, and the compute mode"),
    802: (
        "the GPUs' interconnect is not ready",
        "start the fabric manager (systemctl start nvidia-fabricmanager); its version must be the driver's",
    ),
    803: (
        "libcuda and the kernel module are of different releases",
        "reboot, or reload the nvidia modules, after a driver update; in a container restart it",
    ),
    804: (
        "a forward-compatibility libcuda (cuda-compat) was loaded, and this GPU does not support it",
        "take the compat folder out of LD_LIBRARY_PATH, or update the driver",
    ),
    999: (
        "the driver met something unknown, most often that the module nvidia_uvm is not loaded, or a suspended machine",
        "sudo modprobe nvidia_uvm, or reboot; dmesg | grep -i nvrm tells more",
    ),
}


def _unknown_driver(facts: Facts) -> Finding | None:
    if facts.trial.driver in DRIVERS:
        return None
    return _error(
        "unknown-driver",
        f"no driver is called {facts.trial.driver!r}",
        facts.trial.chosen_by,
        "set BREAKGRAPH_DRIVER to cuda or sim, or unset it",
    )


def _switched_off(facts: Facts) -> Finding | None:
    if facts.trial.state("bare") != "inert":
        return None
    if facts.environment.get("BREAKGRAPH_DISABLE", "") in ("", "0"):
        why, remedy = f"the {facts.trial.driver} driver says that it cannot capture", "use a driver that can"
    else:
        why, remedy = "BREAKGRAPH_DISABLE makes every capture of the process inert (C7)", "unset BREAKGRAPH_DISABLE"
    return _error("switched-off", "captures are switched off: forwards run eagerly", why, remedy)


def _no_bindings(facts: Facts) -> Finding | None:
    if "cuda-bindings" in facts.packages:
        return None
    return _error(
        "no-bindings",
        "the Python bindings of the CUDA driver are not installed",
        "breakgraph calls the driver through cuda.bindings.driver (cuda-bindings)",
        f"{facts.nvidia.extra}; {SIMULATE}",
    )


def _broken_bindings(facts: Facts) -> Finding | None:
    if not (error := facts.imports.get("cuda.bindings.driver")):
        return None
    return _error(
        "broken-bindings",
        f"cuda-bindings {facts.packages.get('cuda-bindings', '')} cannot be imported",
        error,
        f"pip install --force-reinstall cuda-bindings, or {facts.nvidia.extra}",
    )


def _newer_bindings(facts: Facts) -> Finding | None:
    bindings, driver = facts.major("cuda-bindings"), facts.nvidia.major
    if bindings is None or driver is None or bindings <= driver:
        return None
    return _error(
        "newer-bindings",
        f"cuda-bindings {facts.packages['cuda-bindings']} is newer than the driver, which offers CUDA {driver}",
        "bindings of a newer major version call entry points that this driver does not have",
        facts.nvidia.extra,
    )


def _no_driver_library(facts: Facts) -> Finding | None:
    nvidia = facts.nvidia
    if not nvidia.library_error:
        return None
    if nvidia.devices or nvidia.kernel_module:
        remedy = (
            "in a container let NVIDIA_DRIVER_CAPABILITIES name compute; otherwise install the driver's libraries"
            " (libcuda1, or nvidia-driver-cuda) and run ldconfig"
        )
    else:
        remedy = f"install NVIDIA's driver, or {CONTAINER}; {SIMULATE}"
    return _error("no-driver-library", "there is no CUDA driver library (libcuda.so.1)", nvidia.library_error, remedy)


def _no_device_files(facts: Facts) -> Finding | None:
    nvidia = facts.nvidia
    there = nvidia.devices or facts.system.wsl or nvidia.visible
    if nvidia.library_error or there or nvidia.init is None:
        return None
    return _error(
        "no-device-files",
        "there are no device files (/dev/nvidia*)",
        "the container was started without its GPUs"
        if facts.system.container
        else "the kernel module is not loaded, or has found no GPU",
        f"{CONTAINER if facts.system.container else 'sudo modprobe nvidia; lspci | grep -i nvidia'}; {SIMULATE}",
    )


def _uninitialized(facts: Facts) -> Finding | None:
    nvidia = facts.nvidia
    if not nvidia.init or nvidia.init == NO_DEVICE:
        return None
    why, remedy = _INITIALIZATION.get(
        nvidia.init, ("the driver gives no other reason", "run nvidia-smi; dmesg | grep -i nvrm tells more")
    )
    return _error("uninitialized", f"cuInit answers {nvidia.init_name} ({nvidia.init})", why, remedy)


def _hidden_gpus(facts: Facts) -> Finding | None:
    shown = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if shown is None or not _sees_none(facts):
        return None
    there = f"NVML lists {len(facts.nvidia.gpus)}" if facts.nvidia.gpus else "whether there are others is not known"
    return _error(
        "hidden-gpus",
        f"CUDA_VISIBLE_DEVICES={shown!r} shows no GPU ({there})",
        "an empty list hides all, and the first entry that is no GPU of this machine hides those after it",
        "unset CUDA_VISIBLE_DEVICES, or list GPUs as nvidia-smi -L does",
    )


def _mig_without_instances(facts: Facts) -> Finding | None:
    if not _sees_none(facts) or not any(gpu.mig for gpu in facts.nvidia.gpus):
        return None
    return _error(
        "mig-without-instances",
        "a GPU is in MIG mode and CUDA sees none of its instances",
        "in MIG mode a GPU is used by its instances, and there are none, or none is named or given to the container",
        "create one (sudo nvidia-smi mig -cgi 0 -C), name it in CUDA_VISIBLE_DEVICES (nvidia-smi -L), or turn MIG off",
    )


def _no_gpu(facts: Facts) -> Finding | None:
    explained = "CUDA_VISIBLE_DEVICES" in facts.environment or any(gpu.mig for gpu in facts.nvidia.gpus)
    if explained or not _sees_none(facts) or _no_device_files(facts):
        return None
    return _error(
        "no-gpu",
        "the driver counts no GPU",
        "it is there and starts, and finds none",
        f"see what nvidia-smi lists; {SIMULATE}",
    )


def _prohibited(facts: Facts) -> Finding | None:
    if not facts.on_gpu or facts.nvidia.visible[0].compute_mode != "prohibited":
        return None
    return _error(
        "prohibited",
        f"the compute mode of {facts.nvidia.visible[0].name} is prohibited",
        "in that mode no process may make a context",
        "sudo nvidia-smi -c DEFAULT",
    )


def _taken(facts: Facts) -> Finding | None:
    outcome = facts.trial.steps.get("driver")
    exclusive = facts.on_gpu and (facts.nvidia.visible[0].compute_mode or "").startswith("exclusive")
    if not exclusive or outcome is None or outcome.error != "DriverError":
        return None
    return _error(
        "taken",
        f"{facts.nvidia.visible[0].name} is in {facts.nvidia.visible[0].compute_mode} mode, and {outcome.what}",
        "in that mode one process at a time has the GPU, and another one has it",
        "end that process (nvidia-smi lists it), use MPS, or sudo nvidia-smi -c DEFAULT",
    )


def _process_ended(facts: Facts) -> Finding | None:
    trial = facts.trial
    ended = trial.ended or facts.nvidia.ended
    if not ended:
        return None
    reached = [step for step in ("driver", "bare", "arrays") if step in trial.steps]
    after = f"after the steps {', '.join(reached)}" if reached else "before its first step"
    return _error(
        "process-ended",
        f"the self-test {trial.ended} ({after})" if trial.ended else f"asking NVIDIA's libraries {ended}",
        "the driver or a library hangs or crashes",
        "does nvidia-smi answer? Then report it, with this text, and what python -X faulthandler -m"
        " breakgraph.doctor.trial prints",
    )


def _wrong_values(facts: Facts) -> Finding | None:
    wrong = [outcome.what for outcome in facts.trial.steps.values() if outcome.state == "wrong"]
    if not wrong:
        return None
    return _error(
        "wrong-values",
        f"a capture replays with wrong values: {wrong[0]}",
        "the driver does not do what breakgraph relies on, or breakgraph has a bug",
        "report it, with this text and the records of breakgraph probe rebegin and breakgraph probe legality",
    )


def _no_arrays(facts: Facts) -> Finding | None:
    arrays = facts.trial.steps.get("arrays")
    if arrays is None or arrays.state != "failed":
        return None
    return _error(
        "no-arrays",
        f"captures work, but not with arrays: {arrays.what}",
        arrays.why or facts.imports.get("cupy", "") or f"cupy raised {arrays.error}",
        arrays.remedy or f"{facts.nvidia.extra}; or write the forward with torch or numba",
    )


ANY_DRIVER: tuple[Check, ...] = (_unknown_driver, _switched_off, _process_ended, _wrong_values)
CUDA: tuple[Check, ...] = (
    _no_bindings,
    _broken_bindings,
    _no_driver_library,
    _newer_bindings,
    _no_device_files,
    _uninitialized,
    _hidden_gpus,
    _mig_without_instances,
    _no_gpu,
    _prohibited,
    _taken,
    _no_arrays,
)


def last_resort(facts: Facts) -> Finding:
    """Where no check explains it: the error itself."""
    failed = next((outcome for outcome in facts.trial.steps.values() if outcome.state == "failed"), None)
    return _error(
        "failed",
        failed.what if failed else "the self-test did not run to its end",
        failed.why if failed else "it gave no reason",
        (failed and failed.remedy) or "report it, with this text",
    )


def _sees_none(facts: Facts) -> bool:
    """The driver starts, and counts no GPU."""
    return facts.nvidia.init in (0, NO_DEVICE) and not facts.nvidia.visible
