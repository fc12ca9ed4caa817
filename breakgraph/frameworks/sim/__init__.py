"""The simulator's NumPy-API arrays."""

from breakgraph.frameworks.sim.array import SimArray
from breakgraph.frameworks.sim.framework import SimFramework

__all__ = ["SimArray", "SimFramework"]
