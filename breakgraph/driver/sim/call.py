"""What is the same for every driver call: the lock, the log, planned faults, the context, the legality class.

A call is a method of the simulator under ``@call(...)``. Its body says what it does; whatever it refuses it
refuses with `Refuse`, and the frame here makes that the typed error with the call's name.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from breakgraph.driver.sim.results import Refuse, Result, result_name
from breakgraph.errors import DriverError, driver_error

if TYPE_CHECKING:
    from breakgraph.driver.sim.machine import Machine

__all__ = ["Needs", "call", "call_names"]

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="Machine")


class Needs(enum.Enum):
    """What a call asks of the calling thread's current context."""

    CONTEXT = enum.auto()  #: there must be one (201), and it must not be lost
    HANDLE = enum.auto()  #: the handle names its own; a current one must not be lost
    NOTHING = enum.auto()


def call(
    needs: Needs = Needs.CONTEXT, *, unsafe: bool = False, frees: bool = False
) -> Callable[[Callable[Concatenate[M, P], R]], Callable[Concatenate[M, P], R]]:
    """Make a method a driver call.

    Parameters
    ----------
    needs
        What it asks of the current context.
    unsafe
        Whether it is potentially unsafe during a capture, in CUDA's sense (cuThreadExchangeStreamCaptureMode).
    frees
        Whether it gives something back and returns nothing. Such a call comes from destructors, which may
        run at any point of another call; it then takes effect when that call has ended.
    """

    def decorate(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
        name = method.__name__.lstrip("_")

        @functools.wraps(method)
        def framed(machine: M, *args: P.args, **kwargs: P.kwargs) -> R:
            with machine.lock:
                if machine.busy:
                    if frees:
                        machine.postponed.append(lambda: framed(machine, *args, **kwargs))
                        return None  # type: ignore[return-value]  # such calls return nothing
                    why = "a kernel or a destructor made a driver call in the middle of another"
                    raise _error(Refuse(Result.NOT_PERMITTED, why), name)
                machine.busy = True
                try:
                    result = perform(machine, *args, **kwargs)
                finally:
                    machine.busy = False
                    machine.make_postponed_calls()
            if machine.finder.fresh:
                machine.warn_of_races()
            return result

        def perform(machine: M, *args: P.args, **kwargs: P.kwargs) -> R:
            entry = machine.calls_made.begin(name, args + _plain(kwargs) if kwargs else args)
            try:
                if machine.faults.plans:
                    machine.faults.strike(name)
                thread = machine.thread
                context = thread.context
                if context is None:
                    if needs is Needs.CONTEXT:
                        raise Refuse(Result.INVALID_CONTEXT, "the calling thread has no current context")
                elif needs is not Needs.NOTHING:
                    machine.refuse_lost(context)
                if unsafe:
                    machine.captures.refuse_unsafe(thread)
                result = method(machine, *args, **kwargs)
                if context is not None and context.loss and needs is not Needs.NOTHING:
                    machine.refuse_lost(context)
            except Refuse as refused:
                entry.error = refused.code
                raise _error(refused, name) from refused.__cause__
            entry.result = result
            return result

        framed.__driver_call__ = name  # type: ignore[attr-defined]  # lets fail() check a name
        return cast(Callable[Concatenate[M, P], R], framed)

    return decorate


def call_names(machine: type) -> set[str]:
    """The names of the driver calls that a class answers."""
    names = (getattr(getattr(machine, member), "__driver_call__", None) for member in dir(machine))
    return {name for name in names if name is not None}


def _plain(kwargs: dict[str, Any]) -> tuple[object, ...]:
    return tuple(value for value in kwargs.values() if isinstance(value, int | str | bytes))


def _error(refused: Refuse, name: str) -> DriverError:
    error = driver_error(refused.code, name, result_name(refused.code))
    error.why = refused.why or error.why
    return error
