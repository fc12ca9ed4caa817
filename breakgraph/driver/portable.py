"""What replay does thousands of times a second, in Python: the twins of what ``native/`` has in C.

A driver call through the bindings gives up the interpreter lock, and gets it back a whole switch interval later where
another Python thread is busy (5 ms; DRIVER_FACTS). These calls keep it, so they are for what never waits long.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import index
from typing import Any, TypeAlias

__all__ = ["Call", "Claim", "Round", "Sequence", "detour"]

Reference: TypeAlias = weakref.ref[Any]


class Call:
    """A driver call by its address, made without giving up the interpreter lock.

    Parameters
    ----------
    address
        Of a C function that takes ``words`` integers or pointers, at most eight with the answer, and returns an int.
    words
        How many arguments the caller gives: whatever has an index, of which the lowest 64 bits are passed.
    error
        From a result code other than 0 to the exception to raise.
    answers
        The function writes a number of up to 64 bits to the address that it is given last; the call returns it.
    unready
        The result code that means "not yet": the call returns False for it, and True for 0.
    """

    def __init__(
        self,
        address: int,
        words: int,
        error: Callable[[int], Exception],
        answers: bool = False,
        unready: int = 0,
    ) -> None:
        if not address or words < 0 or words + answers > 8:
            raise ValueError("a call has an address, and takes up to eight words with its answer")
        # As pointers, since those are converted in half the time of numbers.
        self.entry = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * (words + answers))(address)
        self.error = error
        self._words, self._answers, self._unready = words, answers, unready

    def __call__(self, *words: int) -> Any:
        if len(words) != self._words:
            raise TypeError(f"takes {self._words} positional arguments")
        try:
            if self._answers:
                answer = ctypes.c_uint64()
                code = self.entry(*words, ctypes.byref(answer))
            else:
                code = self.entry(*words)
        except ctypes.ArgumentError:  # for what is no int, but has an index
            return self(*map(index, words))
        if self._unready and code in (0, self._unready):
            return code == 0
        if code:
            raise self.error(code)
        return answer.value if self._answers else None


class Sequence:
    """Launches of execs, and Python calls between them.

    Parameters
    ----------
    launch
        A `Call` of an exec and a stream, or any function of the two that raises by itself.
    pairs
        An exec to launch, 0 for none, and what to call after it, None for nothing.
    place
        An object whose ``stream`` is set to the one that it runs on.

    Attributes
    ----------
    at
        Where the last `run` has raised: 2i for the launch of pair i, 2i + 1 for its call; -1 where it has not.
    """

    def __init__(
        self, launch: Callable[[int, int], object], pairs: Iterable[tuple[int, Callable[[], object] | None]], place: Any
    ) -> None:
        self.at = -1
        self._place = place
        self._launch = launch
        self._pairs = tuple((index(graph_exec), call) for graph_exec, call in pairs)

    def run(self, stream: int) -> None:
        """Go through the pairs, launching on ``stream``; what is raised stops it there."""
        launch = self._launch.entry if isinstance(self._launch, Call) else self._launch
        self.at = at = -1
        self._place.stream, on = stream, index(stream)
        try:
            for graph_exec, call in self._pairs:
                at += 1
                if graph_exec and (code := launch(graph_exec, on)):
                    raise self._launch.error(code)  # type: ignore[attr-defined]  # any other than a Call raises itself
                at += 1
                if call is not None:
                    call()
        except BaseException:
            self.at = at
            raise


class Claim:
    """What one owner has at a time, as long as the owner lives. Owner and thread are known by weak references.

    Attributes
    ----------
    is_open
        Whether a `Round` may take it.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._lock = threading.RLock()
        self._owner: Reference | None = None
        self._thread: Reference | None = None

    @property
    def owner(self) -> Any:
        """Who has it, or None."""
        return self._owner() if self._owner is not None else None

    @property
    def thread(self) -> Any:
        """The thread of its last owner, or None."""
        return self._thread() if self._thread is not None else None

    def take(self, owner: Reference, thread: Reference) -> bool:
        """Take it, if nobody has it. Never waits."""
        with self._lock:
            if self.owner is not None:
                return False
            self._thread, self._owner = thread, owner  # in this order: who finds the owner finds its thread
            return True

    def give(self, owner: object) -> bool:
        """Give it back, if ``owner`` has it; tells whether that was so."""
        with self._lock:
            if owner is None or self.owner is not owner:
                return False
            self._owner = None
            return True


class Round:
    """A sequence from its first check to its last mark, where nothing is out of the ordinary.

    Parameters
    ----------
    context
        That must be current.
    event
        That the stream waits for, and that is recorded on it afterwards.
    claim
        That is taken meanwhile.
    get_context, is_capturing, wait_event, record_event
        The driver's calls.

    Attributes
    ----------
    is_open
        Whether it may run.
    """

    def __init__(
        self,
        context: int,
        event: int,
        claim: Claim,
        get_context: Callable[[], int],
        is_capturing: Callable[[int], int],
        wait_event: Callable[[int, int, int], object],
        record_event: Callable[[int, int], object],
    ) -> None:
        self.is_open = True
        self._context, self._event, self._claim = context, event, claim
        self._get_context, self._is_capturing = get_context, is_capturing
        self._wait_event, self._record_event = wait_event, record_event

    def run(
        self,
        sequence: Sequence,
        stream: int,
        owner: Reference,
        thread: Reference,
        owners: list[Any],
        streams: list[int],
    ) -> bool:
        """Run ``sequence`` on ``stream`` for ``owner``, both being the last of their lists meanwhile.

        False, and nothing is done, where another context is current, the stream is capturing, either cannot be told,
        somebody has the claim, or it or this is not open.
        """
        on = index(stream)
        try:
            if self._get_context() != self._context or self._is_capturing(on):
                return False
        except Exception:  # whoever asks again is told
            return False
        if not self._claim.take(owner, thread):
            return False
        owners_before, streams_before = len(owners), len(streams)
        try:
            if not self.is_open or not self._claim.is_open:
                return False
            sequence.at = -1
            self._wait_event(on, self._event, 0)
            try:
                owners.append(owner)
                streams.append(stream)
                sequence.run(stream)
            except BaseException:
                with suppress(Exception):  # the step's error is the one to tell
                    self._record_event(self._event, on)
                raise
            finally:
                del streams[streams_before:], owners[owners_before:]  # and what a step has left there
            self._record_event(self._event, on)
            return True
        finally:
            self._claim.give(owner())


def detour(function: Callable[..., Any], other: Callable[..., Any], when: set[Any]) -> Callable[..., Any]:
    """A callable that passes on to ``function``; while the set ``when`` has something in it, to ``other``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (other if when else function)(*args, **kwargs)

    return call
