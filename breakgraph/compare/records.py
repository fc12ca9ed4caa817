"""A probe's record as questions with answers, whichever probe wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from breakgraph.errors import BreakgraphError

__all__ = ["KINDS", "Answer", "Cost", "Question", "Record", "read"]

#: The kinds of record, and what their questions are about.
KINDS = {
    "capture-legality": "single calls beside an open capture",
    "capture-cases": "cases inside a capture",
    "capture-sequences": "sequences over captures and threads",
    "rebegin": "capture begun again in the middle of a forward",
    "release": "which calls wait for running kernels",
    "exec-update": "updates of an exec in place",
    "queue": "how much the driver queues before a call waits",
    "cublas": "calls of cuBLAS beside an open capture",
}

#: The part of the spinning kernel's time after which a call must have waited for it (probes/release.py).
_WAITED = 180.0  # ms
_MEASURED = ("us", "ms", "bytes", "MiB")
_MEASURING = ("exec-update", "cublas")  # the kinds that hold such rows among their answers
_BODY = ("rows", "cases", "steps", "entry_points", "stdout")  # what is not the header

#: The fields of a row that tell what the driver did; or one, ``answer``, that says it in words.
Answer = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What a probe asked. The last three are for questions that are asked in several places."""

    what: str
    caller: str = ""  #: "same_thread", "other_thread"
    stream: str = ""  #: the capture stream: "non_blocking", "blocking"
    mode: str = ""  #: "global", "thread_local", "relaxed"

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.what, self.caller, self.stream, self.mode]))


@dataclass(frozen=True)
class Cost:
    """Something measured, that differs a little each time."""

    value: float
    unit: str


@dataclass(frozen=True)
class Record:
    """One record: its header, what was asked and answered, and what it cost."""

    name: str
    kind: str
    header: dict[str, Any]
    answers: dict[Question, Answer]
    costs: dict[str, Cost] = field(default_factory=dict)


def read(path: Path) -> Record:
    """The record in a file.

    Raises `BreakgraphError` where there is none, or none that a probe wrote.
    """
    try:
        told = json.loads(path.read_text())
        kind = told.get("what")
        if kind not in _READERS:
            raise ValueError(f"it says that it is {kind!r}, which is not compared")
        answers, costs = _READERS[kind](told), _costs(told) if kind in _MEASURING else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BreakgraphError(
            f"{path} is no record of a probe that can be compared",
            why=str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}",
            remedy=f"give two files that `breakgraph probe` wrote, of one kind: {', '.join(KINDS)}",
        ) from error
    header = {key: value for key, value in told.items() if key not in _BODY}
    return Record(str(path), kind, header, answers, costs)


def _legality(told: dict[str, Any]) -> dict[Question, Answer]:
    places = {"call": "what", "case": "what", "caller": "caller", "capture_stream": "stream", "mode": "mode"}
    answers = {}
    for row in told["cases"] if "cases" in told else told["rows"]:
        question = Question(**{places[key]: value for key, value in row.items() if key in places})
        answers[question] = {key: value for key, value in row.items() if key not in places}
    return answers


def _rebegin(told: dict[str, Any]) -> dict[Question, Answer]:
    at = f": {told['call']} answers {told['code']}" if "call" in told else ""
    answers: dict[Question, Answer] = {Question("verdict"): {"answer": told["verdict"] + at}}
    for step in told["steps"]:
        answers[Question(f"{step['phase']}: {step['step']}")] = {"result": step["result"]}
    for point in told.get("entry_points", ()):
        answers[Question(f"entry point {point['call']} of CUDA {point['version']}")] = {"answer": _bound(point)}
    return answers | _values(told["rows"])


def _bound(point: dict[str, Any]) -> str:
    """Which function it is; its address differs in each process."""
    if not point["bound"]:
        return "not told by the bindings"
    return "bound as the driver names it" if point["bound"] == point["named"] else "bound to another function"


def _release(told: dict[str, Any]) -> dict[Question, Answer]:
    answers: dict[Question, Answer] = {}
    for row in told["rows"]:
        waits = row["value"] >= row.get("at_least", _WAITED)
        answer = "waits for running kernels" if waits else "does not wait for running kernels"
        answers[Question(row["name"].partition(": ")[0])] = {"answer": answer}
    return answers


def _exec_update(told: dict[str, Any]) -> dict[Question, Answer]:
    return _values(row for row in told["rows"] if row["unit"] not in _MEASURED)


def _queue(told: dict[str, Any]) -> dict[Question, Answer]:
    return _values(told["rows"])


def _cublas(told: dict[str, Any]) -> dict[Question, Answer]:
    rows = [row for row in told["rows"] if row["unit"] not in _MEASURED]
    return {Question(row["name"]): {"answer": f"{row['answer']}; {row['result']}"} for row in rows}


def _values(rows: Iterable[dict[str, Any]]) -> dict[Question, Answer]:
    answers: dict[Question, Answer] = {}
    for row in rows:
        value = ("no", "yes")[row["value"]] if row["unit"] == "bool" else f"{row['value']} {row['unit']}"
        answers[Question(row["name"])] = {"result": row["result"]} if "result" in row else {"answer": value}
    return answers


def _costs(told: dict[str, Any]) -> dict[str, Cost]:
    return {row["name"]: Cost(row["value"], row["unit"]) for row in told["rows"] if row["unit"] in _MEASURED}


_READERS: dict[str, Callable[[dict[str, Any]], dict[Question, Answer]]] = {
    "capture-legality": _legality,
    "capture-cases": _legality,
    "capture-sequences": _legality,
    "rebegin": _rebegin,
    "release": _release,
    "exec-update": _exec_update,
    "queue": _queue,
    "cublas": _cublas,
}
