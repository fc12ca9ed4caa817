"""The usual replay: the C extension and its twin in Python do the same.

Proves for both: what has to be true is asked before anything is done, and where it is not, nothing is; the round runs
on the stream that is current then, for an owner made for it; what a step raises is told and goes on; afterwards
whoever waits is woken and the context is the caller's, and only then is anybody asked to see to it; several at a time
and one within another do each other no harm; nothing of it keeps memory.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from test_rounds import CONTEXT, MARK, QUESTIONS, STREAM, WAIT, Bench, Calls
from twins import Owner, Refused, growth

DEFAULT = 1  # the stream that 0 is


class Here(threading.local):
    """As `breakgraph.driver.here` has it."""

    def __init__(self) -> None:
        self.me = Owner()
        self.reference = weakref.ref(self.me)
        self.capture: Any = None
        self.contexts: list[Any] = []
        self.replays: list[Any] = []
        self.streams: list[int] = []


class Running:
    """An owner, which knows its stream."""

    def __init__(self, stream: int) -> None:
        self.stream = stream


class Scene(Bench):
    """A usual replay, and all that it asks."""

    def __init__(self, twin: ModuleType, *steps: Callable[[], object] | None, calls: Calls | None = None) -> None:
        super().__init__(twin, calls=calls)
        self.here, self.driver = Here(), object()
        self.choice = SimpleNamespace(driver=self.driver)
        self.steps = [1, 2, 3]
        self.stream: Any = STREAM
        self.waiting: dict[Any, Any] = {}
        self.told: list[BaseException] = []
        self.settled = 0
        self.needs_context = False
        self.of = self.sequence(*steps or (None,))
        self.usual = self.made()

    def made(self, **other: Any) -> Any:
        return self.round.usual(
            **{
                "sequence": self.of,
                "current_stream": lambda: self.stream,
                "default_stream": DEFAULT,
                "owner": Running,
                "here": self.here,
                "choice": self.choice,
                "driver": self.driver,
                "steps": self.steps,
                "needs_context": self.needs_context,
                "waiting": self.waiting,
                "stopped": self.told.append,
                "settle": self._settle,
                **other,
            }
        )

    def _settle(self) -> None:
        self.settled += 1

    def is_idle(self) -> bool:
        return (self.claim.owner, self.here.replays, self.here.streams) == (None, [], [])


HOME = ("get_context",)  # asked once more at the end
RUN = [*QUESTIONS, WAIT, ("launch", 40, STREAM), MARK, HOME]


def test_it_runs_for_an_owner_on_the_stream_that_is_current(twin: ModuleType) -> None:
    seen: list[Any] = []

    def step() -> None:
        owner = scene.claim.owner
        seen.append((type(owner), owner.stream, scene.here.replays[-1]() is owner, list(scene.here.streams)))
        assert scene.claim.thread is scene.here.me

    scene = Scene(twin, step)
    for stream in (STREAM, STREAM + 1):
        scene.stream = stream
        assert scene.usual.run() is True
        assert scene.is_idle()
    assert seen == [(Running, stream, True, [stream]) for stream in (STREAM, STREAM + 1)]
    assert (scene.told, scene.settled) == ([], 0)


def test_the_driver_is_asked_next_to_nothing(twin: ModuleType) -> None:
    scene = Scene(twin)
    assert scene.usual.run() is True
    assert scene.calls.log == RUN


def test_stream_0_is_the_default_stream(twin: ModuleType) -> None:
    scene = Scene(twin)
    scene.stream = 0
    assert scene.usual.run() is True
    assert ("launch", 40, DEFAULT) in scene.calls.log


def capturing(scene: Scene) -> Callable[[], object]:
    scene.here.capture = object()
    return lambda: setattr(scene.here, "capture", None)


def other_driver(scene: Scene) -> Callable[[], object]:
    scene.choice.driver = None
    return lambda: setattr(scene.choice, "driver", scene.driver)


def step_lost(scene: Scene) -> Callable[[], object]:
    scene.steps.pop()
    return lambda: scene.steps.append(4)


def no_stream(scene: Scene) -> Callable[[], object]:
    scene.stream = None
    return lambda: setattr(scene, "stream", STREAM)


def no_forward_context(scene: Scene) -> Callable[[], object]:
    scene.needs_context = True
    scene.usual = scene.made()
    return lambda: scene.here.contexts.append("a context")


def forward_context_none(scene: Scene) -> Callable[[], object]:
    mend = no_forward_context(scene)
    scene.here.contexts += ["an outer one", None]
    return mend


def out_of_the_ordinary(scene: Scene) -> Callable[[], object]:
    scene.round.is_open = False
    return lambda: setattr(scene.round, "is_open", True)


@pytest.mark.parametrize(
    "case",
    [capturing, other_driver, step_lost, no_stream, no_forward_context, forward_context_none, out_of_the_ordinary],
)
def test_where_it_is_another_case_nothing_is_done(
    twin: ModuleType, case: Callable[[Scene], Callable[[], object]]
) -> None:
    scene = Scene(twin, lambda: scene.calls.log.append("step"))
    mend = case(scene)
    assert scene.usual.run() is False
    assert {"wait_event", "launch", "record_event", "step"}.isdisjoint(
        step if isinstance(step, str) else step[0] for step in scene.calls.log
    )
    assert scene.is_idle()
    assert scene.settled == 0
    mend()
    assert scene.usual.run() is True


def test_a_library_that_cannot_tell_its_stream_is_heard(twin: ModuleType) -> None:
    def current_stream() -> int:
        raise ValueError("mine")

    scene = Scene(twin)
    with pytest.raises(ValueError, match="mine"):
        scene.made(current_stream=current_stream).run()
    with pytest.raises(TypeError):
        scene.made(current_stream=lambda: "9").run()
    assert {"wait_event", "launch", "record_event"}.isdisjoint(scene.names)
    assert scene.is_idle()


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyboardInterrupt(), "launch"], ids=repr)
@pytest.mark.parametrize("with_somebody_waiting", [False, True])
def test_what_a_step_raises_is_told_and_goes_on(twin: ModuleType, raised: Any, with_somebody_waiting: bool) -> None:
    def step() -> None:
        if isinstance(raised, BaseException):
            raise raised
        scene.calls.codes["launch"] = 700

    scene = Scene(twin, step, None)
    if with_somebody_waiting:
        scene.waiting["somebody"] = 1
    with pytest.raises(type(raised) if isinstance(raised, BaseException) else Refused) as caught:
        scene.usual.run()
    assert scene.told == [caught.value]
    assert scene.settled == with_somebody_waiting
    assert scene.is_idle()
    scene.calls.codes.clear()
    scene.waiting.clear()
    raised = None
    assert scene.made(sequence=scene.sequence(None)).run() is True


def test_a_note_that_is_added_while_it_is_told_stays_and_so_does_the_traceback(twin: ModuleType) -> None:
    def step() -> None:
        raise ValueError("mine")

    scene = Scene(twin, step)
    with pytest.raises(ValueError, match="mine") as caught:
        scene.made(stopped=lambda error: error.add_note("in step 3")).run()
    assert caught.value.__notes__ == ["in step 3"]
    assert caught.traceback[-1].name == "step"


def test_where_it_cannot_be_told_it_is_seen_to_all_the_same(twin: ModuleType) -> None:
    def step() -> None:
        raise ValueError("mine")

    def stopped(error: BaseException) -> None:
        raise TypeError("it takes no notes")

    scene = Scene(twin, step)
    scene.waiting["somebody"] = 1
    with pytest.raises(TypeError, match="takes no notes") as caught:
        scene.made(stopped=stopped).run()
    assert isinstance(caught.value.__context__, ValueError)
    assert scene.settled == 1
    assert scene.is_idle()


@pytest.mark.parametrize("why", ["somebody waits", "another context", "no context can be told"])
def test_it_is_seen_to_afterwards_where_that_is_needed(twin: ModuleType, why: str) -> None:
    def step() -> None:
        if why == "somebody waits":
            scene.waiting["somebody"] = 1
        elif why == "another context":
            scene.calls.answers["get_context"] = CONTEXT + 1
        else:
            scene.calls.codes["get_context"] = 4

    scene = Scene(twin, step)
    assert scene.usual.run() is True
    assert scene.settled == 1
    assert scene.is_idle()


def test_what_fails_afterwards_is_raised(twin: ModuleType) -> None:
    def settle() -> None:
        raise ValueError("mine")

    scene = Scene(twin)
    scene.waiting["somebody"] = 1
    with pytest.raises(ValueError, match="mine"):
        scene.made(settle=settle).run()
    assert scene.is_idle()


def test_an_owner_that_somebody_keeps_is_nobody_elses(twin: ModuleType) -> None:
    kept: list[Any] = []
    scene = Scene(twin, lambda: kept.append(scene.claim.owner))
    for stream in (STREAM, STREAM + 1):
        scene.stream = stream
        assert scene.usual.run() is True
    assert kept[0] is not kept[1]
    assert [owner.stream for owner in kept] == [STREAM, STREAM + 1]


def test_one_within_another_runs_where_it_has_a_claim_of_its_own(twin: ModuleType) -> None:
    seen: list[Any] = []

    def nested() -> None:
        seen.append(outer.usual.run())  # the claim is taken
        seen.append(inner.usual.run())
        seen.append(list(outer.here.streams))

    outer = Scene(twin, nested)
    inner = Scene(twin, lambda: seen.append(list(outer.here.streams)), calls=outer.calls)
    inner.here, inner.stream = outer.here, 4
    inner.usual = inner.made()
    assert outer.usual.run() is True
    assert seen == [False, [STREAM, 4], True, [STREAM]]
    assert outer.is_idle()


def test_each_thread_has_its_own(twin: ModuleType) -> None:
    scene = Scene(twin)
    scene.here.capture = object()
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(scene.usual.run()))
    thread.start()
    thread.join(20)
    assert outcome == [True]
    assert scene.usual.run() is False


@pytest.mark.parametrize("name", ["contexts", "replays", "streams"])
def test_what_is_no_thread_of_ours_is_refused(twin: ModuleType, name: str) -> None:
    scene = Scene(twin)
    scene.needs_context = True
    scene.here.contexts.append(1)
    setattr(scene.here, name, 5)
    with pytest.raises((TypeError, AttributeError)):
        scene.made().run()
    assert "launch" not in scene.names


def test_usual_replays_good_refused_and_failing_leave_no_memory_behind(twin: ModuleType) -> None:
    def step() -> None:
        if failing:
            raise ValueError

    failing: list[int] = []
    scene = Scene(twin, step, None)
    scene.calls.log = type("Forgetful", (list,), {"append": lambda *_: None})()
    scene.told = type("Forgetful", (list,), {"append": lambda *_: None})()
    scene.stream = 10**12
    scene.usual = scene.made()
    held = (scene.here.me, scene.here.reference, scene.here.replays, scene.here.streams, scene.claim, scene.round)
    held += (scene.driver, scene.steps, scene.waiting, step, scene.of)
    scene.usual.run()
    before = list(map(sys.getrefcount, held))

    def work() -> None:
        scene.usual.run()
        failing.append(1)
        with suppress(ValueError):
            scene.usual.run()
        failing.clear()
        scene.round.is_open = False
        scene.usual.run()
        scene.round.is_open = True
        scene.stream = None
        scene.usual.run()
        scene.stream = 10**12

    assert growth(work) < 0.1
    assert list(map(sys.getrefcount, held)) == before


def test_a_usual_replay_in_a_circle_is_collected(twin: ModuleType) -> None:
    scene = Scene(twin)
    scene.usual.run()
    gone = weakref.ref(scene)
    del scene
    gc.collect()
    assert gone() is None
