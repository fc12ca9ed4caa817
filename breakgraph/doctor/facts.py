"""What the doctor knows of a machine: plain values, which a test can make up and JSON can hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["STEPS", "Facts", "Gpu", "Nvidia", "Outcome", "Python", "Source", "System", "Trial", "release"]

STEPS = ("driver", "bare", "arrays")  # of a trial


@dataclass(frozen=True)
class Source:
    """Which breakgraph was examined, and where it came from."""

    version: str
    location: str
    installed: str  #: "wheel", "editable", "commit <id>", or "no", for a checkout on the path
    commit: str | None = None  #: of the checkout
    dirty: bool | None = None  #: whether the checkout differs from its commit


@dataclass(frozen=True)
class Python:
    """The interpreter."""

    version: str
    executable: str
    free_threaded: bool = False


@dataclass(frozen=True)
class System:
    """The operating system."""

    name: str  #: "Linux"
    release: str  #: the kernel's
    machine: str
    libc: str
    container: bool = False

    @property
    def wsl(self) -> bool:
        """Whether this is Linux under Windows, which reaches its GPU through ``/dev/dxg``."""
        return "microsoft" in self.release.lower()


@dataclass(frozen=True)
class Gpu:
    """One GPU. Sizes are in bytes; what the library asked does not tell is None."""

    name: str
    capability: str | None = None  #: "9.0"
    memory: int | None = None
    free: int | None = None
    compute_mode: str | None = None  #: "default", "exclusive thread", "prohibited", "exclusive process"
    mig: bool | None = None


@dataclass(frozen=True)
class Nvidia:
    """What NVIDIA's driver tells by itself, without the Python bindings."""

    kernel_module: str | None = None  #: "580.159.04"
    devices: tuple[str, ...] = ()  #: the files /dev/nvidia*
    library: str | None = None  #: the path of the libcuda that was loaded
    library_error: str = ""  #: why none was
    cuda: int | None = None  #: 13000, the newest CUDA that libcuda offers
    init: int | None = None  #: the CUresult of cuInit; None where it was not called or did not return
    init_name: str = ""
    gpus: tuple[Gpu, ...] = ()  #: all, by NVML, which no environment variable hides anything from
    visible: tuple[Gpu, ...] = ()  #: those that CUDA counts
    ended: str = ""  #: how the process that asked ended, if not well

    @property
    def major(self) -> int | None:
        """The newest major CUDA version that libcuda offers."""
        return None if self.cuda is None else self.cuda // 1000

    @property
    def extra(self) -> str:
        """The command that installs what fits this driver."""
        if self.major is None:
            return "pip install 'breakgraph[cuda13]' for driver 580 and newer, 'breakgraph[cuda12]' for an older one"
        if self.major < 12:
            return "update the driver to 525 or newer, then pip install 'breakgraph[cuda12]'"
        return f"pip install 'breakgraph[cuda{min(self.major, 13)}]'"


@dataclass(frozen=True)
class Outcome:
    """What came of one step of a trial, with the error's own words if it failed."""

    state: str  #: "works", "inert", "wrong", "failed", "left out"
    error: str = ""  #: the class of the exception
    what: str = ""
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Trial:
    """A capture with one break, replayed on fresh inputs, by the driver that a program would get."""

    driver: str  #: "cuda", "sim", or whatever the environment names
    chosen_by: str  #: who says so
    can_capture: bool | None = None
    steps: dict[str, Outcome] = field(default_factory=dict)  #: those that were reached, by name
    ended: str = ""  #: how the process ended, if not well

    @property
    def works(self) -> bool:
        """Whether every step that applies here came out right."""
        return not self.ended and all(self.state(step) in ("works", "left out") for step in STEPS)

    def state(self, step: str) -> str:
        """The state of a step; "not reached" where the trial ended before it."""
        return self.steps[step].state if step in self.steps else "not reached"


@dataclass(frozen=True)
class Facts:
    """Everything."""

    source: Source
    python: Python
    system: System
    packages: dict[str, str]  #: versions by distribution
    imports: dict[str, str]  #: by module of those packages, why it cannot be imported; "" where it can
    environment: dict[str, str]  #: the variables that matter here
    nvidia: Nvidia
    trial: Trial
    simulator: Trial | None = None  #: tried where CUDA does not work
    torch_cuda: str | None = None  #: the CUDA that torch was built for, "" for none, None where there is no torch

    @property
    def on_gpu(self) -> bool:
        """Whether the CUDA driver would be used and sees a GPU."""
        return self.trial.driver == "cuda" and bool(self.nvidia.visible)

    @property
    def cupys(self) -> tuple[str, ...]:
        """The installed distributions that hold a module ``cupy``."""
        return tuple(name for name in self.packages if name.partition("-")[0] == "cupy")

    def major(self, package: str) -> int | None:
        """The major version of a package; None where it is not installed."""
        return release(self.packages[package])[0] if package in self.packages else None


def release(version: str) -> tuple[int, ...]:
    """``13.0.1rc1`` as (13, 0, 1), for comparisons."""
    numbers = re.split(r"[^\d.]", version, maxsplit=1)[0]
    return tuple(int(number) for number in numbers.split(".") if number) or (0,)
