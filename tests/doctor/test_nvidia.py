"""What is read of NVIDIA's libraries is what they write, in their argument order; what they refuse is not known.

A library here is an object whose functions fill the buffers they are given, as ctypes hands them over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from machines import H200

from breakgraph.doctor import nvidia
from breakgraph.doctor.child import ask
from breakgraph.doctor.facts import Gpu

HANDLE = 0x7F00_1234_5678  # wider than a C int: a handle must not be cut to one
NOT_SUPPORTED = 3


def write(target: Any, *values: Any) -> None:
    """Write into what ``byref`` refers to."""
    out = target._obj
    if len(values) > 1:
        out[:] = values
    else:
        out.value = values[0]


class Nvml:
    """One H200, in the order of NVML's arguments."""

    compute_mode, mig = 0, 0
    init = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.init

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*given: Any) -> int:
            if name == "nvmlDeviceGetCount_v2":
                write(given[0], 1)
            elif name == "nvmlDeviceGetHandleByIndex_v2":
                assert given[0] == 0
                write(given[1], HANDLE)
            else:
                assert given[0].value == HANDLE
                return self.device(name, *given[1:])
            return 0

        return function

    def device(self, name: str, *out: Any) -> int:
        answers: dict[str, tuple[Any, ...]] = {
            "nvmlDeviceGetName": (b"NVIDIA H200",),
            "nvmlDeviceGetMemoryInfo": ((H200.memory, H200.free, 7),),
            "nvmlDeviceGetComputeMode": (self.compute_mode,),
            "nvmlDeviceGetMigMode": (self.mig, 1),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
        }
        if None in answers[name]:
            return NOT_SUPPORTED
        for target, value in zip(out, answers[name], strict=False):
            write(target, *value if isinstance(value, tuple) else (value,))
        return 0


class Cuda:
    """libcuda with two H200s, in the order of its arguments: what it writes comes first."""

    init = 0

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        write(out, 13000)
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self.init

    def cuGetErrorName(self, code: int, out: Any) -> int:  # noqa: N802
        known = {0: b"CUDA_SUCCESS", 100: b"CUDA_ERROR_NO_DEVICE"}
        write(out, known.get(code))
        return 0 if code in known else 1

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        write(out, 2)
        return 0

    def cuDeviceGet(self, out: Any, ordinal: int) -> int:  # noqa: N802
        write(out, 40 + ordinal)
        return 0

    def cuDeviceGetName(self, out: Any, size: int, device: int) -> int:  # noqa: N802
        assert size == 256
        write(out, f"NVIDIA H200 number {device - 40}".encode())
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: int) -> int:  # noqa: N802
        write(out, H200.memory)
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: int) -> int:  # noqa: N802
        assert device in (40, 41)
        write(out, {75: 9, 76: 0, 20: 3}[attribute])
        return 0


def test_nvml_tells_all_of_a_gpu() -> None:
    assert list(nvidia.nvml(Nvml())) == [H200]


def test_what_nvml_does_not_support_is_not_known() -> None:
    library = Nvml()
    library.mig = library.compute_mode = None  # type: ignore[assignment]
    assert list(nvidia.nvml(library)) == [replace(H200, mig=None, compute_mode=None)]


def test_nvml_that_cannot_be_initialized_lists_none() -> None:
    library = Nvml()
    library.init = 9  # NVML_ERROR_DRIVER_NOT_LOADED
    assert list(nvidia.nvml(library)) == []


def test_libcuda_tells_version_start_and_what_it_counts() -> None:
    version, start, visible = nvidia.cuda(Cuda())
    assert version == {"cuda": 13000}
    assert start == {"init": 0, "init_name": "CUDA_SUCCESS"}
    devices = [Gpu(f"NVIDIA H200 number {at}", "9.0", H200.memory, None, "exclusive process") for at in (0, 1)]
    assert visible == {"visible": list(map(asdict, devices))}


@pytest.mark.parametrize(("code", "name"), [(100, "CUDA_ERROR_NO_DEVICE"), (12345, "CUDA_ERROR_12345")])
def test_a_libcuda_that_does_not_start_is_asked_no_more(code: int, name: str) -> None:
    library = Cuda()
    library.init = code
    library.cuDeviceGetCount = None  # type: ignore[assignment,method-assign]
    assert list(nvidia.cuda(library)) == [{"cuda": 13000}, {"init": code, "init_name": name}]


def test_as_a_process_it_says_what_is_here(no_gpu: str) -> None:
    answer = ask("-m", "breakgraph.doctor.nvidia", seconds=60)
    assert answer.ended == ""
    assert {"devices", "kernel_module"} < set(answer.said)
    if "no usable CUDA driver" in no_gpu:
        assert answer.said.get("library_error") or answer.said["init"] != 0 or not answer.said["visible"]
    elif not no_gpu:
        assert answer.said["init"] == 0
        assert all(gpu["name"] and gpu["capability"] and gpu["memory"] for gpu in answer.said["visible"])
