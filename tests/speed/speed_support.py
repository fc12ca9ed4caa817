"""What the tests of the speed benchmarks share: the benchmarks on the path, and reports that were made of nothing."""

from __future__ import annotations

import sys

from support import ROOT

sys.path.append(str(ROOT))

from benchmarks._report import Report


def report() -> Report:
    """A report with a part open to add to."""
    made = Report("speed", ["python", "-m", "benchmarks"])
    with made.part("a part", family="replay"):
        pass
    return made
