"""The guide builds without a warning, works without a network, and its reference has every public name."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

import breakgraph as bg

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide, with warnings as errors: links, anchors, references in docstrings, pages outside the navigation."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "doctrees"), "docs", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def reference(site: Path) -> dict[str, str]:
    """The names in the reference, and what each is: ``method``, ``class``, ..."""
    from sphinx.util.inventory import InventoryFile

    kinds = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name: kind[3:] for kind, names in kinds.items() if kind.startswith("py:") for name in names}


def test_every_public_name_is_in_the_reference(reference: dict[str, str]) -> None:
    expected = {f"breakgraph.{name}" for name in bg.__all__}
    expected |= {f"breakgraph.errors.{name}" for name in bg.errors.__all__}
    expected |= {f"breakgraph.inspect.{name}" for name in bg.inspect.__all__}
    expected |= {f"breakgraph.frameworks.Framework.{name}" for name in vars(bg.frameworks.Framework) if name[0] != "_"}
    assert expected - reference.keys() == set()


def test_what_people_call_speaks_of_each_of_its_parameters(reference: dict[str, str]) -> None:
    """In its docstring. The driver's calls are CUDA's own, whose manual does."""
    silent = []
    for name, kind in reference.items():
        if kind not in ("function", "method") or name.startswith(("breakgraph.driver.", "breakgraph.errors.")):
            continue
        called = pkgutil.resolve_name(name)
        said = inspect.getdoc(called) or ""
        parameters = set(inspect.signature(called).parameters) - {"self", "args", "kwargs"}
        silent += [(name, one) for one in parameters if not re.search(rf"\b{one}\b", said)]
    assert silent == []
    assert reference["breakgraph.BreakableGraph.replay"] == "method"


def test_no_page_needs_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    loaded = r'<(?:script|img|iframe)[^>]+src="(https?:[^"]*)|<link[^>]+href="(https?:[^"]*)'
    assert [(page.name, found) for page in pages for found in re.findall(loaded, page.read_text())] == []
    assert [style for style in site.rglob("*.css") if re.search(r"url\(['\"]?https?:", style.read_text())] == []
    assert len(pages) > 20
