"""Tiny problems at random whose pipelines may split the backward pass, under memory that asks for this or that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.params import total_parameters
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of

_SETS = (["core_attn"], ["layernorm"], ["mlp"])
_FREE: tuple[dict[str, Any], ...] = (
    {},
    {"search": {"schedules": ["1f1b", "zb1p"]}},
    {"search": {"schedules": ["zb2p"]}},
    {"pin": {"schedule": ["zb1p", "zb2p"]}},
    {"forbid": {"schedule": "1f1b"}},
)


def split_problem(seed: int) -> Problem:
    """Pipelines above all; of all other decisions only a few are open. Some have several chip types, or layers of
    several kinds, or a price for each device, or stages that recompute each as it likes."""
    rng = np.random.default_rng([seed, 29])
    gpus, layers = int(rng.choice([2, 4, 4, 4])), int(rng.choice([3, 4, 5, 6, 7]))
    hidden, sequence = int(rng.choice([512, 1024])), int(rng.choice([1024, 2048, 4096]))
    names = ("x", "y")[: int(rng.choice([1, 1, 1, 2]))]
    model = _model(rng, layers, hidden)
    states = 18e-9 * total_parameters(Architecture.model_validate({"name": "any", **model})) / gpus
    chips: dict[str, Any] = {}
    for name in names:
        room = (states + 0.04e-3 * layers * sequence) * float(np.exp(rng.uniform(0.2, 2.4)))
        links = {"up": float(np.exp(rng.uniform(2, 7))), "out": float(rng.uniform(10, 100))}
        spec = chip_spec(tflops=float(rng.uniform(50, 200)), gb=FRAMEWORK_GB + room, **links)
        chips[name] = {"max": gpus, "spec": spec}
    asked = _FREE[int(rng.choice([0, 0, 0, 0, 0, 0, 1, 2, 3, 4]))]
    search: dict[str, Any] = {"top": 4, "diverse": bool(rng.random() < 0.3), **asked.get("search", {})}
    search["recompute_scope"] = "stage" if layers < 5 and len(names) == 1 and rng.random() < 0.4 else "chip"
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "even", "even_per_chip"]))
    pin, forbid = {**_pins(rng), **asked.get("pin", {})}, {**_bans(rng), **asked.get("forbid", {})}
    batch = int(rng.choice([4, 6, 8, 16]))
    problem = problem_of(chips, model, gpus, gpus, batch, sequence, pin=pin, forbid=forbid, **search)
    return replace(problem, stack=problem.stack.model_copy(update={"name": "zero-bubble"}))


def _model(rng: np.random.Generator, layers: int, hidden: int) -> dict[str, Any]:
    if rng.random() < 0.3:
        moe = {"experts": 4, "expert_ffn": hidden // 2, "top_k": 2, "first_dense": int(rng.integers(1, 3))}
        return model_spec(layers=layers, hidden=hidden, ffn=4 * hidden, vocab=4000, moe=moe)
    return model_spec(layers=layers, hidden=hidden, ffn=2 * hidden, vocab=int(rng.choice([4000, 32000])))


def _pins(rng: np.random.Generator) -> dict[str, Any]:
    pin: dict[str, Any] = {"cp": 1, "ep": 1, "etp": 1, "sharded": "optimizer", "sharding_group": 0}
    pin |= {"flash_attention": bool(rng.random() < 0.6), "distributed_optimizer": bool(rng.random() < 0.5)}
    pin |= {"tp": int(rng.choice([1, 1, 2])), "sequence_parallel": False, "mbs": int(rng.choice([1, 1, 2]))}
    if rng.random() < 0.7:
        pin["vpp"] = 1
    if rng.random() < 0.7:
        pin["pp"] = [2, 4]
    if rng.random() < 0.6:
        kinds = ("none", "selective", "block", "uniform")
        pin["recompute"] = [kinds[i] for i in rng.permutation(4)[:2].tolist()]
    return pin


def _bans(rng: np.random.Generator) -> dict[str, Any]:
    banned = [names for names in _SETS if rng.random() < 0.6]
    return {"recompute_modules": banned} if banned else {}
