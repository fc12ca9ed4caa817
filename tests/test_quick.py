"""The quick forms of what replay does most: the C extension and its twin in Python do the same.

Proves for both: a call passes its words and gives back its answer, a result code becomes the exception that the caller
made for it, other threads do not run during a call; a sequence launches and calls in order and stops where something is
raised, telling where; a room counts, and calls before where it would be too much; a detour is its function, until the
set has something in it; none of it keeps memory. Claims and rounds: test_rounds.py; usual replays: test_usual.py; ends
of captures: test_endings.py.
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
    assert twin.Call(address(function), "w" * words, Refused)(*given) is None
    assert seen == [given]


def test_a_call_gives_the_answer_that_was_written(twin: ModuleType) -> None:
    def answer(word: int, to: int) -> int:
        ctypes.c_uint64.from_address(to).value = word + 1
        return 0

    function = c_function(answer, 2)
    assert twin.Call(address(function), "wa", Refused)(41) == 42


def test_an_answer_of_32_bits_is_not_mixed_with_what_lay_there(twin: ModuleType) -> None:
    def answer(to: int) -> int:
        ctypes.c_uint32.from_address(to).value = 2
        return 0

    function = c_function(answer, 1)
    assert twin.Call(address(function), "a", Refused)() == 2


def test_a_code_is_raised_as_the_caller_says(twin: ModuleType) -> None:
    function = c_function(lambda: 719, 0)
    with pytest.raises(Refused, match="719"):
        twin.Call(address(function), "", Refused)()


@pytest.mark.parametrize(("code", "answer"), [(0, True), (600, False)])
def test_a_question_is_answered_by_the_code(twin: ModuleType, code: int, answer: bool) -> None:
    function = c_function(lambda word: code, 1)
    assert twin.Call(address(function), "w", Refused, unready=600)(5) is answer


def test_a_question_may_fail_too(twin: ModuleType) -> None:
    function = c_function(lambda word: 900, 1)
    with pytest.raises(Refused, match="900"):
        twin.Call(address(function), "w", Refused, unready=600)(5)


@pytest.mark.parametrize("given", [(), (1, 2), (1.5,), ([1],)])
def test_wrong_arguments_are_refused_before_the_call(twin: ModuleType, given: tuple[Any, ...]) -> None:
    made: list[int] = []
    function = c_function(lambda word: made.append(word) or 0, 1)
    with pytest.raises(TypeError):
        twin.Call(address(function), "w", Refused)(*given)
    assert not made


@pytest.mark.parametrize(
    ("given", "word"),
    [(StreamHandle(7), 7), (np.int32(7), 7), (np.uint64(MOST), MOST), (True, 1), (-1, MOST), (2**64 + 7, 7)],
    ids=str,
)
def test_a_word_is_the_lowest_64_bits_of_whatever_has_an_index(twin: ModuleType, given: Any, word: int) -> None:
    seen: list[int] = []
    function = c_function(lambda word: seen.append(word) or 0, 1)
    twin.Call(address(function), "w", Refused)(given)
    assert seen == [word]


@pytest.mark.parametrize(
    ("where", "slots"),
    [(0, "w"), (16, "wwwwwwwww"), (16, "wwwwwwwwa"), (16, "wz"), (16, "wl"), (16, "wn"), (16, "lnn")],
)
def test_a_call_that_cannot_be_is_refused(twin: ModuleType, where: int, slots: str) -> None:
    with pytest.raises(ValueError, match="eight slots"):
        twin.Call(where, slots, Refused)


def test_several_answers_come_in_the_order_of_their_slots(twin: ModuleType) -> None:
    def answer(first: int, word: int, second: int) -> int:
        ctypes.c_uint64.from_address(first).value = word + 1
        ctypes.c_uint32.from_address(second).value = word + 2
        return 0

    function = c_function(answer, 3)
    assert twin.Call(address(function), "awa", Refused)(40) == (41, 42)


@pytest.mark.parametrize("given", [2, np.int32(2), StreamHandle(2)], ids=lambda given: type(given).__name__)
def test_a_word_is_exchanged_for_an_answer(twin: ModuleType, given: Any) -> None:
    seen: list[int] = []

    def exchange(at: int) -> int:
        place = ctypes.c_int.from_address(at)
        seen.append(place.value)
        place.value = 1
        return 0

    function = c_function(exchange, 1)
    assert twin.Call(address(function), "x", Refused)(given) == 1
    assert seen == [2]


class Lists:
    """A function that fills lists as cuGraphGetEdges does: tails and heads, as many as there is room for."""

    def __init__(self, count: int) -> None:
        self.rooms: list[int | None] = []
        self.tails, self.heads = tuple(range(1, count + 1)), tuple(range(MOST - count, MOST))

    def __call__(self, graph: int, tails: int, heads: int, at: int) -> int:
        number = ctypes.c_uint64.from_address(at)
        self.rooms.append(number.value if tails else None)
        if graph == 5:
            return 719
        if tails:
            for to, words in ((tails, self.tails), (heads, self.heads)):
                room = (ctypes.c_uint64 * number.value).from_address(to)
                room[:] = [*words, *[0] * number.value][: number.value]
        number.value = min(number.value, len(self.tails)) if tails else len(self.tails)
        return 0


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000])
def test_lists_are_read_whole_in_one_call_where_they_are_short(twin: ModuleType, count: int) -> None:
    lists = Lists(count)
    function = c_function(lists, 4)
    assert twin.Call(address(function), "wlln", Refused)(7) == (lists.tails, lists.heads)
    assert lists.rooms == ([32] if count < 32 else [32, None, count + 1])


def test_a_list_that_grows_while_it_is_counted_is_read_whole(twin: ModuleType) -> None:
    lists = Lists(40)

    def grow(graph: int, tails: int, heads: int, at: int) -> int:
        if len(lists.rooms) == 2:
            lists.tails, lists.heads = lists.tails * 2, lists.heads * 2
        return lists(graph, tails, heads, at)

    function = c_function(grow, 4)
    assert twin.Call(address(function), "wlln", Refused)(7) == (lists.tails, lists.heads)
    assert len(lists.tails) == 80
    assert lists.rooms == [32, None, 41, None, 81]


def test_a_list_that_cannot_be_read_is_an_error(twin: ModuleType) -> None:
    function = c_function(Lists(3), 4)
    with pytest.raises(Refused, match="719"):
        twin.Call(address(function), "wlln", Refused)(5)


@pytest.mark.parametrize("count", [0, 3, 100])
def test_lists_of_the_functions_own_are_read_where_they_lie(twin: ModuleType, count: int) -> None:
    words = tuple(range(7, 7 + count))
    own = (ctypes.c_uint64 * count)(*words)

    def answer(word: int, status: int, one: int, other: int, number: int) -> int:
        if not word:
            return 0  # and writes nothing
        ctypes.c_uint32.from_address(status).value = 1
        for place in (one, other):
            ctypes.c_uint64.from_address(place).value = ctypes.addressof(own)
        ctypes.c_uint64.from_address(number).value = count
        return 0

    function = c_function(answer, 5)
    call = twin.Call(address(function), "wappn", Refused)
    assert call(1) == (1, words, words)
    assert call(0) == (0, (), ())


def test_other_threads_run_during_a_call_that_yields(twin: ModuleType) -> None:
    libc = ctypes.CDLL(None)
    counts, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counts[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counts[0]
        twin.Call(address(libc.usleep), "w", Refused, yields=True)(200_000)
        during = counts[0] - before
    finally:
        stop.set()
        thread.join()
    assert during > 10


def test_no_other_thread_runs_during_a_call(twin: ModuleType) -> None:
    """Beside a thread that counts every millisecond, and gives the lock up in between, a C function sleeps."""
    libc = ctypes.CDLL(None)
    counts, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counts[0] += 1

    sleep = twin.Call(address(libc.usleep), "w", Refused)
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


@pytest.mark.parametrize(("counted", "more", "calls"), [(0, 4, 0), (3, 1, 0), (3, 2, 1), (0, 5, 1), (9, 0, 1)])
def test_a_room_counts_and_calls_before_where_it_would_be_too_much(
    twin: ModuleType, counted: int, more: int, calls: int
) -> None:
    tally, seen = twin.Tally(4), []
    tally.entries = counted

    def otherwise() -> None:
        seen.append(tally.entries)
        tally.entries = 0

    room = twin.Room(tally, otherwise)
    assert (room.entries, room()) == (0, None) or counted > 4
    room.entries, tally.entries = more, counted
    seen.clear()
    assert room() is None
    assert seen == [counted] * calls
    assert tally.entries == (more if calls else counted + more)


def test_a_room_counts_nothing_where_what_it_calls_before_raises(twin: ModuleType) -> None:
    tally = twin.Tally(0)
    room = twin.Room(tally, lambda: [].pop())
    room.entries = 1
    for _ in range(2):
        with pytest.raises(IndexError):
            room()
    assert tally.entries == 0
    with pytest.raises(TypeError):
        room(1)


def test_a_room_in_a_circle_is_collected(twin: ModuleType) -> None:
    class Holder:
        room: Any = None

        def woken(self) -> None: ...

    holder = Holder()
    holder.room = twin.Room(twin.Tally(1), holder.woken)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


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
    call = twin.Call(address(function), "wa", Refused)

    lists = Lists(40)
    listing = c_function(lists, 4)
    listed = twin.Call(address(listing), "wlln", Refused)

    def work() -> None:
        call(MOST)
        listed(7)
        lists.rooms.clear()
        for made, bad in ((call, 1), (call, "1"), (listed, 5), (listed, "5")):
            with suppress(Refused, TypeError):
                made(bad)

    assert growth(work, times=2_000) < 0.1


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
