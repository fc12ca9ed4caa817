"""From intents to a valid forward: whatever the numbers choose, nothing races, and every value is exact.

What a valid forward may not do, and so is never planned: touch an array on a stream before the stream has waited for
whoever touched it; use a side stream in a segment that has not forked it; wait for an event of an ended segment;
write an array whose aliases are one allocation in an eager run and several in a captured one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from .kernels import BINARY, LIMIT, PERSISTENT, REDUCTIONS, UNARY
from .order import Order, Root, Var
from .plan_breaks import plan_break
from .program import Choices, Drawn, Intent, Spec
from .steps import Break, Buffer, Compute, Free, Output, Plan, Record, Step, Update, View, Wait

__all__ = ["Planner", "apply_view", "plan"]

_EVENTS = 3
_LARGEST = 64  # elements of an array


def plan(drawn: Drawn) -> Plan:
    """The valid forward that a drawn one stands for."""
    planner = Planner(drawn)
    for intent in drawn.intents:
        planner.add(intent)
    return Plan(
        steps=tuple(planner.steps),
        inputs=drawn.inputs,
        buffers=tuple(planner.buffers),
        streams=drawn.streams,
        aux=drawn.aux,
        events=_EVENTS,
        break_on=drawn.break_on,
        context=drawn.context,
        width=drawn.width,
    )


class Planner:
    """What has been planned of one forward so far."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.breaks = 0
        self.order = Order(drawn.streams, drawn.aux)
        self.live: list[Var] = []
        self._numbers = 0
        for spec in drawn.inputs:
            self.live.append(self.new(spec.shape, spec.dtype, Root(PERSISTENT, persistent=True)))

    def add(self, intent: Intent) -> None:
        choices = Choices(intent.numbers)
        kind, _, form = intent.kind.partition(": ")
        if kind == "break":
            plan_break(self, form, choices)
        else:
            getattr(self, f"_{kind}")(choices)

    # arrays ---------------------------------------------------------------------------------------------
    def new(self, shape: tuple[int, ...], dtype: str, root: Root) -> Var:
        """A new array, alone in its allocation; not yet live."""
        size = int(np.prod(shape, dtype=np.int64))
        return self.view(root, np.arange(size).reshape(shape), dtype)

    def view(self, root: Root, elements: np.ndarray, dtype: str) -> Var:
        self._numbers += 1
        return Var(self._numbers - 1, root, elements, dtype)

    def buffer(self, shape: tuple[int, ...], dtype: str, *, cell: bool = False, shared: bool = False) -> Var:
        """A new array that is made before the capture; live from now on."""
        var = self.new(shape, dtype, Root(PERSISTENT, persistent=True))
        self.buffers.append(Buffer(var.number, Spec(shape, dtype), cell, shared))
        self.live.append(var)
        return var

    def readable(self, stream: int, *, but: Callable[[Var], bool] | None = None) -> list[Var]:
        return [var for var in self.live if self.order.readable(var, stream) and not (but and but(var))]

    def partners(self, var: Var, stream: int) -> list[Var]:
        """Arrays that can be the second operand."""
        return self.readable(
            stream, but=lambda other: other.dtype != var.dtype or not _broadcasts(other.shape, var.shape)
        )

    def result(self, kernel: str, operands: list[Var], k: int) -> tuple[str, list[Var], tuple[int, ...], str, int]:
        """A kernel whose result is small enough: itself, or ``wrap``. With its operands, and shape, dtype, bound."""
        table = UNARY if len(operands) == 1 else BINARY
        bound = table[kernel].bound(*(var.root.bound for var in operands), k)
        if bound > LIMIT:
            kernel, operands, table = "wrap", operands[:1], UNARY
            bound = PERSISTENT
        shadow = table[kernel].function(*(np.zeros(var.shape, var.dtype) for var in operands), k)
        return kernel, operands, shadow.shape, str(shadow.dtype), bound

    # computing ------------------------------------------------------------------------------------------
    def _unary(self, choices: Choices) -> None:
        stream = choices.pick(self.order.active)
        if found := self.readable(stream):
            var = choices.pick(found)
            self._compute(choices.pick(list(UNARY)), [var], choices.number(8), stream)

    def _binary(self, choices: Choices) -> None:
        stream = choices.pick(self.order.active)
        if found := self.readable(stream):
            var = choices.pick(found)
            other = choices.pick(self.partners(var, stream))
            self._compute(choices.pick(list(BINARY)), [var, other], choices.number(8), stream)

    def _compute(self, kernel: str, operands: list[Var], k: int, stream: int) -> None:
        kernel, operands, shape, dtype, bound = self.result(kernel, operands, k)
        out = self.new(shape, dtype, Root(bound))
        self._made(out, operands, stream, Compute(out.number, kernel, _numbers(operands), k, stream=stream))

    def _made(self, out: Var, operands: list[Var], stream: int, step: Compute) -> None:
        self.order.work(stream, operands, [out])
        self.live.append(out)
        self.steps.append(step)

    def _reduce(self, choices: Choices) -> None:
        stream = choices.pick(self.order.active)
        if not (found := self.readable(stream, but=lambda var: not var.shape)):
            return
        var = choices.pick(found)
        kind = choices.pick(list(REDUCTIONS))
        axes = choices.pick([tuple(range(len(var.shape))), *((axis,) for axis in range(len(var.shape)))])
        count = int(np.prod([var.shape[axis] for axis in axes]))
        bound = var.root.bound * max(count, 1) if kind.startswith("sum") else var.root.bound
        if bound > LIMIT or (not count and not kind.startswith("sum")):
            return
        shadow = REDUCTIONS[kind](np.zeros(var.shape, var.dtype), axes)
        out = self.new(shadow.shape, var.dtype, Root(bound))
        self._made(out, [var], stream, Compute(out.number, kind, (var.number,), axes=axes, stream=stream))

    def _concatenate(self, choices: Choices) -> None:
        stream = choices.pick(self.order.active)
        if not (found := self.readable(stream, but=lambda var: not var.shape)):
            return
        var = choices.pick(found)
        axis = choices.number(len(var.shape))
        rest = _without(var.shape, axis)
        fits = [
            other
            for other in found
            if other.dtype == var.dtype
            and len(other.shape) == len(var.shape)
            and _without(other.shape, axis) == rest
            and other.elements.size + var.elements.size <= _LARGEST
        ]
        if fits:
            other = choices.pick(fits)
            shape = (*var.shape[:axis], var.shape[axis] + other.shape[axis], *var.shape[axis + 1 :])
            out = self.new(shape, var.dtype, Root(max(var.root.bound, other.root.bound)))
            step = Compute(out.number, "concatenate", _numbers([var, other]), axes=(axis,), stream=stream)
            self._made(out, [var, other], stream, step)

    def _update(self, choices: Choices) -> None:
        stream = choices.pick(self.order.active)
        targets = [var for var in self.live if self.order.writable(var, stream)]
        if not targets:
            return
        target = choices.pick(targets)
        kind = choices.pick(("accumulate", "assign"))
        fits = self.operands_for(target, stream, assign=kind == "assign")
        if fits:
            operand = choices.pick(fits)
            k = choices.number(4)
            self.order.work(stream, [operand, target], [target])
            target.root.bound = max(target.root.bound, PERSISTENT if kind == "accumulate" else operand.root.bound)
            self.steps.append(Update(kind, target.number, operand.number, k, stream))

    def operands_for(self, target: Var, stream: int, *, assign: bool = False) -> list[Var]:
        """Arrays that can be added to ``target`` or assigned to it: the same elements, or none of them."""

        def unfit(var: Var) -> bool:
            return (
                var.dtype != target.dtype
                or not _broadcasts(var.shape, target.shape)
                or (var.overlaps(target) and not var.same(target))
                or (assign and target.root.persistent and var.root.bound > PERSISTENT)
            )

        return self.readable(stream, but=unfit)

    def _view(self, choices: Choices) -> None:
        shaped = [var for var in self.live if var.shape]
        if not shaped:
            return
        source = choices.pick(shaped)
        axis = choices.number(len(source.shape))
        extent = source.shape[axis]
        how: tuple[str | int | None, ...] = choices.pick(
            [
                ("transpose", *reversed(range(len(source.shape)))),
                ("slice", axis, None, None, -1),
                ("slice", axis, 1, None, None),
                ("slice", axis, None, None, 2),
                ("slice", axis, None, max(extent // 2, 1), None),
                ("slice", axis, extent, None, None),  # nothing is left
            ]
        )
        made = self.view(source.root, apply_view(source.elements, how), source.dtype)
        self.live.append(made)
        self.steps.append(View(made.number, source.number, how))

    def _free(self, choices: Choices) -> None:
        kept = {one.array for one in self.buffers} | set(range(len(self.drawn.inputs)))
        if droppable := [var for var in self.live if var.number not in kept]:
            dropped = choices.pick(droppable)
            self.live.remove(dropped)
            self.steps.append(Free(dropped.number))

    def _output(self, choices: Choices) -> None:
        """What it copies may have been written on any stream: the library joins them first."""
        for stream in self.order.active:
            self.order.wait(0, self.order.clock(stream))
        chosen = [choices.pick(self.live) for _ in range(1 + choices.number(2))]
        self.order.work(0, chosen, [])
        stream = choices.pick(self.order.active)
        self.order.wait(stream, self.order.clock(0))  # what is put there next comes after the copy
        self.steps.append(Output(_numbers(chosen), stream))

    # streams --------------------------------------------------------------------------------------------
    def _fork(self, choices: Choices) -> None:
        if self.drawn.streams:
            self._wait_for(1 + choices.number(self.drawn.streams), choices.pick(self.order.active))

    def _join(self, choices: Choices) -> None:
        of = choices.pick(self.order.active[1:] or [0])
        self._wait_for(choices.pick(self.order.active), of)

    def _wait_for(self, stream: int, of: int) -> None:
        """``stream`` waits for all that is on ``of`` now."""
        if stream != of:
            self.order.wait(stream, self.order.clock(of))
            self.steps.append(Wait(stream, None, of))

    def _record(self, choices: Choices) -> None:
        event, stream = choices.number(_EVENTS), choices.pick(self.order.active)
        self.order.events[event] = self.order.clock(stream)
        self.steps.append(Record(event, stream))

    def _wait(self, choices: Choices) -> None:
        if self.order.events:
            event = choices.pick(list(self.order.events))
            stream = choices.number(self.drawn.streams + 1)
            self.order.wait(stream, self.order.events[event])
            self.steps.append(Wait(stream, event))

    # segments -------------------------------------------------------------------------------------------
    def end_segment(self) -> None:
        """A segment ends here, whatever is still forked (C11), and the next one begins."""
        self.order.begin()

    def add_break(self, step: Break) -> None:
        self.breaks += 1
        self.steps.append(step)
        if step.selected:
            self.order.begin()


def apply_view(array, how):  # type: ignore[no-untyped-def] # of NumPy, or of a driver's arrays
    """A view of the planned axes, whatever axis comes after them."""
    if how[0] == "transpose":
        return array.transpose(*how[1:], *range(len(how) - 1, array.ndim))
    _, axis, start, stop, step = how
    return array[(*[slice(None)] * axis, slice(start, stop, step))]


def _numbers(arrays: Iterable[Var]) -> tuple[int, ...]:
    return tuple(var.number for var in arrays)


def _broadcasts(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts into another without changing it."""
    return len(shape) <= len(into) and all(
        extent in (1, wanted) for extent, wanted in zip(reversed(shape), reversed(into), strict=False)
    )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
