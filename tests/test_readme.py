"""What a newcomer meets first in the README: a short program, and two commands. `test_docs.py` runs the programs."""

from __future__ import annotations

import re

from support import ROOT

README = (ROOT / "README.md").read_text()


def test_there_is_a_first_program_of_under_20_lines() -> None:
    first = re.search(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert first is not None
    assert len(first[1].splitlines()) < 20


def test_it_holds_the_two_commands_of_a_newcomer() -> None:
    """`.ci/run` finds them by the same pattern and runs them."""
    commands = re.findall(r"^pip install '\.\[[a-z]+\]' && .*$", README, re.MULTILINE)
    assert commands == ["pip install '.[demo]' && breakgraph demo", "pip install '.[test]' && pytest"]
