"""What a piece of work makes Python and the driver do: a cost that is the same on every machine and at every run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
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


def count(work: Callable[[], object]) -> Counter[str]:
    """Run ``work`` twice on the simulator and count the second time: functions, instructions, driver calls by name.

    Python 3.12 tells of instructions only in functions that were traced before.
    """
    _once(work)
    return _once(work)


def line(counted: Mapping[int, Counter[str]]) -> tuple[Counter[str], Counter[str]]:
    """What each step adds, and what there is beside, of work counted at two numbers of steps.

    Raises `ArithmeticError` where the difference is no multiple of the steps, so that the cost is no straight line.
    """
    (few, short), (many, long) = sorted(counted.items())
    each: Counter[str] = Counter()
    for name in long:
        each[name], rest = divmod(long[name] - short[name], many - few)
        if rest:
            raise ArithmeticError(f"{name} is {short[name]} for {few} steps and {long[name]} for {many}")
    beside = Counter({name: calls - few * each[name] for name, calls in short.items()})
    return +each, +beside


def _once(work: Callable[[], object]) -> Counter[str]:
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
