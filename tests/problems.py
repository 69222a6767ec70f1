"""Builders of small problems, and the cost tables bent at random, for the tests that compare with brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from steady import HOST as HOST
from steady import STEADY as STEADY

from cpsolver import coefficients, evaluate
from cpsolver.cost import memory
from cpsolver.cost.shard import SHARDED, Candidates, Floats
from cpsolver.cost.tables import MemoryTable, TimeTable, memory_table, time_table
from cpsolver.plans import arrangements, mixes
from cpsolver.problem import Problem, Supply, resolve
from cpsolver.spec import parse_spec
from cpsolver.stack import Constant, Constants
from cpsolver.strategy import RecomputeKind, StageGroup, Strategy
from hw_specs import Chip
from models_zoo import Architecture

FRAMEWORK_GB = 3.2
"""A little more than what the stack takes of every device."""
IDEAL_STACK: dict[str, float] = {
    **STEADY,
    **dict.fromkeys((*HOST, "gradient_sum_bytes", "straggling"), 0.0),
    **{name: 0.0 for name in STEADY if "_overlap" in name},
    **dict.fromkeys(("attention_speed", "grouped_gemm_speed", "score_traffic", "elementwise_traffic"), 1.0),
}
"""Nothing is hidden, lost or done by the host."""
IDEAL: dict[str, float] = {
    **dict.fromkeys(("gemm_bf16", "gemm_fp8", "memory", "network"), 1.0),
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), 1.0),
    **dict.fromkeys(("attention_forward", "attention_backward"), 0.5),
    "collective_half_payload_mib": 1e-9,
    "collective_latency_us": 1e-9,
    "network_latency_us": 1e-9,
    "kernel_latency_us": 1e-9,
}
"""Every efficiency 1 (attention 1/2), nothing costs latency: the formulas are left."""


def model_spec(**changes: Any) -> dict[str, Any]:
    """A small model of the usual shape."""
    return {"layers": 4, "hidden": 1024, "ffn": 2816, "heads": 8, "vocab": 4000, **changes}


def chip_spec(
    tflops: float = 100, gb: float = 40, gb_s: float = 1000, up: float = 100, out: float = 100, **more: Any
) -> dict[str, Any]:
    """A chip's fields; `up` in GB/s and `out` in Gb/s are its links inside a node and between nodes."""
    return {
        "peak_tflops": {"bf16": tflops},
        "memory": {"capacity_gb": gb, "bandwidth_gb_s": gb_s},
        "scale_up": {"bandwidth_gb_s": up, **more.pop("scale_up", {})},
        "scale_out": {"bandwidth_gbit_s": out},
        **more,
    }


def spec_of(
    chips: Mapping[str, Any] | None = None,
    model: Any = None,
    gpus: int = 4,
    node: int = 4,
    batch: int = 8,
    sequence: int = 1024,
    training: Mapping[str, Any] | None = None,
    margin: float = 0.04,
    **search: Any,
) -> dict[str, Any]:
    """A whole spec as plain values; `chips` holds chip_spec values, or {"max": .., "spec": ..}."""
    given = {"x": chip_spec()} if chips is None else chips
    requests = {k: v if not isinstance(v, Mapping) or "spec" in v else {"spec": dict(v)} for k, v in given.items()}
    return {
        "model": model_spec() if model is None else model,
        "cluster": {"num_gpus": gpus, "gpus_per_node": node, "chips": requests, "memory_margin": margin},
        "training": {"global_batch_size": batch, "sequence_length": sequence, **(training or {})},
        "search": search,
    }


def problem_of(*args: Any, **given: Any) -> Problem:
    """`spec_of`, resolved, with the constants of STEADY."""
    return with_stack(resolve(parse_spec(spec_of(*args, **given))), **STEADY)


def with_stack(problem: Problem, **values: float) -> Problem:
    """The problem with those constants of its software stack replaced."""
    assert set(values) <= set(Constants.model_fields)
    new = {name: Constant(value=value, source="a test", confidence="assumed") for name, value in values.items()}
    constants = problem.stack.constants.model_copy(update=new)
    return replace(problem, stack=problem.stack.model_copy(update={"constants": constants}))


def ideal(
    efficiency: Mapping[str, float] | None = None,
    model: Mapping[str, Any] | Architecture | None = None,
    stack: Mapping[str, float] | None = None,
    **given: Any,
) -> tuple[Problem, Chip]:
    """A problem with one chip of 100 TFLOP/s (200 in fp8), 1 TB/s memory, 100 GB/s inside nodes of 4 and 100 Gb/s
    outside; the efficiencies of IDEAL and the constants of IDEAL_STACK but for those given."""
    more = {name: given.pop(name) for name in ("compute_units", "scale_up") if name in given}
    spec = chip_spec(efficiency={**IDEAL, **(efficiency or {})}, **more)
    spec["peak_tflops"]["fp8"] = 200
    plain = model_spec() if isinstance(model, Architecture) else model
    problem = with_stack(problem_of({"x": spec}, plain, **given), **{**IDEAL_STACK, **(stack or {})})
    if isinstance(model, Architecture):
        problem = replace(problem, model=model)  # one that the search may not support
    return problem, problem.supplies[0].chip


def strategy_of(
    groups: str = "x:4",
    tp: int = 1,
    dp: int = 4,
    mbs: int = 1,
    vpp: int = 1,
    flags: str = "fz",
    recompute: RecomputeKind = "none",
    amount: int = 0,
    **more: Any,
) -> Strategy:
    """A strategy from text: groups "a:3,2 b:1" (layers by stage), flags s(equence), z(ero), f(lash); `more`: cp, ..."""
    parsed = []
    for text in groups.split():
        chip, counts = text.split(":")
        layers = tuple(map(int, counts.split(",")))
        parsed.append(StageGroup(chip, layers, recompute, (amount,) * len(layers)))
    pp = sum(group.num_stages for group in parsed)
    return Strategy(tp, pp, dp, mbs, vpp, "s" in flags, "z" in flags, "f" in flags, tuple(parsed), **more)


def _some(rng: np.random.Generator, values: tuple[Any, ...]) -> list[Any]:
    count = int(rng.integers(1, len(values) + 1))
    return [values[i] for i in sorted(rng.permutation(len(values))[:count].tolist())]


def _decisions(rng: np.random.Generator, names: list[str], layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random pins and bans, enough of them that brute force stays short."""
    pin: dict[str, Any] = {"mbs": _some(rng, (1, 2))}
    forbid: dict[str, Any] = {}
    for flag in ("sequence_parallel", "distributed_optimizer", "flash_attention"):
        if rng.random() < 0.75:
            (pin if rng.random() < 0.5 else forbid)[flag] = bool(rng.random() < 0.6) ^ (flag in forbid)
    kinds: tuple[str, ...] = ("none", "selective", "block", "uniform")
    if rng.random() < 0.7:
        pin["recompute"] = _some(rng, kinds)
    elif rng.random() < 0.5:
        forbid["recompute"] = {names[0]: _some(rng, kinds[:3])}
    if rng.random() < 0.15:
        pin["recompute_num_layers"] = _some(rng, (0, 1, 2, layers))
    if rng.random() < 0.15 and "recompute_num_layers" not in pin:
        forbid["recompute_num_layers"] = int(rng.integers(0, 3))
    if rng.random() < 0.2:
        forbid["pp"] = int(rng.choice([1, 2]))
    if rng.random() < 0.15:
        pin["tp"] = _some(rng, (1, 2, 4))
    if rng.random() < 0.1:
        forbid["stages"] = {names[-1]: int(rng.integers(0, 3))}
    if rng.random() < 0.1:
        forbid["chip_order"] = [names[i] for i in rng.permutation(len(names))]
    if rng.random() < 0.05:
        forbid["vpp"] = 1
    return pin, forbid


def random_problem(seed: int, tight: bool = True) -> Problem:
    """A tiny problem that brute force can settle; memory binds in many when `tight`."""
    rng = np.random.default_rng(seed)
    gpus = int(rng.choice([2, 4, 4, 4, 8]))
    node = int(rng.choice([n for n in (1, 2, 4, 8) if gpus % n == 0 and n <= gpus]))
    layers = int(rng.choice([2, 3, 4, 4, 4, 5, 6])) if gpus < 8 else int(rng.choice([2, 3, 4, 4]))
    names = [str(name) for name in rng.permutation(["x", "y", "z"])[: int(rng.choice([1, 2, 2, 3]))]]
    hidden = int(rng.choice([512, 1024]))
    model = model_spec(
        layers=layers,
        hidden=hidden,
        ffn=hidden * int(rng.choice([2, 3])),
        kv_heads=int(rng.choice([1, 2, 8])),
        vocab=int(rng.choice([500, 4000, 32000])),
        tied_embeddings=bool(rng.random() < 0.3),
    )
    need = 18e-9 * (layers * (4 + 3 * 3) * hidden**2 + 2 * model["vocab"] * hidden) / gpus + 0.04 * layers
    chips: dict[str, Any] = {}
    for index, name in enumerate(names):
        room = need * float(np.exp(rng.uniform(0.2, 2.7))) if tight else 100.0
        fields_of = chip_spec(
            tflops=float(rng.uniform(20, 200)),
            gb=FRAMEWORK_GB + room,
            gb_s=float(rng.uniform(300, 3000)),
            up=float(rng.uniform(10, 300)),
            out=float(rng.uniform(10, 400)),
            scale_up={"domain_size": int(rng.choice([2, 8])), "topology": str(rng.choice(["switched", "mesh"]))},
        )
        limit = gpus if index == 0 and rng.random() < 0.5 else int(rng.integers(1, gpus + 1))
        chips[name] = {"max": limit if len(names) > 1 else gpus, "spec": fields_of}
    if sum(chip["max"] for chip in chips.values()) < gpus:
        chips[names[-1]]["max"] = gpus
    pin, forbid = _decisions(rng, names, layers)
    search: dict[str, Any] = {"top": int(rng.integers(3, 6)), "pin": pin, "forbid": forbid}
    search["layer_split"] = str(rng.choice(["auto", "auto", "auto", "even", "even_per_chip"]))
    search["recompute_scope"] = "stage" if len(names) * layers < 7 and rng.random() < 0.4 else "chip"
    training = {"dropout": bool(rng.random() < 0.3), "fused_kernels": bool(rng.random() < 0.7)}
    return problem_of(chips, model, gpus, node, int(rng.choice([4, 8])), training=training, **search)


Maker = Callable[..., Any]


@contextmanager
def quick_tables(bend: int | None = None) -> Iterator[None]:
    """Remember the tables of single rows (brute force asks for the same ones often); `bend` multiplies every one
    of them by random factors of that seed, the same for all readers."""
    time, space, parts = time_table, memory_table, memory.stage_parameters
    if bend is not None:
        parts = _bent_parts(bend, parts)
        time, space = _bent_time(bend), _bent_memory(bend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "stage_parameters", parts)
        patch.setattr(coefficients, "time_table", time)
        patch.setattr(coefficients, "memory_table", space)
        patch.setattr(evaluate, "time_table", _remembered(time))
        patch.setattr(evaluate, "memory_table", _remembered(space))
        yield


def _remembered(make: Maker) -> Maker:
    known: dict[tuple[Any, ...], Any] = {}

    def table(problem: Problem, *rest: Any) -> Any:
        row = [int(getattr(rest[-1], field.name)[0]) for field in fields(Candidates)]
        key = (id(problem), *(supply.name for supply in rest[:-1]), *row)
        if key not in known:
            known[key] = make(problem, *rest)
        return known[key]

    return table


def _factor(rows: Candidates, seed: int, name: str, spread: float = 3.0) -> Floats:
    """Between 1/spread and spread, by the row's numbers, the seed and the name."""
    code = np.full(len(rows), seed * 1_000_003 + crc32(name.encode()), dtype=np.uint64)
    for field in fields(Candidates):
        code = (code ^ getattr(rows, field.name).astype(np.uint64)) * np.uint64(6364136223846793005) + np.uint64(1)
        code ^= code >> np.uint64(29)
    return np.asarray(spread ** (2 * (code % np.uint64(2**20)) / 2.0**20 - 1))


def _bent_time(seed: int) -> Maker:
    def table(problem: Problem, supply: Supply, rows: Candidates) -> TimeTable:
        made = time_table(problem, supply, rows)
        bent = {
            f.name: getattr(made, f.name) * _factor(rows, seed, supply.name + f.name)
            for f in fields(TimeTable)
            if f.name not in ("layer_tp", "end_tp")  # these only name a part of the others
        }
        bent["recompute"] = np.minimum(bent["recompute"], 0.9 * bent["layer"])  # a layer takes longer than its forward
        return replace(made, **bent)

    return table


def _bent_memory(seed: int) -> Maker:
    def table(problem: Problem, rows: Candidates) -> MemoryTable:
        made = memory_table(problem, rows)
        names = ("full", "selective", "checkpoint", "buffer", "last_buffer")
        bent = {name: getattr(made, name) * _factor(rows, seed, name) for name in names}
        bent["checkpoint"] = np.minimum(bent["checkpoint"], 0.9 * bent["full"])
        return replace(made, **bent)

    return table


def _bent_parts(seed: int, make: Maker) -> Maker:
    def parts(problem: Problem, rows: Candidates) -> memory.StageParameters:
        made = make(problem, rows)
        names = [field.name for field in fields(made)]
        return replace(made, **{name: getattr(made, name) * _factor(rows, seed, name, 1.5) for name in names})

    return parts


def all_orders(problem: Problem, stage_devices: int, pp: int) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """Every mix, with each chip type by stage that it allows."""
    found = mixes(problem, stage_devices, pp)
    return [(tuple(mix.tolist()), order) for mix in found for order in arrangements(problem, mix)]


def plan_key(problem: Problem, rows: Candidates, row: int, order: np.ndarray) -> tuple[object, ...]:
    """`Strategy.key` of the plan of a row with those chips by stage."""
    names = {field.name for field in fields(Strategy)} & {field.name for field in fields(Candidates)}
    chosen: dict[str, Any] = {name: getattr(rows, name)[row].item() for name in names}
    chosen["sharded"] = SHARDED[chosen["sharded"] - 1]
    return Strategy(**chosen, groups=tuple(StageGroup(problem.chip_names[chip], (1,)) for chip in order)).key()
