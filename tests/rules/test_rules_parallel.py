"""Rules on context and expert parallelism, sharding, schedules, launchers, stacks: legal, broken, the nearest legal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from cpsolver.profiles.stack import load_stack
from cpsolver.rules import RULES
from models_zoo import Architecture
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of

ONE = problem_of()
"""4 layers, 8 heads, 4 GPUs in one node, batch 8, sequence 1024, one chip x."""
TWO = {"x": chip_spec(), "y": chip_spec()}
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 512}


def said(rule: str, strategy: Strategy, problem: Problem = ONE) -> list[str]:
    return list(RULES[rule](problem, strategy))


def routed(moe: dict[str, Any] | None = None, launcher: str | None = None, **model: Any) -> Problem:
    """The small problem with experts in every layer."""
    fields = {"name": "experts", **model_spec(**model), "moe": {**EXPERTS, **(moe or {})}}
    return replace(launched(launcher), model=Architecture.model_validate(fields))


def launched(name: str | None, **given: Any) -> Problem:
    problem = problem_of(**given)
    return problem if name is None else replace(problem, launcher=load_launcher(name))


def test_context_parallel() -> None:
    assert not said("context_parallel", strategy_of(dp=2, cp=2))
    assert not said("context_parallel", strategy_of(dp=1, cp=4, ulysses=2))
    odd = problem_of(sequence=1020)
    assert not said("context_parallel", strategy_of(dp=2, cp=2), odd)
    broken = said("context_parallel", strategy_of(dp=1, cp=4, ulysses=4), odd)
    assert broken == ["sequence length 1020 is not a multiple of 2 x cp 4 = 8"]
    assert not said("context_parallel", strategy_of(), problem_of(sequence=1021))
    assert said("context_parallel", strategy_of(cp=4, ulysses=3)) == ["ulysses 3 does not divide cp 4"]
    assert said("context_parallel", strategy_of(ulysses=2)) == ["ulysses 2 does not divide cp 1"]
    assert not said("context_parallel", strategy_of(cp=2, cp_gather=True))
    assert said("context_parallel", strategy_of(cp_gather=True)) == ["cp_gather needs context parallelism, and cp is 1"]
    mixed = said("context_parallel", strategy_of(cp=4, ulysses=2, cp_gather=True))
    assert mixed == ["cp_gather does not mix with all-to-all: ulysses is 2, and must be 1"]
    assert said("context_parallel", strategy_of(cp=2, ulysses=0)) == ["ulysses is 0, and must be at least 1"]


def test_optimizer() -> None:
    problem = problem_of(training={"optimizer": "precision_aware"})
    assert not said("optimizer", strategy_of(dp=4, flags="z"), problem)
    assert not said("optimizer", strategy_of(dp=1, flags=""), problem)
    broken = said("optimizer", strategy_of(dp=4, flags=""), problem)
    assert len(broken) == 1
    assert broken[0].endswith("needs the distributed optimizer")


def test_context_exchange() -> None:
    problem = problem_of(model=model_spec(heads=8, kv_heads=4))
    assert not said("context_exchange", strategy_of(tp=2, cp=2, ulysses=2), problem)
    assert said("context_exchange", strategy_of(tp=2, cp=4, ulysses=4), problem) == [
        "2 key-value heads of a rank (tp 2) are not a multiple of ulysses 4"
    ]
    assert len(said("context_exchange", strategy_of(tp=4, cp=4, ulysses=4), problem)) == 2
    assert not said("context_exchange", strategy_of(tp=1, cp=4, ulysses=4), problem)
    assert not said("context_exchange", strategy_of(tp=4, cp=4), problem)
    repeats = problem_of(model=model_spec(heads=8, kv_heads=4), launcher="mindspeed-llm")
    assert not said("context_exchange", strategy_of(tp=2, cp=4, ulysses=4), repeats)
    assert said("context_exchange", strategy_of(tp=4, cp=4, ulysses=4), repeats) == [
        "2 attention heads of a rank (tp 4) are not a multiple of ulysses 4"
    ]
    window = problem_of(model=model_spec(attention={"sliding_window": 256}))
    assert not said("context_exchange", strategy_of(dp=4), window)
    assert not said("context_exchange", strategy_of(cp=4, ulysses=4), window)
    assert not said("context_exchange", strategy_of(cp=4, cp_gather=True), window)
    broken = said("context_exchange", strategy_of(cp=4, ulysses=2), window)
    assert broken == ["a window of 256 tokens does not go around a ring of 2: ulysses 4, or cp_gather"]


def test_feed_forward_of_experts() -> None:
    everywhere = routed(ffn=2818)
    assert not said("feed_forward", strategy_of(tp=4), everywhere)
    some = routed({"first_dense": 1}, ffn=2818)
    assert said("feed_forward", strategy_of(tp=4), some) == ["feed-forward width 2818 is not a multiple of tp 4"]
    shared = routed({"shared_experts": 3, "shared_ffn": 6})
    assert said("feed_forward", strategy_of(tp=4), shared) == ["shared experts' width 18 is not a multiple of tp 4"]
    assert not said("feed_forward", strategy_of(tp=2), shared)


def test_experts() -> None:
    problem = routed()
    assert not said("experts", strategy_of(dp=4, ep=4), problem)
    assert not said("experts", strategy_of(tp=2, dp=2, ep=2, etp=2), problem)
    assert said("experts", strategy_of(ep=2)) == ["the model has no experts: ep is 2 and etp 1, both must be 1"]
    assert not said("experts", strategy_of())
    assert said("experts", strategy_of(dp=3, ep=3), problem) == ["8 experts are not a multiple of ep 3"]
    narrow = routed({"expert_ffn": 513})
    assert said("experts", strategy_of(tp=2, dp=2, etp=2), narrow) == ["expert width 513 is not a multiple of etp 2"]
    assert said("experts", strategy_of(tp=1, dp=4, etp=2), problem) == ["etp 2 does not divide tp 1"]
    assert said("experts", strategy_of(tp=2, dp=2, ep=4, etp=2), problem) == [
        "etp 2 x ep 4 = 8 does not divide the tp 2 x cp 1 x dp 2 = 4 devices of a stage"
    ]
    assert not said("experts", strategy_of(tp=2, dp=1, cp=2, ep=4), problem)


def test_expert_sequence_parallel() -> None:
    problem = routed()
    assert not said("expert_sequence_parallel", strategy_of(tp=2, dp=2, flags="s"), problem)
    broken = said("expert_sequence_parallel", strategy_of(tp=2, dp=2), problem)
    assert "with tp 2" in broken[0]
    assert not said("expert_sequence_parallel", strategy_of(tp=1), problem)
    assert not said("expert_sequence_parallel", strategy_of(tp=2, dp=2))


OVERLAP: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "no pipeline": ({}, {}, None),
    "chunks": ({"groups": "x:2,2", "dp": 2, "vpp": 2}, {}, None),
    "a set without moe": ({"recompute": "selective", "modules": ("core_attn", "moe_act")}, {}, None),
    "one predicted token": ({}, {"mtp_layers": 1}, None),
    "off": ({"groups": "x:2,2", "dp": 2, "expert_overlap": False}, {}, None),
    "no chunks": ({"groups": "x:2,2", "dp": 2}, {}, "no other microbatch to travel under: pp 2, vpp 1 and 4 micro"),
    "one microbatch": ({"mbs": 2}, {}, "no other microbatch to travel under: pp 1, vpp 1 and 1 micro"),
    "experts whole": ({"ep": 1}, {}, "ep > 1 and at most 1 layer of multi-token prediction: ep is 1, and there are 0"),
    "two predicted tokens": ({}, {"mtp_layers": 2}, "ep is 2, and there are 2"),
    "block": ({"recompute": "block", "amount": 1}, {}, "where experts are recomputed: stage 0 has block"),
    "uniform": ({"recompute": "uniform", "amount": 1}, {}, "where experts are recomputed: stage 0 has uniform"),
    "moe": ({"recompute": "selective", "modules": ("moe",)}, {}, "recomputed: stage 0 has selective with moe"),
}


@pytest.mark.parametrize("name", OVERLAP)
def test_expert_overlap(name: str) -> None:
    """Worked by hand from Megatron-LM's own conditions."""
    given, model, message = OVERLAP[name]
    plan = {"expert_overlap": True, "ep": 2, **given}
    modules = plan.pop("modules", ())
    strategy = strategy_of(**plan)
    strategy = replace(strategy, groups=tuple(replace(group, modules=modules) for group in strategy.groups))
    broken = said("expert_overlap", strategy, routed(**model))
    assert len(broken) == (message is not None)
    assert message is None or message in broken[0]


def test_sharding() -> None:
    assert not said("sharding", strategy_of(dp=4, sharded="parameters"))
    assert not said("sharding", strategy_of(dp=1, cp=4, sharded="gradients"))
    broken = said("sharding", strategy_of(dp=4, sharded="gradients", flags="f"))
    assert broken == ["sharded gradients needs the distributed optimizer"]
    assert "nothing to shard over" in said("sharding", strategy_of(tp=4, dp=1, sharded="parameters"))[0]
    piped = strategy_of("x:2,2", dp=2, sharded="parameters")
    assert said("sharding", piped) == ["parameters are not sharded under a pipeline: pp is 2, and must be 1"]
    assert said("launcher", piped, launched("deepspeed")) == [
        "deepspeed does not share out parameters with pp 2: sharded may be optimizer"
    ]
    able = load_launcher("megatron-lm").model_copy(update={"sharded_pipeline": ("optimizer", "parameters")})
    assert not any(said(rule, piped, replace(ONE, launcher=able)) for rule in ("sharding", "launcher"))
    assert not said("sharding", replace(piped, sharded="optimizer"))


def test_sharding_group() -> None:
    eight = problem_of(gpus=8, node=8)
    assert not said("sharding", strategy_of(dp=8, sharding_group=2), eight)
    assert not said("sharding", strategy_of(dp=2, cp=4, sharding_group=4), eight)
    for group in (1, 3, 8, 16):
        assert said("sharding", strategy_of(dp=8, sharding_group=group), eight) == [
            f"sharding_group {group} is no part of dp 8 x cp 1 = 8 replicas: a divisor between 1 and 8, or 0 for all"
        ]
    assert (
        "needs the distributed optimizer" in said("sharding", strategy_of(dp=8, sharding_group=2, flags=""), eight)[0]
    )
    six = routed({"experts": 6})
    broken = said("sharding", strategy_of(dp=12, ep=3, sharding_group=4), six)
    told = "sharding_group 4 makes 3 groups of 12 replicas, which do not divide the 4 replicas of experts"
    assert broken == [told]
    assert said("sharding", strategy_of(dp=12, ep=6, sharding_group=4), six)
    assert not said("sharding", strategy_of(dp=12, ep=2, sharding_group=4), six)


def test_schedule() -> None:
    zero = replace(ONE, stack=load_stack("zero-bubble"))
    assert not said("schedule", strategy_of("x:2,2", dp=2, schedule="zb1p"), zero)
    assert not said("schedule", strategy_of("x:2,2", dp=2))
    assert said("schedule", strategy_of(schedule="zb1p"), zero) == ["schedule zb1p needs a pipeline, and pp is 1"]
    assert said("schedule", strategy_of("x:2,2", dp=2, vpp=2, schedule="zb2p"), zero) == [
        "schedule zb2p does not interleave: vpp is 2, and must be 1"
    ]
    broken = said("schedule", strategy_of("x:2,2", dp=2, schedule="zb1p"))
    assert broken == [f"stack {ONE.stack.name} has no schedule zb1p: 1f1b, or stack zero-bubble"]
    told = replace(zero, launcher=load_launcher("megatron-lm"))
    broken = said("schedule", strategy_of("x:2,2", dp=2, schedule="zb1p"), told)
    assert broken == ["megatron-lm has no schedule zb1p: 1f1b, breadth_first"]


PLANS: list[tuple[str, Strategy, str | None]] = [
    ("megatron-core-0.12", strategy_of(tp=4, dp=1), "needs tp to divide the 2 key-value heads, and tp is 4"),
    ("megatron-lm", strategy_of(tp=4, dp=1), None),
    ("megatron-core-0.12", strategy_of("x:1,2,1", dp=1), None),
    ("megatron-core-0.12", strategy_of("x:1,3,2,1", dp=1), "needs equal stages between the first and the last"),
    ("megatron-core-0.13", strategy_of("x:1,3,2,1", dp=1), None),
    ("deepspeed", strategy_of("x:3,1", dp=2), "needs equal stages, 2 layers each, not 3, 1"),
    ("deepspeed", strategy_of("x:2,1,1", dp=1), "needs equal stages: 4 layers are not a multiple of pp 3 x vpp 1 = 3"),
    ("deepspeed", strategy_of("x:2,2", dp=2), None),
    ("deepspeed", strategy_of("x:2,2", dp=2, vpp=2), "does not interleave: vpp is 2, and must be 1"),
    ("deepspeed", strategy_of(tp=2, dp=2, flags="s"), "has no sequence parallelism: sequence_parallel must be false"),
    ("deepspeed", strategy_of(cp=2, dp=2), "has no context parallelism of kind p2p: a2a"),
    ("deepspeed", strategy_of(cp=2, dp=2, ulysses=2), None),
    ("accelerate", strategy_of("x:2,2", dp=2), "has no pipeline: pp is 2, and must be 1"),
    ("accelerate", strategy_of(cp=4, ulysses=2, dp=1, sharded="parameters"), "kind a2a+p2p: p2p, allgather, a2a"),
    ("accelerate", strategy_of(tp=2, dp=2, flags="f"), "needs sharded replicas with tp 2, cp 1 and dp 2"),
    ("accelerate", strategy_of(dp=4), "does not share out optimizer with pp 1: sharded may be gradients, parameters"),
    ("flagscale", strategy_of("x:2 y:2", dp=2), None),
    ("flagscale", strategy_of("x:2 y:2", dp=2, vpp=2), "does not interleave where chip types mix (x, y): vpp is 2"),
    ("flagscale", strategy_of("x:2 y:2", cp=2), "has no context parallelism where chip types mix (x, y): cp is 2"),
    ("flagscale", strategy_of("x:2 y:2", dp=4, sharding_group=2), "shards over all replicas where chip types mix"),
    ("flagscale", strategy_of("x:1,2,1", cp=2), None),
    ("flagscale", strategy_of("x:1,1,2,1", cp=2), "needs equal stages between the first and the last with cp 2"),
    ("megatron-lm", strategy_of("x:2 y:2", dp=2, vpp=2), None),
    ("accelerate", strategy_of("x:2 y:2", dp=2), "does not mix chip types: one of x, y"),
    ("megatron-lm", strategy_of(dp=4, sharded="parameters", sharding_group=2), "shares out parameters over all"),
    ("torchtitan", strategy_of(cp=2, cp_gather=True, dp=4, sharded="parameters", sharding_group=4), None),
    ("torchtitan", strategy_of(cp=4, cp_gather=True, sharded="parameters", sharding_group=2), "is no multiple of cp 4"),
    ("deepspeed", strategy_of(recompute="block", amount=1), "has no recomputation of kind block: none, uniform"),
    ("torchtitan", strategy_of("x:2,2", recompute="uniform", amount=2), "recomputes layer by layer: uniform with 2"),
]


@pytest.mark.parametrize(("name", "plan", "message"), PLANS)
def test_launcher(name: str, plan: Strategy, message: str | None) -> None:
    problem = launched(name, chips=TWO, model=model_spec(kv_heads=2))
    found = said("launcher", plan, problem)
    assert not said("launcher", plan, replace(problem, launcher=None))
    if message is None:
        assert not found
    else:
        assert any(text.startswith(name) and message in text for text in found), found


@pytest.mark.parametrize(
    ("name", "moe", "plan", "message"),
    [
        ("deepspeed", {}, strategy_of(ep=2), "has no expert parallelism: ep is 2, and must be 1"),
        ("torchtitan", {}, strategy_of(tp=2, etp=2), "does not split an expert: etp is 2, and must be 1"),
        ("megatron-lm", {"bias_mlp": True}, strategy_of(tp=2, etp=2), "does not split an expert that has a bias"),
        ("megatron-lm", {}, strategy_of(tp=2, etp=2), None),
        ("torchtitan", {}, strategy_of(dp=8, ep=8, sharded="gradients"), None),
        (
            *("torchtitan", {}),
            strategy_of(dp=8, ep=8, flags="sf"),
            "keeps experts within tp 1 x 1 ranks of a sharding group, which ep 8 x etp 1 must divide",
        ),
    ],
)
def test_launchers_and_experts(name: str, moe: dict[str, Any], plan: Strategy, message: str | None) -> None:
    found = said("launcher", plan, routed(launcher=name, **moe))
    assert (not found) if message is None else any(message in text for text in found)


@pytest.mark.parametrize(
    ("name", "plan", "message"),
    [
        ("fsdp-composer", strategy_of(sharded="parameters"), None),
        ("fsdp-composer", strategy_of(sharded="gradients"), "does not share out gradients with pp 1: sharded may be p"),
        ("fsdp-composer", strategy_of(tp=2, sharded="parameters"), "has no tensor parallelism: tp is 2, and must be 1"),
        ("fsdp-composer", strategy_of(flags="f"), "shares out weights over replicas: distributed_optimizer must be"),
        ("fsdp-torchtitan", strategy_of(dp=1, flags="f"), "must be true, and there is a single replica"),
        ("fsdp-torchtitan", strategy_of(tp=2, sharded="parameters"), "with sequence parallelism only: tp is 2"),
        ("fsdp-torchtitan", strategy_of(tp=2, flags="sfz", sharded="parameters"), None),
        ("fsdp-torchtitan", strategy_of("x:2,2", dp=2), None),
        ("deepspeed-2021", strategy_of(), "has no flash attention"),
        ("deepspeed-2021", strategy_of(flags="z", sharded="gradients"), None),
        ("deepspeed-zero3", strategy_of("x:2,2", dp=2), "has no pipeline: pp is 2, and must be 1"),
        ("megatron-core", strategy_of("x:2,2", dp=2), None),
    ],
)
def test_stack(name: str, plan: Strategy, message: str | None) -> None:
    problem = replace(ONE, stack=load_stack(name))
    found = said("stack", plan, problem)
    assert not said("launcher", plan, problem)
    if message is None:
        assert not found
    else:
        assert len(found) == 1
        assert found[0].startswith(name)
        assert message in found[0]


def test_recomputation_by_stage() -> None:
    plan = strategy_of("x:2,2", dp=2, recompute="block", amount=1)
    groups = (StageGroup("x", (2, 2), "block", (1, 2)), StageGroup("y", (2,)), StageGroup("y", (2,), "selective"))
    unequal, some, odd = (replace(plan, groups=part) for part in (groups[:1], groups[:2], groups))
    assert not said("launcher", plan, launched("megatron-lm"))
    assert said("launcher", unequal, launched("megatron-lm")) == [
        "megatron-lm cannot recompute differently by stage (block 1, block 2): one choice for all"
    ]
    for name in ("loongforge", "flagscale"):
        assert not said("launcher", unequal, launched(name))
        assert not said("launcher", some, launched(name))
    assert said("launcher", odd, launched("loongforge")) == [
        "loongforge cannot recompute differently by stage (block 1, block 2, none, selective): "
        "only none, block may differ"
    ]
