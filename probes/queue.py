"""Ask the driver how many launches it takes before one waits for the device.

A stream is held up by a memory wait, and graphs of one kernel are launched behind it until a launch does not return;
then copies in their place, and events. Whoever launches without letting other threads run must stay below these
numbers (breakgraph/segments/backlog.py).

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
NEEDED = 3 * 256  # what replay has in flight at most: breakgraph.segments.backlog.HALF
EXIT_COULD_NOT_ASK = 2


class Bench:
    """A stream that can be held up, and things to put on it."""

    def __init__(self, asker: Asker) -> None:
        self._asker, self._do = asker, asker.call
        self._gate = int(self._do("cuMemHostAlloc", 4, 0))
        self._ptr = int(self._do("cuMemAlloc", 8192))
        self._event = self._do("cuEventCreate", 0)
        stream, mode = asker.stream, asker.cu.CUstreamCaptureMode(1)
        self._do("cuStreamBeginCapture", stream, mode)
        self._do("cuMemsetD32Async", self._ptr, 1, 16, stream)  # a kernel of the driver's own
        self._exec = self._do("cuGraphInstantiate", self._do("cuStreamEndCapture", stream), 0)

    def calls(self) -> dict[str, Callable[[], object]]:
        """What is put on the stream, by name."""
        do, stream, ptr = self._do, self._asker.stream, self._ptr
        return {
            "cuGraphLaunch of one node": lambda: do("cuGraphLaunch", self._exec, stream),
            "cuMemcpyDtoDAsync of 4 KiB": lambda: do("cuMemcpyDtoDAsync", ptr, ptr + 4096, 4096, stream),
            "cuMemsetD8Async": lambda: do("cuMemsetD8Async", ptr, 0, 4096, stream),
            "cuEventRecord": lambda: do("cuEventRecord", self._event, stream),
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
            except Refused as error:
                failed.append(error)

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        before = -1
        while thread.is_alive() and made[0] != before:
            before = made[0]
            time.sleep(STILL)
        count = made[0]
        gate.value = 1
        thread.join(60)
        self._do("cuStreamSynchronize", self._asker.stream)
        if failed:
            raise failed[0]
        return count


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write the record. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    add_tree_flags(parser)
    args = parser.parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    try:
        asker = Asker(args.device)
        bench = Bench(asker)
        measured = {name: bench.held(call) for name, call in bench.calls().items()}
    except (CouldNotAsk, Refused) as error:
        print(f"COULD NOT ASK: {error}")
        return EXIT_COULD_NOT_ASK
    lines = [f"{'behind a stream that is held up':<34} {'calls that return':>18}"]
    rows: list[dict[str, object]] = []
    for name, count in measured.items():
        told = f"at least {count}" if count >= MOST else str(count)
        lines.append(f"{name:<34} {told:>18}")
        row = {"name": f"{name}: calls that return behind a stream that is held up", "unit": "calls", "value": count}
        rows.append(row | {"at_least": NEEDED, "holds": count >= NEEDED})
    print("\n".join(lines))
    if args.json:
        record = header("queue", asker, args, Path(__file__).resolve())
        args.json.write_text(json.dumps(record | {"rows": rows, "stdout": "\n".join(lines)}, indent=1) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
