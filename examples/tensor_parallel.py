r"""A transformer block split over ranks: a process and a GPU each, and a graph each that holds an all-reduce.

                  rank 0                          rank 1

    segment 0     normalize x                     normalize x                     every rank has all of x
                  @ Wqkv of heads 0, 1            @ Wqkv of heads 2, 3            split by columns: whole heads
      break       attention of heads 0, 1         attention of heads 2, 3
    segment 1     @ Wo, the rows of heads 0, 1    @ Wo, the rows of heads 2, 3    split by rows: a partial sum
                      \_____________ all-reduce _____________/                    INSIDE the segment, captured
                  + x, normalize                  + x, normalize
                  @ Wup, left half, SiLU          @ Wup, right half, SiLU         split by columns
                  @ Wdown, upper half             @ Wdown, lower half             split by rows
      break           \_____________ all-reduce _____________/                    AS a break, called at each replay
    segment 2     + residual                      + residual

Attention is a break for a reason of its own: the rows of an input are sequences of different lengths, and no graph can
hold a loop over those. A split by columns and then one by rows needs a single sum over the ranks, and nothing else
crosses between them. `tensor_parallel/block.py` has the block, `tensor_parallel/exchange.py` the all-reduces.

    python examples/tensor_parallel.py                           # two GPUs, cupy and NCCL
    BREAKGRAPH_DRIVER=sim python examples/tensor_parallel.py     # no GPU

On the simulator the processes exchange through host memory, which nothing can capture, so there both all-reduces are
breaks. The command starts the ranks, has each capture the block once and replay it on fresh inputs, and compares every
value with the same block on one rank. They must be equal bit for bit: the one rank keeps the products apart as the
split does, so only the sum of the partials is done elsewhere, and a + b is b + a. With more than two ranks NCCL adds
in an order of its own, and then the largest difference has a bound instead (`TOLERANCE` in `report.py`).

At last as many threads as there were ranks capture the block on a GPU each, over and over and all at the same time,
in one process. Exit 0: all is as it should be. Exit 1: it is not. Exit 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed will do

from tensor_parallel import one_rank, ranks, threads  # the folder beside this script
from tensor_parallel.block import HEADS, Weights, make_inputs
from tensor_parallel.report import Report

import breakgraph as bg

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run both parts, print what was found, and write the record. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, choices=[n for n in range(2, HEADS + 1) if HEADS % n == 0])
    parser.add_argument("--inputs", type=int, default=20, metavar="N", help="fresh inputs to replay (default 20)")
    parser.add_argument("--captures", type=int, default=200, metavar="N", help="of each thread (default 200)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the record here")
    args = parser.parse_args(arguments)
    if min(args.inputs, args.captures) < 1:
        parser.error("--inputs and --captures are at least 1")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"there is no folder {args.json.parent}")  # now, and not after the measurement
    try:
        choose_devices(args.ranks)
    except bg.errors.BreakgraphError as error:
        print(f"tensor_parallel: {error}", file=sys.stderr)
        return 2

    weights, inputs = Weights.random(), make_inputs(1 + args.inputs)  # one to capture with, the others to replay
    report = Report(["python", "examples/tensor_parallel.py", *arguments])
    with report.part("one rank"):
        expected = one_rank.eager(weights, args.ranks, inputs)
        report.add_split(weights, inputs, expected)
    with report.part(f"{args.ranks} ranks, a process each"):
        report.add_ranks(ranks.run(args.ranks, inputs=len(inputs)), expected)
    with report.part(f"{args.ranks} threads of one process, each capturing on a device of its own"):
        report.add_threads(threads.capture_side_by_side(weights, inputs, threads=args.ranks, captures=args.captures))
    print(report.text, end="")
    if args.json:
        report.write(args.json)
    return 0 if report.good else 1


def choose_devices(count: int) -> None:
    """Make sure of ``count`` devices; a simulated machine gets as many.

    Raises `BreakgraphError` where there are less.
    """
    if bg.driver.current().name == "sim":
        bg.driver.use("sim", devices=count)
        print("tensor_parallel: on the simulated driver, whose answers say nothing about a GPU", file=sys.stderr)
    found = bg.driver.current().device_get_count()
    if found < count:
        raise bg.errors.BreakgraphError(
            f"{count} ranks need {count} GPUs, and this machine has {found}",
            why="NCCL takes one rank to a GPU",
            remedy="set BREAKGRAPH_DRIVER=sim to run the same program without a GPU",
        )


if __name__ == "__main__":  # the ranks import this file too
    sys.exit(main())
