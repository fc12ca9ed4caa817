"""Which array libraries there are, and which of them take part (DESIGN, "Frameworks").

A library takes part if the program has imported it: nothing here imports one for any other reason than
being asked for it by name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from breakgraph import driver as drivers
from breakgraph.driver import Driver
from breakgraph.errors import BreakgraphError
from breakgraph.frameworks.base import Allocate, Array, Block, Framework, ScopedStreams

__all__ = [
    "Allocate",
    "Array",
    "Block",
    "Framework",
    "ScopedStreams",
    "array_namespace",
    "of",
    "register",
    "taking_part",
]


class _Known:
    """A framework by name: its driver, the module whose presence shows that it is in use, and its maker.

    ``usable`` tells whether the module is imported to its end, and is for devices (numba has a simulator too).
    """

    def __init__(
        self,
        driver_name: str,
        module: str,
        make: Callable[[], Framework],
        usable: Callable[[Any], bool] = lambda module: True,
    ) -> None:
        self.driver_name = driver_name
        self._module, self._usable = module, usable
        self._make = make
        self._made: Framework | None = None

    @property
    def imported(self) -> bool:
        module = sys.modules.get(self._module)
        return self._made is not None or (module is not None and self._usable(module))

    def get(self) -> Framework:
        if self._made is None:
            with _first:
                if self._made is None:
                    self._made = self._import()
        return self._made

    def _import(self) -> Framework:
        try:
            return self._make()
        except ImportError as error:
            raise BreakgraphError(
                f"{self._module} cannot be imported", why=str(error).strip(), remedy="install it, or do not name it"
            ) from error


def _cupy() -> Framework:
    from breakgraph.frameworks.cupy import CupyFramework

    return CupyFramework()


def _torch() -> Framework:
    from breakgraph.frameworks.torch import TorchFramework

    return TorchFramework()


def _numba() -> Framework:
    from breakgraph.frameworks.numba import NumbaFramework

    return NumbaFramework()


def _cuda_core() -> Framework:
    from breakgraph.frameworks.cuda_core import CudaCoreFramework

    return CudaCoreFramework()


def _generic() -> Framework:
    from breakgraph.frameworks.generic import GenericFramework

    return GenericFramework()


def _sim() -> Framework:
    from breakgraph.frameworks.sim import SimFramework

    return SimFramework()


_first = threading.RLock()  # threads that come at once find one framework

#: In the order in which they are asked whether an array is theirs: generic last, for it takes those of all others.
_KNOWN: dict[str, _Known] = {
    "cupy": _Known("cuda", "cupy", _cupy, lambda cupy: hasattr(cupy, "ndarray")),
    "torch": _Known("cuda", "torch", _torch, lambda torch: hasattr(torch, "compile") and torch.cuda.is_available()),
    "numba": _Known("cuda", "numba.cuda", _numba, lambda cuda: hasattr(cuda, "from_cuda_array_interface")),
    "cuda.core": _Known("cuda", "cuda.core", _cuda_core, lambda core: hasattr(core, "Buffer")),
    "generic": _Known("cuda", "breakgraph", _generic),
    "sim": _Known("sim", "breakgraph", _sim),  # comes with the package, as generic does
}
_NAMESPACES = {"cuda": "cupy", "sim": "sim"}

#: Types that are no arrays, whoever asks: most of what there is in arguments and results.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), tuple, list, dict, np.ndarray, type(abs)})

#: The framework of a type of array, per driver name. Types that are no array are not remembered: any object
#: may be asked about, and there is no end of types.
_by_type: dict[tuple[str, type], Framework] = {}


def register(framework: Framework) -> None:
    """Let arrays and streams of one more library take part in captures on its driver.

    Parameters
    ----------
    framework
        It is asked before those that are known already, so it may claim subclasses of their arrays. Register it
        before captures begin.

    Raises
    ------
    BreakgraphError
        Its name is taken.
    """
    global _KNOWN
    if framework.name in _KNOWN:
        raise BreakgraphError(
            f"a framework called {framework.name!r} is known already", remedy="give it a name of its own, once"
        )
    known = _Known(framework.driver_name, "breakgraph", lambda: framework)
    _KNOWN = {framework.name: known, **_KNOWN}
    _by_type.clear()


def taking_part(driver: Driver, names: Iterable[str] | None = None) -> tuple[Framework, ...]:
    """The frameworks that take part in a capture.

    Parameters
    ----------
    driver
        Those of this driver.
    names
        These; by default all whose library the program has imported.

    Raises
    ------
    BreakgraphError
        A name is unknown or belongs to another driver, or its library is missing.
    """
    if names is None:
        return tuple(known.get() for known in _of_driver(driver) if known.imported)
    if isinstance(names, str):
        names = (names,)
    return tuple(_named(driver, name).get() for name in names)


def of(obj: object, driver: Driver) -> Framework | None:
    """The framework of ``obj``, if that is an array on ``driver``; None for anything else."""
    if type(obj) in _PLAIN:
        return None
    key = (driver.name, type(obj))
    found = _by_type.get(key)
    if found is not None and found.owns(obj):  # torch has one type for the tensors of every device
        return found
    for known in _of_driver(driver):
        if known.imported and known.get().owns(obj):
            found = _by_type[key] = known.get()
            return found
    return None


def array_namespace() -> ModuleType:
    """The NumPy-like functions of the current driver's own arrays: cupy on cuda, the simulator's on sim.

    Raises `BreakgraphError` where cupy is not installed, naming the extra that brings it.
    """
    return _KNOWN[_NAMESPACES[drivers.current().name]].get().namespace()


def _of_driver(driver: Driver) -> Iterator[_Known]:
    return (known for known in _KNOWN.values() if known.driver_name == driver.name)


def _named(driver: Driver, name: str) -> _Known:
    known = _KNOWN.get(name)
    if known is not None and known.driver_name == driver.name:
        return known
    why = "no framework of that name is known" if known is None else f"its arrays are in {known.driver_name} memory"
    choice = ", ".join(repr(one) for one, known in _KNOWN.items() if known.driver_name == driver.name)
    raise BreakgraphError(
        f"framework {name!r} cannot take part on the {driver.name} driver", why=why, remedy=f"choose from {choice}"
    )
