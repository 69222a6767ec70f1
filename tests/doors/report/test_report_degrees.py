"""Every parallel size of a plan that is not trivial stands in the report, in the JSON and in the explanations."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from cpsolver.doors.report.console import evaluation_report, result_report
from cpsolver.doors.report.degrees import layer_traffic, size_rows, state_rows
from cpsolver.doors.report.document import dumps, evaluation_document, result_document
from cpsolver.doors.report.plan_trace import plan_trace
from cpsolver.doors.report.text import recompute_text
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.explanation.closest import strategy_text
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.load import problem_from
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_to_dict
from cpsolver.rules import violations
from cpsolver.search.result import Plan, Proof, Result


def problem_of(model: str, gpus: int, **more: Any) -> Problem:
    training = {"global_batch_size": 64, "sequence_length": 8192}
    return problem_from({"model": model, "cluster": {"num_gpus": gpus, "chips": "h100"}, "training": training, **more})


def plan(tp: int, pp: int, dp: int, layers: int, **more: Any) -> Strategy:
    groups = (StageGroup("h100", (layers // pp,) * pp, "block", (layers // pp,) * pp),)
    return Strategy(tp, pp, dp, 1, 1, tp > 1, True, True, groups, **more)


LONG = plan(2, 4, 2, 80, cp=8, ulysses=2, sharding_group=8)
SHARDED = plan(1, 1, 64, 32, sharded="parameters", cp=2, cp_gather=True)
EXPERTS = plan(2, 2, 8, 32, cp=2, ulysses=2, ep=8, etp=2)
PLANS = {
    "long": (LONG, problem_of("llama2-70b", 128)),
    "sharded": (SHARDED, problem_of("llama2-7b", 128)),
    "experts": (EXPERTS, problem_of("mixtral-8x7b", 64)),
}
ROWS = {
    "long": {"context par. (cp)": "8", "exchange": "a2a+p2p", "a2a × p2p ranks": "2 × 4", "sharding group": "8 of 16"},
    "sharded": {"context par. (cp)": "2", "exchange": "allgather", "distr. optimizer": "on: ZeRO-3"},
    "experts": {"context par. (cp)": "2", "exchange": "a2a", "experts: ep × etp": "8 × 2"},
}
TRAFFIC = {"long": "tp and cp communication", "sharded": "cp communication", "experts": "tp, cp and ep communication"}


def render(report: object, width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(report)
    return text.getvalue().splitlines()


def cells(lines: list[str], label: str) -> str:
    (found,) = (line for line in lines if line.strip().startswith(label + " "))
    return found.strip().removeprefix(label).strip()


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", PLANS)
def test_the_report_has_every_size(name: str, width: int) -> None:
    strategy, problem = PLANS[name]
    assert {found.rule for found in violations(problem, strategy)} <= {"memory"}
    lines = render(evaluation_report(problem, strategy, evaluate(problem, strategy), []), width)
    assert max(map(cell_len, lines)) <= width
    for label, cell in ROWS[name].items():
        assert cells(lines, label) == cell
    assert cells(lines, "GPUs") == f"{problem.num_gpus}"
    assert any(line.strip().startswith(TRAFFIC[name]) for line in lines)


def test_plans_that_differ_share_the_rows_and_what_one_lacks_is_a_dash() -> None:
    problem = problem_of("llama2-70b", 128)
    plain = plan(8, 4, 4, 80)
    plans = tuple(Plan(rank, each, evaluate(problem, each), 0.0) for rank, each in enumerate((LONG, plain), 1))
    proof = Proof(9, {}, 3, 4, 2, 0, 2, 2, 1.0, "complete", 1.0, 0.5, combinations=7)
    for width in (80, 160):
        lines = render(result_report(problem, Result("optimal", plans, proof)), width)
        assert cells(lines, "context par. (cp)").split() == ["8", "1"]
        assert cells(lines, "exchange").split() == ["a2a+p2p", "–"]
        assert cells(lines, "a2a × p2p ranks").split("  ")[-1].strip() == "–"
        assert " ".join(cells(lines, "sharding group").split()) == "8 of 16 all 4"
        assert any("tp, cp comm." in line for line in lines)
        assert any("of pp, tp, dp, sp, vp and mbs alone: 7 legal combinations" in line for line in lines)
    document = json.loads(dumps(result_document(problem, Result("optimal", plans, proof))))
    assert document["proof"]["combinations"] == 7


def test_what_no_plan_uses_has_no_row() -> None:
    plain = plan(8, 4, 4, 80)
    assert [label for label, _ in size_rows([plain], experts=False)] == ["tp × pp × dp"]
    assert [label for label, _ in state_rows([plain])] == ["distr. optimizer"]
    assert layer_traffic([plain]) == "tensor-parallel"
    off = replace(plain, distributed_optimizer=False)
    assert [cell(off) for _, cell in state_rows([off])] == ["off"]
    assert [replace(off, distributed_optimizer=on).zero_stage for on in (False, True)] == [0, 1]


@pytest.mark.parametrize("name", PLANS)
def test_the_json_and_the_trace_have_every_size(name: str) -> None:
    strategy, problem = PLANS[name]
    evaluation = evaluate(problem, strategy)
    document = json.loads(dumps(evaluation_document(problem, strategy, evaluation, [])))
    assert document["problem"]["launcher"] is None
    assert document["plans"][0]["strategy"] == json.loads(json.dumps(strategy_to_dict(strategy)))
    assert {"cp", "ulysses", "cp_gather", "ep", "etp", "sharded", "sharding_group"} < set(
        document["plans"][0]["strategy"]
    )
    about = plan_trace(problem, Plan(1, strategy, evaluation, 0.0))["otherData"]
    assert (about["cp"], about["ep"], about["dp"]) == (strategy.cp, strategy.ep, strategy.dp)


def test_the_launcher_is_told() -> None:
    strategy, problem = LONG, problem_of("llama2-70b", 128, launcher="megatron-lm")
    lines = render(evaluation_report(problem, strategy, evaluate(problem, strategy), []), 80)
    assert lines[1].endswith("launcher megatron-lm")


def test_a_plan_in_a_line_has_every_size() -> None:
    assert strategy_text(LONG) == (
        "tp 2 cp 8 (a2a+p2p) pp 4 dp 2 mbs 1, recompute block 20, distributed optimizer (ZeRO-1 in groups of 8)"
    )
    assert strategy_text(EXPERTS).startswith("tp 2 cp 2 (a2a) pp 2 dp 8 ep 8 etp 2 mbs 1, ")
    some = replace(EXPERTS, groups=(StageGroup("h100", (16, 16), "selective", (), ("layernorm", "moe_act")),))
    assert "recompute selective (layernorm, moe_act)" in strategy_text(some)
    assert recompute_text(some, "h100") == "selective: layernorm, moe_act"
    assert strategy_text(SHARDED).endswith("distributed optimizer (ZeRO-3)")
