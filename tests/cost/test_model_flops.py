"""FLOP of a token of the catalogue's models against Megatron-LM's own count, run on what is exported of them.

`data/megatron_flops.json` is written by tests/real/megatron_flops.py out of Megatron-LM's source, and compared with the
installed one by tests/real/test_megatron_flops.py.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cpsolver.cost.model_flops import model_flops_per_step
from models_zoo import Architecture, load_architecture
from tests.support.checkout import ROOT
from tests.support.problems import ideal

COUNTED: dict[str, int] = json.loads(
    (ROOT / "tests" / "cost" / "data" / "megatron_flops.json").read_text(encoding="utf-8")
)["flop_of_a_token"]
SEQUENCE = 4096
WINDOWS = ("gemma3-27b", "gpt-oss-120b", "gpt-oss-20b")
"""Their layers see a window: Megatron-LM's formula counts the whole sequence for every layer."""
ROUTERS = ("qwen3-next-80b-a3b", "nemotron3-super-120b-a12b")
"""512 experts' routers are more than 1 %, or with what joins the inputs of modules of multi-token prediction: the
formula leaves routers out, and of hybrids what joins."""
WIDTHS = ("nemotron3-nano-30b-a3b",)
"""The formula takes state-space layers to be twice as wide as the hidden size (tests/cost/test_recurrence.py)."""


ANY, _ = ideal(sequence=SEQUENCE)


def of_token(model: Architecture) -> float:
    problem = replace(ANY, model=model)
    return model_flops_per_step(problem) / problem.batch / problem.sequence


def test_flop_are_within_one_percent_of_megatrons() -> None:
    off = {name: of_token(load_architecture(name)) / counted - 1 for name, counted in COUNTED.items()}
    assert len(off) >= 75
    beyond = {name for name, share in off.items() if abs(share) > 0.01}
    assert beyond == {*WINDOWS, *ROUTERS, *WIDTHS}
    dense = [share for name, share in off.items() if load_architecture(name).moe is None and name not in beyond]
    assert max(map(abs, dense)) < 0.001


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_what_the_formula_leaves_out(name: str) -> None:
    model = load_architecture(name)
    attention = model.attention.model_copy(update={"sliding_window": None, "full_every": None})
    assert of_token(model.model_copy(update={"attention": attention})) == pytest.approx(COUNTED[name], rel=0.01)


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_are_what_the_formula_leaves_out(name: str) -> None:
    model = load_architecture(name)
    assert model.moe is not None
    pattern = model.layer_pattern and model.layer_pattern + model.mtp_layers * str(model.mtp_pattern)
    layers = model.layers + model.mtp_layers if pattern is None else pattern.count("E")
    joins = 0 if pattern is None else 12 * model.hidden**2 * model.mtp_layers
    left_out = 6 * model.hidden * model.moe.experts * layers + joins
    assert of_token(model) - left_out == pytest.approx(COUNTED[name], rel=0.002)
