"""The quick forms of what replay does most: the C extension and its twin in Python do the same.

Proves for both: a call passes its words and gives back its answer, a result code becomes the exception that the caller
made for it, other threads do not run during a call; a sequence launches and calls in order and stops where something is
raised, telling where; a detour is its function, until the set has something in it; none of it keeps memory. Claims and
rounds: test_rounds.py.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import inspect
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from twins import Place, Refused, address, c_function, growth, launcher

from breakgraph.driver import StreamHandle

MOST = 2**64 - 1


@pytest.mark.parametrize("words", range(9))
def test_a_call_passes_its_words(twin: ModuleType, words: int) -> None:
    seen: list[tuple[int, ...]] = []
    function = c_function(lambda *given: seen.append(tuple(given)) or 0, words)
    given = (1, 0, MOST, 7, 5, MOST, 0, 3)[:words]
    assert twin.Call(address(function), words, Refused)(*given) is None
    assert seen == [given]


def test_a_call_gives_the_answer_that_was_written(twin: ModuleType) -> None:
    def answer(word: int, to: int) -> int:
        ctypes.c_uint64.from_address(to).value = word + 1
        return 0

    function = c_function(answer, 2)
    assert twin.Call(address(function), 1, Refused, answers=True)(41) == 42


def test_an_answer_of_32_bits_is_not_mixed_with_what_lay_there(twin: ModuleType) -> None:
    def answer(to: int) -> int:
        ctypes.c_uint32.from_address(to).value = 2
        return 0

    function = c_function(answer, 1)
    assert twin.Call(address(function), 0, Refused, answers=True)() == 2


def test_a_code_is_raised_as_the_caller_says(twin: ModuleType) -> None:
    function = c_function(lambda: 719, 0)
    with pytest.raises(Refused, match="719"):
        twin.Call(address(function), 0, Refused)()


@pytest.mark.parametrize(("code", "answer"), [(0, True), (600, False)])
def test_a_question_is_answered_by_the_code(twin: ModuleType, code: int, answer: bool) -> None:
    function = c_function(lambda word: code, 1)
    assert twin.Call(address(function), 1, Refused, unready=600)(5) is answer


def test_a_question_may_fail_too(twin: ModuleType) -> None:
    function = c_function(lambda word: 900, 1)
    with pytest.raises(Refused, match="900"):
        twin.Call(address(function), 1, Refused, unready=600)(5)


@pytest.mark.parametrize("given", [(), (1, 2), (1.5,), ([1],)])
def test_wrong_arguments_are_refused_before_the_call(twin: ModuleType, given: tuple[Any, ...]) -> None:
    made: list[int] = []
    function = c_function(lambda word: made.append(word) or 0, 1)
    with pytest.raises(TypeError):
        twin.Call(address(function), 1, Refused)(*given)
    assert not made


@pytest.mark.parametrize(
    ("given", "word"),
    [(StreamHandle(7), 7), (np.int32(7), 7), (np.uint64(MOST), MOST), (True, 1), (-1, MOST), (2**64 + 7, 7)],
    ids=str,
)
def test_a_word_is_the_lowest_64_bits_of_whatever_has_an_index(twin: ModuleType, given: Any, word: int) -> None:
    seen: list[int] = []
    function = c_function(lambda word: seen.append(word) or 0, 1)
    twin.Call(address(function), 1, Refused)(given)
    assert seen == [word]


@pytest.mark.parametrize(("where", "words", "answers"), [(0, 1, False), (16, 9, False), (16, 8, True), (16, -1, False)])
def test_a_call_that_cannot_be_is_refused(twin: ModuleType, where: int, words: int, answers: bool) -> None:
    with pytest.raises(ValueError, match="eight words"):
        twin.Call(where, words, Refused, answers)


def test_no_other_thread_runs_during_a_call(twin: ModuleType) -> None:
    """Beside a thread that counts every millisecond, and gives the lock up in between, a C function sleeps."""
    libc = ctypes.CDLL(None)
    counts, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counts[0] += 1

    sleep = twin.Call(address(libc.usleep), 1, Refused)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counts[0]
        sleep(200_000)
        during = counts[0] - before
        libc.usleep(200_000)  # gives the lock up, as ctypes' own calls do
        beside = counts[0] - before - during
    finally:
        stop.set()
        thread.join()
    assert during < beside / 3  # it may run before the call has begun


def test_a_sequence_launches_and_calls_in_order_on_the_stream(twin: ModuleType) -> None:
    log: list[object] = []
    launch, kept = launcher(twin, lambda graph_exec, stream: log.append((graph_exec, stream)) or 0)
    place = Place()
    twin.Sequence(
        launch, [(5, lambda: log.append("a")), (0, lambda: log.append("b")), (6, None), (0, None)], place
    ).run(9)
    assert place.stream == 9
    assert log == [(5, 9), "a", "b", (6, 9)]
    assert kept


def test_a_sequence_takes_whatever_has_an_index(twin: ModuleType) -> None:
    log: list[object] = []
    launch, kept = launcher(twin, lambda graph_exec, stream: log.append((graph_exec, stream)) or 0)
    place, stream = Place(), StreamHandle(9)
    twin.Sequence(launch, ((np.int64(number), None) for number in (5, 6)), place).run(stream)
    assert log == [(5, 9), (6, 9)]
    assert place.stream is stream
    assert kept


def test_an_empty_sequence_does_nothing(twin: ModuleType) -> None:
    launch, kept = launcher(twin, lambda graph_exec, stream: 1)
    twin.Sequence(launch, [], Place()).run(9)
    assert kept


def test_a_launch_that_fails_stops_the_sequence_there(twin: ModuleType) -> None:
    log: list[str] = []
    launch, kept = launcher(twin, lambda graph_exec, stream: 700 if graph_exec == 6 else 0)
    sequence = twin.Sequence(launch, [(5, lambda: log.append("a")), (6, lambda: log.append("b"))], Place())
    with pytest.raises(Refused, match="700"):
        sequence.run(9)
    assert (log, sequence.at) == (["a"], 2)
    assert kept


def test_what_a_sequence_was_made_of_may_change_afterwards(twin: ModuleType) -> None:
    log: list[int] = []
    launch, kept = launcher(twin, lambda graph_exec, stream: log.append(graph_exec) or 0)
    pairs: list[Any] = [(5, lambda: pairs.clear()), (6, None)]
    twin.Sequence(launch, pairs, Place()).run(9)
    assert (log, pairs) == ([5, 6], [])
    assert kept


@pytest.mark.parametrize("how", ["a place that takes no stream", "a stream that is none"])
def test_where_a_sequence_cannot_begin_no_step_has_raised(twin: ModuleType, how: str) -> None:
    codes = [700]
    launch, kept = launcher(twin, lambda graph_exec, stream: codes.pop() if codes else 0)
    place = Place()
    sequence = twin.Sequence(launch, [(5, None)], place)
    with pytest.raises(Refused):
        sequence.run(9)
    assert sequence.at == 0
    if how.startswith("a place"):
        Place.__setattr__ = lambda *_: int("no")  # type: ignore[method-assign]
    try:
        with pytest.raises((TypeError, ValueError)):
            sequence.run(9 if how.startswith("a place") else "9")
    finally:
        if how.startswith("a place"):
            del Place.__setattr__
    assert sequence.at == -1
    assert kept


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_a_call_that_raises_stops_the_sequence_there_and_it_can_run_again(
    twin: ModuleType, error: BaseException
) -> None:
    log: list[object] = []
    failing = [True]

    def second() -> None:
        if failing:
            raise error
        log.append("b")

    launch, kept = launcher(twin, lambda graph_exec, stream: log.append(graph_exec) or 0)
    sequence = twin.Sequence(launch, [(5, None), (6, second), (7, None)], Place())
    with pytest.raises(type(error)):
        sequence.run(9)
    assert (log, sequence.at) == ([5, 6], 3)
    failing.clear()
    sequence.run(9)
    assert log == [5, 6, 5, 6, "b", 7]
    assert kept


@pytest.mark.parametrize("pairs", [[1], [(1,)], [(1, None, 2)], [("x", None)], 5])
def test_what_is_no_sequence_of_pairs_is_refused(twin: ModuleType, pairs: Any) -> None:
    launch, kept = launcher(twin, lambda graph_exec, stream: 0)
    with pytest.raises((TypeError, ValueError)):
        twin.Sequence(launch, pairs, Place()).run(9)
    assert kept


def test_a_sequence_in_a_circle_is_collected(twin: ModuleType) -> None:
    class Holder:
        sequence: Any = None

        def call(self) -> None: ...

    launch, kept = launcher(twin, lambda graph_exec, stream: 0)
    holder = Holder()
    holder.sequence = twin.Sequence(launch, [(5, holder.call)], Place())
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
    assert kept


def detoured(twin: ModuleType, when: set[object]) -> Callable[..., Any]:
    def function(a: int, *, b: int = 2) -> tuple[str, int, int]:
        """What it is for."""
        return "function", a, b

    def other(a: int, *, b: int = 3) -> tuple[str, int, int]:
        return "other", a, b

    return update_wrapper(twin.detour(function, other, when), function)


def test_a_detour_is_its_function_until_the_set_has_something_in_it(twin: ModuleType) -> None:
    when: set[object] = set()
    call = detoured(twin, when)
    assert call(1, b=5) == ("function", 1, 5)
    when.add(object())
    assert call(1) == ("other", 1, 3)
    when.clear()
    assert call(a=1) == ("function", 1, 2)


def test_a_detour_looks_like_its_function(twin: ModuleType) -> None:
    call = detoured(twin, set())
    assert (call.__name__, call.__doc__, call.__module__) == ("function", "What it is for.", __name__)
    assert list(inspect.signature(call).parameters) == ["a", "b"]
    assert callable(call)
    assert "function" in repr(call)


def test_a_detour_is_a_method_where_it_is_in_a_class(twin: ModuleType) -> None:
    def scale(self: Any, value: int) -> int:
        return int(self.factor * value)

    class Layer:
        factor = 3
        forward = update_wrapper(twin.detour(scale, scale, set()), scale)
        static = staticmethod(forward)

    assert Layer().forward(2) == 6
    assert Layer.forward(Layer(), 2) == 6
    assert Layer.static(Layer(), 2) == 6
    assert Layer().forward.__self__.factor == 3


def module_level(value: int) -> int:
    return value + 1


_undecorated = module_level


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda call: pickle.loads(pickle.dumps(call))])
def test_a_detour_is_copied_and_pickled_as_functions_are(
    twin: ModuleType, how: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = update_wrapper(twin.detour(_undecorated, _undecorated, set()), _undecorated)
    monkeypatch.setattr(sys.modules[__name__], "module_level", call)
    assert how(call) is call


def test_what_a_detour_raises_is_the_functions_own(twin: ModuleType) -> None:
    def function() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        twin.detour(function, function, set())()


def test_a_detour_can_be_weakly_referred_to_and_dies(twin: ModuleType) -> None:
    call = detoured(twin, set())
    gone = weakref.ref(call)
    del call
    gc.collect()
    assert gone() is None


def test_calls_good_and_bad_leave_no_memory_behind(twin: ModuleType) -> None:
    def answer(word: int, to: int) -> int:
        ctypes.c_uint64.from_address(to).value = word
        return 719 if word == 1 else 0

    function = c_function(answer, 2)
    call = twin.Call(address(function), 1, Refused, answers=True)

    def work() -> None:
        call(MOST)
        for bad in (1, "1"):
            with suppress(Refused, TypeError):
                call(bad)

    assert growth(work) < 0.1


def test_sequences_that_run_fail_and_go_leave_no_memory_behind(twin: ModuleType) -> None:
    launch, kept = launcher(twin, lambda graph_exec, stream: 700 if stream == 1 else 0)
    place = Place()

    def fail() -> None:
        raise ValueError

    def work() -> None:
        good = twin.Sequence(launch, [(5, list), (0, dict), (7, None)], place)
        good.run(10**12)
        for sequence, stream in ((good, 1), (twin.Sequence(launch, [(5, fail)], place), 2)):
            with suppress(Refused, ValueError):
                sequence.run(stream)
        with suppress(TypeError):
            twin.Sequence(launch, [(5, list), 6], place)

    before = [sys.getrefcount(one) for one in (launch, place, fail, list, Refused)]
    assert growth(work) < 0.1
    assert [sys.getrefcount(one) for one in (launch, place, fail, list, Refused)] == pytest.approx(before, abs=5)
    assert kept


def test_detours_that_are_made_called_and_dropped_leave_no_memory_behind(twin: ModuleType) -> None:
    when: set[object] = set()

    def work() -> None:
        call = detoured(twin, when)
        call(1, b=2)
        when.add(1)
        call(1)
        when.clear()
        with suppress(TypeError):
            call()
        repr(call)
        weakref.ref(call)

    assert growth(work) < 0.1
