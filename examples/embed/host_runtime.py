"""Stands for a program that breakgraph is put into: it owns a context, a stream and memory, and knows of no capture.

`OnGpu` makes CUDA's own calls through the bindings, `OnSimulator` makes the same calls of the simulated driver. The
context is not the device's primary one; arrays are addresses of `COUNT` floats.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph.driver import Region

__all__ = ["COUNT", "OnGpu", "OnSimulator"]

COUNT, FLOAT = 8, np.dtype(np.float32)
SOURCE = rb"""
extern "C" __global__ void multiply_add(float *out, const float *x, const float *factor, float plus) {
    out[threadIdx.x] = x[threadIdx.x] * factor[0] + plus;
}"""


class OnGpu:
    """A runtime over ``cuda.bindings``, of CUDA 12 or 13."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._cu: Any = driver
        done(driver.cuInit(0))
        parameters = (None,) if driver.CUDA_VERSION >= 13000 else ()
        self.context = int(done(driver.cuCtxCreate(*parameters, 0, done(driver.cuDeviceGet(0)))))
        self.stream = int(done(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
        module = done(driver.cuModuleLoadData(compiled(SOURCE)))
        self._kernel = done(driver.cuModuleGetFunction(module, b"multiply_add"))

    def allocate(self) -> int:
        return int(done(self._cu.cuMemAlloc(COUNT * FLOAT.itemsize)))

    def write(self, ptr: int, values: Any) -> None:
        host = np.array(values, FLOAT)
        done(self._cu.cuMemcpyHtoDAsync(ptr, host.ctypes.data, host.nbytes, self.stream))

    def read(self, ptr: int) -> Any:
        host = np.zeros(COUNT, FLOAT)
        done(self._cu.cuMemcpyDtoHAsync(host.ctypes.data, ptr, host.nbytes, self.stream))
        done(self._cu.cuStreamSynchronize(self.stream))
        return host

    def multiply_add(self, out: int, x: int, factor: int, plus: float) -> None:
        """``out = x * factor[0] + plus``."""
        shape = (1, 1, 1, COUNT, 1, 1)
        arguments = ((out, x, factor, plus), (*[ctypes.c_void_p] * 3, ctypes.c_float))
        done(self._cu.cuLaunchKernel(self._kernel, *shape, 0, self.stream, arguments, 0))

    def state(self) -> tuple[int, int]:
        """The thread's current context, and whether the stream is capturing (0: no)."""
        return int(done(self._cu.cuCtxGetCurrent())), int(done(self._cu.cuStreamIsCapturing(self.stream)))

    def close(self) -> None:
        done(self._cu.cuStreamDestroy(self.stream))
        done(self._cu.cuCtxDestroy(self.context))


def done(answer: tuple[Any, ...]) -> Any:
    """What a call of the bindings gave, or its error."""
    code, *values = answer
    if code:
        raise RuntimeError(str(code))
    return values[0] if values else None


def compiled(source: bytes) -> bytes:
    """Machine code for the device of the current context."""
    from cuda.bindings import driver, nvrtc

    numbers = driver.CUdevice_attribute
    wanted = (
        numbers.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        numbers.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )
    device = done(driver.cuCtxGetDevice())
    major, minor = (done(driver.cuDeviceGetAttribute(one, device)) for one in wanted)
    program = done(nvrtc.nvrtcCreateProgram(source, b"multiply_add.cu", 0, [], []))
    done(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()]))
    code = b" " * done(nvrtc.nvrtcGetCUBINSize(program))
    done(nvrtc.nvrtcGetCUBIN(program, code))
    return code


class OnSimulator:
    """The same runtime over the simulated driver, whose kernels are Python functions over NumPy arrays."""

    def __init__(self) -> None:
        self._driver: Any = bg.driver.current()
        self.context = self._driver.ctx_create(0)
        self.stream = self._driver.stream_create()

    def allocate(self) -> int:
        return int(self._driver.mem_alloc(COUNT * FLOAT.itemsize))

    def write(self, ptr: int, values: Any) -> None:
        host = np.array(values, FLOAT)
        self._driver.memcpy_htod_async(ptr, host.ctypes.data, host.nbytes, self.stream)

    def read(self, ptr: int) -> Any:
        host = np.zeros(COUNT, FLOAT)
        self._driver.memcpy_dtoh_async(host.ctypes.data, ptr, host.nbytes, self.stream)
        self._driver.stream_synchronize(self.stream)
        return host

    def multiply_add(self, out: int, x: int, factor: int, plus: float) -> None:
        def kernel(x: Any, factor: Any, out: Any) -> None:
            out[:] = x * factor[0] + FLOAT.type(plus)

        floats, number, result = (
            Region.contiguous_at(*at, FLOAT) for at in ((x, (COUNT,)), (factor, (1,)), (out, (COUNT,)))
        )
        self._driver.launch(self.stream, kernel, reads=[floats, number], writes=[result])

    def state(self) -> tuple[int, int]:
        return self._driver.ctx_get_current(), int(self._driver.stream_is_capturing(self.stream))

    def close(self) -> None:
        self._driver.stream_destroy(self.stream)
        self._driver.ctx_destroy(self.context)
