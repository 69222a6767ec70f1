"""Rules on the degrees alone: devices, batch, and how a sequence is split."""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import pairwise

from cpsolver.inputs.language import later, say
from cpsolver.plans.dimensions import ALWAYS_SHOWN
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules.base import chosen, product, rule, too_small


@rule("every device is used exactly once: tp * pp * cp * dp = GPUs, and there are pp stages", scope="sizes")
def degrees(problem: Problem, s: Strategy) -> Iterator[str]:
    """With `cluster.idle` the product may be less, in whole nodes.

    Experts have a grid of their own on the same devices: ep and etp are no factors here (FlagScale's HeteroSearcher
    multiplies ep in, and its plans do not start).
    """
    yield from too_small({name: getattr(s, name) for name in (*ALWAYS_SHOWN, "vpp")})
    used, devices = s.devices if s.unequal else s.tp * s.pp * s.cp * s.dp, problem.num_gpus
    if used != devices and not (problem.may_idle and 0 < used < devices and used % problem.node == 0):
        yield _other_devices(problem, s)
    if len(s.layers) != s.pp:
        yield later("{stages} stages are described, pp is {s.pp}", stages=len(s.layers), s=s)


def _other_devices(problem: Problem, s: Strategy) -> str:
    sizes, devices = _devices(s), problem.num_gpus
    if not problem.may_idle:
        return later("{sizes} devices, not {devices}", sizes=sizes, devices=devices)
    return later(
        "{sizes} devices, not {devices}, and not fewer in whole nodes of {node}",
        sizes=sizes,
        devices=devices,
        node=problem.node,
    )


def _devices(s: Strategy) -> str:
    """The sizes with their product; of meshes the sum of these."""
    by_mesh = [
        product(
            {"tp": mesh.tp, "pp": sum(group.num_stages for group in groups)} | _but_one(cp=mesh.cp) | {"dp": mesh.dp}
        )
        for mesh, groups in s.meshes
    ]
    if not s.unequal:
        return product({"tp": s.tp, "pp": s.pp} | _but_one(cp=s.cp) | {"dp": s.dp})
    return later("{sizes}, together {s.devices}", sizes=" + ".join(by_mesh), s=s)


def _but_one(**sizes: int) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size != 1}


def _limits_in_short(problem: Problem, _asked: Set[str]) -> str:
    limits = ", ".join(f"{supply.name} {supply.limit:,}" for supply in problem.supplies)
    return say(
        "the stages must fit the chip limits ({limits}), whole nodes of {node} where chips mix",
        limits=limits,
        node=problem.node,
    )


@rule(
    "degrees differ between chip types only, with 1F1B and one chunk a stage, where the spec lets them", scope="sizes"
)
def meshes(problem: Problem, s: Strategy) -> Iterator[str]:
    """FlagScale's conditions on hetero_process_meshes (da4935ec, flagscale/train/arguments.py, pre_validate_args): all
    meshes run the same rounds of sequences, so every dp divides a round; embeddings that are tied, or serve multi-token
    prediction, are cut alike on the first and the last stage. cp may differ: which launcher runs that, says `launcher`.
    Not asserted there: a border between different tp is passed in tp * cp pieces of the sequence
    (get_inter_mesh_tensor_slices), which ranks have with sequence parallelism only; and ep, whose assert is vacuous.
    """
    if not s.unequal:
        return
    if problem.spec.search.degrees_by_chip is False:
        yield later("search.degrees_by_chip is false, and stages have degrees of their own")
    for mesh, groups in s.meshes:
        yield from (later("mesh on {chip}: {text}", chip=groups[0].chip, text=text) for text in too_small(vars(mesh)))
        if mesh.dp > 0 and s.round % mesh.dp:
            yield later(
                "mesh on {chip}: dp {dp} does not divide a round of {s.round} sequences (mbs x dp)",
                chip=groups[0].chip,
                dp=mesh.dp,
                s=s,
            )
    chips = [groups[0].chip for _, groups in s.meshes]
    yield from (
        later("{chip} has stages of different degrees", chip=chip)
        for chip in dict.fromkeys(chips)
        if chips.count(chip) > 1
    )
    if s.vpp > 1 or s.schedule != "1f1b" or s.dynamic:
        yield later(
            "degrees by chip type need 1f1b with vpp 1 and equal microbatches: {s.schedule} with vpp {s.vpp}", s=s
        )
    if s.sharded != "optimizer" or s.grouped:
        yield later("degrees by chip type shard the optimizer's states alone, over all replicas")
    if problem.encoder is not None:
        yield later("degrees by chip type do not go together with an encoder of images")
    if problem.spec.training.whole_matrices:
        yield later(
            "degrees by chip type do not go together with optimizer {optimizer}",
            optimizer=problem.spec.training.optimizer,
        )
    if len({mesh.ep > 1 for mesh, _ in s.meshes}) > 1:
        yield later("ep is 1 on all meshes or on none")
    yield from _borders(s)
    yield from _unused(s)
    yield from _ends(problem, s)


def _borders(s: Strategy) -> Iterator[str]:
    for (mesh, groups), (other, others) in pairwise(s.meshes):
        if mesh.tp != other.tp and not s.sequence_parallel:
            yield later(
                "between {chip} (tp {tp}) and {other_chip} (tp {other_tp}) the sequence changes hands in pieces: that "
                "needs sequence parallelism",
                chip=groups[0].chip,
                tp=mesh.tp,
                other_chip=others[0].chip,
                other_tp=other.tp,
            )


def _unused(s: Strategy) -> Iterator[str]:
    """What no mesh has any use for: the only way to write that is to leave it out."""
    if s.sequence_parallel and all(mesh.tp == 1 for mesh, _ in s.meshes):
        yield later("sequence parallelism needs tp > 1 on some mesh")
    most = max(mesh.cp for mesh, _ in s.meshes)
    if s.cp_gather and most == 1:
        yield later("cp_gather needs cp > 1 on some mesh")
    if s.ulysses > most:
        yield later("ulysses {s.ulysses} is more than the largest cp, {most}", s=s, most=most)


def _ends(problem: Problem, s: Strategy) -> Iterator[str]:
    """Tables that the first and the last stage both hold are cut alike."""
    first, last = s.meshes[0][0], s.meshes[-1][0]
    if not problem.model.embeds_at_both_ends:
        return
    if first.tp != last.tp:
        yield later(
            "the first and the last stage share the embedding: tp {first} and {last} must be equal",
            first=first.tp,
            last=last.tp,
        )
    if s.distributed_optimizer and max(first.dp, last.dp) % max(1, min(first.dp, last.dp)):
        yield later(
            "the first and the last stage share the embedding, whose states are sharded: one of dp {first} and {last} "
            "divides the other",
            first=first.dp,
            last=last.dp,
        )


@rule("no chip type serves more devices than there are", scope="structure", briefly=_limits_in_short)
def chip_count(problem: Problem, s: Strategy) -> Iterator[str]:
    for chip in dict.fromkeys(s.stage_chips):
        used = s.devices_on(chip)
        if chip not in problem.chip_names:
            yield later("chip {chip} is not in the cluster ({chips})", chip=chip, chips=", ".join(problem.chip_names))
        elif used > problem.supply(chip).limit:
            yield later(
                "{used} {chip} are used, at most {limit} are there",
                used=used,
                chip=chip,
                limit=problem.supply(chip).limit,
            )


@rule(
    "the global batch is a whole number of microbatches on every data-parallel rank",
    scope="structure",
    briefly=lambda p, _: say("mbs x dp must divide the global batch {batch:,}", batch=p.batch),
)
def batch(problem: Problem, s: Strategy) -> Iterator[str]:
    """Sizes of single microbatches sum to a rank's share of the batch, and mbs is their mean (AscendSpeed,
    _initialize_optimized_pipeline).
    """
    if problem.batch % (s.mbs * s.dp):
        yield later(
            "global batch {batch} is not a multiple of mbs {s.mbs} x dp {s.dp} = {round}",
            batch=problem.batch,
            s=s,
            round=s.mbs * s.dp,
        )
    if not s.micro_batches:
        return
    count, total = len(s.micro_batches), sum(s.micro_batches)
    if min(s.micro_batches) < 1:
        yield later("a size in micro_batches is {size}, and must be at least 1", size=min(s.micro_batches))
    if count != s.microbatches(problem.batch):
        yield later(
            "micro_batches has {count} sizes, not {microbatches}: global batch {batch} / (dp {s.dp} x mbs {s.mbs})",
            count=count,
            microbatches=s.microbatches(problem.batch),
            batch=problem.batch,
            s=s,
        )
    if total * s.dp != problem.batch:
        yield later(
            "micro_batches have {total} sequences x dp {s.dp} = {sequences}, not global batch {batch}",
            total=total,
            s=s,
            sequences=total * s.dp,
            batch=problem.batch,
        )


def _context_in_short(problem: Problem, asked: Set[str]) -> str:
    if not asked & {"ulysses", "cp_gather"}:
        return say("cp > 1 needs a sequence ({sequence:,} tokens) that 2 x cp divides", sequence=problem.sequence)
    texts = {
        "ulysses": say("ulysses must divide cp"),
        "cp_gather": say("cp_gather needs cp > 1 and ulysses 1"),
    }
    return chosen(texts, asked)


@rule(
    "the sequence is split into 2 * cp equal pieces, exchanged in one of the four known ways",
    scope="sizes",
    briefly=_context_in_short,
    by_mesh=True,
)
def context_parallel(problem: Problem, s: Strategy) -> Iterator[str]:
    """Each rank has a piece from the front and one from the back, so that causal attention is equal work for all.
    Megatron asks for 2 * cp with all-to-all too, where cp would do.
    """
    small = list(too_small({"cp": s.cp, "ulysses": s.ulysses}))
    yield from small
    if small:
        return
    if s.cp > 1 and problem.sequence % (2 * s.cp):
        yield later(
            "sequence length {sequence} is not a multiple of 2 x cp {s.cp} = {pieces}",
            sequence=problem.sequence,
            s=s,
            pieces=2 * s.cp,
        )
    if s.cp % s.ulysses:
        yield later("ulysses {s.ulysses} does not divide cp {s.cp}", s=s)
    if s.cp_gather and s.cp == 1:
        yield later("cp_gather needs context parallelism, and cp is 1")
    elif s.cp_gather and s.ulysses > 1:
        yield later("cp_gather does not mix with all-to-all: ulysses is {s.ulysses}, and must be 1", s=s)
