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

_FEW = 32  # words of a list for which there is room without asking how many there are


class Call:
    """A driver call by its address, made without giving up the interpreter lock.

    Parameters
    ----------
    address
        Of a C function that takes integers or pointers, at most eight, and returns an int.
    slots
        A letter for each of them:

        ===== =========================================================================================
        ``w`` a word that the caller gives: whatever has an index, of which the lowest 64 bits are passed
        ``a`` the address of a number of up to 64 bits, 0 before, which is an answer
        ``x`` the same for a number that the caller gives
        ``l`` the address of a list of words that the function fills
        ``p`` the address of a pointer, which the function lets point to a list of words of its own
        ``n`` the address of the number of words in each list: how many there is room for, and how many there are
        ===== =========================================================================================
    error
        From a result code other than 0 to the exception to raise.
    unready
        The result code that means "not yet": the call returns False for it, and True for 0.
    yields
        It gives up the interpreter lock after all, since it may take long.

    Notes
    -----
    A call returns its answers in the order of their slots: None, the only one, or a tuple of them; a list is a tuple
    of ints. Of a function whose lists are full it asks how many words there are, by null pointers for the lists, and
    then for all of them.
    """

    def __init__(
        self,
        address: int,
        slots: str,
        error: Callable[[int], Exception],
        *,
        unready: int = 0,
        yields: bool = False,
    ) -> None:
        lists = slots.count("l") + slots.count("p")
        if not address or len(slots) > 8 or not set(slots) <= set("waxlpn") or slots.count("n") != (lists > 0):
            raise ValueError("a call has an address, and up to eight slots")
        # As pointers, since those are converted in half the time of numbers.
        prototype = ctypes.CFUNCTYPE if yields else ctypes.PYFUNCTYPE
        self.entry = prototype(ctypes.c_int, *[ctypes.c_void_p] * len(slots))(address)
        self.error = error
        self._slots, self._unready = slots, unready
        self._words = slots.count("w") + slots.count("x")

    def __call__(self, *words: int) -> Any:
        if len(words) != self._words:
            raise TypeError(f"takes {self._words} positional arguments")
        places = _Places(self._slots, _FEW)
        code = self._enter(words, places)
        while not code and places.are_full:  # there may be more than fit in
            counted = _Places(self._slots, 0)
            if not (code := self._enter(words, counted)):
                places = _Places(self._slots, counted.number.value + 1)
                code = self._enter(words, places)
        if self._unready and code in (0, self._unready):
            return code == 0
        if code:
            raise self.error(code)
        answers = places.answers()
        return answers if len(answers) > 1 else answers[0] if answers else None

    def _enter(self, words: tuple[int, ...], places: _Places) -> int:
        try:
            return int(self.entry(*places.arguments(words)))
        except ctypes.ArgumentError:  # for what is no int, but has an index
            return int(self.entry(*places.arguments(tuple(map(index, words)))))


class _Places:
    """What one call writes to: a cell for each slot, and lists with a certain ``room``, which without any are none."""

    def __init__(self, slots: str, room: int) -> None:
        self._slots, self._room = slots, room
        self._cells = (ctypes.c_uint64 * len(slots))()
        self._lists = {at: (ctypes.c_uint64 * room)() for at, slot in enumerate(slots) if slot == "l" and room}
        self.number = ctypes.c_uint64(room if self._lists else 0)

    def arguments(self, words: tuple[int, ...]) -> list[Any]:
        """What the function is given for the caller's ``words``."""
        if self._slots.count("w") == len(self._slots):
            return list(words)
        given, found = iter(words), list[Any]()
        for at, slot in enumerate(self._slots):
            if slot == "w":
                found.append(next(given))
            elif slot == "l":
                found.append(ctypes.addressof(self._lists[at]) if at in self._lists else None)
            elif slot == "n":
                found.append(ctypes.addressof(self.number))
            else:
                if slot == "x":
                    self._cells[at] = index(next(given)) % 2**64
                found.append(ctypes.addressof(self._cells) + 8 * at)
        return found

    @property
    def are_full(self) -> bool:
        """Whether the function may have more for the lists."""
        return bool(self._lists) and self.number.value >= self._room

    def answers(self) -> tuple[Any, ...]:
        """What the function has written, slot by slot."""
        return tuple(self._answer(at, slot) for at, slot in enumerate(self._slots) if slot not in "wn")

    def _answer(self, at: int, slot: str) -> int | tuple[int, ...]:
        if slot == "l":
            return tuple(self._lists[at][: self.number.value])
        cell = self._cells[at]
        if slot != "p":
            return int(cell)
        return tuple((ctypes.c_uint64 * self.number.value).from_address(cell)) if cell else ()


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
