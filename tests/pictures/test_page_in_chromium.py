"""The page in headless Chromium: it opens at once, alone, and all of it can be read and reached without a mouse.

Skipped where there is no Chromium or no playwright to drive it; with ``BREAKGRAPH_CHROMIUM`` set to a path, a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pictures_support import HOSTILE, decoder, hostile, times_of
from support import zeros

import breakgraph as bg
from breakgraph.inspect import describe

LAYERS = 32  # and one segment more
CHOSEN = os.environ.get("BREAKGRAPH_CHROMIUM", "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = CHOSEN or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        if CHOSEN:
            raise
        pytest.skip("playwright is not installed: pip install 'breakgraph[dev]'")
    if not found:
        pytest.skip("there is no Chromium: apt-get install chromium, or set BREAKGRAPH_CHROMIUM to its path")
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of a graph. Afterwards nothing may have been asked for but the file, and no script have failed."""
    requests: list[str] = []
    errors: list[str] = []
    contexts = []

    def open_page(graph: Any, times: Any = None, **options: Any) -> Any:
        graph.save_trace(tmp_path / "graph.html", format="html", times=times)
        contexts.append(browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options}))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
        page.goto((tmp_path / "graph.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert set(requests) == {(tmp_path / "graph.html").as_uri()}
    assert errors == []


@pytest.fixture
def decoded(sim: Any, xp: Any) -> Iterator[Any]:
    graph = decoder(xp, LAYERS)
    yield graph
    graph.close()


def focused(page: Any) -> str:
    """What a screen reader says of the element that has the focus."""
    told: str = page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")
    return told


def buttons(page: Any) -> Any:
    return page.locator("#timeline button")


def extents(page: Any) -> list[tuple[float, float]]:
    """Left and right end of each step in the timeline, in pixels."""
    return [
        (box["left"], box["right"])
        for box in buttons(page).evaluate_all("found => found.map((one) => one.getBoundingClientRect().toJSON())")
    ]


# --- opening --------------------------------------------------------------------------------------------


def test_the_page_of_33_segments_opens_in_under_a_second(
    decoded: Any, show: Any, record_property: Callable[[str, object], None]
) -> None:
    assert len(decoded.segments) == 33
    seconds = []
    for _ in range(3):
        page = show(decoded, times_of(decoded))
        timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        seconds.append(page.evaluate(timing) / 1000)
        assert page.locator("#step g.node").count() == len(describe(decoded)["steps"][0]["nodes"])
    record_property("seconds", seconds)
    assert 0 < min(seconds) < 1, seconds


def test_it_says_what_was_captured(decoded: Any, show: Any) -> None:
    page = show(decoded)
    assert page.locator("h1").inner_text() == "decoder of 32 layers"
    assert page.locator("#facts").inner_text().startswith("33 segments, 32 breaks, 97 nodes, 0 replays; driver sim")
    assert page.title().startswith("'decoder of 32 layers': 33 segments")


def test_a_graph_without_a_capture_has_a_page_that_says_so(sim: Any, show: Any) -> None:
    page = show(bg.BreakableGraph("idle"))
    assert page.locator("#facts").inner_text() == "It holds no capture: empty."
    assert buttons(page).count() == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_as_they_are(sim: Any, xp: Any, show: Any, name: str) -> None:
    page = show(hostile(sim, xp, name))
    assert page.evaluate("document.querySelector('h1').textContent") == name
    assert name in buttons(page).nth(1).get_attribute("aria-label")
    assert page.locator("script").count() == 2


# --- the timeline -----------------------------------------------------------------------------------------


def test_steps_are_as_wide_as_they_took(decoded: Any, show: Any) -> None:
    times = [{"cpu_us": 1.0, "gap_us": 0.0, "gpu_us": 10.0 + 10.0 * (at % 4)} for at in range(65)]
    page = show(decoded, times)
    widths = [right - left for left, right in extents(page)]
    each = sum(widths) / sum(one["gpu_us"] for one in times)
    assert all(abs(width - each * one["gpu_us"]) < 1 for width, one in zip(widths, times, strict=True))
    assert "One replay: 1.61 ms on the GPU" in page.locator("#scale").inner_text()


def test_gaps_are_as_wide_as_they_took(decoded: Any, show: Any) -> None:
    page = show(decoded, [{"cpu_us": 1.0, "gap_us": 10.0, "gpu_us": 10.0}] * 65)
    for (left, right), (after, _) in pairwise(extents(page)):
        assert after - right == pytest.approx(right - left, abs=1)


def test_without_times_steps_are_equally_wide_and_the_page_says_so(decoded: Any, show: Any) -> None:
    page = show(decoded)
    widths = [right - left for left, right in extents(page)]
    assert len(widths) == 65
    assert max(widths) - min(widths) < 1
    assert page.locator("#scale").inner_text().startswith("No times were measured")


def test_a_segment_that_is_clicked_shows_its_nodes(decoded: Any, show: Any) -> None:
    page = show(decoded, times_of(decoded))
    buttons(page).nth(4).click()
    assert page.locator("#step-title").inner_text() == "Step 4: segment 2"
    assert buttons(page).nth(4).get_attribute("aria-pressed") == "true"
    assert page.locator("#timeline [aria-pressed=true]").count() == 1
    labels = page.locator("#step g.node").evaluate_all("found => found.map((one) => one.getAttribute('aria-label'))")
    names = ["add", "maximum", "multiply"]
    assert labels == [
        f"node {at}: kernel {name}, 1 block of 1 thread, {'first' if not at else f'after node {at - 1}'}"
        for at, name in enumerate(names)
    ]
    assert page.locator("#step path.edge").count() == 2
    assert "14 µs" in page.locator("#step dl").inner_text()


def test_a_break_that_is_clicked_shows_what_is_known_of_it(decoded: Any, show: Any) -> None:
    page = show(decoded)
    buttons(page).nth(1).click()
    told = page.locator("#step").inner_text()
    for fact in ("break 0 attend", "pictures_support.py:", "attention", "bg.INFER (array)", "factor = 1.5"):
        assert fact in told
    assert "float32[64, 64] at 0x" in told


def test_a_segment_without_work_says_so(sim: Any, xp: Any, show: Any) -> None:
    with bg.capture() as graph:
        y = zeros(xp) + 1
        bg.break_graph()
        bg.break_graph()
        z = y + 1
    page = show(graph)
    buttons(page).nth(2).click()
    assert "It has no work" in page.locator("#step").inner_text()
    assert z is not None


def test_of_a_huge_segment_the_beginning_is_drawn_and_the_table_has_all(sim: Any, xp: Any, show: Any) -> None:
    x, out = zeros(xp), zeros(xp)
    with bg.capture() as graph:
        for _ in range(2100):
            sim.launch(bg.current_stream(), lambda a, b: None, reads=[x.region], writes=[out.region], name="tiny")
    page = show(graph)
    assert page.locator("#step g.node").count() == 2000
    assert "The first 2000 nodes are drawn." in page.locator("#step").inner_text()
    page.locator("#step summary").click()
    page.locator("#step tbody tr").first.wait_for()
    assert page.locator("#step tbody tr").count() == 2100


# --- keys ---------------------------------------------------------------------------------------------------


def test_the_timeline_is_one_stop_and_arrow_keys_move_in_it(decoded: Any, show: Any) -> None:
    page = show(decoded)
    buttons(page).first.focus()
    steps = [("ArrowRight", "break 0"), ("ArrowRight", "segment 1"), ("ArrowLeft", "break 0"), ("Home", "segment 0")]
    steps += [("ArrowLeft", "segment 0"), ("End", "segment 32"), ("ArrowDown", "segment 32"), ("ArrowUp", "break 31")]
    for key, name in steps:
        page.keyboard.press(key)
        assert focused(page).startswith(name), key
    assert page.locator("#step-title").inner_text() == "Step 0: segment 0", "moving opens nothing"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#timeline')") is None


def test_enter_opens_a_step_and_escape_leads_back(decoded: Any, show: Any) -> None:
    page = show(decoded)
    buttons(page).first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert focused(page) == "Step 1: break 0 attend"
    page.keyboard.press("Escape")
    assert focused(page).startswith("break 0 attend")


def test_nodes_and_blocks_are_reached_by_keys(decoded: Any, show: Any) -> None:
    page = show(decoded)
    page.locator("#step g.node").first.focus()
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith("node 1: kernel maximum")
    assert page.locator("#step .detail").inner_text() == focused(page)
    page.locator("#memory g.block").first.focus()
    page.keyboard.press("End")
    assert page.locator("#memory .detail").inner_text() == focused(page)
    page.keyboard.press("Enter")
    assert focused(page) == "Step 63: break 31 attend", "the step that made the block"


def test_every_part_is_reached_by_tab_alone(decoded: Any, show: Any) -> None:
    page = show(decoded)
    page.locator("body").press("Tab")
    reached = []
    for _ in range(40):
        reached.append(
            page.evaluate("document.activeElement.closest('search, #timeline, #step, #kernels, #memory')?.id ?? ''")
        )
        page.keyboard.press("Tab")
    order = list(dict.fromkeys(one for one in reached if one))
    assert order == ["timeline", "step", "kernels", "memory"]


# --- search -------------------------------------------------------------------------------------------------


def test_a_search_lists_and_marks_what_it_finds(decoded: Any, show: Any) -> None:
    page = show(decoded)
    page.keyboard.press("/")
    page.keyboard.type("MAXI")
    assert page.locator("#found").inner_text() == "32 matches in 32 steps"
    assert page.locator("#matches li").first.inner_text() == "segment 0, node 1: maximum"
    assert page.locator("#timeline button.match").count() == 32
    assert page.locator("#step g.node.match").count() == 1
    page.keyboard.press("Enter")
    assert focused(page).startswith("node 1: kernel maximum")
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert page.locator("#query").input_value() == page.locator("#found").inner_text() == ""
    assert page.locator(".match").count() == 1, "the legend's"


def test_a_match_in_a_later_step_is_opened_at_its_node(decoded: Any, show: Any) -> None:
    page = show(decoded)
    page.locator("#query").fill("multiply")
    page.locator("#matches button").nth(7).click()
    assert page.locator("#step-title").inner_text() == "Step 14: segment 7"
    assert focused(page).startswith("node 2: kernel multiply")


def test_breaks_are_found_too_and_what_is_not_there_is_not(decoded: Any, show: Any) -> None:
    page = show(decoded)
    page.locator("#query").fill("attend")
    assert page.locator("#found").inner_text() == "32 matches in 32 steps"
    page.locator("#query").fill("no such kernel")
    assert page.locator("#found").inner_text() == "0 matches in 0 steps"
    assert not page.locator("#matches").is_visible()


def test_a_kernel_of_the_list_is_searched_by_a_click(decoded: Any, show: Any) -> None:
    page = show(decoded)
    page.get_by_role("button", name="Search add").click()
    assert page.locator("#query").input_value() == "add"
    assert page.locator("#found").inner_text() == "33 matches in 33 steps"


# --- memory -------------------------------------------------------------------------------------------------


def test_blocks_lie_at_their_steps_and_offsets(decoded: Any, show: Any) -> None:
    page = show(decoded)
    blocks = describe(decoded)["memory"]["blocks"]
    groups = page.locator("#memory g.block")
    assert groups.count() == len(blocks) == 4 * LAYERS
    boxes = page.locator("#memory g.block rect").evaluate_all(
        "found => found.map(({x, y, width, height}) => [x, y, width, height].map((one) => one.baseVal.value))"
    )
    for block, (x, y, width, height) in zip(blocks, boxes, strict=True):
        end = 65 if block["end"] is None else block["end"]
        assert x == pytest.approx(90 + (1400 - 90) * block["start"] / 65, abs=0.1)
        assert width == pytest.approx(max((1400 - 90) * (end - block["start"]) / 65, 2), abs=0.1)
        assert (y > boxes[0][1]) == (block["spans"][0][0] > 0)
        assert height == pytest.approx(boxes[0][3]), "all are of one size"


def test_a_block_tells_what_where_and_from_when_to_when(decoded: Any, show: Any) -> None:
    page = show(decoded)
    first = describe(decoded)["memory"]["blocks"][0]
    group = page.locator("#memory g.block").first
    group.hover()
    told = page.locator("#memory .detail").inner_text()
    assert told == f"16 KiB at {first['ptr']}; from step 0, segment 0; until step 0, segment 0"
    results = page.locator("#memory g.block.result")
    assert results.count() == LAYERS
    assert "result of break 0 'attend'" in results.first.get_attribute("aria-label")


def test_pictures_have_tables_in_their_place(decoded: Any, show: Any) -> None:
    page = show(decoded, times_of(decoded))
    rows = []
    for part in ("main > section:first-child", "#step", "#memory"):
        page.locator(f"{part} summary").click()
        page.locator(f"{part} tbody tr").first.wait_for()
        rows.append(page.locator(f"{part} tbody tr").count())
    assert rows == [65, 3, 4 * LAYERS]


def test_a_graph_that_asked_the_arena_for_nothing_says_so(sim: Any, xp: Any, show: Any) -> None:
    x = zeros(xp)
    with bg.capture(arena=bg.Arena()) as graph:
        x += 1
    assert "asked the arena for nothing" in show(graph).locator("#memory").inner_text()


# --- for everyone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_accessibility_checker_finds_nothing(decoded: Any, show: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = show(decoded, times_of(decoded), color_scheme=scheme, bypass_csp=True)
    page.locator("#query").fill("add")
    for summary in page.locator("summary").all():
        summary.click()
    page.locator("#memory tbody tr").first.wait_for()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_it_follows_the_colour_scheme_of_the_system(decoded: Any, show: Any) -> None:
    grounds = [
        show(decoded, color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert [sum(map(int, ground[4:-1].split(","))) > 380 for ground in grounds] == [True, False]


@pytest.mark.parametrize("width", [390, 800])
def test_a_narrow_window_needs_no_scrolling_sideways(decoded: Any, show: Any, width: int) -> None:
    page = show(decoded, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
