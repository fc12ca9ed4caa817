"""Which line of the forward made a capture invalid: a trace function asks the driver between any two lines.

An invalid capture is told at the next call that the driver refuses, which may be far from the cause, or the end of the
segment. Asking for a stream's status is legal at any time, and costs a driver call. So while a segment is open, each
event of Python's tracing in a frame outside the package asks once; the first to hear that the capture is invalid knows
the line that was running since the one before:

    line 30        line 31           line 32
    valid? yes     valid? yes        valid? no: line 31 did it
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeAlias, cast

from breakgraph.errors import BreakgraphError, DriverError
from breakgraph.segments.callers import caller, in_driver, is_program, program, site

__all__ = ["LineWatch", "LostAt"]

#: Told of code that runs in a segment: with its globals, and its ``self`` if it has one.
See: TypeAlias = Callable[[CodeType, dict[str, Any], object], object]
_Trace: TypeAlias = Callable[[FrameType, str, Any], Any]
_SHOWN = 8  #: frames of the call chain, the nearest first


@dataclass(frozen=True)
class LostAt:
    """Where a capture became invalid.

    Attributes
    ----------
    site
        ``file:line`` before which it was valid, and after which it was not.
    source
        The text of that line.
    function
        In which it is.
    chain
        ``file:line in function`` of its callers, the nearest first.
    call
        The driver call that raised there, where it is known.
    error
        What was raised there; empty where nothing was.
    others
        ``name at file:line`` of each other thread that ran Python then.
    """

    site: str
    source: str
    function: str
    chain: tuple[str, ...] = ()
    call: str = ""
    error: str = ""
    others: tuple[str, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether nothing was raised there."""
        return not self.call and not self.error


class LineWatch:
    """Watches the segments of one capture, in the thread that captures.

    Where another trace function is at work (a debugger, coverage), it is called as before, by this one, and is in its
    place again when the segment has ended.

    Attributes
    ----------
    found
        Where the capture became invalid, if it has.
    """

    def __init__(self, is_valid: Callable[[], bool], see: See) -> None:
        self.found: LostAt | None = None
        self._is_valid, self._see = is_valid, see
        self._scope = caller().f_code  # in which the capture is opened
        self._on_call: _Trace = self._called  # bound once, to be known again
        self._in_frame: _Trace = self._moved
        self._before: _Trace | None = None  # whose place it has taken
        self._frames: dict[FrameType, _Trace | None] = {}  # those it traces, and what traced them before
        self._snapshot: dict[str, Any] = {}
        self._line = 0  # that runs now in the innermost of them
        self._running = False

    def start(self) -> None:
        """A segment has begun."""
        self._running, self._before = True, cast("_Trace | None", sys.gettrace())
        for frame in program(sys._getframe(1)):
            if not self._frames:
                self._line = frame.f_lineno
            self._frames[frame] = frame.f_trace
            frame.f_trace = self._in_frame
            self._see(frame.f_code, frame.f_globals, None)
        sys.settrace(self._on_call)

    def stop(self) -> None:
        """The segment is about to end. Does nothing where none is watched."""
        if not self._running:
            return
        self._running = False
        self._drop_snapshot()
        if sys.gettrace() is self._on_call:  # a debugger may have come meanwhile, and other threads have their own
            sys.settrace(self._before)
        for frame, before in self._frames.items():
            if frame.f_trace is self._in_frame:
                frame.f_trace = before
        innermost = next(program(sys._getframe(1)), None)
        if innermost is not None and innermost in self._frames:
            self._ask(innermost)
        self._frames.clear()
        self._before = None

    # what Python calls ----------------------------------------------------------------------------------------
    def _called(self, frame: FrameType, event: str, arg: Any) -> _Trace | None:
        self._drop_snapshot()
        theirs = None
        if self._before is not None:
            theirs = self._before(frame, event, arg)
            if self._running:
                sys.settrace(self._on_call)  # some put themselves in our place when they are called
        if not self._running or not is_program(frame) or self._serves_driver(frame):
            return theirs
        calling = next(program(frame.f_back), None)
        if calling is not None:
            self._ask(calling)
        self._line = frame.f_lineno
        self._frames[frame] = theirs
        self._see(frame.f_code, frame.f_globals, self._owner(frame))
        return self._in_frame

    def _moved(self, frame: FrameType, event: str, arg: Any) -> _Trace | None:
        self._drop_snapshot()
        theirs = self._frames.get(frame)
        if theirs is not None:
            theirs = self._frames[frame] = theirs(frame, event, arg)
        if not self._running:
            return theirs
        self._ask(frame, arg[1] if event == "exception" else None)
        if event == "return":
            del frame.f_trace  # and no reference is left that would keep the locals of a frame that has ended
            self._frames.pop(frame, None)
            calling = next(program(frame.f_back), None)
            self._line = calling.f_lineno if calling is not None else 0
            return theirs
        self._line = frame.f_lineno
        return self._in_frame

    def _serves_driver(self, frame: FrameType) -> bool:
        """Whether it runs below one of our driver calls, which has not told yet what came of it: the bindings' own."""
        back = frame.f_back
        while back is not None and back not in self._frames:
            if in_driver(back):
                return True
            back = back.f_back
        return False

    def _owner(self, frame: FrameType) -> object:
        """The ``self`` of a call that has just begun."""
        code = frame.f_code
        if not code.co_argcount or code.co_varnames[0] not in ("self", "cls"):
            return None
        snapshot: Any = frame.f_locals
        if isinstance(snapshot, dict):  # up to Python 3.12: a copy, which the frame keeps, and so what is in it
            self._snapshot = snapshot
        return snapshot.get(code.co_varnames[0])

    def _drop_snapshot(self) -> None:
        """At the next event; until then Python writes the copy back to the frame's variables."""
        self._snapshot.clear()
        self._snapshot = {}

    def _ask(self, frame: FrameType, error: object = None) -> None:
        if self.found is None and not self._is_valid():
            self.found = _lost_at(frame, self._line, error, self._scope)


def _lost_at(frame: FrameType, line: int, error: object, scope: CodeType) -> LostAt:
    code = frame.f_code
    chain: list[str] = []
    for one in program(frame):
        chain.append(_named(one))
        if one.f_code is scope or len(chain) > _SHOWN:
            break
    told = ""
    if isinstance(error, BaseException):
        what = error.what if isinstance(error, BreakgraphError) else str(error)
        told = f"{type(error).__name__}: {what}"
    return LostAt(
        site=f"{code.co_filename}:{line}",
        source=linecache.getline(code.co_filename, line, frame.f_globals).strip(),
        function=code.co_qualname,
        chain=tuple(chain[1:]),
        call=error.call if isinstance(error, DriverError) else "",
        error=told,
        others=tuple(_other_threads()),
    )


def _other_threads() -> Iterator[str]:
    here, names = threading.get_ident(), {one.ident: one.name for one in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != here:
            own = next(program(frame), None)
            if own is not None:
                yield f"{names.get(ident, ident)} at {_named(own)}"


def _named(frame: FrameType) -> str:
    return f"{site(frame)} in {frame.f_code.co_qualname}"
