"""A stranger's framework, by the worked example: examples/own_framework.py does what docs/frameworks.md says of it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, nothing_captured

import breakgraph as bg
from breakgraph import frameworks
from breakgraph.errors import CaptureUnsupported
from breakgraph.frameworks import ScopedStreams

sys.path.append(str(ROOT / "examples"))
from own_framework import Vector, VectorFramework, runtime


@pytest.fixture
def vectors(sim: Any) -> None:
    frameworks.register(VectorFramework())


def test_the_example_runs_by_one_command_and_says_what_it_found(tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKGRAPH_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "own_framework.py")],
        env={**inherited, "BREAKGRAPH_DRIVER": "sim"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "[4, 0, -1] -> [25.5, 5.5, 0.5]" in done.stdout
    assert "scaled_by_its_largest" in done.stdout


@pytest.mark.usefixtures("vectors")
def test_segments_allocate_from_the_arena_and_breaks_do_not() -> None:
    x, arena, made = Vector.of([1, 2]), bg.Arena(), []
    with bg.capture(arena=arena) as graph:
        t = x + 1
        bg.break_here(lambda: made.append(x * 2), bg.IN_PLACE)
    assert type(t.memory).__name__ == "ArenaBlock"
    assert type(made[0].memory).__name__ == "Memory"
    assert graph.segments[0].allocations == 1
    assert type((x + 1).memory).__name__ == "Memory", "as it was before"
    graph.close()


@nothing_captured
@pytest.mark.usefixtures("vectors")
def test_a_vector_that_a_break_returns_comes_back_as_one_and_owns_its_block() -> None:
    x, arena = Vector.of([1, 2]), bg.Arena()
    with bg.capture(arena=arena) as graph:
        y = bg.break_here(lambda a: a * 10, bg.INFER, x)
    assert type(y) is Vector
    x.set([3, 4])
    graph.replay()
    assert y.get() == [30, 40]
    used = arena.used
    del y
    gc.collect()
    assert arena.used < used
    graph.close()


@pytest.mark.usefixtures("vectors")
def test_its_current_stream_is_the_captures_and_the_replays(sim: Any) -> None:
    x, seen, mine = Vector.of([1, 2]), [], sim.create_stream()
    with bg.capture() as graph:
        seen.append((runtime.stream, int(bg.current_stream() or 0)))
        bg.break_here(lambda a: seen.append((runtime.stream, int(bg.current_stream() or 0))), bg.IN_PLACE, x + 1)
    graph.replay(stream=mine)
    assert all(one == other for one, other in seen)
    assert seen[2][0] == mine.handle
    assert runtime.stream == 0
    graph.close()


def test_without_the_framework_its_allocations_are_refused_in_a_segment(sim: Any) -> None:
    """So the example shows something."""
    x = Vector.of([1, 2])
    with pytest.raises(CaptureUnsupported), bg.capture():
        x + 1


def test_the_page_shows_the_framework_as_it_is() -> None:
    code = (ROOT / "examples" / "own_framework.py").read_text()
    page = (ROOT / "docs" / "frameworks.md").read_text()
    shown = page.split("```py\nclass VectorFramework")[1].split("```")[0]
    assert f"class VectorFramework{shown}".strip() in code


class Scoped(ScopedStreams, VectorFramework):
    """A library without a current stream, whose scope is more than the library's default one."""

    name = "scoped"

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[int] = []

    def owns(self, obj: object) -> bool:
        return False

    def stream_scope(self, stream: int) -> Any:
        self.entered.append(stream)
        return super().stream_scope(stream)


def test_a_scope_of_ones_own_is_entered_at_each_replay(sim: Any) -> None:
    scoped = Scoped()
    frameworks.register(scoped)
    with bg.capture(frameworks=("sim", "scoped")) as graph:
        bg.break_graph()
        sim.memset_d8_async(bg.Cell((4,), "float32").ptr, 0, 16, int(bg.current_stream() or 0))
    scoped.entered.clear()
    graph.replay()
    graph.replay(valid_rows=1)
    assert len(scoped.entered) == 2
