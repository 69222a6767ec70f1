"""docs/answer.schema.json: it is what the code says, and answers of every kind are of its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import cpsolver as apss
from cpsolver.doors.report.document import ANSWER_VERSION, dumps, trouble_document
from cpsolver.doors.report.schema import answer_schema
from tests.support.checkout import ROOT
from tests.support.selection import later

SIZES = {"global_batch_size": 32, "sequence_length": 1024}
ONE = {"top": 1, "risk": 1.0}
PLAIN: dict[str, Any] = {"model": "llama2-7b", "cluster": {"num_gpus": 8, "chips": "a800"}, "training": SIZES}
MIXED = {"a800": 8, "h800": 8}
PRICED = {"num_gpus": 16, "chips": MIXED, "prices": {"a800": 1.2, "h800": 2.1}, "idle": True}
NETWORK = {"num_gpus": 16, "chips": {"a800": {"max": 16, "network_gbit_s": 100}}, "network": "hdr-8x200"}
KINDS = {
    "safer and simpler ones": {**PLAIN, "search": {"top": 2, "pin": {"mbs": 1}}},
    "two chip types": {**PLAIN, "cluster": {"num_gpus": 16, "chips": MIXED}, "search": {**ONE, "pin": {"mbs": 1}}},
    "own degrees": {
        **PLAIN,
        "cluster": {"num_gpus": 16, "chips": MIXED},
        "launcher": "flagscale",
        "search": {**ONE, "pin": {"mbs": 1, "vpp": 1}},
    },
    "prices and a deadline": {
        **PLAIN,
        "cluster": PRICED,
        "search": {**ONE, "objective": "fewest_chips", "deadline": {"tokens": 1e9, "days": 3}, "pin": {"mbs": 1}},
    },
    "adapters": {**PLAIN, "training": {**SIZES, "lora": {"rank": 16}}, "search": ONE},
    "experts": {
        **PLAIN,
        "model": "mixtral-8x7b",
        "cluster": {"num_gpus": 16, "chips": "h100"},
        "search": {**ONE, "pin": {"vpp": 1, "mbs": 1}},
    },
    "matrices and a network": {
        **PLAIN,
        "cluster": NETWORK,
        "training": {**SIZES, "optimizer": "muon"},
        "search": {**ONE, "pin": {"tp": 2, "mbs": 1}},
    },
}


def validator(kind: str) -> Draft202012Validator:
    """Of one kind of answer, in which nothing may stand that the schema does not name."""
    schema = answer_schema(strict=True)
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]})


def troubles(kind: str, document: Any) -> list[str]:
    found = validator(kind).iter_errors(json.loads(dumps(document)))
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


def test_the_page_is_what_the_code_says() -> None:
    written = (ROOT / "docs" / "answer.schema.json").read_text(encoding="utf-8")
    assert json.loads(written) == apss.answer_schema(), "python -m tools.answer_schema writes it"
    Draft202012Validator.check_schema(answer_schema())
    assert answer_schema()["title"] == f"apss-cp answer {ANSWER_VERSION}"


@pytest.mark.parametrize(
    "what",
    [
        "prices and a deadline",
        "adapters",
        *later((name,) for name in KINDS if name not in ("prices and a deadline", "adapters")),
    ],
)
def test_answers_of_every_kind_are_of_its_shape(what: str) -> None:
    answer = apss.plan(KINDS[what])
    assert answer.plans
    assert troubles("SolveAnswer", answer.to_dict()) == []


def test_so_are_those_without_a_plan_judgements_and_bad_input() -> None:
    none = apss.plan(PLAIN, time_limit_s=0.2, pin={"tp": 3})
    assert none.status == "infeasible"
    assert troubles("SolveAnswer", none.to_dict()) == []
    assert troubles("EvaluateAnswer", apss.evaluate(PLAIN, tp=2, recompute="selective").to_dict()) == []
    with pytest.raises(apss.InputError) as caught:
        apss.plan({**PLAIN, "model": "llama2-7"})
    assert troubles("BadInput", trouble_document(caught.value)) == []


@pytest.mark.full
def test_so_is_one_with_a_second_opinion() -> None:
    answer = apss.plan({**PLAIN, "search": {**ONE, "pin": {"mbs": 1}}}).verify(time_limit_s=5)
    assert troubles("SolveAnswer", answer.to_dict()) == []


def test_it_notices_what_is_missing_wrong_or_unknown() -> None:
    told = apss.evaluate(PLAIN, tp=2).to_dict()
    assert troubles("EvaluateAnswer", {**told, "more": 1})
    assert troubles("EvaluateAnswer", {name: value for name, value in told.items() if name != "legal"})
    (plan,) = told["plans"]
    assert troubles("EvaluateAnswer", {**told, "plans": [{**plan, "step_time_s": "1.0"}]})
    assert troubles("EvaluateAnswer", {**told, "plans": [{**plan, "memory_share": 1}]})
