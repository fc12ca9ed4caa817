"""``bg.array_namespace()`` on the simulator: NumPy's functions, with constructors that make device arrays."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from breakgraph.frameworks.sim.array import SimArray
from breakgraph.frameworks.sim.creation import CONSTRUCTORS
from breakgraph.frameworks.sim.functions import ANSWERED

if TYPE_CHECKING:
    from breakgraph.driver.sim import SimDriver

__all__ = ["SimNamespace"]

_CONSTANTS = ("pi", "e", "inf", "nan", "newaxis", "euler_gamma", "finfo", "iinfo", "dtype", "errstate", "promote_types")


class SimNamespace(ModuleType):
    """Looks like a module, as cupy does. What NumPy has and device arrays do not answer is absent."""

    def __init__(self, driver: SimDriver) -> None:
        super().__init__("breakgraph.frameworks.sim", "NumPy's functions over arrays of a simulated device.")
        self.ndarray = SimArray
        reference = weakref.ref(driver)  # the namespace is kept by the driver
        for constructor in CONSTRUCTORS:
            setattr(self, constructor.__name__, _bound(constructor, reference))

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name, None)
        if isinstance(found, np.ufunc) or name in ANSWERED or name in _CONSTANTS or _is_scalar_type(found):
            return found
        raise AttributeError(f"the simulator's arrays have no function {name!r}")

    def asnumpy(self, a: Any) -> np.ndarray[Any, Any]:
        """A host array with the elements of ``a``."""
        return a.get() if isinstance(a, SimArray) else np.asarray(a)


def _is_scalar_type(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, np.generic)


def _bound(constructor: Callable[..., SimArray], driver: weakref.ref[SimDriver]) -> Callable[..., SimArray]:
    @functools.wraps(constructor)
    def bound(*args: Any, **kwargs: Any) -> SimArray:
        alive = driver()
        if alive is None:
            raise ReferenceError("the simulated device of this namespace is gone")
        return constructor(alive, *args, **kwargs)

    return bound
