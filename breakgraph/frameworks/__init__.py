"""Which array libraries there are, and which of them take part (DESIGN, "Frameworks").

A library takes part if the program has imported it: nothing here imports one for any other reason than
being asked for it by name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.base import Allocate, Array, Block, Framework

__all__ = ["Allocate", "Array", "Block", "Framework", "array_namespace", "of", "taking_part"]


def _cupy() -> Framework:
    from breakgraph.frameworks.cupy import CupyFramework

    return CupyFramework()


def _sim() -> Framework:
    from breakgraph.frameworks.sim import SimFramework

    return SimFramework()


class _Known:
    """A framework by name: its driver, the module whose presence shows that it is in use, and its maker."""

    def __init__(self, driver_name: str, module: str, make: Callable[[], Framework]) -> None:
        self.driver_name = driver_name
        self.module = module
        self._make = make
        self._made: Framework | None = None

    @property
    def imported(self) -> bool:
        return sys.modules.get(self.module) is not None

    def get(self) -> Framework:
        if self._made is None:
            with _first:
                if self._made is None:
                    self._made = self._make()
        return self._made


_first = threading.RLock()  # threads that come at once find one framework

_KNOWN: dict[str, _Known] = {
    "cupy": _Known("cuda", "cupy", _cupy),
    "sim": _Known("sim", "breakgraph", _sim),  # the simulator's own arrays come with the package
}

#: The framework of a type of array, per driver name. Types that are no array are not remembered: any object
#: may be asked about, and there is no end of types.
_by_type: dict[tuple[str, type], Framework] = {}


def taking_part(driver: Driver, names: Iterable[str] | None = None) -> tuple[Framework, ...]:
    """The frameworks of ``driver`` that the program has imported, or those named.

    Raises `BreakgraphError` for a name that is unknown or belongs to another driver, or whose library is missing.
    """
    if names is None:
        return tuple(known.get() for known in _of_driver(driver).values() if known.imported)
    if isinstance(names, str):
        names = (names,)
    return tuple(_named(driver, name).get() for name in names)


def of(obj: object, driver: Driver) -> Framework | None:
    """The framework of an array on ``driver``; None for anything else."""
    key = (driver.name, type(obj))
    found = _by_type.get(key)
    if found is None:
        for known in _of_driver(driver).values():
            if known.imported and known.get().owns(obj):
                found = _by_type[key] = known.get()
    return found


def array_namespace() -> ModuleType:
    """The NumPy-like functions of the current driver's own arrays: cupy on cuda, the simulator's on sim.

    Raises `BreakgraphError` where cupy is not installed, naming the extra that brings it.
    """
    driver = drivers.current()
    return next(iter(_of_driver(driver).values())).get().namespace()


def _of_driver(driver: Driver) -> dict[str, _Known]:
    return {name: known for name, known in _KNOWN.items() if known.driver_name == driver.name}


def _named(driver: Driver, name: str) -> _Known:
    known = _KNOWN.get(name)
    if known is not None and known.driver_name == driver.name:
        return known
    why = "no framework of that name is known" if known is None else f"its arrays are in {known.driver_name} memory"
    raise BreakgraphError(
        f"framework {name!r} cannot take part on the {driver.name} driver",
        why=why,
        remedy=f"choose from {', '.join(repr(one) for one in _of_driver(driver))}",
    )
