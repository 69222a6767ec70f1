"""What a strategy gives: seconds and bytes with a breakdown that sums to the total. Independent of the solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from cpsolver.cost import both_ways, memory, states, whole_matrices
from cpsolver.cost.kinds import counts_before, kind_shares, later_counts_before
from cpsolver.cost.memory import StageBytes, StageParameters
from cpsolver.cost.model_flops import model_flops_per_step
from cpsolver.cost.modules import Modules, incidence
from cpsolver.cost.pipeline_events import closed_form_s, runs_beside
from cpsolver.cost.schedules import SCHEDULES, form_of, found_by_events, runs_events
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.cost.stage import ChipTimes, Pipelines, StageSeconds, stage_seconds
from cpsolver.cost.step_form import PipelineSizes, StepForm
from cpsolver.cost.stored import Stored
from cpsolver.cost.tables import MemoryTable, memory_table, time_table
from cpsolver.evaluation.evaluation import PARTS, Evaluation, StageEvaluation
from cpsolver.evaluation.timeline import makespan_by_size_s, makespan_s
from cpsolver.plans.folding import Folded, folded
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.switches import DTYPES

LayerBytes: TypeAlias = tuple[Stored, float, float]
"""What a layer keeps of a microbatch, its checkpoint, and what replaying modules takes once: bytes."""


def evaluate(
    problem: Problem,
    strategy: Strategy,
    memory_bytes: list[StageBytes] | None = None,
    by_formula: bool = False,
    times: ChipTimes | None = None,
) -> Evaluation:
    """Predict a structurally sound strategy (see rules.structure); whether it fits in memory is for the rules to say.

    Step time: the pipeline, then the slowest stage's exposed data-parallel communication and optimizer step. The
    pipeline's schedule is run event by event, where that says more than its closed form, unless `by_formula` asks for
    that alone, which is quicker: on one chip type the longest of some chains of passes (a `StepForm`, never above the
    events); over several (m - 1/vpp) * slowest stage + sum of stages / vpp, too much by `pipeline_events.most_excess`
    at most.
    Microbatches of different sizes have no such formula: their schedule is run event by event, and a stage charged
    with its transfers as with equal ones.
    `memory_bytes` spares the work where `stage_memory` is known, and `times` where `chip_times` are. Devices that the
    plan leaves idle count for nothing. Plans of BOTH_WAYS are judged folded, as all below are (plans/folding.py).
    """
    if strategy.both_ways:
        half = None if memory_bytes is None else memory_bytes[: strategy.pp // 2]
        told = evaluate(problem, folded(strategy), half, by_formula, times)
        return replace(told, stages=tuple(_both_ways(strategy, told.stages)))
    problem = problem.of_size(strategy.devices)
    stages = stage_evaluations(problem, strategy, memory_bytes, times)
    m = strategy.microbatches(problem.batch)
    last = max(stages, key=lambda stage: stage.after_s)
    pipeline = _pipeline_by_size(stages) if strategy.dynamic else _pipeline_s(problem, strategy, stages, m)
    after = {"data_parallel": last.data_parallel_s, "optimizer": last.optimizer_s}
    formula = sum({**pipeline, **after}.values())
    if runs_events(problem, strategy.schedule) and not strategy.dynamic and not by_formula:
        pipeline = _by_events(problem, strategy, stages, m, pipeline)
    breakdown = {**pipeline, **after}
    step = sum(breakdown.values())
    tokens = problem.useful_tokens
    chips, precision = (problem.supply(name).chip for name in strategy.stage_chips), problem.spec.training.precision
    peak = sum(chip.peak_flops(DTYPES[precision]) * width for chip, width in zip(chips, strategy.widths, strict=True))
    return Evaluation(
        step_time_s=step,
        formula_s=formula,
        tokens_per_s=tokens / step,
        tokens_per_s_per_gpu=tokens / step / problem.num_gpus,
        mfu=model_flops_per_step(problem) / (step * peak),
        breakdown_s=breakdown,
        stages=tuple(stages),
    )


def step_by_formula_s(problem: Problem, strategy: Strategy, times: ChipTimes | None = None) -> float:
    """`Evaluation.formula_s` alone, which takes a fraction: of equal microbatches; `times` as in `evaluate`."""
    strategy, problem = folded(strategy), problem.of_size(strategy.devices)
    seconds = _seconds(problem, strategy, times or chip_times(problem, strategy))
    work = sum(getattr(seconds, name)[0] for name in PARTS[:5])
    m, after = strategy.microbatches(problem.batch), (seconds.data_parallel + seconds.optimizer).max()
    parts = np.array([work, *(getattr(seconds, name)[0] for name in ("forward", "weight_gradients", *_LATER))])
    parts[1] += seconds.pipeline_p2p[0] / 2
    form = _step_form(problem, strategy, parts, m)
    return float(after + (closed_form_s(work, m, strategy.vpp) if form is None else form.step_s(parts)))


def slowest_stage(problem: Problem, strategy: Strategy, stages: Sequence[StageEvaluation], microbatches: int) -> int:
    """The stage whose seconds a step's breakdown tells: the slowest, or with most work where microbatches differ."""
    if strategy.both_ways:
        return slowest_stage(problem, folded(strategy), _of_half(stages), microbatches // 2)
    if strategy.dynamic:
        return _slowest_by_size(stages)
    form = _step_form(problem, strategy, parts := _step_parts(stages), microbatches)
    if form is not None:
        return form.slowest(parts)
    return int(np.argmax([stage.microbatch_s for stage in stages]))


def _step_form(problem: Problem, strategy: Strategy, parts: Floats, microbatches: int) -> StepForm | None:
    """What a step takes, where that is not 1F1B's formula: complete, where the schedule is not run event by event;
    `parts` as `_step_parts` has them."""
    sizes = PipelineSizes(strategy.pp, strategy.vpp, microbatches, strategy.expert_overlap)
    form = form_of(problem, SCHEDULES[strategy.schedule], sizes)
    if form is None or runs_events(problem, strategy.schedule):
        return form
    return form.completed(parts) or form


def _step_parts(stages: Sequence[StageEvaluation]) -> Floats:
    """What a `StepForm` asks of the stages; of transfers half goes with forward, half with B."""
    names = ("microbatch_s", *(f"{name}_s" for name in ("forward", "weight_gradients", *_LATER)))
    parts = np.array([[getattr(stage, name) for stage in stages] for name in names])
    parts[1] += [stage.pipeline_p2p_s / 2 for stage in stages]
    return parts


def _pipeline_s(problem: Problem, strategy: Strategy, stages: list[StageEvaluation], m: int) -> dict[str, float]:
    """The pipeline's seconds by part, as the slowest stage spends them."""
    slowest = stages[slowest_stage(problem, strategy, stages, m)]
    parts = {name: m * getattr(slowest, f"{name}_s") for name in PARTS[:5]}
    form = _step_form(problem, strategy, of_stages := _step_parts(stages), m)
    if form is not None:
        return {**parts, "bubble": max(0.0, form.step_s(of_stages) - m * slowest.microbatch_s)}
    times = np.array([stage.microbatch_s for stage in stages])
    return {**parts, "bubble": closed_form_s(times, m, strategy.vpp) - m * slowest.microbatch_s}


def _by_events(
    problem: Problem, strategy: Strategy, stages: list[StageEvaluation], m: int, by_formula: dict[str, float]
) -> dict[str, float]:
    """The same by the schedule run event by event, where that can be: with the slowest stage's true idle time.

    No step is shorter than its StepForm, though many microbatches told from fewer may look so.
    """
    makespan = makespan_s(strategy, stages, m)
    if makespan is None:
        return by_formula
    idle = makespan - m * stages[slowest_stage(problem, strategy, stages, m)].microbatch_s
    least = by_formula["bubble"] if found_by_events(problem, strategy.schedule) else 0.0
    return {**by_formula, "bubble": max(least, idle)}


def _pipeline_by_size(stages: list[StageEvaluation]) -> dict[str, float]:
    """The same where microbatches differ in size, as the stage with most work spends them."""
    busiest = stages[_slowest_by_size(stages)]
    parts = {name: sum(getattr(stage, f"{name}_s") for stage in busiest.sized) for name in PARTS[:5]}
    idle = makespan_by_size_s(stages) - _work_by_size_s(busiest)
    return {**parts, "bubble": max(0.0, idle)}


def _slowest_by_size(stages: Sequence[StageEvaluation]) -> int:
    """The stage with most work where microbatches differ in size."""
    return int(np.argmax([_work_by_size_s(stage) for stage in stages]))


def _work_by_size_s(stage: StageEvaluation) -> float:
    return sum(of_one.microbatch_s for of_one in stage.sized)


def stage_evaluations(
    problem: Problem,
    strategy: Strategy,
    memory_bytes: list[StageBytes] | None = None,
    times: ChipTimes | None = None,
) -> list[StageEvaluation]:
    """Every stage on its own, first to last; `times` as in `evaluate`."""
    if strategy.both_ways:
        half = None if memory_bytes is None else memory_bytes[: strategy.pp // 2]
        return _both_ways(strategy, stage_evaluations(problem, folded(strategy), half, times))
    bytes_needed = memory_bytes or stage_memory(problem, strategy)
    if strategy.dynamic:
        return _stages_by_size(problem, strategy, bytes_needed)
    seconds = _seconds(problem, strategy, times or chip_times(problem, strategy))
    return [
        StageEvaluation(
            chip=chip,
            layers=strategy.layers[index],
            recompute=strategy.recompute[index],
            recompute_layers=strategy.recompute_layers[index],
            memory=bytes_needed[index],
            capacity_bytes=problem.capacity_bytes(problem.supply(chip).chip),
            recompute_modules=strategy.recompute_modules[index],
            **{f"{part}_s": column[0, index].item() for part, column in vars(seconds).items()},
        )
        for index, chip in enumerate(strategy.stage_chips)
    ]


def chip_times(problem: Problem, strategy: Strategy) -> ChipTimes:
    """Times of the plan's chip types: the same for all plans of its degrees on these types, however their stages share
    layers and recompute; not for microbatches of several sizes.
    """
    strategy = folded(strategy)
    rows, _ = _rows(problem := problem.of_size(strategy.devices), strategy)
    supplies = [problem.supply(chip) for chip in dict.fromkeys(strategy.stage_chips)]
    return ChipTimes.of(problem, supplies, rows, [time_table(problem, supply, rows) for supply in supplies])


def _seconds(problem: Problem, strategy: Strategy, tables: ChipTimes) -> StageSeconds:
    """Seconds of every stage, arrays (1, pp)."""
    (_, row), used = _rows(problem, strategy), list(dict.fromkeys(strategy.stage_chips))
    chips = np.array([[used.index(chip) for chip in strategy.stage_chips]])
    stages = Pipelines(tables, row[None], chips)
    kinds, later = (each[:, None, :] for each in (stage_kinds(problem, strategy), _later_kinds(problem, strategy)))
    modules = [tables.time.modules[chip, :, at] for chip, at in zip(chips[0], row, strict=True)]
    recomputed, modules_s = _recomputation(strategy, modules)
    return stage_seconds(stages, np.array([strategy.layers]), recomputed, modules_s, kinds, later)


def _rows(problem: Problem, strategy: Strategy) -> tuple[Candidates, Ints]:
    """The plan as rows, one for each mesh of its stages, and each stage's row, (pp,)."""
    by_stage = strategy.stage_meshes
    meshes = list(dict.fromkeys(by_stage))
    rows = [Candidates.one(strategy.of(mesh), problem.batch) for mesh in meshes]
    return Candidates.joined(rows), np.array([meshes.index(mesh) for mesh in by_stage])


def _both_ways(strategy: Strategy, of_pairs: Sequence[StageEvaluation]) -> list[StageEvaluation]:
    """The stages of a plan of BOTH_WAYS from those of its folded one, whose two chunks the devices of a stage serve.

    They run half of the microbatches through each, so that of all one takes half of both. What is the second chunk of a
    device on the way in is the first on the way out.
    """
    pairs = [*of_pairs, *map(_other_way_round, reversed(of_pairs))]
    return [
        replace(pair, **{name: getattr(pair, name) / 2 for name in _OF_A_MICROBATCH}, layers=strategy.layers[index])
        for index, pair in enumerate(pairs)
    ]


def _other_way_round(pair: StageEvaluation) -> StageEvaluation:
    before_s = pair.pipeline_p2p_s - pair.to_next_s
    return replace(pair, to_next_s=before_s, **{f"{name}_s": -getattr(pair, f"{name}_s") for name in _LATER})


def _of_half(stages: Sequence[StageEvaluation]) -> list[StageEvaluation]:
    """The stages of the folded plan again, as far as times go."""
    half = stages[: len(stages) // 2]
    return [replace(stage, **{name: 2 * getattr(stage, name) for name in _OF_A_MICROBATCH}) for stage in half]


_LATER = ("later", "later_forward", "later_weight_gradients")
_OF_A_MICROBATCH = tuple(f"{name}_s" for name in (*PARTS[:5], "forward", "weight_gradients", "to_next", *_LATER))
"""Seconds of StageEvaluation that count for each microbatch."""


def _recomputation(strategy: Strategy, modules: list[Floats]) -> tuple[Ints, Floats]:
    """Layers that each stage recomputes, and seconds that recomputed modules add to each of its layers: (1, pp).

    `modules`: seconds of each of MODULES on each stage's chip.
    """
    layers, modules_s = np.zeros((1, strategy.pp), dtype=np.int64), np.zeros((1, strategy.pp))
    for index, kind in enumerate(strategy.recompute):
        if kind == "selective":
            modules_s[0, index] = incidence((strategy.recompute_modules[index],))[0] @ modules[index]
        elif kind == "uniform":
            layers[0, index] = _places(strategy, index)
        elif kind == "block":
            layers[0, index] = min(_places(strategy, index), strategy.vpp * strategy.recompute_layers[index])
    return layers, modules_s


def _stages_by_size(problem: Problem, strategy: Strategy, memory_bytes: list[StageBytes]) -> list[StageEvaluation]:
    """Every stage with microbatches of the mean size, and with each one's own in `sized`."""
    sizes = set(strategy.micro_batches) | {strategy.mbs}
    of_one_size = {size: replace(strategy, mbs=size, micro_batches=()) for size in sizes}
    stages = {size: stage_evaluations(problem, plan, memory_bytes) for size, plan in of_one_size.items()}
    sized = [tuple(stages[size][index] for size in strategy.micro_batches) for index in range(strategy.pp)]
    return [replace(stage, sized=by_size) for stage, by_size in zip(stages[strategy.mbs], sized, strict=True)]


def stage_memory(problem: Problem, strategy: Strategy) -> list[StageBytes]:
    """Bytes per device of every stage, first to last."""
    if strategy.both_ways:
        of_pairs = stage_memory(problem, folded(strategy))
        return [*of_pairs, *reversed(of_pairs)]
    largest = max(strategy.micro_batches, default=strategy.mbs)  # buffers are made for it
    (rows, row), stack = _rows(problem, replace(strategy, mbs=largest)), problem.stack
    table = memory_table(problem, rows)
    trained, in_all = memory.trained_and_held(problem, rows, states.held(problem).weight)
    in_buffers = whole_matrices.buffers(problem, rows, trained)
    dense, routed = _held(problem, strategy, in_buffers.held, row)
    weights, expert_weights = (dense, routed) if problem.lora is None else _held(problem, strategy, in_all, row)
    beside = _beside_elements(problem, strategy, rows, row, in_buffers)
    state = states.state_bytes(problem, rows, rows.shards)
    expert = states.state_bytes(problem, rows, rows.expert_shards)
    in_flight = _activations(problem, strategy, table, row)
    stages = []
    for index, at in enumerate(row.tolist()):
        whole_device = problem.supply(strategy.stage_chips[index]).chip.memory_capacity_bytes
        held, experts, activations = dense[index], routed[index], in_flight[index]
        last = index == strategy.head_stage
        buffers = (table.last_buffer if last else table.buffer)[at] + (index == 0) * table.first_buffer[at]
        activations = activations + (index == 0) * table.first_stored[at]
        frozen = (index == 0) * in_buffers.held.frozen[at]
        needed = StageBytes(
            weights=float((weights[index] + frozen) * state.weight[at] + expert_weights[index] * expert.weight[at]),
            gradients=float(held * state.gradient[at] + experts * expert.gradient[at]),
            optimizer=float(held * state.optimizer[at] + experts * expert.optimizer[at] + beside[index]),
            activations=float(activations),
            buffers=float(buffers),
            fragments=float((activations + buffers) * table.overhead),
            framework=table.fixed,
        )
        cached = float((activations + buffers) * stack.cached_share + stack.cached_bytes)
        stages.append(replace(needed, cached=max(0.0, min(cached, whole_device - needed.total))))
    return stages


def _beside_elements(
    problem: Problem, strategy: Strategy, rows: Candidates, row: Ints, in_buffers: whole_matrices.Buffers
) -> Floats:
    """Bytes of optimizer state that a device of each stage has more, or less, for matrices taken whole: (pp,)."""
    if in_buffers.matrices is None:
        return np.zeros(strategy.pp)
    ranks = (rows.shards, rows.expert_shards)
    dense, routed = _held(problem, strategy, in_buffers.matrices, row)
    of_dense, of_routed = (states.saved_bytes(problem, rows, each)[row] for each in ranks)
    more = -dense * of_dense - routed * of_routed
    if in_buffers.factors is not None:
        dense, routed = _held(problem, strategy, in_buffers.factors, row)
        of_dense, of_routed = (states.factor_bytes(rows, each)[row] for each in ranks)
        more = more + dense * of_dense + routed * of_routed
    return np.asarray(more)


def _activations(problem: Problem, strategy: Strategy, largest: MemoryTable, row: Ints) -> list[float]:
    """Bytes of activations at every stage's peak; `largest`: the table of the largest microbatch, `row`: each stage's.

    Of microbatches that differ in size those in flight together are neighbours in the order, so the peak is the worst
    run of that many, with the largest one's layers at work.
    """
    schedule = SCHEDULES[strategy.schedule]
    live = schedule.live_chunks(problem, strategy.pp, strategy.vpp, strategy.microbatches(problem.batch))
    beside = strategy.expert_overlap & runs_beside(live, strategy.vpp * strategy.microbatches(problem.batch))
    if not strategy.dynamic:
        layers = list(zip(strategy.recompute_modules, row.tolist(), strict=True))
        kept = {own: _layer_bytes(largest, *own) for own in set(layers)}
        held = [
            _held_activations(strategy, index, kept[own], live[index], beside[index])
            for index, own in enumerate(layers)
        ]
        held[strategy.head_stage] += float(largest.last_chunk[row[0]]) * _places(strategy, 0) / strategy.vpp
        return _of_either_stage(problem, strategy, largest, held) if isinstance(strategy, Folded) else held
    tables = {
        size: memory_table(problem, Candidates.one(replace(strategy, mbs=size), problem.batch))
        for size in set(strategy.micro_batches)
    }
    peaks = []
    for index, modules in enumerate(strategy.recompute_modules):
        at_work = _held_activations(strategy, index, _layer_bytes(largest, modules), 0, beside[index])
        sized = {}
        for size, table in tables.items():
            own = _layer_bytes(table, modules)
            sized[size] = _held_activations(strategy, index, own, 1) - _held_activations(strategy, index, own, 0)
        before = np.cumsum([0.0, *(sized[size] for size in strategy.micro_batches)])
        peaks.append(at_work + float((before[live[index] :] - before[: -live[index]]).max()))
    return peaks


def _of_either_stage(problem: Problem, strategy: Folded, table: MemoryTable, held: list[float]) -> list[float]:
    """Activations of BOTH_WAYS, where both stages count as if all their layers were of the kind that keeps most: less
    what others keep less, and what the head keeps none of in the places of layers (cost/both_ways.py)."""
    before, end = both_ways.sorts_before(problem.model, strategy.short), np.cumsum(strategy.chunks)
    layers, live = before[:, :, end] - before[:, :, end - strategy.chunks], both_ways.in_flight(strategy.pp)
    for index, kind in enumerate(strategy.recompute):
        if kind in ("none", "selective"):
            sets, one = (strategy.recompute_modules[index],), np.zeros(1, dtype=np.int64)
            less = both_ways.stored_less(table, problem.model, sets, one)[:, 0, 0]
            held[index] -= float(both_ways.spared(less, layers[:, :, index], live[:, index]))
            held[index] -= (index == 0) * strategy.short * float(table.stored(sets, one).most[0, 0])
    return held


def _layer_bytes(table: MemoryTable, modules: Modules, row: int = 0) -> LayerBytes:
    """What a layer keeps with some modules recomputed, its checkpoint, and what replaying these takes: bytes."""
    stored = table.stored((modules,), [row]).at((0, 0))
    return stored, float(table.checkpoint[row]), float(table.replayed((modules,), [row])[0, 0])


def _held_activations(strategy: Strategy, index: int, kept: LayerBytes, live: int, beside: bool = False) -> float:
    """Bytes of that many chunks' forward passes on a stage, and of layers at work (`beside`: `activation_bytes`)."""
    stored, checkpoint, replayed = kept
    bytes_held = memory.activation_bytes(
        (stored, stored, checkpoint),
        np.asarray(live),
        np.array(_places(strategy, index) / strategy.vpp),
        strategy.recompute[index],
        np.array(strategy.recompute_layers[index]),
        replayed,
        beside,
    )
    return float(bytes_held)


def stage_parameters(problem: Problem, strategy: Strategy) -> list[float]:
    """Parameters that one device of each stage holds, first to last, vocabulary padded."""
    if strategy.both_ways:
        of_pairs = stage_parameters(problem, folded(strategy))
        return [*of_pairs, *reversed(of_pairs)]
    rows, row = _rows(problem, strategy)
    dense, experts = _held(problem, strategy, memory.stage_parameters(problem, rows), row)
    dense[0] += memory.stage_parameters(problem, rows).frozen[row[0]]
    return [float(count) for count in dense + experts]


def _held(problem: Problem, strategy: Strategy, parts: StageParameters, row: Ints) -> tuple[Floats, Floats]:
    """Parameters that one device of each stage holds: without routed experts, and of these; one entry a stage.

    `row`: of each stage in `parts`.
    """
    layers, kinds = np.array(strategy.layers), stage_kinds(problem, strategy)
    dense = layers * parts.layer[row] + (parts.kind_layer[:, row] * kinds).sum(axis=0)
    experts = layers * parts.experts[row] + (parts.kind_experts[:, row] * kinds).sum(axis=0)
    dense[0] += parts.first[row[0]] + parts.encoder[row[0]]
    dense[strategy.head_stage] += parts.last[row[-1]]
    experts[strategy.head_stage] += parts.last_experts[row[-1]]
    return dense, experts


def _places(strategy: Strategy, index: int) -> int:
    """A stage's layers, and the embedding or the head where it stands in the place of one."""
    return strategy.layers[index] + strategy.slots_on(index)


def stage_kinds(problem: Problem, strategy: Strategy) -> Floats:
    """Layers of each kind on each stage, shape (kinds, pp); the mean's share where chunks are of unequal length."""
    model, vpp = problem.model, strategy.vpp
    places = np.array([_places(strategy, index) for index in range(strategy.pp)])
    if np.any(places % vpp):
        return np.asarray(np.multiply.outer(np.array(kind_shares(model)), np.array(strategy.layers)))
    return _between(counts_before(model, vpp, *strategy.slots, v_shaped=strategy.v_shaped), places // vpp)


def _later_kinds(problem: Problem, strategy: Strategy) -> Floats:
    """Of a V: how many more layers of each kind the second chunk of every stage has than the first, (kinds, pp)."""
    places = np.array([_places(strategy, index) for index in range(strategy.pp)])
    if not strategy.v_shaped or np.any(places % strategy.vpp):
        return np.zeros((len(kind_shares(problem.model)), strategy.pp))
    return _between(later_counts_before(problem.model, strategy.slots), places // strategy.vpp)


def _between(counts: Ints, chunks: Ints) -> Floats:
    """Counts of stages with chunks of so many places, (kinds, pp), from those before every place."""
    ends = chunks.cumsum()
    return np.asarray(counts[:, ends] - counts[:, ends - chunks], dtype=np.float64)
