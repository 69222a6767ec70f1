"""Tiny problems at random whose pipelines may split the backward pass, under memory that asks for this or that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpsolver.cost.schedules import SCHEDULES
from cpsolver.cost.step_form import PipelineSizes, StepForm
from cpsolver.plans.strategy import Schedule
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from models_zoo import Architecture
from models_zoo.params import total_parameters
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of, with_stack

_SETS = (["core_attn"], ["layernorm"], ["mlp"])
_FREE: tuple[dict[str, Any], ...] = (
    {},
    {"search": {"schedules": ["1f1b", "zb1p"]}},
    {"search": {"schedules": ["zb2p"]}},
    {"pin": {"schedule": ["zb1p", "zb2p"]}},
    {"forbid": {"schedule": "1f1b"}},
)


def form_of(schedule: Schedule, pp: int, microbatches: int, vpp: int = 1) -> StepForm:
    """What a step of a schedule takes; breadth-first in Megatron-Core's order."""
    return SCHEDULES[schedule].form(problem_of(), PipelineSizes(pp, vpp, microbatches))


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


_V_FREE: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"forbid": {"schedule": "1f1b"}},
    {"pin": {"schedule": ["zbv", "dualpipev"]}},
    {"search": {"schedules": ["1f1b", "zbv"]}},
    {"pin": {"schedule": ["v_half", "v_min"]}},
    {"search": {"schedules": ["1f1b", "v_half", "v_min"]}},
)


def _chip(
    rng: np.random.Generator,
    model: dict[str, Any],
    gpus: int,
    held: float,
    room: tuple[float, float],
    up: tuple[float, float],
    out: tuple[float, float],
) -> dict[str, Any]:
    """A chip type of a cluster. Its memory is that of a device's states and of what it holds beside (`held`, GB), times
    e to a power of the range `room`; so is its link inside a node (`up`, GB/s). `out`: Gbit/s between nodes."""
    states = 18e-9 * total_parameters(Architecture.model_validate({"name": "any", **model})) / gpus
    gb = FRAMEWORK_GB + (states + held) * float(np.exp(rng.uniform(*room)))
    links = {"up": float(np.exp(rng.uniform(*up))), "out": float(rng.uniform(*out))}
    return {"max": gpus, "spec": chip_spec(tflops=float(rng.uniform(50, 200)), gb=gb, **links)}


def v_problem(seed: int) -> Problem:
    """The same with stages that may be placed as a V: pipelines with microbatches enough, most of one chip type; some
    have experts whose all-to-alls may overlap, or layers with a head that weighs as much."""
    rng = np.random.default_rng([seed, 41])
    gpus, layers = int(rng.choice([2, 4, 4])), int(rng.choice([4, 5, 6, 7, 8]))
    hidden, sequence = int(rng.choice([512, 1024])), int(rng.choice([1024, 2048]))
    names = ("x", "y")[: int(rng.choice([1, 1, 1, 1, 2]))]
    model, asked = _model(rng, layers, hidden), _V_FREE[int(rng.integers(len(_V_FREE)))]
    model["tied_embeddings"] = bool(rng.random() < 0.05)
    held = 0.04e-3 * layers * sequence
    chips = {name: _chip(rng, model, gpus, held, (0.6, 2.8), (2, 7), (10, 100)) for name in names}
    search: dict[str, Any] = {"top": 4, "diverse": bool(rng.random() < 0.3), **asked.get("search", {})}
    search["recompute_scope"] = "stage" if layers < 6 and len(names) == 1 and rng.random() < 0.4 else "chip"
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "even"]))
    pin, forbid = {**_pins(rng), **asked.get("pin", {})}, {**_bans(rng), **asked.get("forbid", {})}
    if pin.pop("vpp", None):
        pin["vpp"] = [1, 2]
    if rng.random() < 0.3:
        pin["expert_overlap"] = [False, True]
        pin["ep"] = [1, 2]
    problem = problem_of(
        chips, model, gpus, gpus, int(rng.choice([8, 12, 16])), sequence, pin=pin, forbid=forbid, **search
    )
    name = str(rng.choice(["zero-bubble", "deepseek", "deepseek"]))
    named = replace(problem, stack=problem.stack.model_copy(update={"name": name}))
    return with_stack(named, routing_overlap=float(rng.choice([0.0, 0.5, 0.9])))


_ONE_GROUP_FREE: tuple[dict[str, Any], ...] = (
    {"search": {"schedules": ["1f1b", "breadth_first"]}},
    {"search": {"schedules": ["1f1b", "breadth_first"]}},
    {"search": {"schedules": ["breadth_first"]}},
    {"pin": {"schedule": ["1f1b", "breadth_first"]}},
    {"search": {"schedules": ["1f1b", "breadth_first"]}, "forbid": {"schedule": "1f1b"}},
)


def one_group_problem(seed: int) -> Problem:
    """The same with breadth-first pipelines: several replicas, whose gradients may travel under other chunks' passes,
    and numbers of microbatches that the stages do not divide. Both orders are there, and stacks with neither."""
    rng = np.random.default_rng([seed, 53])
    gpus, layers = int(rng.choice([4, 4, 4, 6])), int(rng.choice([4, 5, 6, 7, 8]))
    hidden, sequence = int(rng.choice([512, 1024])), int(rng.choice([1024, 2048]))
    names = ("x", "y")[: int(rng.choice([1, 1, 1, 2]))]
    model, asked = _model(rng, layers, hidden), _ONE_GROUP_FREE[int(rng.integers(len(_ONE_GROUP_FREE)))]
    model["tied_embeddings"] = bool(rng.random() < 0.3)
    held = 0.04e-3 * layers * sequence
    chips = {name: _chip(rng, model, gpus, held, (0.8, 3.2), (0, 5), (1, 30)) for name in names}
    search: dict[str, Any] = {"top": 4, "diverse": bool(rng.random() < 0.3), **asked.get("search", {})}
    search["recompute_scope"] = "stage" if layers < 6 and len(names) == 1 and rng.random() < 0.3 else "chip"
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "even"]))
    pin, forbid = {**_pins(rng), **asked.get("pin", {})}, {**_bans(rng), **asked.get("forbid", {})}
    pin["vpp"] = [1, 2, 3] if rng.random() < 0.5 else [2]
    if rng.random() < 0.3:
        pin["expert_overlap"], pin["ep"] = [False, True], [1, 2]
    batch = int(rng.choice([6, 8, 10, 12]))
    problem = problem_of(chips, model, gpus, 2, batch, sequence, pin=pin, forbid=forbid, **search)
    name = str(rng.choice(["megatron-core", "megatron-core", "megatron-core", "ascendspeed", "megatron-2021"]))
    named = replace(problem, stack=problem.stack.model_copy(update={"name": name}))
    if rng.random() < 0.2:
        named = replace(named, launcher=load_launcher("megatron-lm").model_copy(update={"one_group_in_turn": False}))
    shares = {f"{each}_overlap": float(rng.choice([0.0, 0.2, 0.8])) for each in ("gradient", "parameter", "routing")}
    return with_stack(named, **shares)


def one_chip_problem(seed: int) -> Problem:
    """Pipelines of one chip type whose passes alternate, interleaved or not, of up to eight stages: few microbatches
    and many, layers that stages do not divide, memory that makes the first of them recompute, heads and embeddings in
    layers' places, experts whose exchange runs beside."""
    rng = np.random.default_rng([seed, 67])
    gpus, layers = int(rng.choice([2, 4, 4, 6, 8])), int(rng.choice([3, 4, 5, 6, 7, 8, 9]))
    hidden, sequence = int(rng.choice([512, 1024])), int(rng.choice([1024, 2048]))
    model = _model(rng, layers, hidden)
    model["tied_embeddings"] = bool(rng.random() < 0.2)
    if rng.random() < 0.2:
        model["attention"] = {"sliding_window": 128, "full_every": 2}
    held = 0.04e-3 * layers * sequence
    chips = {"x": _chip(rng, model, gpus, held, (0.8, 2.8), (0, 6), (1, 60))}
    search: dict[str, Any] = {"top": int(rng.choice([1, 4])), "diverse": bool(rng.random() < 0.3)}
    search["recompute_scope"] = "stage" if layers < 6 and rng.random() < 0.4 else "chip"
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "even"]))
    pin, forbid = (
        {**_pins(rng), "pp": int(rng.choice([size for size in (2, 3, 4, 6, 8) if gpus % size == 0]))},
        _bans(rng),
    )
    if rng.random() < 0.6:
        pin["vpp"] = [1, 2, 3]
    if "moe" in model and rng.random() < 0.5:
        pin["expert_overlap"], pin["ep"] = [False, True], [1, 2]
    batch = int(rng.choice([2, 4, 6, 8, 12, 16, 24]))
    problem = problem_of(chips, model, gpus, gpus, batch, sequence, pin=pin, forbid=forbid, **search)
    return with_stack(problem, routing_overlap=float(rng.choice([0.0, 0.5, 0.9])))


_BOTH_WAYS_FREE: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"search": {"schedules": ["dualpipe"]}},
    {"search": {"schedules": ["1f1b", "dualpipe"]}},
    {"pin": {"schedule": ["dualpipe", "dualpipev"]}},
    {"forbid": {"schedule": "dualpipev"}},
    {"pin": {"schedule": "dualpipe"}},
)


def both_ways_problem(seed: int) -> Problem:
    """The same where devices may serve two stages each, DualPipe's: with modules of multi-token prediction too, and
    dense layers before those with experts. Some have a split of the layers pinned or banned."""
    rng = np.random.default_rng([seed, 67])
    gpus, layers = int(rng.choice([2, 4, 4, 4])), int(rng.choice([2, 4, 5, 6, 7, 8]))
    hidden, sequence = int(rng.choice([512, 1024])), int(rng.choice([1024, 2048]))
    names = ("x", "y")[: int(rng.choice([1, 1, 1, 1, 1, 1, 2]))]
    model, asked = _model(rng, layers, hidden), _BOTH_WAYS_FREE[int(rng.integers(len(_BOTH_WAYS_FREE)))]
    model |= {"tied_embeddings": bool(rng.random() < 0.05), "mtp_layers": int(rng.choice([0, 0, 1]))}
    held = 0.05e-3 * layers * sequence
    chips = {name: _chip(rng, model, gpus, held, (0.6, 2.8), (2, 7), (10, 100)) for name in names}
    search: dict[str, Any] = {"top": 4, "diverse": bool(rng.random() < 0.3), **asked.get("search", {})}
    search["recompute_scope"] = "stage" if layers < 7 and len(names) == 1 and rng.random() < 0.4 else "chip"
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "auto", "even", "even_per_chip"]))
    pin, forbid = {**_pins(rng), **asked.get("pin", {})}, {**_bans(rng), **asked.get("forbid", {})}
    if pin.pop("vpp", None):
        pin["vpp"] = int(rng.choice([1, 1, 2])) if rng.random() < 0.3 else [1, 2]
    if rng.random() < 0.3:
        pin |= {"expert_overlap": [False, True], "ep": [1, 2]}
    split = [layers // 2, layers - layers // 2] if rng.random() < 0.5 else [layers - layers // 2, layers // 2]
    if layers == 8 and rng.random() < 0.5:
        split = [3, 2, 2, 1]
    chance = rng.random()
    if chance < 0.15:
        (pin if chance < 0.08 else forbid)["layers"] = split
    if rng.random() < 0.3:
        pin.pop("sharding_group")
    batch = int(rng.choice([8, 8, 12, 16]))
    node = int(rng.choice([1, 2, gpus]))
    problem = problem_of(chips, model, gpus, node, batch, sequence, pin=pin, forbid=forbid, **search)
    named = replace(problem, stack=problem.stack.model_copy(update={"name": "deepseek"}))
    return with_stack(named, routing_overlap=float(rng.choice([0.0, 0.5, 0.9])))
