"""Where a machine lacks what a recipe needs, the recipe says what, and ends with exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import breakgraph as bg
from breakgraph.errors import BreakgraphError, DriverNotFound

__all__ = ["needed"]


@contextmanager
def needed(*, gpu: bool = True) -> Iterator[None]:
    """What the block imports and asks for, and a driver: the simulator will do if ``gpu`` is false."""
    try:
        if bg.driver.current().name == "sim" and gpu:
            raise BreakgraphError("it launches machine code, and the simulator runs Python functions as kernels")
        yield
        torch = sys.modules.get("torch")
        if torch is not None and not torch.cuda.is_available():
            raise BreakgraphError("this torch finds no GPU")
    except (BreakgraphError, ImportError) as error:
        if gpu and isinstance(error, DriverNotFound):
            error.remedy = "run it on a machine with a GPU"
        print(f"{Path(sys.argv[0]).stem}: cannot run here: {error}", file=sys.stderr)
        sys.exit(2)
