"""``python -m tests.fuzz``: run the programs of a range of seeds, and make small what fails.

Prints how far it has come and how fast; for each seed that fails, the program as small as it could be made and what
differed. Exits with 1 if any failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import breakgraph as bg
from breakgraph import record

from .seeds import Failed, outcomes


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds; the exit code."""
    options = _parse(arguments)
    seeds = range(*map(int, options.seeds.split(":")))
    began, done = time.monotonic(), 0
    failed: list[Failed] = []
    for chunk in outcomes(options.driver, seeds, jobs=options.jobs, seconds=options.shrink):
        done += chunk.programs
        failed += chunk.failed
        for one in chunk.failed:
            print(f"\n=== seed {one.seed} failed: {one.error}\n{one.text}\n", flush=True)
        speed = done / (time.monotonic() - began)
        print(f"\r{done} of {len(seeds)} programs, {speed:.1f} per second, {len(failed)} failed", end=" ", flush=True)
        if any(one.sticky for one in chunk.failed):
            print("\nthe context is lost: nothing more can be run in it")
            break
    seconds = time.monotonic() - began
    summary = f"{done} programs (seeds {options.seeds}) on {options.driver}: {len(failed)} failed, {seconds:.0f} s"
    print(f"\n{summary}")
    if options.json:
        _write(options, done, failed, seconds, summary)
    return 1 if failed or done < len(seeds) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run random forwards by seed.")
    parser.add_argument("--seeds", default="0:1000", help="a range, its end not included (0:1000)")
    parser.add_argument("--driver", choices=("sim", "cuda"), default="sim")
    parser.add_argument("--jobs", type=int, default=1, help="processes; one for a GPU")
    parser.add_argument("--shrink", type=float, default=20.0, metavar="SECONDS", help="for each seed that fails (20)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write a record here")
    return parser.parse_args(arguments)


def _write(options: argparse.Namespace, done: int, failed: list[Failed], seconds: float, summary: str) -> None:
    command = ["python", "-m", "tests.fuzz", "--seeds", options.seeds, "--driver", options.driver]
    with bg.driver.use(options.driver):
        header: dict[str, Any] = record.header("fuzz", command)
    rows = [
        record.row(f"programs, seeds {options.seeds}", done, "count"),
        record.row("programs that failed", len(failed), "count", bound=0),
        record.row("time", round(seconds, 1), "s"),
    ]
    texts = [f"seed {one.seed}: {one.error}\n{one.text}" for one in failed]
    record.write(options.json, {**header, "rows": rows, "stdout": "\n\n".join([summary, *texts])})


if __name__ == "__main__":
    sys.exit(main())
