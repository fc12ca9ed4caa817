"""Ask the driver which calls that give memory back wait for kernels that may still use it.

A kernel that spins for 200 ms runs on a non-blocking stream while each call is made. A call that returns well
before the kernel ends does not wait: whoever unmaps memory in use must wait by other means. An arena does so by
freeing a plain allocation.

    python probes/release.py --json probes/records/release-h200-580.json

Needs ``cuda-bindings``. Exit 0: asked, and freeing waits. Exit 1: freeing does not wait. Exit 2: could not ask.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:  # run as a script: the siblings are the package that this folder is
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    __package__ = Path(__file__).resolve().parent.name

from .rebegin import Asker, CouldNotAsk, Refused, add_tree_flags, header

SPIN_NS = 200_000_000
EXIT_COULD_NOT_ASK = 2
PTX = """.version 7.8
.target {target}
.address_size 64
.visible .entry spin(.param .u64 duration) {{
    .reg .pred %p<2>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [duration];      mov.u64 %rd2, %globaltimer;
LOOP:
    mov.u64 %rd3, %globaltimer;         sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;        @%p1 bra LOOP;
    ret;
}}
"""


class Bench:
    """A spinning kernel, two mapped pages and two plain allocations."""

    def __init__(self, asker: Asker) -> None:
        self._asker, self._do, cu = asker, asker.call, asker.cu
        target = asker.image.partition(b".target ")[2].partition(b"\n")[0].decode()
        module = self._do("cuModuleLoadData", PTX.format(target=target).encode() + b"\0")
        self._spin = self._do("cuModuleGetFunction", module, b"spin")
        prop = cu.CUmemAllocationProp()
        prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = int(asker.device)
        minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page = int(self._do("cuMemGetAllocationGranularity", prop, minimum))
        self.base = int(self._do("cuMemAddressReserve", self.page, 0, 0, 0))
        self.handle = self._do("cuMemCreate", self.page, prop, 0)
        self._do("cuMemMap", self.base, self.page, 0, self.handle, 0)
        self.plain = [int(self._do("cuMemAlloc", self.page)) for _ in range(2)]

    def calls(self) -> dict[str, Callable[[], object]]:
        """The calls in an order in which each is legal."""
        do, relaxed = self._do, self._asker.cu.CUstreamCaptureMode(2)

        def free_relaxed() -> None:
            before = do("cuThreadExchangeStreamCaptureMode", relaxed)
            do("cuMemFree", self.plain[1])
            do("cuThreadExchangeStreamCaptureMode", before)

        return {
            "cuMemUnmap": lambda: do("cuMemUnmap", self.base, self.page),
            "cuMemRelease": lambda: do("cuMemRelease", self.handle),
            "cuMemAddressFree": lambda: do("cuMemAddressFree", self.base, self.page),
            "cuMemFree": lambda: do("cuMemFree", self.plain[0]),
            "cuMemFree under the relaxed exchange": free_relaxed,
        }

    def time(self, call: Callable[[], object]) -> tuple[float, float]:
        """Milliseconds until the call has returned, and until the kernel has ended."""
        stream = self._asker.stream
        duration = ctypes.c_uint64(SPIN_NS)
        params = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
        self._do("cuLaunchKernel", self._spin, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(params), 0)
        start = time.perf_counter()
        call()
        returned = time.perf_counter()
        self._do("cuStreamSynchronize", stream)
        return (returned - start) * 1e3, (time.perf_counter() - start) * 1e3


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
        bench.time(lambda: None)  # the first launch loads the kernel
        measured = {name: bench.time(call) for name, call in bench.calls().items()}
    except (CouldNotAsk, Refused) as error:
        print(f"COULD NOT ASK: {error}")
        return EXIT_COULD_NOT_ASK
    lines = [f"{'call':<40} {'returned after':>15} {'kernel ended after':>20}  waits"]
    rows: list[dict[str, object]] = []
    for name, (returned, ended) in measured.items():
        waits = returned > 0.9 * SPIN_NS / 1e6
        lines.append(f"{name:<40} {returned:>12.1f} ms {ended:>17.1f} ms  {'yes' if waits else 'no'}")
        row: dict[str, object] = {"name": f"{name}: returned under a running kernel after", "unit": "ms"}
        row["value"] = round(returned, 2)
        if "cuMemFree" in name:
            row |= {"at_least": 0.9 * SPIN_NS / 1e6, "holds": waits}
        rows.append(row)
    print("\n".join(lines))
    if args.json:
        record = header("release", asker, args, Path(__file__).resolve())
        args.json.write_text(json.dumps(record | {"rows": rows, "stdout": "\n".join(lines)}, indent=1) + "\n")
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
