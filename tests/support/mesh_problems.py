"""Tiny problems of two and three chip types whose degrees may differ, that brute force can settle."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.params import total_parameters
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of
from tests.support.special_models import special_model

FREE = ("sequence_parallel", "distributed_optimizer", "flash_attention", "cp_gather", "recompute")
"""Of these one is left open in a problem: brute force takes too long with more."""


def mesh_problem(seed: int) -> Problem:
    """Memory binds in many; some with experts, tied embeddings, windows, rare layers, FlagScale's rules, pins."""
    rng = np.random.default_rng((15, seed))
    names = ["x", "y", "z"][: int(rng.choice([2, 2, 3]))]
    node = int(rng.choice([1, 1, 2]))
    gpus = int(rng.choice([4, 4, 6, 8])) if len(names) == 2 else int(rng.choice([3, 4, 6]))
    gpus += gpus % node
    layers, sequence = int(rng.choice([2, 2, 3, 3, 4, 5])), int(rng.choice([1024, 4096]))
    model, more = _model(rng, layers), np.random.default_rng((15, seed, 1))
    rare = more.random() < 0.2
    model = special_model(more, layers) if rare else model
    need = 18e-9 * total_parameters(Architecture.model_validate({"name": "any", **model})) / gpus
    need += 0.04e-3 * layers * sequence
    chips = {name: _chip(rng, need, gpus, node, len(names)) for name in names}
    if sum(chip["max"] for chip in chips.values()) < gpus:
        chips[names[-1]]["max"] = gpus
    search: dict[str, Any] = {"top": int(rng.integers(2, 6)), "diverse": bool(rng.random() < 0.5)}
    pins = _pins(rng) | _pinned_flags(more)
    search |= {"degrees_by_chip": True, "pin": pins, "forbid": {"recompute": ["uniform", "selective"]}}
    search["recompute_scope"] = "stage" if layers < 4 and rng.random() < 0.3 else "chip"
    launcher = "flagscale" if rng.random() < 0.25 and not rare else None
    batch = int(rng.choice([2, 4, 6]))
    return problem_of(chips, model, gpus, node, batch, sequence, launcher=launcher, **search)


def _model(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"layers": layers, "tied_embeddings": bool(rng.random() < 0.25)}
    kind = rng.random()
    if kind < 0.3:
        first = int(rng.choice([0, 1])) if layers > 2 else 0
        fields["moe"] = {"experts": int(rng.choice([2, 4])), "top_k": 1, "expert_ffn": 704, "first_dense": first}
    elif kind < 0.45:
        fields["attention"] = {"sliding_window": 512, "full_every": 2}
    return model_spec(**fields)


def _pinned_flags(rng: np.random.Generator) -> dict[str, bool]:
    """Flags that a mesh alone may be too small for."""
    flags = ("sequence_parallel", "distributed_optimizer")
    return {flag: bool(rng.random() < 0.5) for flag in flags if rng.random() < 0.15}


def _chip(rng: np.random.Generator, need: float, gpus: int, node: int, types: int) -> dict[str, Any]:
    fields = chip_spec(
        tflops=float(rng.uniform(20, 200)),
        gb=FRAMEWORK_GB + need * float(np.exp(rng.uniform(0.7, 3.1))),
        gb_s=float(rng.uniform(300, 3000)),
        up=float(rng.uniform(10, 300)),
        out=float(rng.uniform(10, 400)),
    )
    most = max(node, gpus // types + int(rng.integers(0, 3)))
    return {"max": min(gpus, most), "spec": fields}


def _pins(rng: np.random.Generator) -> dict[str, Any]:
    """All but one or two of FREE pinned, and some degrees too."""
    free = {str(rng.choice(FREE))}
    pins: dict[str, Any] = {"vpp": 1, "sharding_group": 0, "ulysses": 1}
    pins |= {"flash_attention": True} if "flash_attention" not in free else {}
    pins |= {"cp_gather": False} if "cp_gather" not in free else {}
    pins |= {"recompute": str(rng.choice(["none", "block"]))} if "recompute" not in free else {}
    if rng.random() < 0.3:
        pins |= {"cp": 1}
    if rng.random() < 0.2:
        pins |= {"ulysses": [1, 2]}
    if rng.random() < 0.15:
        pins |= {"tp": [1, 2]}
    if rng.random() < 0.1:
        pins |= {"mbs": [1, 2]}
    if rng.random() < 0.1:
        pins |= {"chip_order": ["x", "y"]}
    if rng.random() < 0.1:
        pins |= {"pp": [2, 3]}
    return pins
