"""Where the simulator's arrays get memory from, and that all of it goes back, at no capture's cost."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import breakgraph as bg
from breakgraph.driver.api import CaptureMode, CaptureStatus
from breakgraph.errors import DriverError
from breakgraph.frameworks import of


def allocated(sim: Any) -> int:
    """Live blocks of device memory."""
    return len(sim.live()["allocation"])


def collect(xp: Any) -> None:
    """Allocate and wait, so that what died before goes back."""
    xp.zeros(1).get()


def test_memory_of_dead_arrays_goes_back(sim: Any, xp: Any) -> None:
    collect(xp)
    before = allocated(sim)
    kept = [xp.ones(100) for _ in range(10)]
    assert allocated(sim) >= before + 9
    del kept
    collect(xp)
    sim.synchronize()
    assert allocated(sim) <= before + 1


def test_a_long_run_holds_no_more_than_its_live_arrays(sim: Any, xp: Any) -> None:
    x = xp.zeros(1000, np.float32)
    for _ in range(200):
        x = np.add(x, 1)
    assert allocated(sim) < 8
    assert x.get()[0] == 200


def test_a_view_keeps_the_memory_of_its_base(sim: Any, xp: Any) -> None:
    part = xp.arange(6.0).reshape(2, 3)[1:, ::2]
    gc.collect()
    for _ in range(5):
        collect(xp)
    assert part.get().tolist() == [[3, 5]]


def test_a_destructor_makes_no_driver_call(sim: Any, xp: Any) -> None:
    x = xp.zeros(4)
    before = sim.calls.total()
    del x
    gc.collect()
    assert sim.calls.total() == before


def test_memory_is_given_back_on_the_stream_it_was_allocated_on(sim: Any, xp: Any) -> None:
    stream = sim.create_stream()
    with of(xp.empty(0), sim).stream_scope(stream.handle):
        x = xp.zeros(4)
        ptr = x.data.ptr
    del x
    collect(xp)
    frees = [entry.args for entry in sim.log if entry.name == "mem_free_async"]
    assert (ptr, stream.handle) in frees


def test_memory_outlives_its_stream_and_goes_back_all_the_same(sim: Any, xp: Any) -> None:
    stream = sim.create_stream()
    with of(xp.empty(0), sim).stream_scope(stream.handle):
        x = xp.ones(4)
    sim.stream_synchronize(stream.handle)
    stream.close()
    assert x.get().sum() == 4
    before = allocated(sim)
    del x
    collect(xp)
    assert allocated(sim) <= before


def test_an_array_that_dies_in_a_segment_does_it_no_harm(sim: Any, xp: Any) -> None:
    framework = of(xp.empty(0), sim)
    stream = sim.create_stream()
    with framework.stream_scope(stream.handle):
        own = xp.zeros(4)
    other = xp.zeros(4)
    sim.synchronize()
    own_ptr, other_ptr = own.data.ptr, other.data.ptr
    sim.stream_begin_capture(stream.handle, CaptureMode.THREAD_LOCAL)
    del own, other
    with bg.driver.relaxed(sim):
        collect(xp)  # on the default stream, in the middle of the capture
    live = sim.live()["allocation"]
    assert sim.stream_is_capturing(stream.handle) == CaptureStatus.ACTIVE
    assert own_ptr in live, "a free on the capturing stream would have been captured"
    assert other_ptr not in live
    sim.graph_destroy(sim.stream_end_capture(stream.handle))
    collect(xp)
    sim.synchronize()
    assert own_ptr not in sim.live()["allocation"]


def test_a_free_that_fails_is_heard_and_tried_again(sim: Any, xp: Any) -> None:
    x = xp.zeros(4)
    ptr = x.data.ptr
    del x
    with sim.fail("mem_free_async", code=999), pytest.raises(DriverError):
        xp.zeros(1)
    assert ptr in sim.live()["allocation"]
    assert sim.thread_capture_mode == CaptureMode.GLOBAL
    collect(xp)
    sim.synchronize()
    assert ptr not in sim.live()["allocation"]


def test_an_allocation_that_fails_leaves_nothing_behind(sim: Any, xp: Any) -> None:
    collect(xp)
    before = allocated(sim)
    with sim.fail("mem_alloc_async", code=2), pytest.raises(bg.errors.OutOfMemory):
        xp.zeros(4)
    assert allocated(sim) <= before
    assert xp.ones(4).get().sum() == 4


def test_arrays_of_a_context_that_is_gone_are_forgotten(sim: Any, xp: Any) -> None:
    sim.ensure_context()
    context = sim.ctx_create(0)
    x = xp.ones(4)
    assert x.get().sum() == 4
    sim.ctx_destroy(context)
    del x
    sim.ensure_context()
    collect(xp)


def test_memory_goes_back_in_its_own_context(sim: Any, xp: Any) -> None:
    primary = sim.ensure_context()
    context = sim.ctx_create(0)
    x = xp.ones(4)
    ptr = x.data.ptr
    x.get()
    assert sim.ctx_pop_current() == context
    del x
    collect(xp)
    assert sim.ctx_get_current() == primary
    sim.ctx_push_current(context)
    sim.ctx_synchronize()
    sim.ctx_pop_current()
    assert ptr not in sim.live()["allocation"]
    sim.ctx_destroy(context)


def test_a_thread_without_a_context_gets_the_primary_one(sim: Any, xp: Any) -> None:
    x, seen = xp.ones(4, np.float32), []

    def work() -> None:
        np.add(x, 1, out=x)
        seen.append(x.get().sum())

    sim.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [8]


def test_a_fresh_device_meets_no_stream_or_memory_of_an_older_one() -> None:
    with bg.driver.use("sim") as old:
        xp = bg.array_namespace()
        x = xp.ones(4)
        framework = of(x, old)
        assert framework is not None
        stream = old.create_stream()
        with framework.stream_scope(stream.handle), bg.driver.use("sim") as fresh:
            assert framework.current_stream() == 0
            y = bg.array_namespace().zeros(4)
            del x
            y += 1
            assert y.get().sum() == 4
            assert not fresh.calls["mem_free_async"]
            with pytest.raises(ValueError, match="of one driver"):
                np.add(y, xp.ones(4))


def test_fresh_memory_holds_no_zeros(sim: Any, xp: Any) -> None:
    assert not np.array_equal(xp.empty(16).get(), np.zeros(16))


def test_a_stream_that_another_thread_destroys_just_now_takes_no_memory_with_it(
    sim: Any, xp: Any, monkeypatch: Any
) -> None:
    """The array's memory is on its way back to the stream when the stream goes."""
    from breakgraph.frameworks.sim import memory

    collect(xp)
    before, stream = allocated(sim), sim.create_stream()
    with of(xp.zeros(1), sim).stream_scope(int(stream)):
        y = xp.zeros(4)
    genuine = memory.is_capturing

    def destroyed_meanwhile(driver: Any, handle: int) -> bool:
        if handle == int(stream):
            stream.close()
        return genuine(driver, handle)

    monkeypatch.setattr(memory, "is_capturing", destroyed_meanwhile)
    del y
    collect(xp)
    sim.synchronize()
    assert allocated(sim) <= before + 1
