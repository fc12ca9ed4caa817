"""A product planned from shapes and strides is NumPy's, by calls that BLAS takes, and without a copy where that can be.

The plans are carried out by a BLAS product in NumPy over flat memory (`blas.gemm`), which holds every argument and
every element that it touches against BLAS's rules and the memory that there is.
"""

from __future__ import annotations

from typing import Any

import blas
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakgraph.driver import Region
from breakgraph.frameworks.cupy.plan import Copies, Plan, plan_product, product_shape


def region(array: Any) -> Region:
    return Region(array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)


def plan_of(left: Any, right: Any, result: Any = None) -> Plan:
    if result is None:
        result = np.zeros(product_shape(left.shape, right.shape), left.dtype)
    return plan_product(region(left), region(right), region(result))


def multiplied(left: Any, right: Any, result: Any) -> Plan:
    """Carry a plan out, into ``result``."""
    plan = plan_of(left, right, result)
    left, right = (
        array if shape is None else np.ascontiguousarray(np.broadcast_to(array, shape))
        for array, shape in zip((left, right), plan.copies, strict=False)
    )
    target = result if plan.copies.result is None else np.full(plan.copies.result, np.nan, result.dtype)
    for at in plan.offsets:
        operands = [memory_from(array, offset) for array, offset in zip((left, right), at, strict=False)]
        blas.gemm(plan.gemm, *(reversed(operands) if plan.swapped else operands), memory_from(target, at[2]))
    if target is not result:
        result[...] = target
    return plan


def memory_from(array: Any, offset: int) -> Any:
    """The memory of an array from one element on, to the end of what was allocated for it."""
    base = array
    while base.base is not None:
        base = base.base
    first, rest = divmod(region(array).ptr - region(base).ptr, array.itemsize)
    assert rest == 0
    assert first + offset >= 0
    return base.ravel(order="K")[first + offset :]


# --- arrays of any shape and strides --------------------------------------------------------------------------------
EXTENTS = st.sampled_from([1, 1, 2, 3, 5])


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], *, written: bool = False) -> Any:
    """A view of some memory: axes in any order, steps of any sign, gaps between rows, axes that are broadcast."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    repeated = [not written and draw(st.integers(0, 6)) == 0 for _ in shape]
    sizes = [
        1 if repeated[axis] else shape[axis] * abs(steps[axis]) + draw(st.sampled_from([0, 0, 3])) for axis in order
    ]
    memory = np.arange(np.prod(sizes, dtype=int)) % 7 - 3
    whole = memory.astype(np.float64).reshape(sizes).transpose(np.argsort(order))
    kept = tuple(slice(None, None, step) for step in steps)
    cut = tuple(slice(0, 1 if again else extent) for extent, again in zip(shape, repeated, strict=True))
    view = whole[kept][cut]
    return view if written else np.broadcast_to(view, shape)


@st.composite
def products(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    m, n, k = draw(EXTENTS), draw(EXTENTS), draw(EXTENTS)
    batch = draw(st.lists(EXTENTS, max_size=3))
    operands = []
    for matrix in ((m, k), (k, n)):
        kept = batch[draw(st.integers(0, len(batch))) :]
        shape = [draw(st.sampled_from([extent, extent, 1])) for extent in kept]
        operands.append(draw(arrays((*shape, *matrix))))
    shape = product_shape(operands[0].shape, operands[1].shape)
    return operands[0], operands[1], draw(arrays(shape, written=True))


@given(products())
def test_a_plan_of_any_strides_gives_the_product(case: tuple[Any, Any, Any]) -> None:
    left, right, result = case
    expected = left @ right
    multiplied(left, right, result)
    np.testing.assert_array_equal(result, expected)


@given(products())
def test_a_plan_takes_few_calls(case: tuple[Any, Any, Any]) -> None:
    assert len(plan_of(*case).offsets) <= 16


# --- what takes no copy ---------------------------------------------------------------------------------------------
def ints(*shape: int) -> Any:
    return (np.arange(np.prod(shape)) % 11 - 5).astype(np.float64).reshape(shape)


WIDE = ints(9, 40)

MATRICES = {
    "C order": ints(6, 4),
    "Fortran order": ints(4, 6).T,
    "columns of a wider matrix": WIDE[:6, 8:12],
    "rows of a longer one, transposed": WIDE[2:6, 3:9].T,
    "every other row": ints(12, 4)[::2],
    "every other column of a transpose": ints(8, 6)[::2].T,
    "one row": ints(1, 4),
    "one column": ints(6, 1),
    "one column of a wider matrix": WIDE[:6, 3:4],
    "one row, every third element": WIDE[3:4, ::10],
    "one element": ints(1, 1),
}


@pytest.mark.parametrize("left", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("right", [matrix.T for matrix in MATRICES.values()], ids=MATRICES)
@pytest.mark.parametrize("order", "CF")
def test_these_matrices_take_one_call_and_no_copy(left: Any, right: Any, order: Any) -> None:
    inner = min(left.shape[1], len(right))
    left, right = left[:, :inner], right[:inner]
    result = np.zeros((len(left), right.shape[1]), order=order)
    expected = left @ right
    plan = multiplied(left, right, result)
    np.testing.assert_array_equal(result, expected)
    assert plan.copies == Copies()
    assert (plan.gemm.batch, len(plan.offsets)) == (1, 1)


HEADS = ints(3, 7, 4, 5)  # sequences, positions, heads, width: as a projection leaves them

STACKS = {
    "contiguous": (ints(3, 2, 6, 4), ints(3, 2, 4, 5), (6, 1)),
    "transposed": (ints(3, 2, 4, 6).swapaxes(-1, -2), ints(3, 2, 5, 4).swapaxes(-1, -2), (6, 1)),
    "one matrix for all, on the left": (ints(6, 4), ints(3, 2, 4, 5), (6, 1)),
    "one matrix for all, on the right": (ints(3, 2, 6, 4), ints(4, 5), (1, 1)),
    "one row for each matrix": (ints(3, 1, 4), ints(3, 4, 5), (3, 1)),
    "rows that all meet one matrix": (ints(3, 2, 1, 4), ints(4, 5), (1, 1)),
    "every other matrix": (ints(8, 6, 4)[::2], ints(4, 4, 5), (4, 1)),
    "heads": (HEADS.transpose(0, 2, 1, 3), HEADS.transpose(0, 2, 3, 1), (4, 3)),
    "heads of one sequence": (HEADS[0].transpose(1, 0, 2), HEADS[0].transpose(1, 2, 0), (4, 1)),
    "heads that share keys": (ints(3, 4, 7, 5), ints(3, 1, 7, 5).swapaxes(-1, -2), (3, 1)),
    "an outer product of stacks": (ints(2, 1, 6, 4), ints(1, 5, 4, 3), (5, 2)),
    "backwards": (ints(4, 6, 4)[::-1], ints(4, 4, 5), (1, 4)),
}


@pytest.mark.parametrize(("left", "right", "calls"), STACKS.values(), ids=STACKS)
def test_these_stacks_take_no_copy(left: Any, right: Any, calls: tuple[int, int]) -> None:
    result = np.zeros(product_shape(left.shape, right.shape))
    plan = multiplied(left, right, result)
    np.testing.assert_array_equal(result, left @ right)
    assert plan.copies == Copies()
    assert (plan.gemm.batch, len(plan.offsets)) == calls


def test_a_linear_layer_over_a_stack_is_one_call_with_all_rows() -> None:
    plan = plan_of(ints(3, 2, 6, 4), ints(4, 5))
    assert (plan.gemm.m, plan.gemm.n, plan.gemm.k) == (5, 36, 4), (
        "the result is row-major, so it is computed transposed"
    )


# --- what takes one -------------------------------------------------------------------------------------------------
OTHERS = {
    "every other column": ints(6, 8)[:, ::2],
    "rows backwards": ints(6, 4)[::-1],
    "columns backwards": ints(6, 4)[:, ::-1],
    "one row for all": np.broadcast_to(ints(4), (6, 4)),
    "one of two fields": ints(6, 4, 2)[..., 0],
    "windows that overlap": np.lib.stride_tricks.sliding_window_view(ints(9), 4),
}


@pytest.mark.parametrize("left", OTHERS.values(), ids=OTHERS)
def test_a_matrix_of_other_strides_is_copied_alone(left: Any) -> None:
    result = np.zeros((6, 5))
    plan = multiplied(left, ints(4, 5), result)
    np.testing.assert_array_equal(result, left @ ints(4, 5))
    assert plan.copies == Copies(left=(6, 4))


def test_elements_that_are_no_whole_number_of_elements_apart_are_copied() -> None:
    packed = np.zeros((6, 4), np.dtype([("flag", np.int8), ("value", np.float64)]))
    packed["value"] = ints(6, 4)
    assert packed["value"].strides == (36, 9)
    assert plan_of(packed["value"], ints(4, 5)).copies == Copies(left=(6, 4))
    stack = np.lib.stride_tricks.as_strided(ints(100), (3, 2, 4), (65, 32, 8))
    assert plan_of(stack, ints(4, 5)).copies == Copies(left=(3, 2, 4))


def test_a_result_that_blas_cannot_write_is_computed_aside() -> None:
    result = np.zeros((6, 10))[:, ::2]
    plan = multiplied(ints(6, 4), ints(4, 5), result)
    np.testing.assert_array_equal(result, ints(6, 4) @ ints(4, 5))
    assert plan.copies == Copies(result=(6, 5))


def test_more_calls_than_a_copy_is_worth_are_one_call_after_it() -> None:
    heads = ints(20, 3, 18, 5).transpose(0, 2, 1, 3)
    result = np.zeros((20, 18, 3, 3))
    plan = multiplied(heads, heads.swapaxes(-1, -2), result)
    np.testing.assert_array_equal(result, heads @ heads.swapaxes(-1, -2))
    assert plan.copies == Copies((20, 18, 3, 5), (20, 18, 5, 3))
    assert (plan.gemm.batch, len(plan.offsets)) == (360, 1)


def test_only_what_keeps_a_stack_apart_is_copied() -> None:
    heads = ints(20, 3, 18, 5).transpose(0, 2, 1, 3)
    plan = plan_of(heads, ints(20, 18, 5, 3))
    assert plan.copies == Copies(left=(20, 18, 3, 5))
    assert len(plan.offsets) == 1


# --- shapes ---------------------------------------------------------------------------------------------------------
@given(left=st.lists(st.integers(0, 3), max_size=4), right=st.lists(st.integers(0, 3), max_size=4))
def test_shapes_multiply_as_numpys_do(left: list[int], right: list[int]) -> None:
    try:
        expected = np.matmul(np.zeros(left), np.zeros(right)).shape
    except ValueError:
        with pytest.raises(ValueError, match=r"takes no scalars|do not match"):
            product_shape(tuple(left), tuple(right))
    else:
        assert product_shape(tuple(left), tuple(right)) == expected


def test_a_mismatch_names_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(4, 5\) do not match: the inner sizes are 3 and 4"):
        product_shape((2, 3), (4, 5))
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\) do not broadcast"):
        product_shape((2, 4, 5), (3, 5, 4))
