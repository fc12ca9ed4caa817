"""The graphs of one graphed function, and which of them serves a call.

call --- in a segment, inert, too large, ... ---> the function itself
  |
  '--> key of its arguments --> [ the arena's turn                                       ]
                                [ inputs -> cells | capture or replay | results -> copies ]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from breakgraph import driver as drivers
from breakgraph import frameworks as libraries
from breakgraph.driver import Driver
from breakgraph.driver.here import here
from breakgraph.errors import BreakgraphError, CaptureStateError, DriverError
from breakgraph.frameworks import Framework
from breakgraph.memory import Arena
from breakgraph.segments.callers import warn
from breakgraph.segments.capture import capture
from breakgraph.segments.destinations import Ownership
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.held import Held
from breakgraph.segments.state import inert_scope, is_capturing
from breakgraph.segments.streams import framework_streams, refuse_capturing, workplace
from breakgraph.segments.switch import capture_disabled
from breakgraph.service.cells import InputCell, write
from breakgraph.service.declaration import Declaration
from breakgraph.service.inputs import Inputs
from breakgraph.service.results import Results
from breakgraph.service.static import Static, check_baked, check_static, static_arrays
from breakgraph.service.stats import Counts, Fallback

__all__ = ["Graphs"]


@dataclass
class _Captured:
    """One graph, with the ways into it and out of it."""

    graph: BreakableGraph
    frameworks: tuple[Framework, ...]
    static: list[Static]
    cells: list[InputCell]
    results: Results


@dataclass
class _Place:
    """What there is for one driver and context. Changed in turns of the arena only."""

    arena: Arena
    captured: dict[Hashable, _Captured] = field(default_factory=dict)
    failed: dict[Hashable, str] = field(default_factory=dict)


class _Plainly(Exception):
    """The call runs the function itself: a `Fallback`, and what to say of it."""

    def __init__(self, reason: Fallback, why: str = "") -> None:
        super().__init__(reason, why)
        self.reason, self.why = reason, why


class Graphs:
    """Chooses, captures and replays. ``owner`` is the instance whose method the function is, if it is one."""

    def __init__(self, declared: Declaration, owner: object = None) -> None:
        self.declared = declared
        self._owner = None if owner is None else weakref.ref(owner)
        self.counts = Counts()
        self._closed = False
        self._places: dict[tuple[Driver, int], _Place] = {}

    def belongs_to(self, instance: object) -> bool:
        return self._owner is not None and self._owner() is instance

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # the copy of an instance begins without: graphs have baked what is its original's

    # calls ------------------------------------------------------------------------------------------------
    def __call__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one forward, exactly once, and return what it returned."""
        self.counts.call()
        try:
            driver = self._capturing_driver()
            if self.declared.sizes == ():
                raise _Plainly(Fallback.DISABLED)
            inputs = Inputs(self.declared, driver, self.declared.bind(args, kwargs))
            value, captured = self._serve(driver, function, inputs)
            self.counts.served(inputs.rows, inputs.size, captured=captured)
            return value
        except _Plainly as plainly:
            reason, why = plainly.reason, plainly.why
        self._fall_back(reason, why)
        with inert_scope():
            return function(*args, **kwargs)

    def precapture(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        track: Callable[[Sequence[int | None]], Iterable[int | None]],
    ) -> int:
        """Capture each size that is missing, the largest first. Returns how many were captured."""
        declared, done = self.declared, 0
        try:
            driver = self._capturing_driver()
            example = Inputs(declared, driver, declared.bind(args, kwargs))
            for size in track([None] if declared.sizes is None else declared.sizes[::-1]):
                inputs = example.cut(size)
                if inputs.key in self._place(driver).captured:
                    continue
                for _ in range(declared.warmup):
                    with inert_scope():
                        declared.call(function, inputs.values)
                _, captured = self._serve(driver, function, inputs)
                self.counts.precaptured(captured)
                done += captured
        except _Plainly as plainly:
            self._fall_back(plainly.reason, plainly.why)
        return done

    def _capturing_driver(self) -> Driver:
        """The current driver, where a graph may be replayed or captured at all."""
        if is_capturing():
            raise _Plainly(Fallback.INSIDE)
        if capture_disabled() or not (driver := drivers.current()).can_capture:
            raise _Plainly(Fallback.INERT, "capture is switched off (BREAKGRAPH_DISABLE) or the driver cannot capture")
        self._check_open()
        return driver

    def _check_open(self) -> None:
        if self._closed:
            raise _Plainly(Fallback.CLOSED, "it was closed")

    def _fall_back(self, reason: Fallback, why: str) -> None:
        first, policy = self.counts.fallback(reason), self.declared.fallback
        if not why or policy == "allow":
            return
        what = f"{self.declared.name} runs without a graph: {why}"
        if policy == "refuse" and reason is not Fallback.INERT:  # a service that is switched off keeps serving (C7)
            raise CaptureStateError(what, why="it was declared with fallback='refuse'")
        if first:
            warn(f"{what} (said once; .stats counts them)")

    def _serve(self, driver: Driver, function: Callable[..., Any], inputs: Inputs) -> tuple[Any, bool]:
        """Replay the graph of these inputs, or capture it; whether it did that. Raises `_Plainly` before either."""
        declared = self.declared
        if declared.sizes and inputs.size is None:
            raise _Plainly(Fallback.LARGER, f"{inputs.rows} rows are more than its largest bucket {declared.sizes[-1]}")
        place = self._place(driver)
        seen = place.captured.get(inputs.key)
        if seen is None and here.capture is not None:
            raise _Plainly(Fallback.INSIDE)  # a capture in a break of another one is refused (C4)
        frameworks = seen.frameworks if seen is not None else _moving(driver, declared)
        with self._turn(driver, place, frameworks, inputs.rows) as held:
            self._check_open()
            seen = place.captured.get(inputs.key)  # again: other threads have had turns meanwhile
            if seen is None:
                self._check_room(place, inputs)
                seen, captured = self._capture(driver, place, held, function, inputs, frameworks), True
            else:
                check_static(declared, seen.static, static_arrays(declared, driver, inputs.values))
                write(driver, held.arena, seen.cells, inputs, held.stream)
                seen.graph.replay_in(held)
                captured = False
            results = seen.results
            if declared.copy_outputs:
                return results.copied(inputs.rows, held.stream), captured
            return results.in_place(inputs.rows, held.arena), captured

    # one turn of the arena (C25) --------------------------------------------------------------------------
    @contextmanager
    def _turn(self, driver: Driver, place: _Place, frameworks: Sequence[Framework], rows: int | None) -> Iterator[Held]:
        """Have the arena, on the caller's current stream; what is on the others is ordered around it."""
        if place.arena.is_mine:
            raise _Plainly(Fallback.INSIDE)
        first, *others = framework_streams(driver, frameworks) or [driver.resolve_stream(0)]
        try:
            for stream in (first, *others):
                refuse_capturing(driver, stream, "used for a graphed call")
        except CaptureStateError as error:
            raise _Plainly(Fallback.INSIDE) from error
        with ExitStack() as turn:
            if others:
                turn.enter_context(_together(driver, first, others, frameworks))
            try:
                held = turn.enter_context(Held(place.arena, first, rows))
            except CaptureStateError as error:  # it sleeps, or waiting for it would never end
                raise _Plainly(Fallback.REFUSED, f"its arena cannot be had: {error.what}") from error
            yield held

    def _check_room(self, place: _Place, inputs: Inputs) -> None:
        if (failure := place.failed.get(inputs.key)) is not None:
            raise _Plainly(Fallback.FAILED, f"an earlier capture for the same arguments failed with {failure}")
        if len(place.captured) >= self.declared.max_graphs:
            raise _Plainly(
                Fallback.FULL,
                f"there are {len(place.captured)} graphs, as many as max_graphs allows. Each value of an argument that"
                " is no array is a graph of its own: what changes often belongs in an array or the forward context",
            )

    def _capture(
        self,
        driver: Driver,
        place: _Place,
        held: Held,
        function: Callable[..., Any],
        inputs: Inputs,
        frameworks: tuple[Framework, ...],
    ) -> _Captured:
        """Capture, which is one correct call. What of the library's own went wrong in the middle is remembered."""
        declared, begun = self.declared, False
        check_baked(declared, driver, inputs.values)
        graph = BreakableGraph(f"{declared.name}[{inputs.label}]")
        footprint = held.begin_capture()
        try:
            cells = [InputCell(held.arena, one, inputs.size) for one in inputs.live]
            write(driver, held.arena, cells, inputs, held.stream)
            with capture(graph, **declared.options).within(held):
                begun = True
                results = Results(
                    self._forward(function, inputs, cells),
                    Ownership(driver, held.arena, footprint.capture),
                    size=inputs.size,
                    declared=declared,
                    breaks=graph.breaks,
                )
        except BreakgraphError as error:
            if begun:
                place.failed[inputs.key] = f"{type(error).__name__}: {error.what}"
            elif isinstance(error, CaptureStateError) or (isinstance(error, DriverError) and not error.sticky):
                raise _Plainly(Fallback.REFUSED, f"its capture was refused: {error.what}") from error
            raise
        graph.keep(*declared.static_values(inputs.values))
        made = _Captured(graph, frameworks, static_arrays(declared, driver, inputs.values), cells, results)
        place.captured[inputs.key] = made
        return made

    def _forward(self, function: Callable[..., Any], inputs: Inputs, cells: list[InputCell]) -> Any:
        """Call the function with its inputs' cells, which nobody keeps afterwards."""
        instead = {id(one.array): cell.take() for one, cell in zip(inputs.live, cells, strict=True)}
        return self.declared.call(function, inputs.with_arrays(instead))

    # what there is ----------------------------------------------------------------------------------------
    def _place(self, driver: Driver) -> _Place:
        context = driver.ensure_context()
        key = (driver, driver.ctx_get_id(context))
        place = self._places.get(key)
        if place is None:
            arena = self.declared.arena or Arena()
            if not arena.belongs_to(driver, context):
                raise CaptureStateError(
                    f"{self.declared.name} was called in another driver or context than its arena's",
                    why="its memory was mapped for the context that was current when it was made (C31)",
                    remedy="leave arena= out: each context gets its own",
                )
            place = self._places.setdefault(key, _Place(arena))
        return place

    @property
    def arena(self) -> Arena:
        """That of the current driver and context."""
        return self._place(drivers.current()).arena

    @property
    def graphs(self) -> tuple[BreakableGraph, ...]:
        """Those that are captured, in their order for each context."""
        return tuple(one.graph for place in self._places.values() for one in [*place.captured.values()])

    def reset(self) -> None:
        """Destroy all graphs, once their last calls are done, and forget what failed."""
        for place in [*self._places.values()]:
            with place.arena.exclusively("asked for to end graphs"), ExitStack() as ending:
                while place.captured:
                    ending.callback(place.captured.popitem()[1].graph.close)
                place.failed.clear()

    def close(self) -> None:
        """`reset`, and capture no more; calls that wait for their turn find it closed."""
        before, self._closed = self._closed, True
        try:
            self.reset()
        except CaptureStateError:
            self._closed = before
            raise


def _moving(driver: Driver, declared: Declaration) -> tuple[Framework, ...]:
    """The libraries that take part and have a current stream that means something (C24)."""
    taking_part = libraries.taking_part(driver, declared.options.get("frameworks"))
    return tuple(one for one in taking_part if not one.names_streams) or taking_part


@contextmanager
def _together(driver: Driver, first: int, others: Sequence[int], frameworks: Sequence[Framework]) -> Iterator[None]:
    """Let libraries with several current streams work on one, after what is on all and before what comes on any."""
    order = workplace(driver, driver.ensure_context()).order
    for other in others:
        order(driver, other, first)
    try:
        with ExitStack() as scopes:
            for framework in frameworks:
                scopes.enter_context(framework.stream_scope(first))
            yield
    finally:
        for other in others:
            order(driver, first, other)
