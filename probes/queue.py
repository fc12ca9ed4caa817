"""Ask the driver how many launches it takes before one waits for the device.

A stream is held up by a memory wait, and graphs are launched behind it until a launch does not return: of one kernel,
of many, of branches; then copies in their place, and events. Whoever launches without letting other threads run must
stay below these numbers (breakgraph/memory/backlog.py). The kernels of a graph are queued one by one, those of branches
beside each other.

    python probes/queue.py --json probes/records/queue-h200-580.json

Needs ``cuda-bindings``. Exit 0: asked, and the queue holds what replay puts into it. Exit 1: it does not.
Exit 2: could not ask.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:  # run as a script: the siblings are the package that this folder is
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    __package__ = Path(__file__).resolve().parent.name

from .rebegin import Asker, CouldNotAsk, Refused, add_tree_flags, header

MOST = 20_000  # an answer beyond this is as good as none
STILL = 0.5  # seconds without progress, after which a launch counts as waiting
NEEDED = 3 * 256  # kernels and copies that replay has in flight at most: breakgraph.memory.backlog.HALF
EXIT_COULD_NOT_ASK = 2


class Bench:
    """A stream that can be held up, and things to put on it."""

    def __init__(self, asker: Asker) -> None:
        self._asker, self._do = asker, asker.call
        self._gate = int(self._do("cuMemHostAlloc", 4, 0))
        self._ptr = int(self._do("cuMemAlloc", 8192))
        self._event = self._do("cuEventCreate", 0)
        self._side = self._do("cuStreamCreate", 1)

    def _graph(self, kernels: int, *, branches: int = 1) -> int:
        """An exec of so many kernels, one after the other in each branch."""
        do, streams = self._do, (self._asker.stream, self._side)[:branches]
        fork, join = do("cuEventCreate", 0), do("cuEventCreate", 0)
        do("cuStreamBeginCapture", streams[0], self._asker.cu.CUstreamCaptureMode(1))
        do("cuEventRecord", fork, streams[0])
        for side in streams[1:]:
            do("cuStreamWaitEvent", side, fork, 0)
        for at in range(kernels):
            do("cuMemsetD32Async", self._ptr + 4096 * (at % branches), at, 16, streams[at % branches])  # a kernel
        for side in streams[1:]:
            do("cuEventRecord", join, side)
            do("cuStreamWaitEvent", streams[0], join, 0)
        return int(do("cuGraphInstantiate", do("cuStreamEndCapture", streams[0]), 0))

    def calls(self) -> dict[str, tuple[Callable[[], object], int]]:
        """What is put on the stream, by name, and how many kernels or copies it is in the longest branch."""
        do, stream, ptr = self._do, self._asker.stream, self._ptr
        graphs = {
            "one kernel": (self._graph(1), 1),
            "20 kernels": (self._graph(20), 20),
            "100 kernels": (self._graph(100), 100),
            "20 kernels in two branches": (self._graph(20, branches=2), 10),
        }
        launches = {
            f"cuGraphLaunch of {what}": (lambda one=one: do("cuGraphLaunch", one, stream), entries)
            for what, (one, entries) in graphs.items()
        }
        return launches | {
            "cuMemcpyDtoDAsync of 4 KiB": (lambda: do("cuMemcpyDtoDAsync", ptr, ptr + 4096, 4096, stream), 1),
            "cuMemsetD8Async": (lambda: do("cuMemsetD8Async", ptr, 0, 4096, stream), 1),
            "cuEventRecord": (lambda: do("cuEventRecord", self._event, stream), 1),
        }

    def held(self, call: Callable[[], object]) -> int:
        """How many calls return while the stream is held up."""
        gate = ctypes.c_uint32.from_address(self._gate)
        gate.value = 0
        context = self._do("cuCtxGetCurrent")
        self._do("cuStreamWaitValue32", self._asker.stream, self._gate, 1, 0)
        made, failed = [0], []

        def launch() -> None:
            try:
                self._do("cuCtxSetCurrent", context)
                while made[0] < MOST and not gate.value:
                    call()
                    made[0] += 1
            except (CouldNotAsk, Refused) as error:
                failed.append(error)

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        before = -1
        try:
            while thread.is_alive() and made[0] != before:
                before = made[0]
                time.sleep(STILL)
            count = made[0]
        finally:
            gate.value = 1  # or the stream stays held up, and with it this process
        thread.join(60)
        self._do("cuStreamSynchronize", self._asker.stream)
        if failed:
            raise failed[0]
        return count


def ask(bench: Bench) -> list[dict[str, object]]:
    """A row for each thing that is put on the stream."""
    rows: list[dict[str, object]] = []
    for name, (call, entries) in bench.calls().items():
        count, needed = bench.held(call), -(-NEEDED // entries)
        row = {"name": f"{name}: calls that return behind a stream that is held up", "unit": "calls", "value": count}
        rows.append(row | {"at_least": needed, "holds": count >= needed})
    return rows


def line(row: dict[str, object]) -> str:
    """One row for people."""
    what, count = str(row["name"]).partition(":")[0], row["value"]
    told = f"at least {count}" if count == MOST else str(count)
    short = "" if row["holds"] else f"  less than {row['at_least']}"
    return f"{what:<42} {told:>18}{short}"


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write the record. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    add_tree_flags(parser)
    args = parser.parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    try:
        asker = Asker(args.device)
        rows = ask(Bench(asker))
    except (CouldNotAsk, Refused) as error:
        print(f"COULD NOT ASK: {error}")
        return EXIT_COULD_NOT_ASK
    stdout = "\n".join([f"{'behind a stream that is held up':<42} {'calls that return':>18}", *map(line, rows)])
    print(stdout)
    if args.json:
        record = header("queue", asker, args, Path(__file__).resolve())
        args.json.write_text(json.dumps(record | {"rows": rows, "stdout": stdout}, indent=1) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
