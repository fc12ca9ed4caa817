"""What README and docs/ show is true: programs run as printed and print what they say, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, child

README = (ROOT / "README.md").read_text()
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def found(pattern: str, flags: int = 0) -> list[Any]:
    """What a pattern finds on each page, with the page and its place there as the test's id."""
    return [
        pytest.param(page, text, id=f"{page.stem}-{at}")
        for page in PAGES
        for at, text in enumerate(re.findall(pattern, page.read_text(), flags))
    ]


PROGRAMS = found(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINKS = found(r"\]\((?!https?:)([^)#]+)\)")


def test_there_is_a_first_program_of_under_20_lines() -> None:
    _, program = PROGRAMS[0].values
    assert len(program.splitlines()) < 20


@pytest.mark.parametrize(("page", "program"), PROGRAMS)
def test_a_program_runs_as_printed_and_prints_what_it_says(driver: Any, page: Path, program: str) -> None:
    promised = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert promised, f"a program in {page.name} shows what it prints"
    done = child(program, driver=driver.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised


def test_a_forward_that_forks_runs_with_capture_switched_off_too() -> None:
    (program,) = (param.values[1] for param in PROGRAMS if "stream_wait_event" in param.values[1])
    eager = program.partition("x.set(")[0] + "driver.stream_synchronize(int(side))\nprint(graph.state, out.get())\n"
    done = child(eager, BREAKGRAPH_DISABLE="1")
    assert done.stdout == "inert [4. 4. 4. 4.]\n", done.stderr


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_a_link_leads_to_something_in_the_checkout(page: Path, link: str) -> None:
    assert (page.parent / link).exists()


def test_it_holds_the_two_commands_of_a_newcomer() -> None:
    """`.ci/run` finds them by the same pattern and runs them."""
    commands = re.findall(r"^pip install '\.\[[a-z]+\]' && .*$", README, re.MULTILINE)
    assert commands == ["pip install '.[demo]' && breakgraph demo", "pip install '.[test]' && pytest"]
