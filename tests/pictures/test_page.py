"""The page is one file that asks for nothing else, and what it shows is data in it, never markup or script.

What it does in a browser is in test_page_in_chromium.py. The table for notebooks is here too.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from pictures_support import HOSTILE, decoder, hostile, small, times_of

import breakgraph as bg
from breakgraph.inspect import describe
from breakgraph.inspect.page import page


class Elements(HTMLParser):
    """The elements of a page as a parser sees them, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts.append(data)
        else:
            self.text += data


def test_it_refers_to_nothing_outside_itself(driver: Any, xp: Any) -> None:
    text = page(describe(small(xp)[0]))
    found = Elements(text)
    for tag, attributes in found.tags:
        assert not {"src", "href", "action", "data", "srcset", "poster"} & attributes.keys(), tag
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}, "a name, never fetched"
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", text)


def test_its_policy_lets_it_load_nothing(driver: Any, xp: Any) -> None:
    (policy,) = (
        attributes["content"]
        for tag, attributes in Elements(page(describe(small(xp)[0]))).tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in (policy or "")


def test_it_carries_the_whole_description(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    described = describe(graph, times_of(graph))
    data, _ = Elements(page(described)).scripts
    assert json.loads(data) == described


def test_every_placeholder_of_the_template_is_filled(driver: Any, xp: Any) -> None:
    assert "{{" not in page(describe(small(xp)[0]))


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup_or_script(sim: Any, xp: Any, name: str) -> None:
    plain, found = Elements(page(describe(hostile(sim, xp, "name")))), Elements(page(describe(hostile(sim, xp, name))))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert found.scripts[1] == plain.scripts[1]
    assert json.loads(found.scripts[0])["name"] == name


def test_a_page_of_a_graph_without_a_capture_can_be_made(driver: Any) -> None:
    assert Elements(page(describe(bg.BreakableGraph()))).tags


# --- notebooks ------------------------------------------------------------------------------------------


def test_a_notebook_shows_a_row_for_each_step(driver: Any, xp: Any) -> None:
    graph = decoder(xp, 3)
    html = graph._repr_html_()
    found = Elements(html)
    assert [tag for tag, _ in found.tags].count("tr") == 1 + 7
    assert "script" not in [tag for tag, _ in found.tags]
    for told in ("decoder of 3 layers", "attend", "attention", "bg.INFER", "factor=1.5"):
        assert told in found.text


def test_a_notebook_shows_the_state_of_a_graph_without_a_capture(driver: Any) -> None:
    assert "empty" in bg.BreakableGraph()._repr_html_()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_notebook_shows_names_as_text(sim: Any, xp: Any, name: str) -> None:
    tags = [[tag for tag, _ in Elements(hostile(sim, xp, one)._repr_html_()).tags] for one in ("name", name)]
    assert tags[0] == tags[1]
