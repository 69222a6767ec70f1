"""Tiny problems at random whose layers fill their chunks only where the head stands in the place of several."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.params import total_parameters
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of

_LAYERS = {3: (7, 10, 13), 4: (9, 10, 13, 14), 5: (12, 13, 18)}
"""By the number of chunks, numbers of layers two or more short of a multiple of it."""
_LAUNCHERS = (None, None, None, None, "megatron-lm", "torchtitan", "megatron-core-0.12")


def short_chunk_problem(seed: int) -> Problem:
    """Interleaved over two stages, or four; of all other decisions only a few are open."""
    rng = np.random.default_rng([seed, 61])
    vpp = int(rng.choice([3, 3, 4, 4, 5]))
    layers, pp = int(rng.choice(_LAYERS[vpp])), int(rng.choice([2, 2, 2, 2, 3]))
    sequence, mixed = int(rng.choice([1024, 4096])), bool(rng.random() < 0.25)
    launcher = _LAUNCHERS[int(rng.integers(len(_LAUNCHERS)))]
    moe = {"experts": 2, "expert_ffn": 512, "top_k": 1, "first_dense": int(rng.choice([1, 2]))}
    kinds = {"moe": moe} if rng.random() < 0.35 else {}
    mtp = 0 if launcher == "torchtitan" else int(rng.choice([0, 1, 1]))
    vocab = int(rng.choice([1000, 100_000, 300_000, 600_000]))
    model = model_spec(layers=layers, hidden=512, ffn=1024, vocab=vocab, mtp_layers=mtp, **kinds)
    states = 18e-9 * total_parameters(Architecture.model_validate({"name": "any", **model}))
    held = (
        states + 12e-9 * (1 + mtp) * sequence * vocab + 0.05e-3 * layers * sequence
    )  # logits, and layers' activations
    chips: dict[str, Any] = {}
    for name in ("x", "y")[: 1 + mixed]:
        room = held * float(np.exp(rng.uniform(-0.4, 1.4)))
        chips[name] = {"max": pp, "spec": chip_spec(tflops=float(rng.uniform(50, 200)), gb=FRAMEWORK_GB + room)}
    flags = {"flash_attention": True, "distributed_optimizer": False, "tp": 1, "cp": 1, "ep": 1, "etp": 1}
    pin: dict[str, Any] = {"pp": pp, "mbs": 1, "vpp": [vpp] if rng.random() < 0.7 else [1, vpp], **flags}
    pin["recompute"] = [["none"], ["none", "block"], ["none", "uniform"]][int(rng.integers(3))]
    pin["expert_overlap"] = False
    more: dict[str, Any] = {"top": 3, "launcher": launcher}
    more["recompute_scope"] = "stage" if launcher is None and rng.random() < 0.3 else "chip"
    return problem_of(chips, model, pp, 1 if mixed else pp, pp * int(rng.choice([1, 2, 4])), sequence, pin=pin, **more)
