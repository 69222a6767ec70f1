"""The library: what `import cpsolver` gives, that it is cheap, and that its answers are those of the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import ruamel.yaml

import cpsolver
from tests.support.checkout import ROOT
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run

SMALL: dict[str, object] = {
    "model": "llama2-7b",
    "cluster": {"num_gpus": 8, "chips": "a800"},
    "training": {"global_batch_size": 16, "sequence_length": 2048},
    "search": {"top": 1, "pin": {"vpp": 1, "mbs": 1}},
}


def small() -> cpsolver.Problem:
    return cpsolver.make_problem(SMALL)


def test_importing_it_is_cheap() -> None:
    script = (
        "import sys, cpsolver; print(*sorted(set(sys.modules) & {'numpy', 'pydantic', 'ortools', 'rich', 'click'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_name_is_there_and_documented() -> None:
    for name in cpsolver.__all__:
        assert getattr(cpsolver, name).__doc__, name
    assert set(cpsolver.__all__) < set(dir(cpsolver))
    with pytest.raises(AttributeError, match="no attribute 'solv'"):
        cpsolver.solv  # noqa: B018


def test_a_problem_of_single_fields_is_that_of_the_spec() -> None:
    made = cpsolver.make_problem(
        model="llama2-7b",
        num_gpus=8,
        chips="a800",
        global_batch_size=16,
        sequence_length=2048,
        top=1,
        pin={"vpp": 1, "mbs": 1},
    )
    assert made == small()


def test_single_fields_replace_those_of_a_spec() -> None:
    problem = cpsolver.make_problem(SMALL, num_gpus=16, chips={"h800": 8, "a800": -1}, top=5)
    assert (problem.num_gpus, problem.chip_names) == (16, ("h800", "a800"))
    assert (problem.spec.search.top, problem.spec.search.pin.mbs) == (5, (1,))


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(cpsolver.InputError) as caught:
        cpsolver.make_problem(model="llama2-7", num_gpus=0, chips="a80", global_batch_size=1, sequence_length=1, tip=1)
    assert {trouble.where for trouble in caught.value.troubles} >= {"model", "cluster.num_gpus", "cluster.chips"}
    assert "search.tip" in str(caught.value)
    with pytest.raises(cpsolver.InputError, match="model: is required"):
        cpsolver.make_problem()


def test_its_answers_are_those_of_the_commands(tmp_path: Path) -> None:
    spec, plans = Path("spec.yaml"), Path("plans.json")
    spec.write_text(json.dumps(SMALL), encoding="utf-8")
    plans.write_text(run("solve", "spec.yaml", "--json").stdout, encoding="utf-8")
    problem = cpsolver.load_problem(spec)
    best = cpsolver.solve(problem).plans[0]
    assert best == cpsolver.solve(spec).plans[0] == cpsolver.solve(SMALL).plans[0]
    document = json.loads(plans.read_text(encoding="utf-8"))["plans"][0]
    assert best.evaluation.step_time_s == document["step_time_s"]
    assert cpsolver.load_strategy(plans, problem) == best.strategy
    assert cpsolver.evaluate(problem, best.strategy) == best.evaluation
    assert cpsolver.check(problem, best.strategy) == ()
    launch = cpsolver.export(problem, best.strategy, "megatron-lm", folder="launch")
    told = json.loads(run("export", "spec.yaml", "--to", "megatron-lm", "--plan", "plans.json", "--json").stdout)
    assert list(launch.arguments) == told["arguments"]
    assert {path.name for path in Path("launch").iterdir()} == set(launch.files)
    with pytest.raises(cpsolver.InputError, match="is there already"):
        cpsolver.export(problem, best.strategy, "megatron-lm", folder="launch")


def test_a_plan_that_does_not_add_up_is_an_error_of_evaluate_and_a_verdict_of_check() -> None:
    problem = small()
    plan = cpsolver.load_strategy(write_plan(layers=[30]), problem)
    broken = cpsolver.check(problem, plan)
    with pytest.raises(cpsolver.InputError) as caught:
        cpsolver.evaluate(problem, plan)
    assert [trouble.message for trouble in caught.value.troubles] == [str(each) for each in broken]


def test_what_a_target_cannot_run_is_an_input_error_with_the_reasons() -> None:
    problem = small()
    plan = cpsolver.load_strategy(write_plan(layers=[16, 16]), problem)
    with pytest.raises(cpsolver.CannotExpress) as caught:
        cpsolver.export(problem, plan, "accelerate")
    assert isinstance(caught.value, cpsolver.InputError)
    assert caught.value.reasons == tuple(str(trouble) for trouble in caught.value.troubles)
    with pytest.raises(cpsolver.InputError, match="unknown target"):
        cpsolver.export(problem, plan, "megatron")


@pytest.mark.full
def test_a_spec_and_a_plan_are_explained() -> None:
    none = cpsolver.explain(cpsolver.make_problem(SMALL, pin={"tp": 3}))
    assert (none.result.status, none.prices) == ("infeasible", None)
    assert none.reasons
    pinned = cpsolver.make_problem(SMALL, pin={"tp": 8})
    account = cpsolver.explain(pinned)
    assert account.prices is not None
    assert "search.pin.tp" in account.prices.found[0].text
    verdict = cpsolver.explain(small(), account.result.plans[0].strategy)
    assert verdict.changes


def write_plan(layers: list[int]) -> Path:
    plan = {"tp": 1, "dp": 8 // len(layers), "mbs": 1, "stages": [{"chip": "a800", "layers": layers}]}
    path = Path("plan.yaml")
    with path.open("w", encoding="utf-8") as file:
        ruamel.yaml.YAML(typ="safe").dump(plan, file)
    return path
