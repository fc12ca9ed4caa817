"""Write the snapshot of the installed ``cuda-bindings``: ``python tests/cuda_driver/make_surface.py``.

Run once in an environment with 12.9 and once in one with 13.x, whenever ``cuda.py`` or a probe asks for more.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from surface import PROBES, SNAPSHOTS, SOURCES, asked_by, functions_named_in, surface_of


def main() -> None:
    """Take the snapshot and write it beside this file."""
    bindings = import_module("cuda.bindings.driver")
    asked = asked_by(SOURCES)
    functions = asked.functions | functions_named_in(PROBES)
    snapshot = surface_of(bindings, version("cuda-bindings"), functions, asked.types)
    path = SNAPSHOTS[snapshot["CUDA_VERSION"] // 1000]
    path.write_text(json.dumps(snapshot, indent=1) + "\n")
    print(f"{path.name}: {len(snapshot['functions'])} functions, {len(snapshot['types'])} types")


if __name__ == "__main__":
    main()
