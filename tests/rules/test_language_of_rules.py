"""Broken rules in Chinese where people read them, in English where programs do."""

from __future__ import annotations

import io
import json
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import cpsolver
from cpsolver.doors.report.document import evaluation_document
from cpsolver.doors.report.explanations import check_document, check_report
from cpsolver.doors.report.html.page import evaluation_page
from cpsolver.explanation.conflict import conflict_line, find_conflict
from cpsolver.inputs.language import CHINESE, ENGLISH, for_every_language, in_language, later, say, speaking
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import RULES, Violation, violations
from tests.support.problems import problem_of, strategy_of

TASK = problem_of(launcher="deepspeed", pin={"tp": [4]})
WRONG = strategy_of("x:3,1", tp=2, dp=1, vpp=2, cp=1)
NAMES = {"pin", "launcher", "deepspeed", "distributed_optimizer", "cp", "tp", "pp", "dp", "vpp", "x"}


def broken(problem: Problem = TASK, plan: Strategy = WRONG) -> list[Violation]:
    return violations(problem, plan)


def shown(renderable: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(renderable)
    return out.getvalue()


def test_messages_are_english_and_said_in_the_language_spoken() -> None:
    found = broken()
    assert {"pin", "launcher"} <= {each.rule for each in found}
    english = [str(each) for each in found]
    assert english == [f"{each.rule}: {each.message}" for each in found]
    with speaking(CHINESE):
        again = broken()
        chinese = [str(each) for each in again]
    assert again == found
    assert "pin：tp 为 2，而固定为 4" in chinese
    assert "launcher：deepspeed 不支持交错调度：vpp 为 2，必须为 1" in chinese
    words = re.findall("[A-Za-z_]+", " ".join(chinese))
    assert [word for word in dict.fromkeys(words) if word not in NAMES] == []


@pytest.mark.parametrize("language", [ENGLISH, CHINESE])
def test_documents_are_english(language: str) -> None:
    with speaking(language):
        found = broken()
        told = json.dumps([check_document(WRONG, found), evaluation_document(TASK, WRONG, None, found, None)])
    assert "tp is 2, pinned to 4" in told
    assert told.isascii()


def test_reports_and_pages_are_chinese() -> None:
    with speaking(CHINESE):
        report, page = shown(check_report(WRONG, broken(), None)), evaluation_page(TASK, WRONG, None, broken())
    assert "pin：tp 为 2，而固定为 4" in report
    assert "<li>pin：tp 为 2，而固定为 4</li>" in page


def test_troubles_of_plans_keep_both() -> None:
    with pytest.raises(cpsolver.InputError) as caught:
        cpsolver.evaluate(TASK, replace(WRONG, dp=3))
    trouble = caught.value.troubles[0]
    assert trouble.as_dict()["message"] == "degrees: tp 2 x pp 2 x dp 3 = 12 devices, not 4"
    with speaking(CHINESE):
        assert str(trouble) == "degrees：tp 2 x pp 2 x dp 3 = 12 个设备，不是 4 个"


def test_why_wishes_clash_is_said_in_chinese() -> None:
    task = problem_of(launcher="deepspeed", pin={"vpp": [2]})
    conflict = find_conflict(task)
    assert conflict is not None
    assert "launcher deepspeed does not interleave (vpp 1)" in conflict_line(task, conflict)
    with speaking(CHINESE):
        assert "启动框架 deepspeed 不支持交错调度（vpp 为 1）" in conflict_line(task, conflict)


@pytest.mark.parametrize(
    "launcher", [None, "accelerate", "megatron-core-0.12", "mindspeed-llm", "deepspeed", "loongforge"]
)
def test_what_a_rule_asks_for_is_said_in_any_language_later(launcher: str | None) -> None:
    """In every language it is what it is when that language is spoken at once."""
    problem = problem_of(**({} if launcher is None else {"launcher": launcher}))
    for name, rule in RULES.items():
        for asked in (set[str](), {"pp"}, {"schedule", "vpp"}, {"recompute", "sharded", "cp", "ep"}):
            with for_every_language():
                english = rule.in_short(problem, asked)
            for language in (ENGLISH, CHINESE):
                with speaking(language):
                    assert in_language(language, [english]) == [rule.in_short(problem, asked)], name


def test_a_message_inside_another_goes_to_other_processes_with_it() -> None:
    inner = later("{count} stages are described", count=2)
    told = pickle.loads(pickle.dumps(later("mesh on {chip}: {text}", chip="x", text=inner)))
    assert told == "mesh on x: 2 stages are described"
    assert say(told) == told
    with speaking(CHINESE):
        assert say(told) == "x 上的网格：2 stages are described"
    assert pickle.loads(pickle.dumps(broken())) == broken()
