"""Which answers changed between two records of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from breakgraph.compare.records import Answer, Cost, Question, Record
from breakgraph.compare.words import said
from breakgraph.errors import BreakgraphError

__all__ = ["Change", "Comparison", "compare"]

_SAME_COST = 2.0  # the largest factor between two measurements of the same thing: machines change their clocks
_HEADER = ("gpu", "driver", "cuda", "how", "mode", "probe_sha256")  # date, commit and command always differ
_NOT_AN_ANSWER = "error"  # says why there is none, in words of the process that died


@dataclass(frozen=True)
class Change:
    """One question whose answer changed."""

    question: Question
    was: Answer
    now: Answer

    @property
    def words(self) -> tuple[str, str]:
        """Both answers in words."""
        return said(self.was, self.now), said(self.now, self.was)


@dataclass(frozen=True)
class Comparison:
    """Two records side by side. ``costs`` are those that differ by more than a factor of 2; they are no change."""

    before: Record
    now: Record
    changes: tuple[Change, ...]
    same: int
    only_before: tuple[Question, ...]
    only_now: tuple[Question, ...]
    header: dict[str, tuple[Any, Any]]
    costs: dict[str, tuple[Cost, Cost]]


def compare(before: Record, now: Record) -> Comparison:
    """Compare question by question.

    An answer has changed where a field that both have has another value. Raises `BreakgraphError` where the records
    have no question in common.
    """
    common = [question for question in before.answers if question in now.answers]
    if before.kind != now.kind or not common:
        raise BreakgraphError(
            f"{before.name} and {now.name} cannot be compared",
            why=f"one answers {before.kind}, the other {now.kind}"
            if before.kind != now.kind
            else "they have no question in common",
            remedy="give two records of one probe",
        )
    pairs = [(question, before.answers[question], now.answers[question]) for question in common]
    changes = tuple(Change(*pair) for pair in pairs if _differ(*pair[1:]))
    return Comparison(
        before,
        now,
        changes,
        len(common) - len(changes),
        tuple(question for question in before.answers if question not in now.answers),
        tuple(question for question in now.answers if question not in before.answers),
        dict(_headers(before.header, now.header)),
        dict(_costs(before.costs, now.costs)),
    )


def _differ(was: Answer, now: Answer) -> bool:
    return any(was[key] != now[key] for key in was.keys() & now.keys() - {_NOT_AN_ANSWER})


def _headers(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    old, new = ({key: header.get(key) for key in _HEADER} | header.get("versions", {}) for header in (before, now))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield key, (old.get(key), new.get(key))


def _costs(before: dict[str, Cost], now: dict[str, Cost]) -> Iterator[tuple[str, tuple[Cost, Cost]]]:
    for name in filter(now.__contains__, before):
        low, high = sorted((before[name].value, now[name].value))
        if high > _SAME_COST * low:
            yield name, (before[name], now[name])
