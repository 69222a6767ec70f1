"""Tiny problems of two or three chip types and layers of several kinds, where devices may idle or cost money."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpsolver.problem.problem import Problem
from cpsolver.spec.spec import Spec
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of

PINS: dict[str, Any] = {
    "cp": 1,
    "flash_attention": True,
    "distributed_optimizer": False,
    "recompute": ["none", "block"],
    "expert_overlap": False,
}
_EXPERTS = {"experts": 2, "top_k": 1, "expert_ffn": 1024}
_KINDS: tuple[dict[str, Any], ...] = (
    {"moe": {**_EXPERTS, "first_dense": 1}},
    {"moe": {**_EXPERTS, "first_dense": 2}},
    {"moe": {**_EXPERTS, "freq": 2}},
    {"attention": {"sliding_window": 128, "full_every": 2}},
    {"moe": {**_EXPERTS, "first_dense": 1}, "attention": {"sliding_window": 128, "full_every": 2}},
)


def mixture_problem(seed: int, **cluster: Any) -> Problem:
    """Dense layers before experts, between them, or windows between full attention, on 4 devices; `cluster` as in a
    spec. Memory binds in many.
    """
    rng = np.random.default_rng(seed)
    names = ("x", "y", "z")[: 2 + int(rng.random() < 0.5)]
    chips: dict[str, Any] = {}
    for name in names:
        fields = chip_spec(
            tflops=float(rng.uniform(30, 150)),
            gb=FRAMEWORK_GB + float(rng.uniform(0.3, 2.0)),
            gb_s=float(rng.uniform(300, 3000)),
            out=float(rng.uniform(20, 400)),
        )
        chips[name] = {"max": int(rng.integers(1, 4)), "spec": fields}
    chips["x"]["max"] = max(chips["x"]["max"], 4 - sum(chip["max"] for chip in chips.values()) + chips["x"]["max"])
    layers = int(rng.choice([3, 4, 5]))
    model = model_spec(layers=layers, hidden=512, ffn=2048, **_KINDS[int(rng.integers(len(_KINDS)))])
    pin = PINS | {"tp": int(rng.choice([1, 2])), "mbs": int(rng.choice([1, 2]))}
    pin |= {"sequence_parallel": pin["tp"] == 2, "ep": 1 if rng.random() < 0.7 else [1, 2]}
    scope = "stage" if rng.random() < 0.3 else "chip"
    problem = problem_of(
        chips, model, 4, 1, 8, 1024, pin=pin, top=3, diverse=bool(rng.random() < 0.5), recompute_scope=scope
    )
    data = problem.spec.model_dump(mode="json")
    data["cluster"] |= {"prices": {name: float(rng.uniform(1, 4)) for name in names}, **cluster}
    if rng.random() < 0.5:
        data["search"]["objective"] = "cost"
    return replace(problem, spec=Spec.model_validate(data))
