"""Nothing changed from the H200 to the simulator: what it answers is a record that compares equal (S1).

The questions that its protocol does not have are counted, so that they cannot grow unseen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compare_support import RECORDS, changed, load, rows
from sim.records import CASES, LEGALITY, ask
from sim.sequences import SEQUENCES
from sim.world import MODES, World

from breakgraph.compare.changes import compare
from breakgraph.compare.records import read
from breakgraph.compare.report import as_text


def simulated(kind: str) -> list[dict[str, Any]]:
    """The rows of a table as the simulator answers them, but for those that its protocol cannot ask."""
    return [row for asked in rows(load(kind)) if (row := SIMULATED[kind](asked)) is not None]


def _legality(row: dict[str, Any]) -> dict[str, Any] | None:
    if row["call"] not in LEGALITY:
        return None
    world = World(blocking=row["capture_stream"] == "blocking")
    world.begin(MODES[row["mode"]])
    world.add_node()
    naming = {key: row[key] for key in ("call", "caller", "capture_stream", "mode")}
    result = ask(world, LEGALITY[row["call"]], elsewhere=row["caller"] == "other_thread")
    return naming | {"result": result} | (_closing(world, "graph_returned") if "status_after" in row else {})


def _case(row: dict[str, Any]) -> dict[str, Any] | None:
    if row["case"] not in CASES:
        return None
    world = World()
    world.begin(MODES[row["mode"]])
    world.add_node()
    result = ask(world, CASES[row["case"]])
    destroyed = {"status_after": "destroyed", "end_capture": "", "nodes_in_graph": None}
    after = destroyed if row["status_after"] == "destroyed" else _closing(world, "nodes_in_graph")
    return {"case": row["case"], "mode": row["mode"], "result": result} | after


def _closing(world: World, last: str) -> dict[str, Any]:
    status = world.status()
    end, graph = world.end()
    count = len(world.driver.graph_get_nodes(graph)) if graph else None
    return {"status_after": status, "end_capture": end, last: graph != 0 if last == "graph_returned" else count}


SIMULATED = {
    "capture-legality": _legality,
    "capture-cases": _case,
    "capture-sequences": lambda row: {"case": row["case"], **SEQUENCES[row["case"]](World())},
}


@pytest.mark.parametrize(
    ("kind", "unasked"), [("capture-legality", 12), ("capture-cases", 18), ("capture-sequences", 0)]
)
def test_nothing_changed_from_the_h200_to_the_simulator(kind: str, unasked: int, tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record |= {"gpu": None, "driver": "simulated", "cuda": None}
        record["cases" if "cases" in record else "rows"] = simulated(kind)

    comparison = compare(read(RECORDS[kind]), read(changed(kind, tmp_path, change)))
    assert comparison.changes == ()
    assert len(comparison.only_before) == unasked
    assert "no GPU, driver simulated" in as_text(comparison)
    assert "Nothing changed" in as_text(comparison)
