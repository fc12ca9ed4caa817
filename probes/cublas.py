"""Ask cuBLAS which of its calls an open capture bears: making and destroying handles, setting them up, a product.

Each call is made while a stream captures in thread-local mode, in the same thread or in another; then the capture is
ended. What the call answered, whether the capture lived, and which nodes it has, by kind.

    python probes/cublas.py --json probes/records/cublas-h200-580.json

Needs ``cuda-bindings`` and ``nvmath-python``. Exit 0: asked, and what breakgraph relies on holds. Exit 1: it does not.
Exit 2: could not ask.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: the siblings are the package that this folder is
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    __package__ = Path(__file__).resolve().parent.name

from .rebegin import THREAD_LOCAL, Asker, CouldNotAsk, Refused, add_tree_flags, header

SIZE = 256  # rows and columns of the matrices
WORKSPACE = 32 << 20  # bytes, as cuBLAS recommends for Hopper
NODE_TYPES = {0: "KERNEL", 1: "MEMCPY", 2: "MEMSET", 3: "HOST", 10: "MEM_ALLOC", 11: "MEM_FREE"}  # CUgraphNodeType
EXIT_COULD_NOT_ASK = 2


class Bench:
    """Matrices, a workspace, and a handle that has multiplied before."""

    def __init__(self, asker: Asker, calls: Any) -> None:
        self.asker, self.calls = asker, calls
        self._matrices = [asker.alloc(4 * SIZE * SIZE) for _ in range(3)]
        self._workspace = asker.alloc(WORKSPACE)
        self.handle, *self._spare = (self.create() for _ in range(3))
        self.product(workspace=True)
        asker.synchronize()

    def create(self) -> int:
        return int(self.calls.create())

    def destroy(self) -> None:
        self.calls.destroy(self._spare.pop())

    def product(self, *, workspace: bool) -> None:
        one, zero = (ctypes.c_float * 1)(1), (ctypes.c_float * 1)(0)
        self.calls.set_stream(self.handle, int(self.asker.stream))
        if workspace:
            self.calls.set_workspace(self.handle, self._workspace, WORKSPACE)
        a, b, c = ((matrix, 0, SIZE) for matrix in self._matrices)  # 0: CUDA_R_32F
        shape, scale = (0, 0, SIZE, SIZE, SIZE), (ctypes.addressof(one), ctypes.addressof(zero))
        compute = self.calls.ComputeType.COMPUTE_32F
        self.calls.gemm_ex_64(self.handle, *shape, scale[0], *a, *b, scale[1], *c, compute, -1)

    def relaxed(self, call: Callable[[], object]) -> None:
        """Make a call in a thread to which captures forbid nothing."""
        do, mode = self.asker.call, self.asker.cu.CUstreamCaptureMode
        before = do("cuThreadExchangeStreamCaptureMode", mode(2))
        try:
            call()
        finally:
            do("cuThreadExchangeStreamCaptureMode", before)

    def elsewhere(self, call: Callable[[], object]) -> None:
        """Make a call in another thread. What it raises is raised here."""
        raised: list[Exception] = []

        def work() -> None:
            try:
                self.asker.enter_thread()
                call()
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    def in_a_capture(self, call: Callable[[Bench], object]) -> dict[str, object]:
        """What a call answers, and what becomes of the capture that is open meanwhile."""
        asker, answer = self.asker, "success"
        asker.begin_capture(THREAD_LOCAL)
        try:
            call(self)
        except Exception as error:
            answer = str(error)
        row: dict[str, object] = {"answer": answer, "status": asker.capture_status(), "nodes": {}}
        try:
            graph = asker.end_capture()
        except Refused as refused:
            return row | {"value": refused.code, "result": refused.name}
        kinds = Counter(self._kind(node) for node in self._nodes(graph))
        asker.call("cuGraphDestroy", graph)
        return row | {"value": 0, "result": "CUDA_SUCCESS", "nodes": dict(kinds)}

    def _nodes(self, graph: int) -> list[Any]:
        _, count = self.asker.call("cuGraphGetNodes", graph, 0)
        return list(self.asker.call("cuGraphGetNodes", graph, count)[0]) if count else []

    def _kind(self, node: Any) -> str:
        kind = int(self.asker.call("cuGraphNodeGetType", node))
        return NODE_TYPES.get(kind, f"type {kind}")


#: The calls, and whether the capture must outlive them: where breakgraph relies on it.
QUESTIONS: dict[str, tuple[Callable[[Bench], object], bool]] = {
    "cublasCreate": (lambda bench: bench.create(), False),
    "cublasCreate, relaxed": (lambda bench: bench.relaxed(bench.create), True),
    "cublasCreate in another thread": (lambda bench: bench.elsewhere(bench.create), False),
    "cublasCreate in another thread, relaxed": (
        lambda bench: bench.elsewhere(lambda: bench.relaxed(bench.create)),
        True,
    ),
    "cublasDestroy, relaxed": (lambda bench: bench.relaxed(bench.destroy), False),
    "cublasDestroy in another thread": (lambda bench: bench.elsewhere(bench.destroy), False),
    "cublasSetStream, cublasSetWorkspace, cublasGemmEx_64": (lambda bench: bench.product(workspace=True), True),
    "cublasSetStream, cublasGemmEx_64": (lambda bench: bench.product(workspace=False), False),
}


def ask(bench: Bench) -> list[dict[str, Any]]:
    """Put every question, and weigh a handle; the rows."""
    rows: list[dict[str, Any]] = []
    for name, (call, relied_on) in QUESTIONS.items():
        row = {"name": f"{name}: end of the capture", "unit": "CUresult", **bench.in_a_capture(call)}
        if relied_on:
            row |= {"expected": 0, "holds": row["value"] == 0 and row["answer"] == "success"}
        rows.append(row)
    product = rows[-2]
    product["holds"] = product["holds"] and "MEM_ALLOC" not in product["nodes"]  # or it could be launched only once
    free = bench.asker.call("cuMemGetInfo")[0]
    bench.create()
    taken = free - bench.asker.call("cuMemGetInfo")[0]
    return [*rows, {"name": "device memory of a handle", "value": round(taken / (1 << 20), 2), "unit": "MiB"}]


def line(row: dict[str, Any]) -> str:
    """A row as a person reads it."""
    told = f"{row['name']:<70} {row['value']} {row['unit']}"
    if "answer" in row:
        told += f" {row['result']}; the call: {row['answer']}; status {row['status']}; nodes {row['nodes']}"
    return told if row.get("holds", True) else f"{told} NOT AS EXPECTED"


def main(argv: list[str] | None = None) -> int:
    """Ask, print, and write the record. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    add_tree_flags(parser)
    args = parser.parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    try:
        asker = Asker(args.device)
        calls = importlib.import_module("nvmath.bindings.cublas")
        rows = ask(Bench(asker, calls))
    except ImportError as error:
        print(f"COULD NOT ASK: {error}: pip install nvmath-python")
        return EXIT_COULD_NOT_ASK
    except (CouldNotAsk, Refused, RuntimeError) as error:  # RuntimeError: nvmath's, where cuBLAS cannot be loaded
        print(f"COULD NOT ASK: {error}")
        return EXIT_COULD_NOT_ASK
    stdout = "\n".join(map(line, rows))
    print(stdout)
    if args.json:
        record = header("cublas", asker, args, Path(__file__).resolve())
        version = calls.get_version(calls.create())
        args.json.write_text(json.dumps(record | {"cublas": version, "rows": rows, "stdout": stdout}, indent=1) + "\n")
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
