"""Running the programs of many seeds, in one process or several, and making small what fails."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import breakgraph as bg

from .generate import program
from .plan import plan
from .program import Program, source
from .run import run
from .shrink import failure, shrink

__all__ = ["Chunk", "Failed", "outcomes"]

_SECONDS_PER_PROGRAM = 120
_CHUNK = 25


class Failed(NamedTuple):
    """A seed that failed: what it raised, and the program made small, as text.

    ``sticky``: the GPU's context is lost, so nothing more can be run in this process.
    """

    seed: int
    error: str
    text: str
    sticky: bool


class Chunk(NamedTuple):
    """How many programs were run, and those that failed."""

    programs: int
    failed: list[Failed]


def outcomes(driver: str, seeds: range, *, jobs: int = 1, seconds: float = 20.0) -> Iterator[Chunk]:
    """Run the programs of seeds in ``jobs`` processes; ``seconds`` is how long a failing one may be made smaller."""
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    work = functools.partial(_run_chunk, driver, seconds)
    if jobs == 1:
        yield from map(work, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(work, chunks)


def _run_chunk(driver: str, seconds: float, seeds: range) -> Chunk:
    gc.collect()
    gc.freeze()  # a program collects at its end, and need not walk all that is imported
    signal.signal(signal.SIGALRM, _too_long)
    failed: list[Failed] = []
    for done, seed in enumerate(seeds, start=1):
        if (found := _run_seed(driver, seconds, seed)) is not None:
            failed.append(found)
            if found.sticky:
                return Chunk(done, failed)
    return Chunk(len(seeds), failed)


def _run_seed(driver: str, seconds: float, seed: int) -> Failed | None:
    def execute(one: Program) -> None:
        signal.alarm(_SECONDS_PER_PROGRAM)
        try:
            run(one, driver)
        finally:
            signal.alarm(0)

    found = program(seed)
    error = failure(execute, found)
    if error is None:
        return None
    sticky = isinstance(error, bg.errors.DriverError) and error.sticky and driver == "cuda"
    if not sticky:
        found, error = shrink(execute, found, error, seconds=seconds)
    return Failed(seed, f"{type(error).__name__}: {error}", _text(found, error), sticky)


def _too_long(_: int, __: FrameType | None) -> None:
    raise TimeoutError(f"a program ran for more than {_SECONDS_PER_PROGRAM} s")


def _text(found: Program, error: BaseException) -> str:
    plans = [f"forward {at}:\n{plan(drawn)}" for at, drawn in enumerate(found.forwards)]
    return "\n".join([source(found), *plans, "", "".join(traceback.format_exception(error))])
