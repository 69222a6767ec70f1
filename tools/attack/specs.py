"""Random specs of small problems, as plain values: every kind of thing that a user may write, most decisions pinned."""

from __future__ import annotations

from random import Random
from typing import Any

import cpsolver
from cpsolver import InputError, Problem, Strategy
from cpsolver.plans.strategy import RECOMPUTE_KINDS, SEARCHED_SCHEDULES, StageGroup
from cpsolver.rules import RULES

Fields = dict[str, Any]

LAUNCHERS = ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "mindspeed-llm", "megatron-core-0.12")
FRAMEWORK_GB = 4.0
"""About what a stack keeps on every device: no plan fits below."""
STATE_BYTES = 18.0
"""Of a parameter: weight, gradient, master weight and Adam's two moments."""
ACTIVATION_BYTES = 34.0
"""Of a layer, for each token and unit of its width, without scores (arXiv:2205.05198, equation 1)."""


def random_spec(seed: int) -> Fields:
    """The spec of that seed: 2 to 16 devices, 1 to 3 chip types, a few decisions open."""
    rng = Random(seed)
    devices = rng.choice((2, 4, 4, 8, 8, 16, 6, 12))
    node = rng.choice([size for size in (1, 2, 4, 8, 3) if devices % size == 0])
    layers = rng.choice((1, 2, 3, 4, 4, 5, 6))
    model = _model(rng, layers)
    sequence = rng.choice((256, 512, 1024, 2048, 768))
    chips = _chips(rng, devices, node, _need_gb(model, devices, sequence))
    spec: Fields = {
        "model": model,
        "cluster": {"num_gpus": devices, "gpus_per_node": node, "chips": chips},
        "training": {"global_batch_size": rng.choice((4, 6, 8, 12, 16)), "sequence_length": sequence},
        "search": _search(rng, list(chips)),
    }
    if rng.random() < 0.2:
        spec["cluster"]["memory_margin"] = rng.choice((0.0, 0.02, 0.2))
    if rng.random() < 0.25:
        spec["launcher"] = rng.choice(LAUNCHERS)
    if rng.random() < 0.3:
        _objective(rng, spec)
    plan = legal_plan(rng, spec)
    if plan is not None:
        _pin(rng, spec, plan)
    return spec


def legal_plan(rng: Random, spec: Fields, draws: int = 80) -> Strategy | None:
    """A plan drawn at random that breaks no rule but those on memory; the chips then have about the memory that it
    needs. None where none was drawn, or the spec is refused: then it is left as it is."""
    try:
        problem = cpsolver.make_problem(spec)
    except InputError:
        return None
    for _ in range(draws):
        plan = _drawn(rng, problem)
        if not any(any(rule(problem, plan)) for name, rule in RULES.items() if name != "memory"):
            _bind(rng, spec, problem, plan)
            return plan
    return None


def _bind(rng: Random, spec: Fields, problem: Problem, plan: Strategy) -> None:
    """Memory that the plan just fits into, or just does not, on some of its chip types."""
    stages = cpsolver.evaluate(problem, plan).stages
    for name in dict.fromkeys(plan.stage_chips):
        chip = problem.supply(name).chip
        share = problem.capacity_bytes(chip) / chip.memory_capacity_bytes
        need = max(stage.memory.total for stage in stages if stage.chip == name) / share
        if rng.random() < 0.7:
            memory = spec["cluster"]["chips"][name]["spec"]["memory"]
            memory["capacity_gb"] = round(need * rng.choice((0.97, 1.001, 1.02, 1.1, 1.3)) / 1e9, 5)


def _drawn(rng: Random, problem: Problem) -> Strategy:
    """Sizes that multiply to the devices, all else as it comes."""
    left, sizes = problem.num_gpus, []
    for _ in range(3):
        sizes.append(rng.choice([size for size in range(1, left + 1) if left % size == 0]))
        left //= sizes[-1]
    (tp, pp, cp), dp, layers = sizes, left, problem.model.layers
    moe, distributed = problem.model.moe, dp * cp > 1 and rng.random() < 0.6
    tp, dp = (tp, dp) if rng.random() < 0.5 else (dp, tp)
    cp, dp = (cp, dp) if rng.random() < 0.2 else (1, cp * dp)
    pp = min(pp, layers)
    kind = rng.choice(RECOMPUTE_KINDS)
    number = rng.randint(1, layers) if kind in ("block", "uniform") else 0
    ends = [0, *sorted(rng.sample(range(1, layers), pp - 1)), layers]
    chips = sorted(rng.choices(problem.chip_names, k=pp))
    pairs = zip(chips, ends, ends[1:], strict=False)
    return Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        mbs=rng.choice((1, 1, 2, 3)),
        vpp=rng.choice((1, 1, 2)) if pp > 1 else 1,
        sequence_parallel=tp > 1 and rng.random() < 0.6,
        distributed_optimizer=distributed,
        flash_attention=rng.random() < 0.8,
        ep=rng.choice((1, 2)) if moe else 1,
        sharded=rng.choice(("optimizer", "gradients", "parameters")) if distributed and pp == 1 else "optimizer",
        schedule=rng.choice(problem.spec.search.schedules or ("1f1b",)) if pp > 1 else "1f1b",
        groups=tuple(StageGroup(chip, (end - at,), kind, (number,)) for chip, at, end in pairs),
    )


PINNED = (
    *("tp", "cp", "pp", "mbs", "vpp", "sequence_parallel", "distributed_optimizer", "flash_attention"),
    *("ep", "etp", "sharded", "sharding_group", "ulysses", "cp_gather", "expert_overlap", "schedule"),
)
"""Decisions of rows that are pinned to what a legal plan has, but for a few."""


def _model(rng: Random, layers: int) -> Fields:
    heads = rng.choice((2, 4, 6, 8))
    model: Fields = {"layers": layers, "hidden": 64 * heads, "heads": heads, "ffn": 128 * rng.choice((2, 3, 8))}
    model["vocab"] = rng.choice((997, 4000, 64000))
    if rng.random() < 0.5:
        model["kv_heads"] = rng.choice([size for size in (1, 2, 3, 4) if heads % size == 0])
    if rng.random() < 0.2:
        model["tied_embeddings"] = True
    if rng.random() < 0.45:
        model["moe"] = {"experts": rng.choice((2, 4, 6)), "top_k": rng.choice((1, 2)), "expert_ffn": 128}
        if rng.random() < 0.3:
            model["moe"]["shared_experts"] = 1
        if rng.random() < 0.3 and layers > 1:
            model["moe"] |= rng.choice(({"first_dense": 1}, {"freq": 2}))
    if rng.random() < 0.15:
        model["attention"] = {"sliding_window": 128}
    if rng.random() < 0.08:
        model["mtp_layers"] = 1
    return model


def _need_gb(model: Fields, devices: int, sequence: int) -> float:
    """Roughly what each device holds where all share all: states, and a sequence's activations."""
    width, moe = model["hidden"], model.get("moe", {})
    block = 4 * width**2 + 3 * width * model["ffn"] + 3 * width * moe.get("experts", 0) * moe.get("expert_ffn", 0)
    parameters: float = model["layers"] * block + 2 * model["vocab"] * width
    activations: float = ACTIVATION_BYTES * sequence * width * model["layers"]
    return (STATE_BYTES * parameters / devices + activations) / 1e9


def _chips(rng: Random, devices: int, node: int, need_gb: float) -> Fields:
    names = ["one", "two", "three"][: rng.choice((1, 1, 1, 1, 2, 2, 3))]
    chips: Fields = {}
    for name in names:
        room = rng.choice((rng.uniform(0.3, 2.5) * need_gb, rng.uniform(1, 6) * need_gb, 60.0))
        most = devices if len(names) == 1 else node * rng.randint(1, devices // node)
        fields: Fields = {
            "peak_tflops": {"bf16": round(rng.uniform(20, 900), 1)},
            "memory": {
                "capacity_gb": round(FRAMEWORK_GB + room, 4),
                "bandwidth_gb_s": rng.choice((400, 1500, 4000)),
            },
            "scale_up": {"bandwidth_gb_s": rng.choice((16, 100, 450)), "domain_size": rng.choice((2, 4, 8))},
            "scale_out": {"bandwidth_gbit_s": rng.choice((10, 100, 400))},
        }
        chips[name] = {"max": most, "spec": fields}
    if sum(chip["max"] for chip in chips.values()) < devices:
        chips[names[0]]["max"] = devices
    return chips


def _some(rng: Random, values: list[Any]) -> list[Any]:
    return sorted(rng.sample(values, rng.randint(1, min(3, len(values)))))


def _search(rng: Random, chips: list[str]) -> Fields:
    search: Fields = {"top": rng.randint(1, 6), "degrees_by_chip": False, "diverse": rng.random() < 0.5}
    search["layer_split"] = rng.choice(("auto", "auto", "auto", "even", "even_per_chip"))
    search["recompute_scope"] = rng.choice(("chip", "chip", "stage"))
    if rng.random() < 0.2:
        search["schedules"] = rng.sample(SEARCHED_SCHEDULES, 2)
    if len(chips) > 1 and rng.random() < 0.2:
        search["forbid"] = {"chip_order": rng.sample(chips, len(chips))}
    return search


def _pin(rng: Random, spec: Fields, plan: Strategy) -> None:
    """Pin most decisions to what a plan has, or to that and other values; ban some values of those that are open."""
    kinds = sorted(set(plan.recompute))
    own: Fields = {name: getattr(plan, name) for name in PINNED}
    own["recompute"] = kinds
    if kinds == ["selective"]:
        own["recompute_modules"] = [["core_attn"]]
    if {"block", "uniform"} & set(kinds):
        own["recompute_num_layers"] = sorted(set(plan.recompute_layers))
    open_ones = set(rng.sample(list(own), rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6))))
    pin = {name: value for name, value in own.items() if name not in open_ones}
    sizes = [size for size in range(1, plan.devices + 1) if plan.devices % size == 0]
    for name in ("tp", "pp", "cp", "mbs", "ep"):
        if name in pin and rng.random() < 0.15:
            pin[name] = sorted({pin[name], rng.choice(sizes)})
    if len(set(plan.stage_chips)) > 1 and rng.random() < 0.25:
        pin |= rng.choice(({"chip_order": list(dict.fromkeys(plan.stage_chips))}, {"layers": list(plan.layers)}))
    search = spec["search"]
    search["pin"] = pin
    search["forbid"] = {**search.get("forbid", {}), **_bans(rng, open_ones, sizes, list(spec["cluster"]["chips"]))}


def _bans(rng: Random, open_ones: set[str], sizes: list[int], chips: list[str]) -> Fields:
    """Some values of decisions that are open."""
    values: dict[str, list[Any]] = {
        **dict.fromkeys(("tp", "cp", "pp", "ep", "vpp"), sizes),
        "mbs": [1, 2, 3, 4],
        "sharding_group": [0, *sizes],
        "sharded": ["optimizer", "gradients"],
        "flash_attention": [False],
        "distributed_optimizer": [True],
        "recompute": ["none", "selective", "uniform"],
    }
    bans: Fields = {}
    for name in sorted(open_ones & set(values)):
        if rng.random() < 0.2:
            bans[name] = _some(rng, values[name])
    if "recompute" in bans and rng.random() < 0.5:
        bans["recompute"] = {chips[0]: bans["recompute"]}
    return bans


def _objective(rng: Random, spec: Fields) -> None:
    """Dollars or devices in place of seconds, mostly with a deadline, mostly with devices that may idle."""
    spec["cluster"]["idle"] = rng.random() < 0.6
    spec["cluster"]["prices"] = {name: round(rng.uniform(0.5, 9), 2) for name in spec["cluster"]["chips"]}
    spec["search"]["objective"] = rng.choice(("cost", "cost", "fewest_chips", "throughput"))
    if spec["search"]["objective"] == "fewest_chips" or rng.random() < 0.5:
        spec["search"]["deadline"] = {"tokens": 1e9, "days": round(10 ** rng.uniform(-1.5, 1.5), 3)}
