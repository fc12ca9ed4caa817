"""Where cupy's rules differ from NumPy's, the simulator's arrays keep cupy's (cupy 14: core.pyx, memory.pyx)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from breakgraph.frameworks.sim import SimArray, SimFramework

HOST = np.ones(4, np.float32)

MIXTURES: dict[str, Callable[[Any, Any], Any]] = {
    "ufunc": lambda xp, a: np.add(a, HOST),
    "operator": lambda xp, a: a + HOST,
    "reflected operator": lambda xp, a: HOST * a,
    "in place": lambda xp, a: a.__iadd__(HOST),
    "into a host array": lambda xp, a: np.add(a, 1, out=HOST),
    "concatenate": lambda xp, a: np.concatenate([a, HOST]),
    "where": lambda xp, a: np.where(a, HOST, a),
    "copyto the host": lambda xp, a: np.copyto(HOST, a),
    "copyto the device": lambda xp, a: np.copyto(a, HOST),
    "a result into the host": lambda xp, a: np.sum(a, out=HOST[0:1].reshape(())),
    "a host mask": lambda xp, a: np.add(a, 1, out=a, where=HOST > 0),
}


@pytest.mark.parametrize("mix", MIXTURES.values(), ids=MIXTURES.keys())
def test_host_and_device_arrays_do_not_mix(sim: Any, xp: Any, mix: Callable[[Any, Any], Any]) -> None:
    a = xp.zeros(4, np.float32)
    before = sim.calls["launch"]
    with pytest.raises(TypeError):
        mix(xp, a)
    assert sim.calls["launch"] == before
    assert np.array_equal(HOST, np.ones(4))


def test_host_arrays_of_no_dimension_are_scalars(sim: Any, xp: Any) -> None:
    assert (xp.ones(2, np.float32) * np.array(3, np.float32)).get().tolist() == [3, 3]


def test_a_host_array_is_not_assigned(sim: Any, xp: Any) -> None:
    a = xp.zeros(4, np.float32)
    with pytest.raises(ValueError, match="cannot be used for fill"):
        a[...] = HOST


@pytest.mark.parametrize("convert", [np.asarray, np.array, np.ascontiguousarray])
def test_nothing_turns_into_a_host_array_by_itself(sim: Any, xp: Any, convert: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"Implicit conversion to a NumPy array is not allowed.*\.get\(\)"):
        convert(xp.zeros(4))


def test_simulated_addresses_are_never_offered_to_a_real_device(sim: Any, xp: Any) -> None:
    a = xp.zeros(4)
    for name in ("__cuda_array_interface__", "__dlpack__", "__array_interface__", "__array_struct__"):
        assert not hasattr(a, name)
    assert a.data.ptr == a.region.ptr


def test_set_asks_for_the_same_dtype_and_shape(sim: Any, xp: Any) -> None:
    a = xp.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match=r"Only numpy\.ndarray"):
        a.set([[1, 2, 3], [4, 5, 6]])
    with pytest.raises(TypeError, match="float64 array cannot be set to float32 array"):
        a.set(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"Shape mismatch. Old shape: \(2, 3\), new shape: \(3, 2\)"):
        a.set(np.zeros((3, 2), np.float32))
    assert not sim.calls["memcpy_htod_async"]


def test_set_writes_c_and_f_contiguous_arrays_and_no_others(sim: Any, xp: Any) -> None:
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    a, turned = xp.zeros((2, 3), np.float32), xp.zeros((3, 2), np.float32).T
    a.set(host)
    turned.set(host)
    assert np.array_equal(a.get(), host)
    assert np.array_equal(turned.get(), host)
    with pytest.raises(RuntimeError, match="Cannot set to non-contiguous array"):
        a[:, ::2].set(host[:, ::2])


def test_set_has_read_the_host_values_when_it_returns(sim: Any, xp: Any) -> None:
    host = np.ones(4, np.float32)
    a = xp.zeros(4, np.float32)
    a.set(host)
    host[:] = 2
    assert a.get().tolist() == [1] * 4


def test_host_copies_take_a_stream(sim: Any, xp: Any) -> None:
    a, stream = xp.zeros(4, np.float32), sim.create_stream()
    sim.synchronize()
    a.set(HOST, stream=stream)
    assert a.get(stream=stream).tolist() == [1] * 4
    copies = [entry for entry in sim.log if entry.name.startswith("memcpy")]
    assert [entry.args[-1] for entry in copies] == [stream.handle] * 2


def test_out_has_exactly_the_shape_of_the_result(sim: Any, xp: Any) -> None:
    with pytest.raises(ValueError, match="Out shape is mismatched"):
        np.add(xp.ones(3), xp.ones(3), out=xp.zeros((2, 3)))


def test_an_unsafe_cast_into_out_is_refused_before_anything_runs(sim: Any, xp: Any) -> None:
    a = xp.zeros(3, np.int32)
    before = sim.calls["launch"]
    with pytest.raises(TypeError, match="casting rule 'same_kind'"):
        a += 0.5
    assert sim.calls["launch"] == before


@pytest.mark.parametrize("function", [np.nonzero, np.unique, np.argwhere, np.flatnonzero, np.linalg.norm, np.fft.fft])
def test_a_function_that_is_not_answered_says_so(sim: Any, xp: Any, function: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="no implementation found"):
        function(xp.zeros((2, 2)))


def test_results_whose_shape_depends_on_values_are_refused(sim: Any, xp: Any) -> None:
    a = xp.zeros(3, np.int64)
    for call in (lambda: np.where(a), lambda: np.repeat(a, a), lambda: np.repeat(a, repeats=a)):
        with pytest.raises(TypeError, match="no implementation found"):
            call()


@pytest.mark.parametrize("dtype", [object, "U4", "M8[s]", [("a", np.int8)], np.longdouble])
def test_only_dtypes_of_a_device_are_held(sim: Any, xp: Any, dtype: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported dtype"):
        xp.zeros(3, dtype)


def test_shapes_that_do_not_fit_are_refused_on_the_host(sim: Any, xp: Any) -> None:
    a = xp.zeros((2, 3))
    before = sim.calls["launch"]
    for call in (lambda: a + xp.empty(2), lambda: a @ a, lambda: a.reshape(4, 2), lambda: a.sum(axis=2), lambda: a[5]):
        with pytest.raises((ValueError, IndexError)):
            call()
    with pytest.raises(ValueError, match="could not broadcast"):
        a[...] = xp.empty((3, 2))
    with pytest.raises(ValueError, match="zero-size"):
        a[:0].max()
    assert sim.calls["launch"] == before


def test_arrays_are_not_hashable_and_iterate_over_rows(sim: Any, xp: Any) -> None:
    a = xp.arange(4).reshape(2, 2)
    with pytest.raises(TypeError):
        hash(a)
    assert [row.tolist() for row in a] == [[0, 1], [2, 3]]
    with pytest.raises(TypeError):
        iter(a[0, 0])


def test_like_keeps_a_subclass_and_so_do_operations(sim: Any, xp: Any) -> None:
    class Marked(SimArray):
        __slots__ = ()

    a = xp.arange(3.0)
    marked = Marked(sim, a.region, a)
    framework = SimFramework()
    assert framework.owns(marked)
    assert type(framework.like(marked, a.region, a)) is Marked
    assert type(marked[1:]) is type(marked + 1) is Marked


def test_the_namespace_has_what_arrays_answer_and_nothing_else(sim: Any, xp: Any) -> None:
    assert xp.float32 is np.float32
    assert xp.tanh is np.tanh
    assert xp.ndarray is SimArray
    assert xp.asnumpy(xp.ones(2)).tolist() == [1, 1]
    assert (xp.pi, xp.newaxis) == (np.pi, None)
    for name in ("nonzero", "linalg", "random", "load", "unique"):
        with pytest.raises(AttributeError, match=f"no function '{name}'"):
            getattr(xp, name)
