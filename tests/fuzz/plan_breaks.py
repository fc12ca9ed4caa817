"""Which break is valid where: what it may be given, where it may land, and how its body may compute."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .kernels import BINARY, LIMIT, PERSISTENT, UNARY
from .order import Root, Var
from .program import Choices
from .steps import Break
from .trees import TREES

if TYPE_CHECKING:
    from .plan import Planner

__all__ = ["FORMS", "INNER", "plan_break"]

INNER = ((4, 4), "float32")  #: what the graph takes and gives that breaks replay, see `machine.Inner`


def plan_break(planner: Planner, form: str, choices: Choices) -> None:
    """Plan a break of a form; where that is not possible, one that does nothing or none at all."""
    tag = choices.pick((None, "a", "b")) if form not in ("bare", "in place here") else None
    break_on = planner.drawn.break_on
    selected = break_on is None or tag in break_on
    if selected:
        planner.end_segment()
    rows, stub = choices.number(5) != 4, choices.number(5) == 4
    step = Break(planner.breaks, form, tag=tag, selected=selected, rows=rows, stub=stub)
    planned = FORMS[form](_Site(planner, choices, selected), step)
    if planned is not None:
        planner.add_break(planned)
    elif selected:  # the segment has ended for it
        planner.add_break(replace(step, form="nothing"))


class _Site:
    """Where a break is planned. A selected one comes after all that the segment did, on all streams."""

    def __init__(self, planner: Planner, choices: Choices, selected: bool) -> None:
        self.planner = planner
        self.choices = choices
        self.selected = selected

    @property
    def _context(self) -> bool:
        return self.planner.drawn.context and self.selected

    # what it computes -----------------------------------------------------------------------------------
    def computed(self, step: Break) -> tuple[Break, Var, int] | None:
        """With a kernel, operands and a body that returns its result. Also the first operand, and the bound."""
        planner, choices = self.planner, self.choices
        readable = planner.readable(0)
        if not readable:
            return None
        var = choices.pick(readable)
        operands = [var]
        kernel = choices.pick([*UNARY, *BINARY])
        if kernel in BINARY:
            operands.append(choices.pick(planner.partners(var, 0)))
        k = choices.number(8)
        kernel, operands, shape, dtype, bound = planner.result(kernel, operands, k)
        bodies = ["plain", "nested", "flipped"]
        table = UNARY if len(operands) == 1 else BINARY  # a body that decides may wrap the first operand
        decided = table[kernel].bound(max(var.root.bound, PERSISTENT), *(one.root.bound for one in operands[1:]), k)
        if self.selected:
            bodies += ["round trip", *["host"] * (decided <= LIMIT), *["rows"] * (bool(shape) and step.rows)]
            bodies += ["context"] * (self._context and 3 * bound <= LIMIT)
        if len(operands) == 1 and len(shape) == 2 and not planner.drawn.width:
            bodies.append("turned")
        if planner.drawn.streams:
            bodies.append("side")
        if self.selected and (shape, dtype) == INNER and not planner.drawn.width:
            bodies += ["replay", "replay"]
        body = choices.pick(bodies)
        bound = {"context": 3 * bound, "host": decided, "replay": PERSISTENT}.get(body, bound)
        numbers = tuple(one.number for one in operands)
        step = replace(step, kernel=kernel, operands=numbers, k=k, body=body, shape=shape, dtype=dtype)
        return self._on_side(step, operands), var, bound

    def _on_side(self, step: Break, operands: list[Var]) -> Break:
        """Choose the side stream of a body that uses one, and note what it does there where that is captured."""
        order = self.planner.order
        if step.body == "aux":
            return replace(step, side=self.choices.pick(self.planner.drawn.aux))
        if step.body == "side":
            step = replace(step, side=1 + self.choices.number(self.planner.drawn.streams))
            if not self.selected:
                order.wait(step.side, order.clock(0))
                order.work(step.side, operands, [])
                order.wait(0, order.clock(step.side))
        if not self.selected:
            order.work(0, operands, [])
        return step

    # where it lands -------------------------------------------------------------------------------------
    def made(self, step: Break, shape: tuple[int, ...], dtype: str, bound: int, *, sealed: bool = False) -> Break:
        """With one more array among its results."""
        out = self.planner.new(shape, dtype, Root(bound, sealed=sealed))
        if self.selected:
            out.root.claimed = out.mask
        else:
            self.planner.order.work(0, [], [out])
        self.planner.live.append(out)
        return replace(step, results=(*step.results, out.number))

    def target(self, shape: tuple[int, ...], dtype: str, but: list[Var] | None = None, **wanted: bool) -> Var:
        """An array of this shape in which no other break lands and that is none of ``but``, old or new."""
        found = [
            var
            for var in self._writable(shape, dtype)
            if not (self.selected and var.root.claimed & var.mask)
            and not any(var.overlaps(other) for other in but or ())
            and all(getattr(var.root, name) == value for name, value in wanted.items())
        ]
        if found and self.choices.number(2):
            return self.choices.pick(found)
        return self.planner.buffer(shape, dtype)

    def cell(self, shape: tuple[int, ...], dtype: str) -> Var:
        """The array of a cell in which it may land."""
        cells = {one.array: one for one in self.planner.buffers if one.cell}
        found = [
            var
            for var in self._writable(shape, dtype)
            if (one := cells.get(var.number)) and (one.shared or not (self.selected and var.root.claimed & var.mask))
        ]
        if found and self.choices.number(2):
            return self.choices.pick(found)
        return self.planner.buffer(shape, dtype, cell=True, shared=bool(self.choices.number(2)))

    def _writable(self, shape: tuple[int, ...], dtype: str) -> list[Var]:
        planner = self.planner
        return [
            var for var in planner.live if (var.shape, var.dtype) == (shape, dtype) and planner.order.writable(var, 0)
        ]

    def land(self, step: Break, target: Var, bound: int, *, claim: bool = True) -> Break:
        """With ``target`` among what it writes; ``bound`` is what lands there, which ``wrap`` may have to lower."""
        if target.root.persistent and bound > PERSISTENT:
            step, bound = replace(step, wrap=True), PERSISTENT
        target.root.bound = max(target.root.bound, bound)
        if self.selected:
            shared = step.cell and any(one.array == target.number and one.shared for one in self.planner.buffers)
            if claim and not shared:
                target.root.claimed |= target.mask
        else:
            self.planner.order.work(0, [], [target])
        return replace(step, into=(*step.into, target.number))

    def writing(self, step: Break, *, claim: bool) -> Break | None:
        """With an operand that its function adds to its destination itself."""
        planner, choices = self.planner, self.choices
        readable = planner.readable(0)
        if not readable:
            return None
        var = choices.pick(readable)
        found = [one for one in self._writable(var.shape, var.dtype) if one.same(var) or not one.overlaps(var)]
        if claim and self.selected:
            found = [one for one in found if not one.root.claimed & one.mask]
        into = choices.pick(found) if found and choices.number(2) else planner.buffer(var.shape, var.dtype)
        bodies = ["plain", "nested", *["side"] * bool(planner.drawn.streams)]
        if planner.drawn.aux and self.selected:
            bodies += ["aux", "aux", "aux"]
            if choices.number(4) == 3:  # at capture an aux stream is the current one
                step = replace(step, stream=choices.pick(planner.drawn.aux))
        step = replace(step, operands=(var.number,), k=choices.number(8), body=choices.pick(bodies))
        step = self._on_side(replace(step, shape=var.shape, dtype=var.dtype), [var, into])
        return self.land(step, into, PERSISTENT, claim=claim)

    def second(self, var: Var, k: int) -> int:
        """Bound of the second array of a tree."""
        return var.root.bound + k


# --- the forms ------------------------------------------------------------------------------------------------


def _infer(site: _Site, step: Break) -> Break | None:
    if (found := site.computed(step)) is None:
        return None
    step, _, bound = found
    return site.made(step, step.shape, step.dtype, bound)


def _infer_tree(site: _Site, step: Break) -> Break | None:
    if (found := site.computed(step)) is None:
        return None
    step, var, bound = found
    step = replace(step, variant=site.choices.number(TREES))
    step = site.made(step, step.shape, step.dtype, bound)
    return site.made(step, var.shape, var.dtype, site.second(var, step.k))


def _infer_alias(site: _Site, step: Break) -> Break | None:
    """It returns an array that it was given, or one array twice: one allocation eagerly, more than that captured."""
    planner, choices = site.planner, site.choices
    readable = planner.readable(0)
    if not readable:
        return None
    var = choices.pick(readable)
    if var.root.persistent:
        return None  # written anew at every run, whereas the result is a copy
    var.root.sealed = True
    step = replace(step, operands=(var.number,), rows=False, variant=choices.number(2))
    if not site.selected:
        planner.order.work(0, [var], [])
    step = site.made(step, var.shape, var.dtype, var.root.bound, sealed=True)
    return site.made(step, var.shape, var.dtype, var.root.bound, sealed=True) if step.variant else step


def _infer_cell(site: _Site, step: Break) -> Break | None:
    if (found := site.computed(step)) is None:
        return None
    step, var, bound = found
    step = site.land(replace(step, cell=True), site.cell(step.shape, step.dtype), bound, claim=False)
    return site.made(step, var.shape, var.dtype, site.second(var, step.k))


def _infer_none(site: _Site, step: Break) -> Break | None:
    return site.writing(step, claim=False)


def _given(site: _Site, step: Break) -> Break | None:
    if (found := site.computed(step)) is None:
        return None
    step, _, bound = found
    return site.land(step, site.target(step.shape, step.dtype), bound)


def _given_short(site: _Site, step: Break) -> Break | None:
    planned = _given(site, step)
    if planned is None or not planned.shape:
        return planned and replace(planned, form="given")
    return replace(planned, variant=site.choices.number(planned.shape[0] + 1))


def _given_tree(site: _Site, step: Break) -> Break | None:
    if (found := site.computed(step)) is None:
        return None
    step, var, bound = found
    step = replace(step, variant=site.choices.number(TREES))
    first = site.target(step.shape, step.dtype, persistent=True)
    step = site.land(step, first, bound)
    second = site.target(var.shape, var.dtype, [first], persistent=True)
    return site.land(step, second, site.second(var, step.k))


def _swap(site: _Site, step: Break) -> Break | None:
    readable = site.planner.readable(0)
    if not readable:
        return None
    like = site.choices.pick(readable)
    first = site.target(like.shape, like.dtype, persistent=True)
    second = site.target(like.shape, like.dtype, [first], persistent=True)
    step = replace(step, operands=(first.number, second.number), shape=like.shape, dtype=like.dtype)
    return site.land(site.land(step, first, PERSISTENT), second, PERSISTENT)


def _reverse(site: _Site, step: Break) -> Break | None:
    readable = site.planner.readable(0, but=lambda var: not var.shape)
    if not readable:
        return None
    like = site.choices.pick(readable)
    target = site.target(like.shape, like.dtype)
    step = replace(step, operands=(target.number,), shape=like.shape, dtype=like.dtype)
    return site.land(step, target, target.root.bound)


def _cell(site: _Site, step: Break) -> Break | None:
    if (found := site.computed(step)) is None:
        return None
    step, _, bound = found
    return site.land(replace(step, cell=True), site.cell(step.shape, step.dtype), bound)


def _writes_destination(site: _Site, step: Break) -> Break | None:
    planned = site.writing(step, claim=True)
    return planned and replace(planned, variant=site.choices.number(2))


def _in_place(site: _Site, step: Break) -> Break | None:
    return site.writing(step, claim=False)


def _value(site: _Site, step: Break) -> Break | None:
    readable = site.planner.readable(0)
    if not readable or not site.selected:
        return None
    return replace(step, operands=(site.choices.pick(readable).number,))


def _hand_on(site: _Site, step: Break) -> Break | None:
    readable = site.planner.readable(0)
    if not readable:
        return None
    var = site.choices.pick(readable)
    if not site.selected:
        site.planner.order.work(0, [var], [])
    return replace(step, operands=(var.number,))


def _as_it_is(site: _Site, step: Break) -> Break | None:
    return step


#: By form: what completes a break of it, or finds that it is not possible. `breaks` has the twin that calls it.
FORMS = {
    "infer": _infer,
    "infer tree": _infer_tree,
    "infer alias": _infer_alias,
    "infer cell": _infer_cell,
    "infer none": _infer_none,
    "given": _given,
    "given short": _given_short,
    "given same": _writes_destination,
    "given tree": _given_tree,
    "swap": _swap,
    "reverse": _reverse,
    "cell": _cell,
    "out": _writes_destination,
    "out at call": _writes_destination,
    "in place": _in_place,
    "in place here": _in_place,
    "value": _value,
    "hand on": _hand_on,
    "nothing": _as_it_is,
    "bare": _as_it_is,
}
