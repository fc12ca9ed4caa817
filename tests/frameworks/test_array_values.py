"""The simulator's arrays compute what NumPy computes, with its dtypes, shapes and views, bit for bit.

Expressions are drawn over dtypes, broadcast shapes and layouts; each function that device arrays answer has
at least one case, so that the list cannot grow unseen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import breakgraph as bg
from breakgraph.frameworks.sim.functions import ANSWERED

# What NumPy warns of on the host is not what these tests are about.
pytestmark = [
    pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

DTYPES = [np.dtype(code) for code in "?bBhHiIlLefdFD"]
BINARY = [np.add, np.subtract, np.multiply, np.true_divide, np.maximum, np.minimum, np.less, np.equal, np.hypot]
BINARY += [np.logical_and, np.bitwise_xor, np.copysign, np.divmod, np.floor_divide]
UNARY = [np.negative, np.absolute, np.exp, np.tanh, np.sqrt, np.isnan, np.sign, np.square, np.floor, np.modf]
REDUCTIONS = ["sum", "prod", "max", "min", "mean", "std", "var", "any", "all", "argmax", "argmin", "ptp"]

# A device per example would hide nothing and cost much: one serves all examples of a test.
searching = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def same(array: Any, expected: Any) -> None:
    """Assert that a device array has exactly the values, shape and dtype of a host result."""
    expected = np.asarray(expected)
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(array.get(), expected)


def same_outcome(on_device: Callable[[], Any], on_host: Callable[[], Any]) -> None:
    """Assert that both yield the same, or both refuse."""
    with np.errstate(all="ignore"):
        try:
            expected = on_host()
        except (TypeError, ValueError, OverflowError):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                on_device()
            return
        found = on_device()
    for one, other in zip(*map(_as_tuple, (found, expected)), strict=True):
        same(one, other)


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


@st.composite
def pairs(draw: st.DrawFn, count: int = 1, dtypes: list[Any] = DTYPES) -> Any:
    """Host arrays of broadcastable shapes, and for each a layout to put it on the device in."""
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=3, max_side=4, min_side=0))
    return [
        (draw(hnp.arrays(draw(st.sampled_from(dtypes)), shape)), draw(st.sampled_from(["C", "F", "gaps", "back"])))
        for shape in shapes.input_shapes
    ]


def on_device(xp: Any, host: Any, layout: str) -> Any:
    """A device array with these values and a layout: C, F, with gaps between elements, or backwards."""
    if layout == "F" and host.ndim:
        return xp.asarray(np.ascontiguousarray(host.T)).T
    if layout == "gaps" and host.ndim:
        wide = xp.zeros((*host.shape[:-1], 2 * host.shape[-1]), host.dtype)
        wide[..., ::2] = xp.asarray(host)
        return wide[..., ::2]
    if layout == "back" and host.ndim:
        return xp.asarray(np.ascontiguousarray(host[::-1]))[::-1]
    return xp.asarray(host)


@searching
@given(operands=pairs(2), ufunc=st.sampled_from(BINARY))
def test_binary_ufuncs(sim: Any, xp: Any, operands: Any, ufunc: Any) -> None:
    (a, _), (b, _) = operands
    same_outcome(lambda: ufunc(*(on_device(xp, *one) for one in operands)), lambda: ufunc(a, b))


@searching
@given(operands=pairs(1), ufunc=st.sampled_from(UNARY))
def test_unary_ufuncs(sim: Any, xp: Any, operands: Any, ufunc: Any) -> None:
    ((a, layout),) = operands
    same_outcome(lambda: ufunc(on_device(xp, a, layout)), lambda: ufunc(a))


@searching
@given(
    operands=pairs(1),
    scalar=st.sampled_from([2, -1, 0.5, True, 1j, 300, np.float32(2), np.int8(3)]),
    left=st.booleans(),
)
def test_scalars_promote_as_in_numpy(sim: Any, xp: Any, operands: Any, scalar: Any, left: bool) -> None:
    ((a, layout),) = operands
    order = (lambda x: scalar * x) if left else (lambda x: x * scalar)
    same_outcome(lambda: order(on_device(xp, a, layout)), lambda: order(a))


@searching
@given(operands=pairs(3), ufunc=st.sampled_from([np.add, np.multiply, np.maximum]))
def test_out_and_where_and_casting(sim: Any, xp: Any, operands: Any, ufunc: Any) -> None:
    (a, la), (b, lb), (c, _lc) = operands
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape)
    expected, out = np.zeros(shape, c.dtype), xp.zeros(shape, c.dtype)
    mask = (np.arange(expected.size) % 2 == 0).reshape(shape)
    wide_a = np.array(np.broadcast_to(a, shape))  # cupy's rule: out has exactly the result's shape
    device = [on_device(xp, wide_a, la), on_device(xp, b, lb)]
    same_outcome(
        lambda: ufunc(*device, out=out, where=xp.asarray(mask)), lambda: ufunc(wide_a, b, out=expected, where=mask)
    )
    same(out, expected)
    same_outcome(
        lambda: ufunc(*device, out=out, casting="unsafe"), lambda: ufunc(wide_a, b, out=expected, casting="unsafe")
    )


@searching
@given(operands=pairs(1, [np.dtype(code) for code in "?bBiIlfdD"]), name=st.sampled_from(REDUCTIONS), data=st.data())
def test_reductions(sim: Any, xp: Any, operands: Any, name: str, data: st.DataObject) -> None:
    ((a, layout),) = operands
    axis = data.draw(st.sampled_from([None, *range(-a.ndim, a.ndim)]))
    options = {"axis": axis, "keepdims": data.draw(st.booleans())}
    function = getattr(np, name)
    host = np.array(a, order="C")  # NumPy's order of summation depends on the layout
    array = xp.asarray(host) if name in ("sum", "mean", "std", "var", "prod") else on_device(xp, a, layout)
    same_outcome(lambda: function(array, **options), lambda: function(host, **options))


@searching
@given(operands=pairs(1), method=st.sampled_from(["reduce", "accumulate"]), ufunc=st.sampled_from([np.add, np.maximum]))
def test_methods_of_ufuncs(sim: Any, xp: Any, operands: Any, method: str, ufunc: Any) -> None:
    ((a, _),) = operands
    same_outcome(lambda: getattr(ufunc, method)(xp.asarray(a)), lambda: getattr(ufunc, method)(a))


@searching
@given(operands=pairs(1), data=st.data())
def test_basic_indexing_is_a_view(sim: Any, xp: Any, operands: Any, data: st.DataObject) -> None:
    ((a, layout),) = operands
    index = data.draw(hnp.basic_indices(a.shape, allow_newaxis=True, allow_ellipsis=True))
    array = on_device(xp, a, layout)
    launches = sim.calls["launch"]
    part = array[index]
    assert sim.calls["launch"] == launches
    same(part, a[index])
    part[...] = 1
    a[index] = 1
    same(array, a)


@searching
@given(operands=pairs(1), data=st.data())
def test_assignment_broadcasts_and_casts(sim: Any, xp: Any, operands: Any, data: st.DataObject) -> None:
    ((a, layout),) = operands
    index = data.draw(hnp.basic_indices(a.shape, allow_newaxis=True, allow_ellipsis=True))
    shape = np.shape(a[index])
    value = data.draw(hnp.arrays(data.draw(st.sampled_from(DTYPES)), data.draw(_broadcastable_to(shape))))
    array = on_device(xp, a, layout)
    with np.errstate(all="ignore"):
        array[index] = xp.asarray(value)
        a[index] = value
        array.get()
    same(array, a)


@st.composite
def _broadcastable_to(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    kept = draw(st.integers(0, len(shape)))
    return tuple(extent if draw(st.booleans()) else 1 for extent in shape[kept:])


@searching
@given(data=st.data())
def test_index_arrays_read_and_write_elements(sim: Any, xp: Any, data: st.DataObject) -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    rows = data.draw(
        hnp.arrays(np.int64, data.draw(hnp.array_shapes(max_dims=2, max_side=3)), elements=st.integers(-4, 3))
    )
    columns = data.draw(st.sampled_from([rows, 2, slice(1, 5, 2), None, ...]))
    array = xp.asarray(a)
    device = (xp.asarray(rows), xp.asarray(columns) if columns is rows else columns)
    same(array[device], a[rows, columns])
    array[device] = 7
    a[rows, columns] = 7
    same(array, a)


def test_boolean_arrays_read_what_is_true_and_write_where_it_is(sim: Any, xp: Any) -> None:
    a = np.arange(12.0).reshape(3, 4)
    array = xp.asarray(a)
    same(array[array > 4], a[a > 4])
    same(array[array[:, 0] > 3], a[a[:, 0] > 3])
    same(array[array > 99], a[a > 99])
    array[array > 4], a[a > 4] = -1, -1
    array[array[:, 0] == 0], a[a[:, 0] == 0] = xp.arange(4.0), np.arange(4.0)
    same(array, a)


def test_lists_index_as_arrays_do(sim: Any, xp: Any) -> None:
    a = np.arange(12.0).reshape(3, 4)
    same(xp.asarray(a)[[2, 0]], a[[2, 0]])
    same(xp.asarray(a)[[]], a[[]])
    same(xp.asarray(a)[:, np.array([1, 1, 3])], a[:, [1, 1, 3]])


def test_an_index_out_of_range_wraps_around_as_on_cupy(sim: Any, xp: Any) -> None:
    array = xp.arange(4.0)
    same(array[xp.asarray([5, -6, 4])], [1.0, 2.0, 0.0])
    same(array.take(xp.asarray([9])), [1.0])
    with pytest.raises(IndexError):
        array[4]


@searching
@given(
    operands=pairs(1),
    name=st.sampled_from(["add", "sub", "mul", "matmul", "pow", "mod", "lt", "ge", "and_", "or_"]),
)
def test_operators_and_their_in_place_forms(sim: Any, xp: Any, operands: Any, name: str) -> None:
    ((a, layout),) = operands
    plain, in_place = getattr(operator, name), getattr(operator, "i" + name.rstrip("_"), None)
    b = np.ones_like(a)
    array, other = on_device(xp, a, layout), on_device(xp, b, "C")
    same_outcome(lambda: plain(array, other), lambda: plain(a, b))
    if in_place and name != "matmul":
        same_outcome(lambda: in_place(array, other), lambda: in_place(a, b))
        same(array, a)


M = np.arange(12, dtype=np.float32).reshape(3, 4)
N = np.array([[1.5, -2, np.nan], [0, np.inf, 3]])
MASK = M > 4
ROWS = np.array([2, 0, 1])


def each(names: str, *args: Any, **kwargs: Any) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A case for each of the names, with the same arguments."""
    return [(name, args, kwargs) for name in names.split()]


#: Function, arguments, keywords. Host arrays among them become device arrays for the device.
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *each("amax amin max min all any ptp argmax argmin count_nonzero", M, axis=1),
    *each("sum prod mean std var cumsum cumprod median average diff sort", M, axis=0),
    *each("nansum nanmax nanmin nanmean nan_to_num isposinf isneginf fix", N),
    *each("around round", N, 1),
    *each("vstack hstack dstack column_stack stack concatenate", [M, M + 1]),
    *each("tril triu argsort copy ravel transpose diagonal diag trace flip fliplr flipud sinc", M),
    *each("rot90 matrix_transpose permute_dims real imag angle atleast_1d atleast_2d atleast_3d", M),
    *each("shape ndim size iscomplexobj isrealobj", M),
    *each("split array_split repeat roll", M, 2, axis=1),
    *each("hsplit tile", M, 2),
    *each("dot kron", M, M.T),
    *each("vdot inner outer", M[0], M[1]),
    *each("isclose allclose array_equal append common_type result_type", M, M),
    *each("empty_like zeros_like ones_like", M, np.float16),
    *each("full_like", M, 3),
    *each("full_like", M, 3, shape=(2, 2), dtype=np.int8),
    *each("concatenate", [M, M], None),
    *each("clip", M, 2, M[0] + 5),
    *each("where", MASK, M, 0),
    *each("select", [MASK, M < 2], [M, M * 2], 9),
    *each("pad", M, ((1, 0), (0, 2)), constant_values=5),
    *each("vsplit", M, 3),
    *each("dsplit", M[None], 2),
    *each("take", M, ROWS, 1),
    *each("take_along_axis", M, ROWS[:, None], 1),
    *each("choose", ROWS, [M[0, :3], M[1, :3], M[2, :3]]),
    *each("searchsorted", M[0], M[:, 1]),
    *each("interp", M[1], M[0], M[2]),
    *each("einsum", "ij,kj->ik", M, M),
    *each("tensordot", M, M, 2),
    *each("cross", M[:, :3], M[:, 1:]),
    *each("reshape", M, (2, -1)),
    *each("reshape", M.T, (2, -1)),
    *each("swapaxes", M, 0, 1),
    *each("moveaxis", M[None], 0, 2),
    *each("rollaxis", M, 1),
    *each("squeeze", M[None]),
    *each("expand_dims", M, 1),
    *each("broadcast_to", M[0], (2, 4)),
    *each("broadcast_arrays", M, M[0]),
    *each("can_cast", M[0], np.float64),
]
#: Functions that write an argument: the first array is compared afterwards.
WRITING: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *each("copyto", M, M[0]),
    *each("copyto", M, -1, where=MASK),
    *each("put", M, ROWS, M[0, :3] + 50),
    *each("putmask", M, MASK, -1),
    *each("place", M, MASK, M[0]),
    *each("put_along_axis", M, ROWS[:, None], 8, 1),
    *each("fill_diagonal", M, 5),
]


def transfer(xp: Any, node: Any) -> Any:
    """The same arguments, with device arrays for host arrays."""
    if isinstance(node, np.ndarray):
        return xp.asarray(np.ascontiguousarray(node))
    return type(node)(transfer(xp, item) for item in node) if type(node) in (tuple, list) else node


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_functions(sim: Any, xp: Any, name: str, args: Any, kwargs: Any) -> None:
    function = getattr(np, name, None)
    if function is None:
        pytest.skip(f"this NumPy has no {name}")
    found, expected = function(*transfer(xp, args), **kwargs), function(*args, **kwargs)
    if name == "empty_like":
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        return
    for one, other in zip(*map(_as_tuple, (found, expected)), strict=True):
        if bg.frameworks.of(one, sim):
            same(one, other)
        else:
            assert one == other


@pytest.mark.parametrize(("name", "args", "kwargs"), WRITING, ids=[f"{case[0]}-{i}" for i, case in enumerate(WRITING)])
def test_functions_that_write_their_first_argument(sim: Any, xp: Any, name: str, args: Any, kwargs: Any) -> None:
    host, (array, *rest) = args[0].copy(), transfer(xp, args)
    getattr(np, name)(host, *args[1:], **kwargs)
    assert getattr(np, name)(array, *rest, **transfer_options(xp, kwargs)) is None
    same(array, host)


def transfer_options(xp: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: transfer(xp, value) for key, value in kwargs.items()}


OUT = [("sum", (M, 0)), ("clip", (M, 1, 5)), ("argmax", (M, 1)), ("concatenate", ([M, M], 1)), ("take", (M, ROWS, 1))]


@pytest.mark.parametrize("by_position", [False, True], ids=["by keyword", "by position"])
@pytest.mark.parametrize(("name", "args"), OUT, ids=[case[0] for case in OUT])
def test_out_is_written_and_returned(sim: Any, xp: Any, name: str, args: Any, by_position: bool) -> None:
    function = getattr(np, name)
    expected = function(*args)
    out = xp.zeros(expected.shape, expected.dtype)
    passed = transfer(xp, args)
    if by_position:
        padding = {"sum": (None,)}.get(name, ())
        found = function(*passed, *padding, out)
    else:
        found = function(*passed, out=out)
    assert found is out
    same(out, expected)


def test_every_function_that_is_answered_has_a_case(sim: Any) -> None:
    tested = {name for name, *_ in [*CASES, *WRITING]}
    here = {name for name in ANSWERED if hasattr(np, name)}
    assert here - tested - {"unstack"} == set()
    assert tested <= ANSWERED


@pytest.mark.skipif(not hasattr(np, "unstack"), reason="NumPy has it from 2.1 on")
def test_unstack(sim: Any, xp: Any) -> None:
    for one, other in zip(np.unstack(xp.asarray(M)), M, strict=True):
        same(one, other)


def constructions() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    yield "zeros", lambda xp: xp.zeros((2, 3), np.int16)
    yield "ones", lambda xp: xp.ones(4)
    yield "full", lambda xp: xp.full((2,), 7)
    yield "full of a float", lambda xp: xp.full((2,), 0.5, np.float32)
    yield "arange", lambda xp: xp.arange(5)
    yield "arange with bounds", lambda xp: xp.arange(2, 9, 3, dtype=np.float32)
    yield "arange with a step", lambda xp: xp.arange(6, step=2)
    yield "linspace", lambda xp: xp.linspace(0, 1, 5)
    yield "eye", lambda xp: xp.eye(3, 4, 1, dtype=np.float32)
    yield "identity", lambda xp: xp.identity(3)
    yield "a scalar", lambda xp: xp.asarray(2.5)
    yield "a list", lambda xp: xp.array([[1, 2], [3, 4]], dtype=np.float32)
    yield "a list with ndmin", lambda xp: xp.array([1, 2], ndmin=3)
    yield "an array of arrays", lambda xp: xp.array([xp.ones(2), xp.zeros(2)])
    yield "no elements", lambda xp: xp.zeros((0, 3), np.float32)


@pytest.mark.parametrize(("construct"), [pytest.param(f, id=name) for name, f in constructions()])
def test_constructors(sim: Any, xp: Any, construct: Callable[[Any], Any]) -> None:
    same(construct(xp), construct(np))


def test_asarray_takes_a_device_array_as_it_is_and_array_copies_it(sim: Any, xp: Any) -> None:
    a = xp.arange(4.0)
    assert xp.asarray(a) is a
    assert xp.asarray(a, a.dtype) is a
    same(xp.asarray(a, np.float32), np.arange(4, dtype=np.float32))
    copied = xp.array(a)
    a[0] = 9
    same(copied, np.arange(4.0))
    turned = xp.arange(6.0).reshape(2, 3).T
    assert xp.ascontiguousarray(turned).flags.c_contiguous
    assert xp.ascontiguousarray(a) is a


METHODS: dict[str, Callable[[Any], Any]] = {
    "astype": lambda a: a.astype(np.int8),
    "copy": lambda a: a.T.copy(),
    "flatten": lambda a: a.T.flatten(),
    "reshape": lambda a: a.reshape(2, 6),
    "reshape in F order": lambda a: a.reshape((2, 6), order="F"),
    "transpose": lambda a: a.transpose(1, 0),
    "T": lambda a: a.T,
    "mT": lambda a: a.mT,
    "view": lambda a: a.view(np.uint32),
    "view of other width": lambda a: a.view(np.uint8),
    "real": lambda a: a.real,
    "dot": lambda a: a.dot(a.T),
    "matmul": lambda a: a @ a.T,
    "swapaxes": lambda a: a.swapaxes(0, 1),
    "clip": lambda a: a.clip(1, 5),
    "round": lambda a: (a / 3).round(1),
    "conj": lambda a: a.conj(),
    "take": lambda a: a.take(1, axis=0),
    "cumsum": lambda a: a.cumsum(axis=1),
    "argsort": lambda a: (-a).argsort(axis=1),
    "repeat": lambda a: a.repeat(2, axis=0),
    "diagonal": lambda a: a.diagonal(),
    "negative": lambda a: -a,
    "rows": lambda a: [row + 1 for row in a][1],
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_methods(sim: Any, xp: Any, method: Callable[[Any], Any]) -> None:
    same(method(xp.asarray(M)), method(M))


def test_host_values_come_out_as_python_scalars_and_lists(sim: Any, xp: Any) -> None:
    a = xp.asarray(M)
    assert (float(a[1, 1]), int(a[2, 3]), bool(a[0, 0]), complex(a[0, 1])) == (5.0, 11, False, 1 + 0j)
    assert a.item(1, 2) == 6.0
    assert a[0].tolist() == [0, 1, 2, 3]
    assert len(a) == 3
    assert [1, 2, 3][xp.asarray(2)] == 3
    assert repr(a) == repr(M)
    with pytest.raises(TypeError):
        len(a[0, 0])
    with pytest.raises(ValueError, match="ambiguous"):
        bool(a)


def test_flags_and_sizes_are_as_in_numpy(sim: Any, xp: Any) -> None:
    for of in (lambda a: a, lambda a: a.T, lambda a: a[:, ::2], lambda a: a[:1], lambda a: a[:0]):
        array, host = of(xp.asarray(M)), of(M)
        assert (array.flags.c_contiguous, array.flags.f_contiguous) == (
            host.flags.c_contiguous,
            host.flags.f_contiguous,
        )
        assert (array.ndim, array.size, array.itemsize, array.nbytes) == (
            host.ndim,
            host.size,
            host.itemsize,
            host.nbytes,
        )
