"""One forward's arrays in one place, and what it takes to run the forward there: in NumPy, eagerly, or captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

import breakgraph as bg
from breakgraph import frameworks

from .breaks import Boom, Context, Difference, call, model, scrub
from .kernels import BINARY, REDUCTIONS, UNARY, accumulate, wrap
from .plan import apply_view
from .plan_breaks import INNER
from .steps import Break, Compute, Free, Output, Plan, Record, Step, Update, View, Wait
from .trees import fill, label_of, set_label

__all__ = ["Device", "Host", "Inner", "Machine"]

Values = list[np.ndarray[Any, Any]]


class Swallowed(Exception):
    """A forward has caught what a break raised, and returns."""


class Host:
    """NumPy, which knows no streams."""

    host = True
    xp = np

    def on(self, stream: int) -> AbstractContextManager[object]:
        return nullcontext()

    def put(self, value: np.ndarray[Any, Any]) -> Any:
        return np.array(value)

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def inner(self, array: Any) -> Any:
        """What `Inner` computes."""
        return wrap(array + array + array.dtype.type(3))


class Inner:
    """A graph with an arena of its own, which breaks replay: twice, plus 3, modulo 64, with a break in it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._x = device.xp.zeros(*INNER)
        with bg.capture(arena=bg.Arena(), name="inner") as self._graph:
            double = bg.break_here(self._add, bg.INFER, self._x, self._x * 1)
            self._out = wrap(double + 3)

    @staticmethod
    def _add(a: Any, b: Any) -> Any:
        if bg.current_valid_rows() is not None:
            raise Difference("state", "a break of an inner replay sees the rows of the outer one")
        return a + b

    def __call__(self, array: Any) -> Any:
        self._x[...] = array
        self._graph.replay()
        found = self._out.copy()
        self._device.driver.stream_synchronize(self._device.current())  # another stream may come next
        return found


class Device:
    """The current driver's device, with the side streams of a program."""

    host = False

    def __init__(self, driver: Any, streams: list[Any]) -> None:
        self.driver = driver
        self.xp = bg.array_namespace()
        self.streams = streams
        self._framework = frameworks.taking_part(driver)[0]
        self._events: list[Any] = []
        self.inner: Any = None

    def on(self, stream: int) -> AbstractContextManager[object]:
        """Make side stream ``stream``, counted from 1, the current one; 0 leaves the stream as it is."""
        return self.scope(self.streams[stream - 1]) if stream else nullcontext()

    def scope(self, stream: Any) -> AbstractContextManager[object]:
        return self._framework.stream_scope(int(stream))

    def current(self) -> int:
        """The handle of the current stream."""
        return int(self.driver.resolve_stream(self._framework.current_stream()))

    def order(self, before: int, after: int) -> None:
        """A stream wait: ``after`` waits for what is on ``before`` now."""
        event = self.event()
        self.driver.event_record(event.handle, before)
        self.driver.stream_wait_event(after, event.handle)
        self._events.append(event)  # no event is destroyed inside a segment

    def event(self) -> Any:
        return bg.driver.Event(self.driver.event_create(), self.driver.event_destroy)

    @contextmanager
    def forked(self, stream: int) -> Iterator[None]:
        """Work on a side stream, forked from the current one and joined to it."""
        origin, side = self.current(), int(self.streams[stream - 1])
        self.order(origin, side)
        with self.on(stream):
            yield
        self.order(side, origin)

    def put(self, value: np.ndarray[Any, Any]) -> Any:
        return self.xp.asarray(value)

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = array.get()
        return found

    def settle(self) -> None:
        """Wait for everything."""
        self.driver.synchronize()
        self._events.clear()


class Machine:
    """What one forward has from run to run: inputs, buffers, cells; and what its breaks have seen.

    ``bomb`` is the number of a break that raises `Boom`, ``runs`` the number of the run, for breaks to see.
    """

    def __init__(self, plan: Plan, place: Any) -> None:
        self.plan = plan
        self.place = place
        self.trailing = (plan.width,) if plan.width else ()
        self.cells: dict[int, Any] = {}
        self.state: dict[int, Any] = {}
        self.trees: dict[int, Any] = {}
        self.seen: list[float] = []
        self.bomb: int | None = None
        self.context: Context | None = None
        self.runs = 0
        for number, spec in enumerate(plan.inputs):
            self.state[number] = place.xp.zeros((*spec.shape, *self.trailing), spec.dtype)
        for one in plan.buffers:
            shape = (*one.spec.shape, *self.trailing)
            if one.cell and not place.host:
                cell = self.cells[one.array] = bg.Cell(shape, one.spec.dtype, shared=one.shared)
                cell.write(np.zeros(shape, one.spec.dtype))
                self.state[one.array] = cell.array
            else:
                self.state[one.array] = place.xp.zeros(shape, one.spec.dtype)
        self._events = [] if place.host else [place.event() for _ in range(plan.events)]

    # values ---------------------------------------------------------------------------------------------
    def set_inputs(self, values: Values) -> None:
        self._set(range(len(values)), values)

    def values(self) -> Values:
        """Inputs and buffers."""
        return [self.place.get(array) for array in self.state.values()]

    def restore(self, values: Values) -> None:
        """Give inputs and buffers other values."""
        self._set(self.state, values)

    def _set(self, numbers: Iterable[int], values: Values) -> None:
        for number, value in zip(numbers, values, strict=True):
            if self.place.host:
                self.state[number][...] = value
            elif value.size:
                self.state[number].set(np.ascontiguousarray(value).reshape(value.shape))

    @property
    def labels(self) -> dict[int, int]:
        """The plain values in the destinations that it has used, by the number of their break."""
        return {
            step.number: label
            for step in self.with_trees()
            if (label := label_of(step.variant, self.trees[step.number])) is not None
        }

    def set_labels(self, labels: dict[int, int]) -> None:
        for step in self.with_trees():
            set_label(step.variant, self.trees[step.number], labels.get(step.number, -1))

    def with_trees(self) -> list[Break]:
        """The breaks whose destinations have been used that are trees."""
        steps = [step for step in self.plan.steps if isinstance(step, Break)]
        return [step for step in steps if step.selected and step.number in self.trees]

    # runs -----------------------------------------------------------------------------------------------
    def run_eagerly(self, rows: int | None = None) -> tuple[dict[int, Any], list[Any]]:
        """Run the forward without a capture. Returns its live arrays, and copies of its outputs."""
        return (_InNumPy if self.place.host else _Eager)(self, rows).run()

    def run_captured(
        self, graph: Any, *, stop_at: int | None = None, swallow: bool = False
    ) -> tuple[dict[int, Any], list[Any]]:
        """Run the forward inside the capture of ``graph``. Returns its live arrays, and its outputs.

        Raises `Boom` at step ``stop_at``. With ``swallow`` it ends at the first break that raises.
        """
        return _Captured(self, graph, swallow).run(stop_at)


class _Run:
    """One run of a forward."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.place = machine.place
        self.arrays: dict[int, Any] = dict(machine.state)
        self.outputs: list[Any] = []

    def run(self, stop_at: int | None = None) -> tuple[dict[int, Any], list[Any]]:
        try:
            for at, step in enumerate(self.machine.plan.steps):
                if at == stop_at:
                    raise Boom(f"before step {at}")
                self.do(step)
            if stop_at is not None:
                raise Boom("at its end")
        except Swallowed:
            pass
        self.finish()
        for step in self.machine.with_trees():  # whoever reads them later is not to find what they held
            fill(step.variant, self.machine.trees[step.number], None, None)
        live = {number: array for number, array in self.arrays.items() if number not in self.machine.state}
        return live, self.outputs

    def do(self, step: Step) -> None:
        arrays = self.arrays
        if isinstance(step, Compute):
            with self.place.on(step.stream):
                arrays[step.out] = _computed(step, [arrays[one] for one in step.operands])
        elif isinstance(step, Update):
            with self.place.on(step.stream):
                if step.kind == "accumulate":
                    accumulate(arrays[step.target], arrays[step.operand], step.k)
                else:
                    arrays[step.target][...] = arrays[step.operand]
        elif isinstance(step, View):
            arrays[step.out] = apply_view(arrays[step.source], step.how)
        elif isinstance(step, Free):
            self.free(arrays.pop(step.array))
        elif isinstance(step, Output):
            with self.place.on(step.stream):
                self.outputs += self.output([arrays[one] for one in step.arrays])
        elif isinstance(step, Break):
            self.break_(step)
        else:
            self.order(step)

    def free(self, array: Any) -> None:
        """Drop an array."""

    def order(self, step: Record | Wait) -> None:
        """Order streams."""
        place, driver = self.place, self.place.driver
        handles = [place.current(), *map(int, place.streams)]
        events = self.machine._events
        if isinstance(step, Record):
            driver.event_record(events[step.event].handle, handles[step.stream])
        elif step.event is None:
            place.order(handles[step.of], handles[step.stream])
        else:
            driver.stream_wait_event(handles[step.stream], events[step.event].handle)

    def output(self, arrays: list[Any]) -> list[Any]:
        return [array.copy() for array in arrays]

    def break_(self, step: Break) -> None:
        call(self.machine, step, self.arrays)

    def finish(self) -> None:
        """The forward has returned."""


class _InNumPy(_Run):
    def __init__(self, machine: Machine, rows: int | None) -> None:
        super().__init__(machine)
        self.rows = rows

    def order(self, step: Record | Wait) -> None:
        """There is one order."""

    def break_(self, step: Break) -> None:
        model(self.machine, step, self.arrays)
        if step.selected and self.rows is not None:
            scrub(step, self.arrays, self.rows)


class _Eager(_Run):
    """On the current stream and the side streams, which are in order as captured segments would be.

    What is freed stays until the streams that may use it are done, since here nobody else waits for them (C28).
    """

    def __init__(self, machine: Machine, rows: int | None) -> None:
        super().__init__(machine)
        self.rows = rows
        self._freed: list[Any] = []
        self._settle()  # the inputs were set on one stream, and any may read them

    def free(self, array: Any) -> None:
        self._freed.append(array)

    def output(self, arrays: list[Any]) -> list[Any]:
        self._settle()
        copies = super().output(arrays)
        self._settle()
        return copies

    def break_(self, step: Break) -> None:
        if not step.selected:
            super().break_(step)
            return
        self._settle()  # a segment ends
        super().break_(step)
        self._settle()  # and what the break left on side streams is joined
        if self.rows is not None:
            scrub(step, self.arrays, self.rows)
            self._settle()

    def finish(self) -> None:
        self._settle()

    def _settle(self) -> None:
        self.place.settle()
        self._freed.clear()


class _Captured(_Run):
    def __init__(self, machine: Machine, graph: Any, swallow: bool) -> None:
        super().__init__(machine)
        self.graph = graph
        self.swallow = swallow

    def output(self, arrays: list[Any]) -> list[Any]:
        return list(self.graph.output(tuple(arrays)))

    def break_(self, step: Break) -> None:
        try:
            super().break_(step)
        except Boom:
            if self.swallow:
                raise Swallowed from None
            raise


def _computed(step: Compute, operands: list[Any]) -> Any:
    if step.kernel == "concatenate":
        assert step.axes is not None
        return np.concatenate(operands, axis=step.axes[0])
    if step.axes is not None:
        found = REDUCTIONS[step.kernel](*operands, step.axes)
    else:
        found = (UNARY if len(operands) == 1 else BINARY)[step.kernel].function(*operands, step.k)
    return np.asarray(found) if isinstance(found, np.generic) else found
