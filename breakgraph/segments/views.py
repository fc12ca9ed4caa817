"""What can be seen of a graph. The `breakgraph.inspect` room, which is above this one, draws it and says so here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from breakgraph.segments.graph import BreakableGraph
    from breakgraph.segments.timing import Profile
    from breakgraph.segments.verification import Verification

__all__ = ["StepTimes", "TraceFormat", "Viewed", "Views"]

#: Microseconds of one step: ``cpu_us`` to launch it, ``gap_us`` in which the GPU waited for it, ``gpu_us`` to run it.
StepTimes = Mapping[str, float]
TraceFormat = Literal["json", "chrome", "html"]


class Views(Protocol):
    """The functions behind the methods of `Viewed`."""

    def report(self, graph: BreakableGraph) -> str: ...
    def to_dot(self, graph: BreakableGraph) -> str: ...
    def save_trace(
        self,
        graph: BreakableGraph,
        file: str | os.PathLike[str],
        *,
        format: TraceFormat,  # noqa: A002 - the name that users of traces know
        times: Sequence[StepTimes] | None,
    ) -> None: ...
    def summary_html(self, graph: BreakableGraph) -> str: ...
    def profile(self, graph: BreakableGraph, n: int, *, stream: object, valid_rows: int | None) -> Profile: ...
    def profile_table(self, profile: Profile) -> str: ...
    def verify(
        self,
        graph: BreakableGraph,
        forward: Callable[..., Any],
        inputs: Any,
        *,
        outputs: Any,
        rounds: int,
        atol: float,
        rtol: float,
    ) -> Verification: ...


class Viewed:
    """The views of a `BreakableGraph`. But for `profile` they only read it, and any graph can be asked for them."""

    views: ClassVar[Views]  #: a room imports only rooms below it, so the one above hands its functions down

    def report(self) -> str:
        """Its steps, nodes, kernels and memory as plain text of at most 120 columns."""
        return self.views.report(self._graph)

    def to_dot(self) -> str:
        """The graph in Graphviz's DOT language: a cluster for each segment, the breaks between them."""
        return self.views.to_dot(self._graph)

    def save_trace(
        self,
        file: str | os.PathLike[str],
        *,
        format: TraceFormat = "json",  # noqa: A002 - the name that users of traces know
        times: Sequence[StepTimes] | None = None,
    ) -> None:
        """Write what was captured to a file.

        Parameters
        ----------
        file
            Its path; what was there is replaced.
        format
            ``"json"``: the whole description, which ``breakgraph view`` reads. ``"html"``: the page that it makes.
            ``"chrome"``: a trace for chrome://tracing and Perfetto.
        times
            Measured microseconds for each step, as ``{"cpu_us": ..., "gpu_us": ..., "gap_us": ...}``: the time of
            the CPU to launch it, of the GPU to run it, and in which the GPU waited for it; as of ``profile().times``.
            Without them all steps are drawn equally wide.

        Raises
        ------
        BreakgraphError
            There is not one time for each step, or the format is none of these.
        """
        self.views.save_trace(self._graph, file, format=format, times=times)

    def profile(self, n: int = 100, *, stream: object = None, valid_rows: int | None = None) -> Profile:
        """Measure where the time of a replay goes, step by step.

        It replays the forward for that, on the inputs as they are: ``n`` times with an event after each step, ``n``
        times with two events and ``n`` times with none, in turn, after two rounds that do not count. So a break with
        side effects has them ``3 * (n + 2)`` times. Each replay begins when the stream is idle, and is waited for.

        Parameters
        ----------
        n
            How many replays are timed step by step.
        stream, valid_rows
            As of `BreakableGraph.replay`.

        Returns
        -------
        profile
            Microseconds for each step, and what would save some; ``print`` shows a table.

        Raises
        ------
        CaptureStateError
            It cannot be replayed now; as `BreakableGraph.replay` says.
        ValueError
            ``n`` is less than 1.
        BaseException
            Whatever a break raises. The graph can be replayed again.
        """
        return self.views.profile(self._graph, n, stream=stream, valid_rows=valid_rows)

    def verify(
        self,
        forward: Callable[..., Any],
        inputs: Any,
        *,
        outputs: Any = None,
        rounds: int = 3,
        atol: float = 0.0,
        rtol: float = 0.0,
    ) -> Verification:
        """Compare replays with the forward run eagerly, value by value and bit by bit, on fresh inputs.

        Compared are what each break was called with and gave, and the outputs, which are spoiled before each replay.
        On a difference the answer names the first step that gave another value, the array, the element, and the
        likeliest cause.

        Parameters
        ----------
        forward
            The forward that was captured. It is called as ``forward(*inputs)`` outside any capture, a few times in a
            round, in the forward context that is published.
        inputs
            The arrays that were captured as inputs, one or a sequence, among them all that the forward changes. Floats
            are given random values, others are shuffled, and at the end all are as they were. Or a function: called
            with 0, 1, ..., it writes fresh values into them, and returns the arguments for ``forward``.
        outputs
            What the captured forward returned, in the same form; where it returns nothing, the arrays that it writes.
            Not needed for outputs of `BreakableGraph.output`, and for arrays that are the same ones at each call.
        rounds
            How many times; it ends at the first that differs.
        atol, rtol
            How far floats may differ, as of ``numpy.isclose``; both 0: not in one bit.

        Returns
        -------
        verification
            ``.ok``, ``.difference``, ``.raise_if_different()``; as a string what a person wants to read.

        Raises
        ------
        CaptureStateError
            It cannot be replayed now, or a capture is open in some thread: the whole device is waited for.
        BreakgraphError
            There is nothing to compare, or it is not known where a replay leaves what the forward returns.
        """
        return self.views.verify(self._graph, forward, inputs, outputs=outputs, rounds=rounds, atol=atol, rtol=rtol)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return self.views.summary_html(self._graph)

    @property
    def _graph(self) -> BreakableGraph:
        return self  # type: ignore[return-value]  # the one class that this is a base of
