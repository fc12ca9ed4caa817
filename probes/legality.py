"""Measure which calls are legal beside an open stream capture, on the driver met here.

Three tables: single calls by mode, thread and kind of stream; cases of a library's life inside a capture;
sequences that span captures and threads. Each row starts from fresh streams, memory and graphs; rows run in
child processes, so that one that crashes, hangs or loses its context is recorded as that and spoils no other.

    python probes/legality.py --out probes/records          measure, write three records
    python probes/legality.py --compare RECORD ...          measure, print what differs

Needs ``cuda-bindings``. Exit 0: measured, and the same as what it was compared with. Exit 1: something
differs. Exit 2: could not ask.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

if not __package__:  # run as a script: the siblings are the package that this folder is
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    __package__ = Path(__file__).resolve().parent.name

from . import _legality_calls, _legality_cases, _legality_sequences
from ._legality_bench import Row
from ._legality_compare import differences, load, rows_of, table_of
from .rebegin import Asker, CouldNotAsk, add_tree_flags, header

TABLES: dict[str, ModuleType] = {
    "capture-legality": _legality_calls,
    "capture-cases": _legality_cases,
    "capture-sequences": _legality_sequences,
}
CHILD_LIMIT = 60.0  # seconds for one group of rows; each takes a second or two
BARREN_LIMIT = 3  # children in a row that may end without a single answer before the measurement is given up
#: Rows after which a child ends, since a capture whose stream is gone can be neither asked nor ended.
SPOILING = {"cuStreamDestroy(self)", "cuStreamDestroy(capturing)"}


def main(argv: list[str] | None = None) -> int:
    """Measure or compare. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the three records into this folder")
    parser.add_argument("--compare", type=Path, nargs="+", action="extend", default=[], metavar="FILE")
    parser.add_argument("--child", nargs=3, metavar=("TABLE", "START", "FILE"), help=argparse.SUPPRESS)
    add_tree_flags(parser)
    args = parser.parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    try:
        if args.child:
            return _child(args.device, args.child[0], int(args.child[1]), Path(args.child[2]))
        known = [load(path) for path in args.compare]
        measured = measure_all(args)
        return _report(
            [(path.name, old, measured[table_of(old)]) for path, old in zip(args.compare, known, strict=True)]
        )
    except (CouldNotAsk, OSError, ValueError) as error:
        print(f"COULD NOT ASK: {error}")
        return 2


def measure_all(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure the three tables and write their records if a folder was given."""
    asker = Asker(args.device)
    records: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    for table, module in TABLES.items():
        head = header(table, asker, args, Path(__file__).resolve())
        if not lines:
            lines.append(f"{head['gpu']}, driver {head['driver']}, CUDA {head['cuda']}, {head['versions']}")
            print(lines[0], flush=True)
        started = time.monotonic()
        rows = _measure_table(table, args.device)
        failed = [row for row in rows if "error" in row]
        said = [f"{table}: {len(rows)} rows in {time.monotonic() - started:.1f} s, {len(failed)} could not be asked"]
        said += [f"  {row.get('call') or row.get('case')}, {row.get('mode', '')}: {row['error']}" for row in failed]
        print("\n".join(said), flush=True)
        key = "cases" if table == "capture-sequences" else "rows"
        records[table] = {**head, "how": module.HOW, key: rows, "stdout": "\n".join([lines[0], *said])}
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        for table, record in records.items():
            path = args.out / f"{table}-{_slug(str(record['gpu']), str(record['driver']))}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(f"wrote {path}")
    return records


def _slug(gpu: str, driver: str) -> str:
    model = re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
    return f"{model}-{driver.partition('.')[0]}"


# --- child processes ----------------------------------------------------------------------------------


def _measure_table(table: str, device: int) -> list[Row]:
    """Run children until every row has an answer or the reason why it has none."""
    wanted: list[Row] = TABLES[table].ROWS
    rows: list[Row] = []
    barren = 0
    with tempfile.TemporaryDirectory() as folder:
        while len(rows) < len(wanted):
            answers = Path(folder) / f"{len(rows)}.jsonl"
            command = [sys.executable, str(Path(__file__).resolve()), "--device", str(device)]
            command += ["--child", table, str(len(rows)), str(answers)]
            ended = _run(command)
            made = [json.loads(line) for line in answers.read_text().splitlines()] if answers.exists() else []
            rows += made
            barren = 0 if made else barren + 1
            if barren == BARREN_LIMIT or not (made or ended):
                raise CouldNotAsk(f"{table}: child processes give no answers: {ended or 'no reason given'}")
            if ended and len(rows) < len(wanted):  # it died in the row that follows its last answer
                rows.append(wanted[len(rows)] | {"result": "NO ANSWER", "error": ended})
    return rows


def _run(command: list[str]) -> str:
    """Run a child; empty if it ended well, else how it ended."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return f"the process did not end within {CHILD_LIMIT:.0f} s"
    if done.returncode == 0:
        return ""
    tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
    return f"the process ended with {done.returncode}: {''.join(tail)}"


def _child(device: int, table: str, start: int, answers: Path) -> int:
    """Measure rows from ``start`` on, one line of JSON each, until the group ends or the process is spoiled."""
    module = TABLES[table]
    rows: list[Row] = module.ROWS
    asker = Asker(device)
    group = {key: rows[start].get(key) for key in ("caller", "capture_stream", "mode")}
    with answers.open("w") as lines:
        for row in rows[start:]:
            if any(row.get(key) != value for key, value in group.items()):
                break
            try:
                answer, spoiled = module.measure(asker, row), (row.get("call") or row.get("case")) in SPOILING
            except Exception as error:  # the row's own failure is its answer; the process may be in any state
                answer, spoiled = row | {"result": "NO ANSWER", "error": f"{type(error).__name__}: {error}"}, True
            print(json.dumps(answer), file=lines, flush=True)
            if spoiled or not _sound(asker):
                break
    return 0


def _sound(asker: Asker) -> bool:
    """Whether the context still works and no capture is left open in it."""
    try:
        asker.call("cuCtxSynchronize")
    except Exception:
        return False
    return True


# --- the report ---------------------------------------------------------------------------------------


def _report(pairs: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> int:
    """Print what differs in each pair; 1 if anything does."""
    found = False
    for name, before, now in pairs:
        lines = differences(before, now)
        found = found or bool(lines)
        print(f"{name}: {len(rows_of(before))} rows, {len(lines)} differences")
        for line in lines:
            print(f"  {line}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
