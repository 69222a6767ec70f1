"""Tiny problems at random that brute force can settle, with some of all decisions left open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cpsolver.cost.modules import module_sets
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import RECOMPUTE_KINDS
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import launcher_names
from models_zoo import Architecture
from models_zoo.params import total_parameters
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of
from tests.support.special_models import special_model

DIMENSIONS = ("micro batch", "flags", "recompute", "context", "context", "experts", "experts", "sharding")
"""What may be left open: a few of them in each problem, or brute force takes too long."""
KINDS = ("chips",)
"""And where the stages shall differ: in their layers and chips."""


LATENT = ["linear_kv_up_proj", "linear_proj", "linear_q_proj", "linear_kv_down_proj", "linear_fc1", "linear_fc2"]
"""Layers of latent attention, and of a feed-forward block, beside which adapters may stand."""


def random_problem(seed: int, tight: bool = True, special: bool = False, finetuned: bool = False) -> Problem:
    """Memory binds in many when `tight`; `special`: layers that few have; `finetuned`: adapters, lengths, or both."""
    rng = np.random.default_rng(seed)
    left = {str(name) for name in (rng.permutation(DIMENSIONS)[:3] if rng.random() < 0.65 else KINDS)}
    gpus = int(rng.choice([2, 4, 4, 4, 8])) if "chips" not in left else 4
    node = int(rng.choice([n for n in (1, 2, 4, 8) if gpus % n == 0 and n <= gpus])) if "chips" not in left else 1
    layers = int(rng.choice([2, 3, 4, 4, 4, 5, 6])) if gpus < 8 else int(rng.choice([2, 3, 4, 4]))
    sequence = int(rng.choice([1024, 1024, 2048, 4096]))
    usual = _model(rng, layers, "chips" in left)  # drawn in any case: what follows is as it was
    model = special_model(np.random.default_rng((seed, 4)), layers) if special else usual
    order = [str(name) for name in rng.permutation(["x", "y", "z"])]
    names = order[: int(rng.choice([1, 2, 2, 3])) if "chips" not in left else 2]
    parameters = total_parameters(Architecture.model_validate({"name": "any", **model}))
    need = (2e-9 if finetuned else 18e-9) * parameters / gpus + 0.04e-3 * layers * sequence
    chips: dict[str, Any] = {}
    spanning = np.random.default_rng((seed, 1))  # apart from the rest, whose draws are what they were
    for index, name in enumerate(names):
        room = need * float(np.exp(rng.uniform(0.9, 3.1))) if tight else 100.0
        fields_of = chip_spec(
            tflops=float(rng.uniform(20, 200)),
            gb=FRAMEWORK_GB + room,
            gb_s=float(rng.uniform(300, 3000)),
            up=float(rng.uniform(10, 300)),
            out=float(rng.uniform(10, 400)),
            scale_up={"domain_size": int(rng.choice([2, 8])), "topology": str(rng.choice(["switched", "mesh"]))},
        )
        if spanning.random() < 0.4:
            fields_of["scale_up"] |= {"spans_nodes": True, "domain_size": int(spanning.choice([2, 3, 4, 6]))}
        limit = gpus if index == 0 and rng.random() < 0.5 else int(rng.integers(1, gpus + 1))
        chips[name] = {"max": limit if len(names) > 1 else gpus, "spec": fields_of}
    if sum(chip["max"] for chip in chips.values()) < gpus:
        chips[names[-1]]["max"] = gpus
    pin, forbid = _decisions(rng, names, model, left)
    search: dict[str, Any] = {"top": int(rng.integers(3, 6)), "pin": pin, "forbid": forbid}
    search["diverse"] = seed % 2 == 0
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "even", "even_per_chip"]))
    search["recompute_scope"] = "stage" if len(names) * layers < 7 and rng.random() < 0.4 else "chip"
    training: dict[str, Any] = {"dropout": bool(rng.random() < 0.3), "fused_kernels": bool(rng.random() < 0.7)}
    training |= _narrow(np.random.default_rng((seed, 2)), chips)
    batch = int(rng.choice([4, 8]))
    search["launcher"] = None if rng.random() < 0.75 else str(rng.choice(launcher_names()))
    training |= _finetuned(seed, training, (chips, model, gpus, node, batch, sequence)) if finetuned else {}
    given = {"training": training, **search}
    network = _network(np.random.default_rng((seed, 3)), gpus, node, names)
    if _trains(chips, model, gpus, node, batch, sequence, {"network": network}):
        given["network"] = network
    if given["launcher"] is not None and not _trains(chips, model, gpus, node, batch, sequence, given):
        given["launcher"] = None
    sets = module_sets(problem_of(chips, model, gpus, node, batch, sequence, **given))
    if len(sets) > 2 and rng.random() < 0.95:  # or brute force takes too long
        forbid["recompute_modules"] = [list(sets[i]) for i in rng.permutation(len(sets))[2:]]
    return problem_of(chips, model, gpus, node, batch, sequence, **given)


def _narrow(rng: np.random.Generator, chips: dict[str, Any]) -> dict[str, str]:
    """Layers' GEMMs in fp8 or nvfp4 in some problems, on chips that have what the recipe needs."""
    if rng.random() > 0.3:
        return {}
    recipe = str(rng.choice(["usual", "delayed", "current", "blockwise", "mx", "nvfp4"]))
    for chip in chips.values():
        spec, scaled = chip["spec"], recipe in ("mx", "nvfp4") or rng.random() < 0.5
        peak = spec["peak_tflops"]["bf16"]
        spec["peak_tflops"] |= {"fp8": 2 * peak, "fp4": 4 * peak}
        spec |= {"block_formats": ["mx", "nvfp4"] if scaled else [], "fp8_either_way": bool(rng.random() < 0.5)}
    if recipe == "nvfp4":
        return {"precision": recipe}
    return {"precision": "fp8", **({} if recipe == "usual" else {"fp8_recipe": recipe})}


def _finetuned(seed: int, training: dict[str, Any], rest: Any) -> dict[str, Any]:
    """Fields of fine-tuning that a problem of the rest may have: the first of those drawn."""
    (chips, model, gpus, node, batch, sequence), found = rest, dict[str, Any]()
    for fields in _finetuning(np.random.default_rng((seed, 5)), sequence):
        new = {**fields, **found}
        given = {"training": {**training, **new}}
        found = new if _trains(chips, model, gpus, node, batch, sequence, given) else found
    return found


def _finetuning(rng: np.random.Generator, sequence: int) -> Iterator[dict[str, Any]]:
    """Adapters beside some layers, which not every model may have; a histogram of lengths, packed or padded."""
    names = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    parts = ["linear_q", "linear_v", "linear_proj", "linear_fc1_up", "linear_fc2"]
    kind, lora = rng.random(), dict[str, Any]()
    lora |= {"rank": int(rng.choice([2, 8, 16])), "all_to_all": bool(rng.random() < 0.3)}
    lora["dropout"] = float(rng.choice([0.0, 0.1]))
    lora["share_expert_adapters"] = lora["rank"] != 8
    chosen = [str(name) for name in rng.permutation(names if rng.random() < 0.7 else parts)]
    narrow = {"quantized_base": str(rng.choice(["nf4", "nf4_double"]))} if rng.random() < 0.25 else {}
    if kind < 0.8:
        for targets in (chosen[: int(rng.integers(1, 5))], ["linear_qkv", "linear_proj"]):
            yield {"lora": {**lora, "targets": targets, **narrow}}
            yield {"lora": {**lora, "targets": targets}}
        yield {"lora": {**lora, "targets": LATENT[: 2 + int(lora["rank"]) // 4]}}
    if kind > 0.4:
        tokens = rng.permutation([sequence // 8, sequence // 3, sequence // 2, sequence])[: int(rng.integers(1, 4))]
        lengths = [{"tokens": int(each), "share": float(rng.uniform(0.5, 5))} for each in tokens]
        yield {"lengths": lengths, "packing": bool(rng.random() < 0.8)}


def _network(rng: np.random.Generator, gpus: int, node: int, names: list[str]) -> dict[str, Any] | None:
    """Levels around the nodes in some problems: slower or farther, with links between chip types, sums in switches."""
    if rng.random() > 0.45:
        return None
    sizes = [size for size in (2, 4) if size % node == 0 and size < gpus][: int(rng.integers(1, 3))]
    levels: list[dict[str, Any]] = [{"name": f"of {size}", "devices": size} for size in sizes] + [{"name": "all"}]
    for level in levels:
        kind = str(rng.choice(["oversubscription", "gbit_s", "neither"]))
        if kind != "neither":
            level[kind] = float(rng.uniform(1, 5) if kind == "oversubscription" else rng.uniform(5, 300))
        level["extra_latency_us"] = float(rng.choice([0.0, 5.0, 200.0]))
    links = []
    for pair in (names[i:] for i in range(len(names) - 1)):
        if rng.random() < 0.6:
            rate = {str(rng.choice(["gbit_s", "total_gbit_s"])): float(rng.uniform(2, 100))}
            links.append({"between": pair[:2], **rate, "latency_us": float(rng.choice([1.0, 500.0]))})
    switched = bool(rng.random() < 0.3)
    return {"levels": levels, "links": links, "in_network_reduction": switched, "allow_slower_inside": True}


def _trains(chips: Any, model: Any, gpus: int, node: int, batch: int, sequence: int, given: dict[str, Any]) -> bool:
    """Whether the launcher can train such a model at all."""
    try:
        problem_of(chips, model, gpus, node, batch, sequence, **given)
    except InputError:
        return False
    return True


def _model(rng: np.random.Generator, layers: int, kinds: bool) -> dict[str, Any]:
    """Dense, or with experts in all layers, all but the first, or every second; with windows in some layers or all."""
    hidden = int(rng.choice([512, 1024]))
    more: dict[str, Any] = {"kv_heads": int(rng.choice([1, 2, 8]))}
    if rng.random() < 0.35:
        more["attention"] = {"sliding_window": int(rng.choice([128, 512]))}
        if rng.random() < 0.8:
            more["attention"]["full_every"] = int(rng.choice([2, min(3, layers)]))
    elif rng.random() < 0.15:
        more = {"attention": {"kind": "mla", "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}}
    if rng.random() < (0.9 if kinds else 0.5):
        where = [{}, {"first_dense": 1}, {"first_dense": 1}, {"freq": 2}, {"freq": 2, "offset": 1}]
        sizes = {"experts": int(rng.choice([2, 4])), "expert_ffn": hidden // int(rng.choice([1, 2, 4]))}
        shared = {"shared_experts": int(rng.choice([0, 1])), "top_k": int(rng.choice([1, 2]))}
        more["moe"] = {**sizes, **shared, **where[int(rng.integers(len(where)))]}
    return model_spec(
        layers=layers,
        hidden=hidden,
        ffn=hidden * int(rng.choice([2, 3])),
        vocab=int(rng.choice([500, 4000, 32000])),
        tied_embeddings=bool(rng.random() < 0.3),
        mtp_layers=int(rng.random() < 0.08),
        **more,
    )


def _some(rng: np.random.Generator, values: tuple[Any, ...]) -> list[Any]:
    count = int(rng.integers(1, len(values) + 1))
    return [values[i] for i in sorted(rng.permutation(len(values))[:count].tolist())]


def _decisions(
    rng: np.random.Generator, names: list[str], model: dict[str, Any], left: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random pins and bans, enough of them that brute force stays short."""
    pin: dict[str, Any] = {"mbs": _some(rng, (1, 2)) if "micro batch" in left else int(rng.choice([1, 1, 2]))}
    forbid: dict[str, Any] = {}
    _recompute(rng, names, model["layers"], "recompute" in left, pin, forbid)
    if "chips" in left:
        pin |= {"pp": [2, 4], "tp": int(rng.choice([1, 2])), "cp": 1, "distributed_optimizer": False}
        if rng.random() < 0.8:
            pin["recompute"] = [str(kind) for kind in rng.permutation(RECOMPUTE_KINDS)[:2]]
            forbid.pop("recompute", None)
        pin |= {"sequence_parallel": pin["tp"] == 2, "flash_attention": bool(rng.random() < 0.6)}
        return pin, forbid
    for flag in ("sequence_parallel", "distributed_optimizer", "flash_attention"):
        if rng.random() < (0.4 if "flags" in left else 0.85):
            if flag == "sequence_parallel" and rng.random() < 0.4:
                continue
            (pin if rng.random() < 0.5 else forbid)[flag] = bool(rng.random() < 0.6) ^ (flag in forbid)
    _context(rng, "context" in left, pin, forbid)
    _experts(rng, "experts" in left and "moe" in model, pin, forbid)
    _sharding(rng, "sharding" in left, pin, forbid)
    if rng.random() < 0.2:
        forbid["pp"] = 2 if pin.get("pp") == 1 else int(rng.choice([1, 2]))
    if rng.random() < 0.15:
        pin["tp"] = _some(rng, (1, 2, 4))
    if rng.random() < 0.1:
        forbid["stages"] = {names[-1]: int(rng.integers(0, 3))}
    if rng.random() < 0.1:
        forbid["chip_order"] = [names[i] for i in rng.permutation(len(names))]
    if rng.random() < 0.05 and pin.get("pp") != 1:
        forbid["vpp"] = 1
    return pin, forbid


def _recompute(
    rng: np.random.Generator, names: list[str], layers: int, left: bool, pin: dict[str, Any], forbid: dict[str, Any]
) -> None:
    kinds = RECOMPUTE_KINDS
    if not left and rng.random() < 0.75:
        pin["recompute"] = _some(rng, kinds)
    elif rng.random() < 0.4:
        forbid["recompute"] = {names[0]: _some(rng, kinds[:3])}
    if rng.random() < 0.15:
        pin["recompute_num_layers"] = _some(rng, (0, 1, 2, layers))
    elif rng.random() < 0.15:
        forbid["recompute_num_layers"] = int(rng.integers(0, 3))


def _context(rng: np.random.Generator, left: bool, pin: dict[str, Any], forbid: dict[str, Any]) -> None:
    if not left and rng.random() < 0.85:
        pin["cp"] = 1
        return
    if rng.random() < 0.6:
        pin["cp"] = [2, 4] if rng.random() < 0.35 else [1, *_some(rng, (2, 4))]
    if not left or rng.random() < 0.3:
        pin["cp_gather"] = bool(rng.random() < 0.3)
    elif rng.random() < 0.3:
        (pin if rng.random() < 0.5 else forbid)["ulysses"] = int(rng.choice([1, 2]))


def _experts(rng: np.random.Generator, left: bool, pin: dict[str, Any], forbid: dict[str, Any]) -> None:
    for size in ("ep", "etp"):
        if not left:
            if rng.random() < 0.8:
                pin[size] = [1, *_some(rng, (2, 4))] if rng.random() < 0.2 else 1
        elif rng.random() < 0.3:
            (pin if rng.random() < 0.5 else forbid)[size] = _some(rng, (1, 2))


def _sharding(rng: np.random.Generator, left: bool, pin: dict[str, Any], forbid: dict[str, Any]) -> None:
    """Gradients and parameters are sharded without a pipeline only: in some problems there is none."""
    kinds = ("optimizer", "gradients", "parameters")
    if not left:
        pin["sharded"] = "optimizer" if rng.random() < 0.9 else ["optimizer", str(rng.choice(kinds[1:]))]
        if rng.random() < 0.7:
            pin["sharding_group"] = 0
        return
    if rng.random() < 0.5:
        pin["pp"] = 1
        for name in ("recompute", "distributed_optimizer"):
            pin.pop(name, None), forbid.pop(name, None)
    if rng.random() < 0.3:
        (pin if rng.random() < 0.5 else forbid)["sharded"] = _some(rng, kinds[:2])
    if rng.random() < 0.4:
        pin["sharding_group"] = [0, *_some(rng, (2, 4))]
    elif rng.random() < 0.1:
        forbid["sharding_group"] = 0
