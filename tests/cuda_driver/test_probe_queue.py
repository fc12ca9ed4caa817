"""``probes/queue.py`` finds how long a driver's queue is, and says where it is too short for a replay.

The simulated driver has no queue, so one of a given length is put around it: a call that is enqueued on a stream which
is held up waits once the queue is full. What the probe then tells is no verdict about a driver.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from breakgraph.driver.sim import SimDriver
from breakgraph.memory.backlog import HALF

from .simulated_bindings import simulated_bindings
from .surface import ROOT

sys.path.append(str(ROOT))
from probes import queue, rebegin

RECORDS = sorted((ROOT / "probes" / "records").glob("queue-*.json"))
LONGEST = {"cuGraphLaunch": 900, "cuMemcpyDtoDAsync": 800, "cuMemsetD8Async": 790, "cuEventRecord": 780}
GRAPHS = ("one kernel", "20 kernels", "100 kernels", "20 kernels in two branches")


class Queue:
    """Bindings over the simulated driver, where a stream can be held up, and then takes so many calls of each kind."""

    def __init__(self, longest: dict[str, int]) -> None:
        self.sim = SimDriver()
        self.bindings: ModuleType = simulated_bindings(self.sim)
        self.longest = longest
        self.threads: set[threading.Thread] = set()  # that have enqueued behind a stream that was held up
        self._before = set(threading.enumerate())
        self._held: Any = None
        self._full = False
        self._waiting = 0
        self.bindings.cuStreamWaitValue32 = self._hold  # type: ignore[attr-defined]
        synchronize = self.bindings.cuStreamSynchronize
        self.bindings.cuStreamSynchronize = lambda stream: self._let_go() or synchronize(stream)  # type: ignore[attr-defined]
        for name in longest:
            setattr(self.bindings, name, self._enqueued(name, getattr(self.bindings, name)))

    def _hold(self, stream: int, gate: int, value: int, flags: int) -> tuple[Any]:
        self._held, self._waiting = ctypes.c_uint32.from_address(gate), 0
        assert self._held.value != value
        return (self.bindings.CUresult(0),)

    def _let_go(self) -> None:
        assert self._held is None or self._held.value, "waited for a stream that nobody lets go"
        self._held = None

    def _enqueued(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def enqueue(*args: object) -> Any:
            if self._held is not None:
                self.threads.add(threading.current_thread())
                self._full = self._waiting >= self.longest[name]
                self._wait_while(lambda: self._full and not self._held.value)
                self._full = False
                self._waiting += 1
            return call(*args)

        return enqueue

    @staticmethod
    def _wait_while(what: Callable[[], object]) -> None:
        until = time.monotonic() + 60
        while what():
            assert time.monotonic() < until
            time.sleep(0.001)

    def settle(self, _seconds: float) -> None:
        """In place of a while without progress: until the queue is full, or whoever filled it has come to an end."""
        self._wait_while(lambda: not self._full and self._before < set(threading.enumerate()))

    def ask(self) -> dict[str, dict[str, Any]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue, "time", SimpleNamespace(sleep=self.settle))
            rows = queue.ask(queue.Bench(rebegin.Asker(bindings=self.bindings)))
        named = {str(row["name"]).partition(":")[0]: row for row in rows}
        assert len(named) == len(rows), "two rows have one name"
        return named


def test_it_finds_how_many_calls_of_each_kind_a_queue_takes() -> None:
    driver = Queue(LONGEST)
    rows = driver.ask()
    found = {name: row["value"] for name, row in rows.items()}
    assert found == {
        **{f"cuGraphLaunch of {what}": 900 for what in GRAPHS},
        "cuMemcpyDtoDAsync of 4 KiB": 800,
        "cuMemsetD8Async": 790,
        "cuEventRecord": 780,
    }
    assert all(row["holds"] for row in rows.values())
    assert threading.current_thread() not in driver.threads, "whoever watches does not wait"
    assert not driver.sim.live()["capture"]


def test_the_graphs_are_what_they_are_called() -> None:
    driver = Queue(LONGEST)
    queue.Bench(rebegin.Asker(bindings=driver.bindings)).calls()
    nodes = [driver.sim.graph_get_nodes(graph) for graph in driver.sim.live()["graph"]]
    assert [len(one) for one in nodes] == [1, 20, 100, 20]
    roots = [sum(not driver.sim.graph_node_get_dependencies(node) for node in one) for one in nodes]
    assert roots == [1, 1, 1, 2]


@pytest.mark.parametrize("name", LONGEST)
def test_a_queue_that_is_too_short_for_a_replay_is_said_to_be(name: str) -> None:
    rows = Queue({**LONGEST, name: 3 * HALF - 1}).ask()
    short = {what for what, row in rows.items() if not row["holds"]}
    assert short == {what for what in rows if what.startswith(name) and rows[what]["at_least"] == 3 * HALF} != set()
    assert all(f"less than {rows[what]['at_least']}" in queue.line(rows[what]) for what in short)


def test_a_queue_without_an_end_is_not_measured_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MOST", 2000)
    rows = Queue(dict.fromkeys(LONGEST, 10**9)).ask()
    assert {row["value"] for row in rows.values()} == {2000}
    assert "at least 2000" in queue.line(rows["cuEventRecord"])


def test_what_replay_has_in_flight_at_most_is_what_is_needed() -> None:
    assert queue.NEEDED == 3 * HALF


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuMemsetD8Async"])
def test_a_call_that_is_refused_behind_the_held_stream_is_no_short_queue(call: str) -> None:
    driver = Queue(LONGEST)
    good = getattr(driver.bindings, call)

    def refuse(*args: object) -> Any:
        return (driver.bindings.CUresult(719),) if driver._held is not None else good(*args)

    setattr(driver.bindings, call, refuse)
    with pytest.raises(rebegin.Refused, match="719"):
        driver.ask()
    assert driver._held is None, "the stream was let go"


def run(monkeypatch: pytest.MonkeyPatch, driver: Queue | None, *argv: str) -> int:
    def asker(device: int) -> rebegin.Asker:
        if driver is None:
            raise rebegin.CouldNotAsk("there is no driver here")
        monkeypatch.setattr(queue, "time", SimpleNamespace(sleep=driver.settle))
        return rebegin.Asker(device, bindings=driver.bindings)

    monkeypatch.setattr(queue, "Asker", asker)
    return queue.main([*argv])


def test_the_record_holds_the_rows_and_what_was_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cuda.bindings", reason="the header of a record has the version of the bindings")
    file = tmp_path / "queue.json"
    assert run(monkeypatch, Queue(LONGEST), "--json", str(file)) == 0
    record = json.loads(file.read_text())
    assert record["what"] == "queue"
    assert len(record["rows"]) == 7
    assert record["stdout"] == capsys.readouterr().out.strip("\n")


def test_the_exit_code_tells_a_short_queue_from_one_that_could_not_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, Queue({**LONGEST, "cuEventRecord": 10})) == 1
    assert run(monkeypatch, None) == queue.EXIT_COULD_NOT_ASK
    assert "COULD NOT ASK: there is no driver here" in capsys.readouterr().out


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recorded_driver_holds_what_a_replay_puts_into_its_queue(path: Path) -> None:
    rows = {str(row["name"]).partition(":")[0]: row["value"] for row in json.loads(path.read_text())["rows"]}
    kernels = dict(zip((f"cuGraphLaunch of {what}" for what in GRAPHS), (1, 20, 100, 10), strict=True))
    assert rows.keys() >= kernels.keys()
    assert all(calls * kernels.get(what, 1) >= 3 * HALF for what, calls in rows.items())
