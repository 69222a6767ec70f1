"""Specs that are solved: what may be asked of the search, each part at least once, on few devices."""

from __future__ import annotations

from typing import Any

from tests.net.case import EXPERTS, SMALL, Case, chip, chips, example, spec

FEW = {"cp": 1, "flash_attention": True}
ONE = chips(x=(16, chip()))
TIGHT = chips(x=(8, chip(gb=4.4)))
TWO = chips(a=(8, chip(gb=60)), b=(8, chip(tflops=50, gb=30)))
THREE = chips(a=(8, chip(gb=60)), b=(8, chip(tflops=50, gb=30)), c=(8, chip(tflops=70, gb=8)))
LLAMA = ("llama2-7b", 16, "a800", 64)

DENSE: dict[str, dict[str, Any]] = {
    "llama2-7b": spec(*LLAMA, pin=FEW),
    "llama2-70b": spec("llama2-70b", 64, "h800", 64, 4096, pin={**FEW, "tp": 8}),
    "bloom, tied embeddings, ALiBi": spec("bloom-7b", 16, "a100", 32, pin=FEW),
    "gemma2, windows": spec("gemma2-27b", 32, "h100", 64, 4096, pin={**FEW, "tp": [4, 8]}),
    "a model and a chip of the spec's own": spec(SMALL, 16, ONE, 32, top=3),
    "few microbatches": spec(SMALL, 16, ONE, 4, pin=FEW),
    "one device": spec(SMALL, 1, ONE, 8, cluster={"gpus_per_node": 1}),
    "layers that nothing divides": spec({**SMALL, "layers": 7}, 16, ONE, 32, pin={"pp": [2, 4]}),
    "on Ascend": spec("llama-7b", 8, "ascend_910b", 64, stack="mindspeed", pin=FEW),
    "nodes of 4": spec(SMALL, 16, ONE, 32, cluster={"gpus_per_node": 4}, pin=FEW),
    "a margin of memory": spec(*LLAMA, cluster={"memory_margin": 0.3}, pin=FEW),
}
EXPERT: dict[str, dict[str, Any]] = {
    "experts": spec(EXPERTS, 16, ONE, 32, pin=FEW),
    "mixtral-8x7b": spec("mixtral-8x7b", 32, "h100", 64, 4096, pin={**FEW, "tp": [1, 2], "sharding_group": 0}),
    "latent attention, two kinds of layers": spec("deepseek-v2-lite", 16, "h800", 64, pin={**FEW, "tp": 1, "ep": 8}),
    "multi-token prediction": spec({**EXPERTS, "mtp_layers": 1}, 16, ONE, 32, pin={**FEW, "pp": [2, 4]}),
    "imbalance": spec(EXPERTS, 16, ONE, 32, training={"expert_imbalance": 1.3}, pin={**FEW, "ep": 4}),
    "capacity": spec(EXPERTS, 16, ONE, 32, training={"expert_capacity_factor": 1.2}, pin={**FEW, "etp": 2}),
}
MIXED: dict[str, dict[str, Any]] = {
    "two chips": spec(SMALL, 16, TWO, 32, pin=FEW),
    "two chips of the catalogue": spec("llama2-7b", 16, {"a800": 8, "h800": 8}, 32, pin={**FEW, "tp": [2, 4]}),
    "three chips": spec(SMALL, 24, THREE, 24, pin={**FEW, "tp": [2, 4]}),
    "more chips than are used": spec(SMALL, 16, THREE, 32, pin={**FEW, "tp": 4}),
    "stages and order pinned": spec(SMALL, 16, TWO, 32, pin={"stages": {"a": 1, "b": 1}, "chip_order": ["b", "a"]}),
    "chips of stages pinned": spec(SMALL, 16, TWO, 32, pin={"stage_chips": ["a", "a", "b", "b"]}),
    "two chips, experts": spec(EXPERTS, 16, TWO, 32, pin={**FEW, "tp": [1, 2], "ep": [2, 4]}),
    "even in a chip type": spec(SMALL, 16, TWO, 32, layer_split="even_per_chip", pin=FEW),
    "even everywhere": spec(SMALL, 16, TWO, 32, layer_split="even", pin=FEW),
    "recomputed by chip": spec(SMALL, 16, TWO, 32, pin={**FEW, "recompute": {"a": "none"}, "pp": 4}),
}
LONG: dict[str, dict[str, Any]] = {
    "long": spec(SMALL, 16, ONE, 4, 16_384, pin={"flash_attention": True, "cp": [2, 4, 8]}),
    "rings": spec(SMALL, 16, ONE, 8, 8192, pin={"cp": 4, "ulysses": 1, "cp_gather": False}),
    "gathered": spec(SMALL, 16, ONE, 8, 8192, pin={"cp": [2, 4], "cp_gather": True}),
    "both ways": spec(SMALL, 16, ONE, 8, 8192, pin={"cp": 4, "ulysses": 2}),
    "a long llama": spec("llama3.1-8b", 16, "h100", 8, 65_536, pin={"cp": [4, 8], "tp": [1, 2]}),
}
LAUNCHERS = (
    "accelerate",
    "deepspeed",
    "flagscale",
    "loongforge",
    "megatron-bridge",
    "megatron-core-0.12",
    "megatron-core-0.13",
    "megatron-lm",
    "mindspeed-llm",
    "torchtitan",
)
LAUNCHED: dict[str, dict[str, Any]] = {
    f"launcher {name}": spec(SMALL, 16, ONE, 32, launcher=name, pin=FEW) for name in LAUNCHERS
}
STACKS = ("fsdp-torchtitan", "fsdp-composer", "deepspeed-zero3", "megatron-core-plain", "nemo", "paddlenlp")
STACKED: dict[str, dict[str, Any]] = {
    f"stack {name}": spec("llama2-7b", 16, "a100", 32, stack=name, pin={"cp": 1}, top=1) for name in STACKS
}
SHARED: dict[str, dict[str, Any]] = {
    "sharded parameters": spec(*LLAMA, pin={**FEW, "sharded": "parameters"}),
    "sharding groups": spec(*LLAMA, pin={**FEW, "sharding_group": 8, "pp": 1}),
    "plain replicas": spec(*LLAMA, pin={**FEW, "distributed_optimizer": False}),
}
TECHNIQUES: dict[str, dict[str, Any]] = {
    "precision-aware optimizer": spec(
        *LLAMA, training={"optimizer": "precision_aware_bf16"}, pin={**FEW, "distributed_optimizer": True}
    ),
    "offload of the optimizer": spec(*LLAMA, training={"optimizer_offload": 0.5}, pin={**FEW, "pp": 1}),
    "offload of activations": spec(*LLAMA, training={"activation_offload": ["core_attn", "attn_proj"]}, pin=FEW),
    "fp8": spec(
        "llama2-7b", 16, "h100", 32, training={"precision": "fp8", "fp8_parameter_gather": True}, pin={**FEW, "tp": 2}
    ),
    "fp16, gradients released": spec(
        "llama-7b",
        8,
        "ascend_910b",
        64,
        stack="ascendspeed",
        training={"precision": "fp16", "release_fp32_gradients": True},
        pin={**FEW, "tp": 1},
    ),
    "dropout, nothing fused": spec(
        *LLAMA, training={"dropout": True, "fused_kernels": False, "fused_gate_up": False}, pin={**FEW, "tp": [1, 2]}
    ),
}
TIGHT_SPECS: dict[str, dict[str, Any]] = {
    "tight, by chip": spec(SMALL, 8, TIGHT, 16, 4096, pin={"cp": 1}),
    "tight, by stage": spec(SMALL, 8, TIGHT, 16, 4096, recompute_scope="stage", pin={"cp": 1}),
    "stages of pp 4": spec(SMALL, 8, TIGHT, 16, 4096, recompute_scope="stage", pin={"pp": 4, "recompute": "block"}),
    "chosen modules": spec(
        SMALL, 8, TIGHT, 16, 4096, pin={"recompute": "selective", "recompute_modules": [["core_attn", "mlp"]]}
    ),
    "bans": spec(SMALL, 16, ONE, 32, forbid={"vpp": [2, 4], "recompute": "uniform", "mbs": [2, 4], "tp": 1}),
    "layers pinned": spec(SMALL, 16, ONE, 32, pin={"layers": [1, 3, 2, 2], "vpp": 1}),
}
PRICES = {"prices": {"a": 2.0, "b": 0.7}}
GOALS: dict[str, dict[str, Any]] = {
    "cost": spec(SMALL, 16, TWO, 32, cluster=PRICES, objective="cost", pin=FEW),
    "cost, idle chips": spec(SMALL, 16, TWO, 32, cluster={**PRICES, "idle": True}, objective="cost", pin=FEW),
    "priced": spec(SMALL, 16, TWO, 32, cluster=PRICES, pin={**FEW, "tp": 2}),
    "fewest chips": spec(
        SMALL, 32, "a800", 32, deadline={"tokens": 1e11, "days": 4}, objective="fewest_chips", pin={**FEW, "tp": 1}
    ),
    "idle chips": spec(SMALL, 24, THREE, 32, cluster={"idle": True}, pin={**FEW, "tp": 4}, top=3),
    "cost by a deadline": spec(
        SMALL, 16, TWO, 32, cluster=PRICES, objective="cost", deadline={"tokens": 1e9, "days": 1}, pin={"tp": 4}
    ),
}
LEAST = {"tp": 4, "cp": 1, "mbs": 1, "flash_attention": True, "distributed_optimizer": True}
"""So little is left to decide that every change for the better is solved long before the explanation's time is up."""
INFEASIBLE: dict[str, dict[str, Any]] = {
    "a size that divides nothing": spec(*LLAMA, pin={"tp": 3}),
    "too little memory": spec("llama2-70b", 8, "a800", 8, 4096, pin={**LEAST, "pp": [1, 2]}),
    "pins against each other": spec(
        SMALL, 16, ONE, 32, pin={**LEAST, "tp": 1, "pp": 4, "vpp": 2, "layers": [1, 3, 2, 2]}
    ),
    "a deadline that nothing meets": spec(
        SMALL, 16, "a800", 32, deadline={"tokens": 1e15, "days": 1}, objective="fewest_chips", pin={"tp": 1}
    ),
    "mixed chips for accelerate": spec(
        SMALL, 16, TWO, 32, launcher="accelerate", pin={**LEAST, "stages": {"a": 1, "b": 1}}
    ),
    "no tensor parallelism in a stack": spec(*LLAMA, stack="fsdp-composer", pin={"tp": 2}),
}
HYBRID = {
    "layers": 4,
    "hidden": 1024,
    "ffn": 2816,
    "heads": 8,
    "vocab": 4000,
    "mtp_layers": 1,
    "layer_pattern": "M-*-",
    "mamba": {"heads": 16, "head_dim": 64, "groups": 4, "state": 128, "conv": 4},
}
"""Blocks alone, with multi-token prediction."""
BAD: dict[str, Any] = {
    "several mistakes": spec("lama2-7b", 0, {"a80": 8}, 0, topp=2),
    "unknown chip": spec("llama2-7b", 16, "h80", 32),
    "too few chips": spec("llama2-7b", 32, {"a800": 16}, 32),
    "node size": spec("llama2-7b", 12, "a800", 32),
    "unknown launcher and stack": spec(*LLAMA, launcher="megatron", stack="megatron"),
    "not supported": spec(HYBRID, 16, "h800", 32),
    "a technique without its precision": spec(*LLAMA, training={"release_fp32_gradients": True}),
    "a technique that the launcher lacks": spec(*LLAMA, launcher="accelerate", training={"optimizer": "lion"}),
    "cost without prices": spec(*LLAMA, objective="cost"),
    "pins and bans": spec(*LLAMA, pin={"tp": [2], "layers": [16, 16], "pp": 4}, forbid={"tp": [2]}),
    "broken YAML": "model: llama2-7b\ncluster: {num_gpus: 16, chips\n",
    "a key twice": "model: llama2-7b\nmodel: llama2-13b\ncluster: {num_gpus: 8, chips: a800}\n",
    "empty": "",
}
EXAMPLES = (
    "custom-model",
    "pinned",
    "llama-65b-ascend-32",
    "llama2-70b-a800-256",
    "llama2-70b-mixed",
    "mixtral-8x22b-h100-256",
)
SAMPLE = {"experts", "two chips", "rings", "tight, by stage", "launcher torchtitan", "cost, idle chips", "llama2-7b"}


def cases() -> list[Case]:
    """Every spec, solved; those without a plan and bad ones as text too."""
    good = DENSE | EXPERT | MIXED | LONG | LAUNCHED | STACKED | SHARED | TECHNIQUES | TIGHT_SPECS | GOALS
    solve = ("solve", "spec.yaml", "--json")
    found = [Case("solve", name, solve, {"spec.yaml": given}, name in SAMPLE) for name, given in good.items()]
    found += [Case("solve", f"example {name}", solve, {"spec.yaml": example(f"{name}.yaml")}) for name in EXAMPLES]
    for kind, specs in (("infeasible", INFEASIBLE), ("bad_input", BAD)):
        for name, given in specs.items():
            always = kind == "bad_input"
            found.append(Case(kind, name, solve[:2], {"spec.yaml": given}, always))
            found.append(Case(kind, f"{name}, as JSON", solve, {"spec.yaml": given}, always))
    return found
