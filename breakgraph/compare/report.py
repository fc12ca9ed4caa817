"""A comparison as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from breakgraph.compare.changes import Change, Comparison
from breakgraph.compare.records import KINDS, Question, Record
from breakgraph.compare.reliance import rests_on
from breakgraph.compare.words import place

__all__ = ["SCHEMA", "as_json", "as_text"]

SCHEMA = 1  # of the JSON; a name in it is never given another meaning without a new number


def as_json(comparison: Comparison) -> str:
    """One object: ``schema``, ``kind``, ``changed``, both headers, and what differs."""
    told = {
        "schema": SCHEMA,
        "kind": comparison.before.kind,
        "changed": bool(comparison.changes),
        "before": {"file": comparison.before.name, **comparison.before.header},
        "now": {"file": comparison.now.name, **comparison.now.header},
        "header": comparison.header,
        "same": comparison.same,
        "changes": [_change(comparison.before.kind, change) for change in comparison.changes],
        "only_before": list(map(asdict, comparison.only_before)),
        "only_now": list(map(asdict, comparison.only_now)),
        "costs": {name: [asdict(cost) for cost in costs] for name, costs in comparison.costs.items()},
    }
    return json.dumps(told, indent=1)


def as_text(comparison: Comparison) -> str:
    """What changed, the same changes together, and what rests on each."""
    before, now = comparison.before, comparison.now
    lines = [f"{before.kind}: {KINDS[before.kind]}", f"  before  {_who(before)}", f"  now     {_who(now)}"]
    lines += [f"  {name}: {old}, now {new}" for name, (old, new) in comparison.header.items()]
    lines.append("")
    for (was, is_now), changes in _grouped(comparison.changes).items():
        lines += [f"was {was}; is now {is_now}", *_questions(before.kind, changes), ""]
    lines += _one_sided("before", comparison.only_before) + _one_sided("now", comparison.only_now)
    if comparison.costs:
        lines += ["costs that differ by more than a factor of 2 (no change of an answer)"]
        lines += [
            f"  {name}: {a.value:g} {a.unit}, now {b.value:g} {b.unit}" for name, (a, b) in comparison.costs.items()
        ]
        lines += [""]
    return "\n".join([*lines, _verdict(comparison)])


def _change(kind: str, change: Change) -> dict[str, Any]:
    was, now = change.words
    reliance = rests_on(kind, change.question)
    return {
        "question": asdict(change.question),
        "was": change.was,
        "now": change.now,
        "was_in_words": was,
        "now_in_words": now,
        "rests_on_it": {"rule": reliance.rule, "means": reliance.means} if reliance else None,
    }


def _who(record: Record) -> str:
    header, cuda = record.header, record.header.get("cuda")
    version = f", CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
    return (
        f"{header.get('gpu') or 'no GPU'}, driver {header.get('driver')}{version}, {header.get('date')}: {record.name}"
    )


def _grouped(changes: Iterable[Change]) -> dict[tuple[str, str], list[Change]]:
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault(change.words, []).append(change)
    return groups


def _questions(kind: str, changes: list[Change]) -> Iterator[str]:
    by_name: dict[str, list[Question]] = {}
    for change in changes:
        by_name.setdefault(change.question.what, []).append(change.question)
    for name, questions in by_name.items():
        for where in place(questions):
            yield f"  {name}{' ' if where else ''}{where}"
        for reliance in dict.fromkeys(rests_on(kind, question) for question in questions):
            yield f"    {reliance.rule}: {reliance.means}" if reliance else "    nothing in breakgraph rests on it"


def _one_sided(side: str, questions: tuple[Question, ...]) -> list[str]:
    if not questions:
        return []
    names = Counter(question.what for question in questions)
    return [f"asked {side} only", *(f"  {name}" + (f" ({n} times)" if n > 1 else "") for name, n in names.items()), ""]


def _verdict(comparison: Comparison) -> str:
    total = comparison.same + len(comparison.changes)
    if not comparison.changes:
        return f"Nothing changed: all {total} answers are the same."
    return (
        f"{len(comparison.changes)} of {total} answers changed. The simulator answers as the records in probes/records"
        " do (S1): a driver with other answers needs it, and what rests on them, looked at."
    )
