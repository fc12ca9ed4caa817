"""What was measured can be read: in a table with or without rich, in a picture, and in the README.

Proves that arms stand beside each other, that a bound that fails is seen, that a picture has a panel for each thing
compared, and that the README's figures are those of the committed records.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from speed_support import ROOT, report

from benchmarks import _machine, _table, figures, plots
from benchmarks._timing import Times


@pytest.fixture
def filled(sim: Any) -> Any:
    made = report()
    for segments in (1, 65):
        times = {"C loop": Times([1.0 * segments] * 3), "breakgraph": Times([1.5 * segments, 2.0 * segments, 9.0])}
        made.compare("replay", times, at=segments, of="segments")
    made.compare("call", {"plain": Times([0.04]), "breakgraph": Times([0.1])}, "ns")
    made.compare("memory", {"one arena": 1 << 21}, "bytes", at=512, of="rows")
    made.add("holds", 1, "count", bound=2)
    made.add("does not", 3, "count", bound=2)
    made.skip("a peer", "it is not installed")
    return made


@pytest.fixture(params=["rich", "plain"])
def shown(request: pytest.FixtureRequest, filled: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "rich", None)
    else:
        pytest.importorskip("rich", reason="rich is not installed")
    to = io.StringIO()
    _table.show(to, "a title", filled._parts, filled._missing)
    return to.getvalue()


def cells(shown: str, first: str) -> list[str]:
    (line,) = [line for line in shown.splitlines() if re.match(rf"\W*{first}\b", line)]
    return [cell.strip() for cell in re.split(r"│|┃|\s{2,}", line) if cell.strip()]


def test_arms_stand_beside_each_other(shown: str) -> None:
    assert cells(shown, "replay, 65 segments") == ["replay, 65 segments", "us", "65.0", "97.5"]
    assert cells(shown, "call") == ["call", "ns", "40.0", "100.0"] or "40.0" in cells(shown, "call")
    assert "C loop" in shown


def test_a_bound_says_whether_it_holds_and_what_is_missing_why(shown: str) -> None:
    assert cells(shown, "holds")[-2:] == ["2", "yes"]
    assert cells(shown, "does not")[-2:] == ["2", "NO"]
    assert "not measured: a peer: it is not installed" in shown
    assert "say nothing about a GPU" in shown


def test_a_row_has_the_median_the_spread_and_the_size(filled: Any) -> None:
    (row,) = [row for row in filled.rows if row["name"] == "replay, 65 segments: breakgraph"]
    assert (row["value"], row["p10"], row["p99"], row["rounds"]) == (97.5, 9.0, 130, 3)
    assert (row["what"], row["arm"], row["at"], row["of"], row["family"]) == (
        *("replay", "breakgraph", 65, "segments", "replay"),
    )


def test_a_ratio_of_times_has_a_bound_on_a_real_driver_alone(filled: Any) -> None:
    filled.speed("simulated", 5, bound=2)
    assert "bound" not in filled.rows[-1]
    filled._header["gpu"] = "NVIDIA H200"
    filled.speed("real", 5, bound=2)
    assert filled.rows[-1]["holds"] is False


def test_a_machine_is_named_by_its_gpu_and_driver() -> None:
    assert _machine.slug({"gpu": "NVIDIA H200", "driver": "580.159.04"}) == "h200-580"
    assert _machine.slug({"gpu": "NVIDIA RTX 6000 Ada", "driver": "575.1"}) == "rtx-6000-ada-575"
    assert _machine.slug({"gpu": None, "driver": "simulated"}) == "sim"


def test_a_record_is_drawn_beside_itself_a_panel_for_each_thing_compared(filled: Any, tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    written = filled.write(tmp_path / "speed-sim.json")
    saved: list[Any] = []
    close = pyplot.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyplot, "close", saved.append)
        assert plots.draw(written) == [tmp_path / "replay-sim.png"]
    (figure,) = saved
    panels = {axis.get_title(): axis for axis in figure.axes if axis.axison}
    assert list(panels) == ["replay", "call", "memory"]
    assert [line.get_label() for line in panels["replay"].lines] == ["C loop", "breakgraph"]
    assert list(panels["replay"].lines[1].get_ydata()) == [2.0, 1.5], "for each segment"
    assert [bar.get_width() for bar in panels["call"].patches] == [40, 100]
    close(figure)
    assert (tmp_path / "replay-sim.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert plots.main(["any.json"]) == 1
    assert "no pictures" in capsys.readouterr().err


def test_the_figures_of_the_readme_are_those_of_the_records() -> None:
    assert figures.main(["--check"]) == 0, "python -m benchmarks.figures writes them"
    for name, chosen in figures.FIGURES.items():
        path = ROOT / "benchmarks" / "records" / f"{name}.json"
        if path.exists():
            rows = {row["name"] for row in json.loads(path.read_text())["rows"]}
            assert {figure.row for figure in chosen} <= rows


def test_a_changed_record_changes_the_block_and_a_lost_row_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (name, chosen) = next(iter(figures.FIGURES.items()))
    record = {"gpu": "A GPU", "driver": "1.2", "rows": [{"name": one.row, "value": 1.234} for one in chosen]}
    record["rows"][0]["bound"] = 1.3
    (tmp_path / "benchmarks" / "records").mkdir(parents=True)
    path = tmp_path / "benchmarks" / "records" / f"{name}.json"
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{figures._BEGIN}\nold\n{figures._END}\nafter\n")
    monkeypatch.setattr(figures, "_ROOT", tmp_path)
    monkeypatch.setattr(figures, "_README", readme)
    path.write_text(json.dumps(record))
    assert figures.main(["--check"]) == 1
    assert figures.main([]) == 0
    assert figures.main(["--check"]) == 0
    assert f"| {chosen[0].text} | 1.23 | 1.30 |" in readme.read_text().splitlines()
    assert readme.read_text().startswith("before\n<!--")
    del record["rows"][1]
    path.write_text(json.dumps(record))
    with pytest.raises(KeyError, match=re.escape(chosen[1].row)):
        figures.block()
