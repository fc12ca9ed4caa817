"""Random forwards: run eagerly, captured, and replayed on fresh inputs, under random schedules, they are bit-equal.

A program is a list of steps over a growing set of 4 x 4 arrays: captured operations, views, frees, and breaks of every
form. The eager run keeps its own buffers over the same sequence of inputs, so state that lives in destinations counts
too. After each program no race was found, no exec is left and the arena is empty.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import live

import breakgraph as bg

SHAPE = (4, 4)

STEPS = st.tuples(
    st.sampled_from(
        [
            "add",
            "multiply",
            "relu",
            "binary",
            "in place",
            "transpose",
            "row slice",
            "sum",
            "free",
            "break: infer",
            "break: infer pair",
            "break: infer mapping",
            "break: given",
            "break: cell",
            "break: into live",
            "break: in place",
            "break: out",
            "break: shorter",
            "break: host decides",
            "break: value",
            "break: bare",
        ]
    ),
    st.integers(0, 7),
    st.integers(0, 7),
)


@dataclass(eq=False)
class Entry:
    array: Any
    root: int  # which allocation: views share it


@dataclass
class Machine:
    """Runs a program in whatever mode the caller is in. Buffers named by position outlive the run."""

    xp: Any
    buffers: dict[int, Any] = field(default_factory=dict)

    def buffer(self, at: int, cell: bool = False) -> Any:
        if at not in self.buffers:
            made = bg.Cell(SHAPE, np.float32) if cell else self.xp.zeros(SHAPE, np.float32)
            if cell:
                made.write(np.zeros(SHAPE, np.float32))
            self.buffers[at] = made
        return self.buffers[at]

    def prepare(self, program: list[tuple[str, int, int]]) -> None:
        """Make the buffers that the program names, outside any capture."""
        for at, (name, _, _) in enumerate(program):
            if name in ("break: given", "break: cell", "break: in place", "break: out", "break: shorter"):
                self.buffer(at, cell=name == "break: cell")

    def run(self, program: list[tuple[str, int, int]], x: Any) -> list[Any]:
        """The arrays that are live at the end, the input left out."""
        self.entries = [Entry(x, -1)]
        self.landed: set[int] = {-1}
        for at, (name, i, j) in enumerate(program):
            entry = self.entries[i % len(self.entries)]
            getattr(self, name.replace("break: ", "break_").replace(" ", "_"))(at, entry, j)
            del entry
        return [entry.array for entry in self.entries[1:]]

    def push(self, array: Any, root: int) -> None:
        self.entries.append(Entry(array, root))

    # captured work
    def add(self, at: int, entry: Entry, j: int) -> None:
        self.push(entry.array + np.float32(j), at)

    def multiply(self, at: int, entry: Entry, j: int) -> None:
        self.push(entry.array * np.float32(j - 3), at)

    def relu(self, at: int, entry: Entry, j: int) -> None:
        self.push(np.maximum(entry.array, np.float32(0)), at)

    def binary(self, at: int, entry: Entry, j: int) -> None:
        other = self.entries[j % len(self.entries)]
        self.push(entry.array - other.array, at)

    def in_place(self, at: int, entry: Entry, j: int) -> None:
        np.add(entry.array, np.float32(j), out=entry.array)

    def transpose(self, at: int, entry: Entry, j: int) -> None:
        self.push(entry.array.T, entry.root)

    def row_slice(self, at: int, entry: Entry, j: int) -> None:
        self.push(np.concatenate([entry.array[j % 4 :], entry.array[: j % 4]]), at)

    def sum(self, at: int, entry: Entry, j: int) -> None:
        self.push(entry.array * np.sum(entry.array, axis=0, keepdims=True), at)

    def free(self, at: int, entry: Entry, j: int) -> None:
        if entry is not self.entries[0]:
            self.entries.remove(entry)

    # breaks
    def land(self, array: Any, root: int) -> None:
        self.push(array, root)
        self.landed.add(root)

    def break_infer(self, at: int, entry: Entry, j: int) -> None:
        self.land(bg.break_here(lambda a: a + np.float32(j), bg.INFER, entry.array), at)

    def break_infer_pair(self, at: int, entry: Entry, j: int) -> None:
        first, second = bg.break_here(lambda a: (a * np.float32(2), a - np.float32(j)), bg.INFER, entry.array)
        self.land(first, at)
        self.land(second, at + 1000)

    def break_infer_mapping(self, at: int, entry: Entry, j: int) -> None:
        tree = bg.break_here(lambda v: {"t": v["a"].T + np.float32(j), "n": None}, bg.INFER, {"a": entry.array})
        self.land(tree["t"], at)

    def break_given(self, at: int, entry: Entry, j: int) -> None:
        self.land(bg.break_here(lambda a: a + np.float32(j), self.buffer(at), entry.array), at)

    def break_cell(self, at: int, entry: Entry, j: int) -> None:
        cell = self.buffer(at, cell=True)
        bg.break_here(lambda a: a + np.float32(j), cell, entry.array)
        self.land(cell.array, at)

    def break_into_live(self, at: int, entry: Entry, j: int) -> None:
        target = self.entries[j % len(self.entries)]
        if target.root not in self.landed:
            bg.break_here(lambda a: a * np.float32(2), target.array, entry.array)
            self.landed.add(target.root)

    def break_in_place(self, at: int, entry: Entry, j: int) -> None:
        buffer = self.buffer(at)
        accumulate(entry.array, buffer, np.float32(j))
        self.land(buffer, at)

    def break_out(self, at: int, entry: Entry, j: int) -> None:
        work = bg.break_point(dst=self.buffer(at), out="out")(lambda a, *, out: np.add(a, np.float32(j), out=out))
        self.land(work(entry.array), at)

    def break_shorter(self, at: int, entry: Entry, j: int) -> None:
        self.land(bg.break_here(lambda a: (a + np.float32(1))[: j % 5], self.buffer(at), entry.array), at)

    def break_host_decides(self, at: int, entry: Entry, j: int) -> None:
        def work(a: Any) -> Any:
            return a + np.float32(1) if float(a.get()[0, 0]) > j else a * np.float32(2)

        self.land(bg.break_here(work, bg.INFER, entry.array), at)

    def break_value(self, at: int, entry: Entry, j: int) -> None:
        bg.break_here(lambda a: float(a.get().sum()), bg.NO_WRITEBACK, entry.array)

    def break_bare(self, at: int, entry: Entry, j: int) -> None:
        bg.break_graph()


@bg.break_point(dst=bg.IN_PLACE, writes=("into",))
def accumulate(a: Any, into: Any, n: Any) -> None:
    np.add(into, a, out=into)
    np.add(into, n, out=into)


def inputs(seed: int, count: int) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return [random.integers(-8, 8, SHAPE).astype(np.float32) for _ in range(count)]


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    program=st.lists(STEPS, min_size=1, max_size=14),
    schedule=st.sampled_from(["fifo", "lazy", "random"]),
    seed=st.integers(0, 1000),
)
@example(program=[("break: infer", 0, 1), ("free", 1, 0)] * 3 + [("add", 0, 1)], schedule="random", seed=0)
@example(program=[("break: bare", 0, 0), ("break: bare", 0, 0)], schedule="lazy", seed=0)
def test_any_forward_is_bit_equal_eager_captured_and_replayed(
    program: list[tuple[str, int, int]], schedule: str, seed: int
) -> None:
    values = inputs(seed, 4)
    with bg.driver.use("sim", schedule=schedule, seed=seed) as driver:
        xp = bg.array_namespace()
        eager, captured = Machine(xp), Machine(xp)
        eager.prepare(program)
        captured.prepare(program)
        expected = []
        for value in values:
            expected.append([array.get() for array in eager.run(program, xp.asarray(value))])
            eager.entries.clear()
        x, arena = xp.asarray(values[0]), bg.Arena()
        with quiet(), bg.capture(arena=arena, name="random") as graph:
            arrays = captured.run(program, x)
        assert_same(arrays, expected[0], "at capture")
        for value, wanted in zip(values[1:], expected[1:], strict=True):
            x.set(value)
            graph.replay()
            assert_same(arrays, wanted, "at replay")
        driver.synchronize()
        assert not driver.races, driver.races
        graph.close()
        arrays.clear()
        captured.entries.clear()
        del graph
        gc.collect()
        assert live(driver, "graph_exec") == live(driver, "graph") == 0
        assert arena.used == 0


@contextmanager
def quiet() -> Iterator[None]:
    """A program may record no node, or keep what it made: both are warned about, neither matters here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bg.errors.BreakgraphWarning)
        yield


def assert_same(arrays: list[Any], expected: list[np.ndarray[Any, Any]], when: str) -> None:
    assert len(arrays) == len(expected)
    for index, (array, value) in enumerate(zip(arrays, expected, strict=True)):
        assert array.get().tobytes() == value.tobytes(), f"array {index} differs {when}"
