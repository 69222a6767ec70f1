"""The workloads that `solve_time` runs: specs as plain data."""

from __future__ import annotations

from typing import Any


def spec_of(model: str, num_gpus: int, chips: Any, batch: int, sequence: int, **search: Any) -> dict[str, Any]:
    """A spec; `search`: fields of its search."""
    return {
        "model": model,
        "cluster": {"num_gpus": num_gpus, "chips": chips},
        "training": {"global_batch_size": batch, "sequence_length": sequence},
        "search": {"top": 3, **search},
    }


FIVE = dict.fromkeys(("a800", "h800", "h100", "ascend_910b", "kunlun3"), 65_536 // 4)
"""Five chip types, 16,384 of each."""

WORKLOADS: dict[str, dict[str, Any]] = {
    "W1": spec_of("llama2-70b", 256, "a800", 512, 4096),
    "W2": spec_of("gpt3-175b", 1024, "a100", 1536, 2048),
    "W3": spec_of("megatron-1t", 4096, "a100", 3072, 2048),
    "W4": spec_of("llama2-70b", 256, {"a800": 128, "h800": 160}, 512, 4096),
    "W5": spec_of("llama2-70b", 1_048_576, {"a800": 524_288, "h800": 524_288}, 1_048_576, 4096),
    "W6": spec_of("llama-1800b", 65_536, FIVE, 65_536, 4096),
}
"""Whole plans, top-3."""

HARD: dict[str, dict[str, Any]] = {
    "W7": spec_of("deepseek-v3-671b", 2048, {"h800": 1024, "h100": 1024}, 15_360, 4096),
    "W8": spec_of("kimi-k2-1t", 4096, {"h800": 2048, "a800": 1024, "h20": 1024}, 4096, 8192),
    "W9": spec_of(
        "llama3.1-70b",
        1024,
        {"h100": 1024, "a100": 1024},
        1024,
        4096,
        objective="cost",
        deadline={"tokens": 2.0e12, "days": 60},
    ),
    "W10": spec_of("qwen3-235b-a22b", 512, {"h800": 256, "h100": 256}, 1024, 4096),
    "W11": spec_of("glm4.5-air-106b-a12b", 256, {"h100": 128, "a800": 128}, 1024, 4096),
    "W12": spec_of("gpt-oss-120b", 512, {"h100": 256, "a100": 256}, 512, 32_768, recompute_scope="stage"),
    "W13": spec_of(
        "llama3.1-405b",
        1024,
        dict.fromkeys(("h100", "a100", "h800", "a800"), 256),
        256,
        32_768,
        recompute_scope="stage",
    ),
}
"""Mixed chip types with layers of several kinds, long sequences, or devices that may idle; top-3, each run once."""
HARD["W9"]["cluster"] |= {"prices": {"h100": 2.5, "a100": 1.3}, "idle": True}

_FOUR = {"h100": 384, "a100": 384, "h200": 256, "a800": 256}
_ALL_FIVE = {"h800": 1536, "h100": 1024, "a800": 1024, "h200": 512, "b200": 512}
_BY_STAGE = {"recompute_scope": "stage", "top": 50, "diverse": False, "time_limit_s": 120}
HARDEST: dict[str, dict[str, Any]] = {
    "W14": spec_of("gpt-oss-120b", 1024, _FOUR, 1024, 131_072, **_BY_STAGE),
    "W15": spec_of("deepseek-v3-671b", 4096, _ALL_FIVE, 15_360, 4096, **_BY_STAGE),
}
"""Four and five types, top-50, stopped after two minutes: run only where they are named."""

_GIVEN = {"tp": 2, "pp": 16, "dp": 8, "mbs": 1, "vpp": 2, "sequence_parallel": True}
_FLAGS = {"distributed_optimizer": True, "flash_attention": True}


def _balance(margin: float) -> dict[str, Any]:
    """80 layers over 16 stages of 2 chunks, 32 microbatches: only layers and recomputation are free, by layers and by
    modules, on every stage for itself.
    """
    spec = spec_of("llama2-70b", 256, "a800", 256, 4096, top=1, recompute_scope="stage", pin={**_GIVEN, **_FLAGS})
    spec["cluster"]["memory_margin"] = margin
    return spec


BALANCE: dict[str, dict[str, Any]] = {f"B{int(100 * margin)}": _balance(margin) for margin in (0.3, 0.4, 0.5)}
"""Layers and recomputation over stages with the degrees given; the number is the share of memory kept free, in %."""


def _priced(spec: dict[str, Any], prices: dict[str, float]) -> dict[str, Any]:
    """The spec where devices may idle, with dollars an hour of each."""
    spec["cluster"] |= {"idle": True, "prices": prices}
    return spec


_EVERY_STAGE = {"recompute_scope": "stage", "top": 50}
_YEAR = {"tokens": 1e11, "days": 10}
_KIMI = {"h800": 1024, "h100": 512, "a800": 512, "h20": 512}
TWENTY: dict[str, dict[str, Any]] = {
    "h1": spec_of("deepseek-v3-671b", 4096, _ALL_FIVE, 15_360, 4096, **_EVERY_STAGE),
    "h1-near": spec_of("deepseek-v3-671b", 4096, _ALL_FIVE, 15_360, 4096, diverse=False, **_EVERY_STAGE),
    "h2": _priced(
        spec_of("kimi-k2-1t", 2048, _KIMI, 4096, 131_072, **{**_EVERY_STAGE, "top": 20, "objective": "cost"}),
        {"h800": 2, "h100": 2.5, "a800": 1.2, "h20": 1.0},
    ),
    "h3": spec_of("gpt-oss-120b", 1024, _FOUR, 1024, 131_072, **_EVERY_STAGE),
    "h4": spec_of(
        "llama3.1-405b", 1024, dict.fromkeys(("h100", "a100", "h800", "a800"), 256), 256, 32_768, **_EVERY_STAGE
    ),
    "h5": spec_of(
        "gemma3-27b", 256, dict.fromkeys(("h100", "a100", "a800", "ascend_910b"), 64), 512, 32_768, **_EVERY_STAGE
    ),
    "h6": HARD["W7"],
    "h7": HARD["W12"],
    "m1": HARD["W10"],
    "m2": spec_of("mixtral-8x22b", 256, {"h100": 128, "a800": 128}, 1024, 4096),
    "m3": spec_of("deepseek-v2-236b", 512, {"h800": 256, "h100": 256}, 2048, 4096),
    "m4": HARD["W11"],
    "kimi": spec_of("kimi-k2-1t", 4096, dict.fromkeys(("h800", "a800", "h20"), 2048), 4096, 4096),
    "kimi-long": HARD["W8"],
    "manager": _priced(
        spec_of("llama2-70b", 512, {"a800": 256, "h800": 256}, 1024, 4096, objective="cost", deadline=_YEAR),
        {"a800": 1.2, "h800": 2.1},
    ),
    "cheapest": HARD["W9"],
    "fewest": spec_of(
        "qwen3-30b-a3b",
        512,
        {"h100": 256, "a100": 256},
        1024,
        4096,
        objective="fewest_chips",
        deadline={"tokens": 1e12, "days": 30},
    ),
    "glm5": spec_of("glm5-744b-a40b", 2048, {"h800": 1024, "h20": 1024}, 4096, 32_768),
    "nemotron": spec_of("nemotron3-super-120b-a12b", 512, {"h100": 256, "h200": 256}, 1024, 8192),
    "meshes": spec_of("llama2-70b", 512, {"a800": 256, "h800": 256}, 1024, 4096, degrees_by_chip=True),
    "long-by-stage": spec_of("deepseek-v3-671b", 2048, "h800", 4096, 131_072, **_EVERY_STAGE),
}
"""Hard questions of every kind: several chip types with layers of several kinds, long sequences, recomputation by
stage, fifty plans, devices that may idle, money, degrees by chip type."""
