"""Machines to examine: a sound one with an H200, and what breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from breakgraph.doctor.facts import Facts, Gpu, Nvidia, Outcome, Python, Source, System, Trial

H200 = Gpu("NVIDIA H200", "9.0", 150_754_820_096, 149_000_000_000, "default", False)
WORKS = Outcome("works")
SOUND = Facts(
    source=Source("0.1.0", "/opt/venv/lib/python3.12/site-packages/breakgraph", "wheel"),
    python=Python("3.12.3", "/opt/venv/bin/python"),
    system=System("Linux", "6.8.0-31-generic", "x86_64", "glibc 2.39"),
    packages={
        "cupy-cuda13x": "14.0.1",
        "numpy": "2.2.6",
        "cuda-bindings": "13.3.1",
        "cuda-python": "13.3.1",
        "torch": "2.11.0",
        "numba": "0.62.1",
        "numba-cuda": "0.20.0",
        "nvmath-python": "0.7.0",
    },
    imports={"cuda.bindings.driver": "", "cupy": "", "torch": "", "numba.cuda": "", "nvmath": ""},
    environment={},
    nvidia=Nvidia(
        kernel_module="580.159.04",
        devices=("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"),
        library="/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04",
        cuda=13000,
        init=0,
        init_name="CUDA_SUCCESS",
        gpus=(H200,),
        visible=(replace(H200, free=None, mig=None),),
    ),
    trial=Trial(
        "cuda",
        "the default, since BREAKGRAPH_DRIVER is not set",
        can_capture=True,
        steps={"driver": WORKS, "bare": WORKS, "arrays": WORKS},
    ),
    torch_cuda="13.0",
)
SIM = Trial("sim", "BREAKGRAPH_DRIVER=sim is set", True, {"driver": WORKS, "bare": WORKS, "arrays": WORKS})
NO_LIBRARY = "libcuda.so.1: cannot open shared object file: No such file or directory"
NOT_FOUND = Outcome("failed", "DriverNotFound", "there is no usable CUDA driver", "because", "do that")


def machine(
    nvidia: dict[str, Any] | None = None,
    trial: Trial = SOUND.trial,
    without: tuple[str, ...] = (),
    packages: dict[str, str] | None = None,
    imports: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    **fields: Any,
) -> Facts:
    """The sound machine, but for these."""
    kept = {name: version for name, version in SOUND.packages.items() if name not in without}
    return replace(
        SOUND,
        nvidia=replace(SOUND.nvidia, **(nvidia or {})),
        trial=trial,
        packages=kept | (packages or {}),
        imports=SOUND.imports | (imports or {}),
        environment=environment or {},
        **fields,
    )


def failed(step: str = "driver", outcome: Outcome = NOT_FOUND, ended: str = "") -> Trial:
    """A trial on CUDA that came so far."""
    steps = {}
    for name in ("driver", "bare", "arrays"):
        steps[name] = outcome if name == step else WORKS
        if name == step:
            break
    return replace(SOUND.trial, steps=steps, ended=ended)


def no_driver() -> dict[str, Any]:
    """A machine without NVIDIA's driver."""
    return {
        "kernel_module": None,
        "devices": (),
        "library": None,
        "library_error": NO_LIBRARY,
        "cuda": None,
        "init": None,
        "init_name": "",
        "gpus": (),
        "visible": (),
    }


def no_device(**more: Any) -> dict[str, Any]:
    """A driver that starts and counts nothing."""
    return {"init": 100, "init_name": "CUDA_ERROR_NO_DEVICE", "visible": (), **more}


def in_mode(mode: str) -> dict[str, Any]:
    """A GPU in a compute mode."""
    return {"gpus": (replace(H200, compute_mode=mode),), "visible": (replace(H200, compute_mode=mode),)}
