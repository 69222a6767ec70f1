"""plan, evaluate and explain in one call: the answers are those of the commands, and they know their problem."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpsolver as apss
from cpsolver.doors.python import answers, calls
from cpsolver.explanation.account import SILENT, SearchDisplay, solve
from cpsolver.explanation.recommendation import recommend
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result
from cpsolver.search.space import Spaces
from tests.support.command import in_tmp, run, write

__all__ = ["in_tmp"]

ASKED: dict[str, Any] = {"on": {"a800": 8}, "batch": 16, "seq": 2048}
PINNED: dict[str, Any] = {"top": 1, "pin": {"vpp": 1, "mbs": 1}}
LINE = ("plan", "llama2-7b", "--on", "a800:8", "--batch", "16", "--seq", "2048")


@pytest.fixture(scope="module")
def answer() -> apss.PlanAnswer:
    return apss.plan("llama2-7b", **ASKED, **PINNED)


def test_an_answer_is_that_of_the_spec_and_of_the_command(answer: apss.PlanAnswer) -> None:
    spec = {
        "model": "llama2-7b",
        "cluster": {"num_gpus": 8, "chips": {"a800": 8}},
        "training": {"global_batch_size": 16, "sequence_length": 2048},
        "search": PINNED,
    }
    assert apss.plan(spec).plans == answer.plans
    write("spec.yaml", json.dumps(spec))
    told = json.loads(run("solve", "spec.yaml", "--json").stdout)
    assert [plan["step_time_s"] for plan in told["plans"]] == [plan.step_time_s for plan in answer.plans]
    assert told["plans"] == json.loads(json.dumps(answer.to_dict()["plans"]))
    assert apss.plan(answer.problem).result.plans == answer.result.plans


def test_a_question_is_searched_once_and_others_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Problem] = []

    def counted(problem: Problem, display: SearchDisplay = SILENT, spaces: Spaces | None = None) -> Result:
        searched.append(problem)
        return solve(problem, display, spaces)

    monkeypatch.setattr(calls, "_ANSWERS", [])
    monkeypatch.setattr(calls, "solve", counted)
    first = apss.plan("llama2-7b", **ASKED, **PINNED)
    first.to_dict()["plans"].clear()
    again = apss.plan("llama2-7b", **ASKED, **PINNED)
    assert again.result is first.result
    assert again.to_dict()["plans"]
    assert apss.plan("llama2-7b", **{**ASKED, "batch": 32}, **PINNED).searched != first.searched
    assert apss.plan("llama2-7b", **ASKED, **PINNED, risk=1).searched is not first.searched
    assert len(searched) == 3
    watched = apss.plan("llama2-7b", **ASKED, **PINNED, display=SILENT)  # whoever watches sees a search
    assert watched.searched is not first.searched
    assert watched.searched.recommendation == first.result.recommendation


def test_what_to_run_is_looked_for_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Result] = []

    def counted(problem: Problem, result: Result, spaces: Spaces | None = None) -> Result:
        looked.append(result)
        return recommend(problem, result, spaces)

    monkeypatch.setattr(calls, "_ANSWERS", [])
    monkeypatch.setattr(answers, "recommend", counted)
    answer = apss.plan("llama2-7b", **ASKED, **PINNED)
    assert (answer.best.rank, answer.status, answer.proof.complete, answer.reasons) == (1, "optimal", True, ())
    assert looked == []
    assert answer.run_this in answer.plans
    assert answer.best in answer.plans
    assert looked == [answer.searched]
    assert apss.plan("llama2-7b", **ASKED, **PINNED).run_this == answer.run_this
    assert len(looked) == 1


def test_the_spaces_of_a_search_are_gone_on_with_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recommendation narrows them: what is known of them then need not hold for another."""
    monkeypatch.setattr(calls, "_ANSWERS", [])
    first, again = (apss.plan("llama2-7b", **ASKED, **PINNED) for _ in range(2))
    spaces = first.spaces()
    assert spaces is not None
    assert again.spaces() is None
    told = [recommend(each.problem, each.searched, own) for each, own in ((first, spaces), (again, None))]
    assert told[0] == told[1]
    apss.plan("llama2-7b", **{**ASKED, "batch": 32}, **PINNED)
    other = apss.plan("llama2-7b", **{**ASKED, "batch": 64}, **PINNED)
    apss.plan("llama2-7b", **{**ASKED, "batch": 8}, **PINNED)
    assert other.spaces() is None  # those of the last search alone


def test_a_recommendation_that_was_stopped_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_ANSWERS", [])
    whole = apss.plan("llama2-7b", **ASKED, **PINNED)
    unsettled = replace(recommend(whole.problem, whole.searched), settled=False)
    with monkeypatch.context() as stopped:
        stopped.setattr(answers, "recommend", lambda *_: unsettled)
        assert not apss.plan("llama2-7b", **ASKED, **PINNED).result.settled
    again = apss.plan("llama2-7b", **ASKED, **PINNED)
    assert again.searched is whole.searched
    assert again.result == whole.result


@pytest.mark.parametrize("lacking", ["settled", "complete", "plans"])
def test_an_answer_that_lacks_something_is_looked_for_again(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = apss.plan("llama2-7b", **ASKED, **PINNED).result
    changes: dict[str, Any] = {
        "settled": {"settled": False},
        "complete": {"proof": replace(whole.proof, stop="time_limit")},
        "plans": {"plans": (), "recommendation": None},
    }
    monkeypatch.setattr(calls, "_ANSWERS", [])
    monkeypatch.setattr(calls, "solve", lambda *_, **__: replace(whole, **changes[lacking]))
    first = apss.plan("llama2-7b", **ASKED, **PINNED)
    assert apss.plan("llama2-7b", **ASKED, **PINNED).searched is not first.searched


def test_the_best_plan_has_its_figures(answer: apss.PlanAnswer) -> None:
    best, told = answer.best, answer.to_dict()["plans"][0]
    assert best.interval_s == (told["step_time_low_s"], told["step_time_high_s"])
    assert best.interval_s[0] < best.step_time_s < best.interval_s[1]
    assert best.tokens_per_s == pytest.approx(16 * 2048 / best.step_time_s)
    assert best.tokens_per_s_per_gpu == pytest.approx(best.tokens_per_s / 8)
    assert sum(best.breakdown_s.values()) == pytest.approx(best.step_time_s)
    assert best.memory_bytes["a800"] == pytest.approx(told["memory_gib"]["a800"] * 2**30)
    assert best.capacity_bytes["a800"] == pytest.approx(told["capacity_gib"]["a800"] * 2**30)
    assert best.out_of_memory_probability == told["out_of_memory_probability"]
    assert (best.rank, best.gap, best.legal) == (1, 0.0, True)
    assert "fastest" in best.roles
    assert answer.run_this in answer.plans
    assert repr(best) in repr(answer)


def test_a_frame_has_a_row_for_each_plan(answer: apss.PlanAnswer) -> None:
    frame = answer.to_frame()
    assert list(frame["rank"]) == [plan.rank for plan in answer.plans]
    assert list(frame["step_time_s"]) == [plan.step_time_s for plan in answer.plans]
    assert list(frame["tp"]) == [plan.strategy.tp for plan in answer.plans]
    assert "roles" in frame.columns
    assert len(answer.best.to_frame()) == 1


def test_without_pandas_it_says_what_to_install(answer: apss.PlanAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(apss.InputError, match="to_frame: needs pandas: pip install pandas"):
        answer.to_frame()


class Pieces(HTMLParser):
    """The elements of a piece of HTML that are open at its end, and what it would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.left: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.left.append(tag)
        known = dict(attributes)
        if tag in ("script", "link", "img", "iframe") or known.keys() & {"src", "href", "onclick", "onload"}:
            self.loads.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.left.pop() == tag


def test_a_notebook_shows_it_without_script_or_network(answer: apss.PlanAnswer) -> None:
    for shown in (answer._repr_html_(), answer.best._repr_html_()):
        pieces = Pieces(shown)
        assert (pieces.left, pieces.loads) == ([], [])
        assert shown.startswith('<div class="apss-cp"><style>.apss-cp {')
        rules = shown[shown.index("<style>") + 7 : shown.index("</style>")]
        heads = [rule.split("{")[0].split(",") for rule in rules.split("}") if rule.strip()]
        assert all(one.strip().startswith(".apss-cp") for head in heads for one in head)  # nothing around it changes
    assert "Proven" in answer._repr_html_()
    assert "k-compute" in answer._repr_html_()


def test_a_name_cannot_become_markup() -> None:
    model = {
        "name": "<img src=x onerror=alert(1)>",
        "layers": 4,
        "hidden": 1024,
        "ffn": 2816,
        "heads": 8,
        "vocab": 4000,
    }
    mine = apss.evaluate(model, **ASKED)
    assert "<img" not in mine._repr_html_()
    assert "&lt;img" in mine._repr_html_()


def test_a_plan_of_some_decisions_is_filled_in_evenly() -> None:
    mine = apss.evaluate("llama2-7b", **ASKED, tp=2, pp=2)
    assert (mine.strategy.dp, mine.strategy.mbs, mine.strategy.layers) == (2, 1, (16, 16))
    assert mine.filled_in["dp"] == 2
    assert mine.legal
    assert mine.to_dict()["filled_in"]["layers"] == [16, 16]
    problem = mine.problem
    assert apss.evaluate(problem, tp=2, pp=2) == mine
    assert apss.evaluate(problem, mine.strategy) == mine.evaluation
    full = apss.evaluate("llama2-70b", **ASKED)
    assert [found.rule for found in full.violations] == ["memory"]
    assert "not legal" in repr(full)
    assert "memory" in full._repr_html_()


def test_a_plan_is_exported_from_where_it_stands(answer: apss.PlanAnswer) -> None:
    launch = answer.best.export("megatron-lm", "launch")
    assert {path.name for path in Path("launch").iterdir()} == set(launch.files)
    with pytest.raises(apss.InputError, match="is there already"):
        answer.best.export("megatron-lm", "launch")
    with pytest.raises(apss.InputError, match="unknown target"):
        answer.best.export("megatron")


def test_no_plan_is_an_answer_and_its_best_an_error() -> None:
    none = apss.plan("llama2-7b", **ASKED, time_limit_s=0.2, pin={"tp": 3})
    assert (none.status, none.plans) == ("infeasible", ())
    with pytest.raises(apss.NoPlanError) as caught:
        _ = none.best
    assert str(caught.value) == "\n".join(["there is no plan", *none.reasons])
    assert next(iter(none.to_frame().columns)) == "rank"
    assert len(none.to_frame()) == 0
    assert "There is no plan" in none._repr_html_()
    assert Pieces(none._repr_html_()).left == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"on": {"h100": 8.0}}, "on = {'h100': 8.0}: does not say how many h100 there are"),
        ({"on": {"h100": True}}, "does not say how many h100 there are"),
        ({"on": {}}, "names no chip"),
        ({"on": {"h100": 2**20 + 1}}, "has 1048577 of h100: at most 1,048,576"),
        ({"on": {"h100": 10**5000}}, "of h100: at most 1,048,576"),
        ({"on": "h100:" + "9" * 5000}, "the most devices of h100 must be a whole number, not '99"),
        ({"gpus_per_node": 0}, "gpus_per_node = 0: must be at least 1"),
        ({"on": "h100"}, "on = 'h100': does not say how many h100 there are"),
        ({"on": {"h101": 8}}, "on = 'h101': unknown chip"),
        ({"on": {"h100": 12}}, "on = 12: is not a multiple of gpus_per_node = 8"),
        ({"batch": 0}, "batch = 0: must be at least 1"),
        ({"seq": None}, "seq: is required, and missing"),
        ({"launcher": "megatron"}, "launcher = 'megatron': unknown launcher"),
        ({"precision": "int8"}, "precision = 'int8': is not one of the choices"),
        ({"tip": 1}, "tip = 1: is not a known field; did you mean 'top'?"),
        ({"training": {"tokens": -1}}, "training.tokens = -1: must be"),
        ({"on": 8}, "on = 8: must be chips and how many of each"),
        ({"on": [{"h100": 8}]}, "on: is a list: one is asked about"),
        ({"cluster": "idle"}, "cluster = 'idle': must be a mapping of fields"),
        ({"calibration": 5}, "calibration = 5: must be the name of a file"),
    ],
)
def test_what_is_wrong_is_named_by_its_argument(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(apss.InputError) as caught:
        apss.plan("llama2-7b", **{**ASKED, **changes})
    assert said in str(caught.value)


def test_answers_can_be_kept_and_copied(answer: apss.PlanAnswer) -> None:
    """What was worked out on the way goes by objects of this process: a copy of it would be another chip's."""
    assert answer.plans[0].step_time_s > 0
    assert answer.problem.worked_out
    for again in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
        assert not again.problem.worked_out
        assert again == answer
        assert again.to_dict() == answer.to_dict()
        assert again.run_this.to_dict() == answer.run_this.to_dict()
    assert pickle.loads(pickle.dumps(answer.best)).roles == answer.best.roles


def test_numbers_of_a_data_frame_are_numbers() -> None:
    """NumPy's whole numbers are no int of Python's: one row of a frame is a question like any other."""
    usual = apss.plan("llama2-7b", on={"a800": 8}, batch=16, seq=512, pin={"tp": [1, 2]}).problem
    eight: Any = np.int64(8)
    asked = apss.plan("llama2-7b", on={"a800": eight}, batch=2 * eight, seq=64 * eight, pin={"tp": np.array([1, 2])})
    assert asked.problem == usual
    assert apss.evaluate("llama2-7b", on={"a800": eight}, batch=16, seq=512, tp=np.int64(2)).strategy.tp == 2


def test_a_whole_spec_or_a_problem_takes_no_size_of_a_model(answer: apss.PlanAnswer) -> None:
    with pytest.raises(apss.InputError, match="batch: is an argument for a model or a spec, and a problem is given"):
        apss.plan(answer.problem, batch=16)
    with pytest.raises(apss.InputError, match="on: says on what a model is trained, and a whole spec is given"):
        apss.plan({"model": "llama2-7b"}, on={"a800": 8})
    with pytest.raises(apss.InputError, match="tp: is a decision, and a whole plan is given"):
        apss.evaluate(answer.problem, answer.best.strategy, tp=2)  # type: ignore[call-overload]
    with pytest.raises(apss.InputError, match=r"^'pipe' is no decision of a plan; did you mean 'pp'\?"):
        apss.evaluate(answer.problem, pipe=2)
    with pytest.raises(apss.InputError, match=r"^tp = 0: must be a whole number"):
        apss.make_strategy(answer.problem, tp=0)


def test_the_fields_of_a_spec_in_a_file_are_replaced_and_troubles_have_lines() -> None:
    write("spec.yaml", "model: llama2-7b\ncluster: {num_gpus: 8, chips: a800}\ntraining:\n  global_batch_size: 16\n")
    with pytest.raises(apss.InputError, match=r"spec\.yaml:3:1 training.sequence_length: is required"):
        apss.plan("spec.yaml")
    mine = apss.evaluate("spec.yaml", training={"sequence_length": 2048}, launcher="megatron-lm", tp=2)
    assert mine.problem.sequence == 2048
    assert mine.problem.spec.launcher == "megatron-lm"


@pytest.mark.parametrize(
    ("decisions", "said"),
    [
        ({"layers": []}, "layers = []: must be a list, an entry a stage"),
        ({"stage_chips": 5}, "stage_chips = 5: must be a list, an entry a stage"),
        ({"layers": (16, 17)}, "33 layers"),
        ({"tp": 3}, "tp 3 * cp 1 * pp 1 = 3 does not divide the cluster's 8 devices: no dp fits"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named_by_its_decision(decisions: dict[str, Any], said: str) -> None:
    with pytest.raises(apss.InputError) as caught:
        apss.evaluate("llama2-7b", **ASKED, **decisions)
    assert said in str(caught.value)
    assert "--set" not in str(caught.value)


@pytest.mark.full
def test_explanations_are_those_of_the_parts(answer: apss.PlanAnswer) -> None:
    mine = apss.evaluate(answer.problem, tp=8)
    why = apss.explain(mine)
    assert why.strategy == mine.strategy
    assert why.changes
    account = apss.explain("llama2-7b", **ASKED, pin={"tp": 8})
    assert account.prices is not None
    assert "search.pin.tp" in account.prices.found[0].text
    assert not apss.explain("llama2-7b", **ASKED, pin={"tp": 3}).result.plans
