"""What `save_trace` writes: the description, the page, a trace for Chrome and Perfetto; and the view command."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pictures_support import HOSTILE, decoder, hostile, small, times_of

import breakgraph as bg
from breakgraph import cli
from breakgraph.inspect import describe, load
from breakgraph.inspect.page import page

CPU, GPU = 1, 2


def chrome(graph: Any, path: Path, times: Any = None) -> list[dict[str, Any]]:
    graph.save_trace(path, format="chrome", times=times)
    trace = json.loads(path.read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    return list(trace["traceEvents"])


def slices(events: list[dict[str, Any]], track: int) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["tid"] == track]


# --- the Chrome trace -----------------------------------------------------------------------------------


def test_each_step_is_a_slice_of_the_cpu_and_one_of_the_gpu_as_long_as_measured(
    driver: Any, xp: Any, tmp_path: Path
) -> None:
    graph, _ = small(xp)
    times = times_of(graph)
    events = chrome(graph, tmp_path / "trace.json", times)
    names = ["segment 0", "break 0 attend", "segment 1"]
    for track, key in ((CPU, "cpu_us"), (GPU, "gpu_us")):
        found = slices(events, track)
        assert [event["name"] for event in found] == names
        assert [event["dur"] for event in found] == [one[key] for one in times]
        for before, after in pairwise(found):
            assert before["ts"] + before["dur"] <= after["ts"]


def test_gaps_are_left_open_on_the_gpu(driver: Any, xp: Any, tmp_path: Path) -> None:
    graph, _ = small(xp)
    times = times_of(graph)
    found = slices(chrome(graph, tmp_path / "trace.json", times), GPU)
    ends = [0.0, *(event["ts"] + event["dur"] for event in found)]
    gaps = [event["ts"] - end for event, end in zip(found, ends, strict=False)]
    assert gaps == [one["gap_us"] for one in times]
    assert ends[-1] == sum(one["gap_us"] + one["gpu_us"] for one in times)


def test_a_break_carries_what_is_known_of_it(driver: Any, xp: Any, tmp_path: Path) -> None:
    graph, _ = small(xp)
    _, step, _ = slices(chrome(graph, tmp_path / "trace.json"), CPU)
    assert step["cat"] == "break"
    assert step["args"]["tag"] == "attention"
    assert step["args"]["frozen"] == {"factor": "3.0", "mode": "'extend'"}


def test_without_times_every_step_is_as_long_and_the_trace_says_so(driver: Any, xp: Any, tmp_path: Path) -> None:
    events = chrome(small(xp)[0], tmp_path / "trace.json")
    assert {event["dur"] for event in events if event["ph"] == "X"} == {1.0}
    (name,) = (event["args"]["name"] for event in events if event["name"] == "process_name")
    assert "no times were measured" in name


def test_the_counter_follows_the_live_bytes_of_the_arena(driver: Any, xp: Any, tmp_path: Path) -> None:
    x = xp.zeros(1024, "float32")
    with bg.capture(arena=bg.Arena()) as graph:
        one = x + 1
        bg.break_graph()
        other = x + 2
        del one
        bg.break_graph()
        third = other + 1
    events = chrome(graph, tmp_path / "trace.json")
    counted = [event["args"]["live bytes"] for event in events if event["ph"] == "C"]
    assert counted == [4096, 4096, 8192, 4096, 8192]
    assert third is not None


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_any_kind_are_written_and_read_back(sim: Any, xp: Any, tmp_path: Path, name: str) -> None:
    graph = hostile(sim, xp, name)
    assert slices(chrome(graph, tmp_path / "trace.json"), CPU)[1]["name"] == f"break 0 {name}"
    graph.save_trace(tmp_path / "graph.json")
    assert load(tmp_path / "graph.json")["steps"][1]["name"] == name  # type: ignore[typeddict-item]


# --- files ----------------------------------------------------------------------------------------------


def test_an_unknown_format_is_refused_and_nothing_is_written(driver: Any, xp: Any, tmp_path: Path) -> None:
    graph, _ = small(xp)
    with pytest.raises(bg.errors.BreakgraphError, match="'svg'"):
        graph.save_trace(tmp_path / "graph.svg", format="svg")
    assert list(tmp_path.iterdir()) == []


def test_wrong_times_leave_a_file_as_it_was(driver: Any, xp: Any, tmp_path: Path) -> None:
    graph, _ = small(xp)
    (tmp_path / "graph.json").write_text("before")
    with pytest.raises(bg.errors.BreakgraphError):
        graph.save_trace(tmp_path / "graph.json", times=[])
    assert (tmp_path / "graph.json").read_text() == "before"


def test_a_name_in_place_of_a_path_is_fine(driver: Any, xp: Any, tmp_path: Path) -> None:
    graph, _ = small(xp)
    graph.save_trace(str(tmp_path / "graph.json"))
    assert load(str(tmp_path / "graph.json")) == describe(graph)


# --- the command ------------------------------------------------------------------------------------------


def test_view_writes_the_page_that_the_graph_itself_would_write(
    sim: Any, xp: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = decoder(xp, 3)
    graph.save_trace(tmp_path / "graph.json", times=times_of(graph))
    graph.save_trace(tmp_path / "direct.html", format="html", times=times_of(graph))
    target = tmp_path / "graph.html"
    assert cli.main(["view", str(tmp_path / "graph.json"), "-o", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    assert target.read_text() == (tmp_path / "direct.html").read_text() == page(describe(graph, times_of(graph)))


def test_view_without_a_page_prints_the_report(
    sim: Any, xp: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = decoder(xp, 3)
    graph.save_trace(tmp_path / "graph.json")
    assert cli.main(["view", str(tmp_path / "graph.json")]) == 0
    assert capsys.readouterr().out == graph.report() + "\n"


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99, "steps": []}'])
def test_view_of_something_else_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    assert cli.main(["view", str(tmp_path / "file.json"), "-o", str(tmp_path / "page.html")]) == 2
    assert "file.json" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
