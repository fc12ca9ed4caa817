"""The ranks: processes that capture the block together, replay it, and hand back what they found."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np

import breakgraph as bg

from .block import ROWS, WIDTH, Batch, HostArray, Weights, forward, make_inputs
from .devices import use_device
from .exchange import Nccl, ThroughHost, make_nccl_id

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess
    from multiprocessing.synchronize import Barrier

__all__ = ["RankResult", "run"]

_PATIENCE = 180.0  # seconds; NCCL's set-up alone can take a minute
_PATIENCE_AT_THE_END = 30.0


@dataclass(frozen=True)
class Team:
    """What every rank is started with."""

    ranks: int
    inputs: int
    driver: str
    barrier: Barrier  #: of all ranks
    board: Any  #: host memory that they share, a part for each
    nccl_id: Any  #: None on the simulator


@dataclass(frozen=True)
class RankResult:
    """What one rank found."""

    rank: int
    device: str
    steps: tuple[str, ...]  #: of its graph, for a person
    outputs: HostArray  #: (inputs, ROWS, WIDTH): of the capture, then of each replay
    logs: tuple[tuple[str, ...], ...]  #: for each of those, what ran on the host
    captured: int  #: all-reduces inside its segments
    breaks: int  #: all-reduces that are breaks
    setup: float  #: seconds until all ranks could exchange
    ended_well: bool = False  #: the process has ended since, by itself and with exit code 0


def run(ranks: int, *, inputs: int) -> list[RankResult]:
    """Start the ranks on the current driver, and wait for what they find on the first ``inputs`` inputs.

    Raises `RuntimeError` where a rank fails, dies or says nothing for too long; none is left running then either.
    """
    context = multiprocessing.get_context("spawn")  # a forked child cannot use its parent's CUDA
    driver = bg.driver.current().name
    team = Team(
        ranks=ranks,
        inputs=inputs,
        driver=driver,
        barrier=context.Barrier(ranks, timeout=_PATIENCE),
        board=context.RawArray(ctypes.c_float, ranks * ROWS * WIDTH),
        nccl_id=make_nccl_id() if driver == "cuda" else None,
    )
    started: list[tuple[SpawnProcess, Connection]] = []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_process, args=(team, rank, theirs), name=f"rank {rank}", daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            started.append((process, ours))
        results = _gather({connection: process.name for process, connection in started})
        for process, _ in started:
            process.join(_PATIENCE_AT_THE_END)
        return [
            replace(result, ended_well=process.exitcode == 0)
            for result, (process, _) in zip(results, started, strict=True)
        ]
    finally:
        for process, connection in started:
            connection.close()
            process.kill()  # nothing, where it has ended
            process.join()


def _gather(open_ends: dict[Connection, str]) -> list[RankResult]:
    results = []
    while open_ends:
        ready = wait(list(open_ends), _PATIENCE)
        if not ready:
            raise RuntimeError(f"{', '.join(open_ends.values())} said nothing for {_PATIENCE:.0f} s")
        for connection in ready:
            assert isinstance(connection, Connection)
            name = open_ends.pop(connection)
            try:
                told = connection.recv()
            except EOFError:
                raise RuntimeError(f"{name} died without a word") from None
            if isinstance(told, str):
                raise RuntimeError(f"{name} failed:\n{told}")
            results.append(told)
    return sorted(results, key=lambda result: int(result.rank))


# in the process of a rank -------------------------------------------------------------------------------------------
def _process(team: Team, rank: int, connection: Connection) -> None:
    try:
        bg.driver.use(team.driver)  # type: ignore[arg-type]  # it has been one of the two
        device = use_device(rank if team.driver == "cuda" else 0)  # each process simulates a machine of its own
        exchange, setup = _meet(team, rank)
        connection.send(_capture_and_replay(team, rank, device, exchange, setup))
    except Exception:
        connection.send(traceback.format_exc())
    else:
        exchange.destroy()


def _meet(team: Team, rank: int) -> tuple[Nccl | ThroughHost, float]:
    """The rank's way to the others, and how many seconds it took to find."""
    started = time.perf_counter()
    if team.nccl_id is None:
        return ThroughHost(rank, team.ranks, team.board, team.barrier), time.perf_counter() - started
    say(rank, "waits for NCCL to be set up, which can take a minute")
    exchange = Nccl(rank, team.ranks, team.nccl_id)
    took = time.perf_counter() - started
    say(rank, f"NCCL was set up in {took:.0f} s")
    return exchange, took


def _capture_and_replay(team: Team, rank: int, device: str, exchange: Nccl | ThroughHost, setup: float) -> RankResult:
    shards = [Weights.random().shard(rank, team.ranks)]
    xp = bg.array_namespace()
    x, out = (xp.zeros((ROWS, WIDTH), np.float32) for _ in range(2))
    first, *fresh = make_inputs(team.inputs)
    outputs, logs = [], []

    # Once without a graph: kernels are compiled and loaded, and NCCL connects the ranks at its first all-reduce.
    x.set(first.values)
    forward(shards, x, out, Batch(first.lengths), exchange)
    say(rank, "ran the block once without a graph")

    batch = Batch(first.lengths)

    def barrier() -> None:
        batch.log.append("barrier")
        team.barrier.wait()  # no rank runs a break before every rank has ended the segment in front of it

    out.fill(np.nan)
    with bg.active_forward(batch), bg.capture(barrier=barrier, frozen="refuse", name=f"rank {rank}") as graph:
        forward(shards, x, out, batch, exchange)
    outputs.append(out.get())  # the capture is itself one correct forward
    logs.append(tuple(batch.log))
    steps = tuple(_told(step) for step in graph.steps)
    say(rank, f"captured {len(graph.segments)} segments and {len(graph.breaks)} breaks")

    for one in fresh:
        batch = Batch(one.lengths)
        x.set(one.values)
        out.fill(np.nan)
        with bg.active_forward(batch):
            graph.replay()
        outputs.append(out.get())
        logs.append(tuple(batch.log))
    say(rank, f"replayed {graph.replays} times")
    graph.close()  # before the exchange, whose all-reduce it holds
    return RankResult(rank, device, steps, np.stack(outputs), tuple(logs), exchange.captured, exchange.breaks, setup)


def _told(step: Any) -> str:
    return f"segment of {step.nodes} nodes" if hasattr(step, "nodes") else f"break {step.name}"


def say(rank: int, what: str) -> None:
    """Tell a person how far a rank has got."""
    print(f"rank {rank}: {what}\n", end="", file=sys.stderr, flush=True)  # one write: the ranks share the terminal
