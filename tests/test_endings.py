"""The end of a capture: the C extension and its twin in Python do the same.

Proves for both: an ending asks, ends, reads and instantiates, in that order, under the relaxed mode, and gives the
thread its mode back whatever happens; where work is not joined it ends nothing and says so; graph and exec have owners
before anything else can fail; errors are the calls' own; nothing of it keeps memory.
"""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from twins import growth

STREAM, GRAPH, EXEC, ACTIVE, THREAD_LOCAL, RELAXED = 9, 70, 80, 1, 1, 2
KERNEL, MEMSET = 0, 2


class Refused(Exception):
    """What a call of the driver answers."""


class Made:
    """Whoever is given the exec's handle."""

    handle = 0


class Calls:
    """The calls of a driver, which are noted, and fail where they are named in ``failing``, as often as that says."""

    def __init__(self, nodes: dict[int, int], edges: tuple[tuple[int, int], ...] = (), heads: tuple[int, ...] = ()):
        self.nodes, self.edges, self.heads = nodes, edges, heads
        self.log: list[Any] = []
        self.status, self.mode = ACTIVE, THREAD_LOCAL
        self.failing: dict[str, int] = {}

    def _note(self, name: str, *given: Any) -> None:
        self.log.append((name, *given))
        if self.failing.get(name):
            self.failing[name] -= 1
            raise Refused(name)

    def exchange_mode(self, mode: int) -> int:
        self._note("exchange_mode" if mode == RELAXED else "exchange_back", mode)
        before, self.mode = self.mode, mode
        return before

    def get_info(self, stream: int) -> tuple[Any, ...]:
        self._note("get_info", stream)
        return (self.status, 5, GRAPH, self.heads, ()) if self.status == ACTIVE else (self.status, 0, 0, ())

    def get_nodes(self, graph: int) -> tuple[int, ...]:
        self._note("get_nodes", graph)
        return tuple(self.nodes)

    def get_edges(self, graph: int) -> tuple[Any, ...]:
        self._note("get_edges", graph)
        return tuple(tail for tail, _ in self.edges), tuple(head for _, head in self.edges)

    def end_capture(self, stream: int) -> int:
        self._note("end_capture", stream)
        return GRAPH

    def get_type(self, node: int) -> int:
        self._note("get_type", node)
        return self.nodes[node]

    def instantiate(self, graph: int, flags: int) -> int:
        self._note("instantiate", graph, flags)
        return EXEC

    def ending(self, twin: ModuleType) -> Any:
        return twin.Ending(
            self.exchange_mode,
            self.get_info,
            self.get_nodes,
            self.get_edges,
            self.end_capture,
            self.get_type,
            self.instantiate,
            RELAXED,
            ACTIVE,
        )


def one_kernel() -> Calls:
    return Calls({31: KERNEL}, heads=(31,))


def chain() -> Calls:
    return Calls({31: KERNEL, 32: MEMSET, 33: KERNEL}, ((31, 32), (32, 33)), heads=(33,))


def open_fork() -> Calls:
    return Calls({31: KERNEL, 32: KERNEL, 33: KERNEL}, ((31, 32), (31, 33)), heads=(33,))


THERE, BACK = ("exchange_mode", RELAXED), ("exchange_back", THREAD_LOCAL)
INFO, NODES, EDGES = ("get_info", STREAM), ("get_nodes", GRAPH), ("get_edges", GRAPH)
END, INSTANTIATE = ("end_capture", STREAM), ("instantiate", GRAPH, 0)


def test_a_capture_of_one_kernel_ends_in_as_few_calls_as_there_are(twin: ModuleType) -> None:
    calls, graphs, made = one_kernel(), [1], Made()
    assert calls.ending(twin).run(STREAM, graphs, made) == ((31,), (KERNEL,))
    assert calls.log == [THERE, INFO, NODES, END, ("get_type", 31), INSTANTIATE, BACK]
    assert (graphs, made.handle, calls.mode) == ([1, GRAPH], EXEC, THREAD_LOCAL)


def test_of_many_nodes_the_edges_are_asked(twin: ModuleType) -> None:
    calls, graphs, made = chain(), list[int](), Made()
    assert calls.ending(twin).run(STREAM, graphs, made) == ((31, 32, 33), (KERNEL, MEMSET, KERNEL))
    assert calls.log[:5] == [THERE, INFO, NODES, EDGES, END]
    assert (graphs, made.handle) == ([GRAPH], EXEC)


def test_where_work_is_not_joined_nothing_is_ended(twin: ModuleType) -> None:
    calls, graphs, made = open_fork(), list[int](), Made()
    ending = calls.ending(twin)
    assert ending.run(STREAM, graphs, made) is None
    assert calls.log == [THERE, INFO, NODES, EDGES, BACK]
    assert (graphs, made.handle, calls.mode) == ([], 0, THREAD_LOCAL)


def test_who_has_joined_it_all_gives_the_nodes_and_nothing_is_asked(twin: ModuleType) -> None:
    calls, graphs, made = open_fork(), list[int](), Made()
    assert calls.ending(twin).run(STREAM, graphs, made, (31, 32, 33)) == ((31, 32, 33), (KERNEL,) * 3)
    assert [name for name, *_ in calls.log] == [
        "exchange_mode",
        "end_capture",
        *["get_type"] * 3,
        "instantiate",
        "exchange_back",
    ]
    assert (graphs, made.handle) == ([GRAPH], EXEC)


def test_nothing_is_instantiated_without_nodes_or_for_nobody(twin: ModuleType) -> None:
    empty, graphs, made = Calls({}), list[int](), Made()
    assert empty.ending(twin).run(STREAM, graphs, made) == ((), ())
    assert empty.log == [THERE, INFO, NODES, END, BACK]
    calls = one_kernel()
    assert calls.ending(twin).run(STREAM, graphs, None) == ((31,), (KERNEL,))
    assert INSTANTIATE not in calls.log
    assert (graphs, made.handle) == ([GRAPH, GRAPH], 0)


def test_of_a_capture_that_was_given_up_only_the_end_is_asked(twin: ModuleType) -> None:
    calls = one_kernel()
    calls.status, calls.failing = 2, {"end_capture": 1}
    with pytest.raises(Refused, match="end_capture"):
        calls.ending(twin).run(STREAM, [], Made())
    assert calls.log == [THERE, INFO, END, BACK]


@pytest.mark.parametrize("call", ["get_info", "get_nodes", "get_edges", "end_capture", "get_type", "instantiate"])
def test_whatever_fails_is_told_as_it_is_and_the_thread_has_its_mode_back(twin: ModuleType, call: str) -> None:
    calls, graphs, made = chain(), list[int](), Made()
    calls.failing = {call: 1}
    with pytest.raises(Refused, match=call) as raised:
        calls.ending(twin).run(STREAM, graphs, made)
    assert raised.value.__context__ is None
    assert calls.log[-1] == BACK
    assert calls.mode == THREAD_LOCAL
    assert graphs == [GRAPH] * (call in ("get_type", "instantiate"))
    assert made.handle == 0


def test_where_the_mode_cannot_be_exchanged_nothing_is_done(twin: ModuleType) -> None:
    calls = one_kernel()
    calls.failing = {"exchange_mode": 1}
    with pytest.raises(Refused, match="exchange_mode"):
        calls.ending(twin).run(STREAM, [], Made())
    assert calls.log == [THERE]


def test_the_mode_is_given_back_at_the_second_try(twin: ModuleType) -> None:
    calls, graphs, made = one_kernel(), list[int](), Made()
    calls.failing = {"exchange_back": 1}
    assert calls.ending(twin).run(STREAM, graphs, made) == ((31,), (KERNEL,))
    assert calls.log[-2:] == [BACK, BACK]
    assert calls.mode == THREAD_LOCAL


@pytest.mark.parametrize("fails_too", [None, "instantiate"])
def test_what_was_made_has_its_owners_where_the_mode_is_not_given_back(twin: ModuleType, fails_too: str | None) -> None:
    calls, graphs, made = one_kernel(), list[int](), Made()
    calls.failing = {"exchange_back": 2} | ({fails_too: 1} if fails_too else {})
    with pytest.raises(Refused, match="exchange_back") as raised:
        calls.ending(twin).run(STREAM, graphs, made)
    assert calls.log[-2:] == [BACK, BACK]
    assert (graphs, made.handle) == ([GRAPH], 0 if fails_too else EXEC)
    contexts, error = [], raised.value.__context__
    while error is not None:
        contexts.append(str(error))
        error = error.__context__
    assert contexts[-1:] == ([fails_too] if fails_too else contexts[-1:])


def test_an_interrupt_on_its_way_goes_on(twin: ModuleType) -> None:
    calls, graphs, made = one_kernel(), list[int](), Made()

    def interrupted(node: int) -> int:
        raise KeyboardInterrupt

    calls.get_type = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        calls.ending(twin).run(STREAM, graphs, made)
    assert (graphs, made.handle, calls.mode) == ([GRAPH], 0, THREAD_LOCAL)


def test_an_interrupt_while_the_mode_is_given_back_leaves_no_thread_relaxed(twin: ModuleType) -> None:
    calls, graphs, made = one_kernel(), list[int](), Made()
    exchange_mode = calls.exchange_mode

    def interrupted(mode: int) -> int:
        if mode == THREAD_LOCAL and calls.log[-1] != BACK:
            calls.log.append(BACK)
            raise KeyboardInterrupt
        return exchange_mode(mode)

    calls.exchange_mode = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        calls.ending(twin).run(STREAM, graphs, made)
    assert (graphs, made.handle, calls.mode) == ([GRAPH], EXEC, THREAD_LOCAL)


def test_an_ending_keeps_no_memory(twin: ModuleType) -> None:
    for calls in (one_kernel(), chain(), open_fork()):
        ending = calls.ending(twin)

        def run(ending: Any = ending, calls: Calls = calls) -> None:
            ending.run(STREAM, [], Made())
            calls.log.clear()

        assert growth(run) < 0.05
    for failing in ("get_info", "get_edges", "get_type", "instantiate", "exchange_back"):
        calls = chain()
        ending = calls.ending(twin)

        def fail(ending: Any = ending, calls: Calls = calls, failing: str = failing) -> None:
            calls.failing = {failing: 2}
            with suppress(Refused):
                ending.run(STREAM, [], Made())
            calls.log.clear()
            calls.mode = THREAD_LOCAL

        assert growth(fail) < 0.05


@pytest.mark.parametrize("wrong", [(STREAM, (), None), (STREAM, [], None, [31]), (STREAM,)])
def test_the_extension_refuses_what_is_of_another_type(wrong: tuple[Any, ...]) -> None:
    native = pytest.importorskip("breakgraph.driver._native")
    calls = one_kernel()
    with pytest.raises(TypeError):
        calls.ending(native).run(*wrong)
    calls.get_info = lambda stream: [ACTIVE]  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(TypeError, match="a capture's info is a tuple"):
        calls.ending(native).run(STREAM, [], None)
