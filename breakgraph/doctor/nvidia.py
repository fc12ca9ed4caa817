"""Ask NVIDIA's libraries about driver and GPUs, without bindings and without making a context.

Run as a module it says each thing as it is learned, the safest first: initialization may hang. Sources: NVML API,
"Device Queries"; CUDA driver API, "Device Management" and CUdevice_attribute.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from breakgraph import record
from breakgraph.doctor.child import say
from breakgraph.doctor.facts import Gpu

__all__ = ["cuda", "main", "nvml"]

MODES = ("default", "exclusive thread", "prohibited", "exclusive process")  # CUcomputemode, nvmlComputeMode_t
_MAJOR, _MINOR, _COMPUTE_MODE = 75, 76, 20  # CUdevice_attribute
_NAME = ctypes.c_char * 256
_MEMORY = ctypes.c_ulonglong * 3  # nvmlMemory_t: total, free, used


def main() -> None:
    """Say the fields of `breakgraph.doctor.facts.Nvidia`, a few at a time."""
    say({"devices": sorted(str(path) for path in Path("/dev").glob("nvidia*"))})
    say({"kernel_module": record.driver_version()})
    library, why = _load("libnvidia-ml.so.1")
    if library:
        say({"gpus": [asdict(gpu) for gpu in nvml(library)]})
    library, why = _load("libcuda.so.1")
    if library:
        say({"library": _path_of("libcuda.so")})
        for facts in cuda(library):
            say(facts)
    else:
        say({"library_error": why})


def nvml(library: Any) -> Iterator[Gpu]:
    """Every GPU that NVML lists; none where it cannot be initialized."""
    if library.nvmlInit_v2():
        return
    (count,) = _told(library.nvmlDeviceGetCount_v2, ctypes.c_uint)
    for index in range(count or 0):
        (address,) = _told(library.nvmlDeviceGetHandleByIndex_v2, index, ctypes.c_void_p)
        device = ctypes.c_void_p(address)
        (name,) = _told(library.nvmlDeviceGetName, device, _NAME, len(_NAME()))
        (memory,) = _told(library.nvmlDeviceGetMemoryInfo, device, _MEMORY)
        (mode,) = _told(library.nvmlDeviceGetComputeMode, device, ctypes.c_uint)
        mig, _ = _told(library.nvmlDeviceGetMigMode, device, ctypes.c_uint, ctypes.c_uint)
        capability = _told(library.nvmlDeviceGetCudaComputeCapability, device, ctypes.c_int, ctypes.c_int)
        yield _gpu(name, capability, memory and memory[0], memory and memory[1], mode, mig)


def cuda(library: Any) -> Iterator[dict[str, Any]]:
    """The version of libcuda, how it initializes, and the GPUs that it counts."""
    (version,) = _told(library.cuDriverGetVersion, ctypes.c_int)
    yield {"cuda": version}
    code = library.cuInit(0)
    (name,) = _told(library.cuGetErrorName, code, ctypes.c_char_p)
    yield {"init": code, "init_name": name.decode() if name else f"CUDA_ERROR_{code}"}
    if not code:
        (count,) = _told(library.cuDeviceGetCount, ctypes.c_int)
        yield {"visible": [asdict(_visible(library, ordinal)) for ordinal in range(count or 0)]}


def _visible(library: Any, ordinal: int) -> Gpu:
    (device,) = _told(library.cuDeviceGet, ctypes.c_int, ordinal)
    (name,) = _told(library.cuDeviceGetName, _NAME, len(_NAME()), device)
    (memory,) = _told(library.cuDeviceTotalMem_v2, ctypes.c_size_t, device)
    major, minor, mode = (
        _told(library.cuDeviceGetAttribute, ctypes.c_int, attribute, device)[0]
        for attribute in (_MAJOR, _MINOR, _COMPUTE_MODE)
    )
    return _gpu(name, (major, minor), memory, None, mode, None)


def _gpu(
    name: bytes | None,
    capability: tuple[int | None, ...],
    memory: int | None,
    free: int | None,
    mode: int | None,
    mig: int | None,
) -> Gpu:
    return Gpu(
        name=(name or b"unknown").decode(errors="replace").strip(),
        capability=None if None in capability else ".".join(map(str, capability)),
        memory=memory,
        free=free,
        compute_mode=None if mode is None else MODES[mode],
        mig=None if mig is None else bool(mig),
    )


def _load(name: str) -> tuple[Any, str]:
    """A library, or None and why it cannot be loaded."""
    try:
        return ctypes.CDLL(name), ""
    except OSError as error:
        return None, str(error)


def _path_of(name: str) -> str | None:
    """Where a library that this process has loaded lies."""
    mapped = re.search(rf"/\S*{re.escape(name)}\S*", Path("/proc/self/maps").read_text())
    return mapped and mapped[0]


def _told(call: Callable[..., int], *arguments: Any) -> tuple[Any, ...]:
    """What a call writes where a type stands among its arguments; for each None where it is refused."""
    outputs = {at: kind() for at, kind in enumerate(arguments) if isinstance(kind, type)}
    given = [ctypes.byref(outputs[at]) if at in outputs else argument for at, argument in enumerate(arguments)]
    refused = call(*given)
    return tuple(None if refused else getattr(out, "value", out) for out in outputs.values())


if __name__ == "__main__":
    main()
