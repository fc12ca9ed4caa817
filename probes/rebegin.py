"""Ask the driver met here whether capture may legally be begun again in the middle of a forward.

    segment 0   begin | y = x * 2 | end, instantiate, launch
    break       wait, read y to the host, add 3 there, write y back
    segment 1   begin | t = y     | end, instantiate, launch
    bare break  begin again with nothing in between
    segment 2   (no work)         | end, instantiate, launch
    segment 3   begin | out = t   | end, instantiate, launch

All on one non-blocking stream of the primary context, in thread-local mode; then three replays from fresh
inputs. Needs ``cuda-bindings`` and nothing else. The verdict is LEGAL (exit 0), ILLEGAL with the call and its
code (exit 1) or COULD NOT ASK with the reason (exit 2). It is a verdict about the driver only if capture
works at all (the control) and the mode was seen to be thread-local (another thread may allocate, this one may
not, and in global mode neither may): anything amiss before that is COULD NOT ASK.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNT = 256  # elements of 4 bytes
BASES = (100, 200, 300)
GLOBAL, THREAD_LOCAL = 0, 1  # CUstreamCaptureMode
ACTIVE, INVALIDATED = 1, 2  # CUstreamCaptureStatus
UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901  # CUresult
EXIT_CODES = {"LEGAL": 0, "ILLEGAL": 1, "COULD NOT ASK": 2}

PTX = """.version 7.8
.target {target}
.address_size 64
.visible .entry scale(.param .u64 src, .param .u64 dst, .param .u32 count, .param .u32 factor) {{
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [src];           ld.param.u64 %rd2, [dst];
    ld.param.u32 %r1, [count];          ld.param.u32 %r2, [factor];
    mov.u32 %r3, %tid.x;                setp.ge.u32 %p1, %r3, %r1;          @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;      cvta.to.global.u64 %rd2, %rd2;      mul.wide.u32 %rd3, %r3, 4;
    add.s64 %rd4, %rd1, %rd3;           add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r4, [%rd4];          mul.lo.u32 %r5, %r4, %r2;           st.global.u32 [%rd5], %r5;
DONE: ret;
}}
"""

#: Entry points the probe goes through: the CUDA version whose ABI it means, and the name under which the
#: bindings keep what they bound. Version 10000 of cuStreamBeginCapture is the one without a mode.
ENTRY_POINTS = {
    "cuStreamBeginCapture": (10010, "__cuStreamBeginCapture_v2"),
    "cuStreamEndCapture": (10000, "__cuStreamEndCapture"),
    "cuStreamIsCapturing": (10000, "__cuStreamIsCapturing"),
    "cuGraphInstantiateWithFlags": (11040, "__cuGraphInstantiateWithFlags"),
    "cuGraphLaunch": (10000, "__cuGraphLaunch"),
    "cuLaunchKernel": (4000, "__cuLaunchKernel"),
    "cuMemAlloc": (3020, "__cuMemAlloc_v2"),
    "cuMemcpyHtoDAsync": (3020, "__cuMemcpyHtoDAsync_v2"),
    "cuMemcpyDtoHAsync": (3020, "__cuMemcpyDtoHAsync_v2"),
    "cuStreamSynchronize": (2000, "__cuStreamSynchronize"),
}


class Refused(Exception):
    """A driver call answered something other than success."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} answered {name} ({code})")
        self.call, self.code, self.name = call, code, name


class CouldNotAsk(Exception):
    """The question could not be put to a driver; says nothing about one."""


class Asker:
    """Asks through ``cuda.bindings.driver``, in the primary context of one device.

    Each call raises `Refused` for a result that is not success. ``bindings`` stands in for the real module
    where the same questions are put to something that is not a driver.
    """

    def __init__(self, device: int = 0, bindings: Any = None) -> None:
        try:
            self.cu: Any = bindings or importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise CouldNotAsk(f"cuda.bindings cannot be imported ({error}): pip install cuda-bindings") from error
        try:
            self.call("cuInit", 0)
            if not self.call("cuDeviceGetCount"):
                raise CouldNotAsk("the driver counts no device")
            self.version = int(self.call("cuDriverGetVersion"))
            self.device = self.call("cuDeviceGet", device)
            self.gpu = self.call("cuDeviceGetName", 256, self.device).partition(b"\0")[0].decode().strip()
            self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
            self.enter_thread()
            self.stream = self.call("cuStreamCreate", 1)  # CU_STREAM_NON_BLOCKING
            self.kernel = self._load_kernel()
        except Refused as error:
            raise CouldNotAsk(f"setting up: {error}") from error

    def call(self, name: str, *args: object) -> Any:
        """Call a function of the bindings; its value, or a tuple of them, without the result code."""
        try:
            code, *values = getattr(self.cu, name)(*args)
        except ValueError as error:  # how the bindings report a code they have never heard of
            number = re.search(r"(\d+) is not a valid CUresult", str(error))
            if not number:
                raise
            raise Refused(name, int(number[1]), f"CUDA_ERROR_{number[1]}") from error
        except RuntimeError as error:  # no driver library, or it lacks the symbol
            raise CouldNotAsk(f"{name}: {error}") from error
        if code:
            raise Refused(name, int(code), code.name)
        return values[0] if len(values) == 1 else tuple(values)

    def _load_kernel(self) -> Any:
        for target in ("sm_50", "sm_75", "sm_90"):  # a driver may have dropped the oldest
            self.image = PTX.format(target=target).encode() + b"\0"
            try:
                module = self.call("cuModuleLoadData", self.image)
            except Refused as error:
                refused = error
            else:
                return self.call("cuModuleGetFunction", module, b"scale")
        raise refused

    def begin_capture(self, mode: int) -> None:
        self.call("cuStreamBeginCapture", self.stream, self.cu.CUstreamCaptureMode(mode))

    def end_capture(self) -> int:
        return int(self.call("cuStreamEndCapture", self.stream))

    def capture_status(self) -> int:
        return int(self.call("cuStreamIsCapturing", self.stream))

    def instantiate(self, graph: int) -> int:
        return int(self.call("cuGraphInstantiate", graph, 0))

    def launch(self, graph_exec: int) -> None:
        self.call("cuGraphLaunch", graph_exec, self.stream)

    def scale(self, src: int, dst: int, factor: int) -> None:
        values = (ctypes.c_uint64(src), ctypes.c_uint64(dst), ctypes.c_uint32(COUNT), ctypes.c_uint32(factor))
        params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        where = (1, 1, 1, COUNT, 1, 1, 0, self.stream)
        self.call("cuLaunchKernel", self.kernel, *where, ctypes.addressof(params), 0)

    def synchronize(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    # Copies go through the stream and are waited for: a plain copy from pageable memory may return before the
    # device has the bytes, and nothing orders it before work on a non-blocking stream.
    def write(self, dst: int, values: list[int]) -> None:
        host = (ctypes.c_uint32 * COUNT)(*values)
        self.call("cuMemcpyHtoDAsync", dst, ctypes.addressof(host), ctypes.sizeof(host), self.stream)
        self.synchronize()

    def read(self, src: int) -> list[int]:
        host = (ctypes.c_uint32 * COUNT)()
        self.call("cuMemcpyDtoHAsync", ctypes.addressof(host), src, ctypes.sizeof(host), self.stream)
        self.synchronize()
        return list(host)

    def alloc(self, nbytes: int) -> int:
        return int(self.call("cuMemAlloc", nbytes))

    def free(self, ptr: int) -> None:
        self.call("cuMemFree", ptr)

    def enter_thread(self) -> None:
        self.call("cuCtxSetCurrent", self.context)


# --- the question -------------------------------------------------------------------------------------


class Run:
    """One asking: every step with its result code, every line said."""

    def __init__(self, asker: Asker, say: Callable[[str], None] = print) -> None:
        self.asker, self.say = asker, say
        self.phase = "setup"
        self.steps: list[dict[str, object]] = []
        self.replays: list[dict[str, int]] = []

    def attempt(self, label: str, step: Callable[..., Any], *args: object) -> tuple[int, Any]:
        """Take a step; its result code, and what it returned."""
        value, code, result = None, 0, "CUDA_SUCCESS"
        try:
            value = step(*args)
        except Refused as refused:
            value, code, result = refused, refused.code, refused.name
        self.steps.append({"phase": self.phase, "step": label, "code": code, "result": result})
        self.say(f"  {label:<58} {result}{f' ({code})' if code else ''}")
        return code, value

    def step(self, label: str, step: Callable[..., Any], *args: object) -> Any:
        """Take a step that must succeed."""
        code, value = self.attempt(label, step, *args)
        if code:
            raise value
        return value

    def expect(self, label: str, wanted: int, step: Callable[..., Any], *args: object) -> None:
        """Take a step whose result code must be ``wanted``, or the mode is not what was asked for."""
        code, _ = self.attempt(label, step, *args)
        if code != wanted:
            raise CouldNotAsk(f"{label}: answered {code}, and in that mode it must answer {wanted}")

    def enter(self, phase: str, title: str) -> None:
        self.phase = phase
        self.say(title)


def put_the_question(run: Run) -> None:
    """Control, mode, question. Returns when legal; `Refused` in the phase "question" is the driver's no."""
    asker = run.asker
    x, y, t, out = (run.step(f"allocate {name}", asker.alloc, 4 * COUNT) for name in ("x", "y", "t", "out"))
    run.enter("control", "Control: one capture, nothing begun again")
    _control(run, x, y)
    run.enter("mode", "Mode, by behaviour")
    _prove_mode(run)
    run.enter("question", "The question: begin again in the middle of a forward")
    _rebegin(run, x, y, t, out)


def _segment(run: Run, name: str, work: Callable[[], None] | None) -> int:
    """Capture one segment, run it and return its exec."""
    run.step(f"{name}: begin capture", run.asker.begin_capture, THREAD_LOCAL)
    if work is not None:
        run.step(f"{name}: launch a kernel into it", work)
    status = run.step(f"{name}: ask the status", run.asker.capture_status)
    if status != ACTIVE:
        raise Refused(f"cuStreamIsCapturing ({name})", 0, f"status {status} in place of {ACTIVE}")
    graph = run.step(f"{name}: end capture", run.asker.end_capture)
    graph_exec: int = run.step(f"{name}: instantiate", run.asker.instantiate, graph)
    run.step(f"{name}: launch it", run.asker.launch, graph_exec)
    return graph_exec


def _control(run: Run, x: int, y: int) -> None:
    asker = run.asker
    run.step("write the input", asker.write, x, list(range(COUNT)))
    _segment(run, "control", lambda: asker.scale(x, y, 2))
    run.step("wait for it", asker.synchronize)
    if run.step("read the output", asker.read, y) != [2 * i for i in range(COUNT)]:
        raise CouldNotAsk("a single captured segment gives wrong values")


def _prove_mode(run: Run) -> None:
    asker = run.asker
    for mode, name, other in ((THREAD_LOCAL, "thread-local", 0), (GLOBAL, "global", UNSUPPORTED)):
        made: list[int] = []
        run.step(f"{name}: begin capture", asker.begin_capture, mode)
        run.expect(f"{name}: another thread allocates", other, lambda: made.append(_elsewhere(asker)))  # noqa: B023
        wanted = INVALIDATED if other else ACTIVE
        if run.step(f"{name}: ask the status", asker.capture_status) != wanted:
            raise CouldNotAsk(f"{name}: after that the status is not {wanted}")
        if not other:  # tells thread-local from relaxed, in which this is allowed too
            run.expect(f"{name}: this thread allocates", UNSUPPORTED, asker.alloc, 64)
        run.expect(f"{name}: end the invalidated capture", CAPTURE_INVALIDATED, asker.end_capture)
        for ptr in made:
            run.step(f"{name}: free what was allocated", asker.free, ptr)


def _elsewhere(asker: Asker) -> int:
    """Allocate in another thread; what that thread raises is raised here."""
    outcome: list[Any] = []

    def allocate() -> None:
        try:
            asker.enter_thread()
            outcome.append(asker.alloc(64))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return int(outcome[0])


def _rebegin(run: Run, x: int, y: int, t: int, out: int) -> None:
    asker = run.asker

    def add_three() -> None:
        asker.synchronize()
        asker.write(y, [value + 3 for value in asker.read(y)])

    run.step("write the input", asker.write, x, list(range(COUNT)))
    first = _segment(run, "segment 0 (y = x * 2)", lambda: asker.scale(x, y, 2))
    run.step("break: read y, add 3 on the host, write y", add_three)
    rest = [
        _segment(run, "segment 1 (t = y)", lambda: asker.scale(y, t, 1)),
        _segment(run, "segment 2 (no work)", None),
        _segment(run, "segment 3 (out = t)", lambda: asker.scale(t, out, 1)),
    ]
    _compare(run, "capture pass", 0, out)
    for base in BASES:
        replay = f"replay {base}"
        run.step(f"{replay}: write the input", asker.write, x, [base + i for i in range(COUNT)])
        run.step(f"{replay}: spoil the output", asker.write, out, [0xFFFFFFFF] * COUNT)
        run.step(f"{replay}: launch segment 0", asker.launch, first)
        run.step(f"{replay}: break", add_three)
        for number, graph_exec in enumerate(rest, 1):
            run.step(f"{replay}: launch segment {number}", asker.launch, graph_exec)
        run.replays.append({"base": base, "mismatches": _compare(run, replay, base, out)})
    if any(replay["mismatches"] for replay in run.replays):
        raise Refused("cuGraphLaunch", 0, "success, and the values are wrong")


def _compare(run: Run, label: str, base: int, out: int) -> int:
    values: list[int] = run.step(f"{label}: read the output", run.asker.read, out)
    mismatches = sum(value != (base + i) * 2 + 3 for i, value in enumerate(values))
    run.say(f"  {label}: {mismatches} of {COUNT} values differ from (base + i) * 2 + 3")
    return mismatches


def judge(run: Run) -> dict[str, object]:
    """Put the question; the verdict, with the call and code that decided it."""
    try:
        put_the_question(run)
    except Refused as refused:
        if run.phase != "question":
            return {"verdict": "COULD NOT ASK", "why": f"{run.phase}: {refused}"}
        return {"verdict": "ILLEGAL", "why": str(refused), "call": refused.call, "code": refused.code}
    except CouldNotAsk as error:
        return {"verdict": "COULD NOT ASK", "why": f"{run.phase}: {error}"}
    return {"verdict": "LEGAL"}


# --- what was really bound ----------------------------------------------------------------------------


def entry_points(asker: Asker) -> list[dict[str, object]]:
    """For each entry point the address that the bindings bound and the one that the driver names."""
    bound = _bound_pointers()
    per_thread = os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0").strip() not in ("", "0")
    flags = 2 if per_thread else 0  # CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, _DEFAULT
    found: list[dict[str, object]] = []
    for name, (version, key) in ENTRY_POINTS.items():
        version = max(version, 7000) if per_thread else version
        named = _proc_address(asker, name, version, flags)
        found.append({"call": name, "version": version, "flags": flags, "bound": bound.get(key), "named": named})
    begin = found[0]
    begin["without_mode"] = _proc_address(asker, "cuStreamBeginCapture", 10000, flags)
    if begin["bound"] and begin["bound"] == begin["without_mode"] != begin["named"]:
        raise CouldNotAsk("the bindings bound the cuStreamBeginCapture that takes no mode")
    return found


def _bound_pointers() -> dict[str, int]:
    """What the bindings say they bound, by their own names; empty where they do not say."""
    for module in ("cuda.bindings._internal.driver", "cuda.bindings._bindings.cydriver"):
        try:
            pointers = importlib.import_module(module)._inspect_function_pointers()
            return {"__" + key.lstrip("_"): int(pointer) for key, pointer in pointers.items()}
        except (ImportError, AttributeError, RuntimeError):
            continue
    return {}


def _proc_address(asker: Asker, name: str, version: int, flags: int) -> int:
    try:
        address, _ = asker.call("cuGetProcAddress", name.encode(), version, flags)
    except (Refused, CouldNotAsk):
        return 0
    return int(address or 0)


# --- the record ---------------------------------------------------------------------------------------


def driver_release() -> str:
    """The NVIDIA driver's own version, such as 580.159.04; "unknown" where it cannot be read."""
    with contextlib.suppress(OSError):
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
        if found:
            return found[0]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        lines = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.split()
        if lines:
            return lines[0]
    return "unknown"


def tree_state(path: Path, commit: str | None, dirty: bool | None) -> tuple[str, bool | None]:
    """The commit and dirtiness of the tree that holds ``path``, unless given."""
    commit = commit or os.environ.get("BREAKGRAPH_COMMIT")

    def git(*args: str) -> str | None:
        command = ["git", "-C", str(path.parent), *args]
        with contextlib.suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.stdout.strip() if done.returncode == 0 else None
        return None

    if commit is None and git("ls-files", "--error-unmatch", path.name) is not None:
        commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain")
        dirty = bool(changed) if dirty is None and changed is not None else dirty
    return commit or "unknown", dirty


def header(what: str, asker: Asker, args: argparse.Namespace, path: Path) -> dict[str, object]:
    """The fields that every record begins with."""
    commit, dirty = tree_state(path, args.commit, args.dirty)
    return {
        "what": what,
        "gpu": asker.gpu,
        "driver": driver_release(),
        "cuda": asker.version,
        "versions": {
            "cuda-bindings": importlib.import_module("cuda.bindings").__version__,
            "python": sys.version.split()[0],
        },
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join(["python", f"probes/{path.name}", *args.argv]),
    }


def add_tree_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that say which tree is measured, for a machine where it has no history."""
    parser.add_argument("--commit", help="git hash of the tree measured (default: ask git)")
    parser.add_argument("--dirty", action=argparse.BooleanOptionalAction, help="whether that tree had changes")
    parser.add_argument("--device", type=int, default=0, help="ordinal of the device to ask (default 0)")


def main(argv: list[str] | None = None) -> int:
    """Ask, print, and write the record. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    add_tree_flags(parser)
    args = parser.parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    if args.json and not args.json.parent.is_dir():
        parser.error(f"there is no folder {args.json.parent}")  # exits 2: a failure to write is no verdict
    path, lines = Path(__file__).resolve(), []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    record: dict[str, object] = {"mode": "thread_local", "probe_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    run = None
    try:
        asker = Asker(args.device)
        record = header("rebegin", asker, args, path) | record
        for field in ("gpu", "driver", "cuda", "versions", "commit", "probe_sha256"):
            say(f"{field}: {record[field]}")
        record["entry_points"] = points = entry_points(asker)
        say("Entry points (address bound by the bindings; address the driver names for that version)")
        for point in points:
            bound = f"{point['bound']:#x}" if point["bound"] else "not told"
            say(f"  {point['call']:<30} {bound:<18} {point['named']:#x} (CUDA {point['version']})")
        run = Run(asker, say)
        verdict = judge(run)
    except Exception as error:  # whatever it is, it is no verdict about the driver
        reason = str(error) if isinstance(error, CouldNotAsk) else f"{type(error).__name__}: {error}"
        verdict = {"verdict": "COULD NOT ASK", "why": reason}
    say(": ".join(str(verdict[key]) for key in ("verdict", "why") if key in verdict))
    if args.json:
        rows = [
            {"name": f"replay, base {r['base']}: mismatches", "value": r["mismatches"], "unit": "elements", "bound": 0}
            | {"holds": r["mismatches"] == 0}
            for r in (run.replays if run else [])
        ]
        record |= verdict | {"steps": run.steps if run else [], "rows": rows, "stdout": "\n".join(lines)}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return EXIT_CODES[str(verdict["verdict"])]


if __name__ == "__main__":
    sys.exit(main())
