"""Executing a program from its beginning to its end."""

from __future__ import annotations

import warnings

import breakgraph as bg
from breakgraph.errors import BreakgraphWarning

from .actions import act
from .program import Program
from .world import World

__all__ = ["run"]


def run(program: Program, driver: str = "sim") -> None:
    """Execute a program on a fresh simulated device, or on the GPU.

    Raises `Difference`, or whatever the library raised that it should not have.
    """
    options = {"schedule": program.schedule, "seed": program.seed} if driver == "sim" else {}
    with bg.driver.use(driver, **options) as made, warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.simplefilter("ignore", BreakgraphWarning)
        world = World(made, program.seed, program.blocking)
        for drawn in program.forwards:
            world.add_forward(drawn)
        for use in program.graphs:
            world.add_graph(use)
        for action in program.actions:
            act(world, action)
        world.finish()
