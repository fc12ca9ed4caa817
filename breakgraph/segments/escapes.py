"""Memory that a function allocates, keeps for later, and does not return.

In a break that is a trap: replay runs the break again, which makes another array elsewhere, and what the next segments
have baked is the first one's address.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from breakgraph import driver as drivers
from breakgraph import frameworks
from breakgraph.driver import Driver
from breakgraph.frameworks import Block, Framework
from breakgraph.memory import Cell, tree
from breakgraph.segments.callers import program, site

__all__ = ["Escape", "Escapes"]


class Escape(NamedTuple):
    """Memory that outlives the break that made it: address, bytes, ``file:line`` of the allocation."""

    ptr: int
    nbytes: int
    site: str

    def __str__(self) -> str:
        return f"{self.nbytes} bytes at {self.ptr:#x}, made at {self.site}"


class _Made:
    """Lives as long as the memory that it tells of."""

    __slots__ = ("__weakref__", "escape")

    def __init__(self, escape: Escape) -> None:
        self.escape = escape


class Escapes:
    """What is allocated in one call of a function, by the libraries that tell (`Framework.noted_scope`)."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._made: list[weakref.ref[_Made]] = []
        self._returned: list[int] = []

    @contextmanager
    def watching(self, libraries: Iterable[Framework]) -> Iterator[None]:
        """The function runs in here."""
        with ExitStack() as scopes:
            for framework in libraries:
                scopes.enter_context(framework.noted_scope(self._note))
            yield

    def returned(self, result: object) -> None:
        """What it has returned does not escape, whoever holds it too."""
        for leaf in tree.leaves(result, objects=True, is_leaf=self._is_leaf):
            array = leaf.array if isinstance(leaf, Cell) else leaf
            if (framework := frameworks.of(array, self._driver)) is not None:
                self._returned.append(framework.view(array).bounds[0])

    def left(self) -> tuple[Escape, ...]:
        """What is alive though it was not returned; asked when nothing of the call is held any more."""
        if not self._alive():
            return ()
        with drivers.relaxed(self._driver):  # cycles of the function's own are no escape
            gc.collect()
        return tuple(self._alive())

    def _note(self, block: Block) -> object:
        made = _Made(Escape(block.ptr, block.nbytes, site(next(program(sys._getframe(1)), None))))
        self._made.append(weakref.ref(made))
        return made

    def _alive(self) -> list[Escape]:
        alive = [made.escape for one in self._made if (made := one()) is not None]
        return [one for one in alive if not any(one.ptr <= ptr < one.ptr + one.nbytes for ptr in self._returned)]

    def _is_leaf(self, node: object) -> bool:
        return isinstance(node, Cell) or frameworks.of(node, self._driver) is not None
