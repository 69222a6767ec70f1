"""The seed tool's command line: its flags as a spec, and plans as the dictionaries that it printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.plans.strategy import CORE, RecomputeKind, Strategy
from cpsolver.problem.flags import in_flags, read_chips
from cpsolver.problem.load import problem_from
from cpsolver.problem.problem import Problem
from cpsolver.problem.seed_format import SHARDING_STRATEGIES
from cpsolver.search.result import Plan
from hw_specs.units import bytes_to_gib

SEQUENCE_STEP = 512
"""The sequence length is a multiple of this."""
FLAG_OF = {
    "cluster.num_gpus": "--num-gpus",
    "cluster.gpus_per_node": "--nproc-per-node",
    "cluster.chips": "--gpu-infos",
    "training.global_batch_size": "--global-batch-size",
    "training.sequence_length": "--sequence-length",
    "training.tokens": "--tokens",
    "cluster.prices": "--prices",
    "search.top": "--top",
    "launcher": "--launcher",
    "model": "--model-name",
}
"""The flag that stands for each field of the spec."""


@dataclass(frozen=True)
class Flags:
    """What the command line says, as given."""

    model_name: str
    num_gpus: int
    gpu_infos: str
    nproc_per_node: int
    global_batch_size: int
    sequence_length: int
    top: int
    launcher: str | None = None
    tokens: float | None = None
    prices: str | None = None


def problem_from_flags(flags: Flags) -> Problem:
    """The problem that the flags stand for; raises InputError with every problem, named by its flag.

    The dictionaries can tell neither interleaving nor, for one chip type, unequal stages: neither is searched.
    """
    found: list[Trouble] = []
    chips = read_chips(flags.gpu_infos, found)
    data = {
        "model": flags.model_name,
        "cluster": {
            "num_gpus": flags.num_gpus,
            "gpus_per_node": flags.nproc_per_node,
            "chips": chips,
            "prices": _prices(flags.prices, found),
        },
        "training": {
            "global_batch_size": flags.global_batch_size,
            "sequence_length": flags.sequence_length,
            "tokens": flags.tokens,
        },
        "launcher": flags.launcher,
        "search": {
            "top": flags.top,
            "diverse": False,
            "risk": 1.0,
            "pin": {"vpp": 1},
            "degrees_by_chip": False,
            "layer_split": "auto" if len(chips) > 1 else "even",
        },
    }
    length = flags.sequence_length
    if length > 0 and length % SEQUENCE_STEP:
        below = length - length % SEQUENCE_STEP
        allowed = f"{below:,} or {below + SEQUENCE_STEP:,}" if below else f"{SEQUENCE_STEP:,}"
        found.append(Trouble("training.sequence_length", f"must be a multiple of {SEQUENCE_STEP}", length, allowed))
    problem: Problem | None = None
    try:
        problem = problem_from(data)
    except InputError as error:
        found += [trouble for trouble in error.troubles if chips or not trouble.where.startswith("cluster.chips")]
    if found or problem is None:
        raise InputError(tuple(in_flags(trouble, FLAG_OF) for trouble in found))
    return problem


_RECOMPUTE: Mapping[RecomputeKind, tuple[str | None, str | None]] = {
    "none": (None, None),
    "selective": ("selective", None),
    "block": ("full", "block"),
    "uniform": ("full", "uniform"),
}


def plan_dictionary(problem: Problem, plan: Plan) -> dict[str, Any]:
    """One line of the seed tool's output: plain numbers, text, None and lists, keys in its order."""
    evaluation = plan.evaluation
    return {
        "sim_throughput": round(evaluation.tokens_per_s),
        "sim_total_time_s": float(evaluation.step_time_s),
        "max-use-mem-size": [float(bytes_to_gib(used)) for used in evaluation.memory_bytes_by_chip.values()],
        "strategy": _strategy(problem, plan),
    }


def _strategy(problem: Problem, plan: Plan) -> dict[str, Any]:
    strategy, fused = plan.strategy, problem.spec.training.fused_kernels
    flags = {
        "use-flash-attn": strategy.flash_attention,
        "sequence-parallel": strategy.sequence_parallel,
        "use-distributed-optimizer": strategy.distributed_optimizer,
        "fused-rmsnorm": fused and problem.model.norm == "rmsnorm",
        "apply-rotary-positional-embedding-kernel": fused and problem.model.position == "rope",
    }
    chips, layers = strategy.stage_chips, strategy.layers
    types = list(dict.fromkeys(chips))
    fields: dict[str, Any] = {
        "pipeline-model-parallel-size": strategy.pp,
        "tensor-model-parallel-size": strategy.tp,
        "micro-batch-size": strategy.mbs,
        **_more_sizes(problem, strategy),
        **{name: "" for name, on in flags.items() if on},
        **_sharding(strategy),
        "pipeline-stage-chips": list(chips) if len(types) > 1 else types,
    }
    if len(types) > 1 or len(set(layers)) > 1:  # of a mixed cluster a plan may use one type, unevenly
        fields["pipeline-stage-layers"] = list(layers)
    first = [chips.index(chip) for chip in types]
    fields["recompute-granularity"] = [_RECOMPUTE[strategy.recompute[stage]][0] for stage in first]
    fields["recompute-method"] = [_RECOMPUTE[strategy.recompute[stage]][1] for stage in first]
    fields["recompute-num-layers"] = [strategy.recompute_layers[stage] or None for stage in first]
    modules = [strategy.recompute_modules[stage] for stage in first]
    if any(some not in ((), CORE) for some in modules):
        fields["recompute-modules"] = [list(some) or None for some in modules]
    return fields


def _more_sizes(problem: Problem, strategy: Strategy) -> dict[str, Any]:
    """What the seed tool did not search, under Megatron's flags; nothing where a plan has none of it."""
    fields: dict[str, Any] = {}
    if strategy.cp > 1:
        fields |= {"context-parallel-size": strategy.cp, "cp-comm-type": strategy.cp_comm_type}
    if 1 < strategy.ulysses < strategy.cp:
        fields["hierarchical-context-parallel-sizes"] = [strategy.ulysses, strategy.cp // strategy.ulysses]
    if problem.model.moe is not None:
        fields |= {"expert-model-parallel-size": strategy.ep, "expert-tensor-parallel-size": strategy.etp}
    return fields


def _sharding(strategy: Strategy) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if strategy.zero_stage > 1:
        fields["data-parallel-sharding-strategy"] = SHARDING_STRATEGIES[strategy.sharded]
    if strategy.grouped:
        fields["num-distributed-optimizer-instances"] = strategy.replicas // strategy.sharding_ranks
    return fields


def _prices(text: str | None, found: list[Trouble]) -> dict[str, float] | None:
    """`a800:1.2,h800:2.1` as {a800: 1.2, h800: 2.1}; what cannot be read goes to `found`."""
    if text is None:
        return None
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, _, price = (piece.strip() for piece in part.partition(":"))
        try:
            prices[name] = float(price)
        except ValueError:
            found.append(Trouble("cluster.prices", "must be dollars per device-hour", text, "a800:1.2,h800:2.1 say"))
            break
    return prices
