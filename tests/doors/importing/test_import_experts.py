"""Experts of other parsers than Megatron-LM's: their names, their defaults, and the grid that they stand on."""

from __future__ import annotations

import pytest

from tests.support.command import in_tmp  # noqa: F401
from tests.support.scripts import GPT, imported, plan, torchrun

DEEPSPEED = "--deepspeed --num-experts 64 --moe-expert-parallel-size 8 --tensor-model-parallel-size 2 "


def test_experts_of_deepspeed_are_whole_unless_told_otherwise() -> None:
    """Its layers.py (4efb479d) splits none by tensor parallelism without --enable-expert-tensor-parallelism."""
    whole = plan(torchrun(GPT + DEEPSPEED, devices=16))
    assert (whole.tp, whole.ep, whole.etp) == (2, 8, 1)
    split = torchrun(GPT + DEEPSPEED + "--enable-expert-tensor-parallelism", devices=16)
    assert plan(split).etp == 2
    assert "--enable-expert-tensor-parallelism" not in imported(split).unused


@pytest.mark.parametrize(
    ("more", "factor"),
    [("", 1.0), ("--moe-train-capacity-factor 1.25", 1.25), ("--disable-moe-token-dropping", None)],
)
def test_experts_of_deepspeed_drop_what_is_too_much_by_default(more: str, factor: float | None) -> None:
    training = imported(torchrun(GPT + DEEPSPEED + more, devices=16)).spec["training"]
    assert training.get("expert_capacity_factor") == factor
