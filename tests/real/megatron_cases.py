"""Plans for the real frameworks: dense, grouped heads, experts, latent attention, uneven, interleaved, long context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from models_zoo import architecture_names, load_architecture
from tests.support.problems import chip_spec, problem_of, strategy_of, with_stack

LAUNCHES = ("megatron-lm", "megatron-core-0.13", "megatron-core-0.12")


@dataclass(frozen=True)
class Case:
    """A model and a plan; `groups` and `more` as strategy_of takes them, `targets` that run it."""

    name: str
    model: str
    groups: str
    batch: int = 64
    sequence: int = 4096
    training: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = LAUNCHES
    stack: dict[str, float] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def problem(self) -> Problem:
        """The problem on chips of a made-up type."""
        link = {"pcie_generation": 5, "bandwidth_gb_s": 64}
        chip = chip_spec(gb=400, host_link=link, block_formats=["mx", "nvfp4"])
        chip["peak_tflops"] = {"bf16": 100, "fp16": 100, "fp32": 100, "fp8": 200, "fp4": 400}
        problem = problem_of(
            {"x": chip},
            model=self.model,
            gpus=self.strategy().devices,
            node=8,
            batch=self.batch,
            sequence=self.sequence,
            training=self.training,
        )

        return with_stack(problem, **{"gradient_overlap": 0.9, "parameter_overlap": 0.9, **self.stack})

    def strategy(self) -> Strategy:
        """The plan."""
        return strategy_of(self.groups, **self.more)


def _case(name: str, model: str, groups: str, flags: str = "sfz", **more: Any) -> Case:
    own = {key: more.pop(key) for key in ("batch", "sequence", "training", "targets", "stack") if key in more}
    return Case(name, model, groups, more={"flags": flags, **more}, **own)


LAYOUT = ("megatron-lm", "megatron-core-0.13")
NEW = ("megatron-lm",)
EVEN_70B = "x:" + ",".join(["20"] * 4)
_BLOCK: dict[str, Any] = {"recompute": "block", "amount": 3}
_SHARED = {"distribute_saved_activations": True}

_HIDDEN = {"routing_overlap": 0.5, "copies_once_per_node": 1, "tensor_overlap": 0.5}
_SHOWN = dict.fromkeys(("gradient_overlap", "parameter_overlap", "pipeline_overlap_interleaved"), 0.0)


def _muon(mode: str = "duplicated") -> dict[str, Any]:
    return {"optimizer": "muon", "muon_tp_mode": mode}


CASES = (
    _case("dense, one stage", "llama2-7b", "x:32", tp=4, dp=2),
    _case("dense, tp 1", "llama2-7b", "x:32", flags="fz", tp=1, dp=8),
    _case("dense, attention unfused", "llama2-7b", "x:32", flags="z", tp=1, dp=8),
    _case("dense, no sharing", "llama2-7b", "x:32", flags="sf", tp=2, dp=4),
    _case("grouped heads, pipeline", "llama2-70b", EVEN_70B, tp=4, dp=2),
    _case("grouped heads, interleaved", "llama2-70b", EVEN_70B, tp=4, dp=2, vpp=5),
    _case("pp 2, interleaved", "llama2-70b", "x:40,40", tp=4, dp=2, vpp=4),
    _case("more tp than key-value heads", "llama2-70b", "x:40,40", tp=16, dp=1, targets=NEW),
    _case("first and last differ", "llama2-70b", "x:17,23,23,17", tp=4, dp=2),
    _case("first and last of two", "llama2-70b", "x:41,39", tp=4, dp=2),
    _case("first and last differ, interleaved", "llama2-70b", "x:18,22,22,18", tp=4, dp=2, vpp=2),
    _case("uneven", "llama2-70b", "x:17,22,23,18", tp=4, dp=2, targets=LAYOUT),
    _case("uneven, interleaved", "llama2-70b", "x:16,20,24,20", tp=4, dp=2, vpp=2, targets=LAYOUT),
    _case("uneven, interleaved, slots", "llama2-70b", "x:17,22,22,19", tp=4, dp=2, vpp=2, targets=LAYOUT),
    _case("embedding and head as layers", "llama3.1-405b", "x:31,32,32,31", tp=8, dp=1, vpp=4, targets=LAYOUT),
    _case("head as a layer", "llama2-70b", "x:27,27,26", tp=4, dp=2, vpp=3, batch=48, targets=LAYOUT),
    _case("positions, biases, tied", "gpt3-175b", "x:24,24,24,24", tp=8, dp=1, sequence=2048),
    _case("gelu, selective", "gpt3-175b", "x:24,24,24,24", tp=8, dp=1, sequence=2048, recompute="selective"),
    _case("block", "llama2-70b", EVEN_70B, tp=4, dp=2, vpp=5, **_BLOCK),
    _case("uniform", "llama2-70b", EVEN_70B, tp=4, dp=2, recompute="uniform", amount=2),
    _case("ring", "llama2-7b", "x:16,16", tp=2, dp=2, cp=4, sequence=16384),
    _case("all-to-all", "llama2-7b", "x:16,16", tp=2, dp=2, cp=4, ulysses=4, sequence=16384),
    _case("ring of all-to-alls", "llama2-7b", "x:16,16", tp=2, dp=1, cp=8, ulysses=2, sequence=16384),
    _case("gathered", "llama2-7b", "x:16,16", tp=2, dp=2, cp=4, cp_gather=True, sequence=16384),
    _case("ZeRO-3", "llama2-7b", "x:32", flags="fz", tp=1, dp=8, sharded="parameters"),
    _case("ZeRO-2", "llama2-7b", "x:32", tp=2, dp=4, sharded="gradients"),
    _case("sharding groups", "llama2-7b", "x:32", tp=2, dp=16, sharding_group=4),
    _case("sharding groups, experts", "mixtral-8x7b", "x:32", tp=2, dp=16, ep=4, sharding_group=4),
    _case("sharding groups, experts across them", "mixtral-8x7b", "x:32", tp=2, dp=16, ep=8, sharding_group=8),
    _case("experts", "mixtral-8x22b", "x:14,14,14,14", tp=2, dp=8, ep=8),
    _case("experts split", "mixtral-8x22b", "x:14,14,14,14", tp=4, dp=2, ep=2, etp=4),
    _case("experts, interleaved", "mixtral-8x22b", "x:14,14,14,14", tp=2, dp=4, ep=8, vpp=7),
    _case("experts across cp", "mixtral-8x22b", "x:28,28", tp=2, dp=2, cp=2, ep=4, batch=32),
    _case("experts, first and last", "mixtral-8x22b", "x:13,15,15,13", tp=2, dp=4, ep=8),
    _case("latent, dense prefix, shared", "deepseek-v2-lite", "x:14,13", tp=2, dp=4, ep=8),
    _case(
        "latent, mtp, uneven",
        "deepseek-v3-671b",
        "x:" + ",".join(["4", "5", "6", *["4"] * 11, "1", "1"]),
        flags="fz",
        tp=1,
        dp=32,
        ep=32,
        batch=1024,
        targets=NEW,
    ),
    _case(
        "mtp and head in three layers' places",
        "deepseek-v3-671b",
        "x:16,16,16,13",
        flags="fz",
        tp=1,
        dp=64,
        ep=64,
        vpp=4,
        batch=2048,
        targets=NEW,
    ),
    _case(
        "head in three layers' places, deep",
        "kimi-k2-1t",
        "x:32,29",
        flags="fz",
        tp=1,
        dp=32,
        ep=32,
        vpp=8,
        batch=1024,
        targets=LAYOUT,
    ),
    _case(
        "mtp and head alone in the last chunk",
        "deepseek-v3-671b",
        "x:7,8,8,8,8,8,8,6",
        flags="fz",
        tp=1,
        dp=32,
        ep=32,
        vpp=4,
        batch=1024,
        targets=NEW,
    ),
    _case("experts, all hidden", "mixtral-8x22b", "x:14,14,14,14", dp=8, tp=2, ep=8, vpp=7, stack=_HIDDEN),
    _case("experts, no pipeline, hidden", "mixtral-8x22b", "x:56", flags="fz", dp=8, tp=1, ep=8, stack=_HIDDEN),
    _case(
        "experts, HybridEP, graphs of parts",
        "mixtral-8x22b",
        "x:14,14,14,14",
        dp=8,
        tp=2,
        ep=8,
        training={"moe_dispatcher": "hybridep", "cuda_graph": "te"},
        targets=NEW,
    ),
    _case(
        "experts, tokens gathered",
        "mixtral-8x22b",
        "x:14,14,14,14",
        dp=8,
        tp=2,
        ep=8,
        training={"moe_dispatcher": "allgather"},
    ),
    _case("graph of the iteration", "llama2-7b", "x:32", tp=4, dp=2, training={"cuda_graph": "full"}, targets=NEW),
    _case("nothing hidden", "llama2-70b", EVEN_70B, tp=4, dp=2, vpp=5, stack=_SHOWN),
    _case("bf16 gradients, precision aware", "llama2-7b", "x:32", tp=2, dp=4, stack={"gradient_reduce_bytes": 2}),
    _case("windows and sinks", "gpt-oss-20b", "x:12,12", tp=2, dp=4, ep=4, targets=NEW),
    _case("queries' bias", "qwen2.5-72b", EVEN_70B, tp=4, dp=2),
    _case("normed queries, experts", "qwen3-235b-a22b", "x:24,23,23,24", tp=4, dp=8, ep=32),
    _case("every other layer has experts", "llama4-maverick-400b", "x:24,24", tp=4, dp=4, ep=16, targets=NEW),
    _case("one block a layer", "nemotron3-nano-30b-a3b", "x:12,14,15,11", tp=2, dp=4, ep=8, targets=NEW),
    _case("one block a layer, interleaved", "nemotron3-nano-30b-a3b", "x:26,26", tp=2, dp=4, ep=8, vpp=2, targets=NEW),
    _case(
        "modules of two blocks, run again",
        "nemotron3-super-120b-a12b",
        "x:44,44",
        tp=2,
        dp=8,
        ep=16,
        targets=NEW,
    ),
    _case("delta rules, experts, uneven", "qwen3.5-35b-a3b", "x:9,11,11,9", flags="fz", tp=1, dp=8, ep=8, targets=NEW),
    _case("an indexer's keys", "glm5-744b-a40b", "x:39,39", tp=2, dp=32, ep=32, targets=NEW),
    _case("breadth first", "llama2-70b", EVEN_70B, tp=4, dp=2, vpp=5, schedule="breadth_first"),
    *(
        _case(f"muon, {mode}", "llama2-70b", EVEN_70B, tp=4, dp=2, training=_muon(mode), targets=NEW)
        for mode in ("duplicated", "distributed", "blockwise")
    ),
    _case(
        "muon, experts", "kimi-k2-1t", "x:16,15,15,15", flags="fz", tp=1, dp=64, ep=64, training=_muon(), targets=NEW
    ),
    _case("soap", "llama2-70b", EVEN_70B, tp=4, dp=2, training={"optimizer": "soap"}, targets=NEW),
    _case("muon, no sharing", "llama2-7b", "x:32", flags="sf", tp=2, dp=4, training=_muon(), targets=NEW),
    _case("precision aware, offload", "llama2-7b", "x:32", tp=2, dp=4, training={"optimizer_offload": 0.5}),
    *(
        _case(f"fp8, {recipe}", "llama2-7b", "x:32", tp=2, dp=4, targets=targets, training=training)
        for recipe, training, targets in (
            ("delayed", {"precision": "fp8", "fp8_recipe": "delayed", "fp8_parameter_gather": True}, LAUNCHES),
            ("current", {"precision": "fp8", "fp8_recipe": "current", "fp8_parameter_gather": True}, LAUNCHES),
            ("blockwise", {"precision": "fp8", "fp8_recipe": "blockwise"}, LAYOUT),
            ("mx", {"precision": "fp8", "fp8_recipe": "mx"}, LAUNCHES),
            ("mx, gathered", {"precision": "fp8", "fp8_recipe": "mx", "fp8_parameter_gather": True}, NEW),
        )
    ),
    _case("fp16", "llama2-7b", "x:32", tp=2, dp=4, training={"precision": "fp16", "dropout": True}),
    _case("checkpoints in shares", "llama2-7b", "x:32", flags="fz", tp=2, dp=4, training=_SHARED, **_BLOCK),
)


def _model(name: str) -> Case:
    arch = load_architecture(name)
    trained_by = tuple(target for target in LAUNCHES if not load_launcher(target).untrained(arch))
    groups = f"x:{arch.layers}"
    return _case(f"model {name}", name, groups, flags="fz", tp=1, dp=8, sequence=2048, targets=trained_by)


MODELS = tuple(map(_model, architecture_names()))
"""Every model that can be planned, in one stage, for the launchers that train its layers."""
