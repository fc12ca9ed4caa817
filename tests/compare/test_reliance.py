"""For every question of the probes it is known what in breakgraph rests on the answer, and the table is not stale."""

from __future__ import annotations

import re

import pytest
from compare_support import RECORDS
from support import ROOT

from breakgraph.compare.records import KINDS, Question, read
from breakgraph.compare.reliance import RELIANCE, rests_on


@pytest.mark.parametrize("kind", KINDS)
def test_something_rests_on_every_question_that_a_probe_asks(kind: str) -> None:
    assert [question for question in read(RECORDS[kind]).answers if rests_on(kind, question) is None] == []


@pytest.mark.parametrize("reliance", RELIANCE, ids=lambda one: f"{one.rule}-{one.pattern[:30]}")
def test_every_line_of_the_table_is_the_first_that_fits_some_question(reliance: object) -> None:
    meant = {rests_on(kind, question) for kind in KINDS for question in read(RECORDS[kind]).answers}
    assert reliance in meant


@pytest.mark.parametrize("rule", sorted({one.rule for one in RELIANCE}))
def test_the_rule_named_is_in_the_documentation(rule: str) -> None:
    if re.fullmatch(r"[CE]\d+", rule):
        assert re.search(rf"^- {rule} ", (ROOT / "docs/contract.md").read_text(), re.MULTILINE)
    elif rule.startswith("docs/"):
        page, heading = rule.split(", ")
        assert f"\n## {heading}\n" in (ROOT / page).read_text()
    else:
        assert rule == "capture(mode=...)"


@pytest.mark.parametrize(
    ("kind", "question", "rule"),
    [
        ("rebegin", Question("verdict"), "C3"),
        ("capture-sequences", Question("thread_local capture, relaxed exchange around: instantiate"), "C8"),
        ("capture-sequences", Question("after end: query of that event"), "C11"),
        ("capture-cases", Question("cuMemMap+SetAccess(VMM)", mode="thread_local"), "C29"),
        ("capture-cases", Question("cuMemAlloc", mode="global"), "capture(mode=...)"),
        (
            "capture-cases",
            Question("cuCtxSynchronize(from_other_thread)", mode="thread_local"),
            "docs/streams.md, Threads",
        ),
        ("release", Question("cuMemFree under the relaxed exchange"), "C30"),
        ("exec-update", Question("one node more: update"), "docs/memory.md, Execs that sizes share"),
        ("queue", Question("cuEventRecord: calls"), "docs/speed.md, When a launch waits"),
        ("cublas", Question("cublasCreate: end of the capture"), "docs/frameworks.md, cupy"),
    ],
)
def test_what_rests_on_a_question_is_its_own_contract(kind: str, question: Question, rule: str) -> None:
    reliance = rests_on(kind, question)
    assert reliance is not None
    assert reliance.rule == rule


def test_on_a_question_that_nobody_knows_nothing_rests() -> None:
    assert rests_on("capture-cases", Question("cuNewCall", mode="thread_local")) is None
