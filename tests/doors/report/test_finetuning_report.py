"""What reports and JSON say of adapters and of sequences of several lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cpsolver.commands.main import main
from cpsolver.doors.report.finetuning import finetuning_fields, long_tail_words, task_words
from cpsolver.doors.report.outlook import steps_of
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.intervals import interval
from cpsolver.evidence.reach import beyond_runs
from tests.support.problems import ideal, problem_of, spec_of, strategy_of

LENGTHS = [{"tokens": 1024, "share": 1}, {"tokens": 512, "share": 2}]
"""In windows of 1024: half of these hold one sequence, the others two."""


def test_the_task_says_what_is_trained() -> None:
    lora = {"rank": 16, "targets": "attention", "quantized_base": "nf4"}
    problem = problem_of(model="llama2-70b", training={"lora": lora})
    assert (
        task_words(problem) == "LoRA of rank 16 beside qkv, proj: 44.6 M trained, 69.0 B frozen, frozen layers in nf4"
    )
    assert task_words(problem_of()) == ""


@pytest.mark.parametrize(("packing", "way"), [(True, "packed: 0.0 % padding"), (False, "padded: 33.3 % padding")])
def test_the_task_says_how_sequences_share_windows(packing: bool, way: str) -> None:
    """Padded, three sequences of 2048 tokens take three windows of 1024: a third is padding."""
    problem = problem_of(training={"lengths": LENGTHS, "packing": packing})
    assert task_words(problem) == f"sequences of 512 to 1,024 tokens, {way}"


def test_fields_stand_in_json_where_they_were_asked_for() -> None:
    plan = strategy_of(dp=4)
    plain, lora, packed, padded = (
        ideal(training=training)[0]
        for training in ({}, {"lora": {"rank": 2}}, {"lengths": LENGTHS}, {"lengths": LENGTHS, "packing": False})
    )
    told = [finetuning_fields(problem, plan, evaluate(problem, plan)) for problem in (plain, lora, packed, padded)]
    assert [list(fields) for fields in told] == [
        [],
        ["trained_parameters"],
        ["padding_share", "long_tail_s"],
        ["padding_share", "long_tail_s"],
    ]
    assert told[2]["padding_share"] == pytest.approx(0.0)
    assert (told[2]["long_tail_s"] or 0) > 0
    assert told[3] == {"padding_share": pytest.approx(1 / 3), "long_tail_s": None}


def test_the_wait_for_long_windows_is_told_where_replicas_wait() -> None:
    problem, _ = ideal(training={"lengths": LENGTHS})
    several, alone, staged = (strategy_of(groups, dp=dp) for groups, dp in (("x:4", 4), ("x:4", 1), ("x:2,2", 2)))
    (said,) = long_tail_words(problem, several, evaluate(problem, several))
    assert said.startswith("Replicas wait for the one with the longest sequences: ")
    assert "at least" not in said
    assert not list(long_tail_words(problem, alone, evaluate(problem, alone)))
    (said,) = long_tail_words(problem, staged, evaluate(problem, staged))
    assert "at least" in said


def test_padding_is_no_token_of_the_training() -> None:
    """8 windows of 1024, two thirds of them tokens: 5461 a step."""
    problem = problem_of(training={"lengths": LENGTHS, "packing": False})
    assert steps_of(problem, 5461) == 1
    assert steps_of(problem, 5462) == 2
    assert steps_of(problem_of(), 8192) == 1


def test_such_plans_lie_beyond_all_runs() -> None:
    plan = strategy_of(dp=4)
    plain, tuned = problem_of(), problem_of(training={"lora": {"quantized_base": "nf4"}, "lengths": LENGTHS})
    new = set(beyond_runs(tuned, plan)) - set(beyond_runs(plain, plan))
    assert new == {"adapters beside frozen layers in 4 bits", "attention within packed sequences"}
    widths = [high / low for low, high in (interval(each, plan, 1.0) for each in (plain, tuned))]
    assert widths[1] > widths[0]


def test_solve_and_evaluate_say_it(tmp_path: Path) -> None:
    training = {"lora": {"rank": 8}, "lengths": LENGTHS}
    spec: dict[str, Any] = spec_of({"a100": -1}, training=training, top=1)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    text = CliRunner().invoke(main, ["solve", str(path)])
    assert text.exit_code == 0, text.output
    assert "LoRA of rank 8 beside qkv, proj, fc1, fc2" in " ".join(text.output.split())
    told = json.loads(CliRunner().invoke(main, ["solve", str(path), "--json"]).stdout)["plans"][0]
    assert told["trained_parameters"] == 8 * 4 * (1024 * 4 + 2 * 1024 + 1024 + 2 * 2816 + 2816 + 1024)
    assert told["padding_share"] == pytest.approx(0.0)
    text = CliRunner().invoke(main, ["evaluate", str(path), "--set", "dp=4"])
    assert text.exit_code == 0, text.output
    assert "Replicas wait for the one with the longest sequences" in " ".join(text.output.split())
