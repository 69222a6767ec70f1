"""Pins that no legal plan satisfies: the answer names the rules in their way. Contradictions are refused unsolved."""

import json
from typing import Any

import pytest

from tests.support.command import in_tmp, messages, run  # noqa: F401

MODELS = {
    "dense": {"model": "llama2-70b", "training": {"global_batch_size": 16, "sequence_length": 8192}},
    "experts": {"model": "mixtral-8x7b", "training": {"global_batch_size": 32, "sequence_length": 4096}},
}


def spec(model: str, launcher: str | None = None, **search: object) -> str:
    cluster = {"num_gpus": 32, "chips": "h100"}
    return json.dumps({**MODELS[model], "cluster": cluster, "launcher": launcher, "search": {"top": 1, **search}})


IN_THE_WAY = {
    "ep 3": ("experts", {"ep": 3}, None, ["search.pin.ep = 3; ep must divide the 8 experts"]),
    "etp 3": ("experts", {"etp": 3}, None, ["search.pin.etp = 3; etp must divide tp"]),
    "etp over tp": ("experts", {"etp": 4, "tp": 2}, None, ["search.pin.tp = 2", "etp must divide tp"]),
    "no sp": (
        "experts",
        {"tp": 4, "sequence_parallel": False},
        None,
        ["search.pin.sequence_parallel = false", "a model with experts needs sequence parallelism with tp > 1"],
    ),
    "cp 7": ("dense", {"cp": 7}, None, ["search.pin.cp = 7 leaves no plan", "tp x cp x pp x dp = 32 GPUs"]),
    "ulysses 16": (
        "dense",
        {"ulysses": 16},
        None,
        ["search.pin.ulysses = 16; ulysses must divide a rank's heads (64 / tp, key-value 8 / tp)"],
    ),
    "ulysses over cp": ("dense", {"ulysses": 4, "cp": 2}, None, ["search.pin.cp = 2", "ulysses must divide cp"]),
    "both ways": (
        "dense",
        {"ulysses": 2, "cp_gather": True},
        None,
        ["search.pin.cp_gather = true", "cp_gather needs cp > 1 and ulysses 1"],
    ),
    "sharded under a pipeline": (
        "dense",
        {"sharded": "parameters", "pp": 4},
        None,
        ["search.pin.pp = 4", "gradients and parameters (ZeRO-2 and 3) are sharded without a pipeline only (pp 1)"],
    ),
    "a group that is none": ("dense", {"sharding_group": 5}, None, ["a sharding group is a divisor of dp x cp"]),
    "experts in a dense model": ("dense", {"ep": 2}, None, ["search.pin.ep = 2; the model has no experts"]),
    "launcher without experts": ("experts", {"ep": 2}, "accelerate", ["launcher accelerate has no expert parallelism"]),
    "launcher without a ring": (
        "dense",
        {"cp": 2, "ulysses": 1, "cp_gather": False},
        "deepspeed",
        ["launcher deepspeed has context parallelism of kind a2a"],
    ),
    "launcher without interleaving": ("dense", {"vpp": 2}, "deepspeed", ["launcher deepspeed does not interleave"]),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_a_pin_that_nothing_satisfies_names_the_rules_in_its_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # test_explain.py solves these
    monkeypatch.setattr("cpsolver.explanation.cause.remedies", lambda *_: iter(()))
    model, pin, launcher, said = IN_THE_WAY[name]
    result = run("solve", "-", "--json", stdin=spec(model, launcher, pin=pin))
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert (document["status"], document["plans"]) == ("infeasible", [])
    for words in said:
        assert words in document["reasons"][0]
    text = run("solve", "-", stdin=spec(model, launcher, pin=pin))
    assert text.exit_code == 3
    assert said[0].split()[0] in text.stdout
    assert messages(text) == ""


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "all pinned are forbidden": (
        {"pin": {"cp": [1, 2]}, "forbid": {"cp": [1, 2, 4]}},
        "search.pin.cp = [1, 2]: contradicts search.forbid.cp = [1, 2, 4]",
    ),
    "the only kind of sharding": (
        {"pin": {"sharded": "optimizer"}, "forbid": {"sharded": "optimizer"}},
        "search.pin.sharded = 'optimizer': contradicts search.forbid.sharded",
    ),
    "every kind of sharding": (
        {"forbid": {"sharded": ["optimizer", "gradients", "parameters"]}},
        "search.forbid.sharded",
    ),
    "both values of a flag": ({"forbid": {"cp_gather": [True, False]}}, "search.forbid.cp_gather"),
    "no such kind": ({"pin": {"sharded": "zero3"}}, "search.pin.sharded"),
    "no such size": ({"pin": {"ep": 0}}, "search.pin.ep = 0: must be at least 1"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictory_pins_and_bans_are_refused_before_solving(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpsolver.explanation.account.search", lambda *_, **__: pytest.fail("searched first"))
    search, said = CONTRADICTIONS[name]
    result = run("solve", "-", stdin=spec("dense", **search))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr


MOE = "{experts: 8, top_k: 2, expert_ffn: 14336}"


@pytest.mark.parametrize(
    ("moe", "heads", "where"),
    [
        ("{experts: 8, expert_ffn: 14336}", 32, "model.moe.top_k"),
        ("{experts: 8, top_k: 9, expert_ffn: 14336}", 32, "model.moe"),
        (MOE, 33, "model"),
    ],
)
def test_a_model_field_that_is_missing_or_contradicts_another_is_named(moe: str, heads: int, where: str) -> None:
    model = f"{{layers: 8, hidden: 4096, ffn: 14336, heads: {heads}, vocab: 32000, moe: {moe}}}"
    text = f"model: {model}\ncluster: {{num_gpus: 16, chips: h100}}\n"
    text += "training: {global_batch_size: 32, sequence_length: 4096}\n"
    result = run("solve", "-", stdin=text)
    assert result.exit_code == 2
    assert f" {where}" in result.stderr
