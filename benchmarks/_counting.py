"""What a piece of work makes Python and the driver do: a cost that is the same on every machine and at every run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import breakgraph as bg

__all__ = ["FUNCTIONS", "INSTRUCTIONS", "count", "line"]

#: Calls of the library's own Python functions, and the bytecode instructions that run in them. The simulator's
#: functions are not counted: with CUDA they are not there.
FUNCTIONS, INSTRUCTIONS = "Python functions", "instructions"

_PACKAGE = str(Path(bg.__file__).parent)
_SIMULATOR = tuple(str(Path(_PACKAGE, room, "sim")) for room in ("driver", "frameworks"))


def count(work: Callable[[], object], repeats: int = 1) -> Counter[str]:
    """Run ``work`` on the simulator, and then ``repeats`` times counted: functions, instructions, driver calls by name.

    Each run finds the device idle. The first is not counted, since Python 3.12 tells of instructions only in functions
    that were traced before.
    """
    counted: Counter[str] = Counter()
    for number in range(1 + repeats):
        bg.driver.current().synchronize()
        found = _traced(work)
        if number:
            counted += found
    return counted


def line(counted: Mapping[int, Counter[str]], repeats: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """What each step of one run adds, and what there is beside, of work counted at several numbers of steps.

    Raises `ArithmeticError` where more steps do not cost as much more throughout.
    """
    names = sorted(set().union(*counted.values()))
    each, beside = {}, {}
    for name in names:
        points = sorted((steps, found[name]) for steps, found in counted.items())
        slopes = {Fraction(more - less, many - few) for (few, less), (many, more) in pairwise(points)}
        if len(slopes) != 1:
            raise ArithmeticError(f"{name} is no straight line: " + ", ".join(f"{y} for {x} steps" for x, y in points))
        (slope,) = slopes
        each[name] = float(slope / repeats)
        beside[name] = float((points[0][1] - points[0][0] * slope) / repeats)
    return each, beside


def _traced(work: Callable[[], object]) -> Counter[str]:
    functions = instructions = 0

    def instruction(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal instructions
        instructions += event == "opcode"
        return instruction

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal functions
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) or file.startswith(_SIMULATOR):
            return None
        functions += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return instruction

    driver: Any = bg.driver.current()
    before, traced = Counter(driver.calls), sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(traced)
    return Counter({FUNCTIONS: functions, INSTRUCTIONS: instructions}) + (Counter(driver.calls) - before)
