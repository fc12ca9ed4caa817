"""Execs: one for each segment, or one that segments of many graphs take turns with.

graph of 8 rows     [ segment 0 ]  [ segment 1 ]  ...
                          |              |
cache                 [ exec ]       [ exec ]          updated in place where another graph launched it last
                          |              |
graph of 16 rows    [ segment 0 ]  [ segment 1 ]  ...
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from breakgraph.driver import Driver
from breakgraph.driver.api import EdgeData
from breakgraph.errors import ExecUpdateRefused

__all__ = ["Exec", "ExecCache", "HasGraph", "Launch", "SharedExec", "Topology", "topology"]

#: What segments have in common that may share an exec: the types of the nodes, and the edges between them by place.
Topology = tuple[tuple[int, ...], tuple[tuple[int, int, EdgeData], ...]]


#: `Driver.graph_launch`, or the one that lets other threads run meanwhile.
Launch = Callable[[int, int], None]


class HasGraph(Protocol):
    """What an exec needs to know of a segment: the handle of its ``CUgraph``. It is referred to weakly."""

    @property
    def graph(self) -> int: ...


class Exec:
    """The exec of one segment alone."""

    __slots__ = ("_driver", "handle")

    shared = False

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.handle = 0

    def instantiate(self, segment: HasGraph) -> None:
        """Whoever lets the exec go must know it by then."""
        self.handle = self._driver.graph_instantiate(segment.graph)

    def launch(self, segment: HasGraph, stream: int, launch: Launch) -> None:
        launch(self.handle, stream)

    def let_go(self, user: object) -> Callable[[], None] | None:
        """The call that destroys the exec, if ``user`` was the last to use it."""
        return partial(self._driver.graph_exec_destroy, self.handle) if self.handle else None


class SharedExec:
    """An exec that has the parameters of the segment which launched it last."""

    shared = True

    def __init__(self, driver: Driver, cache: ExecCache, key: _Key) -> None:
        self.handle = 0
        self._driver = driver
        self._cache = weakref.ref(cache)
        self._key = key
        self._users_lock = cache.lock
        self._lock = threading.RLock()  # over calls of the driver, which the other one is never held over
        self._holds: weakref.ref[HasGraph] | None = None
        self._users: set[object] = set()

    def instantiate(self, segment: HasGraph) -> None:
        """Whoever lets the exec go must know it by then."""
        with self._lock:
            self.handle = self._driver.graph_instantiate(segment.graph)
            self._holds = weakref.ref(segment)

    def launch(self, segment: HasGraph, stream: int, launch: Launch) -> None:
        """Launch a segment, after an update if another one was launched last.

        Launches of one exec run one after another, and an update is for later ones only (CUDA driver API,
        cuGraphLaunch, cuGraphExecUpdate; probes/exec_update.py), so threads may take turns.
        """
        with self._lock:
            if self._holds is None or self._holds() is not segment:
                self.update(segment)
            launch(self.handle, stream)

    def update(self, segment: HasGraph) -> None:
        """Take a segment's parameters. Raises `ExecUpdateRefused`, and nothing is changed, where the driver cannot."""
        with self._lock:
            before, self._holds = self._holds, None  # an interrupt may come before we know what the exec has
            try:
                self._driver.graph_exec_update(self.handle, segment.graph)
            except ExecUpdateRefused:
                self._holds = before
                raise
            self._holds = weakref.ref(segment)
            with self._users_lock:
                if (cache := self._cache()) is not None:
                    cache.updates += 1

    def use(self, user: object) -> None:
        """Keep the exec until ``user`` lets it go."""
        self._users.add(user)

    def let_go(self, user: object) -> Callable[[], None] | None:
        """The call that destroys the exec, if ``user`` was the last to use it."""
        with self._users_lock:  # no other graph begins to use it meanwhile
            self._users.discard(user)
            if self._users:
                return None
            if (cache := self._cache()) is not None:
                cache.forget(self._key, self)
        return partial(self._driver.graph_exec_destroy, self.handle) if self.handle else None


class ExecCache:
    """Execs that segments of one topology share, over the graphs captured with it: ``capture(execs=cache)``.

    For graphs of many sizes whose segments differ in addresses and grid sizes only: they need the device memory for
    execs once, not once for each size. The n-th segment of a topology in one graph shares with the n-th in another,
    so a graph that is replayed again and again makes no update; after another graph's replay each of its segments
    is updated once. A segment whose topology no other has, or that the driver does not let share, has an exec of
    its own.

    Attributes
    ----------
    updates
        How many updates in place were made so far.
    """

    def __init__(self) -> None:
        self.updates = 0
        self.lock = threading.RLock()  # a destructor of a graph may run anywhere
        self._shared: dict[_Key, list[SharedExec]] = {}

    @property
    def execs(self) -> int:
        """How many execs it holds."""
        with self.lock:
            return sum(map(len, self._shared.values()))

    def __repr__(self) -> str:
        return f"<ExecCache: {self.execs} execs, {self.updates} updates>"

    def find(
        self, driver: Driver, context: int, kind: Topology, segment: HasGraph, user: object, taken: Collection[object]
    ) -> SharedExec | None:
        """An exec that has been given the segment's parameters; not one of ``taken``, which the graph has already."""
        tried: set[SharedExec] = set()
        while (one := self._candidate(_key(driver, context, kind), user, {*taken, *tried})) is not None:
            tried.add(one)
            try:
                one.update(segment)
            except BaseException as error:
                if (destroy := one.let_go(user)) is not None:  # all others have let it go meanwhile
                    destroy()
                if not isinstance(error, ExecUpdateRefused):
                    raise
            else:
                return one
        return None

    def _candidate(self, key: _Key, user: object, but: Collection[object]) -> SharedExec | None:
        with self.lock:
            for one in self._shared.get(key, ()):
                if one not in but and one.handle:
                    one.use(user)
                    return one
        return None

    def add(self, driver: Driver, context: int, kind: Topology, user: object) -> SharedExec:
        """A new exec to share, once it is instantiated."""
        key = _key(driver, context, kind)
        made = SharedExec(driver, self, key)
        made.use(user)
        with self.lock:
            self._shared.setdefault(key, []).append(made)
        return made

    def forget(self, key: _Key, shared: SharedExec) -> None:
        """Nobody uses it any more."""
        with self.lock:
            left = self._shared.get(key, [])
            if shared in left:
                left.remove(shared)
            if not left:
                self._shared.pop(key, None)


_Key = tuple[Driver, int, Topology]


def _key(driver: Driver, context: int, kind: Topology) -> _Key:
    return driver, driver.ctx_get_id(context), kind


def topology(driver: Driver, graph: int, nodes: tuple[int, ...], kinds: tuple[int, ...]) -> Topology:
    """The topology of a graph whose nodes, and their types, are known."""
    place = {node: at for at, node in enumerate(nodes)}
    return kinds, tuple(sorted((place[tail], place[head], data) for tail, head, data in driver.graph_get_edges(graph)))
