"""Two drivers' records side by side: every changed answer is found, told in words, and nothing else is.

Proves it on the committed records of the H200, changed as another driver might have answered, for every kind that the
probes write.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compare_support import LEGAL, RECORDS, REFUSED, answer, changed, load, rows

from breakgraph.compare.changes import Comparison, compare
from breakgraph.compare.records import KINDS, Question, read
from breakgraph.compare.report import as_json, as_text
from breakgraph.errors import BreakgraphError

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def against(kind: str, other: Path) -> Comparison:
    return compare(read(RECORDS[kind]), read(other))


def text(kind: str, other: Path) -> str:
    return as_text(against(kind, other))


def test_there_is_a_record_of_every_kind() -> None:
    assert set(KINDS) <= set(RECORDS)


@EVERY_KIND
def test_a_record_has_not_changed_from_itself(kind: str) -> None:
    same = against(kind, RECORDS[kind])
    assert (same.changes, same.only_before, same.only_now, same.header, same.costs) == ((), (), (), {}, {})
    assert as_text(same).endswith(f"Nothing changed: all {same.same} answers are the same.")


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("capture-legality", 372),
        ("capture-cases", 234),
        ("capture-sequences", 49),
        ("release", 5),
        ("exec-update", 121),
        ("queue", 7),
        ("cublas", 8),
    ],
)
def test_every_row_is_a_question_of_its_own(kind: str, asked: int) -> None:
    measured = sum(row.get("unit") in ("us", "ms", "bytes", "MiB") for row in rows(load(kind)) if kind != "release")
    assert len(read(RECORDS[kind]).answers) == asked == len(rows(load(kind))) - measured


def test_every_step_and_entry_point_of_the_re_begin_probe_is_a_question_of_its_own() -> None:
    record = load("rebegin")
    asked = len(record["steps"]) + len(record["rows"]) + len(record["entry_points"]) + 1
    assert len(read(RECORDS["rebegin"]).answers) == asked


# --- no answer may change unseen --------------------------------------------------------------------------


def fields_of(kind: str) -> list[Any]:
    """Every field of every answer of a record."""
    answers = read(RECORDS[kind]).answers
    return [(question, key) for question, fields in answers.items() for key in fields]


def other_than(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return [*value[:-1], "CUDA_ERROR_UNKNOWN"]
    return "CUDA_ERROR_UNKNOWN" if str(value).startswith("CUDA_") else "INVALIDATED" if value == "ACTIVE" else "OTHER"


@EVERY_KIND
def test_any_field_of_any_answer_that_changes_is_a_change_whose_words_differ(kind: str) -> None:
    before = read(RECORDS[kind])
    for question, key in fields_of(kind):
        fields = before.answers[question]
        other = fields | {key: other_than(fields[key])}
        (change,) = compare(before, replace(before, answers=before.answers | {question: other})).changes
        assert change.question == question
        assert change.words[0] != change.words[1], (question, key)


def test_each_field_of_each_row_is_read() -> None:
    for kind in ("capture-legality", "capture-cases", "capture-sequences"):
        naming = {"call", "case", "caller", "capture_stream", "mode"}
        for row, fields in zip(rows(load(kind)), read(RECORDS[kind]).answers.values(), strict=True):
            assert fields == {key: value for key, value in row.items() if key not in naming}


# --- in words ---------------------------------------------------------------------------------------------


def test_a_call_that_became_legal_is_told_with_its_mode_thread_and_stream(tmp_path: Path) -> None:
    naming = {"call": "cuMemAlloc", "caller": "same_thread", "capture_stream": "non_blocking", "mode": "thread_local"}
    told = text("capture-legality", changed("capture-legality", tmp_path, answer(LEGAL, **naming)))
    assert "was refused (900 STREAM_CAPTURE_UNSUPPORTED), the capture is invalidated; is now legal\n" in told
    assert "  cuMemAlloc in thread-local mode, from the capturing thread, on a non-blocking stream\n" in told
    assert "    C28: what a segment allocates comes from the arena" in told
    assert "1 of 372 answers changed" in told


def test_the_same_change_of_one_call_is_told_once(tmp_path: Path) -> None:
    change = answer(LEGAL, call="cuMemAlloc", caller="same_thread")
    told = text("capture-legality", changed("capture-legality", tmp_path, change))
    where = [line for line in told.splitlines() if line.startswith("  cuMemAlloc")]
    assert where == [
        "  cuMemAlloc in global and thread-local mode, from the capturing thread, on either kind of stream"
    ]
    assert "4 of 372 answers changed" in told


def test_a_change_that_is_no_whole_is_told_by_thread_and_stream(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        answer(LEGAL, call="cuMemAlloc", caller="same_thread", capture_stream="blocking")(record)
        answer(LEGAL, call="cuMemAlloc", caller="other_thread", mode="global", capture_stream="non_blocking")(record)

    told = text("capture-legality", changed("capture-legality", tmp_path, change))
    assert "  cuMemAlloc in global mode, from another thread, on a non-blocking stream\n" in told
    assert "  cuMemAlloc in global and thread-local mode, from the capturing thread, on a blocking stream\n" in told


def test_the_same_change_of_several_calls_is_one_group(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        for call in ("cuMemAlloc", "cuModuleUnload"):
            answer(LEGAL, call=call, mode="thread_local", caller="same_thread", capture_stream="non_blocking")(record)

    told = text("capture-legality", changed("capture-legality", tmp_path, change))
    assert told.count("; is now ") == 1
    assert told.index("  cuMemAlloc in") < told.index("  cuModuleUnload in")


def test_a_call_that_became_refused_and_one_that_now_kills_the_process_are_told(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        place = {"caller": "same_thread", "capture_stream": "non_blocking", "mode": "thread_local"}
        answer(REFUSED, call="cuEventCreate", **place)(record)
        answer({"result": "NO ANSWER", "error": "the process ended with -11"}, call="cuMemGetInfo", **place)(record)
        for row in rows(record):
            if row["result"] == "NO ANSWER":
                del row["status_after"], row["end_capture"], row["graph_returned"]

    told = text("capture-legality", changed("capture-legality", tmp_path, change))
    assert "was legal; is now refused (900 STREAM_CAPTURE_UNSUPPORTED), the capture is invalidated\n" in told
    assert "was legal; is now no answer\n" in told


def test_a_capture_that_survives_a_refusal_is_told_apart(tmp_path: Path) -> None:
    fields = {"status_after": "ACTIVE", "end_capture": "CUDA_SUCCESS", "nodes_in_graph": 1}
    told = text(
        "capture-cases", changed("capture-cases", tmp_path, answer(fields, case="cuMemFree", mode="thread_local"))
    )
    assert "the capture is invalidated; is now refused (900 STREAM_CAPTURE_UNSUPPORTED), the capture goes on\n" in told


def test_an_end_that_does_not_follow_from_the_status_is_told(tmp_path: Path) -> None:
    fields = {"end_capture": "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "nodes_in_graph": None}
    told = text("capture-cases", changed("capture-cases", tmp_path, answer(fields, case="cuStreamCreate")))
    assert (
        "was legal; is now legal, its end answers 904 STREAM_CAPTURE_UNJOINED\n  cuStreamCreate in any mode\n" in told
    )


def test_other_nodes_in_the_graph_are_told(tmp_path: Path) -> None:
    change = answer({"nodes_in_graph": 7}, case="kernel_on_capturing", mode="thread_local")
    told = text("capture-cases", changed("capture-cases", tmp_path, change))
    assert "was legal, nodes in graph: 2; is now legal, nodes in graph: 7\n" in told


def test_a_sequence_is_told_with_the_fields_of_its_story(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        answer({"side_status": "NONE"}, case="fork: side stream waits on an event recorded in the capture")(record)
        name = "stream-ordered allocation left in a captured graph: instantiate, launch, launch again"
        answer({"results": ["CUDA_SUCCESS"] * 3}, case=name)(record)

    told = text("capture-sequences", changed("capture-sequences", tmp_path, change))
    assert "was legal, side status: ACTIVE; is now legal, side status: NONE\n" in told
    assert "was results: success, success, 1 INVALID_VALUE; is now results: success, success, success\n" in told
    assert "C29: a segment with an allocation node left in it is refused" in told


def test_a_driver_on_which_capture_cannot_be_begun_again_is_told(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        at = next(i for i, step in enumerate(record["steps"]) if step["step"] == "segment 1 (t = y): begin capture")
        record["steps"][at] |= {"code": 401, "result": "CUDA_ERROR_ILLEGAL_STATE"}
        del record["steps"][at + 1 :]
        record |= {"verdict": "ILLEGAL", "call": "cuStreamBeginCapture", "code": 401, "why": "...", "rows": []}

    other = changed("rebegin", tmp_path, change)
    told = text("rebegin", other)
    assert "was LEGAL; is now ILLEGAL: cuStreamBeginCapture answers 401\n  verdict\n    C3: " in told
    assert "was legal; is now refused (401 ILLEGAL_STATE)\n  question: segment 1 (t = y): begin capture\n" in told
    assert "asked before only\n" in told
    assert len(against("rebegin", other).changes) == 2


def test_another_address_is_no_change_and_another_function_is(tmp_path: Path) -> None:
    def moved(record: dict[str, Any]) -> None:
        for point in record["entry_points"]:
            point["bound"] += 4096
            point["named"] += 4096

    def another(record: dict[str, Any]) -> None:
        record["entry_points"][0]["bound"] = record["entry_points"][0]["without_mode"]

    assert not against("rebegin", changed("rebegin", tmp_path, moved)).changes
    told = text("rebegin", changed("rebegin", tmp_path, another))
    assert "was bound as the driver names it; is now bound to another function\n" in told


def test_a_free_that_no_longer_waits_is_told_with_what_rests_on_it(tmp_path: Path) -> None:
    name = "cuMemFree: returned under a running kernel after"
    told = text("release", changed("release", tmp_path, answer({"value": 0.2, "holds": False}, name=name)))
    assert "was waits for running kernels; is now does not wait for running kernels\n  cuMemFree\n    C30: " in told


@pytest.mark.parametrize("value", [0.01, 20.0])
def test_how_fast_a_call_returned_that_did_not_wait_is_no_answer(tmp_path: Path, value: float) -> None:
    name = "cuMemUnmap: returned under a running kernel after"
    assert not against("release", changed("release", tmp_path, answer({"value": value}, name=name))).changes


def test_an_update_that_is_taken_now_is_told(tmp_path: Path) -> None:
    name = "fork and join, branches joined in the other order: update"
    fields = {"value": 0, "result": "CUDA_SUCCESS"}
    told = text("exec-update", changed("exec-update", tmp_path, answer(fields, name=name)))
    assert "was refused (910 GRAPH_EXEC_UPDATE_FAILURE); is now legal\n" in told
    assert "Execs that sizes share" in told


# --- what is no change ------------------------------------------------------------------------------------


def test_a_cost_is_told_from_a_factor_of_two_on_and_is_no_change(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        answer({"value": 4.0}, name="update of 1 nodes: time")(record)  # 3.29 us before
        answer({"value": 99.5}, name="update of 20 nodes: time")(record)  # 15.6 us

    other = changed("exec-update", tmp_path, change)
    told = text("exec-update", other)
    assert not against("exec-update", other).changes
    assert "  update of 20 nodes: time: 15.6 us, now 99.5 us\n" in told
    assert "update of 1 nodes" not in told
    assert "Nothing changed" in told


def test_what_differs_in_the_header_is_told_and_is_no_change(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record |= {"gpu": "NVIDIA B200", "driver": "590.44.01", "cuda": 13010, "date": "2027-02-01", "commit": "x"}
        record["versions"] |= {"cuda-bindings": "13.4.0"}

    other = changed("capture-cases", tmp_path, change)
    told = text("capture-cases", other)
    assert list(against("capture-cases", other).header) == ["gpu", "driver", "cuda", "cuda-bindings"]
    assert "  cuda-bindings: 13.3.1, now 13.4.0\n" in told
    assert "  now     NVIDIA B200, driver 590.44.01, CUDA 13.1, 2027-02-01: " in told
    assert "Nothing changed" in told


def test_what_only_one_of_them_asked_is_listed_and_is_no_change(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["rows"] = [row for row in record["rows"] if row["case"] != "cuMemFree"]
        record["rows"].append({"case": "cuNewCall", "mode": "global", "result": "CUDA_SUCCESS"})

    other = changed("capture-cases", tmp_path, change)
    told = text("capture-cases", other)
    assert "asked before only\n  cuMemFree (3 times)\n" in told
    assert "asked now only\n  cuNewCall\n" in told
    assert told.endswith("Nothing changed: all 231 answers are the same.")


# --- as JSON, and what cannot be compared -----------------------------------------------------------------


def test_the_json_has_the_fields_the_words_and_what_rests_on_them(tmp_path: Path) -> None:
    naming = {"call": "cuMemAlloc", "caller": "same_thread", "capture_stream": "non_blocking", "mode": "thread_local"}
    told = json.loads(
        as_json(against("capture-legality", changed("capture-legality", tmp_path, answer(LEGAL, **naming))))
    )
    assert set(told) == {
        "schema", "kind", "changed", "before", "now", "header", "same", "changes", "only_before", "only_now", "costs"
    }  # fmt: skip
    assert (told["schema"], told["kind"], told["changed"], told["same"]) == (1, "capture-legality", True, 371)
    assert told["before"]["driver"] == "580.159.04"
    (change,) = told["changes"]
    assert change["question"] == {
        "what": "cuMemAlloc", "caller": "same_thread", "stream": "non_blocking", "mode": "thread_local"
    }  # fmt: skip
    assert (change["was"], change["now"]) == (REFUSED, LEGAL)
    assert (change["was_in_words"], change["now_in_words"]) == (
        "refused (900 STREAM_CAPTURE_UNSUPPORTED), the capture is invalidated",
        "legal",
    )
    assert change["rests_on_it"]["rule"] == "C28"


def test_records_of_two_probes_are_refused() -> None:
    with pytest.raises(BreakgraphError, match="cannot be compared") as refused:
        compare(read(RECORDS["release"]), read(RECORDS["rebegin"]))
    assert refused.value.why == "one answers release, the other rebegin"


def test_records_without_a_common_question_are_refused(tmp_path: Path) -> None:
    other = changed("release", tmp_path, lambda record: record.update(rows=[]))
    with pytest.raises(BreakgraphError, match="cannot be compared") as refused:
        against("release", other)
    assert "no question in common" in refused.value.why


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"what": "memory", "rows": []}', '{"what": "rebegin"}', '{"what": "release", "rows": [1]}'],
)
def test_a_file_that_is_no_record_of_a_probe_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(BreakgraphError, match=r"other\.json is no record of a probe"):
        read(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BreakgraphError, match=r"missing\.json is no record of a probe") as refused:
        read(tmp_path / "missing.json")
    assert "FileNotFoundError" in refused.value.why


def test_a_question_reads_as_one_line() -> None:
    assert (
        str(Question("cuMemAlloc", "same_thread", "blocking", "global")) == "cuMemAlloc, same_thread, blocking, global"
    )
    assert str(Question("empty capture")) == "empty capture"
