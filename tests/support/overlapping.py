"""Tiny problems at random in which experts' all-to-alls may overlap, or memory asks for what forbids it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.params import total_parameters
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of, with_stack

_LAUNCHERS = (None, None, None, None, None, None, "megatron-lm", "loongforge", "megatron-core-0.13")
_SETS = (["core_attn"], ["moe"], ["moe_act"], ["core_attn", "moe"], ["layernorm", "moe_act"])


def overlap_problem(seed: int) -> Problem:
    """Experts on slow links or fast ones; of all other decisions only a few are open."""
    rng = np.random.default_rng([seed, 13])
    gpus, layers = int(rng.choice([2, 4, 4])), int(rng.choice([2, 3, 4, 4]))
    hidden, sequence = int(rng.choice([512, 1024])), int(rng.choice([1024, 2048, 4096]))
    where = [{}, {}, {"first_dense": 1}, {"freq": 2}][int(rng.integers(4))]
    sizes = {"experts": int(rng.choice([2, 4, 4])), "expert_ffn": hidden // int(rng.choice([1, 2])), "top_k": 2}
    moe = {**sizes, **where, "shared_experts": int(rng.random() < 0.3)}
    mtp = int(rng.choice([0, 0, 0, 0, 0, 0, 0, 1, 1, 2]))
    model = model_spec(layers=layers, hidden=hidden, ffn=2 * hidden, vocab=4000, mtp_layers=mtp, moe=moe)
    states = 18e-9 * total_parameters(Architecture.model_validate({"name": "any", **model})) / gpus
    chips: dict[str, Any] = {}
    for name in ("x", "y")[: int(rng.choice([1, 1, 1, 2]))]:
        room = (states + 0.04e-3 * layers * sequence) * float(np.exp(rng.uniform(0.4, 2.4)))
        links = {"up": float(np.exp(rng.uniform(2, 7))), "out": float(rng.uniform(10, 100))}
        spec = chip_spec(tflops=float(rng.uniform(50, 200)), gb=FRAMEWORK_GB + room, **links)
        chips[name] = {"max": gpus, "spec": spec}
    search: dict[str, Any] = {"top": 4, "launcher": _LAUNCHERS[int(rng.integers(len(_LAUNCHERS)))]}
    problem = problem_of(chips, model, gpus, gpus, 4, sequence, pin=_pins(rng), forbid=_bans(rng), **search)
    return with_stack(problem, routing_overlap=float(rng.choice([0.02, 0.1, 0.5, 0.9])))


def _pins(rng: np.random.Generator) -> dict[str, Any]:
    pin: dict[str, Any] = {"tp": int(rng.choice([1, 1, 1, 2])), "cp": 1, "sharded": "optimizer", "sharding_group": 0}
    pin["flash_attention"] = bool(rng.random() < 0.5)
    pin["distributed_optimizer"] = [False, True][: 1 + (rng.random() < 0.2)]
    pin |= {"mbs": int(rng.choice([1, 1, 1, 2])), "etp": 1, "ep": [[1, 2], [2], [2, 4]][int(rng.integers(3))]}
    if rng.random() < 0.5:
        pin["pp"] = int(rng.choice([1, 2, 2]))
    if rng.random() < 0.2:
        pin["expert_overlap"] = bool(rng.random() < 0.8)
    if rng.random() < 0.3:
        kinds = ("none", "selective", "block", "uniform")
        pin["recompute"] = [kinds[i] for i in rng.permutation(4)[:2].tolist()]
    return pin


def _bans(rng: np.random.Generator) -> dict[str, Any]:
    forbid: dict[str, Any] = {"recompute_modules": [names for names in _SETS if rng.random() < 0.5]}
    if not forbid["recompute_modules"]:
        forbid = {}
    return forbid
