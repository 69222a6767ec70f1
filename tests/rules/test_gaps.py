"""What a framework's parser accepts and training then dies of: a rule here refuses each, as launchers.md asks for.

The test's id is the case as the notes on the launchers have it; "(gap)" there means that the violating configuration
was run through the parser and accepted.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.strategy import Mesh, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from cpsolver.rules import violations
from models_zoo import Architecture
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_meshes


def problem(launcher: str | None = None, moe: bool = False, gpus: int = 16, batch: int = 64, **model: Any) -> Problem:
    """32 layers, 32 heads, sequence 4096 on 16 GPUs in nodes of 8, as in the runs of the notes."""
    sequence = model.pop("sequence", 4096)
    shape = {"layers": 32, "heads": 32, **model}
    chips = {"x": chip_spec(gb=1000), "y": chip_spec(gb=1000)}
    made = problem_of(chips, model_spec(**shape), gpus, 8, batch, sequence)
    if moe:
        experts = {"experts": 8, "top_k": 2, "expert_ffn": 512}
        made = replace(made, model=Architecture.model_validate({"name": "moe", **model_spec(**shape), "moe": experts}))
    return made if launcher is None else replace(made, launcher=load_launcher(launcher))


def even(pp: int, chips: str = "x") -> str:
    """32 layers over the stages, chip types in equal blocks."""
    each = ",".join([str(32 // pp)] * (pp // len(chips)))
    return " ".join(f"{chip}:{each}" for chip in chips)


GAPS: list[tuple[str, str, Problem, Strategy, Strategy]] = [
    (
        *("W % (etp*ep*pp) == 0: W=16 tp2 pp4 ep4, etp unset is 2", "experts", problem(moe=True)),
        strategy_of(even(4), tp=2, dp=2, ep=4, etp=2, flags="fsz"),
        strategy_of(even(4), tp=2, dp=2, ep=2, etp=2, flags="fsz"),
    ),
    (
        *("ffn % tp: ffn 11007 tp2 parses", "feed_forward", problem(ffn=11007)),
        strategy_of(even(1), tp=2, dp=8),
        strategy_of(even(1), tp=1, dp=16),
    ),
    (
        *("SP needs seq (per CP rank) % tp: seq 4095 tp2 SP parses", "sequence_parallel", problem(sequence=4095)),
        strategy_of(even(1), tp=2, dp=8, flags="fsz"),
        strategy_of(even(1), tp=2, dp=8, flags="fz"),
    ),
    (
        *("SP needs seq per CP rank: seq 4104 cp2 tp8", "sequence_parallel", problem(sequence=4104)),
        strategy_of(even(1), tp=8, cp=2, dp=1, flags="fsz"),
        strategy_of(even(1), tp=4, cp=2, dp=2, flags="fsz"),
    ),
    (
        *("SP with tp==1 is silently switched off", "sequence_parallel", problem()),
        strategy_of(even(1), dp=16, flags="fsz"),
        strategy_of(even(1), dp=16),
    ),
    (
        *("MoE TP>1 without SP: MoELayer.forward raises", "expert_sequence_parallel", problem(moe=True)),
        strategy_of(even(1), tp=2, dp=8, ep=4),
        strategy_of(even(1), tp=2, dp=8, ep=4, flags="fsz"),
    ),
    (
        *("MoE + TP>1 needs SP even with ep=1", "expert_sequence_parallel", problem(moe=True)),
        strategy_of(even(1), tp=2, dp=8),
        strategy_of(even(1), tp=1, dp=16),
    ),
    (
        *("a2a heads: tp8 cp8 a2a with 32 heads parses", "context_exchange", problem(gpus=64)),
        strategy_of(even(1), tp=8, cp=8, dp=1, ulysses=8),
        strategy_of(even(1), tp=8, cp=8, dp=1, ulysses=4),
    ),
    (
        *("a2a heads, kv groups too: 8 kv heads tp2 cp8", "context_exchange", problem(kv_heads=8)),
        strategy_of(even(1), tp=2, cp=8, dp=1, ulysses=8),
        strategy_of(even(1), tp=2, cp=8, dp=1, ulysses=4),
    ),
    (
        *("interleaving: m=6, pp=4, v=2 parses", "interleaving", problem(batch=24)),
        strategy_of(even(4), dp=4, vpp=2),
        strategy_of(even(4), dp=2, tp=2, vpp=2),
    ),
    (
        *("gbs % (mbs*dp): an eval_gbs override leaves only the microbatch calculator", "batch", problem(batch=24)),
        strategy_of(even(1), dp=16),
        strategy_of(even(1), tp=2, dp=8),
    ),
    (
        *("(dp*cp) % num-distributed-optimizer-instances: PS only", "sharding", problem()),
        strategy_of(even(1), dp=16, sharding_group=3),
        strategy_of(even(1), dp=16, sharding_group=4),
    ),
    (
        *("seq % (2*cp): Ulysses's weaker rule never helps, seq 4092 cp4", "context_parallel", problem(sequence=4092)),
        strategy_of(even(1), cp=4, dp=4, ulysses=4),
        strategy_of(even(1), cp=2, dp=8, ulysses=2),
    ),
    (
        *("MoE with bias: etp==1", "launcher", problem("megatron-lm", moe=True, bias_mlp=True)),
        strategy_of(even(1), tp=2, dp=8, etp=2, flags="fsz"),
        strategy_of(even(1), tp=2, dp=8, etp=1, flags="fsz"),
    ),
    (
        *("kv groups: 8 groups, tp16: FAIL on 0.12.1", "launcher", problem("megatron-core-0.12", kv_heads=8)),
        strategy_of(even(1), tp=16, dp=1, flags="f"),
        strategy_of(even(1), tp=8, dp=2, flags="f"),
    ),
    (
        *("kv groups: MindSpeed has 0.12.1's rule", "launcher", problem("mindspeed-llm", kv_heads=8)),
        strategy_of(even(1), tp=16, dp=1, flags="f"),
        strategy_of(even(1), tp=8, dp=2, flags="f"),
    ),
    (
        *("first/last: all middle stages are equal", "launcher", problem("megatron-core-0.12")),
        strategy_of("x:7,9,8,8", dp=4),
        strategy_of("x:7,9,9,7", dp=4),
    ),
    (
        *("There is no per-stage K in stock Megatron", "launcher", problem("megatron-lm")),
        replace(
            strategy_of("x:16 y:16", dp=8),
            groups=(StageGroup("x", (16,), "block", (3,)), StageGroup("y", (16,), "block", (4,))),
        ),
        strategy_of("x:16 y:16", dp=8, recompute="block", amount=3),
    ),
    (
        *("torch-fsdp2: pp==1", "launcher", problem("megatron-lm")),
        strategy_of(even(2), dp=8, sharded="parameters"),
        strategy_of(even(1), dp=16, sharded="parameters"),
    ),
    (
        *("DeepSpeed: ZeRO must be <2 with PP", "launcher", problem("deepspeed")),
        strategy_of(even(2), dp=8, sharded="gradients"),
        strategy_of(even(2), dp=8, sharded="optimizer"),
    ),
    (
        *("DeepSpeed: no explicit layer vector", "launcher", problem("deepspeed")),
        strategy_of("x:15,17", dp=8),
        strategy_of("x:16,16", dp=8),
    ),
    (
        *("FlagScale: hetero means cp=1", "launcher", problem("flagscale")),
        strategy_of(even(2, "xy"), cp=2, dp=4),
        strategy_of(even(2, "xy"), dp=8),
    ),
    (
        *("FlagScale: no VPP with hetero", "launcher", problem("flagscale")),
        strategy_of(even(2, "xy"), dp=8, vpp=2),
        strategy_of(even(2), dp=8, vpp=2),
    ),
    (
        *("FlagScale: hetero has num_distributed_optimizer_instances==1", "launcher", problem("flagscale")),
        strategy_of(even(2, "xy"), dp=8, sharding_group=4),
        strategy_of(even(2, "xy"), dp=8),
    ),
    (
        *("torchtitan: (dp_s*cp*tp) % ep == 0", "sharding", problem("torchtitan", moe=True)),
        strategy_of(even(1), dp=16, ep=8, sharded="parameters", sharding_group=4),
        strategy_of(even(1), dp=16, ep=4, sharded="parameters", sharding_group=4),
    ),
    (
        *("Megatron: expert dp % optimizer instances", "sharding", problem("megatron-lm", moe=True)),
        strategy_of(even(1), dp=16, ep=8, sharding_group=4),
        strategy_of(even(1), dp=16, ep=8, sharding_group=8),
    ),
    (
        *("accelerate: tp>1 with dp_replicate>1 needs dp_shard>1", "launcher", problem("accelerate")),
        strategy_of(even(1), tp=2, dp=8, flags="f"),
        strategy_of(even(1), tp=2, dp=8, sharded="parameters"),
    ),
    (
        *("accelerate: a group of one context-parallel group is dp_shard 1", "launcher", problem("accelerate")),
        strategy_of(even(1), cp=2, dp=8, sharded="parameters", sharding_group=2),
        strategy_of(even(1), cp=2, dp=8, sharded="parameters", sharding_group=4),
    ),
    (
        *("accelerate: Ulysses has no axis for tp", "launcher", problem("accelerate")),
        strategy_of(even(1), tp=2, cp=2, dp=4, ulysses=2, sharded="parameters"),
        strategy_of(even(1), cp=2, dp=8, ulysses=2, sharded="parameters"),
    ),
    (
        *("accelerate: Ulysses shards over all replicas", "launcher", problem("accelerate")),
        strategy_of(even(1), cp=2, dp=8, ulysses=2, sharded="parameters", sharding_group=8),
        strategy_of(even(1), cp=2, dp=8, ulysses=2, sharded="parameters"),
    ),
    (
        *("DeepSpeed: no Ulysses under a pipeline", "launcher", problem("deepspeed")),
        strategy_of(even(2), cp=2, dp=4, ulysses=2),
        strategy_of(even(1), cp=2, dp=8, ulysses=2),
    ),
    (
        *("DeepSpeed: no MiCS", "launcher", problem("deepspeed")),
        strategy_of(even(1), dp=16, sharded="parameters", sharding_group=8),
        strategy_of(even(1), dp=16, sharded="parameters"),
    ),
    (
        *("torchtitan: 1F1B with fewer microbatches than stages", "launcher", problem("torchtitan", batch=12)),
        strategy_of(even(4), dp=4),
        strategy_of(even(2), dp=4, tp=2),
    ),
    (
        *("torchtitan: FSDP shards over cp in any case", "launcher", problem("torchtitan")),
        strategy_of(even(1), cp=2, dp=8, cp_gather=True, flags="f"),
        strategy_of(even(1), cp=2, dp=8, cp_gather=True, sharded="parameters"),
    ),
    (
        *("torchtitan: MTP raises with a pipeline", "launcher", problem("torchtitan", mtp_layers=1)),
        strategy_of(even(2), dp=8),
        strategy_of(even(1), dp=16, sharded="parameters"),
    ),
    (
        *("core_v0.13.0: MTP in the layout raises", "launcher", problem("megatron-core-0.13", mtp_layers=1)),
        strategy_of("x:7,9,8,8", dp=4),
        strategy_of("x:7,9,9,7", dp=4),
    ),
    (
        *("FlagScale: uneven stages are hetero: one instance", "launcher", problem("flagscale")),
        strategy_of("x:7,9,8,8", dp=4, sharding_group=2),
        strategy_of("x:7,9,9,7", dp=4, sharding_group=2),
    ),
]


@pytest.mark.parametrize(("case", "rule", "task", "broken", "mended"), GAPS, ids=[case for case, *_ in GAPS])
def test_a_rule_owns(case: str, rule: str, task: Problem, broken: Strategy, mended: Strategy) -> None:
    """The plan breaks that one rule, and the nearest plan that the framework runs breaks none."""
    found = violations(task, broken)
    assert {violation.rule for violation in found} == {rule}, found
    assert any(character.isdigit() for character in found[0].message) or "tp" in found[0].message
    assert not violations(task, mended)


def test_num_layers_without_upper_bound_is_harmless() -> None:
    """recompute num-layers has NO upper bound check (gap, harmless): 99 is accepted, and recomputes all there are."""
    task = problem()
    most, all_of_them = (strategy_of(even(4), dp=4, recompute="block", amount=amount) for amount in (99, 8))
    assert not violations(task, most)
    assert evaluate(task, most).step_time_s == evaluate(task, all_of_them).step_time_s


def test_ep_is_no_factor_of_the_world() -> None:
    """FlagScale's HeteroSearcher multiplies ep into the world size, whose ep>1 candidates do not match it."""
    assert not violations(problem(moe=True), strategy_of(even(2, "xy"), dp=8, ep=8))


def test_ep_is_one_on_all_meshes_or_on_none() -> None:
    """FlagScale's own assert of it is vacuous (all are 1 or any is not)."""
    plan = with_meshes(strategy_of("x:4 y:4", dp=4, ep=4), y=Mesh(tp=1, cp=1, dp=4))
    assert "meshes: ep is 1 on all meshes or on none" in map(str, violations(problem(moe=True), plan))


def test_what_a_plan_cannot_say() -> None:
    """No rule is needed where a strategy has no word for the mistake.

    A cp-comm-type typo parses: the kind follows
    from cp, ulysses and cp_gather. DeepSpeed takes offload_param at stage 2: no plan offloads. tp-pp-dp order with MoE:
    a plan has no rank order but the default. a2a+p2p without sizes: the sizes are ulysses and cp / ulysses.
    """
    assert {field.name for field in fields(StageGroup)} == {
        "chip",
        "layers",
        "recompute",
        "recompute_layers",
        "modules",
        "mesh",
    }
    assert not any("offload" in field.name or "order" in field.name for field in fields(Strategy))
    kinds = [
        strategy_of(cp=4, ulysses=u, cp_gather=gather).cp_comm_type for u, gather in ((1, 0), (1, 1), (2, 0), (4, 0))
    ]
    assert kinds == ["p2p", "allgather", "a2a+p2p", "a2a"]
