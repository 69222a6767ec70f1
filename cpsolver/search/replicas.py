"""Plans of pure data parallelism over unequal chips: each kind of replicas with a micro batch and a share of its own.

Every replica is on one chip type, without a pipeline; tensor parallelism, sharding and recomputation are shared by all,
as in SynerFuse and in FlagScale 0.3. For each choice of these the shares are the best there are (`shares`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import StageEvaluation
from cpsolver.evaluation.replicas import ReplicasEvaluation, evaluate_replicas
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.plans.replicas import MixedReplicas, ReplicaKind
from cpsolver.plans.strategy import SHARDED, RecomputeKind, Sharded, StageGroup, Strategy
from cpsolver.problem.problem import Problem, Supply
from cpsolver.rules import RULES, violations
from cpsolver.search.shares import KindOptions, ShareOption, best_shares
from cpsolver.search.space import divisors

Counts = Literal["own", "common"]
"""Whether each kind has a number of microbatches of its own, or all have the same and differ in their size only."""
_EQUAL_SHARES = later(
    "runs replicas with equal shares only; SynerFuse and FlagScale 0.3 run others, and are no launchers here"
)
_RECOMPUTE: tuple[tuple[RecomputeKind, int], ...] = (("none", 0), ("uniform", 1))


@dataclass(frozen=True)
class ReplicasPlan:
    """A plan by kinds, in the order of the spec's chips, with its numbers; `even_s`: with equal shares, if any fit."""

    plan: MixedReplicas
    evaluation: ReplicasEvaluation
    even_s: float | None


def plan_replicas(problem: Problem, counts: Counts = "own") -> ReplicasPlan | None:
    """The fastest plan that gives every chip type its own share of the batch, on all devices; None: nothing fits.

    Raises:
        InputError: unless the spec has several chip types, says how many of each there are, and names no launcher that
            runs equal replicas only.
    """
    _check(problem)
    best: tuple[float, MixedReplicas] | None = None
    even: list[float] = []
    for frame in _frames(problem):
        kinds = _kinds(problem, frame)
        if kinds is None:
            continue
        for options in _by_counts(kinds, problem.batch, counts):
            chosen = best_shares(options, problem.batch)
            if chosen is not None and (best is None or _step_s(chosen) < best[0]):
                best = _step_s(chosen), _plan(problem, frame, options, chosen)
        even += _even_s(kinds, problem.batch)
    if best is None:
        return None
    return ReplicasPlan(best[1], evaluate_replicas(problem, best[1]), min(even, default=None))


def _check(problem: Problem) -> None:
    troubles = []
    if problem.named_launcher is not None:
        told = say(_EQUAL_SHARES)
        troubles.append(Trouble("launcher", told, problem.named_launcher.name, "null", path=("launcher",)))
    given = sum(supply.limit for supply in problem.supplies)
    if not problem.mixed or given != problem.num_gpus:
        told = say(
            "must be several chip types, each with how many there are, in all num_gpus = {num_gpus:,}",
            num_gpus=problem.num_gpus,
        )
        troubles.append(Trouble("cluster.chips", told, path=("cluster", "chips")))
    if troubles:
        raise InputError(troubles)


@dataclass(frozen=True)
class _Frame:
    """What all replicas share. `depth`: how much their states are sharded, 0: not at all."""

    tp: int
    sequence_parallel: bool
    flash_attention: bool
    depth: int
    recompute: tuple[RecomputeKind, int]


def _frames(problem: Problem) -> Iterator[_Frame]:
    """Every choice; what the spec pins or forbids is left to the rules.

    Launchers that run unequal shares are forks of Megatron-LM, which shards the optimizer's states only: deeper
    sharding is tried where the spec pins it.
    """
    most = min(problem.node, *(supply.limit for supply in problem.supplies))
    flash = problem.spec.search.pin.flash_attention or (True,)
    depths = (0, *(1 + SHARDED.index(name) for name in problem.spec.search.pin.sharded or SHARDED[:1]))
    for tp in divisors(problem.node):
        if tp > most or any(supply.limit % tp for supply in problem.supplies):
            continue
        for sequence_parallel in (False, True)[: 1 + (tp > 1)]:
            for attention in flash:
                for depth in depths:
                    yield from (_Frame(tp, sequence_parallel, attention, depth, each) for each in _RECOMPUTE)


def _strategy(problem: Problem, frame: _Frame, chip: str, mbs: int) -> Strategy:
    """The plan as if all replicas were on that chip."""
    kind, amount = frame.recompute
    sharded: Sharded = SHARDED[max(0, frame.depth - 1)]
    return Strategy(
        tp=frame.tp,
        pp=1,
        dp=problem.num_gpus // frame.tp,
        mbs=mbs,
        vpp=1,
        sequence_parallel=frame.sequence_parallel,
        distributed_optimizer=frame.depth > 0,
        flash_attention=frame.flash_attention,
        groups=(StageGroup(chip, (problem.model.layers,), kind, (amount,)),),
        sharded=sharded,
    )


@dataclass(frozen=True)
class _Kind:
    """Replicas on one chip type: the only stage of each, by micro batch."""

    supply: Supply
    replicas: int
    stages: dict[int, StageEvaluation]


def _kinds(problem: Problem, frame: _Frame) -> list[_Kind] | None:
    """What each kind takes for every micro batch that fits its memory; None where a rule refuses one of all sizes."""
    kinds = []
    for supply in problem.supplies:
        replicas = supply.limit // frame.tp
        stages = dict(_stages(problem, frame, supply, problem.batch // replicas))
        if not stages:
            return None
        kinds.append(_Kind(supply, replicas, stages))
    return kinds


def _stages(problem: Problem, frame: _Frame, supply: Supply, most: int) -> Iterator[tuple[int, StageEvaluation]]:
    """Micro batches with their stage, as long as it fits; memory only grows with them.

    Rules are asked as if all devices were of the chip type, each replica with one microbatch: all of them once, then
    those that a larger micro batch can break, what is pinned and memory.
    """
    alone = problem.with_(supplies=(replace(supply, limit=problem.num_gpus),))
    sound = False
    for mbs in range(1, most + 1):
        strategy = _strategy(problem, frame, supply.name, mbs)
        whole = _with_batch(alone, mbs * strategy.dp)
        if any(RULES["pin"](whole, strategy)):
            continue
        if not sound and violations(whole, strategy):
            return
        sound = True
        stage = evaluate(whole, strategy).stages[0]
        if stage.memory.total > stage.capacity_bytes:
            return
        yield mbs, stage


def _with_batch(problem: Problem, batch: int) -> Problem:
    training = problem.spec.training.model_copy(update={"global_batch_size": batch})
    return problem.with_(spec=problem.spec.model_copy(update={"training": training}))


def _by_counts(kinds: list[_Kind], batch: int, counts: Counts) -> Iterator[list[KindOptions]]:
    """The options of all kinds: all numbers of microbatches at once, or for each number on its own."""
    if counts == "own":
        yield [_options(kind, range(1, batch // kind.replicas + 1), batch) for kind in kinds]
    else:
        for number in divisors(batch):
            yield [_options(kind, (number,), batch) for kind in kinds]


def _options(kind: _Kind, numbers: range | tuple[int], batch: int) -> KindOptions:
    """Every micro batch with every number of microbatches; without a pipeline one follows the other."""
    most = batch // kind.replicas
    options = (
        ShareOption(mbs * number, number * stage.microbatch_s, stage.after_s, mbs)
        for mbs, stage in kind.stages.items()
        for number in numbers
        if mbs * number <= most
    )
    return KindOptions(kind.replicas, tuple(options))


def _step_s(chosen: tuple[ShareOption, ...]) -> float:
    return max(option.pipeline_s for option in chosen) + max(option.after_s for option in chosen)


def _even_s(kinds: list[_Kind], batch: int) -> Iterator[float]:
    """Seconds of a step with the same micro batch and as many of them on every replica."""
    each, rest = divmod(batch, sum(kind.replicas for kind in kinds))
    if rest:
        return
    for mbs in divisors(each):
        if all(mbs in kind.stages for kind in kinds):
            stages = [kind.stages[mbs] for kind in kinds]
            pipeline = max(each // mbs * stage.microbatch_s for stage in stages)
            yield pipeline + max(stage.after_s for stage in stages)


def _plan(
    problem: Problem, frame: _Frame, options: list[KindOptions], chosen: tuple[ShareOption, ...]
) -> MixedReplicas:
    parts = zip(problem.supplies, options, chosen, strict=True)
    kinds = (
        ReplicaKind(_strategy(problem, frame, supply.name, share.mbs), kind.replicas, share.sequences)
        for supply, kind, share in parts
    )
    return MixedReplicas(tuple(kinds))
