"""Rules on the pipeline: its depth, schedule, chunks, and the layers of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpsolver.cost.breadth_first import runs_fold3d
from cpsolver.cost.schedules import SCHEDULES, V_CHUNKS, has_schedule, most_short, shares_table
from cpsolver.cost.split_backward import V_MICROBATCHES
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import BOTH_WAYS, ONE_GROUP, SEARCHED_SCHEDULES, V_SHAPED, Schedule, Strategy, chip_blocks
from cpsolver.problem.problem import Problem
from cpsolver.profiles.stack import FOLD3D_STACK
from cpsolver.rules.base import listed, rule


@rule(
    "every layer is on one stage, and every chunk has one (or the embedding, or the head, in its place)",
    scope="structure",
)
def layers(problem: Problem, s: Strategy) -> Iterator[str]:
    if sum(s.layers) != problem.model.layers:
        yield later(
            "the stages have {total} layers in all, the model {layers}",
            total=sum(s.layers),
            layers=problem.model.layers,
        )
    if s.v_shaped and s.vpp != V_CHUNKS:
        yield later("schedule {s.schedule} puts {chunks} chunks on a stage: vpp is {s.vpp}", s=s, chunks=V_CHUNKS)
        return
    if s.both_ways and (s.pp % 2 or s.vpp > 1):
        yield later(
            "schedule {s.schedule} has two stages on each device: pp is {s.pp} and must be even, vpp {s.vpp} and 1", s=s
        )
        return
    for stage, count in enumerate(s.layers):
        if count + s.slots_on(stage) < s.vpp:
            yield later("stage {stage} has {count} layers for {s.vpp} chunks", stage=stage, count=count, s=s)


@rule(
    "the chunks of a stage have equally many layers, but that the last of all may be shorter",
    scope="structure",
    briefly=lambda p, _: say(
        "vpp x pp chunks must hold the {layers} layers, all but the last of all full", layers=p.model.layers
    ),
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
                yield later(
                    "stage {stage} has {count} layers for vpp {s.vpp}: fewer than {full} chunks of {size}, and the "
                    "head with the rest",
                    stage=stage,
                    count=count,
                    s=s,
                    full=s.vpp - 1,
                    size=s.chunks[stage],
                )
        elif (count + s.slots_on(stage)) % s.vpp:
            yield _no_multiple(s, stage)


def _no_multiple(s: Strategy, stage: int) -> str:
    count = s.layers[stage]
    if stage:
        return later("stage {stage} has {count} layers, not a multiple of vpp {s.vpp}", stage=stage, count=count, s=s)
    return later(
        "stage 0 has {count} layers, not a multiple of vpp {s.vpp}, nor with the embedding for one", count=count, s=s
    )


def _pairs(problem: Problem, s: Strategy) -> Iterator[str]:
    """Stages s and pp - 1 - s, of which a device runs half of the microbatches each: neither waits for the other where
    they take as long. What is in the last stage beside its layers stands in the place of a few (`most_short`)."""
    last, most = s.pp - 1, most_short(problem.model)
    kinds = list(zip(s.recompute, s.recompute_layers, s.recompute_modules, strict=True))
    for stage in range(s.pp // 2):
        one, other = s.layers[stage], s.layers[last - stage]
        if stage == 0 and not 0 <= one - other <= most:
            yield later(
                "the last stage has {other} layers, and must have as many as the first, {one}, or up to {most} fewer",
                other=other,
                one=one,
                most=most,
            )
        elif stage and one != other:
            yield later(
                "stages {stage} and {last} are on the same devices: {one} and {other} layers must be as many",
                stage=stage,
                last=last - stage,
                one=one,
                other=other,
            )
        if kinds[stage] != kinds[last - stage]:
            yield later(
                "stages {stage} and {last} are on the same devices, and must recompute alike",
                stage=stage,
                last=last - stage,
            )


@rule(
    "interleaving needs a pipeline, and microbatches of one size in whole groups of pp",
    scope="structure",
    briefly=lambda *_: say("with vpp > 1 pp must be > 1 and divide the microbatches (global batch / mbs / dp)"),
)
def interleaving(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron asks for pp <= N <= m and m % N = 0 or >= pp, with groups of N microbatches, when the schedule starts. N
    is pp here, the default; what is left over is then always less than pp. With one group of all (breadth_first) N is
    m, and Fold3D alone asks for whole groups all the same (AscendSpeed, get_forward_backward_func).
    """
    m, one_group = s.microbatches(problem.batch), s.schedule in ONE_GROUP
    if s.vpp > 1 and s.pp == 1:
        yield later("vpp {s.vpp} needs a pipeline, and pp is 1", s=s)
    elif s.vpp > 1 and s.dynamic:
        yield later("micro_batches of different sizes do not interleave: vpp is {s.vpp}, and must be 1", s=s)
    elif s.v_shaped:
        return
    elif s.vpp > 1 and one_group and m < s.pp:
        yield later("schedule {s.schedule}: {m} microbatches are fewer than pp {s.pp}", s=s, m=m)
    elif s.vpp > 1 and m % s.pp and (not one_group or runs_fold3d(problem)):
        yield later("vpp {s.vpp}: {m} microbatches are not a multiple of pp {s.pp}", s=s, m=m)


def _schedules_in_short(problem: Problem) -> str:
    launcher = problem.launcher
    what, name = ("stack", problem.stack.name) if launcher is None else ("launcher", launcher.name)
    whose = say("{what} {name}", what=say(what), name=name)
    has = [name for name in SEARCHED_SCHEDULES if has_schedule(problem, name)]
    return say(
        "of the schedules searched, {whose} has {names}; {needs}",
        whose=whose,
        names=", ".join(has),
        needs=_needs_in_short(has),
    )


def _needs_in_short(has: Sequence[Schedule]) -> str:
    """What the schedules beside 1F1B need."""
    needs = [say("zb1p and zb2p need pp > 1 and vpp 1")] * any(name in ("zb1p", "zb2p") for name in has)
    needs += [say("{name} needs pp > 1, vpp > 1 and pp microbatches", name=name) for name in has if name in ONE_GROUP]
    v_shaped = [name for name in has if name in V_SHAPED]
    if v_shaped:
        needs.append(
            say(
                "{names}: pp > 1, vpp {chunks}, {microbatches} pp microbatches, one chip type",
                names=", ".join(v_shaped),
                chunks=V_CHUNKS,
                microbatches=V_MICROBATCHES,
            )
        )
    needs += [
        say(
            "{name} needs an even pp, vpp 1, an even number of microbatches, {microbatches} pp at least, one chip type "
            "in the cluster",
            name=name,
            microbatches=V_MICROBATCHES,
        )
        for name in has
        if name in BOTH_WAYS
    ]
    return say("; ").join(needs) or say("pins and bans leave none of them")


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
        yield later("an encoder of images runs 1f1b with equal microbatches alone: schedule is {s.schedule}", s=s)
    if problem.spec.training.mla_swap_core_attn_out and s.schedule != "dualpipev":
        yield later("attention's results wait on the host (training.mla_swap_core_attn_out) with dualpipev only")
    if s.schedule == "1f1b":
        return
    if s.pp == 1:
        yield later("schedule {s.schedule} needs a pipeline, and pp is 1", s=s)
    if needs.interleaves and s.vpp == 1:
        yield later("schedule {s.schedule} interleaves: vpp is 1, and must be more", s=s)
    elif needs.interleaves is False and s.vpp > 1:
        yield later("schedule {s.schedule} does not interleave: vpp is {s.vpp}, and must be 1", s=s)
    if s.v_shaped or s.both_ways:
        yield from _two_chunks(problem, s)
    if problem.lora is not None and s.schedule in ("zb1p", "zb2p", "dualpipe", *V_SHAPED):
        yield later(
            "schedule {s.schedule} fills its bubble with weights' gradients, which frozen layers do not have", s=s
        )
    launcher = problem.launcher
    if has_schedule(problem, s.schedule):
        return
    if launcher is not None:
        yield later(
            "{name} has no schedule {s.schedule}: {schedules}",
            name=launcher.name,
            s=s,
            schedules=listed(launcher.schedules),
        )
    else:
        yield _lacking(problem.stack.name, s, needs.stacks)


def _two_chunks(problem: Problem, s: Strategy) -> Iterator[str]:
    """Of schedules whose devices hold a part of the model's first half and one of its second."""
    yield from _placed_as_v(problem, s) if s.v_shaped else ()
    yield from _both_ways(problem, s) if s.both_ways else ()
    if problem.spec.training.recompute_mla_up_proj and s.schedule != "dualpipev":
        yield later(
            "schedule {s.schedule} does not go with training.recompute_mla_up_proj, which MindSpeed-LLM has beside "
            "1f1b and dualpipev",
            s=s,
        )


def _lacking(stack: str, s: Strategy, others: tuple[str, ...] | None) -> str:
    if not others:
        return later("stack {stack} has no schedule {s.schedule}: 1f1b", stack=stack, s=s)
    return later(
        "stack {stack} has no schedule {s.schedule}: 1f1b, or stack {others}",
        stack=stack,
        s=s,
        others=listed(others),
    )


def _both_ways(problem: Problem, s: Strategy) -> Iterator[str]:
    m = s.microbatches(problem.batch)
    if s.pp % 2 or m % 2 or m < V_MICROBATCHES * s.pp:
        yield later(
            "schedule {s.schedule} needs an even pp, and an even number of microbatches, 2 pp at least: pp is {s.pp}, "
            "and there are {m} microbatches",
            s=s,
            m=m,
        )
    if problem.mixed:
        yield later("schedule {s.schedule} has two stages on each device: the cluster must be of one chip type", s=s)
    if shares_table(problem):
        yield later("schedule {s.schedule} is for models whose embedding and head are tables of their own", s=s)


def _placed_as_v(problem: Problem, s: Strategy) -> Iterator[str]:
    """Two chunks a stage (PyTorch's ScheduleZBVZeroBubble raises otherwise) and, for all of them to be under way at
    once, 2 pp microbatches (its ScheduleDualPipeV asks for them). On mixed chips no bound here holds."""
    m = s.microbatches(problem.batch)
    if s.vpp > V_CHUNKS:
        yield later(
            "schedule {s.schedule} has two chunks a stage: vpp is {s.vpp}, and must be {chunks}",
            s=s,
            chunks=V_CHUNKS,
        )
    if m < V_MICROBATCHES * s.pp:
        yield later(
            "schedule {s.schedule} needs {least} pp microbatches at least: pp is {s.pp}, and there are {m}",
            s=s,
            least=V_MICROBATCHES,
            m=m,
        )
    if len(set(s.stage_chips)) > 1:
        yield later("schedule {s.schedule} has both ends of the model on one stage: all chips must be of one type", s=s)
    if shares_table(problem):
        yield later("schedule {s.schedule} is for models whose embedding and head are tables of their own", s=s)


def _dynamic(problem: Problem, s: Strategy) -> Iterator[str]:
    """AscendSpeed's optimized pipeline (--optimized-pipeline): 1F1B, in which each microbatch has its own size."""
    if s.pp == 1 or s.schedule != "1f1b":
        yield later(
            "micro_batches of different sizes need a pipeline and schedule 1f1b, not pp {s.pp} with {s.schedule}", s=s
        )
    if problem.has_dynamic_micro_batches:
        return
    if problem.launcher is None:
        yield later(
            "stack {name} has microbatches of one size: no micro_batches, or stack {other}",
            name=problem.stack.name,
            other=FOLD3D_STACK,
        )
    else:
        yield later("{name} has microbatches of one size: no micro_batches", name=problem.launcher.name)


@rule("chip types do not share a node")
def whole_nodes(problem: Problem, s: Strategy) -> Iterator[str]:
    chips = dict.fromkeys(s.stage_chips)
    for chip in chips if len(chips) > 1 else ():
        used = s.devices_on(chip)
        if used % problem.node:
            yield later("{used} {chip} do not fill nodes of {node}", used=used, chip=chip, node=problem.node)


@rule("each chip type serves one block of neighbouring stages")
def contiguous_chips(problem: Problem, s: Strategy) -> Iterator[str]:
    blocks = [chip for chip, _ in chip_blocks(s.stage_chips)]
    for chip in dict.fromkeys(blocks):
        if blocks.count(chip) > 1:
            yield later("{chip} serves {count} separate blocks of stages", chip=chip, count=blocks.count(chip))


@rule(
    "stages are equal, in all or by chip type, where the spec asks for it",
    briefly=lambda p, _: say("layer_split is even: pp x vpp must divide the {layers} layers", layers=p.model.layers),
)
def layer_split(problem: Problem, s: Strategy) -> Iterator[str]:
    split = problem.spec.search.layer_split
    again = problem.spec.training.recompute_mlp_layers
    if again % s.pp or (again and s.schedule != "1f1b"):
        yield later(
            "{again} layers recompute their feed-forward blocks (training.recompute_mlp_layers): each stage has as "
            "many of them, and runs 1f1b; pp is {s.pp}, schedule {s.schedule}",
            again=again,
            s=s,
        )
    groups = {"even": [s.layers], "even_per_chip": _layers_by_chip(s)}
    for counts in groups.get(split, []):
        if len(set(counts)) > 1:
            yield later("layers per stage {counts} differ, layer_split is {split}", counts=listed(counts), split=split)


def _layers_by_chip(s: Strategy) -> list[tuple[int, ...]]:
    pairs = list(zip(s.stage_chips, s.layers, strict=True))
    return [tuple(count for name, count in pairs if name == chip) for chip in dict.fromkeys(s.stage_chips)]
