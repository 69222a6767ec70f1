"""Each rule: a legal plan, one that breaks it with the numbers in the message, and the nearest legal one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.plans.strategy import Mesh, RecomputeKind, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from cpsolver.rules import RULES, STRUCTURE, Violation, structure_violations, violations
from models_zoo import load_architecture
from tests.rules import test_rules_parallel
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_host, with_meshes

ONE = problem_of()
"""4 layers, 8 heads, 4 GPUs in one node, batch 8, sequence 1024, one chip x."""
TWO = {"x": chip_spec(), "y": chip_spec()}


def said(rule: str, strategy: Strategy, problem: Problem = ONE) -> list[str]:
    return list(RULES[rule](problem, strategy))


def test_degrees() -> None:
    assert not said("degrees", strategy_of("x:4", tp=1, dp=4))
    assert said("degrees", strategy_of("x:4", tp=2, dp=4)) == ["tp 2 x pp 1 x dp 4 = 8 devices, not 4"]
    assert not said("degrees", strategy_of("x:4", tp=2, dp=2))
    short = replace(strategy_of("x:2,2", dp=2), groups=(StageGroup("x", (4,)),))
    assert said("degrees", short) == ["1 stages are described, pp is 2"]
    assert not said("degrees", strategy_of("x:4", tp=1, dp=2, cp=2))
    assert said("degrees", strategy_of("x:4", tp=1, dp=4, cp=2)) == ["tp 1 x pp 1 x cp 2 x dp 4 = 8 devices, not 4"]
    assert said("degrees", strategy_of("x:4", dp=0))[0] == "dp is 0, and must be at least 1"


def test_meshes() -> None:
    wide = Mesh(tp=2, cp=1, dp=2)
    problem = problem_of(TWO, gpus=12)
    plan = with_meshes(strategy_of("x:2 y:1,1", dp=4, mbs=2, flags="szf"), y=wide)
    assert not said("meshes", plan)
    assert said("meshes", replace(plan, sequence_parallel=False)) == [
        "between x (tp 1) and y (tp 2) the sequence changes hands in pieces: that needs sequence parallelism"
    ]
    assert not said("degrees", plan, problem)
    assert said("degrees", plan) == ["tp 1 x pp 1 x dp 4 = 4 + tp 2 x pp 2 x dp 2 = 8, together 12 devices, not 4"]
    assert said(
        "chip_count", plan, problem_of({"x": {"max": 8, "spec": TWO["x"]}, "y": {"max": 4, "spec": TWO["y"]}})
    ) == ["8 y are used, at most 4 are there"]
    three = with_meshes(replace(plan, sequence_parallel=False), y=Mesh(1, 1, 3))
    assert said("meshes", three) == ["mesh on y: dp 3 does not divide a round of 8 sequences (mbs x dp)"]
    assert {broken.rule for broken in violations(problem, three)} == {"meshes", "degrees", "chip_count"} - {
        "chip_count"
    }
    equal = problem_of(TWO, gpus=12, degrees_by_chip=False)
    assert said("meshes", plan, equal) == ["search.degrees_by_chip is false, and stages have degrees of their own"]
    two_of_x = replace(plan, groups=(StageGroup("x", (2,)), StageGroup("x", (2,), mesh=wide)))
    assert said("meshes", two_of_x) == ["x has stages of different degrees"]
    chunked = replace(plan, vpp=2)
    assert said("meshes", chunked) == [
        "degrees by chip type need 1f1b with vpp 1 and equal microbatches: 1f1b with vpp 2"
    ]
    sharded = replace(plan, sharded="parameters")
    assert said("meshes", sharded) == ["degrees by chip type shard the optimizer's states alone, over all replicas"]
    tied = problem_of(TWO, model=model_spec(tied_embeddings=True))
    assert said("meshes", plan, tied) == ["the first and the last stage share the embedding: tp 1 and 2 must be equal"]
    apart = with_meshes(strategy_of("x:2 y:2", dp=3, mbs=2), y=Mesh(1, 1, 2))
    assert said("meshes", apart, tied) == [
        "the first and the last stage share the embedding, whose states are sharded: "
        "one of dp 3 and 2 divides the other"
    ]
    assert not said("meshes", replace(apart, distributed_optimizer=False), tied)


def test_rules_of_a_layer_are_asked_of_every_mesh() -> None:
    plan = with_meshes(strategy_of("x:2 y:2", dp=4), y=Mesh(tp=3, cp=1, dp=4))
    assert said("heads", plan) == ["mesh on y: 8 attention heads are not a multiple of tp 3"]
    pinned = problem_of(TWO, pin={"tp": 1, "mbs": 1})
    assert said("pin", plan, pinned) == ["tp is 3, pinned to 1"]
    fewer = with_meshes(strategy_of("x:2 y:2", dp=4), y=Mesh(tp=2, cp=1, dp=2))
    assert said("pin", fewer, pinned) == ["tp is 2, pinned to 1", "mbs is 2, pinned to 1"]


def test_launchers_run_meshes_or_say_so() -> None:
    plan = with_meshes(strategy_of("x:2 y:2", dp=4), y=Mesh(tp=2, cp=1, dp=2))
    assert not said("launcher", plan, problem_of(TWO, launcher="flagscale"))
    assert said("launcher", plan, problem_of(TWO, launcher="megatron-lm")) == [
        "megatron-lm has the same degrees on all stages, not tp 1 dp 4 on x, tp 2 dp 2 on y"
    ]
    split = with_meshes(plan, y=Mesh(tp=1, cp=2, dp=2))
    assert said("launcher", split, problem_of(TWO, launcher="flagscale")) == [
        "flagscale has no context parallelism where chip types mix (x, y): cp is 2, and must be 1"
    ]


def test_layer_offload() -> None:
    problem = with_host(ONE, offload_layers=2)
    assert not said("layer_offload", strategy_of("x:2,2", dp=2))
    assert not said("layer_offload", strategy_of(tp=2, dp=2), problem)
    away = "activations of 2 layers wait on the host without"
    assert said("layer_offload", strategy_of("x:2,2", dp=2), problem) == [
        f"{away} a pipeline only: pp is 2, and must be 1"
    ]
    recomputed = replace(strategy_of(tp=4), groups=(StageGroup("x", (4,), "selective", (0,)),))
    assert said("layer_offload", recomputed, problem) == [f"{away} recomputation only: it is selective"]


def test_activation_functions_made_again_go_beside_whole_layers() -> None:
    problem = with_host(ONE, recompute_activation_function=True)
    kinds: dict[RecomputeKind, int] = {"none": 0, "block": 1, "selective": 0, "uniform": 1}
    for kind, amount in kinds.items():
        plan = replace(strategy_of(tp=4), groups=(StageGroup("x", (4,), kind, (amount,)),))
        assert not said("recompute", plan)
        found = said("recompute", plan, problem)
        assert found == [] if kind in ("none", "block") else f"it is {kind}" in found[0]


def test_experts_activations_are_made_again_where_tokens_travel() -> None:
    model = model_spec(moe={"experts": 4, "top_k": 1, "expert_ffn": 512})
    problem = problem_of(model=model, training={"moe_zero_memory": "level0"})
    assert not said("experts", strategy_of(dp=4, ep=4), problem)
    needs = "experts' activations are made again (training.moe_zero_memory) with"
    assert said("experts", strategy_of(dp=4), problem) == [f"{needs} ep > 1 only: ep is 1"]
    sent = problem_of(model=model, training={"moe_zero_memory": "level0", "moe_dispatcher": "deepep"})
    assert said("experts", strategy_of(dp=4, ep=4), sent) == [f"{needs} moe_dispatcher alltoall only"]
    gathered = problem_of(model=model, training={"moe_zero_memory": "level0", "moe_dispatcher": "allgather"})
    assert said("experts", strategy_of(dp=4, ep=4), gathered) == [f"{needs} moe_dispatcher alltoall only"]
    overlapped = replace(strategy_of(dp=4, ep=4), expert_overlap=True)
    assert "all are gathered" in said("expert_overlap", overlapped, gathered)[1]
    assert "run again" in said("expert_overlap", overlapped, problem)[0]
    uniform = replace(strategy_of(dp=4, ep=4), groups=(StageGroup("x", (4,), "uniform", (1,)),))
    assert "experts' activations are made again beside" in said("recompute", uniform, problem)[0]
    dense = problem_of(training={"moe_zero_memory": "level1"})
    assert said("experts", strategy_of(dp=4), dense) == [
        "the model has no experts: training.moe_zero_memory must be null"
    ]


def test_heads() -> None:
    problem = problem_of(model=model_spec(heads=6, kv_heads=6, hidden=768))
    assert not said("heads", strategy_of(tp=1), problem)
    assert said("heads", strategy_of(tp=4), problem) == ["6 attention heads are not a multiple of tp 4"]
    assert not said("heads", strategy_of(tp=3), problem)


def test_kv_groups() -> None:
    problem = problem_of(model=model_spec(heads=12, kv_heads=4, hidden=768))
    assert not said("kv_groups", strategy_of(tp=2), problem)
    assert not said("kv_groups", strategy_of(tp=8), problem)
    assert said("kv_groups", strategy_of(tp=6), problem) == ["4 key-value heads and tp 6: neither divides the other"]
    assert not said("kv_groups", strategy_of(tp=4), problem)


def test_heads_of_layers_that_differ() -> None:
    windows = {"sliding_window": 128, "full_every": 2, "global_kv_heads": 3}
    problem = problem_of(model=model_spec(heads=12, kv_heads=4, hidden=768, attention=windows))
    assert said("kv_groups", strategy_of(tp=4), problem) == ["3 key-value heads and tp 4: neither divides the other"]
    latent = {"kind": "mla", "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
    sparse = problem_of(model=model_spec(attention={**latent, "indexer": {"heads": 4, "dim": 64, "topk": 64}}))
    asked = "keys that an indexer selects are gathered, not exchanged or ringed: cp is 2, and needs cp_gather"
    assert said("context_exchange", strategy_of(cp=2, dp=2), sparse) == [asked]
    assert not said("context_exchange", replace(strategy_of(cp=2, dp=2), cp_gather=True), sparse)
    exchanging = replace(sparse, launcher=load_launcher("mindspeed-llm"))
    assert not said("context_exchange", strategy_of(cp=2, dp=2, ulysses=2), exchanging)
    assert not said("context_exchange", replace(strategy_of(cp=2, dp=2), cp_gather=True), exchanging)
    assert said("context_exchange", strategy_of(cp=4, dp=1, ulysses=2), exchanging) == [
        "keys that an indexer selects do not go around a ring: cp 4 needs cp_gather or ulysses 4"
    ]
    compressed = load_architecture("deepseek-v4-flash-284b").model_copy(update={"heads": 48})
    grouped = replace(problem_of(), model=compressed)
    assert said("heads", strategy_of(tp=16, dp=1), grouped) == [
        "8 groups of heads that share an output projection are not a multiple of tp 16"
    ]


def test_heads_of_layers_without_attention() -> None:
    """Six heads in three groups: a rank of both has whole heads, and part of a group or whole groups."""
    mamba = {"heads": 6, "head_dim": 64, "groups": 3, "state": 64, "conv": 4}
    problem = problem_of(model=model_spec(heads=12, layer_pattern="M-M*", mamba=mamba, hidden=768))
    assert not said("heads", strategy_of(tp=3, dp=1), problem)
    assert said("heads", strategy_of(tp=4), problem) == [
        "6 state-space heads are not a multiple of tp 4 x cp 1 = 4",
        "3 state-space groups are not a multiple of tp 4",
    ]
    assert said("heads", strategy_of(cp=2, dp=2), problem) == [
        "3 state-space groups of a rank and cp 2: neither divides the other"
    ]
    assert not said("heads", strategy_of(cp=6, dp=1), problem)
    delta = {"kind": "gated_deltanet", "key_heads": 2, "key_dim": 64, "value_heads": 4, "value_dim": 64, "conv": 4}
    linear = problem_of(model=model_spec(linear_attention=delta, full_attention_interval=2))
    assert not said("heads", strategy_of(tp=2), linear)
    assert said("heads", strategy_of(tp=2, cp=2, dp=1), linear) == [
        "2 linear attention's key heads are not a multiple of tp 2 x cp 2 = 4"
    ]


def test_feed_forward() -> None:
    problem = problem_of(model=model_spec(ffn=2818))
    assert not said("feed_forward", strategy_of(tp=2), problem)
    assert said("feed_forward", strategy_of(tp=4), problem) == ["feed-forward width 2818 is not a multiple of tp 4"]


def test_adapters() -> None:
    """Beside qkv the first layer of a pair is split by its 6 results; beside proj by its inputs."""
    names = ("linear_qkv", "linear_proj")
    beside_qkv, beside_proj = (problem_of(training={"lora": {"rank": 6, "targets": name}}) for name in names)
    assert said("adapters", strategy_of(tp=4), beside_qkv) == ["the adapters' rank 6 is not a multiple of tp 4"]
    assert not said("adapters", strategy_of(tp=2), beside_qkv)
    assert not said("adapters", strategy_of(tp=4), beside_proj)
    assert not said("adapters", strategy_of(tp=4), problem_of())
    moe = model_spec(moe={"experts": 4, "top_k": 2, "expert_ffn": 512})
    routed = problem_of(model=moe, training={"lora": {"rank": 6, "targets": "linear_fc1"}})
    split = said("adapters", strategy_of(tp=2, dp=2, etp=2, flags="fzs"), routed)
    assert split == ["adapters beside experts need whole ones: etp is 2, and must be 1"]
    assert not said("adapters", strategy_of(tp=4, dp=1, flags="fzs"), routed)
    latent = model_spec(attention={"kind": "mla", "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64})
    low = problem_of(model=latent, training={"lora": {"rank": 4, "targets": "linear_kv_down_proj"}})
    (told,) = said("adapters", strategy_of(tp=2, dp=2, flags="fzs"), low)
    assert told.endswith("go with tp 1, or no sequence parallelism")
    assert not said("adapters", strategy_of(tp=2, dp=2), low)


def test_tensor_nodes() -> None:
    problem = problem_of(gpus=12, node=6)
    assert not said("tensor_nodes", strategy_of(tp=3), problem)
    broken = said("tensor_nodes", strategy_of(tp=4), problem)
    assert broken == ["tp 4 neither divides nor is a multiple of the 6 devices of a node"]
    assert not said("tensor_nodes", strategy_of(tp=12), problem)


def test_pipeline_depth() -> None:
    assert not said("pipeline_depth", strategy_of("x:1,1,1,1"))
    assert said("pipeline_depth", strategy_of("x:1,1,1,1,1")) == ["pp 5 is more than the 4 layers"]


def test_batch() -> None:
    assert not said("batch", strategy_of(dp=4, mbs=2))
    broken = said("batch", strategy_of(dp=4, mbs=3))
    assert broken == ["global batch 8 is not a multiple of mbs 3 x dp 4 = 12"]
    assert not said("batch", strategy_of(dp=2, mbs=4))


def test_interleaving() -> None:
    assert not said("interleaving", strategy_of("x:2,2", dp=2, vpp=2))
    assert said("interleaving", strategy_of("x:4", dp=4, vpp=2)) == ["vpp 2 needs a pipeline, and pp is 1"]
    odd = problem_of(batch=6)
    broken = said("interleaving", strategy_of("x:2,2", dp=2, vpp=2), odd)
    assert broken == ["vpp 2: 3 microbatches are not a multiple of pp 2"]
    assert not said("interleaving", strategy_of("x:2,2", dp=2, vpp=1), odd)


def test_even_chunks() -> None:
    assert not said("even_chunks", strategy_of("x:2,2", dp=2, vpp=2))
    broken = said("even_chunks", strategy_of("x:4,5,7", dp=2, vpp=3))
    assert broken == [
        "stage 0 has 4 layers, not a multiple of vpp 3, nor with the embedding for one",
        "stage 1 has 5 layers, not a multiple of vpp 3",
    ]
    short = said("even_chunks", strategy_of("x:16,17", dp=2, vpp=8))
    assert short == ["stage 1 has 17 layers for vpp 8: fewer than 7 chunks of 3, and the head with the rest"]
    assert not said("even_chunks", strategy_of("x:16,16,16,13", dp=1, vpp=4))
    assert not said("even_chunks", strategy_of("x:32,29", dp=1, vpp=8))
    assert not said("even_chunks", strategy_of("x:2,3,5", dp=2, vpp=3))
    assert not said("even_chunks", strategy_of("x:3,1", dp=2, vpp=1))


def test_sequence_parallel() -> None:
    assert not said("sequence_parallel", strategy_of(tp=4, dp=1, flags="s"))
    assert said("sequence_parallel", strategy_of(tp=1, flags="s")) == ["sequence parallelism needs tp > 1"]
    short = problem_of(sequence=1022)
    broken = said("sequence_parallel", strategy_of(tp=4, flags="s"), short)
    assert broken == ["sequence length 1022 is not a multiple of tp 4"]
    split = said("sequence_parallel", strategy_of(tp=4, cp=2, flags="s"), problem_of(sequence=1028))
    assert split == ["514 tokens of a sequence on each of cp 2 ranks are not a multiple of tp 4"]
    assert not said("sequence_parallel", strategy_of(tp=4, flags=""), short)
    assert not said("sequence_parallel", strategy_of(tp=2, flags="s"), short)


def test_distributed_optimizer() -> None:
    assert not said("distributed_optimizer", strategy_of(tp=2, dp=2, flags="z"))
    assert "dp is 1" in said("distributed_optimizer", strategy_of(tp=4, dp=1, flags="z"))[0]
    assert not said("distributed_optimizer", strategy_of(tp=4, dp=1, flags=""))
    assert not said("distributed_optimizer", strategy_of(tp=2, dp=1, cp=2, flags="z"))


def test_chip_count() -> None:
    problem = problem_of({"x": {"spec": chip_spec(), "max": 2}, "y": chip_spec()})
    assert not said("chip_count", strategy_of("x:2 y:2", dp=2), problem)
    assert said("chip_count", strategy_of("x:2 y:2", dp=2, cp=2), problem) == ["4 x are used, at most 2 are there"]
    assert said("chip_count", strategy_of("x:2,2", dp=2), problem) == ["4 x are used, at most 2 are there"]
    assert not said("chip_count", strategy_of("y:2,2", dp=2), problem)
    assert said("chip_count", strategy_of("z:4"), problem) == ["chip z is not in the cluster (x, y)"]


def test_whole_nodes() -> None:
    problem = problem_of(TWO, gpus=8, node=4)
    assert not said("whole_nodes", strategy_of("x:2 y:2", dp=4), problem)
    assert said("whole_nodes", strategy_of("x:1 y:1,1,1", dp=2), problem) == [
        "2 x do not fill nodes of 4",
        "6 y do not fill nodes of 4",
    ]
    assert not said("whole_nodes", strategy_of("x:1,1 y:1,1", dp=2), problem)
    assert not said("whole_nodes", strategy_of("x:2,2", dp=1), problem)
    assert not said("whole_nodes", strategy_of("x:2 y:2", dp=2, cp=2), problem)


def test_contiguous_chips() -> None:
    problem = problem_of(TWO)
    assert not said("contiguous_chips", strategy_of("x:1 x:1 y:2"), problem)
    assert said("contiguous_chips", strategy_of("x:1 y:2 x:1"), problem) == ["x serves 2 separate blocks of stages"]


def test_layers() -> None:
    assert not said("layers", strategy_of("x:3,1"))
    assert said("layers", strategy_of("x:3,2")) == ["the stages have 5 layers in all, the model 4"]
    assert not said("layers", strategy_of("x:3,1", vpp=2))
    assert said("layers", strategy_of("x:1,1,2", vpp=2)) == ["stage 1 has 1 layers for 2 chunks"]
    assert said("layers", strategy_of("x:4,0")) == ["stage 1 has 0 layers for 1 chunks"]


def test_layer_split() -> None:
    mixed = strategy_of("x:1,1 y:2")
    uneven = strategy_of("x:1,2 y:1")
    free, chip, even = (problem_of(TWO, layer_split=split) for split in ("auto", "even_per_chip", "even"))
    assert not said("layer_split", uneven, free)
    assert not said("layer_split", mixed, chip)
    assert said("layer_split", uneven, chip) == ["layers per stage 1, 2 differ, layer_split is even_per_chip"]
    assert said("layer_split", mixed, even) == ["layers per stage 1, 1, 2 differ, layer_split is even"]
    assert not said("layer_split", strategy_of("x:2 y:2"), even)


def test_recompute() -> None:
    assert not said("recompute", strategy_of("x:2,2", recompute="block", amount=1))
    assert said("recompute", strategy_of("x:2,2", recompute="block", amount=0)) == ["x: recompute block with 0 layers"]
    assert said("recompute", strategy_of("x:4", recompute="selective", amount=1)) == [
        "x: recompute selective with 1 layers"
    ]
    short = replace(strategy_of("x:2,2"), groups=(StageGroup("x", (2, 2), "block", (1,)),))
    assert said("recompute", short)[0] == "x: 1 recompute numbers for 2 stages"
    unequal = replace(strategy_of("x:2,2"), groups=(StageGroup("x", (2, 2), "block", (1, 2)),))
    assert "recompute_scope is chip" in said("recompute", unequal)[0]
    assert not said("recompute", strategy_of("x:2,2", recompute="block", amount=99))  # as Megatron: all there are
    assert not said("recompute", unequal, problem_of(recompute_scope="stage"))


def test_memory() -> None:
    strategy = strategy_of("x:4", flags="f")
    need = stage_memory(ONE, strategy)[0].total / 1e9
    tight, less = (problem_of({"x": chip_spec(gb=gb)}, margin=0.0) for gb in (need, need * 0.999))
    assert not said("memory", strategy)
    assert not said("memory", strategy, tight)
    message = f"stage 0 on x needs {need * 1e9 / 2**30:.2f} GiB, {need * 0.999e9 / 2**30:.2f} GiB are free for it"
    assert said("memory", strategy, less) == [message]
    margin = problem_of({"x": chip_spec(gb=need * 1.05)}, margin=0.1)
    (told,) = said("memory", strategy, margin)
    whole = need * 1.05e9 / 2**30
    assert f"{0.9 * whole:.2f} GiB are free for it: all {whole:.2f} GiB less the margin" in told
    assert not said("memory", strategy_of("x:4", tp=2, dp=2, flags="f"), less)


@pytest.mark.parametrize(
    ("pins", "legal", "broken", "message"),
    [
        ({"pin": {"tp": [1, 2]}}, strategy_of(tp=2), strategy_of(tp=4), "tp is 4, pinned to 1, 2"),
        ({"forbid": {"mbs": 2}}, strategy_of(mbs=1), strategy_of(mbs=2), "mbs 2 is forbidden"),
        ({"pin": {"flash_attention": True}}, strategy_of(), strategy_of(flags=""), "flash_attention is False"),
        ({"pin": {"cp": 2}}, strategy_of(cp=2, dp=2), strategy_of(), "cp is 1, pinned to 2"),
        ({"forbid": {"ulysses": 2}}, strategy_of(cp=2, dp=2), strategy_of(cp=2, ulysses=2), "ulysses 2 is forbidden"),
        ({"pin": {"cp_gather": True}}, strategy_of(cp=2, cp_gather=True), strategy_of(), "cp_gather is False, pinned"),
        ({"pin": {"ep": [2, 4]}}, strategy_of(ep=4), strategy_of(), "ep is 1, pinned to 2, 4"),
        ({"forbid": {"etp": 2}}, strategy_of(), strategy_of(etp=2), "etp 2 is forbidden"),
        ({"pin": {"sharded": "gradients"}}, strategy_of(sharded="gradients"), strategy_of(), "sharded is optimizer"),
        ({"pin": {"sharding_group": 2}}, strategy_of(sharding_group=2), strategy_of(), "sharding_group is 0, pinned"),
        ({"pin": {"stages": {"x": 1}}}, strategy_of("x:4"), strategy_of("x:2,2"), "stages of x is 2, pinned to 1"),
        ({"pin": {"layers": [1, 3]}}, strategy_of("x:1,3"), strategy_of("x:2,2"), "layers is 2, 2, pinned to 1, 3"),
        ({"forbid": {"layers": [1, 3]}}, strategy_of("x:2,2"), strategy_of("x:1,3"), "layers 1, 3 is forbidden"),
        ({"pin": {"chip_order": ["y", "x"]}}, strategy_of("y:2 x:2"), strategy_of("x:2 y:2"), "chip_order is x, y"),
        ({"forbid": {"stage_chips": ["x", "y"]}}, strategy_of("y:2 x:2"), strategy_of("x:2 y:2"), "stage_chips x, y"),
        (
            {"forbid": {"recompute": {"*": "block"}}},
            strategy_of(),
            strategy_of(recompute="block", amount=1),
            "recompute block of x is forbidden",
        ),
        (
            {"pin": {"recompute_num_layers": {"x": [1, 2]}}},
            strategy_of(recompute="block", amount=1),
            strategy_of(recompute="block", amount=3),
            "recompute_num_layers of x is 3, pinned to 1, 2",
        ),
    ],
    ids=str,
)
def test_pin(pins: dict[str, dict[str, object]], legal: Strategy, broken: Strategy, message: str) -> None:
    problem = problem_of(TWO, **pins)
    assert not said("pin", legal, problem)
    assert message in said("pin", broken, problem)[0]


def test_chips_that_a_pinned_order_does_not_name_may_not_be_used() -> None:
    problem = problem_of(TWO, pin={"chip_order": ["y"]})
    assert not said("pin", strategy_of("y:4"), problem)
    assert said("pin", strategy_of("x:4"), problem)


def test_violations_lists_all_and_judges_memory_of_sound_plans_only() -> None:
    tiny = problem_of({"x": chip_spec(gb=3.3)})
    assert [v.rule for v in violations(tiny, strategy_of())] == ["memory"]
    wrong = strategy_of("x:5", tp=3, dp=1)
    alone = {"heads", "kv_groups", "feed_forward", "tensor_nodes", "distributed_optimizer"}
    assert {v.rule for v in violations(tiny, wrong)} == {"degrees", "layers", *alone}
    assert {v.rule for v in structure_violations(tiny, wrong)} == {"degrees", "layers"}
    nothing = replace(strategy_of(), tp=0, cp=0, ep=0)
    assert {v.rule for v in violations(tiny, nothing)} == {"degrees", "context_parallel", "experts"}
    assert not violations(ONE, strategy_of())
    assert str(Violation("batch", "no")) == "batch: no"


def test_every_rule_has_a_test_of_its_name_and_words_of_its_own() -> None:
    tests = {*globals(), *vars(test_rules_parallel)}
    assert {name for name in RULES if f"test_{name}" not in tests} == set()
    assert all(rule.words.strip() and rule.name == name for name, rule in RULES.items())
    assert len({rule.words for rule in RULES.values()}) == len(RULES)
    assert set(STRUCTURE) < set(RULES)
