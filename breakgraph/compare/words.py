"""An answer in words, and where a question was asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from breakgraph.compare.records import Answer, Question
from breakgraph.driver.sim.results import Result

__all__ = ["place", "said"]

SUCCESS = "CUDA_SUCCESS"
_ERROR = "CUDA_ERROR_"

#: What the end of a capture answers by itself, by the status before it.
_NATURAL_END = {"ACTIVE": SUCCESS, "INVALIDATED": f"{_ERROR}STREAM_CAPTURE_INVALIDATED"}
_AFTERWARDS = {
    "ACTIVE": "the capture goes on",
    "INVALIDATED": "the capture is invalidated",
    "NONE": "the capture is over",
}
_STATUS = ("status_after", "origin_status_after")
_FOLLOW = ("graph_returned", "nodes_in_graph")  # from how the capture ends
_TOLD = ("result", "end_capture", *_STATUS)

_MODES = {"global": "global", "thread_local": "thread-local", "relaxed": "relaxed"}
_CALLERS = {"same_thread": "from the capturing thread", "other_thread": "from another thread"}
_STREAMS = {"non_blocking": "on a non-blocking stream", "blocking": "on a blocking stream"}


def said(answer: Answer, other: Answer) -> str:
    """An answer as what a driver does, so that it reads unlike the ``other`` one if they differ."""
    if "answer" in answer:
        return str(answer["answer"])
    rest = [key for key in answer if key in other and answer[key] != other[key] and key not in (*_TOLD, "error")]
    if answer.get("end_capture") != other.get("end_capture"):
        rest = [key for key in rest if key not in _FOLLOW]
    return ", ".join([*_capture(answer), *(f"{key.replace('_', ' ')}: {_value(answer[key])}" for key in rest)])


def place(questions: Iterable[Question]) -> list[str]:
    """Where questions of one name were asked, several in one line where they make up a whole."""
    asked = list(questions)
    modes, callers, streams = (
        list(dict.fromkeys(getattr(q, axis) for q in asked)) for axis in ("mode", "caller", "stream")
    )
    if len(asked) == len(modes) * len(callers) * len(streams):
        return [_joined(modes, callers, streams)]
    by_caller = attrgetter("caller", "stream")
    return [
        _joined([question.mode for question in group], [caller], [stream])
        for (caller, stream), group in itertools.groupby(sorted(asked, key=by_caller), by_caller)
    ]


def _joined(modes: list[str], callers: list[str], streams: list[str]) -> str:
    parts = []
    if any(modes):
        in_all = set(modes) == set(_MODES)
        parts.append("in any mode" if in_all else f"in {' and '.join(_MODES.get(mode, mode) for mode in modes)} mode")
    parts += ["from either thread"] if len(callers) > 1 else [_CALLERS.get(caller, caller) for caller in callers]
    parts += ["on either kind of stream"] if len(streams) > 1 else [_STREAMS.get(stream, stream) for stream in streams]
    return ", ".join(filter(None, parts))


def _capture(answer: Answer) -> Iterable[str]:
    """What became of the call, and of the capture."""
    status = next((answer[key] for key in _STATUS if key in answer), None)
    name, end = answer.get("result"), answer.get("end_capture")
    if name is not None:
        yield _call(name)
    if status and (status, name) != ("ACTIVE", SUCCESS):
        yield _AFTERWARDS.get(status, f"the capture is {status.lower()}")
    if end and end != _NATURAL_END.get(status or ""):
        yield f"its end answers {_value(end)}"


def _call(name: str) -> str:
    if name == SUCCESS:
        return "legal"
    return f"refused ({_result(name)})" if name.startswith(_ERROR) else name.lower().replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == SUCCESS:
        return "success"
    return _result(value) if isinstance(value, str) else str(value)


def _result(name: str) -> str:
    """``CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`` as ``900 STREAM_CAPTURE_UNSUPPORTED``; another name as it is."""
    short = name.removeprefix(_ERROR)
    return f"{Result[short].value} {short}" if short in Result.__members__ else short
