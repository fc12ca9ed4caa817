"""An event and its wait must not span a break: the driver refuses it, and the error says so and what to do instead.

Proves what docs/streams.md says of events, through the driver's own calls and through cupy's events. An event that was
recorded in a segment marks a place in a graph; with the segment that place is gone, and whoever waits for it is
answered 1 (invalid value). The same pair within one segment, within breaks, or recorded again after the break is good.

       --[segment 0: record e]--break--[segment 1: wait e]--     1, and segment 1 is given up
       --[segment 0: record e]--break--[segment 1: record e, wait e]--     good
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from streams_support import Scene, full_text
from support import assert_failed_clean, assert_next_capture_works, every_schedule, holds, zeros

import breakgraph as bg
from breakgraph.driver.api import CaptureStatus, EventFlag
from breakgraph.errors import (
    CapturedEvent,
    CaptureFailed,
    CaptureInvalidated,
    CaptureIsolation,
    CaptureStateError,
    DriverError,
)


class DriverEvent:
    """An event through the calls of the current driver."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._owner = bg.driver.Event(driver.event_create(), driver.event_destroy)

    def record(self, stream: Any) -> None:
        self._driver.event_record(self._owner.handle, int(stream))

    def wait(self, stream: Any) -> None:
        self._driver.stream_wait_event(int(stream), self._owner.handle)

    def synchronize(self) -> None:
        self._driver.event_synchronize(self._owner.handle)


class CupyEvent:
    """The same through cupy."""

    def __init__(self, driver: Any) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._event = cupy.cuda.Event(disable_timing=True)

    def record(self, stream: Any) -> None:
        self._event.record(self._theirs(stream))

    def wait(self, stream: Any) -> None:
        self._theirs(stream).wait_event(self._event)

    def synchronize(self) -> None:
        self._event.synchronize()

    def _theirs(self, stream: Any) -> Any:
        made = getattr(self._cuda.Stream, "from_external", None)
        return made(stream) if made is not None else self._cuda.ExternalStream(int(stream))


@pytest.fixture(params=["driver", "cupy"])
def event(request: pytest.FixtureRequest, driver: Any) -> Any:
    """An event of the current driver, or of cupy."""
    if request.param == "driver":
        return DriverEvent(driver)
    if driver.name != "cuda":
        pytest.skip("cupy's events are on the cuda driver")
    return CupyEvent(driver)


def says_the_rule(error: BaseException) -> bool:
    """Whether the error tells which rule was broken, and both ways to mend it."""
    said = full_text(error)
    return all(words in said for words in ("must not span a break", "ecord it again after the break", "aux_streams"))


def code_of(error: BaseException) -> int:
    """The driver's result code, in our error or in a library's."""
    return int(getattr(error, "code", getattr(error, "status", -1)))


def test_waiting_in_the_next_segment_names_the_rule_the_mend_and_the_segment(driver: Any, xp: Any, event: Any) -> None:
    scene, raised_at = Scene(driver, xp), []
    with pytest.raises(Exception, match=r"(?i)invalid") as raised, bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        event.record(bg.current_stream())
        bg.break_graph()
        raised_at.append(len(graph.segments))
        event.wait(bg.current_stream())
    assert raised_at == [1]
    assert code_of(raised.value) == 1
    assert says_the_rule(raised.value)
    assert "segment 1" in full_text(raised.value)
    assert "given the capture up" in full_text(raised.value)
    assert graph.error is raised.value
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


@pytest.mark.parametrize("far", [1, 3])
def test_however_many_breaks_lie_between_it_is_the_same_error(driver: Any, xp: Any, event: Any, far: int) -> None:
    scene = Scene(driver, xp)
    with pytest.raises(Exception, match=r"(?i)invalid") as raised, bg.capture() as graph:
        with scene.fork():
            np.add(scene.x, 1, out=scene.outs[0])
            event.record(scene.sides[0])
        for _ in range(far):
            bg.break_graph()
        event.wait(bg.current_stream())
    assert says_the_rule(raised.value)
    assert f"segment {far}" in full_text(raised.value)
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


@pytest.mark.parametrize("how", ["wait of another stream", "wait of the origin", "synchronize"])
def test_waiting_in_the_break_names_the_rule_too(driver: Any, xp: Any, event: Any, how: str) -> None:
    scene = Scene(driver, xp)

    def waits() -> None:
        if how == "synchronize":
            event.synchronize()
        else:
            event.wait(scene.sides[0] if how == "wait of another stream" else bg.current_stream())

    with pytest.raises(Exception, match=r"(?i)invalid") as raised, bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        event.record(bg.current_stream())
        bg.break_here(waits, bg.IN_PLACE)
    assert code_of(raised.value) == 1
    assert says_the_rule(raised.value)
    assert "waits" in full_text(raised.value), "the break is named"
    assert_failed_clean(graph, driver)
    scene.check_sides_usable()
    assert_next_capture_works(xp)


def test_a_query_in_the_break_names_the_rule_too(driver: Any, xp: Any) -> None:
    """Cupy's query does not raise, it says "not done"."""
    scene = Scene(driver, xp)
    event = bg.driver.Event(driver.event_create(), driver.event_destroy)
    with pytest.raises(DriverError) as raised, bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        driver.event_record(event.handle, int(bg.current_stream()))
        bg.break_here(lambda: driver.event_query(event.handle), bg.NO_WRITEBACK)
    assert raised.value.code == 1
    assert says_the_rule(raised.value)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_a_stream_outside_the_capture_that_waits_for_it_harms_nothing(driver: Any, xp: Any, event: Any) -> None:
    """The driver refuses the wait alone: handled, the forward is whole."""
    scene = Scene(driver, xp)
    with bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        event.record(bg.current_stream())
        bg.break_graph()
        with pytest.raises(Exception, match=r"(?i)invalid") as raised:
            event.wait(scene.sides[0])
        assert driver.stream_is_capturing(int(bg.current_stream())) == CaptureStatus.ACTIVE
        np.add(scene.main, 1, out=scene.main)
    assert code_of(raised.value) == 1
    assert graph.captured
    scene.replay(graph, 3)
    assert scene.values[0] == 5
    scene.check_sides_usable()


@pytest.mark.parametrize("then", ["end", "break"])
def test_a_wait_whose_error_is_swallowed_fails_the_capture_and_the_error_tells_of_such_waits(
    driver: Any, xp: Any, event: Any, then: str
) -> None:
    scene, graph = Scene(driver, xp), bg.BreakableGraph()
    with pytest.raises((CaptureFailed, CaptureInvalidated)) as raised, bg.capture(graph):
        np.add(scene.x, 1, out=scene.main)
        event.record(bg.current_stream())
        bg.break_graph()
        with contextlib.suppress(Exception):
            event.wait(bg.current_stream())
        if then == "break":
            bg.break_graph()
    said = full_text(raised.value)
    assert "event" in said
    assert "recorded before that break" in said
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_other_errors_say_nothing_of_events(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    for failing in (_raise_value_error, _raise_400):
        for in_break in (False, True):
            with pytest.raises((ValueError, DriverError)) as raised, bg.capture() as graph:
                np.add(scene.x, 1, out=scene.main)
                if in_break:
                    bg.break_here(failing, bg.IN_PLACE)
                failing()
            assert "span a break" not in full_text(raised.value)
            assert_failed_clean(graph, driver)


def _raise_value_error() -> None:
    raise ValueError("planned")


def _raise_400() -> None:
    raise bg.errors.driver_error(400, "event_record", "CUDA_ERROR_INVALID_HANDLE")


# --- the mends, and what was never wrong --------------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("mend", ["recorded again", "aux_streams"])
def test_the_mends_that_the_error_names_work(driver: Any, xp: Any, mend: str) -> None:
    scene, event = Scene(driver, xp), DriverEvent(driver)
    with bg.capture(aux_streams=scene.sides if mend == "aux_streams" else ()) as graph:
        np.add(scene.x, 1, out=scene.main)
        event.record(bg.current_stream())
        event.wait(scene.sides[0])
        bg.break_graph()
        if mend == "recorded again":
            event.record(bg.current_stream())
            event.wait(scene.sides[0])
        with scene.on():
            np.multiply(scene.main, 2, out=scene.outs[0])
        event.record(scene.sides[0])
        event.wait(bg.current_stream())
        np.add(scene.outs[0], 1, out=scene.main)
    scene.replay(graph, 3)
    assert scene.values == [9, 8]


@every_schedule
def test_one_event_may_serve_in_every_segment(driver: Any, xp: Any) -> None:
    scene, event = Scene(driver, xp), DriverEvent(driver)
    with bg.capture() as graph:
        t = scene.x
        for _ in range(3):
            event.record(bg.current_stream())
            event.wait(scene.sides[0])
            with scene.on():
                np.add(t, 1, out=scene.outs[0])
            event.record(scene.sides[0])
            event.wait(bg.current_stream())
            t = bg.break_here(lambda a: a * 2, bg.INFER, scene.outs[0])
        np.add(t, 0, out=scene.main)
    scene.replay(graph, 3)
    assert scene.values == [38, 19]


@every_schedule
def test_a_pair_within_breaks_may_have_a_segment_between_them(driver: Any, xp: Any) -> None:
    """Both are eager, at capture and at replay."""
    scene, event, other = Scene(driver, xp), DriverEvent(driver), zeros(xp)
    driver.synchronize()

    def records() -> None:
        event.wait(scene.sides[0])  # what it did last time is not read any more
        event.record(bg.current_stream())
        event.wait(scene.sides[0])
        with scene.on():
            np.add(scene.main, 10, out=scene.outs[0])
        event.record(scene.sides[0])

    def waits() -> None:
        event.wait(bg.current_stream())
        np.add(scene.outs[0], 100, out=scene.outs[0])

    with bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        bg.break_here(records, bg.IN_PLACE)
        np.add(scene.x, 2, out=other)
        bg.break_here(waits, bg.IN_PLACE)
        np.add(other, 0, out=scene.main)
    for x in (3, 4):
        scene.replay(graph, x)
        assert scene.values == [x + 2, x + 111]


@every_schedule
def test_an_event_of_an_ended_segment_is_good_again_once_a_break_has_recorded_it(driver: Any, xp: Any) -> None:
    scene, event = Scene(driver, xp), DriverEvent(driver)

    def records() -> None:
        event.record(bg.current_stream())
        event.wait(scene.sides[0])
        with scene.on():
            np.add(scene.main, 10, out=scene.outs[0])
        event.record(scene.sides[0])
        event.wait(bg.current_stream())

    with bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        event.record(bg.current_stream())
        bg.break_here(records, bg.IN_PLACE)
        np.add(scene.outs[0], 1, out=scene.main)
    scene.replay(graph, 3)
    assert scene.values == [15, 14]


def test_an_event_of_a_break_cannot_be_waited_on_in_a_segment_either(driver: Any, xp: Any) -> None:
    """905: the segment is a graph, and the event marks a place in a stream. The library has ordered the two already."""
    scene, event = Scene(driver, xp), DriverEvent(driver)
    with pytest.raises(CaptureIsolation) as raised, bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        bg.break_here(lambda: event.record(bg.current_stream()), bg.IN_PLACE)
        event.wait(bg.current_stream())
    assert raised.value.why
    assert "break" in raised.value.remedy
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


@every_schedule
def test_an_event_of_a_break_may_be_waited_on_as_an_external_one(driver: Any, xp: Any) -> None:
    """Then it is a node, which waits for the record that is the last one when the segment is launched."""
    scene = Scene(driver, xp)
    event = bg.driver.Event(driver.event_create(), driver.event_destroy)

    def records() -> None:
        scene.order(bg.current_stream(), scene.sides[0])
        with scene.on():
            np.add(scene.main, 10, out=scene.outs[0])
        driver.event_record(event.handle, int(scene.sides[0]))

    with bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        bg.break_here(records, bg.IN_PLACE)
        driver.stream_wait_event(int(bg.current_stream()), event.handle, EventFlag.EXTERNAL)
        np.add(scene.outs[0], 1, out=scene.main)
    for x in (3, 4):
        scene.replay(graph, x)
        assert scene.values == [x + 12, x + 11]


def test_a_query_of_an_event_within_its_own_segment_is_refused_by_the_driver(driver: Any, xp: Any) -> None:
    scene = Scene(driver, xp)
    event = bg.driver.Event(driver.event_create(), driver.event_destroy)
    with pytest.raises(CapturedEvent) as raised, bg.capture() as graph:
        np.add(scene.x, 1, out=scene.main)
        driver.event_record(event.handle, int(bg.current_stream()))
        driver.event_query(event.handle)
    assert "segment 0" in full_text(raised.value)
    assert_failed_clean(graph, driver)
    assert_next_capture_works(xp)


def test_an_event_of_a_failed_capture_is_good_again_once_it_is_recorded(driver: Any, xp: Any, event: Any) -> None:
    scene = Scene(driver, xp)
    with pytest.raises(CaptureStateError), bg.capture():
        np.add(scene.x, 1, out=scene.main)
        event.record(bg.current_stream())
        with bg.capture():
            pass
    event.record(scene.sides[0])
    event.synchronize()
    with bg.capture() as graph:
        event.record(bg.current_stream())
        event.wait(scene.sides[0])
        with scene.on():
            np.multiply(scene.x, 2, out=scene.outs[0])
    scene.replay(graph, 3)
    assert holds(scene.outs[0], 6)
