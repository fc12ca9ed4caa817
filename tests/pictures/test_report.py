"""The report is plain text that fits a terminal of 120 columns, whatever things are called, and says what is there."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pictures_support import HOSTILE, attend, decoder, forked, hostile, ptr_of, small
from support import ROOT, child, zeros

import breakgraph as bg
from breakgraph.inspect.text import columns, shorten


def test_it_has_a_row_for_each_step_with_what_is_known_of_it(driver: Any, xp: Any) -> None:
    graph, _ = small(xp)
    lines = graph.report().splitlines()
    assert lines[0].startswith("'small': 2 segments, 1 break, 2 nodes, 0 replays")
    assert lines[1].split()[:2] == ["step", "what"]
    assert lines[2].split()[:5] == ["0", "segment", "0", "1", "kernel"]
    for told in ("break 0 'attend'", "bg.INFER (array)", "16 B", "attention", "pictures_support.py:"):
        assert told in lines[3]
    assert lines[4].strip() == "frozen: factor=3.0, mode='extend'"
    assert lines[5].split()[:3] == ["2", "segment", "1"]


def test_its_columns_are_aligned(driver: Any, xp: Any) -> None:
    lines = decoder(xp, 12).report().splitlines()
    what, nodes, nbytes, streams = (lines[1].index(title) for title in ("what", "nodes", "bytes", "streams"))
    table = [line for line in lines[2:] if line[0].isdigit()]
    assert len(table) == 25
    for at, line in enumerate(table):
        assert line[what:].startswith("break" if at % 2 else "segment")
        assert line[nodes:].startswith("bg.INFER" if at % 2 else "3 kernel" if at < 24 else "1 kernel")
        assert line[nbytes:].startswith("16 KiB" if at % 2 else "48 KiB" if at < 24 else "0 B")
        assert line[streams:].startswith("attention" if at % 2 else "1")


def test_it_counts_nodes_by_kind_and_kernels_by_name(driver: Any, xp: Any) -> None:
    x, out = zeros(xp), zeros(xp)
    with bg.capture() as graph:
        np.multiply((x + 1) + 2, 2, out=out)
        bg.break_graph()
        driver.memset_d8_async(ptr_of(out, driver), 0, 16, int(bg.current_stream()))
        np.add(out, 3, out=out)
    text = graph.report()
    assert "nodes: 4 kernel, 1 memset" in text
    counted = {tuple(line.split()) for line in text.partition("kernels:\n")[2].splitlines()[:2]}
    assert {number for number, _ in counted} == {"3", "1"}
    assert {"add" in name for number, name in counted if number == "3"} == {True}


def test_of_many_kernels_it_shows_the_commonest(sim: Any, xp: Any) -> None:
    region = zeros(xp).region
    with bg.capture() as graph:
        for n in range(30):
            for _ in range(1 + (n == 7)):
                sim.launch(bg.current_stream(), lambda out: None, writes=[region], name=f"kernel_{n}")
    lines = graph.report().partition("kernels:\n")[2].splitlines()
    assert lines[0].split() == ["2", "kernel_7"]
    assert lines[20].split() == ["10", "of", "10", "other", "names"]


def test_a_fork_is_told(driver: Any, xp: Any) -> None:
    assert "2 (2 branches)" in forked(driver, xp).report()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_any_kind_fit(sim: Any, xp: Any, name: str) -> None:
    text = hostile(sim, xp, name).report()
    assert all(len(line) <= 120 and line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == len(small(xp)[0].report().splitlines())


def test_the_report_in_the_documentation_is_the_one_that_its_program_prints() -> None:
    page = (ROOT / "docs" / "pictures.md").read_text()
    program, shown = re.findall(r"^```(?:python)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:2]
    done = child(program + "\nprint(graph.report())")
    assert done.stdout.partition("\n")[2] == shown.replace("first.py", "<string>"), done.stderr


def test_a_graph_without_a_capture_says_its_state(driver: Any) -> None:
    assert bg.BreakableGraph("idle").report().splitlines()[0] == "'idle': empty"


def test_it_needs_nothing_but_the_base_install() -> None:
    done = child("""
        import sys
        sys.modules["rich"] = None
        import breakgraph as bg
        xp = bg.array_namespace()
        x = xp.zeros(4)
        with bg.capture() as graph:
            y = x + 1
        print(graph.report())
    """)
    assert done.returncode == 0, done.stderr
    assert "1 segment, 0 breaks, 1 node" in done.stdout


@pytest.mark.parametrize("width", [10, 11, 30])
def test_a_long_name_is_cut_in_the_middle(width: int) -> None:
    text = "cupy_add__float32_float_float32"
    cut = shorten(text, width)
    assert len(cut) == width
    head, tail = cut.split("...")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert shorten(text, len(text)) == text


def test_a_column_is_as_wide_as_its_widest_cell_and_the_widest_gives_way() -> None:
    rows = [("a", "b"), ("ccc", "d" * 20)]
    assert columns(rows, 25) == ["a    b", f"ccc  {'d' * 20}"]
    assert columns(rows, 14) == ["a    b", f"ccc  {'d' * 3}...{'d' * 3}"]


def test_a_break_outside_a_capture_is_no_part_of_it(driver: Any, xp: Any) -> None:
    attend(zeros(xp), 2.0)
    graph, _ = small(xp)
    assert graph.report().count("attend") == 1
