"""BigScience's own parser takes what is exported for its Megatron-DeepSpeed, and reads the plan out of it.

Needs a checkout of bigscience-workshop/Megatron-DeepSpeed (8387ae1) in a folder that MEGATRON_DEEPSPEED names. None is
in the Python index: without it this is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from tests.real.readers import read
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_host

READER = Path(__file__).parent / "megatron_deepspeed_read.py"
POSITIONS = {"rope": "rotary", "learned": "absolute", "alibi": "alibi"}


@dataclass(frozen=True)
class Case:
    """A model and a plan; `more` as strategy_of takes it."""

    groups: str
    model: Any = "bloom-176b"
    training: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def strategy(self) -> Strategy:
        """The plan."""
        return strategy_of(self.groups, **{"flags": "z", **self.more})

    def problem(self) -> Problem:
        """The problem on chips with memory for all."""
        training = {"precision": self.training.get("precision", "bf16")}
        chip = chip_spec(gb=4000)
        chip["peak_tflops"] |= {"fp16": 100}
        given: dict[str, Any] = {"gpus": self.strategy().devices, "batch": 64, "sequence": 2048, "training": training}
        plain = problem_of({"x": chip}, model=self.model, node=8, stack="megatron-deepspeed", **given)
        return with_host(plain, **self.training)


ONE: dict[str, Any] = {"recompute": "uniform", "amount": 1}
SHARED, AWAY = {"distribute_saved_activations": True}, {"cpu_checkpointing": True}
SMALL = model_spec(bias_qkv=True, bias_attention_out=True, bias_mlp=True, tied_embeddings=True, norm="layernorm")
CASES = {
    "BLOOM": Case("x:35,35", more={"tp": 4, "dp": 2}),
    "BLOOM, recomputed": Case("x:35,35", more={"tp": 4, "dp": 8, **ONE}),
    "BLOOM, recomputed, in shares": Case("x:35,35", training=SHARED, more={"tp": 4, "dp": 8, **ONE}),
    "BLOOM, recomputed, on the host": Case("x:35,35", training=AWAY, more={"tp": 4, "dp": 8, **ONE}),
    "BLOOM 7B, fp16": Case("x:30", "bloom-7b", {"precision": "fp16"}, {"tp": 2, "dp": 4}),
    "BLOOM 7B, dropout": Case("x:15,15", "bloom-7b", {"dropout": True}, {"dp": 4, "mbs": 2}),
    "learned positions": Case("x:2,2", {**SMALL, "position": "learned", "max_positions": 2048}, {}, {"tp": 2, "dp": 4}),
    "rotary": Case("x:4", {**SMALL, "position": "rope"}, {}, {"dp": 8}),
    "gated": Case("x:4", {**SMALL, "position": "rope", "gated_mlp": True, "activation": "swiglu"}, {}, {"dp": 8}),
    "nothing shared": Case("x:2,2", {**SMALL, "position": "alibi"}, {}, {"dp": 4, "flags": ""}),
}


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Case -> what the parser makes of it."""
    lines = []
    for case in CASES.values():
        launch = launch_of(case.problem(), case.strategy(), "megatron-deepspeed")
        lines.append({"arguments": launch.arguments, "world": case.strategy().devices})
    return dict(zip(CASES, read(READER, ("MEGATRON_DEEPSPEED",), lines), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_megatron_deepspeed_reads_the_plan(name: str) -> None:
    found, case = answers()[name], CASES[name]
    s, problem = case.strategy(), case.problem()
    model, precision, whole = problem.model, problem.spec.training.precision, s.recompute[0] == "uniform"
    assert "error" not in found, found["error"]
    wanted = {
        "tensor_model_parallel_size": s.tp,
        "pipeline_model_parallel_size": s.pp,
        "data_parallel_size": s.dp,
        "micro_batch_size": s.mbs,
        "global_batch_size": 64,
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.heads,
        "seq_length": 2048,
        "embed_layernorm": model.embedding_norm,
        "glu_activation": model.activation if model.gated_mlp else None,
        "checkpoint_activations": whole,
        "position_embedding_type": POSITIONS[model.position],
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "zero_stage": s.zero_stage,
        "deepspeed": True,
        "deepspeed_config": "ds_config.json",
        "partition_activations": problem.spec.training.distribute_saved_activations,
        "checkpoint_in_cpu": problem.spec.training.cpu_checkpointing,
        **({"checkpoint_num_layers": s.recompute_layers[0]} if whole else {}),
    }
    assert {name: found[name] for name in wanted} == wanted


def test_the_parser_refuses_what_it_does_not_know() -> None:
    (found,) = read(READER, ("MEGATRON_DEEPSPEED",), [{"arguments": ["--num-layers", "four"], "world": 1}])
    assert "error" in found
