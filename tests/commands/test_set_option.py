"""--set NAME=VALUE in place of a plan's file."""

import json

from tests.support.checkout import ROOT
from tests.support.command import in_tmp, run, write  # noqa: F401

SPEC = str(ROOT / "examples" / "llama2-70b-a800-256.yaml")


def test_a_plan_of_two_decisions_is_evaluated_and_the_rest_told() -> None:
    result = run("evaluate", SPEC, "--set", "tp=8", "--set", "pp=8")
    assert result.exit_code == 0
    assert "Legal" in result.stdout
    assert result.stderr.startswith("filled in: cp 1, dp 4, mbs 1, vpp 1, sequence_parallel on")
    document = json.loads(run("evaluate", SPEC, "--set", "tp=8", "--set", "pp=8", "--json").stdout)
    assert document["filled_in"]["dp"] == 4
    assert document["plans"][0]["strategy"]["pp"] == 8


def test_check_and_explain_take_it_too() -> None:
    result = run("check", SPEC, "--set", "tp=8", "--set", "pp=3", "--set", "dp=8")
    assert result.exit_code == 2
    assert "filled in: cp 1, mbs 1" in result.stderr
    assert run("explain", SPEC, "--set", "tq=8").exit_code == 2


def test_one_plan_is_asked_for() -> None:
    result = run("evaluate", SPEC)
    assert result.exit_code == 2
    assert "Give --strategy FILE, or decisions of it: --set tp=8 --set pp=8" in result.stderr
    result = run("check", SPEC, "--set", "tp=8", "--strategy", write("plan.yaml", "tp: 8"))
    assert "give one of them" in result.stderr
