"""From a measured run on several chip types to a problem, a plan with replicas of each kind, and a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from cpsolver.evaluation.meters import in_terms_of
from cpsolver.evaluation.replicas import evaluate_replicas
from cpsolver.evidence.intervals import replicas_interval
from cpsolver.evidence.runs.plan import Unpredictable, framework, problem_of, strategy_of, with_network, with_recipe
from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.inputs.data import package_data
from cpsolver.inputs.language import say
from cpsolver.plans.replicas import MixedReplicas, StageDevices, mixed_replicas
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from hw_specs import Chip, Efficiency, load_chip
from hw_specs.units import bytes_to_gib

_UNSTATED = Path(__file__).parent / "unstated.yaml"
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_ENDS = 2
"""Embedding and head may count as a layer each."""


@dataclass(frozen=True)
class PlacedReplicas:
    """A run's problem and its plan by the kinds of its replicas; `assumed`: columns that nothing says anything of."""

    problem: Problem
    plan: MixedReplicas
    assumed: tuple[str, ...]


def stated(run: MeasuredRun) -> tuple[MeasuredRun, tuple[str, ...]]:
    """The run with what its row leaves open filled in, and the columns that were filled by assumption.

    What the framework's own files say counts as known. One that no stack stands for runs as the default stack does.
    """
    strange: tuple[str, ...] = ()
    try:
        known: dict[str, Any] = dict(framework(run.framework).get("unstated", {}))
    except Unpredictable:
        run, known, strange = replace(run, framework=""), {}, ("framework",)
    facts = {name: value for name, value in known.items() if getattr(run, name) is None}
    run = replace(run, **facts)
    usual = package_data(_UNSTATED)
    taken: dict[str, Any] = {
        name: _precision(run, entry["order"]) if name == "precision" else entry["value"]
        for name, entry in usual.items()
        if getattr(run, name) is None
    }
    return replace(run, **taken), (*strange, *taken)


def _precision(run: MeasuredRun, order: list[str]) -> str:
    """The first in which every chip has a peak; the last where there is none."""
    chips = [load_chip(name) for name, _ in run.chips]
    return next((name for name in order if all(getattr(chip.peak_tflops, name) for chip in chips)), order[-1])


def placed_replicas(run: MeasuredRun) -> PlacedReplicas:
    """The problem and the plan of a run on several chip types, its constants as documented.

    Raises:
        Unpredictable: when its layout is beyond the cost model.
    """
    run, assumed = stated(run)
    known = framework(run.framework)
    run = with_recipe(_without_ends(run), known)
    chips = {chip.name: (chip, count) for chip, count in _chips(run, known)}
    problem = problem_of(run, known, chips)
    plan = strategy_of(run, next(iter(chips)), known, problem)
    called = {name: chip for (name, _), chip in zip(run.chips, chips, strict=True)}
    stages = tuple(tuple(StageDevices(called[name], tp) for name, tp in stage) for stage in _stages(run))
    return PlacedReplicas(problem, mixed_replicas(_by_stage(plan), stages), assumed)


def _without_ends(run: MeasuredRun) -> MeasuredRun:
    """The run with layers of its stages that count neither embedding nor head."""
    split = run.layers_per_stage
    if split is None or sum(split) != (run.layers or 0) + _ENDS:
        return run
    counts = list(split)
    counts[0] -= 1
    counts[-1] -= 1
    if min(counts) < 0:
        raise Unpredictable(
            say("a stage at an end has no layer to count for the embedding or the head"), "layers_per_stage"
        )
    return replace(run, layers_per_stage=tuple(counts))


def _chips(run: MeasuredRun, known: Mapping[str, Any]) -> Iterator[tuple[Chip, int]]:
    """The chips by their names in the catalogue, with the network and links of the run's hosts, and their numbers."""
    for name, count in run.chips:
        chip = load_chip(known.get("chips", {}).get(name, name))
        node = run.gpus_per_node or 8
        host = known.get("hosts", {}).get(chip.name, {})
        port = host.get("network_gbit_s")
        usual = None if port is None else port / node
        chip = with_network(chip, run.internode_gbps_per_gpu or usual)
        bus = host.get("all_reduce_gb_s", {}).get(node)
        yield chip if bus is None else _with_fabric(chip, bus, host["half_payload_mib"]), count


def _with_fabric(chip: Chip, bus_gb_s: float, half_mib: float) -> Chip:
    """The chip between whose neighbours collectives reach so much, GB/s, and half of it with such a payload."""
    fabric = chip.scale_up.model_copy(update={"bandwidth_gb_s": bus_gb_s, "peer_bandwidth_gb_s": bus_gb_s})
    reached = Efficiency(value=1.0, confidence="secondary", source="the bandwidth is what collectives reach")
    half = {"collective_half_payload_mib": reached.model_copy(update={"value": half_mib})}
    efficiency = {**chip.efficiency, **dict.fromkeys(_COLLECTIVES, reached), **half}
    return chip.model_copy(update={"scale_up": fabric, "efficiency": efficiency})


def _stages(run: MeasuredRun) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Of every stage its replicas: as the row says, else ranks in the order of the nodes, tp fastest, pp slowest."""
    if run.stages is not None:
        return run.stages
    tp, pp, width = run.tp or 1, run.pp or 1, (run.tp or 1) * (run.cp or 1)
    ranks = list(chain.from_iterable([name] * count for name, count in run.chips))
    blocks = [ranks[start : start + width] for start in range(0, len(ranks), width)]
    if any(len(set(block)) > 1 for block in blocks):
        raise Unpredictable(say("tensor-parallel groups of several chip types: the cost model has one in each"), "tp")
    replicas = len(blocks) // pp
    return tuple(tuple((blocks[stage * replicas + each][0], tp) for each in range(replicas)) for stage in range(pp))


def _by_stage(plan: Strategy) -> Strategy:
    """The plan with a group for each stage."""
    groups = (
        replace(group, layers=(layers,), recompute_layers=(amount,))
        for group in plan.groups
        for layers, amount in zip(group.layers, group.stage_recompute_layers, strict=True)
    )
    return replace(plan, groups=tuple(groups))


def predict_mixed(run: MeasuredRun) -> Prediction:
    """As `validation.predict` for a run on several chip types; no rule is asked, for no plan of a search is like it.

    Raises:
        Unpredictable: when the run's layout is beyond the cost model.
    """
    placed = placed_replicas(run)
    problem = placed.problem.with_constants(load_calibration())
    found = evaluate_replicas(problem, placed.plan)
    low, high = replicas_interval(problem, placed.plan, found.step_time_s, placed.assumed)
    stages = [stage for kind in found.kinds for stage in kind.stages]
    memory = in_terms_of(run.peak_mem_kind, [stage.memory for stage in stages])
    architectures = dict.fromkeys(each.chip.architecture or each.name for each in problem.supplies)
    return Prediction(
        step_time_s=found.step_time_s,
        low_s=low,
        high_s=high,
        memory_gib=bytes_to_gib(memory),
        memory_with_margin_gib=bytes_to_gib(memory / (1.0 - problem.memory_margin)),
        breakdown_s=dict(found.breakdown_s),
        stack=problem.stack.name,
        architecture=" and ".join(architectures),
        assumed=placed.assumed,
    )
