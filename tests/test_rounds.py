"""The round of a replay: the C extension and its twin in Python do the same.

Proves for both: a round asks, takes the claim, waits, runs and marks, in that order; where anything is out of the
ordinary it does nothing and says so; whatever a step raises, the use is marked, the claim is free and the caller's
lists are as they were; threads that contend take turns; nothing of it keeps memory.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from twins import Owner, Place, Refused, address, c_function, growth

CONTEXT, EVENT, STREAM, EXEC = 5, 77, 9, 40
THREAD_LOCAL, RELAXED, NOT_READY, MOST = 1, 2, 600, 4


class Calls:
    """The calls of a driver, which are noted, answer as told, and fail where a code is given."""

    def __init__(self, twin: ModuleType) -> None:
        self.log: list[Any] = []
        self.answers = {"get_context": CONTEXT, "is_capturing": 0}
        self.mode = THREAD_LOCAL  # the calling thread's
        self.codes: dict[str, int] = {}
        self._kept: list[Any] = []
        self.get_context = self._call(twin, "get_context", 0, answers=True)
        self.is_capturing = self._call(twin, "is_capturing", 1, answers=True)
        self.wait_event = self._call(twin, "wait_event", 3)
        self.record_event = self._call(twin, "record_event", 2)
        self.launch = self._call(twin, "launch", 2)
        self.query_event = self._call(twin, "query_event", 1, unready=NOT_READY)
        self.exchange_mode = self._exchange(twin)
        self.of_round = (
            self.get_context,
            self.is_capturing,
            self.wait_event,
            self.record_event,
            self.query_event,
            self.exchange_mode,
            RELAXED,
        )

    def _exchange(self, twin: ModuleType) -> Any:
        def exchange(where: int) -> int:
            place = ctypes.c_uint32.from_address(where)
            self.log.append(("exchange_mode", place.value))
            if self.codes.get("exchange_mode"):
                return self.codes.pop("exchange_mode")
            place.value, self.mode = self.mode, place.value
            return 0

        self._kept.append(c_function(exchange, 1))
        return twin.Call(address(self._kept[-1]), "x", Refused)

    def _call(self, twin: ModuleType, name: str, words: int, *, answers: bool = False, unready: int = 0) -> Any:
        def answer(*given: int) -> int:
            self.log.append((name, *given[:words]))
            if answers:
                ctypes.c_uint32.from_address(given[words]).value = self.answers[name]
            return self.codes.get(name, 0)

        self._kept.append(c_function(answer, words + answers))
        return twin.Call(address(self._kept[-1]), "w" * words + "a" * answers, Refused, unready=unready)


class Bench:
    """A round over such calls, and one who runs it."""

    def __init__(self, twin: ModuleType, *, calls: Calls | None = None) -> None:
        self.twin = twin
        self.calls = calls or Calls(twin)
        self.claim = twin.Claim()
        self.tally = twin.Tally(MOST)
        self.round = twin.Round(CONTEXT, EVENT, self.claim, self.tally, *self.calls.of_round)
        self.owners: list[Any] = []
        self.streams: list[int] = []
        self.owner, self.thread = Owner(), Owner()

    def sequence(self, *calls: Callable[[], object] | None) -> Any:
        """A launch before each call."""
        pairs = [(EXEC + at, call) for at, call in enumerate(calls)]
        return self.twin.Sequence(self.calls.launch, pairs, Place())

    def run(self, sequence: Any, stream: Any = STREAM) -> bool:
        owner, thread = weakref.ref(self.owner), weakref.ref(self.thread)
        ran: bool = self.round.run(sequence, stream, owner, thread, self.owners, self.streams)
        return ran

    def assert_nothing_is_left(self) -> None:
        assert self.claim.owner is None
        assert (self.owners, self.streams) == ([], [])

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.calls.log]


QUESTIONS = [("get_context",), ("is_capturing", STREAM)]
WAIT, MARK = ("wait_event", STREAM, EVENT, 0), ("record_event", EVENT, STREAM)


def test_a_round_asks_waits_runs_and_marks_in_that_order(twin: ModuleType) -> None:
    bench = Bench(twin)
    seen = []

    def step() -> None:
        bench.calls.log.append("step")
        seen.append((bench.claim.owner, bench.claim.thread, [one() for one in bench.owners], list(bench.streams)))

    assert bench.run(bench.sequence(step, None, step)) is True
    launches = [("launch", EXEC + at, STREAM) for at in range(3)]
    assert bench.calls.log == [*QUESTIONS, WAIT, launches[0], "step", launches[1], launches[2], "step", MARK]
    assert seen == [(bench.owner, bench.thread, [bench.owner], [STREAM])] * 2
    bench.assert_nothing_is_left()


def other_context(bench: Bench) -> Callable[[], object]:
    bench.calls.answers["get_context"] = CONTEXT + 1
    return lambda: bench.calls.answers.update(get_context=CONTEXT)


def no_context(bench: Bench) -> Callable[[], object]:
    bench.calls.answers["get_context"] = 0
    return lambda: bench.calls.answers.update(get_context=CONTEXT)


def capturing(bench: Bench) -> Callable[[], object]:
    bench.calls.answers["is_capturing"] = 1
    return lambda: bench.calls.answers.update(is_capturing=0)


def invalidated(bench: Bench) -> Callable[[], object]:
    bench.calls.answers["is_capturing"] = 2
    return lambda: bench.calls.answers.update(is_capturing=0)


def context_unknown(bench: Bench) -> Callable[[], object]:
    bench.calls.codes["get_context"] = 4
    return bench.calls.codes.clear


def capture_unknown(bench: Bench) -> Callable[[], object]:
    bench.calls.codes["is_capturing"] = 906
    return bench.calls.codes.clear


def claimed(bench: Bench) -> Callable[[], object]:
    other = Owner()
    bench.claim.take(weakref.ref(other), weakref.ref(other))
    return lambda: bench.claim.give(other)


def closed(bench: Bench) -> Callable[[], object]:
    bench.round.is_open = False
    return lambda: setattr(bench.round, "is_open", True)


def asleep(bench: Bench) -> Callable[[], object]:
    bench.claim.is_open = False
    return lambda: setattr(bench.claim, "is_open", True)


@pytest.mark.parametrize(
    "out_of_the_ordinary",
    [other_context, no_context, capturing, invalidated, context_unknown, capture_unknown, claimed, closed, asleep],
)
def test_where_anything_is_out_of_the_ordinary_a_round_does_nothing_and_says_so(
    twin: ModuleType, out_of_the_ordinary: Callable[[Bench], Callable[[], object]]
) -> None:
    bench = Bench(twin)
    mend = out_of_the_ordinary(bench)
    owner = bench.claim.owner
    sequence = bench.sequence(lambda: bench.calls.log.append("step"))
    assert bench.run(sequence) is False
    assert {"wait_event", "launch", "record_event"}.isdisjoint(bench.names)
    assert bench.claim.owner is owner
    assert (bench.owners, bench.streams, sequence.at) == ([], [], -1)
    mend()
    assert bench.run(sequence) is True
    bench.assert_nothing_is_left()


def test_where_a_round_has_nothing_to_do_with_a_failed_step_it_names_none(twin: ModuleType) -> None:
    """The place of a step that failed in an earlier run is no place of this one."""
    bench = Bench(twin)
    bench.calls.codes["launch"] = 700
    sequence = bench.sequence(None)
    with pytest.raises(Refused, match="700"):
        bench.run(sequence)
    assert sequence.at == 0
    bench.calls.codes = {"wait_event": 400}
    with pytest.raises(Refused, match="400"):
        bench.run(sequence)
    assert sequence.at == -1


IS_OVER = [("exchange_mode", RELAXED), ("query_event", EVENT), ("exchange_mode", THREAD_LOCAL)]


def full(bench: Bench, entries: int = 1) -> Any:
    """A sequence for which there is no room, since as much as there may be was counted."""
    bench.tally.entries = MOST
    sequence = bench.sequence(None)
    sequence.entries = entries
    return sequence


@pytest.mark.parametrize(("code", "left"), [(0, 0), (NOT_READY, MOST)], ids=["over", "under way"])
def test_where_there_is_no_room_what_is_over_is_forgotten(twin: ModuleType, code: int, left: int) -> None:
    bench = Bench(twin)
    bench.calls.codes["query_event"] = code
    assert bench.run(full(bench)) is True
    assert bench.calls.log == [*QUESTIONS, *IS_OVER, WAIT, ("launch", EXEC, STREAM), MARK]
    assert (bench.tally.entries, bench.calls.mode) == (left, THREAD_LOCAL)
    bench.assert_nothing_is_left()


@pytest.mark.parametrize(("counted", "entries"), [(MOST, 0), (MOST - 2, 2), (0, MOST)])
def test_where_there_is_room_nobody_is_asked(twin: ModuleType, counted: int, entries: int) -> None:
    bench = Bench(twin)
    sequence = full(bench, entries)
    bench.tally.entries = counted
    assert bench.run(sequence) is True
    assert "query_event" not in bench.names
    assert bench.tally.entries == counted


@pytest.mark.parametrize("call", ["query_event", "exchange_mode"])
def test_a_question_that_fails_is_raised_before_anything_is_launched(twin: ModuleType, call: str) -> None:
    bench = Bench(twin)
    bench.calls.codes[call] = 719
    sequence = full(bench)
    with pytest.raises(Refused, match="719"):
        bench.run(sequence)
    assert {"wait_event", "launch", "record_event"}.isdisjoint(bench.names)
    assert (sequence.at, bench.tally.entries, bench.calls.mode) == (-1, MOST, THREAD_LOCAL)
    bench.assert_nothing_is_left()
    bench.calls.codes.clear()
    assert bench.run(sequence) is True


def test_a_thread_is_not_left_relaxed_where_that_fails_once(twin: ModuleType) -> None:
    bench = Bench(twin)

    def fail_next(code: int) -> int:
        bench.calls.codes["exchange_mode"] = 719
        return code

    bench.calls.codes = type(
        "Codes",
        (dict,),
        {"get": lambda self, name, code=0: fail_next(code) if name == "query_event" else dict.get(self, name, code)},
    )()
    assert bench.run(full(bench)) is True
    assert bench.names.count("exchange_mode") == 3
    assert bench.calls.mode == THREAD_LOCAL


def test_a_wait_that_fails_is_raised_before_anything_is_launched(twin: ModuleType) -> None:
    bench = Bench(twin)
    bench.calls.codes["wait_event"] = 400
    with pytest.raises(Refused, match="400"):
        bench.run(bench.sequence(None))
    assert bench.calls.log == [*QUESTIONS, WAIT]
    bench.assert_nothing_is_left()
    bench.calls.codes.clear()
    assert bench.run(bench.sequence(None)) is True


@pytest.mark.parametrize("record", ["good", "failing"])
@pytest.mark.parametrize("where", ["launch", ValueError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_where_a_step_fails_the_use_is_marked_all_the_same_and_its_error_is_told(
    twin: ModuleType, where: Any, record: str
) -> None:
    bench, steps = Bench(twin), []

    def second() -> None:
        if isinstance(where, BaseException):
            raise where
        bench.calls.codes["launch"] = 700

    bench.calls.codes = {"record_event": 719} if record == "failing" else {}
    sequence = bench.sequence(lambda: steps.append(1), second, lambda: steps.append(3))
    with pytest.raises(type(where) if isinstance(where, BaseException) else Refused) as raised:
        bench.run(sequence)
    assert raised.value is where or "700" in str(raised.value)
    assert steps == [1]
    assert sequence.at == (4 if where == "launch" else 3)
    assert bench.calls.log.count(MARK) == 1
    assert bench.calls.log[-1] == MARK
    bench.assert_nothing_is_left()
    bench.calls.codes.clear()
    assert bench.run(bench.sequence(None)) is True


def test_a_mark_that_fails_after_good_steps_is_raised(twin: ModuleType) -> None:
    bench, steps = Bench(twin), []
    bench.calls.codes["record_event"] = 719
    sequence = bench.sequence(lambda: steps.append(1))
    with pytest.raises(Refused, match="719"):
        bench.run(sequence)
    assert (steps, sequence.at) == ([1], -1)
    bench.assert_nothing_is_left()


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_lists_are_as_they_were_whatever_a_step_has_left_on_them(twin: ModuleType, fails: bool) -> None:
    bench = Bench(twin)
    below = weakref.ref(bench.thread)
    bench.owners.append(below)
    bench.streams.append(1)

    def step() -> None:
        assert bench.streams == [1, STREAM]
        bench.streams += (2, 3)
        bench.owners.append(below)
        if fails:
            raise ValueError

    with suppress(ValueError):
        bench.run(bench.sequence(step))
    assert (bench.owners, bench.streams) == ([below], [1])


def test_a_step_that_empties_the_callers_lists_does_no_harm(twin: ModuleType) -> None:
    bench = Bench(twin)
    bench.streams.append(1)
    assert bench.run(bench.sequence(bench.streams.clear, bench.owners.clear)) is True
    bench.assert_nothing_is_left()


def test_a_round_in_a_step_of_another_runs_where_it_has_a_claim_of_its_own(twin: ModuleType) -> None:
    outer = Bench(twin)
    inner = Bench(twin, calls=outer.calls)
    inner.owners, inner.streams = outer.owners, outer.streams
    seen: list[Any] = []

    def nested() -> None:
        seen.append(outer.run(outer.sequence(None), 3))  # refused: the claim is taken
        seen.append(inner.run(inner.sequence(lambda: seen.append(list(outer.streams))), 4))
        seen.append(list(outer.streams))

    assert outer.run(outer.sequence(nested)) is True
    assert seen == [False, [STREAM, 4], True, [STREAM]]
    outer.assert_nothing_is_left()
    assert inner.claim.owner is None


def test_a_round_that_is_closed_in_its_own_step_runs_to_its_end_and_not_again(twin: ModuleType) -> None:
    bench = Bench(twin)

    def close() -> None:
        bench.round.is_open = bench.claim.is_open = False

    sequence = bench.sequence(close, None)
    assert bench.run(sequence) is True
    assert bench.names.count("launch") == 2
    assert bench.run(sequence) is False


def test_a_round_takes_the_claim_of_an_owner_that_is_dead(twin: ModuleType) -> None:
    bench, owner = Bench(twin), Owner()
    bench.claim.take(weakref.ref(owner), weakref.ref(owner))
    del owner
    assert bench.run(bench.sequence(None)) is True


def test_a_round_takes_any_stream_that_has_an_index(twin: ModuleType) -> None:
    class Stream:
        def __index__(self) -> int:
            return STREAM

    bench = Bench(twin)
    assert bench.run(bench.sequence(None), Stream()) is True
    assert bench.calls.log == [*QUESTIONS, WAIT, ("launch", EXEC, STREAM), MARK]
    with pytest.raises(TypeError):
        bench.run(bench.sequence(None), "9")
    bench.assert_nothing_is_left()


def test_threads_that_contend_for_a_claim_are_never_in_a_round_together(twin: ModuleType) -> None:
    bench, inside, together = Bench(twin), [], []
    stop = time.monotonic() + 0.5
    rounds: dict[int, int] = {}

    def step() -> None:
        inside.append(1)
        time.sleep(0)  # lets another thread run
        together.append(len(inside))
        inside.pop()

    def work(number: int) -> None:
        owner, owners, streams = Owner(), [], []
        reference, sequence = weakref.ref(owner), bench.sequence(step, step)
        while time.monotonic() < stop or not rounds.get(number):
            if bench.round.run(sequence, number, reference, reference, owners, streams):
                rounds[number] = rounds.get(number, 0) + 1
            assert (owners, streams) == ([], [])

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert set(together) == {1}
    assert set(rounds) == {1, 2, 3}
    assert sum(rounds.values()) == len(together) // 2
    bench.assert_nothing_is_left()


def test_rounds_good_refused_and_failing_leave_no_memory_behind(twin: ModuleType) -> None:
    bench = Bench(twin)
    bench.calls.log = type("Forgetful", (list,), {"append": lambda *_: None})()

    def fail() -> None:
        raise ValueError

    sequences = [bench.sequence(list, None), bench.sequence(None, fail)]
    held = (bench.thread, bench.claim, bench.round, bench.owners, bench.streams, fail, *sequences)

    def work() -> None:
        bench.owner = Owner()
        bench.run(sequences[0], 10**12)
        with suppress(ValueError):
            bench.run(sequences[1], 10**12)
        bench.round.is_open = False
        bench.run(sequences[0])
        bench.round.is_open = True
        bench.calls.codes["wait_event"] = 1
        with suppress(Refused):
            bench.run(sequences[0])
        bench.calls.codes.clear()

    before = list(map(sys.getrefcount, held))
    assert growth(work) < 0.1
    assert list(map(sys.getrefcount, held)) == before


def test_claims_and_rounds_in_a_circle_are_collected(twin: ModuleType) -> None:
    class Holder:
        def woken(self, _: object) -> None: ...

    holder: Any = Holder()
    holder.owner = Owner()
    holder.claim = twin.Claim()
    holder.round = twin.Round(CONTEXT, EVENT, holder.claim, twin.Tally(MOST), *Calls(twin).of_round)
    holder.claim.take(weakref.ref(holder.owner, holder.woken), weakref.ref(holder))
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
