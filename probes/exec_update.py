"""Ask the driver what updating an instantiated graph in place (cuGraphExecUpdate) does, and what it costs.

What is taken and what is refused; whether a launch made before the update keeps its work; whether an exec whose
update was refused keeps all of its old work; whether the calls around it are legal beside an open capture; times and
device memory. Captures are in thread-local mode on non-blocking streams unless a row says otherwise.

    python probes/exec_update.py --json probes/records/exec-update-h200-580.json

Needs ``cuda-bindings``. Exit 0: asked, and everything is as documented. Exit 1: something is not, or a question
could not be put to its end. Exit 2: could not ask.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: the siblings are the package that this folder is
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    __package__ = Path(__file__).resolve().parent.name

from ._exec_update_bench import Bench
from ._exec_update_questions import QUESTIONS, Rows
from .rebegin import Asker, CouldNotAsk, Refused, add_tree_flags, header

EXIT_COULD_NOT_ASK = 2


def ask(bench: Bench) -> list[dict[str, Any]]:
    """Put every question; the rows. One that fails says so in a row, and the next is put all the same."""
    rows = Rows()
    for question, put in QUESTIONS.items():
        try:
            bench.fresh_streams()
            put(bench, rows)
        except Refused as refused:
            rows.add(f"{question}: not put to its end", refused.code, "CUresult", 0, error=str(refused))
            bench.give_up_captures()
    return rows.rows


def line(row: dict[str, Any]) -> str:
    """A row as a person reads it."""
    value = f"{row['value']} {row['unit']}" + (f" {row['result']}" if "result" in row else "")
    verdict = "" if "holds" not in row else "as expected" if row["holds"] else f"EXPECTED {row['expected']}"
    return f"{row['name']:<100} {value:<45} {verdict}".rstrip()


def main(argv: list[str] | None = None) -> int:
    """Ask, print, and write the record. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    add_tree_flags(parser)
    args = parser.parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    if args.json and not args.json.parent.is_dir():
        parser.error(f"there is no folder {args.json.parent}")  # exits 2: a failure to write is no verdict
    try:
        asker = Asker(args.device)
        rows = ask(Bench(asker))
    except (CouldNotAsk, Refused) as error:
        print(f"COULD NOT ASK: {error}")
        return EXIT_COULD_NOT_ASK
    stdout = "\n".join(map(line, rows))
    print(stdout)
    if args.json:
        record = header("exec-update", asker, args, Path(__file__).resolve())
        args.json.write_text(json.dumps(record | {"rows": rows, "stdout": stdout}, indent=1) + "\n")
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
