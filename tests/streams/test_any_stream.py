"""A stream may be given in any form, and what cannot be captured is refused with the reason, before it is drawn in.

Proves C1's and C24's words on streams: an int handle, anything with ``__cuda_stream__``, and streams of cupy, torch
and numba are one and the same to capture, replay and aux_streams; what merely looks like one is refused. The legacy
stream is refused for a capture and accepted for a replay. A stream that captures for someone else is refused, that
capture is left as it was and ends well, and this thread's next capture is good.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from streams_support import Scene
from support import (
    Order,
    all_well,
    assert_next_capture_works,
    every_schedule,
    holds,
    in_threads,
    on_stream,
    refill,
    stream_of,
    zeros,
)

import breakgraph as bg
from breakgraph.driver.api import STREAM_LEGACY, STREAM_PER_THREAD, CaptureMode, CaptureStatus
from breakgraph.errors import CaptureStateError

# --- forms --------------------------------------------------------------------------------------------------------


class WithProtocol:
    """CUDA's stream protocol, and nothing else."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


def _library_class(module: str, name: str, **members: Any) -> type:
    """A class as a library that need not be installed has it: what its streams tell of themselves."""
    return type(name, (), {"__module__": module, **members})


CupyStream = _library_class("cupy.cuda.stream", "Stream")
CupyExternalStream = _library_class("cupy.cuda.stream", "ExternalStream")
TorchStream = _library_class("torch.cuda.streams", "Stream")
NumbaStream = _library_class("numba.cuda.cudadrv.driver", "Stream", __int__=lambda self: self.handle.value)


def _with(cls: type, **attributes: Any) -> Any:
    made = cls()
    made.__dict__.update(attributes)
    return made


FORMS = {
    "the library's stream": lambda stream: stream,
    "int": int,
    "numpy integer": lambda stream: np.uint64(int(stream)),
    "protocol": lambda stream: WithProtocol(int(stream)),
    "handle": lambda stream: bg.driver.StreamHandle(int(stream)),
    "cupy": lambda stream: _with(CupyStream, ptr=int(stream)),
    "cupy external": lambda stream: _with(CupyExternalStream, ptr=int(stream)),
    "torch": lambda stream: _with(TorchStream, cuda_stream=int(stream)),
    "numba": lambda stream: _with(NumbaStream, handle=SimpleNamespace(value=int(stream))),
}
every_form = pytest.mark.parametrize("form", FORMS)


@every_form
def test_a_capture_takes_a_stream_in_any_form(driver: Any, xp: Any, form: str) -> None:
    x, out, mine = zeros(xp), zeros(xp), driver.create_stream()
    driver.synchronize()
    with bg.capture(stream=FORMS[form](mine)) as graph:
        assert int(bg.current_stream()) == int(mine)
        assert stream_of(x) == int(mine)
        t = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        np.add(t, 3, out=out)
    assert graph.capture_stream == mine
    refill(x, 10)
    graph.replay()
    assert holds(out, 25)


@every_form
def test_a_replay_takes_a_stream_in_any_form(driver: Any, xp: Any, form: str) -> None:
    x, out, mine, seen = zeros(xp), zeros(xp), driver.create_stream(), []
    with bg.capture() as graph:
        t = bg.break_here(lambda a: seen.append(int(bg.current_stream())) or a * 2, bg.INFER, x + 1)
        np.add(t, 3, out=out)
    refill(x, 10)
    driver.synchronize()
    graph.replay(stream=FORMS[form](mine))
    driver.stream_synchronize(int(mine))
    assert holds(out, 25)
    assert seen[-1] == int(mine)


@every_form
def test_an_aux_stream_may_have_any_form_and_is_the_same_in_each(driver: Any, xp: Any, form: str) -> None:
    scene = Scene(driver, xp)
    with bg.capture(aux_streams=(scene.sides[0], FORMS[form](scene.sides[0]))) as graph:
        bg.break_graph()
        with scene.on():
            np.multiply(scene.x, 2, out=scene.outs[0])
    scene.replay(graph, 3)
    assert scene.values[1] == 6


def test_streams_of_cupy_itself_are_taken(gpu: Any, xp: Any) -> None:
    import cupy

    x, out = zeros(xp), zeros(xp)
    for mine in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream()):
        with bg.capture(stream=mine) as graph:
            np.add(x, 1, out=out)
        assert int(graph.capture_stream) == mine.ptr
        refill(x, 10)
        gpu.synchronize()
        graph.replay(stream=mine)
        mine.synchronize()
        assert holds(out, 11)


def test_streams_of_the_bindings_themselves_are_taken(gpu: Any, xp: Any) -> None:
    from cuda.bindings import driver as cu

    x, out, mine = zeros(xp), zeros(xp), gpu.create_stream()
    with bg.capture(stream=cu.CUstream(int(mine))) as graph:
        np.add(x, 1, out=out)
    assert int(graph.capture_stream) == int(mine)
    refill(x, 10)
    graph.replay(stream=cu.CUstream(0))
    assert holds(out, 11)


# --- what is no stream ---------------------------------------------------------------------------------------------


class OnlyAnInt:
    """Turns into an int, as arrays, tensors and many numbers do."""

    def __int__(self) -> int:
        return 7


NO_STREAMS = {
    "True": True,
    "False": False,
    "float": 1.0,
    "text": "0x10",
    "bytes": b"stream",
    "object": object(),
    "something with ptr": SimpleNamespace(ptr=16),
    "something with cuda_stream": SimpleNamespace(cuda_stream=16),
    "something with handle": SimpleNamespace(handle=16),
    "something that is an int": OnlyAnInt(),
    "numpy float": np.float32(3),
    "numpy array": np.zeros(4, np.int64),
    "a class": WithProtocol,
}


@pytest.mark.parametrize("what", NO_STREAMS)
@pytest.mark.parametrize("use", ["capture", "replay", "aux_streams"])
def test_what_is_no_stream_is_a_type_error_that_says_so(sim: Any, xp: Any, what: str, use: str) -> None:
    x, out = zeros(xp), zeros(xp)
    with bg.capture() as graph:
        np.add(x, 1, out=out)
    made = dict(sim.live())
    launches, begun = sim.calls["graph_launch"], sim.calls["stream_begin_capture"]
    with pytest.raises(TypeError, match="stream"):
        if use == "replay":
            graph.replay(stream=NO_STREAMS[what])
        elif use == "capture":
            with bg.capture(stream=NO_STREAMS[what]):
                pytest.fail("the body of a refused capture ran")
        else:
            with bg.capture(aux_streams=(NO_STREAMS[what],)):
                pytest.fail("the body of a refused capture ran")
    assert (sim.calls["graph_launch"], sim.calls["stream_begin_capture"]) == (launches, begun)
    assert {kind: sim.live()[kind] for kind in ("stream", "event", "graph_exec")} == {
        kind: made[kind] for kind in ("stream", "event", "graph_exec")
    }
    assert gc.isenabled()
    assert not bg.is_capturing()
    refill(x, 4)
    graph.replay()
    assert holds(out, 5)
    assert_next_capture_works(xp)


def test_a_device_array_is_no_stream(driver: Any, xp: Any) -> None:
    """Those of cupy have ``.data.ptr``, and turn into ints."""
    x = zeros(xp)
    with pytest.raises(TypeError), bg.capture(stream=x):
        pytest.fail("the body of a refused capture ran")
    with pytest.raises(TypeError), bg.capture(stream=xp.asarray(np.int64(7))):
        pytest.fail("the body of a refused capture ran")
    assert_next_capture_works(xp)


# --- default streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [int, WithProtocol, bg.driver.StreamHandle])
@pytest.mark.parametrize("handle", [0, STREAM_LEGACY])
def test_the_legacy_stream_is_refused_for_a_capture_with_the_reason(
    driver: Any, xp: Any, handle: int, form: Any
) -> None:
    graph = bg.BreakableGraph()
    begun = driver.calls["stream_begin_capture"] if driver.name == "sim" else 0
    with (
        pytest.raises(CaptureStateError, match="legacy default stream") as raised,
        bg.capture(graph, stream=form(handle)),
    ):
        pytest.fail("the body of a refused capture ran")
    assert "900" in raised.value.why
    assert "create_stream" in raised.value.remedy
    assert graph.state == "empty"
    if driver.name == "sim":
        assert driver.calls["stream_begin_capture"] == begun
    assert driver.stream_is_capturing(STREAM_LEGACY) == CaptureStatus.NONE
    assert_next_capture_works(xp)


@every_schedule
@pytest.mark.parametrize("handle", [0, STREAM_LEGACY])
def test_a_replay_may_run_on_the_legacy_stream(driver: Any, xp: Any, handle: int) -> None:
    scene = Scene(driver, xp)
    with bg.capture(aux_streams=scene.sides) as graph:
        t = bg.break_here(lambda a: a * 2, bg.INFER, scene.x + 1)
        with scene.on():
            np.add(t, 3, out=scene.outs[0])
    for x in (3, 4):
        scene.replay(graph, x, stream=handle)
        assert scene.values[1] == (x + 1) * 2 + 3


@every_schedule
def test_the_threads_own_default_stream_may_be_captured_and_replayed_on(driver: Any, xp: Any) -> None:
    """It is a blocking stream like any other, so the legacy one must be left alone meanwhile."""
    x, out = zeros(xp), zeros(xp)
    driver.synchronize()
    with bg.capture(stream=STREAM_PER_THREAD) as graph:
        t = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        np.add(t, 3, out=out)
    assert driver.stream_is_capturing(STREAM_PER_THREAD) == CaptureStatus.NONE
    for value in (3, 4):
        driver.synchronize()
        refill(x, value)
        driver.synchronize()
        graph.replay(stream=STREAM_PER_THREAD)
        driver.synchronize()
        assert holds(out, (value + 1) * 2 + 3)


@every_schedule
def test_a_blocking_stream_may_be_captured(driver: Any, xp: Any) -> None:
    x, out, mine = zeros(xp), zeros(xp), driver.create_stream(blocking=True)
    with bg.capture(stream=mine) as graph:
        t = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        np.add(t, 3, out=out)
    refill(x, 10)
    graph.replay()
    assert holds(out, 25)


# --- streams that capture for someone else --------------------------------------------------------------------------


class Theirs:
    """A capture of somebody else, on an origin and a side stream, with a node on each."""

    def __init__(self, driver: Any, x: Any, mode: CaptureMode, *, blocking: bool = False) -> None:
        self.driver = driver
        self.origin, self.side = driver.create_stream(blocking=blocking), driver.create_stream()
        self.outs, self.order = [zeros(bg.array_namespace()) for _ in range(2)], Order(driver)
        driver.synchronize()
        driver.stream_begin_capture(int(self.origin), mode)
        with on_stream(x, self.origin):
            np.add(x, 1, out=self.outs[0])
        self.order(self.origin, self.side)
        with on_stream(x, self.side):
            np.add(x, 2, out=self.outs[1])
        self.seen = self.looks()

    def looks(self) -> list[Any]:
        return [self.driver.stream_get_capture_info(int(one)) for one in (self.origin, self.side)]

    def check_and_end(self) -> None:
        """It is as it was; it ends, and its graph runs."""
        driver = self.driver
        assert self.looks() == self.seen
        self.order(self.side, self.origin)
        graph = driver.stream_end_capture(int(self.origin))
        assert driver.graph_get_node_count(graph) == 2
        made = driver.graph_instantiate(graph)
        driver.graph_launch(made, int(self.origin))
        driver.synchronize()
        assert holds(self.outs[0], 1)
        assert holds(self.outs[1], 2)
        driver.graph_exec_destroy(made)
        driver.graph_destroy(graph)


@pytest.mark.parametrize("mode", list(CaptureMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("which", ["origin", "side"])
@pytest.mark.parametrize("use", ["captured", "aux", "current at entry", "replayed on"])
def test_a_stream_of_somebody_elses_capture_is_refused_and_that_capture_left_as_it_was(
    driver: Any, xp: Any, mode: CaptureMode, which: str, use: str
) -> None:
    x, out, arena = zeros(xp), zeros(xp), bg.Arena()
    with bg.capture(arena=arena) as good:
        np.add(x, 1, out=out)
    theirs, graph = Theirs(driver, x, mode), bg.BreakableGraph()
    stream = getattr(theirs, which)
    with pytest.raises(CaptureStateError, match=hex(int(stream))) as raised:
        if use == "replayed on":
            good.replay(stream=stream)
        elif use == "captured":
            with bg.capture(graph, stream=stream, arena=arena):
                pytest.fail("the body of a refused capture ran")
        elif use == "aux":
            with bg.capture(graph, aux_streams=(stream,), arena=arena):
                pytest.fail("the body of a refused capture ran")
        else:
            with on_stream(x, stream), bg.capture(graph, arena=arena):
                pytest.fail("the body of a refused capture ran")
    assert "capturing" in str(raised.value)
    assert raised.value.remedy
    assert graph.state == "empty"
    assert good.replays == 0
    theirs.check_and_end()
    refill(x, 4)
    good.replay()
    assert holds(out, 5)
    assert_next_capture_works(xp, stream=stream)


def test_a_stream_that_another_thread_captures_on_is_refused_and_that_capture_left_as_it_was(
    driver: Any, xp: Any
) -> None:
    x, arena, graph = zeros(xp), bg.Arena(), bg.BreakableGraph()

    def they() -> None:
        theirs = Theirs(driver, x, CaptureMode.THREAD_LOCAL)
        all_well(in_threads(driver, lambda: we(theirs)))
        theirs.check_and_end()

    def we(theirs: Theirs) -> None:
        for stream in (theirs.origin, theirs.side):
            for options in ({"stream": stream}, {"aux_streams": (stream,)}):
                with (
                    pytest.raises(CaptureStateError, match=hex(int(stream))),
                    bg.capture(graph, arena=arena, **options),
                ):
                    pytest.fail("the body of a refused capture ran")

    all_well(in_threads(driver, they))
    assert graph.state == "empty"
    assert_next_capture_works(xp)


def test_a_stream_of_a_capture_of_the_librarys_own_in_another_thread_is_refused(driver: Any, xp: Any) -> None:
    x, out, mine, arena, other = zeros(xp), zeros(xp), driver.create_stream(), bg.Arena(), bg.Arena()

    def they() -> Any:
        with bg.capture(stream=mine, arena=arena) as graph:
            np.add(x, 1, out=out)
            all_well(in_threads(driver, we))
            bg.break_here(lambda: all_well(in_threads(driver, we_in_the_break)), bg.IN_PLACE)
            np.add(out, 1, out=out)
        return graph

    def we() -> None:
        with pytest.raises(CaptureStateError), bg.capture(stream=mine, arena=other):
            pytest.fail("the body of a refused capture ran")

    def we_in_the_break() -> None:
        assert driver.stream_is_capturing(int(mine)) == CaptureStatus.NONE

    (graph,) = all_well(in_threads(driver, they))
    refill(x, 4)
    graph.replay()
    assert holds(out, 6)
    assert_next_capture_works(xp)


def test_a_blocking_capture_of_somebody_else_refuses_what_needs_the_legacy_stream(driver: Any, xp: Any) -> None:
    """The default stream would be drawn into it (906); with another current stream the thread captures as ever."""
    x, out, arena, mine = zeros(xp), zeros(xp), bg.Arena(), driver.create_stream()
    theirs = Theirs(driver, x, CaptureMode.THREAD_LOCAL, blocking=True)
    with pytest.raises(CaptureStateError, match="906"), bg.capture(arena=arena):
        pytest.fail("the body of a refused capture ran")
    with on_stream(x, mine), bg.capture(arena=arena) as graph:
        np.add(x, 1, out=out)
    with pytest.raises(CaptureStateError, match="906"):
        graph.replay(stream=0)
    theirs.check_and_end()
    graph.replay()
    assert holds(out, 1)
    assert_next_capture_works(xp)


@pytest.mark.parametrize("place", ["stream", "aux_streams", "replay"])
def test_a_stream_of_another_context_is_refused_before_anything_is_put_on_it(sim: Any, xp: Any, place: str) -> None:
    x, out = zeros(xp), zeros(xp)
    sim.ctx_create(0)
    foreign = sim.create_stream()
    sim.ctx_pop_current()
    with bg.capture() as graph:
        np.add(x, 1, out=out)
    launched = sim.calls["graph_launch"]
    with pytest.raises(bg.errors.CaptureStateError, match="no stream of the current context"):
        if place == "replay":
            graph.replay(stream=foreign)
        else:
            with bg.capture(**{place: foreign if place == "stream" else [foreign]}):
                np.add(x, 1, out=out)
    assert sim.calls["graph_launch"] == launched
    refill(x, 4)
    graph.replay()
    assert holds(out, 5)


def test_a_handle_equals_ints_and_streams_and_nothing_else(driver: Any, xp: Any) -> None:
    stream = driver.create_stream()
    handle = bg.driver.StreamHandle(int(stream))
    assert handle == int(stream)
    assert handle == stream
    for other in (float(int(stream)), np.zeros(4), None, "stream", True):
        assert handle.__eq__(other) is NotImplemented
