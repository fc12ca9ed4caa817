"""The rounds of a verification.

Each gives the forward fresh inputs A, and then others, B:

    eager on A      what ought to come
    eager on B      so that nothing which eager code left behind can help the replay
    replay on A     its outputs spoiled before, so that what no step writes is seen
    replay on A     again, waiting for each step and reading what it gave
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from breakgraph.driver.cleanup import add_notes
from breakgraph.driver.contexts import in_context
from breakgraph.errors import BreakgraphError, CaptureStateError, DriverError
from breakgraph.inspect.verify.causes import Case, cause_of
from breakgraph.inspect.verify.differences import Found, first_in_breaks, first_in_outputs, writer
from breakgraph.inspect.verify.outputs import Output, outputs_of
from breakgraph.inspect.verify.passes import Pass, eager_pass, replay_pass
from breakgraph.inspect.verify.values import Device, Reading, Tolerance
from breakgraph.segments.addresses import Moved
from breakgraph.segments.collector import open_captures
from breakgraph.segments.graph import BreakableGraph
from breakgraph.segments.streams import eager_stream
from breakgraph.segments.verification import Difference, Verification

__all__ = ["verify"]


def verify(
    graph: BreakableGraph,
    forward: Callable[..., Any],
    inputs: Any,
    *,
    outputs: Any = None,
    rounds: int = 3,
    atol: float = 0.0,
    rtol: float = 0.0,
) -> Verification:
    """See `Viewed.verify`."""
    graph.replayable()
    if rounds < 1:
        raise ValueError(f"rounds is at least 1, not {rounds}")
    if open_captures:
        raise CaptureStateError(
            f"{graph!r} was to be verified while a capture is open in this process",
            why="verify waits for the whole device, which invalidates captures",
            remedy="verify before or after",
        )
    holdings = graph.holdings
    assert holdings is not None  # it can be replayed
    with in_context(holdings.driver, holdings.context):
        device = Device(holdings.driver, int(eager_stream() or 0))
        return _Rounds(graph, device, forward, inputs, outputs, Tolerance(atol, rtol)).run(rounds)


class _Rounds:
    def __init__(
        self,
        graph: BreakableGraph,
        device: Device,
        forward: Callable[..., Any],
        inputs: Any,
        outputs: Any,
        tolerance: Tolerance,
    ) -> None:
        self._graph, self._device, self._forward, self._tolerance = graph, device, forward, tolerance
        self._given = device.arrays(outputs, objects=True)
        self._refill: Callable[[int], Any] | None = inputs if callable(inputs) else None
        self._args: tuple[Any, ...] = () if callable(inputs) else _arguments(inputs)
        self._draws = 0

    def run(self, rounds: int) -> Verification:
        original = self._values()
        compared: tuple[str, ...] = ()
        try:
            for number in range(rounds):
                compared, difference = self._round(number)
                if difference is not None:
                    return Verification(number + 1, compared, difference, self._moved())
            return Verification(rounds, compared, None, self._moved())
        except DriverError as error:  # a segment may have read memory that has gone; the context may be lost
            add_notes(error, map(str, self._moved()))
            raise
        finally:
            with suppress(DriverError):
                self._restore(original)

    def _round(self, number: int) -> tuple[tuple[str, ...], Difference | None]:
        self._draw()
        inputs = self._values()
        eager = self._eager()
        self._draw()
        other = self._eager()
        outputs = outputs_of(self._graph, self._device, self._given, eager, other)
        compared = _names(eager, outputs)
        if not compared:
            raise BreakgraphError(
                f"there is nothing to compare in {self._graph!r}",
                why="its forward returns no array, and no break takes or gives any",
                remedy="pass outputs=, the arrays that it writes",
            )
        self._spoil(inputs, outputs)
        self._graph.replay()
        # As a caller would, who reads them on the stream of the replay.
        replayed = [one for output in outputs for one in self._device.read(output.target, output.name, wait=False)]
        self._spoil(inputs, outputs)
        watched = [(output.name, output.target) for output in outputs]
        replay = replay_pass(self._graph, self._device, watched)
        graph, tolerance = self._graph, self._tolerance
        found = first_in_breaks(tolerance, eager, replay) or first_in_outputs(outputs, tolerance, replay.looks[-1])
        raced = found is None
        found = found or first_in_outputs(outputs, tolerance, replayed)
        if found is None:
            return compared, None
        self._spoil(inputs, outputs)
        again = self._eager(watched)
        if self._same_from_there(outputs, again, replay, replayed):
            return compared, None
        unsteady = first_in_breaks(tolerance, eager, again) or any(
            tolerance.mismatch(one.value, two.value) for one, two in zip(eager.ends, again.ends, strict=False)
        )
        found = self._located(found, outputs, again, replay)
        expected = next((output.eager.value for output in outputs if output.name == found.name), None)
        cause, evidence = cause_of(
            Case(
                graph=graph,
                found=found,
                expected=expected,
                eager=eager,
                other=other,
                replay=replay,
                unsteady=bool(unsteady),
                raced=raced,
                moved=self._moved(),
                deaf=lambda: self._deaf(inputs, outputs),
            )
        )
        return compared, _difference(number, graph, found, cause, evidence)

    # its runs -----------------------------------------------------------------------------------------------
    def _eager(self, watched: list[tuple[str, Any]] | None = None) -> Pass:
        return eager_pass(self._graph, self._device, self._forward, self._args, self._given, watched or ())

    def _spoil(self, inputs: list[Reading], outputs: list[Output]) -> None:
        """Put everything back as it was before the first run, and spoil the outputs."""
        for output in outputs:
            self._device.spoil(output.target, output.eager.value)
        self._restore(inputs)  # after it: an output may be an input too

    def _same_from_there(self, outputs: list[Output], again: Pass, replay: Pass, replayed: list[Reading]) -> bool:
        """Whether eager on the spoiled outputs leaves what the replays left: it reads them, or writes a part."""
        if first_in_breaks(self._tolerance, again, replay):
            return False
        shared = [
            replace(one, eager=replace(one.eager, value=left.value)) if one.shared else one
            for one, left in zip(outputs, again.looks[-1], strict=True)
        ]
        return not any(first_in_outputs(shared, self._tolerance, left) for left in (replay.looks[-1], replayed))

    def _located(self, found: Found, outputs: list[Output], eager: Pass, replay: Pass) -> Found:
        """The step that wrote an output otherwise, where eager writes the same array and could be watched."""
        for place, output in enumerate(outputs):
            if output.name == found.name and output.shared:
                step = writer(self._tolerance, place, eager, replay)
                return found if step is None else replace(found, step=step)
        return found

    def _deaf(self, inputs: list[Reading], outputs: list[Output]) -> list[str]:
        """The inputs that eager follows and the replay does not."""
        deaf = []
        self._spoil(inputs, outputs)
        before = self._run_both(outputs)
        for at, array in enumerate(self._device.arrays(self._args)):
            self._spoil(inputs, outputs)
            self._device.write(array, _fresh(inputs[at].value, np.random.default_rng(1000 + at)))
            after = self._run_both(outputs)
            if _differ(before[0], after[0]) and not _differ(before[1], after[1]):
                deaf.append(f"inputs[{at}] at {inputs[at].ptr:#x}")
        return deaf

    def _run_both(self, outputs: list[Output]) -> tuple[list[Reading], list[Reading]]:
        """What a replay and then eager give for the inputs as they are: eager's, the replay's."""
        given = self._values()
        self._graph.replay()
        replayed = [one for output in outputs for one in self._device.read(output.target, output.name)]
        self._restore(given)
        eager = self._eager()
        return [*eager.ends, *(one for _, values in eager.declared for one in values)], replayed

    # inputs -------------------------------------------------------------------------------------------------
    def _draw(self) -> None:
        """Fresh values into the inputs."""
        draw, self._draws = self._draws, self._draws + 1
        if self._refill is not None:
            self._args = _arguments(self._refill(draw))
            return
        generator = np.random.default_rng(draw)
        for array, reading in zip(self._device.arrays(self._args), self._values(), strict=True):
            self._device.write(array, _fresh(reading.value, generator))

    def _values(self) -> list[Reading]:
        return self._device.read(self._args, "inputs")

    def _restore(self, values: list[Reading]) -> None:
        for array, reading in zip(self._device.arrays(self._args), values, strict=False):
            self._device.write(array, reading.value)

    def _moved(self) -> tuple[Moved, ...]:
        holdings = self._graph.holdings
        book = holdings.addresses if holdings is not None else None
        return tuple(book.moved()) if book is not None else ()


def _arguments(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _fresh(host: Any, generator: np.random.Generator) -> Any:
    """Other values of the same kind: random floats; of anything else, which may be indices, what is there, shuffled."""
    if host.dtype.kind in "fc":
        return generator.standard_normal(host.shape).astype(host.dtype)
    return generator.permutation(host.reshape(-1)).reshape(host.shape)


def _differ(before: list[Reading], after: list[Reading]) -> bool:
    return any(Tolerance().mismatch(one.value, two.value) for one, two in zip(before, after, strict=False))


def _names(eager: Pass, outputs: list[Output]) -> tuple[str, ...]:
    in_breaks = [one.name for at in eager.breaks for one in (*at.before, *at.result)]
    return tuple(dict.fromkeys([*in_breaks, *(output.name for output in outputs)]))


def _difference(number: int, graph: BreakableGraph, found: Found, cause: Any, evidence: str) -> Difference:
    index, one = found.step // 2, found.mismatch
    step = f"segment {index}"
    if found.step % 2:
        step = f"break {index} {graph.breaks[index].name!r}, called at {graph.breaks[index].site},"
    return Difference(
        round=number,
        step=step,
        array=found.name,
        address=found.replay.ptr,
        index=one.index,
        eager=one.eager,
        replay=one.replay,
        count=one.count,
        size=one.size,
        cause=cause,
        evidence=evidence,
    )
