"""Where there is no driver to use, the error says why, what to install and how to choose the simulator."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from breakgraph.driver.cuda import CudaDriver
from breakgraph.driver.sim import SimDriver
from breakgraph.errors import DriverNotFound

from .simulated_bindings import simulated_bindings

SIMULATOR = ("BREAKGRAPH_DRIVER=sim", 'bg.driver.use("sim")')


def child(before: str, **environment: str) -> str:
    """What a child process prints as the error of asking for the CUDA driver."""
    program = f"""
import sys
{before}
import breakgraph as bg
try:
    bg.driver.current().synchronize()
except bg.errors.DriverNotFound as error:
    print(error)
"""
    inherited = {name: value for name, value in os.environ.items() if name != "BREAKGRAPH_DRIVER"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=inherited | environment
    )
    return done.stdout


def test_without_bindings_it_names_both_extras_and_the_simulator() -> None:
    said = child("sys.modules['cuda'] = None")
    for part in ("no Python bindings", "breakgraph[cuda13]", "breakgraph[cuda12]", *SIMULATOR):
        assert part in said


def test_with_bindings_and_no_device_it_gives_the_reason_and_the_simulator() -> None:
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("no bindings are installed")
    said = child("", CUDA_VISIBLE_DEVICES="")
    for part in ("there is no usable CUDA driver", "why: ", *SIMULATOR):
        assert part in said


@pytest.mark.parametrize("text", ["Failed to dlopen libcuda.so.1", '"cuda" can only be found via system search'])
def test_a_driver_library_that_cannot_be_loaded_is_the_reason_given(text: str) -> None:
    bindings = simulated_bindings(SimDriver())

    def cannot_load(*_: object) -> tuple[int]:
        raise RuntimeError(text)

    cannot_load.__name__ = "cuInit"
    bindings.cuInit = cannot_load  # type: ignore[attr-defined]
    with pytest.raises(DriverNotFound) as missing:
        CudaDriver(bindings)
    assert missing.value.why == text


def test_a_driver_that_refuses_to_start_gives_its_result() -> None:
    bindings = simulated_bindings(SimDriver())
    bindings.cuInit = lambda _: (bindings.CUresult(100),)  # type: ignore[attr-defined]
    bindings.cuInit.__name__ = "cuInit"
    with pytest.raises(DriverNotFound, match=r"CUDA_ERROR_NO_DEVICE \(100\)"):
        CudaDriver(bindings)


def test_a_driver_without_devices_is_refused() -> None:
    sim = SimDriver()
    sim.device_get_count = lambda: 0  # type: ignore[method-assign]
    with pytest.raises(DriverNotFound, match="no CUDA device"):
        CudaDriver(simulated_bindings(sim))


@pytest.mark.parametrize(("version", "advice"), [(12080, "breakgraph[cuda12]"), (11080, "update the driver")])
def test_the_wrong_extra_is_told_from_the_versions(version: int, advice: str) -> None:
    sim = SimDriver()
    sim.driver_get_version = lambda: version  # type: ignore[method-assign]
    with pytest.raises(DriverNotFound, match="the installed bindings are for CUDA 13") as wrong:
        CudaDriver(simulated_bindings(sim, 13))
    assert advice in wrong.value.remedy


def test_bindings_older_than_the_driver_are_fine() -> None:
    assert CudaDriver(simulated_bindings(SimDriver(), 12)).driver_get_version() >= 13000
