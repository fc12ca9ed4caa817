"""How Sphinx makes the guide of the pages beside this file: ``sphinx-build -W --keep-going docs SITE``."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref

import breakgraph

project = "breakgraph"
author = "the breakgraph authors"
release = breakgraph.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_external_toc"]
# The pages are plain Markdown, which code hosts show too, so navigation is a file of its own and anchors are as theirs.
external_toc_path = "_toc.yml"
myst_heading_anchors = 3

# A name in single backticks of a docstring is a reference; with `nitpicky` one that leads nowhere fails the build.
# Pages beside it have names that no Python object has: `any` would find them too.
default_role = "any"
nitpicky = True
nitpick_ignore = [("any", name) for name in dir(builtins)]
nitpick_ignore_regex = [  # their pages are not ours, and there is no network; and type variables
    (r"any|py:.*", r"(collections|contextlib|json|numpy|os|types|typing)\..*"),
    (r"py:.*", r"([PRT]|breakgraph\..*\.[PRT])"),
    (r"py:class", r"breakgraph\.segments\.replay\.Replay"),  # the room's own business
]

autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # autodoc does
python_maximum_signature_line_length = 100

html_theme = "furo"  # needs nothing from the network
html_title = "breakgraph"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("doctree-read", _unlink_what_is_not_here)


def _unlink_what_is_not_here(app: Any, doctree: Any) -> None:
    """A page's link to a directory of the checkout, or to its README, leads somewhere on a code host only."""
    docs = Path(app.srcdir)
    for node in list(doctree.findall(pending_xref)):
        target = (docs / app.env.docname).parent.joinpath(node["reftarget"]).resolve()
        outside = node["reftype"] == "myst" and not target.is_relative_to(docs)
        if outside and (target.is_dir() or target.with_suffix(".md").is_file()):
            node.replace_self(node[0])
