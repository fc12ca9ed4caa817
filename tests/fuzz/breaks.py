"""The break points of a program: each form as the library is asked for it (`call`), and as NumPy does it (`model`).

`call` is the same code in an eager run and inside a capture. `model` knows nothing of the library: it says where a
result has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import breakgraph as bg

from .kernels import BINARY, UNARY, accumulate, wrap
from .steps import Break
from .trees import Box, fill, parts_of, tree_of

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["Boom", "Context", "Difference", "call", "model", "scrub"]

Arrays = dict[int, Any]


class Boom(Exception):
    """Raised by a program that is told to fail."""


class Difference(AssertionError):
    """A program came out differently from how it should; ``kind`` says in what."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Context:
    """A forward context: what is computed under it is scaled."""

    def __init__(self, scale: int) -> None:
        self.scale = scale


# --- what their functions do ------------------------------------------------------------------------------------


def entered(machine: Machine, step: Break) -> None:
    """A break's function is being called."""
    if machine.bomb == step.number:
        raise Boom(f"in break {step.number}")
    if machine.place.host or not step.selected:
        return
    if bg.is_capturing():
        raise Difference("state", f"break {step.number} sees an open segment")
    stream = bg.current_stream()
    if stream is not None and not step.stream and int(stream) != machine.place.current():
        raise Difference("state", f"break {step.number} runs on {machine.place.current():#x}, and is told {stream}")


def _kernel(step: Break, operands: list[Any]) -> Any:
    table = UNARY if len(operands) == 1 else BINARY
    return table[step.kernel].function(*operands, step.k)


def _computed(machine: Machine, step: Break, operands: list[Any], context: Context | None) -> Any:
    """What a break computes from its operands, in the way that its body says."""
    entered(machine, step)
    place, body = machine.place, step.body
    if body == "nested" and not place.host:
        result = bg.break_point(lambda *given: _kernel(step, list(given)))(*operands)
    elif body == "host":
        value = float(place.get(operands[0]).reshape(-1)[:1].sum())
        machine.seen.append(value)
        result = _kernel(step, operands if value > step.k else [wrap(operands[0]), *operands[1:]])
    elif body == "round trip":
        with np.errstate(all="ignore"):  # of a capture that does not execute, the values mean nothing
            result = place.put(np.asarray(_kernel(step, [place.get(one) for one in operands])))
    elif body == "replay":
        result = place.inner(_kernel(step, operands))
    elif body == "turned":
        result = _kernel(step, [one.T for one in operands]).T
    elif body == "side" and not place.host:
        assert step.side is not None
        result = place.xp.empty((*step.shape, *machine.trailing), step.dtype)
        with place.forked(step.side):
            result[...] = _kernel(step, operands)
    else:
        result = _kernel(step, operands)
    if context is not None:
        if not place.host and bg.current_forward() is not context:
            raise Difference("context", f"break {step.number} is given another forward context than the current one")
        result = result * result.dtype.type(context.scale)
    if step.wrap:
        result = wrap(result)
    if body == "flipped" and step.shape:
        result = result[::-1]
    if body == "rows" and (rows := bg.current_valid_rows()) is not None:
        result = bg.slice_to_real_rows(rows, result)
    return result


def _second(step: Break, operands: list[Any]) -> Any:
    """The other array of a tree, with a negative stride where it has axes."""
    result = UNARY["from"].function(operands[0], step.k)
    result = wrap(result) if step.wrap else result
    return result[::-1] if result.ndim else result


def _added(machine: Machine, step: Break, into: Any, operand: Any) -> None:
    """What a break does that writes its destination itself."""
    entered(machine, step)
    place = machine.place
    if place.host or step.body == "plain":
        accumulate(into, operand, step.k)
    elif step.body == "nested":
        bg.break_point(dst=bg.IN_PLACE)(accumulate)(into, operand, step.k)
    elif step.body == "side":
        assert step.side is not None
        with place.forked(step.side):
            accumulate(into, operand, step.k)
    else:
        assert step.side is not None
        with place.on(step.side):  # and left there
            accumulate(into, operand, step.k)


# --- how they are asked for -------------------------------------------------------------------------------------


def call(machine: Machine, step: Break, arrays: Arrays) -> None:
    """Call a break point of the program, eagerly or inside a capture; what it returns is among the arrays then."""
    with machine.place.on(step.stream):
        _call(machine, step, arrays)


def _call(machine: Machine, step: Break, arrays: Arrays) -> None:
    if step.form == "bare":
        bg.break_graph()
    elif step.form == "nothing":
        _break(step, lambda: entered(machine, step), bg.IN_PLACE)
    elif step.form in _WRITERS:
        _call_writer(machine, step, arrays)
    elif step.form in ("value", "hand on"):
        _call_reader(machine, step, arrays)
    else:
        _call_computing(machine, step, arrays)


def _break(step: Break, work: Callable[..., Any], dst: Any, /, *args: Any, **kwargs: Any) -> Any:
    if step.tag is None and step.rows and not step.stub and step.number % 2:
        return bg.break_here(work, dst, *args, **kwargs)
    return _point(step, work, dst=dst)(*args, **kwargs)


def _point(step: Break, work: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def stub(*args: Any, **kwargs: Any) -> Any:
        return work(*args, **kwargs)

    return bg.break_point(tag=step.tag, rows=step.rows, stub=stub if step.stub else None, **options)(work)


def _call_computing(machine: Machine, step: Break, arrays: Arrays) -> None:
    dst = _destination(machine, step, arrays)
    cell = dst if step.form == "infer cell" else None  # and nothing else: the function would keep it alive

    def work(given: Any, context: Any = None) -> Any:
        return _result(machine, step, _unpacked(given), context, cell)

    packed = _packed(step, [arrays[one] for one in step.operands])
    options = {"context": machine.context} if step.body == "context" else {}
    inferred = step.form.startswith("infer")
    returned = _break(step, work, bg.INFER if inferred else dst, packed, **options)
    if step.form == "infer":
        arrays[step.results[0]] = returned
    elif step.form == "infer tree":
        arrays.update(zip(step.results, parts_of(step.variant, returned), strict=True))
    elif step.form == "infer alias":
        arrays.update(zip(step.results, returned if step.variant else (returned,), strict=True))
    elif step.form == "infer cell":
        _expect(step, returned[0], dst)
        arrays[step.results[0]] = returned[1]
    elif step.form in ("given tree", "swap"):
        variant = step.variant if step.form == "given tree" else 0
        for part, wanted in zip(parts_of(variant, returned), parts_of(variant, dst), strict=True):
            _expect(step, part, wanted)
    else:
        _expect(step, returned, arrays[step.into[0]])


def _result(machine: Machine, step: Break, operands: list[Any], context: Any, cell: Any) -> Any:
    """What the function of a break returns that leaves landing to the library."""
    if step.form in ("swap", "reverse", "infer alias"):
        entered(machine, step)
        if step.form == "swap":
            return (operands[1], operands[0])
        if step.form == "reverse":
            return operands[0][::-1]
        return (operands[0], operands[0]) if step.variant else operands[0]
    result = _computed(machine, step, operands, context)
    if step.form == "infer cell":
        second = _second(step, operands)  # first: the cell may be an operand
        cell.write(result)
        return cell, second
    if step.form in ("infer tree", "given tree"):
        return tree_of(step.variant, result, _second(step, operands), machine.runs)
    return result[: step.variant] if step.form == "given short" else result


def _destination(machine: Machine, step: Break, arrays: Arrays) -> Any:
    if step.form == "given tree":
        made = tree_of(step.variant, *(arrays[one] for one in step.into), -1)
        tree = machine.trees.setdefault(step.number, made)
        return fill(step.variant, tree, *parts_of(step.variant, made))
    if step.form == "swap":
        return tuple(arrays[one] for one in step.into)
    if step.cell:
        return machine.cells[step.into[0]]
    return arrays[step.into[0]] if step.into else None


#: Forms whose function writes its destination itself.
_WRITERS = ("infer none", "given same", "out", "out at call", "in place", "in place here")


def _call_writer(machine: Machine, step: Break, arrays: Arrays) -> None:
    target, operand = arrays[step.into[0]], arrays[step.operands[0]]

    def work(a: Any, into: Any) -> Any:
        _added(machine, step, into, a)
        return into if step.form == "given same" or step.variant else None

    if step.form == "infer none":
        returned = _break(step, work, bg.INFER, operand, target)
    elif step.form == "given same":
        returned = _break(step, work, target, operand, target)
    elif step.form == "out":
        returned = _point(step, work, dst=target, out="into")(operand)
    elif step.form == "out at call":
        returned = _point(step, work, out="into")(operand, into=target)
    elif step.form == "in place":
        returned = _point(step, work, dst=bg.IN_PLACE, writes=("into",))(operand, target)
    else:
        returned = bg.break_here(work, bg.IN_PLACE, operand, target)
    if step.form in ("given same", "out", "out at call"):
        _expect(step, returned, target)


def _call_reader(machine: Machine, step: Break, arrays: Arrays) -> None:
    def work(given: Any) -> Any:
        entered(machine, step)
        if step.form == "hand on":
            return _unpacked(given)[0]
        machine.seen.append(float(machine.place.get(_unpacked(given)[0]).sum()))
        return machine.seen[-1]

    operand = arrays[step.operands[0]]
    returned = _break(step, work, bg.NO_WRITEBACK, _packed(step, [operand]))
    if step.form == "hand on":
        _expect(step, returned, operand)
    elif returned is not machine.seen[-1]:
        raise Difference("value", f"break {step.number} handed on {returned}, not {machine.seen[-1]}")


def _expect(step: Break, returned: Any, wanted: Any) -> None:
    if returned is not wanted:
        kind = type(returned).__name__
        raise Difference("returned", f"break {step.number} ({step.form}) returned a {kind} that is not its destination")


def _packed(step: Break, operands: list[Any]) -> Any:
    """The arrays as a break is given them: in a container of one kind or another."""
    ways = [tuple(operands), dict(enumerate(operands)), Box(operands[0], operands[-1], len(operands)), operands[0]]
    return ways[step.number % (4 if len(operands) == 1 else 3)]


def _unpacked(given: Any) -> list[Any]:
    if isinstance(given, tuple):
        return list(given)
    if isinstance(given, dict):
        return list(given.values())
    return [given.a, given.b][: given.n] if isinstance(given, Box) else [given]


# --- the same without the library -------------------------------------------------------------------------------


def model(machine: Machine, step: Break, arrays: Arrays) -> None:
    """What a break does to the arrays, all of them NumPy's."""
    if step.form == "bare":
        return
    if step.form == "nothing":
        entered(machine, step)
        return
    operands = [arrays[one] for one in step.operands]
    into = [arrays[one] for one in step.into]
    context = machine.context if step.body == "context" else None
    if step.form in _WRITERS:
        _added(machine, step, into[0], operands[0])
    elif step.form == "value":
        entered(machine, step)
        machine.seen.append(float(operands[0].sum()))
    elif step.form == "hand on":
        entered(machine, step)
    elif step.form in ("swap", "reverse", "infer alias"):
        returned = _result(machine, step, operands, context, None)
        copies = [one.copy() for one in (returned if isinstance(returned, tuple) else (returned,))]
        arrays.update(zip(step.results, copies, strict=True) if step.form == "infer alias" else ())
        for target, copy in zip(into, copies, strict=False):
            target[...] = copy
    else:
        first = np.asarray(_computed(machine, step, operands, context))
        second = np.asarray(_second(step, operands)) if "tree" in step.form or step.form == "infer cell" else None
        landed = [first[: step.variant] if step.form == "given short" else first, second]
        for target, value in zip(into, landed, strict=False):
            assert value is not None
            target[tuple(slice(extent) for extent in value.shape)] = value
        arrays.update(zip(step.results, landed[len(into) :], strict=False))
        if step.form == "given tree":
            machine.trees[step.number] = tree_of(step.variant, *into, machine.runs)


def scrub(step: Break, arrays: Arrays, rows: int) -> None:
    """Zero the padding of what a break wrote, as a replay with ``valid_rows`` does (C22)."""
    unnamed = step.form in ("infer none", "in place here")
    for one in (*step.results, *(() if unnamed else step.into)):
        if step.rows and arrays[one].ndim:
            arrays[one][rows:] = 0
