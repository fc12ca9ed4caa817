"""What differs between two legality records, or a record and a data file of the same shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._legality_bench import Row

__all__ = ["differences", "load", "rows_of", "table_of"]

_NAMING = ("call", "case", "caller", "capture_stream", "mode")


def load(path: Path) -> dict[str, Any]:
    """A record, read from its file. Raises `ValueError` where it is not one."""
    record = json.loads(path.read_text())
    if not isinstance(record, dict) or not rows_of(record):
        raise ValueError(f"{path} holds no legality rows")
    return record


def rows_of(record: Mapping[str, Any]) -> list[Row]:
    """The rows of a record; the sequences keep theirs under ``cases``."""
    rows: list[Row] = record.get("rows") or record.get("cases") or []
    return rows


def table_of(record: Mapping[str, Any]) -> str:
    """Which of the three tables a record holds."""
    if "cases" in record:
        return "capture-sequences"
    return "capture-legality" if "call" in rows_of(record)[0] else "capture-cases"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each row that one lacks and for each field that has another value."""
    old, new = _by_name(before), _by_name(now)
    lines = [f"only before: {name}" for name in old if name not in new]
    lines += [f"only now: {name}" for name in new if name not in old]
    for name, row in old.items():
        other = new.get(name, row)
        for field in dict.fromkeys([*row, *other]):
            if row.get(field) != other.get(field):
                lines.append(f"{name}: {field} was {row.get(field)!r}, is {other.get(field)!r}")
    return lines


def _by_name(record: Mapping[str, Any]) -> dict[str, Row]:
    return {" / ".join(str(row[key]) for key in _NAMING if key in row): row for row in rows_of(record)}
