"""What README and guide show is true: programs print what they say, links and navigation lead somewhere, and each error
has an example that raises it and, mended, does not.

`test_site.py` builds the guide, which needs more than the base install.
"""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, child

import breakgraph as bg

DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
DRAWINGS = sorted((DOCS / "images").glob("*.svg"))

_spec = importlib.util.spec_from_file_location("make_errors", DOCS / "make_errors.py")
assert _spec is not None
assert _spec.loader is not None
make_errors = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_errors)


def found(pattern: str, flags: int = 0) -> list[Any]:
    """What a pattern finds on each page, with the page and its place there as the test's id."""
    return [
        pytest.param(page, text, id=f"{page.stem}-{at}")
        for page in PAGES
        for at, text in enumerate(re.findall(pattern, page.read_text(), flags))
    ]


PROGRAMS = found(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINKS = found(r"\]\((?!https?:)([^)]+)\)")


# --- programs and links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "program"), PROGRAMS)
def test_a_program_runs_as_printed_and_prints_what_it_says(driver: Any, page: Path, program: str) -> None:
    promised = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert promised, f"a program in {page.name} shows what it prints"
    done = child(program, driver=driver.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised


def test_a_forward_that_forks_runs_with_capture_switched_off_too() -> None:
    (program,) = (param.values[1] for param in PROGRAMS if "driver.stream_wait_event(" in param.values[1])
    eager = program.partition("x.set(")[0] + "driver.stream_synchronize(int(side))\nprint(graph.state, out.get())\n"
    done = child(eager, BREAKGRAPH_DISABLE="1")
    assert done.stdout == "inert [4. 4. 4. 4.]\n", done.stderr


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_a_link_leads_to_something_in_the_checkout(page: Path, link: str) -> None:
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    assert target.exists()
    assert not anchor or anchor in anchors(target)


def anchors(page: Path) -> list[str]:
    """The anchors of a page's headings, as code hosts make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_navigation_names_each_page_once() -> None:
    named = re.findall(r"(?:root|file): (\S+)", (DOCS / "_toc.yml").read_text())
    pages = [page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*") if is_page(page)]
    assert sorted(named) == sorted(pages)


def is_page(file: Path) -> bool:
    return file.suffix in (".md", ".rst")


def test_the_first_page_leads_to_each_page_that_a_code_host_shows() -> None:
    links = {(page.parent / link.partition("#")[0]).resolve() for page, link in (param.values for param in LINKS)}
    index = {(DOCS / link).resolve() for page, link in (param.values for param in LINKS) if page.stem == "index"}
    assert index >= set(PAGES) - {DOCS / "index.md"}
    assert set(DRAWINGS) <= links, "each drawing is on a page"


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.stem)
def test_a_drawing_tells_what_it_shows_and_has_the_style_of_all(drawing: Path) -> None:
    svg = "{http://www.w3.org/2000/svg}"
    root, first = ET.parse(drawing).getroot(), ET.parse(DRAWINGS[0]).getroot()
    style = root.findtext(svg + "style") or ""
    assert len(root.findtext(svg + "title") or "") > 40
    assert style == first.findtext(svg + "style")
    assert "prefers-color-scheme: dark" in style


# --- errors ---------------------------------------------------------------------------------------------------


def test_each_exception_has_an_example() -> None:
    exceptions = {name for name in bg.errors.__all__ if isinstance(getattr(bg.errors, name), type)}
    assert set(make_errors.EXAMPLES) == exceptions


def test_the_page_of_errors_is_what_its_generator_writes() -> None:
    """It runs each example, and stops at one that does not raise its exception."""
    assert make_errors.page() == (DOCS / "errors.md").read_text(), "run python docs/make_errors.py"


@pytest.mark.parametrize("name", make_errors.EXAMPLES)
def test_an_example_once_mended_raises_and_warns_of_nothing(name: str) -> None:
    assert make_errors.run(make_errors.EXAMPLES[name]["mended"]) == ""


def test_an_example_that_raises_something_else_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(make_errors.EXAMPLES, "ShapeMismatch", make_errors.EXAMPLES["DTypeMismatch"])
    with pytest.raises(SystemExit, match="does not raise it"):
        make_errors.message("ShapeMismatch")
