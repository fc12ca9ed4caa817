"""With debug, the call that made a capture invalid is told also where the bindings run Python of their own in it.

The bindings look a result code up in an enum written in Python, before the driver layer raises its error.
"""

from __future__ import annotations

import pytest

import breakgraph as bg
from breakgraph.driver.cuda import CudaDriver
from breakgraph.driver.sim import SimDriver

from .simulated_bindings import simulated_bindings


def test_the_call_is_told_although_the_bindings_run_python_in_it() -> None:
    with bg.driver.use(CudaDriver(simulated_bindings(SimDriver()))) as driver:
        driver.ensure_context()
        ptr = driver.mem_alloc(64)
        with pytest.raises(bg.errors.CaptureInvalidated) as raised, bg.capture(debug=True):
            stream = int(bg.current_stream() or 0)
            driver.memset_d8_async(ptr, 1, 64, stream)
            with pytest.raises(bg.errors.CaptureUnsupported):
                driver.ctx_synchronize()
            driver.memset_d8_async(ptr, 2, 64, stream)
        told = "\n".join(raised.value.__notes__)
        assert "driver.ctx_synchronize()" in told
        assert "call: ctx_synchronize, which raised CaptureUnsupported" in told
