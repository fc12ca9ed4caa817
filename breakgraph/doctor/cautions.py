"""What will hurt or surprise on a machine whether or not its trial worked."""

from __future__ import annotations

from functools import partial

from breakgraph.doctor.facts import Facts, release
from breakgraph.doctor.finding import Check, Finding

__all__ = ["CAUTIONS"]

_warning = partial(Finding, "warning")
_note = partial(Finding, "note")

#: The oldest release of each package that the project runs with (pyproject.toml, docs/frameworks.md).
OLDEST = {"numpy": "2.0", "cuda-bindings": "12.9", "cupy": "14", "torch": "2.8"}
#: The first driver that loads kernels inside a capture, as CUDA counts (Warp's documentation of capture_begin).
LOADS_IN_CAPTURES = 12030
#: Tools by the variable that they leave in the environment of the program they run.
TOOLS = {
    "NV_SANITIZER_INJECTION_PORT_BASE": "compute-sanitizer",
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a tool of CUDA_INJECTION64_PATH",
}


# --- packages -------------------------------------------------------------------------------------------


def _two_cupys(facts: Facts) -> Finding | None:
    if len(facts.cupys) < 2:
        return None
    return _warning(
        "two-cupys",
        f"{len(facts.cupys)} packages hold a module cupy: {', '.join(facts.cupys)}",
        "each has overwritten files of the other, so what is imported is neither",
        f"pip uninstall {' '.join(facts.cupys)}, then install one of them",
    )


def _cupy_for_newer_cuda(facts: Facts) -> Finding | None:
    driver = facts.nvidia.major
    for name in facts.cupys:
        digits = name.partition("-cuda")[2].rstrip("x")
        if driver is not None and digits.isdigit() and int(digits) > driver:
            return _warning(
                "cupy-for-newer-cuda",
                f"{name} is for CUDA {digits}, the driver offers CUDA {driver}",
                "the CUDA runtime in it calls entry points that this driver does not have",
                f"pip uninstall {name}, pip install cupy-cuda{driver}x" if driver >= 12 else "update the driver",
            )
    return None


def _no_cupy(facts: Facts) -> Finding | None:
    if not facts.on_gpu or facts.cupys:
        return None
    return _warning(
        "no-cupy",
        "cupy is not installed",
        "bg.array_namespace and bg.Cell are made of its arrays; captures of torch, numba and others work without",
        facts.nvidia.extra,
    )


def _too_old(facts: Facts) -> Finding | None:
    old = [
        f"{name} {version} (from {oldest} on)"
        for name, version in facts.packages.items()
        if (oldest := OLDEST.get(name.partition("-cuda")[0])) and release(version) < release(oldest)
    ]
    if not old:
        return None
    return _warning(
        "too-old",
        f"older than what breakgraph runs with: {', '.join(old)}",
        "older releases have other names, rules or bugs, and nothing is tested with them",
        "pip install --upgrade them",
    )


def _torch_for_cpu(facts: Facts) -> Finding | None:
    if not facts.on_gpu or facts.torch_cuda != "":
        return None
    return _warning(
        "torch-for-cpu",
        f"torch {facts.packages.get('torch', '')} is a build without CUDA",
        "its tensors lie on the host, so they are plain values to a capture: frozen as arguments, handed on as results",
        "install a CUDA build (pytorch.org tells the command), or ignore this if torch is not captured",
    )


def _not_importable(facts: Facts) -> Finding | None:
    own = ("cuda.bindings.driver", "cupy")  # causes tell of these
    broken = {module: error for module, error in facts.imports.items() if error and module not in own}
    if not broken:
        return None
    numpy = "numpy" in " ".join(broken.values()).lower()
    return _warning(
        "not-importable",
        f"installed, but cannot be imported: {', '.join(broken)}",
        "; ".join(f"{module} {error}" for module, error in broken.items()),
        "install the NumPy that it asks for (2.0 or newer for breakgraph), or a newer release of it"
        if numpy
        else "reinstall it, or ignore this if it is not captured",
    )


def _no_nvmath(facts: Facts) -> Finding | None:
    if not facts.on_gpu or not facts.cupys or "nvmath-python" in facts.packages:
        return None
    return _note(
        "no-nvmath",
        "nvmath-python is not installed",
        "cupy refuses matrix products inside a segment; cuBLAS through nvmath.bindings is captured",
        "do them in a break, or pip install nvmath-python",
    )


# --- environment ----------------------------------------------------------------------------------------


def _simulator_beside_a_gpu(facts: Facts) -> Finding | None:
    gpus = facts.nvidia.visible or facts.nvidia.gpus
    if facts.trial.driver != "sim" or not gpus:
        return None
    return _note(
        "simulator-beside-a-gpu",
        f"the simulator is chosen, and there is a GPU ({gpus[0].name})",
        facts.trial.chosen_by,
        "unset BREAKGRAPH_DRIVER to use the GPU",
    )


def _launch_blocking(facts: Facts) -> Finding | None:
    if not facts.on_gpu or facts.environment.get("CUDA_LAUNCH_BLOCKING", "0") in ("", "0"):
        return None
    return _warning(
        "launch-blocking",
        "CUDA_LAUNCH_BLOCKING is set",
        "every launch outside a segment waits for its end, so missing waits do not show and times mean nothing."
        " It is for debugging (CUDA programming guide, environment variables)",
        "unset it; to find the line that broke a capture use capture(debug=True)",
    )


def _tool_attached(facts: Facts) -> Finding | None:
    tools = [tool for variable, tool in TOOLS.items() if variable in facts.environment]
    if not tools:
        return None
    return _note(
        "tool-attached",
        f"running under {' and '.join(tools)}",
        "it stands between the program and the driver, and may wait or allocate where a capture forbids that",
        "where a capture fails, try it without the tool first",
    )


def _loads_lazily(facts: Facts) -> Finding | None:
    cuda = facts.nvidia.cuda
    eager = facts.environment.get("CUDA_MODULE_LOADING", "").upper() == "EAGER"
    if not facts.on_gpu or cuda is None or cuda >= LOADS_IN_CAPTURES or eager:
        return None
    return _warning(
        "loads-lazily",
        f"kernels are loaded at their first launch, and this driver (CUDA {cuda // 1000}.{cuda % 1000 // 10}) may"
        " refuse that in a segment",
        "loading may allocate and wait; drivers from CUDA 12.3 on can do it inside a capture",
        "run the forward once before the capture, or set CUDA_MODULE_LOADING=EAGER, or update the driver",
    )


def _exclusive(facts: Facts) -> Finding | None:
    if not facts.on_gpu or facts.nvidia.visible[0].compute_mode != "exclusive process" or not facts.trial.works:
        return None
    return _note(
        "exclusive",
        f"{facts.nvidia.visible[0].name} is in exclusive process mode",
        "one process at a time has the GPU: a second rank or a test in a child process gets none",
        "sudo nvidia-smi -c DEFAULT, or use MPS",
    )


def _numba_simulated(facts: Facts) -> Finding | None:
    if facts.environment.get("NUMBA_ENABLE_CUDASIM", "0") in ("", "0"):
        return None
    return _note(
        "numba-simulated",
        "NUMBA_ENABLE_CUDASIM is set",
        "numba.cuda is then numba's own simulator, whose arrays lie on the host and take no part in captures",
        "unset it",
    )


def _free_threaded(facts: Facts) -> Finding | None:
    if not facts.python.free_threaded:
        return None
    return _warning(
        "free-threaded",
        "this Python is a free-threaded build",
        "breakgraph is not tested on one, and the bindings support it as best they can (docs/streams.md)",
        "use a build with the interpreter lock",
    )


def _other_system(facts: Facts) -> Finding | None:
    if facts.system.name == "Linux":
        return None
    return _warning(
        "other-system",
        f"the system is {facts.system.name}",
        "breakgraph is developed and tested on Linux alone",
        "the simulator is likely to work; tell what you found",
    )


CAUTIONS: tuple[Check, ...] = (
    _two_cupys,
    _cupy_for_newer_cuda,
    _no_cupy,
    _too_old,
    _torch_for_cpu,
    _not_importable,
    _launch_blocking,
    _loads_lazily,
    _free_threaded,
    _other_system,
    _no_nvmath,
    _simulator_beside_a_gpu,
    _tool_attached,
    _exclusive,
    _numba_simulated,
)
