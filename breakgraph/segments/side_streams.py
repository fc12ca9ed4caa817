"""What a capture knows of the streams beside its origin, segment by segment (C11).

The driver does not list a capture's streams, and once a segment has ended they look idle. So those are known that were
seen: while memory was allocated for work on them, or current in a library at a break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from breakgraph.driver import Driver
from breakgraph.driver.forks import Forks
from breakgraph.errors import CaptureStateError
from breakgraph.frameworks import Framework
from breakgraph.frameworks.base import ScopedStreams
from breakgraph.segments.aux_streams import AuxStreams
from breakgraph.segments.callers import warn

__all__ = ["SideStreams"]


class SideStreams:
    """The forks of the open segment, and the streams that were seen in it.

    Attributes
    ----------
    forks
        Of the segment that is open.
    segment
        Its index; -1 before the first.
    joined
        How many branches the library has joined in it.
    strays
        Streams that were used in a segment, and were no part of it: the segment, and the stream.
    """

    def __init__(
        self, driver: Driver, origin: int, aux: AuxStreams, frameworks: Iterable[Framework], *, debug: bool
    ) -> None:
        self.forks = Forks(driver, origin)
        self.segment = -1
        self.joined = 0
        self._driver = driver
        self._origin = origin
        self._aux = aux
        self._declared = (origin, *aux.handles)
        self._current_streams = _sources(frameworks)
        self._debug = debug
        self._took_part: set[int] = set()
        self._outside: set[int] = set()  # were given memory in a segment, and are no part of it
        self._named: set[int] = set()
        self.strays: list[tuple[str, int]] = []

    def begin(self) -> None:
        """A segment has begun, and no fork is known in it."""
        self.segment += 1
        self.joined = 0
        self.forks.begin()
        self._took_part.clear()

    def join(self) -> tuple[int, ...]:
        """Let the origin wait for all work captured so far. Returns the nodes of it."""
        nodes, joined = self.forks.join()
        self.joined += joined
        return nodes

    @property
    def streams(self) -> tuple[int, ...]:
        """The origin, the aux streams, and what else was seen to take part in the open segment."""
        if not self._took_part:
            return self._declared
        return (*self._declared, *sorted(self._took_part.difference(self._aux.handles)))

    def note(self, stream: int) -> None:
        """A stream is used in the open segment: so it exists, and may be asked whether it is part of it."""
        if stream != self._origin and stream not in self._took_part and stream not in self._outside:
            (self._took_part if self.forks.include(stream) else self._outside).add(stream)

    def check_break(self) -> None:
        """Warn of streams that the forward seems to go on with after a break, as if they were still forked.

        Those are the ones that took part while work is open that the forward has not joined, and those that are
        current in a library. With ``debug`` they are refused (`CaptureStateError`). Then `check_outside`.
        """
        others: list[int] = []
        for current_stream in self._current_streams:
            stream = current_stream()
            if stream != self._origin and stream is not None:
                others.append(self._driver.resolve_stream(stream))
        if others or self._took_part:
            self._check_suspects(others)
        if self._outside:
            self.check_outside()

    def _check_suspects(self, current: list[int]) -> None:
        suspects = [one for one in current if self.forks.include(one)]
        if self._took_part and not self.forks.joined(besides=self._aux.handles):
            suspects += self._took_part
        if not suspects:
            return
        self._tell(
            set(suspects).difference(self._aux.handles),
            f"took part in segment {self.segment} and is not in aux_streams",
            why="its part in the capture ends with the break: what is put on it afterwards runs at once, uncaptured",
            remedy="capture(aux_streams=[...]) forks it again and joins what the break leaves on it; or join it before",
        )

    def check_outside(self) -> None:
        """Warn of streams on which work was prepared in the segment, and that are no part of the capture."""
        if not self._outside:
            return
        here = f"segment {self.segment}"
        outside, self._outside = self._outside, set()
        self.strays += [(here, stream) for stream in sorted(outside)]
        self._tell(
            outside,
            f"was given memory in {here}, and was not forked",
            why="what is put on it runs at once, uncaptured: replay leaves it out, and nothing orders it",
            remedy="let it wait for bg.current_stream() in each segment that uses it, or declare it in aux_streams",
        )

    def _tell(self, streams: set[int], what: str, *, why: str, remedy: str) -> None:
        new = streams - self._named
        if not new:
            return
        self._named |= new
        what = f"stream {', '.join(map(hex, sorted(new)))} {what}"
        if self._debug:
            raise CaptureStateError(what, why=why, remedy=remedy)
        warn(f"{what}: {why}. Mend: {remedy}")


def _sources(frameworks: Iterable[Framework]) -> list[Callable[[], int | None]]:
    """What tells the current stream of each library; one for those that share it, since each break asks."""
    found: dict[object, Callable[[], int | None]] = {}
    for one in frameworks:
        shares = getattr(type(one), "current_stream", None) is ScopedStreams.current_stream
        found.setdefault(ScopedStreams if shares else one, one.current_stream)
    return list(found.values())
