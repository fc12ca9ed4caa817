"""A newcomer's mistakes get an answer that says what happened, why, and what to do; and nothing is left behind.

Each case asserts the message, and that a capture made right after it works. The fixtures check the rest.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from support import assert_failed_clean, assert_next_capture_works, child, nothing_captured, zeros

import breakgraph as bg
from breakgraph.errors import (
    BreakgraphError,
    BreakgraphWarning,
    CaptureFailed,
    CaptureStateError,
    CaptureUnsupported,
    DriverError,
    DriverNotFound,
    DTypeMismatch,
    NotCopyable,
    driver_error,
)


def told(error: BaseException) -> str:
    """All that a reader of the traceback is told: the error, its notes, its causes."""
    parts = [str(error), *getattr(error, "__notes__", ())]
    if error.__cause__ is not None:
        parts.append(told(error.__cause__))
    return "\n".join(parts)


# --- no driver ------------------------------------------------------------------------------------------------


def test_without_a_driver_the_error_says_how_to_choose_the_simulator(no_gpu: str) -> None:
    if not no_gpu:
        pytest.skip("there is a driver here")
    done = child(
        """
        import breakgraph as bg
        try:
            bg.array_namespace()
        except bg.errors.DriverNotFound as error:
            print(error)
        """,
        driver="cuda",
    )
    assert done.returncode == 0, done.stderr
    assert "BREAKGRAPH_DRIVER=sim" in done.stdout or 'use("sim")' in done.stdout
    assert "do:" in done.stdout


def test_without_the_bindings_the_error_names_the_extra_to_install() -> None:
    """The wrong extra: no cuda-bindings in the environment."""
    done = child(
        """
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name == "cuda" or name.startswith("cuda."):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Absent())
        import breakgraph as bg
        try:
            bg.driver.current().synchronize()
        except bg.errors.DriverNotFound as error:
            print(error)
        """,
        driver="cuda",
    )
    assert done.returncode == 0, done.stderr
    assert "cuda13" in done.stdout
    assert "cuda12" in done.stdout
    assert "sim" in done.stdout


def test_without_cupy_the_error_names_the_extra_to_install() -> None:
    """The wrong extra: bindings, but no cupy. The driver object is a stand-in, since there may be no GPU."""
    done = child(
        """
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name == "cupy" or name.startswith("cupy."):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Absent())
        import breakgraph as bg
        class Cuda:
            name = "cuda"
            can_capture = True
        with bg.driver.use(Cuda()):
            try:
                bg.array_namespace().zeros(4)
            except bg.errors.BreakgraphError as error:
                print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "cupy" in done.stdout
    assert "cuda13" in done.stdout


def test_an_unknown_driver_is_named_with_the_known_ones() -> None:
    with pytest.raises(BreakgraphError, match="opencl") as raised:
        bg.driver.use("opencl")
    assert "sim" in told(raised.value)
    assert "cuda" in told(raised.value)


def test_an_unknown_driver_in_the_environment_is_named_too() -> None:
    done = child("import breakgraph as bg; bg.driver.current()", driver="opencl")
    assert done.returncode == 1
    assert "opencl" in done.stderr
    assert "sim" in done.stderr


# --- scopes ---------------------------------------------------------------------------------------------------


def test_a_nested_capture_is_explained(driver: Any, xp: Any) -> None:
    with bg.capture() as outer:
        zeros(xp) + 1
        with pytest.raises(CaptureStateError) as raised, bg.capture():
            pass
    message = told(raised.value)
    assert "inside another" in message
    assert "why:" in message
    assert "do:" in message
    assert outer.captured
    assert_next_capture_works(xp)


def test_a_replay_before_a_capture_is_explained(driver: Any, xp: Any) -> None:
    with pytest.raises(CaptureStateError) as raised:
        bg.BreakableGraph().replay()
    message = told(raised.value)
    assert "empty" in message
    assert "bg.capture" in message
    assert_next_capture_works(xp)


def test_a_replay_inside_the_captures_own_scope_is_explained(driver: Any, xp: Any) -> None:
    with bg.capture() as graph:
        zeros(xp) + 1
        with pytest.raises(CaptureStateError) as raised:
            graph.replay()
    assert "captur" in told(raised.value)
    assert "do:" in told(raised.value)
    assert graph.captured


def test_a_capture_that_recorded_nothing_warns_that_the_work_was_elsewhere(driver: Any, xp: Any) -> None:
    """C10."""
    x = zeros(xp)
    with pytest.warns(BreakgraphWarning, match="stream"), bg.capture() as graph:
        pass
    assert graph.captured
    with pytest.warns(BreakgraphWarning, match="stream"), bg.capture():
        bg.break_here(lambda a: a + 1, bg.INFER, x)
    with bg.capture():  # one node anywhere is enough
        bg.break_graph()
        x + 1


def test_a_scope_that_is_used_twice_is_refused(driver: Any, xp: Any) -> None:
    scope = bg.capture()
    with scope as graph:
        zeros(xp) + 1
    with pytest.raises(CaptureStateError), scope:
        pytest.fail("the body ran")
    assert graph.captured


# --- what cannot be in a segment ------------------------------------------------------------------------------


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
def test_a_synchronize_in_a_segment_is_explained(driver: Any, xp: Any, swallowed: bool) -> None:
    graph = bg.BreakableGraph()
    with pytest.raises(BreakgraphError) as raised, bg.capture(graph):
        zeros(xp) + 1
        with contextlib.suppress(DriverError) if swallowed else contextlib.nullcontext():
            driver.stream_synchronize(int(bg.current_stream()))
    message = told(raised.value)
    assert isinstance(raised.value, CaptureFailed if swallowed else CaptureUnsupported)
    assert "break" in message
    assert "do:" in message
    assert "segment" in message
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_reading_values_in_a_segment_is_explained(driver: Any, xp: Any) -> None:
    graph = bg.BreakableGraph()
    with pytest.raises(Exception, match="captur"), bg.capture(graph):  # cupy has an error of its own
        (zeros(xp) + 1).get()
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_a_condition_on_a_device_value_in_a_segment_is_explained(driver: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(Exception, match="captur"), bg.capture(graph):  # cupy has an error of its own
        if (x + 1)[0] > 0:
            x + 2
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_an_allocation_by_hand_in_a_segment_is_explained(driver: Any, xp: Any) -> None:
    graph = bg.BreakableGraph()
    with pytest.raises(CaptureUnsupported) as raised, bg.capture(graph):
        zeros(xp) + 1
        driver.mem_alloc(1024)
    assert "break" in told(raised.value)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


@pytest.mark.parametrize("product", [lambda a: a @ a, lambda a: np.matmul(a, a), lambda a: np.dot(a, a)])
def test_a_matmul_of_cupy_in_a_segment_is_explained(gpu: Any, xp: Any, product: Any) -> None:
    square, graph = zeros(xp, 4, 4), bg.BreakableGraph()
    product(square)  # outside a capture it works
    with pytest.raises(NotImplementedError) as raised, bg.capture(graph):
        product(square + 1)
    message = told(raised.value)
    assert "break" in message
    assert "segment" in message
    assert "bg.array_namespace().matmul(a, b)" in message
    assert_failed_clean(graph, gpu)
    assert_next_capture_works(xp)


# --- what a break may return ----------------------------------------------------------------------------------


def test_a_break_that_returns_a_string_is_explained(driver: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()

    @bg.break_point
    def describe(a: Any) -> str:
        return "a label"

    with pytest.raises(NotCopyable) as raised, bg.capture(graph):
        describe(x + 1)
    message = told(raised.value)
    assert "describe" in message
    assert "str" in message
    assert "NO_WRITEBACK" in message
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_forgetting_no_writeback_for_a_plain_value_is_explained(driver: Any, xp: Any) -> None:
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(NotCopyable, match="NO_WRITEBACK"), bg.capture(graph):
        bg.break_here(lambda a: float(a.get().sum()), bg.INFER, x + 1)
    assert_failed_clean(graph, driver)
    with bg.capture() as graph:
        total = bg.break_here(lambda a: float(a.get().sum()), bg.NO_WRITEBACK, x + 1)
    assert total == 4.0
    assert graph.captured


def test_a_host_array_where_a_device_array_belongs_is_explained(driver: Any, xp: Any) -> None:
    x, dst, graph = zeros(xp), zeros(xp), bg.BreakableGraph()
    with pytest.raises(NotCopyable) as raised, bg.capture(graph):
        bg.break_here(lambda a: a.get() * 2, dst, x)
    assert "ndarray" in told(raised.value)
    assert "device" in told(raised.value) + told(raised.value)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_a_result_of_another_dtype_is_explained(driver: Any, xp: Any) -> None:
    x, dst, graph = zeros(xp), zeros(xp), bg.BreakableGraph()
    with pytest.raises(DTypeMismatch) as raised, bg.capture(graph):
        bg.break_here(lambda a: a.astype(np.float64), dst, x)
    assert "float64" in told(raised.value)
    assert "float32" in told(raised.value)
    assert "astype" in told(raised.value)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_a_destination_that_is_no_destination_is_explained(driver: Any, xp: Any) -> None:
    """The likeliest slip: the arguments without the destination, ``break_here(fn, 3.0, x)``."""
    x, graph = zeros(xp), bg.BreakableGraph()
    with pytest.raises(NotCopyable), bg.capture(graph):
        bg.break_here(lambda a: a, 3.0, x)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


@nothing_captured
def test_one_destination_for_two_breaks_names_both(driver: Any, xp: Any) -> None:
    x, dst, graph = zeros(xp), zeros(xp), bg.BreakableGraph()

    def first(a: Any) -> Any:
        return a + 1

    def second(a: Any) -> Any:
        return a + 2

    with pytest.raises(bg.errors.AliasedDestination) as raised, bg.capture(graph):
        bg.break_here(first, dst, x)
        bg.break_here(second, dst, x)
    message = told(raised.value)
    assert "first" in message
    assert "second" in message
    assert "shared" in message
    assert_failed_clean(graph, driver)


# --- decorators -----------------------------------------------------------------------------------------------


def test_a_name_in_writes_or_out_that_the_function_does_not_have_is_refused_when_it_is_decorated() -> None:
    for options in ({"writes": ("nothing",)}, {"out": "nothing"}):
        with pytest.raises((BreakgraphError, TypeError), match="nothing"):

            @bg.break_point(**options)
            def work(a: Any) -> Any:
                return a


def test_a_break_that_is_not_callable_is_refused(driver: Any, xp: Any) -> None:
    x = zeros(xp)
    with pytest.raises((BreakgraphError, TypeError)), bg.capture() as graph:
        bg.break_here(x, bg.INFER, x)
    assert graph.state == "failed"
    assert_next_capture_works(xp)


# --- errors themselves ----------------------------------------------------------------------------------------


def test_every_error_is_a_breakgraph_error_and_has_three_parts() -> None:
    for name in bg.errors.__all__:
        thing = getattr(bg.errors, name)
        if isinstance(thing, type) and issubclass(thing, Exception) and not issubclass(thing, Warning):
            assert issubclass(thing, BreakgraphError)
    error = DriverNotFound("no driver", why="because", remedy="install one", where="segment 1")
    assert str(error).splitlines() == ["no driver (at segment 1)", "  why: because", "  do:  install one"]


def test_each_code_of_the_capture_family_has_its_type_and_explains_itself() -> None:
    kinds = [type(driver_error(code, "stream_end_capture")) for code in range(900, 909)]
    assert len(set(kinds)) == 9
    for code, kind in enumerate(kinds, start=900):
        error = driver_error(code, "stream_end_capture")
        assert (error.code, error.call, error.sticky) == (code, "stream_end_capture", False)
        assert error.why
        assert error.remedy
        assert kind is not DriverError


def test_a_code_never_heard_of_is_a_driver_error_with_its_number() -> None:
    error = driver_error(12345, "graph_launch")
    assert type(error) is DriverError
    assert error.code == 12345
    assert "12345" in str(error)


def test_an_error_that_loses_the_context_says_so() -> None:
    error = driver_error(700, "stream_synchronize")
    assert error.sticky
    assert "restart" in str(error)
