"""What a strategy gives: seconds and bytes with a breakdown that sums to the total. Independent of the solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cpsolver.cost import breadth_first, memory, states
from cpsolver.cost.collectives import fast_domain
from cpsolver.cost.compute import model_flops_per_step
from cpsolver.cost.kinds import counts_before, kind_shares
from cpsolver.cost.memory import StageBytes, StageParameters
from cpsolver.cost.modules import incidence
from cpsolver.cost.schedule import closed_form_s, peak_live_total
from cpsolver.cost.shard import Candidates, Floats
from cpsolver.cost.tables import MemoryTable, TimeTable, crosses_domain, memory_table, time_table
from cpsolver.evaluation.evaluation import PARTS as PARTS
from cpsolver.evaluation.evaluation import Evaluation as Evaluation
from cpsolver.evaluation.evaluation import StageEvaluation as StageEvaluation
from cpsolver.evaluation.timeline import plan_timeline
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem


def evaluate(problem: Problem, strategy: Strategy, memory_bytes: list[StageBytes] | None = None) -> Evaluation:
    """Predict a structurally sound strategy (see rules.structure); whether it fits in memory is for the rules to say.

    Step time: (m - 1/vpp) * slowest stage + sum of stages / vpp, then the slowest stage's exposed data-parallel
    communication and optimizer step. A zero-bubble schedule fills part of the bubble with weight gradients.
    Microbatches of different sizes have no such formula: their schedule is run event by event, which charges a stage
    with transfers only while it waits for them, so they compare with `timeline.simulated_step_s` of equal ones.
    `memory_bytes` spares the work where `stage_memory` is known. Devices that the plan leaves idle count for nothing.
    """
    problem = problem.of_size(strategy.devices)
    stages = stage_evaluations(problem, strategy, memory_bytes)
    m = strategy.microbatches(problem.batch)
    last = max(stages, key=lambda stage: stage.after_s)
    breakdown = {
        **(_pipeline_by_size(strategy, stages) if strategy.dynamic else _pipeline_s(strategy, stages, m)),
        "data_parallel": last.data_parallel_s,
        "optimizer": last.optimizer_s,
    }
    step = sum(breakdown.values())
    tokens = problem.batch * problem.sequence
    peak = sum(
        problem.supply(chip).chip.peak_flops(problem.spec.training.precision) * strategy.stage_devices
        for chip in strategy.stage_chips
    )
    return Evaluation(
        step_time_s=step,
        tokens_per_s=tokens / step,
        tokens_per_s_per_gpu=tokens / step / problem.num_gpus,
        mfu=model_flops_per_step(problem) / (step * peak),
        breakdown_s=breakdown,
        stages=tuple(stages),
    )


def _pipeline_s(strategy: Strategy, stages: list[StageEvaluation], m: int) -> dict[str, float]:
    """The pipeline's seconds by part, as the slowest stage spends them."""
    times = np.array([stage.microbatch_s for stage in stages])
    slowest = stages[int(times.argmax())]
    bubble = closed_form_s(times, m, strategy.vpp) - m * slowest.microbatch_s
    parts = {name: m * getattr(slowest, f"{name}_s") for name in PARTS[:5]}
    return {**parts, "bubble": bubble * _bubble_left(strategy, slowest)}


def _pipeline_by_size(strategy: Strategy, stages: list[StageEvaluation]) -> dict[str, float]:
    """The same where microbatches differ in size, as the stage with most work spends them.

    Of its idle time as much is put down to transfers as they take, at most all of it; the rest is the bubble.
    """
    idle = plan_timeline(strategy, stages, len(strategy.micro_batches)).idle_s
    busiest = stages[int(idle.argmin())]
    parts = {name: sum(getattr(each, f"{name}_s") for each in busiest.sized) for name in PARTS[:5]}
    transfers = min(float(idle.min()), parts["pipeline_p2p"])
    return {**parts, "pipeline_p2p": transfers, "bubble": float(idle.min()) - transfers}


def _bubble_left(strategy: Strategy, stage: StageEvaluation) -> float:
    """Share of the 1F1B bubble that the schedule leaves, with backward split evenly in two (arXiv:2401.10241, 2.2).

    Of F + B + W a stage waits, F + B - W are left with the memory of 1F1B, and F + B - 2 W with twice that.
    """
    if strategy.schedule in ("1f1b", "breadth_first"):
        return 1.0
    half = stage.backward_s / 2.0
    fills = {"zb1p": 1.0, "zb2p": 2.0}[strategy.schedule]
    return max(0.0, stage.forward_s + half - fills * half) / (stage.forward_s + 2 * half)


def stage_evaluations(
    problem: Problem, strategy: Strategy, memory_bytes: list[StageBytes] | None = None
) -> list[StageEvaluation]:
    """Every stage on its own, first to last."""
    if strategy.dynamic:
        return _stages_by_size(problem, strategy, memory_bytes or stage_memory(problem, strategy))
    row = Candidates.one(strategy, problem.batch)
    chips = dict.fromkeys(strategy.stage_chips)
    tables = {chip: time_table(problem, problem.supply(chip), row) for chip in chips}
    bytes_needed = memory_bytes or stage_memory(problem, strategy)
    hops, kinds = _hops(problem, strategy, tables), stage_kinds(problem, strategy)
    stages = []
    for index, chip in enumerate(strategy.stage_chips):
        table, layers = tables[chip], strategy.layers[index]
        first, last = index == 0, index == strategy.pp - 1
        # In a layer's place in a chunk, the embedding or the head takes no less time than the layers of other chunks.
        starts = first * max(table.embedding[0], strategy.slots[0] * table.layer[0])
        ends = starts + last * max(table.head[0], strategy.slots[1] * table.layer[0])
        end_tp = (first + last) * table.end_tp[0] + last * table.mtp_tp[0]
        more = kinds[:, index] @ table.kind_layer[:, 0]
        tensor = layers * table.layer_tp[0] + kinds[:, index] @ table.kind_layer_tp[:, 0] + end_tp
        sync, update = _after_s(strategy, index, table)
        if strategy.schedule == "breadth_first" and strategy.vpp > 1:
            sync = breadth_first.sync_s(problem, strategy, index, problem.supply(chip), table)
        repeated = float(_recompute_s(strategy, index, table))
        stages.append(
            StageEvaluation(
                chip=chip,
                layers=layers,
                recompute=strategy.recompute[index],
                recompute_layers=strategy.recompute_layers[index],
                compute_s=float(layers * table.layer[0] + more + ends - tensor + strategy.vpp * table.chunk[0]),
                tensor_parallel_s=float(tensor),
                recompute_s=repeated,
                sharding_s=_sharding_s(problem, strategy, index, table, repeated),
                pipeline_p2p_s=hops[index],
                data_parallel_s=sync,
                optimizer_s=update,
                memory=bytes_needed[index],
                capacity_bytes=problem.capacity_bytes(problem.supply(chip).chip),
                # A recomputed layer runs its forward again; of embedding and head, forward is a third. What a kind
                # of layer takes more splits as the mean layer does.
                forward_s=float(
                    (layers + more / table.layer[0]) * table.recompute[0]
                    + ends / 3.0
                    + strategy.vpp * table.chunk[0] / 2.0
                ),
                recompute_modules=strategy.recompute_modules[index],
            )
        )
    return stages


def _stages_by_size(problem: Problem, strategy: Strategy, memory_bytes: list[StageBytes]) -> list[StageEvaluation]:
    """Every stage with microbatches of the mean size, and with each one's own in `sized`."""
    sizes = set(strategy.micro_batches) | {strategy.mbs}
    alike = {size: replace(strategy, mbs=size, micro_batches=()) for size in sizes}
    known = {size: stage_evaluations(problem, plan, memory_bytes) for size, plan in alike.items()}
    sized = [tuple(known[size][index] for size in strategy.micro_batches) for index in range(strategy.pp)]
    return [replace(stage, sized=each) for stage, each in zip(known[strategy.mbs], sized, strict=True)]


def _after_s(strategy: Strategy, index: int, table: TimeTable) -> tuple[float, float]:
    """Seconds of a stage once a step: exposed data-parallel communication, and the optimizer."""
    layers, first, last = strategy.layers[index], index == 0, index == strategy.pp - 1
    sync = layers * table.sync_layer[0] + table.sync_stage[0]
    sync += first * table.sync_first[0] + last * table.sync_last[0]
    update = layers * table.update_layer[0] + table.update_stage[0]
    update += first * table.update_first[0] + last * table.update_last[0]
    return float(sync), float(update)


def _recompute_s(strategy: Strategy, index: int, table: TimeTable) -> float:
    """Seconds a microbatch of recomputation: of the modules of every layer, of all layers, or of some."""
    kind, amount = strategy.recompute[index], strategy.recompute_layers[index]
    layers = _places(strategy, index)
    if kind == "selective":
        return layers * float(incidence((strategy.recompute_modules[index],))[0] @ table.modules[:, 0])
    if kind == "uniform":
        return layers * float(table.recompute[0])
    if kind == "block":
        return min(layers, strategy.vpp * amount) * float(table.recompute[0])
    return 0.0


def _sharding_s(problem: Problem, strategy: Strategy, index: int, table: TimeTable, repeated: float) -> float:
    """Seconds a microbatch of gathering sharded weights, twice, and sharing gradients out, that compute cannot hide.

    Weights come before a layer's forward, and again before its backward, whose recomputation uses them too.
    """
    layers, ends = strategy.layers[index], (index == 0) + (index == strategy.pp - 1)
    forward = layers * float(table.recompute[0])
    backward = max(0.0, layers * float(table.layer[0]) - forward + repeated)
    gather = layers * float(table.gather[0]) + ends / 2.0 * float(table.gather_ends[0])
    scatter = layers * float(table.scatter[0]) + ends / 2.0 * float(table.scatter_ends[0])
    share = float(problem.stack.sharding_overlap)
    hidden = min(gather, forward) + min(gather + scatter, backward)
    return 2 * gather + scatter - share * hidden


def _hops(problem: Problem, strategy: Strategy, tables: Mapping[str, TimeTable]) -> list[float]:
    """Seconds per microbatch that each stage spends on transfers from and to its neighbours.

    A transfer between chip types takes the slower end's time. Interleaving sends every chunk's activations, also
    from the last stage back to the first; part of that is hidden.
    """
    pp, vpp, width = strategy.pp, strategy.vpp, strategy.stage_devices
    if pp == 1:
        return [0.0]
    chips = strategy.stage_chips

    def link(stage: int, to: int) -> float:
        ends = [tables[chips[stage]], tables[chips[to]]]
        domain = fast_domain(problem, problem.supply(chips[stage]).chip)
        if chips[stage] != chips[to]:
            far = True
        elif to == stage + 1:
            far = bool(crosses_domain(np.array(stage), width, domain))
        else:
            far = pp * width > domain
        return max(float(table.hop_far[0] if far else table.hop_near[0]) for table in ends)

    links = [link(stage, stage + 1) for stage in range(pp - 1)]
    wrap = link(pp - 1, 0) * (vpp - 1)
    share = 1.0 if vpp == 1 else 1.0 - problem.stack.pipeline_overlap_interleaved
    share *= problem.stack.pipeline_transfers / 2.0
    into = [wrap, *(vpp * seconds for seconds in links)]
    out = [*(vpp * seconds for seconds in links), wrap]
    return [share * (a + b) for a, b in zip(into, out, strict=True)]


def stage_memory(problem: Problem, strategy: Strategy) -> list[StageBytes]:
    """Bytes per device of every stage, first to last."""
    largest = max(strategy.micro_batches, default=strategy.mbs)  # buffers are made for it
    row, stack = Candidates.one(replace(strategy, mbs=largest), problem.batch), problem.stack
    table = memory_table(problem, row)
    dense, routed = _held(problem, strategy, memory.stage_parameters(problem, row))
    state = states.state_bytes(problem, row, row.shards)
    expert = states.state_bytes(problem, row, row.expert_shards)
    in_flight = _activations(problem, strategy, table)
    stages = []
    for index in range(strategy.pp):
        whole_device = problem.supply(strategy.stage_chips[index]).chip.memory_capacity_bytes
        held, experts, activations = dense[index], routed[index], in_flight[index]
        buffers = (table.last_buffer if index == strategy.pp - 1 else table.buffer)[0]
        needed = StageBytes(
            weights=float(held * state.weight[0] + experts * expert.weight[0]),
            gradients=float(held * state.gradient[0] + experts * expert.gradient[0]),
            optimizer=float(held * state.optimizer[0] + experts * expert.optimizer[0]),
            activations=float(activations),
            buffers=float(buffers),
            fragments=float((activations + buffers) * table.overhead),
            framework=table.fixed,
        )
        cached = float((activations + buffers) * stack.cached_share + stack.cached_bytes)
        stages.append(replace(needed, cached=max(0.0, min(cached, whole_device - needed.total))))
    return stages


def _activations(problem: Problem, strategy: Strategy, largest: MemoryTable) -> list[float]:
    """Bytes of activations at every stage's peak; `largest`: the table of the largest microbatch.

    Of microbatches that differ in size those in flight together are neighbours in the order, so the peak is the worst
    run of that many, with the largest one's layers at work.
    """
    live = _live_chunks(problem, strategy)
    if not strategy.dynamic:
        return [_held_activations(strategy, index, largest, live[index]) for index in range(strategy.pp)]
    tables = {
        size: memory_table(problem, Candidates.one(replace(strategy, mbs=size), problem.batch))
        for size in set(strategy.micro_batches)
    }
    peaks = []
    for index in range(strategy.pp):
        at_work = _held_activations(strategy, index, largest, 0)
        one = {
            size: _held_activations(strategy, index, table, 1) - _held_activations(strategy, index, table, 0)
            for size, table in tables.items()
        }
        before = np.cumsum([0.0, *(one[size] for size in strategy.micro_batches)])
        peaks.append(at_work + float((before[live[index] :] - before[: -live[index]]).max()))
    return peaks


def _held_activations(strategy: Strategy, index: int, table: MemoryTable, live: int) -> float:
    """Bytes of that many chunks' forward passes on a stage, and of the layers at work."""
    chosen = (strategy.recompute_modules[index],)
    layer = (float(table.full[0]), float(table.kept(chosen, [0])[0, 0]), float(table.checkpoint[0]))
    bytes_held = memory.activation_bytes(
        layer,
        np.asarray(live),
        np.array(_places(strategy, index) / strategy.vpp),
        strategy.recompute[index],
        np.array(strategy.recompute_layers[index]),
        float(table.replayed(chosen, [0])[0, 0]),
    )
    return float(bytes_held)


def _live_chunks(problem: Problem, strategy: Strategy) -> np.ndarray:
    """Chunks' forward passes that each stage holds at its peak.

    Zero-bubble schedules keep what the weights' gradients need for longer than backward itself: taken as one
    microbatch more for each that the schedule puts off.
    """
    if strategy.schedule == "breadth_first":
        return breadth_first.live_chunks(problem, strategy)
    m = strategy.microbatches(problem.batch)
    live = peak_live_total(strategy.pp, strategy.vpp, m)
    later = {"1f1b": live, "zb1p": live + 1, "zb2p": 2 * live + 2}[strategy.schedule]
    return np.asarray(np.minimum(later, strategy.vpp * m))


def stage_parameters(problem: Problem, strategy: Strategy) -> list[float]:
    """Parameters that one device of each stage holds, first to last, vocabulary padded."""
    parts = memory.stage_parameters(problem, Candidates.one(strategy, problem.batch))
    dense, experts = _held(problem, strategy, parts)
    return [float(count) for count in dense + experts]


def _held(problem: Problem, strategy: Strategy, parts: StageParameters) -> tuple[Floats, Floats]:
    """Parameters that one device of each stage holds: without routed experts, and of these; one entry a stage."""
    layers, kinds = np.array(strategy.layers), stage_kinds(problem, strategy)
    dense = layers * parts.layer[0] + parts.kind_layer[:, 0] @ kinds
    experts = layers * parts.experts[0] + parts.kind_experts[:, 0] @ kinds
    dense[0] += parts.first[0]
    dense[-1] += parts.last[0]
    experts[-1] += parts.last_experts[0]
    return dense, experts


def _places(strategy: Strategy, index: int) -> int:
    """A stage's layers, and the embedding or the head where it stands in the place of one."""
    ends = (index == 0) * strategy.slots[0] + (index == strategy.pp - 1) * strategy.slots[1]
    return strategy.layers[index] + ends


def stage_kinds(problem: Problem, strategy: Strategy) -> Floats:
    """Layers of each kind on each stage, shape (kinds, pp); the mean's share where chunks are of unequal length."""
    model, vpp = problem.model, strategy.vpp
    places = np.array([_places(strategy, index) for index in range(strategy.pp)])
    if np.any(places % vpp):
        return np.asarray(np.multiply.outer(np.array(kind_shares(model)), np.array(strategy.layers)))
    counts, ends = counts_before(model, vpp, *strategy.slots), (places // vpp).cumsum()
    return np.asarray(counts[:, ends] - counts[:, ends - places // vpp], dtype=np.float64)
