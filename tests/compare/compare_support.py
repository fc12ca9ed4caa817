"""The committed records, changed as another driver would have answered."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import ROOT

RECORDS = {
    path.stem.removesuffix("-h200-580"): path for path in sorted((ROOT / "probes/records").glob("*-h200-580.json"))
}

LEGAL = {"result": "CUDA_SUCCESS", "status_after": "ACTIVE", "end_capture": "CUDA_SUCCESS", "graph_returned": True}
REFUSED = {
    "result": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    "status_after": "INVALIDATED",
    "end_capture": "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    "graph_returned": False,
}


def load(kind: str) -> dict[str, Any]:
    """A committed record."""
    record: dict[str, Any] = json.loads(RECORDS[kind].read_text())
    return record


def rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Its rows, wherever it keeps them."""
    found: list[dict[str, Any]] = record.get("cases") or record["rows"]
    return found


def changed(kind: str, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a committed record, changed and written into a folder."""
    record = copy.deepcopy(load(kind))
    change(record)
    path = folder / f"{kind}-other.json"
    path.write_text(json.dumps(record))
    return path


def answer(fields: dict[str, Any], **naming: str) -> Callable[[dict[str, Any]], None]:
    """Give every row that is named so these fields."""

    def change(record: dict[str, Any]) -> None:
        found = [row for row in rows(record) if all(row[key] == value for key, value in naming.items())]
        assert found, f"no row is {naming}"
        for row in found:
            row.update(fields)

    return change
