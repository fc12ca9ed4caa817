"""``bg.array_namespace().matmul`` is NumPy's in segments, in breaks and outside, and follows fresh inputs at replay.

On both drivers. `test_cublas` has what only a GPU answers: precision, halves, handles, workspaces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Order, all_well, every_schedule, in_threads, on_stream

import breakgraph as bg

DTYPES = [np.float32, np.float64, np.complex64]


@pytest.fixture(autouse=True)
def _products(driver: Any) -> None:
    if driver.name == "cuda":
        pytest.importorskip("nvmath", reason="products in segments need nvmath-python")


def values(shape: Any, dtype: Any = np.float32, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    host = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        host = host + 1j * rng.standard_normal(shape)
    return host.astype(dtype)


def close(array: Any, expected: Any, computed_in: Any = None) -> bool:
    """Whether an array holds these values to the precision of its dtype, or of the one that they were computed in."""
    host = array.get()
    size = max(float(np.abs(expected).max(initial=0)), 1)
    eps = max(float(np.finfo(dtype).eps) for dtype in (host.dtype, computed_in or host.dtype))
    return host.shape == expected.shape and bool((np.abs(host - expected) < 200 * eps * size).all())


# name: shapes of the operands, and the views of them that are multiplied
VIEWS: dict[str, Any] = {
    "matrices": ((6, 8), (8, 5), lambda a, b: (a, b)),
    "transposed": ((8, 6), (5, 8), lambda a, b: (a.T, b.T)),
    "vectors": ((8,), (8,), lambda a, b: (a, b)),
    "a vector and a matrix": ((8,), (8, 5), lambda a, b: (a, b)),
    "a matrix and a vector": ((6, 8), (8,), lambda a, b: (a, b)),
    "a stack and a vector": ((3, 6, 8), (8,), lambda a, b: (a, b)),
    "columns of a wider matrix": ((6, 20), (9, 5), lambda a, b: (a[:, 3:11], b[1:])),
    "every other row and column": ((12, 16), (8, 10), lambda a, b: (a[::2, ::2], b[:, ::2])),
    "backwards": ((6, 8), (8, 5), lambda a, b: (a[::-1], b[:, ::-1])),
    "stacks": ((4, 6, 8), (4, 8, 5), lambda a, b: (a, b)),
    "a linear layer": ((4, 3, 6, 8), (8, 5), lambda a, b: (a, b)),
    "broadcast": ((4, 1, 6, 8), (3, 8, 5), lambda a, b: (a, b)),
    "heads": ((2, 7, 3, 8), (2, 9, 3, 8), lambda a, b: (a.transpose(0, 2, 1, 3), b.transpose(0, 2, 3, 1))),
    "many heads": ((18, 5, 20, 4), (18, 5, 20, 4), lambda a, b: (a.transpose(0, 2, 1, 3), b.transpose(0, 2, 3, 1))),
    "no rows": ((0, 8), (8, 5), lambda a, b: (a, b)),
    "nothing to add up": ((6, 0), (0, 5), lambda a, b: (a, b)),
    "no matrices": ((0, 6, 8), (8, 5), lambda a, b: (a, b)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("left", "right", "view"), VIEWS.values(), ids=VIEWS)
def test_a_product_in_a_segment_follows_fresh_inputs(
    driver: Any, xp: Any, left: Any, right: Any, view: Any, dtype: Any
) -> None:
    a, b = xp.asarray(values(left, dtype)), xp.asarray(values(right, dtype, 1))
    with bg.capture() as graph:
        xp.zeros(4) + 1  # a capture of nothing is worth a warning
        y = graph.output(xp.matmul(*view(a, b)) * 2)
    assert close(y, 2 * np.matmul(*view(a.get(), b.get())))
    for seed in range(2, 5):
        a.set(values(left, dtype, seed))
        b.set(values(right, dtype, seed + 10))
        graph.replay()
        assert close(y, 2 * np.matmul(*view(a.get(), b.get())))
    assert y.dtype == dtype
    graph.close()


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (np.float32, np.float64, np.float64),
        (np.float64, np.complex64, np.complex128),
        (np.int32, np.float32, np.float64),
        (np.int32, np.int32, np.int32),
        (np.int8, np.int64, np.int64),
    ],
)
def test_dtypes_promote_in_a_segment_as_numpys_do(driver: Any, xp: Any, left: Any, right: Any, expected: Any) -> None:
    a, b = np.arange(48).reshape(6, 8).astype(left), np.arange(40).reshape(8, 5).astype(right)
    put_a, put_b = xp.asarray(a), xp.asarray(b)
    with bg.capture() as graph:
        y = graph.output(xp.matmul(put_a, put_b))
    graph.replay()
    assert y.dtype == expected
    np.testing.assert_array_equal(y.get(), a @ b)
    graph.close()


OUTS: dict[str, Any] = {
    "C order": lambda xp: xp.zeros((6, 5), np.float32),
    "Fortran order": lambda xp: xp.zeros((5, 6), np.float32).T,
    "every other column": lambda xp: xp.zeros((6, 10), np.float32)[:, ::2],
    "part of another": lambda xp: xp.zeros((6, 9), np.float32)[:, 2:7],
    "doubles": lambda xp: xp.zeros((6, 5), np.float64),
    "halves": lambda xp: xp.zeros((6, 5), np.float16),
}


@pytest.mark.parametrize("make", OUTS.values(), ids=OUTS)
def test_a_product_in_a_segment_goes_to_out(driver: Any, xp: Any, make: Any) -> None:
    a, b, out = xp.asarray(values((6, 8))), xp.asarray(values((8, 5), seed=1)), make(xp)
    with bg.capture() as graph:
        assert xp.matmul(a, b, out=out) is out
    a.set(values((6, 8), seed=2))
    graph.replay()
    assert close(out, (a.get() @ b.get()).astype(out.dtype), computed_in=np.float32)
    graph.close()


def test_a_product_in_a_segment_may_go_to_one_of_its_operands(driver: Any, xp: Any) -> None:
    a, b = xp.asarray(values((6, 6))), xp.asarray(values((6, 6), seed=1))
    expected = a.get()
    with bg.capture() as graph:
        xp.matmul(a, b, out=a)
    graph.replay()
    for _ in range(2):
        expected = expected @ b.get()
    assert close(a, expected)
    graph.close()


@every_schedule
def test_products_around_a_break_that_multiplies_too(driver: Any, xp: Any) -> None:
    x, w = xp.asarray(values((6, 8))), [xp.asarray(values((8, 8), seed=seed)) for seed in range(1, 4)]

    def forward(multiply: Any) -> Any:
        hidden = xp.matmul(x, w[0])
        hidden = multiply(hidden, w[1])
        return xp.matmul(hidden, w[2])

    with bg.capture() as graph:
        y = graph.output(forward(lambda a, b: bg.break_here(xp.matmul, bg.INFER, a, b)))
    assert (len(graph.segments), len(graph.breaks)) == (2, 1)
    for seed in range(3):
        x.set(values((6, 8), seed=seed))
        graph.replay()
        assert close(y, x.get() @ w[0].get() @ w[1].get() @ w[2].get())
        assert close(forward(xp.matmul), y.get())
    assert all(one.nbytes < 1 << 20 for one in graph.survivors), "no workspace is left"
    graph.close()


@every_schedule
def test_products_on_forked_streams_keep_out_of_each_others_way(driver: Any, xp: Any) -> None:
    sides, order = [driver.create_stream() for _ in range(2)], Order(driver)
    a = [xp.asarray(values((64, 512), seed=seed)) for seed in range(3)]
    b = [xp.asarray(values((512, 64), seed=seed + 5)) for seed in range(3)]
    outs = [xp.zeros((64, 64), np.float32) for _ in range(3)]
    driver.synchronize()
    with bg.capture() as graph:
        for at, side in enumerate(sides):
            order(bg.current_stream(), side)
            with on_stream(a[at], side):
                for _ in range(3):
                    xp.matmul(a[at], b[at], out=outs[at])
        for _ in range(3):
            xp.matmul(a[2], b[2], out=outs[2])
        for side in sides:
            order(side, bg.current_stream())
    for seed in range(3):
        for at in range(3):
            a[at].set(values((64, 512), seed=seed + 10 * at))
        driver.synchronize()
        graph.replay()
        driver.synchronize()
        for at in range(3):
            assert close(outs[at], a[at].get() @ b[at].get())
    graph.close()


def test_a_product_on_a_stream_that_comes_after_one_that_is_gone(driver: Any, xp: Any) -> None:
    a, out, order = xp.asarray(values((6, 6))), xp.zeros((6, 6), np.float32), Order(driver)
    for _ in range(3):
        side = driver.create_stream()
        with bg.capture() as graph:
            order(bg.current_stream(), side)
            with on_stream(a, side):
                xp.matmul(a, a, out=out)
            order(side, bg.current_stream())
        driver.synchronize()
        side.close()
        a.set(values((6, 6)) * 2)
        graph.replay()
        assert close(out, a.get() @ a.get())
        graph.close()


def test_threads_capture_and_replay_products_beside_each_other(driver: Any, xp: Any) -> None:
    def work(seed: int) -> None:
        stream = driver.create_stream()
        with on_stream(xp.zeros(1), stream):
            x, w = xp.asarray(values((32, 64), seed=seed)), xp.asarray(values((64, 32), seed=seed + 1))
            for _ in range(5):
                with bg.capture() as graph:
                    y = graph.output(xp.matmul(x, w))
                for again in range(3):
                    x.set(values((32, 64), seed=seed + 7 * again))
                    graph.replay()
                    assert close(y, x.get() @ w.get())
                graph.close()
            driver.stream_synchronize(int(stream))

    all_well(in_threads(driver, *[lambda seed=seed: work(seed) for seed in range(0, 400, 100)], seconds=60))


def test_a_product_that_does_not_fit_leaves_the_next_capture_good(driver: Any, xp: Any) -> None:
    a, b = xp.asarray(values((6, 8))), xp.asarray(values((6, 8)))
    for _ in range(3):
        with pytest.raises(ValueError, match=r"mismatch|match"), bg.capture() as graph:
            xp.matmul(a, a.T)
            xp.matmul(a, b)
        assert graph.state == "failed"
    with bg.capture() as graph:
        y = graph.output(xp.matmul(a, b.T))
    graph.replay()
    assert close(y, a.get() @ b.get().T)
    graph.close()
