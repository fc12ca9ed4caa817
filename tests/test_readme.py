"""What the README shows is true: its programs run as printed and print what it says, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, child

README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LINKS = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)


def test_there_is_a_first_program_of_under_20_lines() -> None:
    assert PROGRAMS
    assert len(PROGRAMS[0].splitlines()) < 20


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_runs_as_printed_and_prints_what_it_says(driver: Any, program: str) -> None:
    promised = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert promised, "a program in the README shows what it prints"
    done = child(program, driver=driver.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised


@pytest.mark.parametrize("link", LINKS)
def test_a_link_leads_to_something_in_the_checkout(link: str) -> None:
    assert (ROOT / Path(link)).exists()


def test_it_holds_the_two_commands_of_a_newcomer() -> None:
    """`.ci/run` finds them by the same pattern and runs them."""
    commands = re.findall(r"^pip install '\.\[[a-z]+\]' && .*$", README, re.MULTILINE)
    assert commands == ["pip install '.[demo]' && breakgraph demo", "pip install '.[test]' && pytest"]
