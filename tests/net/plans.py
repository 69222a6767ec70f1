"""Plans that are given: evaluated, checked, explained, exported to every target, and their ranks."""

from __future__ import annotations

from typing import Any

from tests.net.case import EXPERTS, SMALL, Case, chip, chips, example, spec

Plan = dict[str, Any]
Given = tuple[dict[str, Any], Plan]
"""A spec and a plan for it."""
TARGETS = (
    "megatron-lm",
    "megatron-core-0.13",
    "megatron-core-0.12",
    "megatron-bridge",
    "mindspeed-llm",
    "loongforge",
    "flagscale",
    "deepspeed",
    "torchtitan",
    "accelerate",
    "verl",
    "paddleformers",
    "mindformers",
)


def plan(*layers: int, on: str = "x", stages: dict[str, Any] | None = None, **fields: Any) -> Plan:
    """A plan on one chip type; tp 1, dp 1 and mbs 1 where nothing else is said."""
    plain = {"tp": 1, "dp": 1, "mbs": 1, "distributed_optimizer": True, "flash_attention": True}
    return {**plain, **fields, "stages": [{"chip": on, "layers": list(layers), **(stages or {})}]}


ONE = chips(x=(16, chip()))
TWO = chips(a=(8, chip(gb=60)), b=(8, chip(tflops=50, gb=30)))
DENSE = spec(SMALL, 16, ONE, 32)
SPARSE = spec(EXPERTS, 16, ONE, 32)
MIXED = spec(SMALL, 16, TWO, 32)
LLAMA = spec("llama2-7b", 16, "a100", 64, 4096)
SEQUENCE: dict[str, Any] = {"tp": 2, "sequence_parallel": True}
EXPORTED: dict[str, Given] = {
    "dense": (LLAMA, plan(16, 16, on="a100", dp=4, **SEQUENCE)),
    "interleaved": (DENSE, plan(2, 2, 2, 2, dp=2, vpp=2, **SEQUENCE)),
    "experts": (SPARSE, plan(8, dp=8, ep=4, **SEQUENCE)),
    "context": (DENSE, plan(8, dp=2, cp=4, ulysses=2, **SEQUENCE)),
    "uneven": (DENSE, plan(1, 3, 3, 1, dp=4)),
    "recomputed by stage": (
        spec(SMALL, 16, ONE, 32, recompute_scope="stage"),
        plan(2, 2, 2, 2, dp=4, stages={"recompute": "block", "recompute_layers": [2, 2, 1, 1]}),
    ),
    "sharded parameters": (DENSE, plan(8, dp=16, sharded="parameters", stages={"recompute": "none"})),
}
SWITCHED = spec(
    "llama2-7b",
    16,
    "h100",
    64,
    4096,
    training={"optimizer": "precision_aware", "optimizer_offload": 0.5, "precision": "bf16", "dropout": True},
)
BY_CHIP: Plan = {
    "tp": 2,
    "dp": 4,
    "mbs": 1,
    "sequence_parallel": True,
    "distributed_optimizer": True,
    "stages": [
        {"chip": "a", "layers": [5]},
        {"chip": "b", "layers": [3], "recompute": "uniform", "recompute_layers": 3},
    ],
}
BY_HAND: list[tuple[str, str, Given]] = [
    ("megatron-lm", "switches", (SWITCHED, plan(32, on="h100", dp=8, **SEQUENCE))),
    ("megatron-lm", "mixed chips, two recomputations", (MIXED, BY_CHIP)),
    (
        "megatron-lm",
        "mixed chips",
        (MIXED, {**BY_CHIP, "stages": [{"chip": "a", "layers": 5}, {"chip": "b", "layers": 3}]}),
    ),
    ("flagscale", "mixed chips", (MIXED, BY_CHIP)),
    ("megatron-lm", "chosen modules", (DENSE, plan(8, dp=16, stages={"recompute": "selective"}))),
    (
        "mindspeed-llm",
        "reused parameters",
        (spec(SMALL, 16, ONE, 32, training={"reuse_fp32_parameters": True}), plan(8, dp=16)),
    ),
]

ZERO_BUBBLE = spec("llama2-7b", 16, "a100", 64, 2048, stack="zero-bubble")
SPEED = spec("llama-7b", 4, "ascend_910b", 16, 2048, {"precision": "fp16"}, {"gpus_per_node": 4}, stack="ascendspeed")
EVALUATED: dict[str, Given] = {
    **EXPORTED,
    "switches": BY_HAND[0][2],
    "mixed chips": (MIXED, BY_CHIP),
    "groups": (DENSE, plan(8, dp=16, sharding_group=8)),
    "ring": (DENSE, plan(8, dp=4, cp=4)),
    "gathered": (DENSE, plan(8, dp=4, cp=4, cp_gather=True)),
    "split experts": (SPARSE, plan(4, 4, dp=4, ep=4, etp=2, **SEQUENCE)),
    "breadth first": (DENSE, plan(4, 4, dp=8, vpp=2, schedule="breadth_first")),
    "zero bubble": (ZERO_BUBBLE, plan(16, 16, on="a100", dp=8, schedule="zb1p", distributed_optimizer=False)),
    "microbatches of different sizes": (
        SPEED,
        plan(8, 8, 8, 8, on="ascend_910b", mbs=2, micro_batches=[1, 2, 2, 3, 3, 2, 2, 1], distributed_optimizer=False),
    ),
    "too large": (LLAMA, plan(32, on="a100", dp=16, mbs=4, distributed_optimizer=False, flash_attention=False)),
    "sizes that do not add up": (LLAMA, plan(16, 15, on="a100", dp=16)),
    "not the pins": (spec(SMALL, 16, ONE, 32, pin={"tp": 4, "recompute": "none"}), plan(4, 4, dp=4, **SEQUENCE)),
    "a field that is none": (DENSE, plan(8, dp=16, mbss=2)),
}
EXPLAINED: dict[str, Given] = {
    "slower than the best": (spec(SMALL, 16, ONE, 32, pin={"cp": 1, "flash_attention": True}), plan(2, 2, 2, 2, dp=4)),
    "broken rules": (spec(SMALL, 16, ONE, 32, pin={"cp": 1, "tp": [4, 8]}), plan(4, 4, dp=4, **SEQUENCE)),
    "too large": EVALUATED["too large"],
    "experts": (spec(EXPERTS, 16, ONE, 32, pin={"cp": 1, "flash_attention": True}), plan(8, dp=8, ep=2, tp=2)),
}
WISHED: dict[str, dict[str, Any]] = {
    "wishes": spec(SMALL, 16, ONE, 32, pin={"cp": 1, "flash_attention": True, "pp": 4}, forbid={"mbs": 1}),
    "no plan": spec("llama2-7b", 16, "a800", 64, pin={"tp": 3, "cp": 1}),
}


def cases() -> list[Case]:
    """Every plan, by every command that takes one."""
    seed = {"spec.yaml": example("seed-published.yaml"), "plan.yaml": example("seed-published-strategy.yaml")}
    every: dict[str, dict[str, Any]] = {
        name: {"spec.yaml": given, "plan.yaml": plan} for name, (given, plan) in EVALUATED.items()
    }
    every["published by the seed"] = seed
    return [*_judged(every), *_ranks(every), *_explained(seed), *_exports()]


def _judged(every: dict[str, dict[str, Any]]) -> list[Case]:
    given = ("spec.yaml", "-s", "plan.yaml")
    found = []
    for name, files in every.items():
        found.append(Case("evaluate", name, ("evaluate", *given, "--json"), files, True))
        found.append(Case("evaluate", f"{name}, as text", ("evaluate", *given), files, True))
        found.append(Case("check", name, ("check", *given, "--json"), files, True))
        found.append(Case("check", f"{name}, as text", ("check", *given), files, True))
    for name in ("interleaved", "mixed chips", "zero bubble"):
        more = ("--html", "page.html", "--trace", "trace.json")
        found.append(Case("pictures", name, ("evaluate", *given, *more), every[name], True))
    return found


def _ranks(every: dict[str, dict[str, Any]]) -> list[Case]:
    found = []
    for name in ("interleaved", "split experts", "context", "mixed chips", "groups", "published by the seed"):
        found.append(Case("ranks", name, ("ranks", "spec.yaml", "-p", "plan.yaml", "--json"), every[name], True))
        found.append(Case("ranks", f"{name}, as text", ("ranks", "spec.yaml", "-p", "plan.yaml"), every[name], True))
    return found


def _explained(seed: dict[str, Any]) -> list[Case]:
    why = ("explain", "spec.yaml", "-s", "plan.yaml")
    found = []
    for name, (given, plan) in EXPLAINED.items():
        files = {"spec.yaml": given, "plan.yaml": plan}
        found.append(Case("explain", name, (*why, "--json"), files))
        found.append(Case("explain", f"{name}, as text", why, files))
    for name, given in WISHED.items():
        found.append(Case("explain", name, ("explain", "spec.yaml", "--json"), {"spec.yaml": given}))
        found.append(Case("explain", f"{name}, as text", ("explain", "spec.yaml"), {"spec.yaml": given}))
    return found


def _exports() -> list[Case]:
    every = [(target, name, given) for target in TARGETS for name, given in EXPORTED.items()]
    found = []
    for target, name, (given, plan) in [*every, *BY_HAND]:
        words = ("export", "spec.yaml", "--to", target, "-p", "plan.yaml", "--json")
        found.append(Case("export", f"{target}, {name}", words, {"spec.yaml": given, "plan.yaml": plan}, False))
    return found
