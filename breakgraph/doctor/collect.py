"""Gather the facts of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import breakgraph as bg
from breakgraph import record
from breakgraph.doctor.child import ask
from breakgraph.doctor.facts import Facts, Gpu, Nvidia, Outcome, Python, Source, System, Trial

__all__ = ["PACKAGES", "VARIABLES", "collect", "environment"]

SECONDS = 120.0  # for each child: a driver's first start and torch's first import take long on a busy machine
_AT_ONCE = 4  # children

#: Distributions worth a version, beside all whose name begins with "cupy".
PACKAGES = (
    "numpy",
    "cuda-bindings",
    "cuda-python",
    "cuda-core",
    "cuda-pathfinder",
    "torch",
    "triton",
    "numba",
    "numba-cuda",
    "nvmath-python",
    "nvtx",
    "rich",
    "scikit-learn",
)

#: The module of each distribution that captures touch. An import shows what no version does.
MODULES = {
    "cuda-bindings": "cuda.bindings.driver",
    "cuda-core": "cuda.core",
    "cupy": "cupy",
    "torch": "torch",
    "triton": "triton",
    "numba": "numba.cuda",
    "numba-cuda": "numba.cuda",
    "nvmath-python": "nvmath",
    "nvtx": "nvtx",
}

#: Variables that change what a driver, a capture or a library does. No others are looked at: they may be secret.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_INJECTION64_PATH",
    "NV_SANITIZER_INJECTION_PORT_BASE",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    "NSYS_PROFILING_SESSION_ID",
    "CUDA_PATH",
    "CUDA_HOME",
    "CUPY_ACCELERATORS",
    "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM",
    "NUMBA_ENABLE_CUDASIM",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTHON_GIL",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
_OURS = "BREAKGRAPH_"


def collect(seconds: float = SECONDS) -> Facts:
    """The facts of this machine; each child process has so many seconds."""
    packages = _packages()
    modules = dict.fromkeys(MODULES[name] for name in map(_family, packages) if name in MODULES)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        nvidia = pool.submit(_nvidia, seconds)
        trial = pool.submit(_trial, seconds)
        imports = {module: pool.submit(ask, "-c", f"import {module}", seconds=seconds) for module in modules}
        first = trial.result()
        return Facts(
            source=_source(),
            python=Python(platform.python_version(), sys.executable, _free_threaded()),
            system=_system(),
            packages=packages,
            imports={module: answer.result().ended for module, answer in imports.items()},
            environment=environment(os.environ),
            nvidia=nvidia.result(),
            trial=first,
            simulator=None if first.works or first.driver != "cuda" else _trial(seconds, driver="sim"),
            torch_cuda=_torch_cuda(),
        )


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of the variables that matter here."""
    ours = sorted(name for name in variables if name.startswith(_OURS))
    return {name: variables[name] for name in (*ours, *VARIABLES) if name in variables}


def _nvidia(seconds: float) -> Nvidia:
    answer = ask("-m", "breakgraph.doctor.nvidia", seconds=seconds)
    devices, gpus, visible = (answer.said.pop(key, ()) for key in ("devices", "gpus", "visible"))
    return Nvidia(
        **answer.said,
        devices=tuple(devices),
        gpus=tuple(Gpu(**gpu) for gpu in gpus),
        visible=tuple(Gpu(**gpu) for gpu in visible),
        ended=answer.ended,
    )


def _trial(seconds: float, driver: str = "") -> Trial:
    """Try the driver that a program would get, or the one named."""
    told = driver or os.environ.get("BREAKGRAPH_DRIVER", "")
    if driver:
        chosen_by = "tried since CUDA does not work"
    else:
        chosen_by = f"BREAKGRAPH_DRIVER={told} is set" if told else "the default, since BREAKGRAPH_DRIVER is not set"
    answer = ask("-m", "breakgraph.doctor.trial", seconds=seconds, environment={"BREAKGRAPH_DRIVER": told})
    can_capture = answer.said.pop("can_capture", None)
    steps = {name: Outcome(**said) for name, said in answer.said.items()}
    return Trial(told or "cuda", chosen_by, can_capture, steps, answer.ended)


def _packages() -> dict[str, str]:
    """Versions by normalized name, in the order of `PACKAGES`, cupy's distributions first."""
    found: dict[str, str] = {}
    for one in metadata.distributions():  # in the order of the path: the first of a name is the one imported
        if one.name:
            found.setdefault(re.sub(r"[-_.]+", "-", one.name).lower(), one.version)
    wanted = [*sorted(name for name in found if _family(name) == "cupy"), *PACKAGES]
    return {name: found[name] for name in wanted if name in found}


def _family(package: str) -> str:
    """``cupy-cuda13x`` is a ``cupy``; any other package is itself."""
    return "cupy" if package.partition("-")[0] == "cupy" else package


def _torch_cuda() -> str | None:
    """What torch was built for, from its ``version.py``; torch itself is not imported."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text()
    except OSError:
        return None
    told = re.search(r"^cuda\b[^=\n]*= *(?:None|['\"]([\d.]+)['\"])", text, re.MULTILINE)
    return told and (told[1] or "")


def _source() -> Source:
    commit, dirty = record.commit()
    return Source(bg.__version__, str(Path(bg.__file__).parent), _installed(), commit, dirty)


def _installed() -> str:
    """How it was installed. Of the address it came from nothing is told: that may hold a password."""
    try:
        told = metadata.distribution("breakgraph").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "no"
    origin = json.loads(told or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return "editable"
    revision = origin.get("vcs_info", {}).get("commit_id")
    return f"commit {revision}" if revision else "wheel"


def _system() -> System:
    files = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
    return System(
        name=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        libc=" ".join(filter(None, platform.libc_ver())),
        container=any(Path(file).exists() for file in files),
    )


def _free_threaded() -> bool:
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
