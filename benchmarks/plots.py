"""Draw what records say: a picture for each family, a panel for each thing compared.

    python -m benchmarks.plots benchmarks/records/speed-h200-580.json

Needs matplotlib (the extra `bench`), and no GPU. A picture lies beside its record: ``replay-h200-580.png``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks._launchers import AS_INSTALLED
from benchmarks._peers import FLOOR

__all__ = ["draw", "main"]

_Row = dict[str, Any]
_PANEL = (6.0, 4.2)  # inches
_WIDE = 2  # panels at most beside each other
_FAR = 8  # times the smallest value, from which on a scale is logarithmic


def main(argv: list[str] | None = None) -> int:
    """Draw the families of each record given. Returns 1 where there is no matplotlib."""
    parser = argparse.ArgumentParser(prog="benchmarks.plots", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    args = parser.parse_args(argv)
    try:
        import matplotlib as mpl
    except ImportError as error:
        print(f"no pictures: {error}; the extra `bench` installs it", file=sys.stderr)
        return 1
    mpl.use("Agg")
    for path in args.records:
        for picture in draw(path):
            print(picture)
    return 0


def draw(path: Path) -> list[Path]:
    """Write the pictures of one record beside it, and return their paths."""
    from matplotlib import pyplot

    found = json.loads(path.read_text())
    families: dict[str, dict[tuple[str, str], list[_Row]]] = {}
    for row in found["rows"]:
        if "arm" in row:
            panels = families.setdefault(row["family"], {})
            panels.setdefault((row["what"], row["unit"]), []).append(row)
    made = []
    for family, panels in families.items():
        wide = min(len(panels), _WIDE)
        high = math.ceil(len(panels) / wide)
        figure, axes = pyplot.subplots(
            high, wide, figsize=(_PANEL[0] * wide, _PANEL[1] * high), squeeze=False, layout="constrained"
        )
        for axis in axes.flat[len(panels) :]:
            axis.axis("off")
        for axis, ((what, _), rows) in zip(axes.flat, panels.items(), strict=False):
            (_lines if "at" in rows[0] else _bars)(axis, rows)
            axis.set_title(what)
        figure.suptitle(f"{family}: {found['gpu'] or 'the simulator'}, driver {found['driver']}, {found['date']}")
        target = path.with_name(f"{family}-{path.stem.partition('-')[2]}.png")
        figure.savefig(target, dpi=110)
        pyplot.close(figure)
        made.append(target)
    return made


def _lines(axis: Any, rows: list[_Row]) -> None:
    """A line for each arm over the sizes; what is measured of so many segments is drawn for one of them."""
    each = rows[0]["of"] == "segments"
    for arm in dict.fromkeys(row["arm"] for row in rows):
        of_arm = [row for row in rows if row["arm"] == arm]
        points = sorted((row["at"], row["value"] / (row["at"] if each else 1)) for row in of_arm)
        axis.plot(*zip(*points, strict=True), label=arm, **_style(arm))
    sizes = sorted({row["at"] for row in rows})
    values = [row["value"] for row in rows]
    if sizes[0] > 0:
        axis.set_xscale("log", base=2)
    if not each and min(values) > 0 and max(values) > _FAR * min(values):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.set_xlabel(rows[0]["of"])
    axis.set_ylabel(f"{rows[0]['unit']} for each segment" if each else rows[0]["unit"])
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _bars(axis: Any, rows: list[_Row]) -> None:
    bars = axis.barh([row["arm"] for row in rows], [row["value"] for row in rows])
    axis.bar_label(bars, labels=[f"{row['value']:,.3g}" for row in rows], padding=3)
    axis.set_xlabel(rows[0]["unit"])
    axis.invert_yaxis()
    axis.margins(x=0.15)


def _style(arm: str) -> dict[str, Any]:
    """The floor is dashed, breakgraph is thick."""
    if arm == FLOOR:
        return {"color": "black", "linestyle": "--"}
    return {"marker": "o", "markersize": 4, "linewidth": 2.5 if arm == AS_INSTALLED else 1.2}


if __name__ == "__main__":
    sys.exit(main())
