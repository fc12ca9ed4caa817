"""Write the figures that the README shows, from the records: nobody types one.

    python -m benchmarks.figures            write the block of the README anew
    python -m benchmarks.figures --check    exit 1 where the README says something else

The block lies between two marks. A record that is not there yet is left out; one that lacks a row is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["block", "main"]

_ROOT = Path(__file__).resolve().parent.parent
_README = _ROOT / "README.md"
_RECORDS = Path("benchmarks", "records")
_BEGIN, _END = "<!-- figures: python -m benchmarks.figures -->", "<!-- end of figures -->"
_BLOCK = re.compile(f"{re.escape(_BEGIN)}\n.*?{re.escape(_END)}", re.DOTALL)


class Figure(NamedTuple):
    """What the README says of one row."""

    row: str
    text: str


_PEER = "`breakable-cuda-graphs`"

#: Which rows of which record, in the order of the README.
FIGURES: dict[str, tuple[Figure, ...]] = {
    "speed-h200-580": (
        Figure(
            "replay, the call, 65 segments: breakgraph/C loop",
            "replay of 65 one-kernel segments and 64 breaks that do nothing / a C loop that launches the same graphs",
        ),
        Figure("replay, the call, 65 segments: breakgraph, no extension/C loop", "the same without the C extension"),
        Figure("replay, the call, 65 segments: breakgraph/breakable-cuda-graphs", f"the same / {_PEER}"),
        Figure(
            "99th percentile beside 2 busy threads/quiet median: breakgraph",
            "the same beside two Python threads that compute, 99th percentile / the median without them",
        ),
        Figure("99th percentile beside 2 busy threads/quiet median: C loop", "the C loop beside them"),
        Figure(
            "break whose result lands/bare copy in a loop",
            "landing a break's result of 4 KiB in its destination / one `cuMemcpyDtoDAsync`",
        ),
        Figure(
            "f(x), extra time: breakgraph/breakable-cuda-graphs",
            f"what a break point adds to a call outside a capture / what {_PEER} adds",
        ),
        Figure("capture, 65 segments: breakgraph/breakable-cuda-graphs", f"capture of 65 segments / {_PEER}"),
        Figure(
            "forward on cupy's arrays, 512 wide, with the wait, 16 tokens: breakgraph/eager",
            "a transformer of 24 layers, 512 wide, over 16 tokens, attention a break: replay / eager",
        ),
        Figure("forward on cupy's arrays, 512 wide, with the wait, 512 tokens: breakgraph/eager", "over 512 tokens"),
    ),
    "speed-slow-h200-580": (
        Figure(
            "replay, the call, 65 segments: breakgraph/C loop",
            "with the host's clock in its slow state: replay / C loop",
        ),
        Figure("replay, the call, 65 segments: breakgraph, no extension/C loop", "the same without the C extension"),
        Figure(
            "replay, the call, 65 segments: ctypes loop/C loop", "a loop of `ctypes` launches and breaks alone / C loop"
        ),
        Figure("replay, the call, 65 segments: breakgraph/breakable-cuda-graphs", f"replay / {_PEER}"),
        Figure(
            "99th percentile beside 2 busy threads/quiet median: breakgraph",
            "replay beside two busy threads, 99th percentile / the median without them",
        ),
        Figure("99th percentile beside 2 busy threads/quiet median: C loop", "the C loop beside them"),
        Figure("capture, 65 segments: breakgraph/breakable-cuda-graphs", f"capture of 65 segments / {_PEER}"),
    ),
    "memory-h200-580": (
        Figure(
            "widths 1024 2048 4096: mapped/eager peak, worst order",
            "memory of one forward captured at 4 sizes, in the worst order / its eager peak at the largest",
        ),
        Figure("one cache/one size", "device memory of the execs of 16 sizes that share a cache / of one size"),
        Figure("no cache/one size", "the same without a cache"),
    ),
}


def block() -> str:
    """What the README has between the marks, the marks included.

    Raises `KeyError` where a record lacks a row.
    """
    return "\n".join([_BEGIN, "", *_lines(), _END])


def _lines() -> Iterator[str]:
    for name, figures in FIGURES.items():
        path = _RECORDS / f"{name}.json"
        if not (_ROOT / path).exists():
            continue
        record = json.loads((_ROOT / path).read_text())
        rows = {row["name"]: row for row in record["rows"]}
        yield f"| {record['gpu']}, driver {record['driver']}: [{name}]({path.as_posix()}) | measured | aim, at most |"
        yield "|---|---|---|"
        for figure in figures:
            row = rows[figure.row]
            yield f"| {figure.text} | {_number(row['value'])} | {_number(row['bound']) if 'bound' in row else ''} |"
        yield ""


def main(argv: list[str] | None = None) -> int:
    """Write the block, or check it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.figures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    before = _README.read_text()
    after, found = _BLOCK.subn(lambda _: block(), before)
    if found != 1:
        raise ValueError(f"{_README.name} has {found} blocks between {_BEGIN} and {_END}, not 1")
    if args.check:
        return int(before != after)
    _README.write_text(after)
    return 0


def _number(value: Any) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
