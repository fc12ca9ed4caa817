"""``BREAKGRAPH_NVTX=1`` puts an NVTX range around each step of every replay; without it nothing is called.

Each case runs in a process of its own, since the environment is read once; a module in place of nvtx notes its calls.
"""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest
from support import ROOT, child

FORWARD = """
    import numpy as np
    import breakgraph as bg

    xp = bg.array_namespace()
    x, out = xp.zeros(4, np.float32), xp.zeros(4, np.float32)
    fails = []

    def double(a):
        if fails:
            raise RuntimeError("planted")
        return a * 2

    with bg.capture() as graph:
        np.add(bg.break_here(double, bg.INFER, x + 1), 3, out=out)
"""
NOTING = """
    notes = []

    class Domain:
        def get_event_attributes(self, message):
            return message

        def push_range(self, attributes):
            notes.append(attributes)

        def pop_range(self):
            notes.append("pop")

    def get_domain(name):
        notes.append(name)
        return Domain()
"""


@pytest.fixture
def noting(tmp_path: Path) -> str:
    """A PYTHONPATH with a module nvtx that notes what it is asked for."""
    (tmp_path / "nvtx.py").write_text(textwrap.dedent(NOTING))
    return f"{tmp_path}:{ROOT}"


def run(source: str, path: str = "", **environment: str) -> list[str]:
    prefix = f"import sys\nsys.path[:0] = {path.split(':')!r}\n" if path else ""
    done = child(prefix + textwrap.dedent(FORWARD) + textwrap.dedent(source), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_step_of_a_replay_has_a_range(noting: str) -> None:
    told = run(
        """
        import nvtx
        graph.replay()
        graph.replay(valid_rows=2)
        print(nvtx.notes[0], nvtx.notes[1:] == 2 * ["segment 0", "pop", "break 0 double", "pop", "segment 1", "pop"])
        print(out.get())
        """,
        noting,
        BREAKGRAPH_NVTX="1",
    )
    assert told == ["breakgraph True", "[5. 5. 3. 3.]"]


def test_a_break_that_raises_leaves_no_range_open(noting: str) -> None:
    told = run(
        """
        import nvtx
        del nvtx.notes[:]
        fails.append(1)
        for given in ({}, {"stream": graph.capture_stream}):
            try:
                graph.replay(**given)
            except RuntimeError:
                print(nvtx.notes)
            del nvtx.notes[:]
        fails.clear()
        graph.replay()
        print(len(nvtx.notes), out.get())
        """,
        noting,
        BREAKGRAPH_NVTX="1",
    )
    assert told == [str(["segment 0", "pop", "break 0 double", "pop"])] * 2 + ["6 [5. 5. 5. 5.]"]


def test_a_profile_has_them_too(noting: str) -> None:
    told = run(
        """
        import nvtx
        profile = graph.profile(1)
        print(nvtx.notes.count("break 0 double") == profile.replays, nvtx.notes.count("pop") == 3 * profile.replays)
        """,
        noting,
        BREAKGRAPH_NVTX="1",
    )
    assert told == ["True True"]


@pytest.mark.parametrize("value", ["", "0"])
def test_nvtx_is_not_imported_unless_asked_for(noting: str, value: str) -> None:
    assert run("graph.replay()\nimport sys\nprint('nvtx' in sys.modules)", noting, BREAKGRAPH_NVTX=value) == ["False"]


def test_where_nvtx_is_not_installed_a_warning_says_so_and_replays_go_on() -> None:
    source = """
        graph.replay()
        print(out.get())
    """
    hide = "import sys\nsys.modules['nvtx'] = None\n"
    done = child(hide + textwrap.dedent(FORWARD) + textwrap.dedent(source), BREAKGRAPH_NVTX="1")
    assert done.stdout == "[5. 5. 5. 5.]\n", done.stderr
    assert done.stderr.count("pip install 'breakgraph[nvtx]'") == 1


def test_the_installed_nvtx_takes_what_it_is_given() -> None:
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("nvtx is not installed: the extra `nvtx` brings it")
    assert run("graph.replay()\nprint(out.get())", BREAKGRAPH_NVTX="1") == ["[5. 5. 5. 5.]"]
