"""Arrays that a graph reads where they are: those of static parameters, which must stay there, and no others unseen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from breakgraph import frameworks
from breakgraph.driver import Driver, Region
from breakgraph.errors import BreakgraphError, InputMoved
from breakgraph.frameworks.dtypes import dtype_name
from breakgraph.memory import Cell, tree
from breakgraph.segments.context import current_forward
from breakgraph.service.declaration import Declaration

__all__ = ["Static", "check_baked", "check_static", "static_arrays"]


class Static(NamedTuple):
    """Where an array of a static parameter lies."""

    name: str
    region: Region

    def __str__(self) -> str:
        return f"{self.region.shape} {dtype_name(self.region.dtype)} at {self.region.ptr:#x}"


def static_arrays(declared: Declaration, driver: Driver, values: tuple[Any, ...]) -> list[Static]:
    """The arrays of the static parameters, in the order of a walk that also goes through other objects."""
    if not declared.static:
        return []
    named = zip(declared.names, values, strict=True)
    return [Static(name, at) for name, value in named if name in declared.static for at in _regions(driver, value)]


def check_static(declared: Declaration, baked: list[Static], now: list[Static]) -> None:
    """Raise `InputMoved` where the static arrays are not where a graph has baked them."""
    if baked == now:
        return
    if len(baked) != len(now):
        raise InputMoved(
            f"the static inputs of {declared.name} are {len(now)} arrays, and were {len(baked)} at capture"
        )
    at = next(at for at, (before, one) in enumerate(zip(baked, now, strict=True)) if before != one)
    names = [one.name for one in now]
    name, place = names[at], names[:at].count(names[at])
    which = f" (array {place} in it)" if names.count(name) > 1 else ""
    raise InputMoved(f"static input {name!r}{which} of {declared.name} was {baked[at]} at capture, and is {now[at]}")


def check_baked(declared: Declaration, driver: Driver, values: tuple[Any, ...]) -> None:
    """Before a capture: refuse what would be baked though nobody could see it change.

    Arrays in objects that are told apart by identity, and static values that hold none (None is none).
    """
    context = current_forward()

    def is_known(node: object) -> bool:
        return node is context or _is_storage(driver, node)

    for name, value in zip(declared.names, values, strict=True):
        if name not in declared.static:
            for leaf in tree.leaves(value, is_leaf=is_known):
                if not is_known(leaf) and tree.is_object(leaf) and any(_regions(driver, tree.attributes(leaf), False)):
                    raise _hidden(declared, name, leaf)
        elif value is not None and not any(_regions(driver, value)):
            raise BreakgraphError(
                f"static input {name!r} of {declared.name} holds no device array (type {type(value).__name__})",
                why="static= names arrays that stay where they are; another value is what a graph is chosen by",
                remedy=f"leave {name!r} out of static=",
            )


def _hidden(declared: Declaration, name: str, holder: object) -> BreakgraphError:
    return BreakgraphError(
        f"input {name!r} of {declared.name} has a {type(holder).__name__} in it, an object that holds device arrays",
        why="those in tuples, lists, mappings and dataclasses are copied, and these would be baked unseen",
        remedy=f"pass the arrays, make it a dataclass, or declare static={name!r} if they stay where they are",
    )


def _regions(driver: Driver, value: object, objects: bool = True) -> Iterator[Region]:
    for leaf in tree.leaves(value, objects=objects, is_leaf=lambda node: _is_storage(driver, node)):
        array = leaf.array if isinstance(leaf, Cell) else leaf
        framework = frameworks.of(array, driver)
        if framework is not None:
            yield framework.view(array)


def _is_storage(driver: Driver, node: object) -> bool:
    return isinstance(node, Cell) or frameworks.of(node, driver) is not None
