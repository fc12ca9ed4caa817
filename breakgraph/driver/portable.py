"""What replay and capture do thousands of times a second, in Python: the twins of what ``native/`` has in C.

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

__all__ = ["Call", "Claim", "Ending", "Room", "Round", "Sequence", "Tally", "Usual", "detour"]

Reference: TypeAlias = weakref.ref[Any]

_Word, _by_address = ctypes.c_uint64, ctypes.byref  # found sooner than in their module
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
        self.bare = prototype(ctypes.c_int)(address)  # for C values, which it takes as they are
        self.error = error
        self._slots, self._unready = slots, unready
        self._words = slots.count("w") + slots.count("x")
        # As nearly all are that replay makes: words, and after them one answer or none; or a word exchanged.
        self._has_words_alone = slots == "w" * self._words
        self._asks_one_number = slots == "w" * self._words + "a"
        self._exchanges = slots == "x"

    def __call__(self, *words: int) -> Any:
        if len(words) != self._words:
            raise TypeError(f"takes {self._words} positional arguments")
        try:
            if self._has_words_alone:
                code = self.entry(*words)
                if code == self._unready and code:
                    return False
                answer: Any = True if self._unready else None
            elif self._asks_one_number:
                number = _Word()
                code = self.entry(*words, _by_address(number))
                answer = number.value
            elif self._exchanges:
                number = _Word(index(words[0]))
                code = self.entry(_by_address(number))
                answer = number.value
            else:
                code, answer = self._call_at_length(words)
        except ctypes.ArgumentError:  # for what is no int, but has an index
            return self(*map(index, words))
        if code:
            raise self.error(code)
        return answer

    def _call_at_length(self, words: tuple[int, ...]) -> tuple[int, Any]:
        """The result code, and the answer."""
        places = _Places(self._slots, _FEW)
        code = self._enter(words, places)
        while not code and places.are_full:  # there may be more than fit in
            counted = _Places(self._slots, 0)
            if not (code := self._enter(words, counted)):
                places = _Places(self._slots, counted.number.value + 1)
                code = self._enter(words, places)
        answers = places.answers()
        return code, answers if len(answers) > 1 else answers[0] if answers else None

    def _enter(self, words: tuple[int, ...], places: _Places) -> int:
        return int(self.entry(*places.arguments(words)))


class _Places:
    """What one call writes to: a cell for each slot, and lists with a certain ``room``, which without any are none."""

    def __init__(self, slots: str, room: int) -> None:
        self._slots, self._room = slots, room
        self._cells = (ctypes.c_uint64 * len(slots))()
        self._lists = {at: (ctypes.c_uint64 * room)() for at, slot in enumerate(slots) if slot == "l" and room}
        self.number = ctypes.c_uint64(room if self._lists else 0)

    def arguments(self, words: tuple[int, ...]) -> list[Any]:
        """What the function is given for the caller's ``words``."""
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
    entries
        How many entries of a `Tally` its calls make room for, all together; 0 until it is set.
    """

    def __init__(
        self, launch: Callable[[int, int], object], pairs: Iterable[tuple[int, Callable[[], object] | None]], place: Any
    ) -> None:
        self.at = -1
        self.entries = 0
        self._place = place
        self._launch: Callable[[Any, Any], Any] = launch
        self._error: Callable[[int], Exception] | None = None
        self._word: Callable[[int], Any] = index
        if isinstance(launch, Call):  # C values are not converted anew each time
            self._launch, self._error, self._word = launch.bare, launch.error, ctypes.c_void_p
        # Flat, and no objects around them: what a replay reads first it finds in no cache.
        self._steps = tuple(
            (self._word(graph_exec) if (graph_exec := index(given)) else None, call or _nothing)
            for given, call in pairs
        )

    def run(self, stream: int) -> None:
        """Go through the pairs, launching on ``stream``; what is raised stops it there."""
        self.at = -1
        self._place.stream, on = stream, self._word(index(stream))
        launch, code = self._launch, 1  # as long as nothing is launched
        steps: Any = iter(self._steps)  # which tells how many are left
        try:
            for graph_exec, call in steps:
                if graph_exec is None:
                    code = 0
                elif code := launch(graph_exec, on):
                    raise self._error(code)  # type: ignore[misc]  # who answers a code is a Call
                call()
                code = 1
        except BaseException:
            pair = len(self._steps) - 1 - steps.__length_hint__()
            self.at = max(2 * pair + (not code), -1)
            raise


def _nothing() -> None:
    """What a pair calls where there is nothing to do."""


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
            if self._owner is not None and self._owner() is not None:
                return False
            self._thread, self._owner = thread, owner  # in this order: who finds the owner finds its thread
            return True

    def give(self, owner: object) -> bool:
        """Give it back, if ``owner`` has it; tells whether that was so."""
        with self._lock:
            if owner is None or self._owner is None or self._owner() is not owner:
                return False
            self._owner = None
            return True


class Tally:
    """A count.

    Parameters
    ----------
    most
        What it is to stay below.

    Attributes
    ----------
    entries
        What was counted.
    """

    def __init__(self, most: int) -> None:
        self.entries, self.most = 0, most


class Room:
    """A callable that counts more; if that were too much, it calls ``otherwise`` before.

    Attributes
    ----------
    entries
        How many it counts; 0 until it is set.
    """

    __slots__ = ("_otherwise", "_tally", "entries")

    def __init__(self, tally: Tally, otherwise: Callable[[], object]) -> None:
        self._tally, self._otherwise = tally, otherwise
        self.entries = 0

    def __call__(self) -> None:
        if self._tally.entries + self.entries > self._tally.most:
            self._otherwise()
        self._tally.entries += self.entries


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
    tally
        Of what the claim's owners have put into the driver's queue since it was last known to have room.
    get_context, is_capturing, wait_event, record_event, query_event, exchange_mode
        The driver's calls.
    relaxed
        The mode in which a question harms no capture that is open elsewhere.

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
        tally: Tally,
        get_context: Callable[[], int],
        is_capturing: Callable[[int], int],
        wait_event: Callable[[int, int, int], object],
        record_event: Callable[[int, int], object],
        query_event: Callable[[int], bool],
        exchange_mode: Callable[[Any], Any],
        relaxed: Any,
    ) -> None:
        self.is_open = True
        self._context, self._event, self._claim, self._tally = context, event, claim, tally
        self._get_context, self._is_capturing = get_context, is_capturing
        self._wait_event, self._record_event = wait_event, record_event
        self._query_event, self._exchange_mode, self._relaxed = query_event, exchange_mode, relaxed

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
            sequence.at, tally = -1, self._tally
            if sequence.entries and tally.entries + sequence.entries > tally.most and self._is_over():
                tally.entries = 0  # nothing that was counted is in the queue any more
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

    def _is_over(self) -> bool:
        """Whether the last use of what the claim is for is over."""
        before = self._exchange_mode(self._relaxed)
        try:
            return self._query_event(self._event)
        finally:
            # A thread left relaxed would harm later captures. Not in a function: an interrupt could come as it begins.
            try:
                self._exchange_mode(before)
            except BaseException as error:
                self._exchange_mode(before)
                if not isinstance(error, Exception):
                    raise

    def give_up(self, owner: object) -> None:
        """Let ``owner`` have the claim no more, where an interrupt came between taking it and giving it back."""
        self._claim.give(owner)

    def is_at_home(self) -> bool:
        """Whether its context is current."""
        try:
            return self._get_context() == self._context
        except Exception:
            return False

    def usual(self, **asked: Any) -> Usual:
        """The usual replay that goes by this round, with the other arguments of `Usual`."""
        return Usual(round=self, **asked)


class Usual:
    """The usual replay: what has to be true of it, asked in one go, and then its round.

    Parameters
    ----------
    round, sequence
        What it runs.
    current_stream, default_stream
        Called for the stream to run on, None where it is not to be told; and which one 0 is.
    owner
        Called with the stream for an object to claim the round for.
    here
        What the calling thread is doing: `breakgraph.driver.here`.
    choice, driver
        What knows the current ``driver``, and the one that it must be.
    steps
        A list that must be as long as it is now.
    needs_context
        Whether a forward context must be published.
    waiting
        A dictionary: who waits for claims.
    stopped
        Called with what a step has raised.
    settle
        Called afterwards, where somebody waits or another context is current by then.
    """

    def __init__(
        self,
        *,
        round: Round,  # noqa: A002 - the name of what it is
        sequence: Sequence,
        current_stream: Callable[[], int | None],
        default_stream: int,
        owner: Callable[[int], Any],
        here: Any,
        choice: Any,
        driver: object,
        steps: list[Any],
        needs_context: bool,
        waiting: dict[Any, Any],
        stopped: Callable[[BaseException], object],
        settle: Callable[[], object],
    ) -> None:
        self._round, self._sequence = round, sequence
        self._current_stream, self._default_stream, self._owner = current_stream, default_stream, owner
        self._here, self._choice = here, choice
        self._driver, self._steps, self._whole, self._needs_context = driver, steps, len(steps), needs_context
        self._waiting, self._stopped, self._settle = waiting, stopped, settle

    def run(self) -> bool:
        """Run it; False, and nothing is done, where it is another case than the usual one."""
        here = self._here
        if here.capture is not None or self._choice.driver is not self._driver or len(self._steps) != self._whole:
            return False
        if self._needs_context and (not here.contexts or here.contexts[-1] is None):
            return False
        if (stream := self._current_stream()) is None:
            return False
        stream = stream or self._default_stream
        owner = self._owner(stream)
        try:
            done = self._round.run(
                self._sequence, stream, weakref.ref(owner), here.reference, here.replays, here.streams
            )
        except BaseException as error:
            self._round.give_up(owner)
            try:
                self._stopped(error)
            finally:
                if self._waiting or not self._round.is_at_home():
                    self._settle()
            raise
        if done and (self._waiting or not self._round.is_at_home()):
            self._settle()
        return done


class Ending:
    """The end of a capture: its graph, and the exec of that, under the relaxed mode of the calling thread.

    Parameters
    ----------
    exchange_mode, get_info, get_nodes, get_edges, end_capture, get_type, instantiate
        The driver's calls. A capture's info begins with status, id, graph and dependencies; what is said of edges, with
        the nodes that they leave.
    relaxed
        The mode in which the calls harm no capture that is open elsewhere.
    active
        The status of a capture that has not been given up.
    """

    def __init__(
        self,
        exchange_mode: Callable[[Any], Any],
        get_info: Callable[[int], tuple[Any, ...]],
        get_nodes: Callable[[int], tuple[int, ...]],
        get_edges: Callable[[int], tuple[Any, ...]],
        end_capture: Callable[[int], int],
        get_type: Callable[[int], int],
        instantiate: Callable[[int, int], int],
        relaxed: Any,
        active: int,
    ) -> None:
        self._exchange_mode, self._relaxed, self._active = exchange_mode, relaxed, active
        self._get_info, self._get_nodes, self._get_edges = get_info, get_nodes, get_edges
        self._end_capture, self._get_type, self._instantiate = end_capture, get_type, instantiate

    def run(
        self, stream: int, graphs: list[int], made: Any, nodes: tuple[int, ...] | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """End the capture on ``stream``. None, and it goes on, where some work is not joined to the stream.

        Whoever has joined all work gives the ``nodes``, and nothing is asked. The graph is appended to ``graphs``; if
        it has nodes, it is instantiated as the ``handle`` of ``made``, unless that is None. Each belongs to whoever has
        the object, from the moment it exists. Returns the nodes and their types.
        """
        before = self._exchange_mode(self._relaxed)
        try:
            if nodes is None and (nodes := self._joined_nodes(stream)) is None:
                return None
            graphs.append(self._end_capture(stream))
            kinds = tuple(map(self._get_type, nodes))
            if made is not None and nodes:
                made.handle = self._instantiate(graphs[-1], 0)
            return nodes, kinds
        finally:
            # A thread left relaxed would harm later captures. Not in a function: an interrupt could come as it begins.
            try:
                self._exchange_mode(before)
            except BaseException as error:
                self._exchange_mode(before)
                if not isinstance(error, Exception):
                    raise

    def _joined_nodes(self, stream: int) -> tuple[int, ...] | None:
        """The nodes captured so far, if the stream's next one comes after all of them."""
        status, _, graph, heads, *_ = self._get_info(stream)
        if status != self._active:
            return ()  # whoever ends it is told so
        nodes = self._get_nodes(graph)
        if nodes == heads:  # as of one kernel on the origin
            return nodes
        behind = {*heads, *self._get_edges(graph)[0]}
        return nodes if behind.issuperset(nodes) else None


def detour(function: Callable[..., Any], other: Callable[..., Any], when: set[Any]) -> Callable[..., Any]:
    """A callable that passes on to ``function``; while the set ``when`` has something in it, to ``other``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (other if when else function)(*args, **kwargs)

    return call
