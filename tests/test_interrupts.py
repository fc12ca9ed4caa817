"""An interrupt at any line of the library's own bookkeeping leaves nothing taken (C5, C25, C27).

A Ctrl-C arrives between any two lines. A trace raises one in place of the signal, at each line of the rooms
``memory`` and ``segments`` and of a replay's round in turn, in the course of a capture with a break, a replay, a sleep
and a close. Afterwards the thread is not capturing, the arena is free, the current streams are as before, the
collector runs, every exec is destroyed, and the same goes through.
"""

from __future__ import annotations

import gc
import inspect
import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support import holds, live, refill, zeros

import breakgraph as bg
from breakgraph import driver as drivers
from breakgraph.driver import portable
from breakgraph.driver.api import CaptureMode
from breakgraph.driver.here import here
from breakgraph.frameworks.base import Pushed
from breakgraph.memory import turn

ROOMS = tuple(str(Path(bg.__file__).parent / room) for room in ("memory", "segments", "driver/portable.py"))


class Interrupter:
    """Raises KeyboardInterrupt at the n-th line that runs in the rooms."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0
        self.where = ""
        self.last: dict[int, int] = {}  # by frame: the line before this one

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ROOMS) or in_destructor(frame):
            return None
        return self.line

    def line(self, frame: FrameType, event: str, _: Any) -> Any:
        last, self.last[id(frame)] = self.last.get(id(frame), 0), frame.f_lineno
        if event == "return" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            del self.last[id(frame)]
        if event == "line" and not takes_no_signal(frame, last):
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.line


def in_destructor(frame: FrameType | None) -> bool:
    """Whether a destructor is running, in which nobody sees what is raised."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def takes_no_signal(frame: FrameType, last: int) -> bool:
    """Whether the interpreter takes no signal here, and no handler covers the place.

    That is so where a with block is left, before __exit__ is called, at a bare try, which does nothing, and at a del
    that a finally begins with: a signal is taken after a call or a jump, and there the last one was inside the try.
    """
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return source == "try:" or source.startswith("del ") or (source.startswith("with ") and frame.f_lineno < last)


def program(xp: Any, arena: Any, x: Any, out: Any) -> None:
    with bg.capture(arena=arena, name="interrupted") as graph:
        y = bg.break_here(lambda a: a * 2, bg.INFER, x + 1)
        np.add(y, 3, out=out)
        del y
    graph.replay()
    arena.sleep(backup=True)
    arena.wake()
    graph.close()


def interrupted(xp: Any, at: int) -> Interrupter:
    """Run the program with an interrupt at a line; nothing is left of it but what the caller gets."""
    trace, arena, x, out = Interrupter(at), bg.Arena(), zeros(xp), zeros(xp)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        program(xp, arena, x, out)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    where = trace.where
    gc.collect()  # the graph has failed with an exception whose traceback holds the program's variables
    assert not bg.is_capturing(), where
    assert bg.current_stream() is None, where
    assert not here.streams, where
    assert gc.isenabled(), where
    if arena.asleep:
        arena.wake()
    in_another_thread(lambda: program(xp, arena, x, out), where)
    refill(x, 5)
    program(xp, arena, x, out)
    assert holds(out, 15), where
    assert arena.used == 0, where
    return trace


SHARES = 12


def in_another_thread(work: Callable[[], None], where: str) -> None:
    """No lock is left with this thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), where


@pytest.mark.keeps_handles
@pytest.mark.parametrize("share", range(SHARES))
def test_an_interrupt_at_any_line_leaves_nothing_taken(sim: Any, xp: Any, share: int) -> None:
    total = interrupted(xp, 0).lines
    assert total > 400
    for at in range(1 + share, total + 1, 3 * SHARES):
        before = handles(sim)
        trace = interrupted(xp, at)
        gc.collect()
        # Destroyed twice, a handle could be somebody else's by then; so one that is just being destroyed may be left.
        left = handles(sim) - before
        assert left <= trace.where.startswith(("holdings.py", "execs.py")), trace.where
        assert not sim.live()["capture"], trace.where


def handles(sim: Any) -> int:
    return live(sim, "graph") + live(sim, "graph_exec")


class AtReturn:
    """Raises KeyboardInterrupt when a function returns: where the interpreter takes a signal after a call."""

    def __init__(self, name: str) -> None:
        self.name, self.left = name, 1

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        return self.line if frame.f_code.co_qualname == self.name else None

    def line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return" and self.left:
            self.left = 0
            raise KeyboardInterrupt
        return self.line


def interrupted_at_return(name: str, work: Callable[[], object]) -> BaseException:
    """The interrupt that came at the return of a function in some work; the caller keeps it, and so its frames."""
    sys.settrace(AtReturn(name))
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            work()
    finally:
        sys.settrace(None)
    return caught.value


def test_an_interrupt_when_a_capture_has_just_been_entered_ends_it(sim: Any, xp: Any) -> None:
    x, arena = zeros(xp), bg.Arena()

    def enter() -> None:
        with bg.capture(arena=arena):
            np.add(x, 1, out=x)

    kept = interrupted_at_return("Capture.enter", enter)
    assert (here.capture, arena.user, gc.isenabled()) == (None, None, True)
    with bg.capture(arena=arena) as graph:
        np.add(x, 1, out=x)
    graph.replay()
    assert holds(x, 2)
    assert kept


@pytest.mark.parametrize("name", ["Claim.take", "Claim.give", "Round.run"])
def test_an_interrupt_of_a_replay_that_somebody_keeps_holds_nothing(
    sim: Any, xp: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a session keeps it in sys.last_value, and a log: its frames hold who has the turn."""
    monkeypatch.setattr(turn, "Claim", portable.Claim)  # the C extension's has no line to be interrupted at
    x, arena = zeros(xp), bg.Arena()
    with bg.capture(arena=arena) as graph:
        np.add(x, 1, out=x)
        bg.break_graph()
        np.add(x, 1, out=x)
    kept = interrupted_at_return(name, graph.replay)
    assert (arena.user, here.replays) == (None, [])
    graph.replay()
    graph.reset()
    assert kept


def test_a_scope_that_was_interrupted_is_mended_by_the_one_around_it() -> None:
    stack: list[int] = [1]
    with Pushed(stack, 2):
        Pushed(stack, 3).__enter__()  # and an interrupt before the with block had it
        assert stack == [1, 2, 3]
    assert stack == [1]


def test_a_thread_is_not_left_relaxed_by_an_interrupt() -> None:
    modes = [CaptureMode.GLOBAL]
    interrupts = [KeyboardInterrupt()]

    class Driver:
        def thread_exchange_stream_capture_mode(self, mode: CaptureMode) -> CaptureMode:
            if len(modes) > 1 and interrupts:
                raise interrupts.pop()
            modes.append(mode)
            return modes[-2]

    with pytest.raises(KeyboardInterrupt), drivers.relaxed(Driver()):  # type: ignore[arg-type]
        assert modes[-1] is CaptureMode.RELAXED
    assert modes[-1] is CaptureMode.GLOBAL
