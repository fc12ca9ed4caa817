"""The questions about exec updates, in the order in which they are put.

What is expected is what CUDA documents (driver API, cuGraphExecUpdate and cuStreamGetCaptureInfo; programming guide,
"Updating Instantiated Graphs"), or what an earlier record has (an update is legal in a capture of the same thread).
Where neither says, there is no expectation, only that the exec then does what the answer promises: the new work
after a success, all of the old work and nothing else after a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

from ._exec_update_bench import DETAILS, NOT_READY, Answer, Bench, Step, ladder
from .rebegin import GLOBAL, THREAD_LOCAL

__all__ = ["QUESTIONS", "Rows"]

UPDATE_FAILURE = 910  # CUresult
EXECS = 64


class Rows:
    """The rows of the record, and a line of the table for each."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, value: Any, unit: str, expected: Any = None, **more: Any) -> None:
        """A row; ``expected`` is None where nothing is documented."""
        row = {"name": name, "value": value, "unit": unit, **more}
        if expected is not None:
            row |= {"expected": expected, "holds": value == expected}
        self.rows.append(row)

    def code(self, bench: Bench, name: str, code: int, expected: int | None = None) -> None:
        self.add(name, code, "CUresult", expected, result=bench.result_name(code))

    def update(self, bench: Bench, name: str, answer: Answer, expected: int | None = None) -> None:
        """An update's answer, and why it was refused if it was."""
        self.code(bench, f"{name}: update", answer.code, expected)
        if answer.code:
            known = answer.detail is not None and answer.detail < len(DETAILS)
            said = {"result": DETAILS[answer.detail]} if known and answer.detail is not None else {}
            self.add(f"{name}: why", answer.detail, "CUgraphExecUpdateResult", **said)

    def wrong(self, name: str, words: int) -> None:
        self.add(f"{name}: wrong words", words, "words", 0)


class Work(NamedTuple):
    """A captured graph, and the steps that it should take."""

    graph: int
    steps: Sequence[Step]


def _captured(b: Bench, *steps: Step) -> Work:
    return Work(b.graph_of(*steps), steps)


def _update(b: Bench, rows: Rows, name: str, old: Work, new: Work, expected: int | None = None) -> int:
    """Update an exec of the old work with the graph of the new one, and see what it does then. The exec."""
    made = b.asker.instantiate(old.graph)
    answer = b.update(made, new.graph)
    rows.update(b, name, answer, expected)
    _see(b, rows, name, made, answer, old, new)
    return made


def _see(b: Bench, rows: Rows, name: str, made: int, answer: Answer, old: Work, new: Work) -> None:
    """The exec does the new work after a success, the old work after a refusal, and nothing else."""
    does, work = ("old", old) if answer.code else ("new", new)
    rows.wrong(f"{name}: then the {does} work", b.wrong_after(made, *work.steps))


# --- what is taken ------------------------------------------------------------------------------------


def same_topology(b: Bench, rows: Rows) -> None:
    old, new = ladder(b, 4, at=0, value=100), ladder(b, 4, at=1024, value=200, count=96)
    _update(b, rows, "other addresses and grids", _captured(b, *old), _captured(b, *new), 0)


def pending_launch(b: Bench, rows: Rows) -> None:
    """A launch that was made before the update, and has not begun when the update is made."""
    old, new = ladder(b, 4, at=0, value=100), ladder(b, 4, at=1024, value=200, count=96)
    shared = b.fill(4000, 1, 1), b.fill(4000, 1, 2)  # by both launches: the second one's value stays
    for where, first in (("the same stream", b.stream), ("another stream", b.other)):
        made, graph = b.exec_of(*old, shared[0]), b.graph_of(*new, shared[1])
        event = b.do("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING
        b.wipe()
        b.spin(first)
        b.launch(made, first)
        b.do("cuEventRecord", event, first)
        updated, answer = b.milliseconds(partial(b.update, made, graph))
        kept = b.code_of(partial(b.do, "cuEventQuery", event)) == NOT_READY
        launched, _ = b.milliseconds(partial(b.launch, made))
        for stream in (b.stream, b.other):
            b.do("cuStreamSynchronize", stream)
        name = f"under a launch kept back on {where}"
        rows.update(b, name, answer, 0)
        rows.add(f"{name}: it was still kept back when the update had returned", kept, "bool", True)
        rows.add(f"{name}: update returned after", updated, "ms")
        rows.add(f"{name}: next launch returned after", launched, "ms")
        steps = [*old, shared[0], *new, shared[1]]
        rows.wrong(f"{name}: the old work by the launch before the update", b.wrong(*steps, where=old))
        rows.wrong(f"{name}: the new work by the launch after it", b.wrong(*steps, where=new))
        rows.wrong(f"{name}: the launches one after another", b.wrong(*steps, where=shared[1:]))
        rows.wrong(f"{name}: nothing else", b.wrong(*steps))


def parameters(b: Bench, rows: Rows) -> None:
    source = b.fill(0, 64, 77)
    cases: dict[str, tuple[list[Step], list[Step], int | None]] = {
        "another function": ([b.fill(64, 32, 5)], [b.fill(128, 32, 5, "fill_inverted")], 0),
        "another function, grid and block": (
            [b.fill(64, 32, 5)],
            [b.fill(128, 400, 5, "fill_inverted", threads=128)],
            0,
        ),
        "memset of another address and value": ([b.set(64, 16, 5)], [b.set(128, 16, 6)], 0),
        "memset of more words": ([b.set(64, 16, 5)], [b.set(128, 1000, 6)], None),
        "memset of fewer words": ([b.set(64, 1000, 5)], [b.set(128, 16, 6)], None),
        "memset of bytes for one of words": ([b.set(64, 16, 5)], [b.set_bytes(128, 16, 6)], None),
        "copy of another address": ([source, b.copy(64, 32, 0)], [source, b.copy(128, 32, 32)], 0),
        "copy of more words": ([source, b.copy(64, 8, 0)], [source, b.copy(128, 64, 0)], None),
        "copy of fewer words": ([source, b.copy(64, 64, 0)], [source, b.copy(128, 8, 0)], None),
        "copy from pinned host memory for one on the device": (
            [source, b.copy(64, 32, 0)],
            [source, b.upload(128, 32)],
            None,
        ),
        "no nodes, before and after": ([], [], 0),
    }
    for name, (old, new, expected) in cases.items():
        _update(b, rows, name, _captured(b, *old), _captured(b, *new), expected)


def captured_twice(b: Bench, rows: Rows) -> None:
    steps = [b.fill(0, 64, 77), b.set(64, 16, 5), b.copy(128, 32, 0), b.fill(256, 96, 9, "fill_inverted")]
    one, two = (_captured(b, *steps) for _ in range(2))
    name = "the same work captured twice in one stream"
    rows.add(f"{name}: types and edges agree node by node", _nodes(b, one.graph) == _nodes(b, two.graph), "bool")
    _update(b, rows, name, one, two, 0)


def _nodes(b: Bench, graph: int) -> list[Any]:
    """Type and edges of each node, in the order in which the driver tells them."""
    _, count = b.do("cuGraphGetNodes", graph)
    nodes, _ = b.do("cuGraphGetNodes", graph, count)
    _, _, *_, edges = b.do("cuGraphGetEdges", graph)
    tails, heads, *_ = b.do("cuGraphGetEdges", graph, edges)
    place = {int(node): at for at, node in enumerate(nodes)}
    after = sorted((place[int(head)], place[int(tail)]) for tail, head in zip(tails, heads, strict=True))
    return [[int(b.do("cuGraphNodeGetType", node)) for node in nodes], after]


# --- what is refused ----------------------------------------------------------------------------------


def refused(b: Bench, rows: Rows) -> None:
    """Each graph has other parameters in the nodes that do match, so that a partial update would show."""
    old = ladder(b, 4, at=0, value=100)
    other = ladder(b, 5, at=1024, value=200, count=96)
    cases = {
        "one node more": other,
        "one node less": other[:3],
        "no nodes": [],
        "another last node": [*other[:3], b.set(2000, 16, 6)],
        "another first node": [b.set(2000, 16, 6), *other[:3]],
        "other edges": [*other[:2], b.unordered(), *other[2:4]],
    }
    for name, new in cases.items():
        made = _update(b, rows, name, _captured(b, *old), _captured(b, *new), UPDATE_FAILURE)
        own = ladder(b, 4, at=3000, value=300, count=64)
        rows.update(b, f"{name}: again with a graph that matches", b.update(made, b.graph_of(*own)), 0)
        rows.wrong(f"{name}: then its work", b.wrong_after(made, *own))


# --- fork and join ------------------------------------------------------------------------------------


def forks(b: Bench, rows: Rows) -> None:
    """A fork whose branches differ. It ends in one node after both branches, or in both of them."""
    cases: dict[str, tuple[bool, bool]] = {  # the side is captured first, is joined first
        "the same calls": (False, False),
        "branches captured in the other order": (True, False),
        "branches joined in the other order": (False, True),
    }
    for tail, what in ((True, "fork and join"), (False, "fork that no node joins")):
        for name, (side_first, side_joins_first) in cases.items():
            documented = name == "the same calls" or (tail and not side_joins_first)
            old = _forked(b, 0, 100, tail=tail)
            new = _forked(b, 1024, 200, tail=tail, side_first=side_first, side_joins_first=side_joins_first)
            _update(b, rows, f"{what}, {name}", old, new, 0 if documented else None)


def _forked(
    b: Bench, at: int, value: int, *, tail: bool, side_first: bool = False, side_joins_first: bool = False
) -> Work:
    """A root, then a kernel on the origin, and a memset and a kernel on the side."""
    root, origin, side, last = (b.fill(at + 8 * place, 8, value) for place in range(4))
    cleared = b.set(at + 32, 8, value)
    branches = {b.stream: [origin], b.other: [cleared, side]}
    b.begin()
    root.enqueue(b.stream)
    b.fork()
    for stream in reversed(branches) if side_first else branches:
        for step in branches[stream]:
            step.enqueue(stream)
    heads = [b.capture_info(stream)[1] for stream in branches]
    b.depend_on(b.stream, [node for head in (heads[::-1] if side_joins_first else heads) for node in head])
    if tail:
        last.enqueue(b.stream)
    return Work(b.end(), [root, origin, cleared, side, *([last] if tail else [])])


# --- beside an open capture ---------------------------------------------------------------------------


def beside_a_capture(b: Bench, rows: Rows) -> None:
    for name, mode, asked_from, expected in (
        ("in a thread-local capture of the same thread", THREAD_LOCAL, _here, 0),
        ("in a global capture of the same thread", GLOBAL, _here, None),
        ("beside a thread-local capture of another thread", THREAD_LOCAL, b.elsewhere, 0),
        ("beside a global capture of another thread", GLOBAL, b.elsewhere, None),
    ):
        b.fresh_streams()
        old, new = (_captured(b, *ladder(b, 2, at=512 * part, value=100 * part)) for part in (1, 2))
        made = b.asker.instantiate(old.graph)
        b.begin(mode)
        b.fill(0, 32, 1).enqueue(b.stream)
        answer = asked_from(partial(b.update, made, new.graph))
        rows.update(b, name, answer, expected)
        rows.add(f"{name}: the capture is still good", b.capturing(), "bool", None if expected is None else True)
        rows.code(b, f"{name}: end of the capture", b.code_of(b.end), expected)
        _see(b, rows, name, made, answer, old, new)


def _here(ask: Callable[[], Answer]) -> Answer:
    return ask()


def asking_an_open_capture(b: Bench, rows: Rows) -> None:
    """What an allocator may ask inside a capture, and what it pays."""
    for nodes in (20, 1000):
        b.fresh_streams()
        b.begin()
        for step in ladder(b, nodes, at=0, value=1, count=1):
            step.enqueue(b.stream)
        graph, (node,) = b.capture_info(b.stream)
        calls: dict[str, Callable[[], object]] = {
            "cuGraphGetNodes, count only": partial(b.do, "cuGraphGetNodes", graph),
            "cuGraphNodeGetDependencies, count only": partial(b.do, "cuGraphNodeGetDependencies", node),
            "cuGraphNodeGetDependencies, one of them": partial(b.do, "cuGraphNodeGetDependencies", node, 1),
            "cuStreamGetCaptureInfo": partial(b.do, "cuStreamGetCaptureInfo", b.stream),
            "cuMemGetInfo": partial(b.do, "cuMemGetInfo"),
        }
        where = f"in a capture of {nodes} nodes"
        for name, call in calls.items():
            code = b.code_of(call)
            rows.code(b, f"{where}: {name}", code, 0)
            if not code:
                rows.add(f"{where}: {name}: time", b.microseconds(call), "us")
        rows.add(f"{where}: nodes told", int(b.do("cuGraphGetNodes", graph)[-1]), "nodes", nodes)
        told = int(b.do("cuGraphNodeGetDependencies", node)[-1])
        rows.add(f"{where}: dependencies of its last node told", told, "nodes", 1)
        rows.add(f"{where}: still good after that", b.capturing(), "bool", True)
        rows.code(b, f"{where}: end of the capture", b.code_of(b.end), 0)
    rows.add("outside a capture: cuMemGetInfo: time", b.microseconds(lambda: b.do("cuMemGetInfo")), "us")


# --- what it costs ------------------------------------------------------------------------------------


def costs(b: Bench, rows: Rows) -> None:
    """Each update is to the other one of two sizes, other addresses and grids."""

    def wait() -> None:
        b.do("cuStreamSynchronize", b.stream)

    for nodes in (1, 20, 100):
        graphs = _two_sizes(b, nodes)
        made, sizes = b.asker.instantiate(graphs[0]), cycle(reversed(graphs))
        launch = partial(b.launch, made)
        launch()
        wait()
        taken = b.microseconds(lambda: b.do("cuGraphExecUpdate", made, next(sizes)))  # noqa: B023 - called at once
        rows.add(f"update of {nodes} nodes: time", taken, "us")
        if nodes == 20:

            def change(upload: bool = False) -> None:
                wait()
                b.do("cuGraphExecUpdate", made, next(sizes))  # noqa: B023
                if upload:
                    b.do("cuGraphUpload", made, b.stream)  # noqa: B023
                    wait()

            name = f"launch of {nodes} nodes"
            rows.add(f"{name}, steady: time", b.microseconds(launch, wait), "us")
            rows.add(f"{name}, first after an update: time", b.microseconds(launch, change), "us")
            taken = b.microseconds(launch, partial(change, upload=True))
            rows.add(f"{name}, first after an update and an upload: time", taken, "us")
            wait()


def _two_sizes(b: Bench, nodes: int) -> list[int]:
    return [b.graph_of(*ladder(b, nodes, at, 1, count)) for at, count in ((0, 32), (4000, 40))]


def memory(b: Bench, rows: Rows) -> None:
    """Asked first, since the driver keeps what destroyed execs held."""
    graphs = _two_sizes(b, 20)
    execs: list[int] = []
    b.launch(b.asker.instantiate(graphs[0]))  # what only the first exec takes
    held = b.free_bytes()

    def taken(name: str, each: Callable[[int], object]) -> None:
        nonlocal held
        for at in range(EXECS):
            each(at)
        free = b.free_bytes()
        rows.add(f"device memory taken by {name} {EXECS} execs of 20 kernel nodes", held - free, "bytes")
        held = free

    taken("instantiating", lambda _: execs.append(b.asker.instantiate(graphs[0])))
    taken("launching", lambda at: b.launch(execs[at]))
    taken("updating", lambda at: b.do("cuGraphExecUpdate", execs[at], graphs[1]))
    taken("launching, after the update,", lambda at: b.launch(execs[at]))
    taken("destroying", lambda at: b.do("cuGraphExecDestroy", execs[at]))
    execs.clear()
    taken("instantiating, after that,", lambda _: execs.append(b.asker.instantiate(graphs[0])))


# --- the graph it was made from -----------------------------------------------------------------------


def source_graphs(b: Bench, rows: Rows) -> None:
    old, new = ladder(b, 4, at=0, value=100), ladder(b, 4, at=1024, value=200, count=96)
    graph = b.graph_of(*old)
    made = b.asker.instantiate(graph)
    b.do("cuGraphDestroy", graph)
    rows.wrong("graph destroyed right after instantiation: the exec's work", b.wrong_after(made, *old))
    graph = b.graph_of(*new)
    rows.update(b, "graph destroyed right after instantiation", b.update(made, graph), 0)
    b.do("cuGraphDestroy", graph)
    rows.wrong("graph destroyed right after an update: the exec's work", b.wrong_after(made, *new))


QUESTIONS: dict[str, Callable[[Bench, Rows], None]] = {
    "device memory of execs": memory,
    "the same topology": same_topology,
    "a launch made before the update": pending_launch,
    "parameters": parameters,
    "the same work captured twice": captured_twice,
    "refused updates": refused,
    "fork and join": forks,
    "an update beside a capture": beside_a_capture,
    "an open capture asked": asking_an_open_capture,
    "costs": costs,
    "source graphs": source_graphs,
}
