"""Products of cupy's arrays by cuBLAS: NumPy's rules, handles that no two calls share, workspaces that the arena owns.

On stand-ins for cupy and cuBLAS in host memory (`blas`), which hold every call against what those refuse. On a GPU
`test_cublas` holds the same against the libraries themselves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from blas import ComputeType, CudaDataType, FakeCublas, FakeCupy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Order, in_threads, zeros

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.driver.contexts import in_context
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.cupy import CupyFramework, gemm, matmul
from breakgraph.frameworks.cupy import cublas as cublas_module

MIB = 1 << 20
with_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class OnSim(CupyFramework):
    driver_name = "sim"

    def check_context(self, driver: Any) -> None:
        """Any simulated context will do."""


@pytest.fixture
def cupy(sim: Any, monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """A stand-in for cupy that takes part in captures on the simulator."""
    module = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(frameworks, "_KNOWN", {name: one for name, one in frameworks._KNOWN.items() if name != "cupy"})
    frameworks.register(OnSim())
    return module


@pytest.fixture
def blas(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublas]:
    """A stand-in for nvmath's cuBLAS. No handle may be lost."""
    nvmath, bindings, calls = ModuleType("nvmath"), ModuleType("nvmath.bindings"), FakeCublas()
    nvmath.CudaDataType = CudaDataType  # type: ignore[attr-defined]
    bindings.cublas = calls  # type: ignore[attr-defined]
    for module in (nvmath, bindings, calls):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cublas_module, "_cublas", cache(cublas_module.Cublas))
    yield calls
    free = cublas_module.cublas()._free.values()
    assert sorted(handle for handles in free for handle in handles) == sorted(calls.handles)


def numbers(cupy: FakeCupy, shape: Any, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Small integers, so that every dtype holds their products exactly."""
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(-3, 4, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-3, 4, shape)
    return cupy.asarray(values.astype(dtype))


# --- NumPy's rules --------------------------------------------------------------------------------------------------
SHAPES = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 2)),
    ((5, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((1, 3), (3, 1)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((0,), (0,)),
    ((3, 2, 0), (0, 4)),
    ((0, 2, 3), (1, 3, 4)),
    ((2, 3), (3, 0)),
]
DTYPES = [np.float16, np.float32, np.float64, np.complex64, np.complex128]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_has_numpys_values_shape_and_dtype(
    cupy: FakeCupy, blas: FakeCublas, left: Any, right: Any, dtype: Any
) -> None:
    a, b = numbers(cupy, left, dtype), numbers(cupy, right, dtype, 1)
    product = matmul(a, b)
    expected = np.matmul(a.get(), b.get())
    assert (product.dtype, product.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(product, expected)
    assert cupy.own_products == 0


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", [*DTYPES, np.int8, np.int64, np.bool_])
def test_dtypes_promote_as_numpys_do(cupy: FakeCupy, blas: FakeCublas, left: Any, right: Any) -> None:
    a, b = numbers(cupy, (2, 3), left), numbers(cupy, (3, 4), right, 1)
    for one, other in ((a, b), (b.T, a.T)):
        product, expected = matmul(one, other), np.matmul(one.get(), other.get())
        assert product.dtype == expected.dtype
        np.testing.assert_array_equal(product, expected)
    assert cupy.own_products == 0


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, np.int64, np.bool_])
def test_integers_are_multiplied_by_cupys_own_kernels(cupy: FakeCupy, blas: FakeCublas, dtype: Any) -> None:
    a, b = numbers(cupy, (2, 3), dtype), numbers(cupy, (3, 4), dtype, 1)
    out = cupy.empty((2, 4), dtype)
    assert matmul(a, b, out) is out
    np.testing.assert_array_equal(out, np.matmul(a.get(), b.get()))
    assert (cupy.own_products, blas.made) == (1, [])
    with pytest.raises(TypeError, match="gemm multiplies floating-point arrays"):
        gemm(a, b)


def test_what_is_no_array_of_cupys_is_cupys_to_refuse(cupy: FakeCupy, blas: FakeCublas) -> None:
    a = numbers(cupy, (3, 3))
    for other in (np.zeros((3, 3), np.float32), [[1.0]], 2.0):
        with pytest.raises(TypeError, match="Unsupported type"):
            matmul(a, other)
    with pytest.raises(TypeError, match="out is a ndarray, and not an array of cupy's"):
        matmul(a, a, np.zeros((3, 3), np.float32))


OUTS = {
    "C order": lambda cupy, shape: cupy.empty(shape, np.float32),
    "Fortran order": lambda cupy, shape: cupy.empty(shape[::-1], np.float32).T,
    "every other column": lambda cupy, shape: cupy.empty((*shape[:-1], shape[-1] * 2), np.float32)[..., ::2],
    "backwards": lambda cupy, shape: cupy.empty(shape, np.float32)[::-1],
    "part of another": lambda cupy, shape: cupy.empty((*shape[:-1], shape[-1] + 3), np.float32)[..., 2:-1],
    "halves": lambda cupy, shape: cupy.empty(shape, np.float16),
    "doubles": lambda cupy, shape: cupy.empty(shape, np.float64),
    "complex numbers": lambda cupy, shape: cupy.empty(shape, np.complex64),
    "more axes": lambda cupy, shape: cupy.empty((3, *shape), np.float32),
}


@pytest.mark.parametrize("make", OUTS.values(), ids=OUTS)
@pytest.mark.parametrize(("left", "right"), [((4, 3), (3, 4)), ((4, 2, 3), (4, 3, 5)), ((4, 5, 3), (3,))], ids=str)
def test_out_may_lie_anywhere_and_be_of_another_dtype(
    cupy: FakeCupy, blas: FakeCublas, make: Any, left: Any, right: Any
) -> None:
    a, b = numbers(cupy, left), numbers(cupy, right, seed=1)
    expected = np.matmul(a.get(), b.get())
    out = make(cupy, expected.shape)
    assert matmul(a, b, out) is out
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


@pytest.mark.parametrize(
    "place",
    [lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: x[:, ::-1].T],
    ids=["itself", "its transpose", "backwards", "turned"],
)
def test_out_may_overlap_the_operands(cupy: FakeCupy, blas: FakeCublas, place: Any) -> None:
    for operands in (lambda x, y: (x, y), lambda x, y: (y, x), lambda x, y: (x, x)):
        x, y = numbers(cupy, (4, 4)), numbers(cupy, (4, 4), seed=1)
        a, b = operands(x, y)
        expected = np.matmul(a.get(), b.get())
        matmul(a, b, place(x))
        np.testing.assert_array_equal(place(x), expected)


def test_out_beside_the_operands_in_one_array_is_written_in_place(cupy: FakeCupy, blas: FakeCublas) -> None:
    whole = numbers(cupy, (4, 12))
    a, b, out = whole[:, :4], whole[:, 4:8], whole[:, 8:]
    expected = np.matmul(a.get(), b.get())
    matmul(a, b, out)
    np.testing.assert_array_equal(out, expected)
    assert blas.made[0].call.ldc == 12


@given(data=st.data())
@with_fixtures
def test_shapes_are_refused_where_numpy_refuses_them(cupy: FakeCupy, blas: FakeCublas, data: st.DataObject) -> None:
    shapes = st.lists(st.integers(0, 3), max_size=4)
    a, b = (numbers(cupy, data.draw(shapes)) for _ in range(2))
    out = cupy.empty(data.draw(shapes), np.float32)
    expected = np.zeros(out.shape, np.float32)
    try:
        needed = np.matmul(a.get(), b.get())
        if out.ndim < needed.ndim:  # NumPy then takes axes of the operands for others than they are
            raise ValueError
        np.matmul(a.get(), b.get(), expected)
    except ValueError:
        with pytest.raises(ValueError, match=r"shape|scalars"):
            matmul(a, b, out)
        assert (out == 77).all()
    else:
        matmul(a, b, out)
        np.testing.assert_array_equal(out, expected)


def test_out_of_another_kind_is_refused_and_not_written(cupy: FakeCupy, blas: FakeCublas) -> None:
    a, out = numbers(cupy, (3, 3)), cupy.empty((3, 3), np.int32)
    with pytest.raises(TypeError, match="a product of float32 is not cast to int32"):
        matmul(a, a, out)
    with pytest.raises(TypeError, match="a product of complex64 is not cast to float32"):
        matmul(a, numbers(cupy, (3, 3), np.complex64), cupy.empty((3, 3), np.float32))
    assert (out == 77).all()
    assert not blas.made


# --- gemm -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0, 1, -2])
@pytest.mark.parametrize("make", [OUTS[name] for name in ("C order", "Fortran order", "every other column")])
def test_gemm_scales_and_adds(cupy: FakeCupy, blas: FakeCublas, dtype: Any, beta: Any, make: Any) -> None:
    a, b = numbers(cupy, (2, 3), dtype), numbers(cupy, (3, 4), dtype, 1)
    c = make(cupy, (2, 4)).astype(dtype)
    c[...] = numbers(cupy, (2, 4), dtype, 2)
    expected = 3 * (a.get() @ b.get()) + beta * c.get()
    assert gemm(a, b, c, alpha=3, beta=beta) is c
    np.testing.assert_array_equal(c, expected)


def test_gemm_takes_complex_factors_for_complex_numbers_alone(cupy: FakeCupy, blas: FakeCublas) -> None:
    a, b = numbers(cupy, (2, 3), np.complex64), numbers(cupy, (3, 4), np.complex64, 1)
    np.testing.assert_array_equal(gemm(a, b, alpha=2j), 2j * (a.get() @ b.get()))
    with pytest.raises(TypeError, match="complex"):
        gemm(a.real, b.real, alpha=2j)


def test_gemm_with_a_beta_reads_c_though_it_overlaps(cupy: FakeCupy, blas: FakeCublas) -> None:
    c, b = numbers(cupy, (4, 4)), numbers(cupy, (4, 4), seed=1)
    expected = c.get() @ b.get() + c.get()
    gemm(c, b, c, beta=1)
    np.testing.assert_array_equal(c, expected)


def test_gemm_without_a_beta_does_not_read_c(cupy: FakeCupy, blas: FakeCublas) -> None:
    for inner in (3, 0):
        a, b, c = numbers(cupy, (2, inner)), numbers(cupy, (inner, 4)), cupy.empty((2, 4), np.float32)
        c.fill(np.nan)
        np.testing.assert_array_equal(gemm(a, b, c), a.get() @ b.get())


def test_gemm_over_no_elements_scales_c(cupy: FakeCupy, blas: FakeCublas) -> None:
    c = numbers(cupy, (2, 4))
    expected = 2 * c.get()
    np.testing.assert_array_equal(gemm(numbers(cupy, (2, 0)), numbers(cupy, (0, 4)), c, beta=2), expected)


def test_gemm_refuses_a_c_that_is_not_the_products(cupy: FakeCupy, blas: FakeCublas) -> None:
    a = numbers(cupy, (3, 3))
    with pytest.raises(ValueError, match="has a beta and no c"):
        gemm(a, a, beta=1)
    with pytest.raises(TypeError, match="c is of float64, and the product of float32"):
        gemm(a, a, cupy.empty((3, 3), np.float64))
    with pytest.raises(ValueError, match=r"c has shape \(2, 3, 3\), and the product \(3, 3\)"):
        gemm(a, a, cupy.empty((2, 3, 3), np.float32))


# --- what cuBLAS is told --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "setting", "compute"),
    [
        (np.float32, "DEFAULT", ComputeType.COMPUTE_32F),
        (np.float32, "TF32", ComputeType.COMPUTE_32F_FAST_TF32),
        (np.complex64, "TF32", ComputeType.COMPUTE_32F_FAST_TF32),
        (np.float32, "PEDANTIC", ComputeType.COMPUTE_32F_PEDANTIC),
        (np.float16, "DEFAULT", ComputeType.COMPUTE_32F),
        (np.float16, "TF32", ComputeType.COMPUTE_32F),
        (np.float64, "TF32", ComputeType.COMPUTE_64F),
        (np.complex128, "PEDANTIC", ComputeType.COMPUTE_64F_PEDANTIC),
    ],
)
def test_products_are_as_precise_as_cupy_is_set_to(
    cupy: FakeCupy, blas: FakeCublas, dtype: Any, setting: str, compute: Any
) -> None:
    cupy.compute_types[np.dtype(dtype)] = getattr(cupy, f"COMPUTE_TYPE_{setting}")
    a = numbers(cupy, (3, 3), dtype)
    matmul(a, a)
    matmul(a[None, :2], cupy.asarray(np.stack([a, a])))
    assert {made.compute for made in blas.made} == {compute}


@pytest.mark.parametrize(("capability", "size"), [("75", 4), ("89", 4), ("90", 32), ("100", 32), ("120", 32)])
def test_outside_segments_the_workspace_is_of_cupys_pool_in_the_size_for_the_device(
    cupy: FakeCupy, blas: FakeCublas, capability: str, size: int
) -> None:
    cupy.cuda.capability = capability
    a = numbers(cupy, (3, 3))
    matmul(a, a)
    assert blas.made[0].workspace[1] == size * MIB
    assert cupy.cuda.pool == [size * MIB]


def test_a_product_is_on_the_current_stream_with_the_handle_that_was_free(
    cupy: FakeCupy, blas: FakeCublas, sim: Any
) -> None:
    a, side = numbers(cupy, (3, 3)), sim.create_stream()
    matmul(a, a)
    with cupy.cuda.Stream.from_external(side):
        matmul(a, a)
    matmul(a, a)
    assert [made.stream for made in blas.made] == [0, int(side), 0]
    assert len(blas.handles) == 1


def test_products_at_once_have_handles_of_their_own(cupy: FakeCupy, blas: FakeCublas, sim: Any) -> None:
    a, both = numbers(cupy, (3, 3)), threading.Barrier(2)
    blas.at_work = lambda: both.wait(20)
    for outcome in in_threads(sim, *[lambda: matmul(a, a)] * 2):
        np.testing.assert_array_equal(outcome, a @ a)
    blas.at_work = lambda: None
    for _ in range(6):
        in_threads(sim, lambda: matmul(a, a))
    assert len(blas.handles) == 2, "threads that come later take what is free"


def test_a_product_that_fails_gives_its_handle_back(cupy: FakeCupy, blas: FakeCublas) -> None:
    a = numbers(cupy, (3, 3))

    def fail() -> None:
        raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")

    blas.at_work = fail
    for _ in range(3):
        with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
            matmul(a, a)
    blas.at_work = lambda: None
    np.testing.assert_array_equal(matmul(a, a), a @ a)
    assert len(blas.handles) == 1


def test_a_handle_serves_its_own_context_alone(cupy: FakeCupy, blas: FakeCublas, sim: Any) -> None:
    a, here = numbers(cupy, (3, 3)), sim.ctx_get_current()
    matmul(a, a)
    other = sim.ctx_create(0)
    sim.ctx_pop_current()
    with in_context(sim, other):
        matmul(a, a)
    assert sim.ctx_get_current() == here
    matmul(a, a)
    sim.ctx_destroy(other)
    assert [made.handle for made in blas.made] == [1, 2, 1]


# --- in segments ----------------------------------------------------------------------------------------------------
def captured(work: Any, xp: Any, **options: Any) -> Any:
    """A capture of some work, beside work on the simulator that can be recorded."""
    with bg.capture(**options) as graph:
        zeros(xp) + 1
        work()
    return graph


def test_the_namespace_multiplies_by_cupys_own_but_in_segments(cupy: FakeCupy, blas: FakeCublas, xp: Any) -> None:
    namespace, a = OnSim().namespace(), numbers(cupy, (3, 3))
    counts = []

    def multiply() -> None:
        np.testing.assert_array_equal(namespace.matmul(a, a), a @ a)
        np.testing.assert_array_equal(namespace.matmul(a, a, out=cupy.empty((3, 3), np.float32)), a @ a)
        counts.append((cupy.own_products, len(blas.made)))

    def forward() -> None:
        multiply()
        bg.break_here(multiply, bg.IN_PLACE)
        multiply()

    multiply()
    graph = captured(forward, xp)
    multiply()
    graph.replay()
    assert counts == [(2, 0), (2, 2), (4, 2), (4, 4), (6, 4), (8, 4)]


def test_in_a_segment_the_workspace_is_the_arenas_and_goes_back_at_its_end(
    cupy: FakeCupy, blas: FakeCublas, xp: Any
) -> None:
    arena, a = bg.Arena(), numbers(cupy, (3, 3))
    used = []

    def forward() -> None:
        for _ in range(3):
            matmul(a, a)
        used.append(arena.used >= 32 * MIB)
        bg.break_here(lambda: used.append(arena.used < MIB), bg.IN_PLACE)
        used.append(arena.used < MIB)
        matmul(a, a)

    graph = captured(forward, xp, arena=arena)
    assert used == [True, True, True]
    assert len({made.workspace for made in blas.made}) == 1
    assert blas.made[0].workspace[1] == 32 * MIB
    assert graph.survivors == ()
    assert arena.used < MIB
    assert 32 * MIB <= arena.peak < 33 * MIB
    assert cupy.cuda.pool == []


def test_a_workspace_outlives_its_product_while_work_is_forked(
    cupy: FakeCupy, blas: FakeCublas, xp: Any, sim: Any
) -> None:
    """A block that dies is withheld then (C28), so a workspace for each product would add up."""
    arena, a, side, order = bg.Arena(), numbers(cupy, (3, 3)), sim.create_stream(), Order(sim)
    out = zeros(xp)

    def forward() -> None:
        order(bg.current_stream(), side)
        sim.memset_d8_async(out.region.ptr, 1, 4, int(side))
        for _ in range(5):
            matmul(a, a)
            with cupy.cuda.Stream.from_external(side):
                matmul(a, a)

    captured(forward, xp, arena=arena)
    by_stream: dict[int, set[Any]] = {}
    for made in blas.made:
        by_stream.setdefault(made.stream, set()).add(made.workspace)
    assert len(by_stream) == 2
    assert all(len(workspaces) == 1 for workspaces in by_stream.values())
    assert len(set.union(*by_stream.values())) == 2, "two streams run at once"
    assert arena.peak < 65 * MIB


def test_many_captures_take_one_workspace(cupy: FakeCupy, blas: FakeCublas, xp: Any) -> None:
    arena, a = bg.Arena(), numbers(cupy, (3, 3))
    mapped = set()
    for _ in range(50):
        captured(lambda: matmul(a, a), xp, arena=arena).close()
        mapped.add(arena.mapped)
    assert len(mapped) == 1
    assert len(blas.handles) == 1


def test_a_capture_that_fails_after_a_product_gives_the_workspace_back(
    cupy: FakeCupy, blas: FakeCublas, xp: Any
) -> None:
    arena, a = bg.Arena(), numbers(cupy, (3, 3))

    def forward() -> None:
        matmul(a, a)
        raise KeyError("x")

    with pytest.raises(KeyError):
        captured(forward, xp, arena=arena)
    assert arena.used == 0
    captured(lambda: matmul(a, a), xp, arena=arena)
    assert len(blas.handles) == 1


def test_an_arena_without_room_for_the_workspace_says_so(cupy: FakeCupy, blas: FakeCublas, xp: Any) -> None:
    a = numbers(cupy, (3, 3))
    with pytest.raises(bg.errors.OutOfMemory, match="could not grow for a block of 33554432 bytes"):
        captured(lambda: matmul(a, a), xp, arena=bg.Arena(limit=4 * MIB))


def test_a_product_of_cupys_own_in_a_segment_is_told_what_to_write(cupy: FakeCupy, xp: Any) -> None:
    a = numbers(cupy, (3, 3))
    with pytest.raises(NotImplementedError) as raised:
        captured(lambda: cupy.matmul(a, a), xp)
    assert "bg.array_namespace().matmul(a, b), which can be captured" in "".join(raised.value.__notes__)


# --- what is not installed ------------------------------------------------------------------------------------------
def test_without_nvmath_a_product_in_a_segment_says_how_to_get_it(
    cupy: FakeCupy, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvmath", None)
    monkeypatch.setattr(cublas_module, "_cublas", cache(cublas_module.Cublas))
    a = numbers(cupy, (3, 3))
    with pytest.raises(BreakgraphError, match="nvmath-python") as raised:
        captured(lambda: OnSim().namespace().matmul(a, a), xp)
    assert "pip install 'breakgraph[cuda13]'" in str(raised.value)
    assert "bg.break_here(xp.matmul, bg.INFER, a, b)" in str(raised.value)
    np.testing.assert_array_equal(OnSim().namespace().matmul(a, a), a @ a)  # cupy's own is not touched


def test_without_the_library_itself_the_error_says_what_to_install(
    cupy: FakeCupy, blas: FakeCublas, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = numbers(cupy, (3, 3))

    def create() -> int:
        raise RuntimeError("libcublas.so.13: cannot open shared object file")

    monkeypatch.setattr(blas, "create", create)
    with pytest.raises(BreakgraphError, match="cuBLAS cannot be loaded") as raised:
        matmul(a, a)
    assert "nvidia-cublas" in str(raised.value)
    assert "libcublas.so.13" in str(raised.value)
