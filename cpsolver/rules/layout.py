"""Rules on the degrees alone: devices, batch, and how a sequence is split."""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import pairwise

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
        fewer = f", and not fewer in whole nodes of {problem.node}" if problem.may_idle else ""
        yield f"{_devices(s)} devices, not {devices}{fewer}"
    if len(s.layers) != s.pp:
        yield f"{len(s.layers)} stages are described, pp is {s.pp}"


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
    return f"{' + '.join(by_mesh)}, together {s.devices}"


def _but_one(**sizes: int) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size != 1}


def _limits_in_short(problem: Problem, _asked: Set[str]) -> str:
    limits = ", ".join(f"{supply.name} {supply.limit:,}" for supply in problem.supplies)
    return f"the stages must fit the chip limits ({limits}), whole nodes of {problem.node} where chips mix"


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
        yield "search.degrees_by_chip is false, and stages have degrees of their own"
    for mesh, groups in s.meshes:
        yield from (f"mesh on {groups[0].chip}: {text}" for text in too_small(vars(mesh)))
        if mesh.dp > 0 and s.round % mesh.dp:
            yield f"mesh on {groups[0].chip}: dp {mesh.dp} does not divide a round of {s.round} sequences (mbs x dp)"
    chips = [groups[0].chip for _, groups in s.meshes]
    yield from (f"{chip} has stages of different degrees" for chip in dict.fromkeys(chips) if chips.count(chip) > 1)
    if s.vpp > 1 or s.schedule != "1f1b" or s.dynamic:
        yield f"degrees by chip type need 1f1b with vpp 1 and equal microbatches: {s.schedule} with vpp {s.vpp}"
    if s.sharded != "optimizer" or s.grouped:
        yield "degrees by chip type shard the optimizer's states alone, over all replicas"
    if problem.encoder is not None:
        yield "degrees by chip type do not go together with an encoder of images"
    if problem.spec.training.whole_matrices:
        yield f"degrees by chip type do not go together with optimizer {problem.spec.training.optimizer}"
    if len({mesh.ep > 1 for mesh, _ in s.meshes}) > 1:
        yield "ep is 1 on all meshes or on none"
    yield from _borders(s)
    yield from _unused(s)
    yield from _ends(problem, s)


def _borders(s: Strategy) -> Iterator[str]:
    for (mesh, groups), (other, others) in pairwise(s.meshes):
        if mesh.tp != other.tp and not s.sequence_parallel:
            between = f"between {groups[0].chip} (tp {mesh.tp}) and {others[0].chip} (tp {other.tp})"
            yield f"{between} the sequence changes hands in pieces: that needs sequence parallelism"


def _unused(s: Strategy) -> Iterator[str]:
    """What no mesh has any use for: the only way to write that is to leave it out."""
    if s.sequence_parallel and all(mesh.tp == 1 for mesh, _ in s.meshes):
        yield "sequence parallelism needs tp > 1 on some mesh"
    most = max(mesh.cp for mesh, _ in s.meshes)
    if s.cp_gather and most == 1:
        yield "cp_gather needs cp > 1 on some mesh"
    if s.ulysses > most:
        yield f"ulysses {s.ulysses} is more than the largest cp, {most}"


def _ends(problem: Problem, s: Strategy) -> Iterator[str]:
    """Tables that the first and the last stage both hold are cut alike."""
    first, last = s.meshes[0][0], s.meshes[-1][0]
    if not problem.model.embeds_at_both_ends:
        return
    shared = "the first and the last stage share the embedding"
    if first.tp != last.tp:
        yield f"{shared}: tp {first.tp} and {last.tp} must be equal"
    if s.distributed_optimizer and max(first.dp, last.dp) % max(1, min(first.dp, last.dp)):
        yield f"{shared}, whose states are sharded: one of dp {first.dp} and {last.dp} divides the other"


@rule("no chip type serves more devices than there are", scope="structure", briefly=_limits_in_short)
def chip_count(problem: Problem, s: Strategy) -> Iterator[str]:
    for chip in dict.fromkeys(s.stage_chips):
        used = s.devices_on(chip)
        if chip not in problem.chip_names:
            yield f"chip {chip} is not in the cluster ({', '.join(problem.chip_names)})"
        elif used > problem.supply(chip).limit:
            yield f"{used} {chip} are used, at most {problem.supply(chip).limit} are there"


@rule(
    "the global batch is a whole number of microbatches on every data-parallel rank",
    scope="structure",
    briefly=lambda p, _: f"mbs x dp must divide the global batch {p.batch:,}",
)
def batch(problem: Problem, s: Strategy) -> Iterator[str]:
    """Sizes of single microbatches sum to a rank's share of the batch, and mbs is their mean (AscendSpeed,
    _initialize_optimized_pipeline).
    """
    if problem.batch % (s.mbs * s.dp):
        yield f"global batch {problem.batch} is not a multiple of mbs {s.mbs} x dp {s.dp} = {s.mbs * s.dp}"
    if not s.micro_batches:
        return
    count, total = len(s.micro_batches), sum(s.micro_batches)
    if min(s.micro_batches) < 1:
        yield f"a size in micro_batches is {min(s.micro_batches)}, and must be at least 1"
    if count != s.microbatches(problem.batch):
        share = f"{problem.batch} / (dp {s.dp} x mbs {s.mbs})"
        yield f"micro_batches has {count} sizes, not {s.microbatches(problem.batch)}: global batch {share}"
    if total * s.dp != problem.batch:
        yield f"micro_batches have {total} sequences x dp {s.dp} = {total * s.dp}, not global batch {problem.batch}"


def _context_in_short(problem: Problem, asked: Set[str]) -> str:
    if not asked & {"ulysses", "cp_gather"}:
        return f"cp > 1 needs a sequence ({problem.sequence:,} tokens) that 2 x cp divides"
    return chosen({"ulysses": "ulysses must divide cp", "cp_gather": "cp_gather needs cp > 1 and ulysses 1"}, asked)


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
        yield f"sequence length {problem.sequence} is not a multiple of 2 x cp {s.cp} = {2 * s.cp}"
    if s.cp % s.ulysses:
        yield f"ulysses {s.ulysses} does not divide cp {s.cp}"
    if s.cp_gather and s.cp == 1:
        yield "cp_gather needs context parallelism, and cp is 1"
    elif s.cp_gather and s.ulysses > 1:
        yield f"cp_gather does not mix with all-to-all: ulysses is {s.ulysses}, and must be 1"
