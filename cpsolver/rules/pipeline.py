"""Rules on the pipeline: its depth, schedule, chunks, and the layers of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpsolver.cost.breadth_first import FOLD3D_STACK, runs_fold3d
from cpsolver.cost.schedules import SCHEDULES, V_CHUNKS, has_schedule, most_short, shares_table
from cpsolver.cost.split_backward import V_MICROBATCHES
from cpsolver.plans.strategy import BOTH_WAYS, ONE_GROUP, SEARCHED_SCHEDULES, V_SHAPED, Schedule, Strategy, chip_blocks
from cpsolver.problem.problem import Problem
from cpsolver.rules.base import listed, rule


@rule(
    "every layer is on one stage, and every chunk has one (or the embedding, or the head, in its place)",
    scope="structure",
)
def layers(problem: Problem, s: Strategy) -> Iterator[str]:
    if sum(s.layers) != problem.model.layers:
        yield f"the stages have {sum(s.layers)} layers in all, the model {problem.model.layers}"
    if s.v_shaped and s.vpp != V_CHUNKS:
        yield f"schedule {s.schedule} puts {V_CHUNKS} chunks on a stage: vpp is {s.vpp}"
        return
    if s.both_ways and (s.pp % 2 or s.vpp > 1):
        yield f"schedule {s.schedule} has two stages on each device: pp is {s.pp} and must be even, vpp {s.vpp} and 1"
        return
    for stage, count in enumerate(s.layers):
        if count + s.slots_on(stage) < s.vpp:
            yield f"stage {stage} has {count} layers for {s.vpp} chunks"


@rule(
    "the chunks of a stage have equally many layers, but that the last of all may be shorter",
    scope="structure",
    briefly=lambda p, _: f"vpp x pp chunks must hold the {p.model.layers} layers, all but the last of all full",
)
def even_chunks(problem: Problem, s: Strategy) -> Iterator[str]:
    """Uneven ones stall the interleaved schedule. In the first chunk of all the embedding may stand in the place of a
    layer, in the last the head, with any multi-token prediction, in the place of fewer than vpp: NVIDIA's layouts of
    DeepSeek-V3 and Kimi-K2 (Megatron-Bridge, recipes/deepseek/deepseek_v3.py) have 16 16 16 13 layers with vpp 4. Of
    stages placed as a V the first holds the last chunk; with both ways of DualPipe two stages are as two chunks.
    """
    if s.both_ways:
        yield from _pairs(problem, s)
        return
    for stage, count in enumerate(s.layers):
        if stage == s.head_stage:
            if s.slots[1] > s.chunks[stage]:
                full = f"{s.vpp - 1} chunks of {s.chunks[stage]}"
                yield f"stage {stage} has {count} layers for vpp {s.vpp}: fewer than {full}, and the head with the rest"
        elif (count + s.slots_on(stage)) % s.vpp:
            beside = ", nor with the embedding for one" if stage == 0 else ""
            yield f"stage {stage} has {count} layers, not a multiple of vpp {s.vpp}{beside}"


def _pairs(problem: Problem, s: Strategy) -> Iterator[str]:
    """Stages s and pp - 1 - s, of which a device runs half of the microbatches each: neither waits for the other where
    they take as long. What is in the last stage beside its layers stands in the place of a few (`most_short`)."""
    last, most = s.pp - 1, most_short(problem.model)
    kinds = list(zip(s.recompute, s.recompute_layers, s.recompute_modules, strict=True))
    for stage in range(s.pp // 2):
        one, other = s.layers[stage], s.layers[last - stage]
        if stage == 0 and not 0 <= one - other <= most:
            yield f"the last stage has {other} layers, and must have as many as the first, {one}, or up to {most} fewer"
        elif stage and one != other:
            yield f"stages {stage} and {last - stage} are on the same devices: {one} and {other} layers must be as many"
        if kinds[stage] != kinds[last - stage]:
            yield f"stages {stage} and {last - stage} are on the same devices, and must recompute alike"


@rule(
    "interleaving needs a pipeline, and microbatches of one size in whole groups of pp",
    scope="structure",
    briefly=lambda *_: "with vpp > 1 pp must be > 1 and divide the microbatches (global batch / mbs / dp)",
)
def interleaving(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron asks for pp <= N <= m and m % N = 0 or >= pp, with groups of N microbatches, when the schedule starts. N
    is pp here, the default; what is left over is then always less than pp. With one group of all (breadth_first) N is
    m, and Fold3D alone asks for whole groups all the same (AscendSpeed, get_forward_backward_func).
    """
    m, one_group = s.microbatches(problem.batch), s.schedule in ONE_GROUP
    if s.vpp > 1 and s.pp == 1:
        yield f"vpp {s.vpp} needs a pipeline, and pp is 1"
    elif s.vpp > 1 and s.dynamic:
        yield f"micro_batches of different sizes do not interleave: vpp is {s.vpp}, and must be 1"
    elif s.v_shaped:
        return
    elif s.vpp > 1 and one_group and m < s.pp:
        yield f"schedule {s.schedule}: {m} microbatches are fewer than pp {s.pp}"
    elif s.vpp > 1 and m % s.pp and (not one_group or runs_fold3d(problem)):
        yield f"vpp {s.vpp}: {m} microbatches are not a multiple of pp {s.pp}"


def _schedules_in_short(problem: Problem) -> str:
    whose = f"stack {problem.stack.name}" if problem.launcher is None else f"launcher {problem.launcher.name}"
    has = [name for name in SEARCHED_SCHEDULES if has_schedule(problem, name)]
    return f"of the schedules searched, {whose} has {', '.join(has)}; {_needs_in_short(has)}"


def _needs_in_short(has: Sequence[Schedule]) -> str:
    """What the schedules beside 1F1B need."""
    needs = ["zb1p and zb2p need pp > 1 and vpp 1"] * any(name in ("zb1p", "zb2p") for name in has)
    needs += [f"{name} needs pp > 1, vpp > 1 and pp microbatches" for name in has if name in ONE_GROUP]
    v_shaped = [name for name in has if name in V_SHAPED]
    if v_shaped:
        needs.append(f"{', '.join(v_shaped)}: pp > 1, vpp {V_CHUNKS}, {V_MICROBATCHES} pp microbatches, one chip type")
    for name in (each for each in has if each in BOTH_WAYS):
        sizes = f"an even pp, vpp 1, an even number of microbatches, {V_MICROBATCHES} pp at least"
        needs.append(f"{name} needs {sizes}, one chip type in the cluster")
    return "; ".join(needs) or "pins and bans leave none of them"


@rule(
    "each schedule beside 1F1B needs a pipeline that suits it, and a launcher or stack that has it",
    briefly=lambda p, _: _schedules_in_short(p),
)
def schedule(problem: Problem, s: Strategy) -> Iterator[str]:
    """Zero-bubble schedules do not interleave, a breadth-first one does; microbatches of different sizes are 1F1B's.

    DualPipe asserts its sizes when a step starts (deepseek-ai/DualPipe bb214e8, dualpipe.py, step).
    """
    needs = SCHEDULES[s.schedule]
    if s.dynamic:
        yield from _dynamic(problem, s)
    if problem.encoder is not None and (s.dynamic or s.schedule != "1f1b"):
        yield f"an encoder of images runs 1f1b with equal microbatches alone: schedule is {s.schedule}"
    if s.schedule == "1f1b":
        return
    if s.pp == 1:
        yield f"schedule {s.schedule} needs a pipeline, and pp is 1"
    if needs.interleaves and s.vpp == 1:
        yield f"schedule {s.schedule} interleaves: vpp is 1, and must be more"
    elif needs.interleaves is False and s.vpp > 1:
        yield f"schedule {s.schedule} does not interleave: vpp is {s.vpp}, and must be 1"
    if s.v_shaped:
        yield from _placed_as_v(problem, s)
    if s.both_ways:
        yield from _both_ways(problem, s)
    if problem.lora is not None and s.schedule in ("zb1p", "zb2p", "dualpipe", *V_SHAPED):
        yield f"schedule {s.schedule} fills its bubble with weights' gradients, which frozen layers do not have"
    launcher = problem.launcher
    if has_schedule(problem, s.schedule):
        return
    if launcher is not None:
        yield f"{launcher.name} has no schedule {s.schedule}: {listed(launcher.schedules)}"
    else:
        others = f", or stack {listed(needs.stacks)}" if needs.stacks else ""
        yield f"stack {problem.stack.name} has no schedule {s.schedule}: 1f1b{others}"


def _both_ways(problem: Problem, s: Strategy) -> Iterator[str]:
    m = s.microbatches(problem.batch)
    if s.pp % 2 or m % 2 or m < V_MICROBATCHES * s.pp:
        sizes = f"pp is {s.pp}, and there are {m} microbatches"
        yield f"schedule {s.schedule} needs an even pp, and an even number of microbatches, 2 pp at least: {sizes}"
    if problem.mixed:
        yield f"schedule {s.schedule} has two stages on each device: the cluster must be of one chip type"
    if shares_table(problem):
        yield f"schedule {s.schedule} is for models whose embedding and head are tables of their own"


def _placed_as_v(problem: Problem, s: Strategy) -> Iterator[str]:
    """Two chunks a stage (PyTorch's ScheduleZBVZeroBubble raises otherwise) and, for all of them to be under way at
    once, 2 pp microbatches (its ScheduleDualPipeV asks for them). On mixed chips no bound here holds."""
    m = s.microbatches(problem.batch)
    if s.vpp > V_CHUNKS:
        yield f"schedule {s.schedule} has two chunks a stage: vpp is {s.vpp}, and must be {V_CHUNKS}"
    if m < V_MICROBATCHES * s.pp:
        yield f"schedule {s.schedule} needs {V_MICROBATCHES} pp microbatches at least: pp is {s.pp}, and there are {m}"
    if len(set(s.stage_chips)) > 1:
        yield f"schedule {s.schedule} has both ends of the model on one stage: all chips must be of one type"
    if shares_table(problem):
        yield f"schedule {s.schedule} is for models whose embedding and head are tables of their own"


def _dynamic(problem: Problem, s: Strategy) -> Iterator[str]:
    """AscendSpeed's optimized pipeline (--optimized-pipeline): 1F1B, in which each microbatch has its own size."""
    if s.pp == 1 or s.schedule != "1f1b":
        yield f"micro_batches of different sizes need a pipeline and schedule 1f1b, not pp {s.pp} with {s.schedule}"
    launcher = problem.launcher
    if launcher is None and problem.stack.name != FOLD3D_STACK:
        yield f"stack {problem.stack.name} has microbatches of one size: no micro_batches, or stack {FOLD3D_STACK}"
    elif launcher is not None and not launcher.dynamic_micro_batches:
        yield f"{launcher.name} has microbatches of one size: no micro_batches"


@rule("chip types do not share a node")
def whole_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    chips = dict.fromkeys(s.stage_chips)
    for chip in chips if len(chips) > 1 else ():
        used = s.devices_on(chip)
        if used % problem.node:
            yield f"{used} {chip} do not fill nodes of {problem.node}"


@rule("each chip type serves one block of neighbouring stages")
def contiguous_chips(problem: Problem, s: Strategy) -> Iterator[str]:
    blocks = [chip for chip, _ in chip_blocks(s.stage_chips)]
    for chip in dict.fromkeys(blocks):
        if blocks.count(chip) > 1:
            yield f"{chip} serves {blocks.count(chip)} separate blocks of stages"


@rule(
    "stages are equal, in all or by chip type, where the spec asks for it",
    briefly=lambda p, _: f"layer_split is even: pp x vpp must divide the {p.model.layers} layers",
)
def layer_split(problem: Problem, s: Strategy) -> Iterator[str]:
    split = problem.spec.search.layer_split
    groups = {"even": [s.layers], "even_per_chip": _layers_by_chip(s)}
    for counts in groups.get(split, []):
        if len(set(counts)) > 1:
            yield f"layers per stage {listed(counts)} differ, layer_split is {split}"


def _layers_by_chip(s: Strategy) -> list[tuple[int, ...]]:
    pairs = list(zip(s.stage_chips, s.layers, strict=True))
    return [tuple(count for name, count in pairs if name == chip) for chip in dict.fromkeys(s.stage_chips)]
