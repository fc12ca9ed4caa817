"""Products of cupy's arrays by cuBLAS on a GPU: as precise as cupy's own, and captured the same bits as eager.

Precision is held against float64 on the host, beside the error that cupy's own product makes outside a capture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Order, all_well, child, in_threads, on_stream

import breakgraph as bg
from breakgraph.errors import DriverError
from breakgraph.frameworks.cupy import gemm, matmul
from breakgraph.frameworks.cupy.cublas import cublas

MIB = 1 << 20
NAMES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@pytest.fixture(autouse=True)
def _nvmath(gpu: Any) -> None:
    pytest.importorskip("nvmath", reason="products in segments need nvmath-python")


def dtype_of(name: str) -> Any:
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 is ml_dtypes'").bfloat16)
    return np.dtype(name)


def random(xp: Any, shape: Any, dtype: Any = "float32", seed: int = 0) -> Any:
    """Normal numbers, rounded to a dtype on the host."""
    rng = np.random.default_rng([seed, *shape])
    host = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        host = host + 1j * rng.standard_normal(shape)
    return xp.asarray(host.astype(dtype))


def exact(array: Any) -> Any:
    """An array's values, in double precision."""
    host = array.get()
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


def error_of(array: Any, expected: Any) -> float:
    """How far an array is from what it should be, relative to the size of that."""
    size = float(np.linalg.norm(expected)) or 1.0
    return float(np.linalg.norm(exact(array) - expected)) / size


def epsilon(dtype: Any) -> float:
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype.name) or float(np.finfo(dtype).eps) / 2


# --- precision ----------------------------------------------------------------------------------------------------
VIEWS: dict[str, Any] = {
    "square": ((256, 256), (256, 256), lambda a, b: (a, b)),
    "odd sizes": ((37, 101), (101, 53), lambda a, b: (a, b)),
    "transposed": ((256, 64), (128, 256), lambda a, b: (a.T, b.T)),
    "tall": ((2048, 64), (64, 16), lambda a, b: (a, b)),
    "a long sum": ((16, 100_000), (100_000, 16), lambda a, b: (a, b)),
    "a dot product": ((4096,), (4096,), lambda a, b: (a, b)),
    "a row": ((1, 512), (512, 256), lambda a, b: (a, b)),
    "a column": ((512, 256), (256, 1), lambda a, b: (a, b)),
    "a vector and a stack": ((128,), (6, 128, 32), lambda a, b: (a, b)),
    "part of wider matrices": ((64, 200), (99, 64), lambda a, b: (a[:, 50:130], b[3:83])),
    "every other element": ((128, 256), (128, 64), lambda a, b: (a[::2, ::2], b[:, ::2])),
    "backwards": ((64, 128), (128, 32), lambda a, b: (a[::-1, ::-1], b[::-1])),
    "stacks": ((8, 64, 96), (8, 96, 32), lambda a, b: (a, b)),
    "a linear layer": ((4, 32, 256), (256, 128), lambda a, b: (a, b)),
    "one matrix and a stack": ((64, 256), (5, 256, 32), lambda a, b: (a, b)),
    "heads": ((3, 50, 12, 32), (3, 50, 12, 32), lambda a, b: (a.transpose(0, 2, 1, 3), b.transpose(0, 2, 3, 1))),
    "many heads": ((20, 30, 24, 16), (20, 30, 24, 16), lambda a, b: (a.transpose(0, 2, 1, 3), b.transpose(0, 2, 3, 1))),
    "many small ones": ((70_000, 2, 3), (70_000, 3, 2), lambda a, b: (a, b)),
}


def cupys_own(xp: Any, a: Any, b: Any) -> Any:
    """The product outside captures; in float32 and rounded, where cupy has no kernel for stacks of the dtype."""
    try:
        return xp.matmul(a, b)
    except TypeError:  # bfloat16 (cupy 14)
        return xp.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("left", "right", "view"), VIEWS.values(), ids=VIEWS)
def test_a_captured_product_is_as_precise_as_cupys_own(
    gpu: Any, xp: Any, name: str, left: Any, right: Any, view: Any
) -> None:
    dtype = dtype_of(name)
    a, b = random(xp, left, dtype), random(xp, right, dtype, 1)
    with bg.capture() as graph:
        y = graph.output(xp.matmul(*view(a, b)))
    a.set(random(xp, left, dtype, 2).get())
    graph.replay()
    expected = np.matmul(*view(exact(a), exact(b)))
    own = cupys_own(xp, *view(a, b))
    assert (y.dtype, y.shape) == (own.dtype, own.shape)
    assert error_of(y, expected) <= 2 * error_of(own, expected) + 4 * epsilon(dtype)
    graph.close()


@pytest.mark.parametrize("name", NAMES)
def test_gemm_is_captured_with_its_factors_and_what_it_adds_to(gpu: Any, xp: Any, name: str) -> None:
    dtype = dtype_of(name)
    a, b, c = random(xp, (32, 64), dtype), random(xp, (64, 48), dtype, 1), random(xp, (32, 48), dtype, 2)
    before = exact(c)
    with bg.capture() as graph:
        gemm(a, b, c, alpha=0.5, beta=-2)
    graph.replay()
    expected = before
    for _ in range(2):
        expected = 0.5 * exact(a) @ exact(b) - 2 * expected
    assert error_of(c, expected) <= 8 * epsilon(dtype)
    graph.close()


def test_the_precision_that_cupy_is_set_to_holds_in_segments(gpu: Any, xp: Any) -> None:
    import cupy
    from cupy._core import _routines_linalg as linalg

    a, b = random(xp, (512, 512)), random(xp, (512, 512), seed=1)
    expected = exact(a) @ exact(b)
    before, errors = cupy._core.get_compute_type(np.float32), {}
    try:
        for name in ("DEFAULT", "TF32", "PEDANTIC"):
            cupy._core.set_compute_type(np.float32, getattr(linalg, f"COMPUTE_TYPE_{name}"))
            with bg.capture() as graph:
                y = graph.output(xp.matmul(a, b))
            errors[name] = error_of(y, expected)
            assert errors[name] <= 2 * error_of(xp.matmul(a, b), expected)
            graph.close()
    finally:
        cupy._core.set_compute_type(np.float32, before)
    assert errors["TF32"] > 50 * errors["DEFAULT"]
    assert errors["PEDANTIC"] < 1e-5


# --- the same, captured and not -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("left", "right", "view"), VIEWS.values(), ids=VIEWS)
def test_a_replayed_product_is_bit_for_bit_the_eager_one(
    gpu: Any, xp: Any, name: str, left: Any, right: Any, view: Any
) -> None:
    dtype = dtype_of(name)
    a, b = random(xp, left, dtype), random(xp, right, dtype, 1)
    with bg.capture() as graph:
        y = graph.output(xp.matmul(*view(a, b)))
    for seed in range(2):
        a.set(random(xp, left, dtype, seed + 2).get())
        graph.replay()
        assert y.get().tobytes() == matmul(*view(a, b)).get().tobytes()
    graph.close()


def test_a_product_is_kernels_alone(gpu: Any, xp: Any) -> None:
    """An allocation among them would keep the graph from being launched twice (C29)."""
    a, b = random(xp, (16, 100_000)), random(xp, (100_000, 16), seed=1)
    with bg.capture() as graph:
        xp.matmul(a, b)
    kinds = {gpu.graph_node_get_type(node) for node in gpu.graph_get_nodes(graph.segments[0].graph)}
    assert kinds <= {bg.driver.api.NodeType.KERNEL, bg.driver.api.NodeType.MEMSET}
    graph.close()


def test_forked_products_that_need_a_workspace_are_the_same_each_time(gpu: Any, xp: Any) -> None:
    """Two streams that shared one would write into each other's sums."""
    sides, order = [gpu.create_stream() for _ in range(3)], Order(gpu)
    a = [random(xp, (64, 50_000), seed=seed) for seed in range(4)]
    b = [random(xp, (50_000, 64), seed=seed + 9) for seed in range(4)]
    outs = [xp.zeros((64, 64), np.float32) for _ in range(4)]
    arena = bg.Arena()
    gpu.synchronize()
    with bg.capture(arena=arena) as graph:
        for at, side in enumerate(sides):
            order(bg.current_stream(), side)
            with on_stream(a[at], side):
                for _ in range(4):
                    xp.matmul(a[at], b[at], out=outs[at])
        for _ in range(4):
            xp.matmul(a[3], b[3], out=outs[3])
        for side in sides:
            order(side, bg.current_stream())
    alone = [matmul(one, other).get().tobytes() for one, other in zip(a, b, strict=True)]
    for _ in range(50):
        for out in outs:
            out.fill(0)
        gpu.synchronize()
        graph.replay()
        gpu.synchronize()
        assert [out.get().tobytes() for out in outs] == alone
    assert 4 * 32 * MIB <= arena.peak < 4 * 33 * MIB
    graph.close()


# --- handles and workspaces ---------------------------------------------------------------------------------------
def test_the_first_product_of_a_program_may_be_in_a_segment(gpu: Any) -> None:
    """There nvmath is imported, cuBLAS loaded, and a handle made."""
    done = child(
        """
        import sys
        import numpy as np
        import breakgraph as bg

        xp = bg.array_namespace()
        a, b = xp.ones((64, 64), np.float32), xp.ones((64, 64), np.float32)
        out = xp.zeros((64, 64), np.float32)
        assert "nvmath" not in sys.modules
        with bg.capture() as graph:
            xp.matmul(a, b, out=out)
        a.fill(2)
        graph.replay()
        print(float(out.sum()))
        """,
        driver="cuda",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(64.0 * 64 * 128)


def test_a_handle_made_in_one_thread_harms_no_capture_of_another(
    gpu: Any, xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = random(xp, (32, 32))
    matmul(a, a)
    monkeypatch.setattr(cublas(), "_free", type(cublas()._free)(list))  # as if there were none
    gpu.synchronize()
    with bg.capture() as graph:
        y = a + 1
        all_well(in_threads(gpu, lambda: float(matmul(a, a).sum())))
        y = graph.output(y + 1)
    graph.replay()
    np.testing.assert_array_equal(y.get(), a.get() + np.float32(1) + np.float32(1))
    graph.close()


def test_threads_multiply_at_once_and_later_ones_take_their_handles(gpu: Any, xp: Any) -> None:
    a = [random(xp, (256, 256), seed=seed) for seed in range(4)]
    expected = [matmul(one, one).get() for one in a]
    gpu.synchronize()

    def work(at: int) -> None:
        stream = gpu.create_stream()
        with on_stream(a[at], stream):
            for _ in range(200):
                y = matmul(a[at], a[at])
            assert y.get().tobytes() == expected[at].tobytes()
            gpu.stream_synchronize(int(stream))

    def handles() -> int:
        return sum(map(len, cublas()._free.values()))

    for _ in range(5):
        all_well(in_threads(gpu, *[lambda at=at: work(at) for at in range(4)], seconds=60))
    assert handles() <= 5


def test_the_workspace_is_the_arenas_and_every_segment_has_the_same(gpu: Any, xp: Any) -> None:
    a, arena, used = random(xp, (512, 512)), bg.Arena(), []
    with bg.capture(arena=arena) as graph:
        y = xp.matmul(a, a)
        used.append(arena.used)
        bg.break_here(lambda: used.append(arena.used), bg.IN_PLACE)
        y = graph.output(xp.matmul(y, a))
    assert used[0] >= 32 * MIB > used[1]
    assert arena.peak < 40 * MIB
    assert graph.survivors == ()
    arena.sleep()
    arena.wake()
    graph.replay()
    assert error_of(y, exact(a) @ exact(a) @ exact(a)) < 1e-5
    graph.close()


def test_a_thousand_captures_of_products_take_no_more_than_the_first_few(gpu: Any, xp: Any) -> None:
    arena, w = bg.Arena(), random(xp, (64, 64))
    rng = np.random.default_rng(5)

    def once() -> None:
        x = random(xp, (int(rng.integers(1, 64)), 64))
        with bg.capture(arena=arena) as graph:
            y = graph.output(xp.matmul(xp.matmul(x, w), w))
        graph.replay()
        y.get()
        graph.close()

    for _ in range(20):
        once()
    gpu.synchronize()
    mapped, free = arena.mapped, gpu.mem_get_info()[0]
    handles = sum(map(len, cublas()._free.values()))
    for _ in range(1000):
        once()
    gpu.synchronize()
    assert arena.mapped == mapped
    assert free - gpu.mem_get_info()[0] < 8 * MIB
    assert sum(map(len, cublas()._free.values())) == handles


def test_a_capture_that_the_driver_gives_up_leaves_the_handle_usable(gpu: Any, xp: Any) -> None:
    a = random(xp, (32, 32))
    expected = matmul(a, a).get()
    for _ in range(3):
        with pytest.raises(DriverError), bg.capture():
            xp.matmul(a, a)
            gpu.mem_alloc(1024)
        with pytest.raises(Exception, match=r".+"), bg.capture():
            with pytest.raises(DriverError):
                gpu.mem_alloc(1024)
            xp.matmul(a, a)  # into a capture that is invalid by now
    assert matmul(a, a).get().tobytes() == expected.tobytes()
    with bg.capture() as graph:
        y = graph.output(xp.matmul(a, a))
    graph.replay()
    assert y.get().tobytes() == expected.tobytes()
    graph.close()


def test_more_rows_than_an_int_counts(gpu: Any, xp: Any) -> None:
    rows = 2**31 + 64
    if gpu.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of device memory")
    a, b = xp.ones((rows, 1), np.float16), xp.full((1, 1), 2, np.float16)
    y = matmul(a, b)
    assert float(y[0, 0]) == float(y[rows - 1, 0]) == 2
    assert bool((y == 2).all())
    del a, y
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
