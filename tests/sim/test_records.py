"""The simulator answers every recorded question as the H200 did: result, status afterwards, end of capture (S1).

The simulator never reads these files; this test is the only thing that does. The rows that it cannot be
asked, because their call is not in the driver protocol, are listed here, so that the list cannot grow unseen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .records import CASES, LEGALITY, NOT_IN_PROTOCOL, ask
from .sequences import SEQUENCES
from .world import MODES, SUCCESS, World

_DATA = Path(__file__).parent.parent / "data"


def _rows(name: str) -> list[dict[str, Any]]:
    data = json.loads((_DATA / f"{name}_h200_r580.json").read_text())
    rows: list[dict[str, Any]] = data.get("rows") or data["cases"]
    return rows


LEGALITY_ROWS = _rows("capture_legality")
CASE_ROWS = _rows("capture_cases")
SEQUENCE_ROWS = _rows("capture_sequences")


def _asked(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [row for row in rows if row[key] not in NOT_IN_PROTOCOL]


@pytest.mark.parametrize(
    "row",
    _asked(LEGALITY_ROWS, "call"),
    ids=lambda row: f"{row['call']}-{row['caller']}-{row['capture_stream']}-{row['mode']}",
)
def test_a_call_during_capture_is_answered_as_recorded(row: dict[str, Any]) -> None:
    world = World(blocking=row["capture_stream"] == "blocking")
    world.begin(MODES[row["mode"]])
    world.add_node()
    answered = {"result": ask(world, LEGALITY[row["call"]], elsewhere=row["caller"] == "other_thread")}
    if "status_after" in row:
        answered["status_after"] = world.status()
        answered["end_capture"], graph = world.end()
        answered["graph_returned"] = graph != 0
    assert answered == {name: row[name] for name in answered}
    assert not world.driver.live()["capture"]


@pytest.mark.parametrize("row", _asked(CASE_ROWS, "case"), ids=lambda row: f"{row['case']}-{row['mode']}")
def test_a_case_is_answered_as_recorded(row: dict[str, Any]) -> None:
    world = World()
    world.begin(MODES[row["mode"]])
    world.add_node()
    answered: dict[str, object] = {"result": ask(world, CASES[row["case"]])}
    if row["status_after"] == "destroyed":
        answered |= {"status_after": "destroyed", "end_capture": row["end_capture"], "nodes_in_graph": None}
        assert world.stream not in world.driver.live()["stream"]
    else:
        answered["status_after"] = world.status()
        answered["end_capture"], graph = world.end()
        answered["nodes_in_graph"] = len(world.driver.graph_get_nodes(graph)) if graph else None
    assert answered == {name: row[name] for name in answered}
    assert not world.driver.live()["capture"]


@pytest.mark.parametrize("row", SEQUENCE_ROWS, ids=lambda row: row["case"])
def test_a_sequence_is_answered_as_recorded(row: dict[str, Any]) -> None:
    answered = SEQUENCES[row["case"]](World())
    assert answered == {name: value for name, value in row.items() if name not in ("case", "note")}


def test_the_rows_that_cannot_be_asked_are_exactly_these() -> None:
    left_out = [row["call"] for row in LEGALITY_ROWS if row["call"] not in LEGALITY]
    left_out += [row["case"] for row in CASE_ROWS if row["case"] not in CASES]
    left_out += [row["case"] for row in SEQUENCE_ROWS if row["case"] not in SEQUENCES]
    assert (
        set(left_out)
        == NOT_IN_PROTOCOL
        == {
            "cuMemcpyDtoDAsync v1 symbol (self)",
            "cuMemcpyDtoDAsync_v1_dlsym(capturing)",
            "cuMemcpyDtoDAsync_v2_dlsym(capturing)",
            "cuFuncGetAttribute",
            "cuPointerGetAttribute",
            "cuStreamWriteValue32(capturing)",
            "cuStreamWaitValue32(capturing)",
        }
    )
    assert len(left_out) == 12 + 6 * 3


def test_every_row_was_read() -> None:
    assert (len(LEGALITY_ROWS), len(CASE_ROWS), len(SEQUENCE_ROWS)) == (372, 234, 49)


def test_both_results_are_among_the_answers() -> None:
    assert {SUCCESS} < {row["result"] for row in LEGALITY_ROWS}
