"""Each operation of the simulator's arrays is one kernel on the current stream, with its accesses declared.

So a captured forward has the nodes one would count by hand, and S7 sees what each of them touches.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from breakgraph.driver.api import CaptureMode, CaptureStatus
from breakgraph.errors import CaptureInvalidated, CaptureUnsupported
from breakgraph.frameworks import of

ONE_KERNEL: dict[str, Callable[[Any, Any], Any]] = {
    "ufunc": lambda xp, a: np.add(a, 1),
    "ufunc into out": lambda xp, a: np.add(a, a, out=a),
    "ufunc of two results": lambda xp, a: np.divmod(a, 3),
    "in place": lambda xp, a: a.__iadd__(1),
    "in place on a part": lambda xp, a: add_to_a_part(a),
    "matmul": lambda xp, a: a @ a.T,
    "reduction": lambda xp, a: a.sum(axis=0, keepdims=True),
    "reduction into out": lambda xp, a: np.max(a, axis=1, out=a[:, 0]),
    "accumulate": lambda xp, a: np.add.accumulate(a),
    "where": lambda xp, a: np.where(a, a, 0),
    "concatenate": lambda xp, a: np.concatenate([a, a, a]),
    "stack": lambda xp, a: np.stack([a, a]),
    "clip": lambda xp, a: np.clip(a, 0, 1),
    "einsum": lambda xp, a: np.einsum("ij,ij->i", a, a),
    "copy": lambda xp, a: a.copy(),
    "astype": lambda xp, a: a.astype(np.int32),
    "reshape that must copy": lambda xp, a: a.T.reshape(-1),
    "fill": lambda xp, a: a.fill(3),
    "assign a scalar": lambda xp, a: a.__setitem__((slice(None), 1), 5),
    "assign an array": lambda xp, a: a.__setitem__(Ellipsis, a[0]),
    "copyto": lambda xp, a: np.copyto(a, a[0]),
    "take": lambda xp, a: a.take(1, axis=0),
    "zeros": lambda xp, a: xp.zeros((3, 3)),
    "zeros_like": lambda xp, a: xp.zeros_like(a),
    "arange": lambda xp, a: xp.arange(9),
    "scalar": lambda xp, a: xp.asarray(3.0),
    "zero": lambda xp, a: of(a, a._driver).zero(a[:, ::2], 0),
    "copy of the protocol": lambda xp, a: of(a, a._driver).copy(a[:1], a[1:2], 0),
}

NO_KERNEL: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda xp, a: a[1:, ::2],
    "row": lambda xp, a: a[1],
    "element": lambda xp, a: a[1, 2],
    "new axis": lambda xp, a: a[:, None],
    "transpose": lambda xp, a: a.T,
    "reshape": lambda xp, a: a.reshape(-1),
    "ravel": lambda xp, a: np.ravel(a),
    "broadcast": lambda xp, a: np.broadcast_to(a, (2, 3, 4)),
    "split": lambda xp, a: np.split(a, 3),
    "view": lambda xp, a: a.view(np.int32),
    "astype that changes nothing": lambda xp, a: a.astype(np.float32, copy=False),
    "empty": lambda xp, a: xp.empty((3, 3)),
    "empty_like": lambda xp, a: xp.empty_like(a),
    "no elements": lambda xp, a: a[:0] + 1,
    "assigning a view to itself": lambda xp, a: a.__setitem__(0, a[0]),
    "shape": lambda xp, a: (np.shape(a), np.ndim(a), np.size(a), a.nbytes, a.strides),
}


def add_to_a_part(a: Any) -> None:
    a[:, 1] += 1


@pytest.mark.parametrize("operation", ONE_KERNEL.values(), ids=ONE_KERNEL.keys())
def test_an_operation_is_one_kernel(sim: Any, xp: Any, operation: Callable[[Any, Any], Any]) -> None:
    a = xp.ones((3, 4), np.float32)
    before = sim.calls["launch"]
    operation(xp, a)
    assert sim.calls["launch"] == before + 1
    assert not sim.calls["memcpy_dtoh_async"]


@pytest.mark.parametrize("operation", NO_KERNEL.values(), ids=NO_KERNEL.keys())
def test_a_view_or_a_question_is_no_kernel(sim: Any, xp: Any, operation: Callable[[Any, Any], Any]) -> None:
    a = xp.ones((3, 4), np.float32)
    before = sim.calls["launch"]
    operation(xp, a)
    assert sim.calls["launch"] == before


def test_nothing_runs_on_the_host_before_something_waits(sim: Any, xp: Any) -> None:
    """Proved by a kernel: what NumPy computes here would be seen by it at once."""
    ran = []
    a = xp.ones(4, np.float32)
    sim.launch(0, lambda view: ran.append(float(view[0])), reads=[a])
    b = a + 1
    assert ran == []
    assert float(b[0]) == 2
    assert ran == [1.0]


def test_a_queued_kernel_keeps_no_array_alive(sim: Any, xp: Any) -> None:
    a = xp.ones(4, np.float32)
    b = np.stack([a, a])
    died = weakref.ref(a)
    del a
    gc.collect()
    assert died() is None
    assert b.get().sum() == 8


def test_a_captured_kernel_reads_the_address_again_at_each_launch(sim: Any, xp: Any) -> None:
    x, out = xp.asarray(np.float32([1, 2])), xp.zeros(2, np.float32)
    sim.synchronize()
    stream = sim.create_stream()
    with of(x, sim).stream_scope(stream.handle):
        sim.stream_begin_capture(stream.handle, CaptureMode.THREAD_LOCAL)
        np.multiply(x, 10, out=out)
        out += x
        graph = sim.stream_end_capture(stream.handle)
    assert len(sim.graph_get_nodes(graph)) == 2
    assert out.get().tolist() == [0, 0]
    executable = sim.graph_instantiate(graph)
    for values in ([1, 2], [3, 4]):
        x.set(np.float32(values))
        sim.synchronize()
        sim.graph_launch(executable, stream.handle)
        sim.stream_synchronize(stream.handle)
        assert out.get().tolist() == [11 * value for value in values]
    sim.graph_exec_destroy(executable)
    sim.graph_destroy(graph)


@pytest.mark.races
def test_accesses_are_declared_so_that_a_missing_wait_is_found(sim: Any, xp: Any) -> None:
    framework = of(xp.zeros(1), sim)
    a = xp.ones((4, 4), np.float32)
    sim.synchronize()
    one, other = sim.create_stream(), sim.create_stream()
    with framework.stream_scope(one.handle):
        a[0] += 1
    with framework.stream_scope(other.handle):
        a[1] += 1
    sim.synchronize()
    assert not sim.races, "two rows are two places"
    with framework.stream_scope(one.handle):
        a[:, 0] *= 2
    with pytest.warns(match="race"), framework.stream_scope(other.handle):
        a[1] += 1
    assert len(sim.races) == 1


def test_a_kernel_never_warns_or_fails_on_its_values(sim: Any, xp: Any) -> None:
    a = xp.asarray(np.array([0.0, -1, np.inf]))
    with np.errstate(all="raise"):
        found = [np.log(a), 1 / a, a.astype(np.int8), np.sqrt(a), a // 0]
        found[0].get()
    assert np.isnan(np.sqrt(a).get()[1])
    assert all(one.shape == (3,) for one in found)


@dataclass
class Segment:
    """A stream that captures and is current, and arrays made before."""

    stream: int
    floats: Any
    truths: Any


@pytest.fixture
def segment(sim: Any, xp: Any) -> Iterator[Segment]:
    floats, truths = xp.ones(4, np.float32), xp.ones(4, bool)
    stream = sim.create_stream()
    framework = of(floats, sim)
    sim.synchronize()
    with framework.stream_scope(stream.handle):
        sim.stream_begin_capture(stream.handle, CaptureMode.THREAD_LOCAL)
        yield Segment(stream.handle, floats, truths)
        if sim.stream_is_capturing(stream.handle) == CaptureStatus.ACTIVE:
            sim.graph_destroy(sim.stream_end_capture(stream.handle))
        else:
            with pytest.raises(CaptureInvalidated):
                sim.stream_end_capture(stream.handle)


HOST_COPIES: dict[str, Callable[[Any, Segment], Any]] = {
    "get": lambda xp, segment: segment.floats.get(),
    "get of a view": lambda xp, segment: segment.floats[::2].get(),
    "item": lambda xp, segment: segment.floats.item(0),
    "float": lambda xp, segment: float(segment.floats[0]),
    "int": lambda xp, segment: int(segment.floats[0]),
    "bool": lambda xp, segment: bool(segment.truths[0]),
    "a condition": lambda xp, segment: 1 if segment.floats[0] else 2,
    "tolist": lambda xp, segment: segment.floats.tolist(),
    "set": lambda xp, segment: segment.floats.set(np.zeros(4, np.float32)),
    "asarray": lambda xp, segment: xp.asarray(np.zeros(4, np.float32)),
    "a mask": lambda xp, segment: segment.floats[segment.truths],
    "a list as an index": lambda xp, segment: segment.floats[[0, 1]],
}


@pytest.mark.parametrize("copy", HOST_COPIES.values(), ids=HOST_COPIES.keys())
def test_a_host_copy_in_a_segment_is_refused_and_the_capture_survives(
    sim: Any, xp: Any, segment: Segment, copy: Callable[[Any, Segment], Any]
) -> None:
    sim.mark("segment")
    with pytest.raises(RuntimeError, match=r"is capturing, so (D2H|H2D) transfers are disallowed: copy in a break"):
        copy(xp, segment)
    asked = [entry.name for entry in sim.log]
    asked = asked[asked.index("mark") :]
    assert not {"memcpy_dtoh_async", "memcpy_htod_async", "mem_alloc", "launch"} & set(asked)
    assert sim.stream_is_capturing(segment.stream) == CaptureStatus.ACTIVE


def test_a_repr_in_a_segment_shows_no_values_and_does_no_harm(sim: Any, segment: Segment) -> None:
    a = segment.floats
    assert repr(a) == f"<SimArray (4,) float32 at {a.data.ptr:#x}: its stream is capturing>"
    assert sim.stream_is_capturing(segment.stream) == CaptureStatus.ACTIVE


def test_waiting_for_the_stream_of_a_segment_goes_to_the_driver_and_invalidates(
    sim: Any, xp: Any, segment: int
) -> None:
    with pytest.raises(CaptureUnsupported):
        sim.stream_synchronize(segment.stream)
    assert sim.stream_is_capturing(segment.stream) == CaptureStatus.INVALIDATED


def test_an_allocation_in_a_segment_without_an_arena_is_refused_by_the_driver(
    sim: Any, xp: Any, segment: Segment
) -> None:
    """As cudaMalloc on a miss of cupy's pool would be."""
    with pytest.raises(CaptureUnsupported):
        xp.zeros(4)
    assert sim.stream_is_capturing(segment.stream) == CaptureStatus.INVALIDATED
