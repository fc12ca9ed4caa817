"""A call through a break point outside a capture: what it costs more than the function itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import breakgraph as bg
from benchmarks import _peers
from benchmarks._launchers import AS_INSTALLED, PLAIN, plain_break_point
from benchmarks._peers import BREAKABLE, present
from benchmarks._report import Report
from benchmarks._timing import Times, in_turn, per_call, ratio

__all__ = ["measure"]

_CALLS = 10_000  # of one round
_BOUND = 0.60

BARE = "undecorated"
Function = Callable[..., object]


def _first(x: object, scale: object = None) -> object:
    return x if scale is None else scale


#: How it is called: by position alone, and with a keyword. The first has the bound.
_CALLED: tuple[tuple[str, Callable[[Function], Callable[[], object]]], ...] = (
    ("f(x)", lambda function: partial(function, 1)),
    ("f(x, scale=y)", lambda function: partial(function, 1, scale=2)),
)


def measure(report: Report, *, rounds: int, small: bool) -> None:
    """Add a line for each way to call it, and what either library adds to the function."""
    calls, rounds = (20, rounds) if small else (_CALLS, max(rounds // 10, 20))
    with report.part("break point outside a capture", family="break_points"):
        functions: dict[str, Function] = {BARE: _first, AS_INSTALLED: bg.break_point(_first)}
        functions |= present(
            report,
            {PLAIN: lambda: plain_break_point(_first), BREAKABLE: lambda: _peers.breakable().no_graph(_first)},
        )
        for number, (what, called) in enumerate(_CALLED):
            times = in_turn({arm: per_call(called(function), calls) for arm, function in functions.items()}, rounds)
            report.compare(what, times, "ns")
            extra: dict[str, Times] = {arm: times[arm].minus(times[BARE]) for arm in functions if arm != BARE}
            report.compare(f"{what}, more than the function itself", extra, "ns")
            if BREAKABLE in extra:
                bound = None if number else _BOUND
                name = f"{what}, extra time: {AS_INSTALLED}/{BREAKABLE}"
                report.speed(name, ratio(extra[AS_INSTALLED], extra[BREAKABLE]), bound=bound)
