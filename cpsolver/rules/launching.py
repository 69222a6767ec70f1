"""The rules on what the launcher and the stack of the spec can run; every message says what they can instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cpsolver.plans.strategy import CORE, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.launcher import Launcher
from cpsolver.profiles.runs import Runs
from cpsolver.rules.base import listed


def launcher(problem: Problem, s: Strategy) -> Iterator[str]:
    """The launcher of the spec can run the plan (none given: any launcher).

    Its zero-bubble schedules are for the rule `schedule`, which has a word on stacks too.
    """
    yield from _not_run(problem.named_launcher, problem, s)


def stack(problem: Problem, s: Strategy) -> Iterator[str]:
    """The framework of the stack runs the plan (a stack that states no `runs`: what the launcher runs)."""
    runs = problem.stack.runs
    yield from _not_run(runs, problem, s)
    if runs is not None:
        yield from (f"{runs.name} {message}" for message in _own(runs, s))


def _not_run(profile: Launcher | None, problem: Problem, s: Strategy) -> Iterator[str]:
    if profile is not None:
        for part in _PARTS:
            yield from (f"{profile.name} {message}" for message in part(profile, problem, s))


def _own(p: Runs, s: Strategy) -> Iterator[str]:
    """What only stacks state."""
    if s.tp > 1 and not s.sequence_parallel and not p.plain_tensor:
        yield f"has tensor parallelism with sequence parallelism only: tp is {s.tp}"
    if not s.distributed_optimizer and not p.plain_weights:
        alone = ", and there is a single replica" * (s.dp * s.cp == 1)
        yield f"shares out weights over replicas: distributed_optimizer must be true{alone}"


def _tensor(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    groups = problem.model.kv_heads
    if s.tp > 1 and not p.tensor_parallel:
        yield f"has no tensor parallelism: tp is {s.tp}, and must be 1"
    if s.sequence_parallel and not p.sequence_parallel:
        yield "has no sequence parallelism: sequence_parallel must be false"
    if p.kv_groups == "divides" and groups % s.tp:
        yield f"needs tp to divide the {groups} key-value heads, and tp is {s.tp}"


def _attention(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    if s.flash_attention not in p.flash_attention:
        yield f"{'has no' if s.flash_attention else 'always has'} flash attention"


def _pipeline(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    if s.pp > 1 and not p.pipeline:
        yield f"has no pipeline: pp is {s.pp}, and must be 1"
    if s.vpp > 1 and not p.interleaving:
        yield f"does not interleave: vpp is {s.vpp}, and must be 1"
    count = s.microbatches(problem.batch)
    if s.vpp == 1 and count < s.pp and not p.few_microbatches:
        yield f"needs a microbatch for each stage: {count} microbatches are fewer than pp {s.pp}"
    if problem.model.mtp_layers and max(s.pp, s.cp) > 1 and not p.mtp_parallel:
        yield f"has multi-token prediction with pp 1 and cp 1 only: pp is {s.pp}, cp is {s.cp}"
    yield from _layers(p, problem, s)


def _layers(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    mtp, grouped = problem.model.mtp_layers > 0, _grouped(s)
    split = p.split(s.vpp, s.cp, grouped, mtp)
    if split != "any" and any(s.slots):
        yield f"needs chunks of layers only: vpp {s.vpp} puts the embedding or the head in the place of one"
    where = "".join(f" with {name} {size}" for name, size in (("vpp", s.vpp), ("cp", s.cp)) if size > 1)
    where += " with a sharding group" * grouped + " with multi-token prediction" * mtp
    total = problem.model.layers
    if split == "none" and total % (s.pp * s.vpp):
        yield f"needs equal stages: {total} layers are not a multiple of pp {s.pp} x vpp {s.vpp} = {s.pp * s.vpp}"
    elif split == "none" and len(set(s.layers)) > 1:
        yield f"needs equal stages{where}, {total // s.pp} layers each, not {listed(s.layers)}"
    elif split == "first_last" and len(set(s.layers[1:-1])) > 1:
        yield f"needs equal stages between the first and the last{where}, not {listed(s.layers)}"


def _mixture(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    chips = tuple(dict.fromkeys(s.stage_chips))
    if len(chips) < 2:
        return
    if not p.mixed_chips:
        yield f"does not mix chip types: one of {listed(chips)}"
        return
    if s.vpp > 1 and not p.mixed_chips_interleaving:
        yield f"does not interleave where chip types mix ({listed(chips)}): vpp is {s.vpp}, and must be 1"
    if s.cp > 1 and not p.mixed_chips_context:
        yield f"has no context parallelism where chip types mix ({listed(chips)}): cp is {s.cp}, and must be 1"
    if _grouped(s) and not p.mixed_chips_groups:
        yield f"shards over all replicas where chip types mix ({listed(chips)}): sharding_group must be 0"


def _context(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    if s.cp > 1 and not p.context_parallel:
        yield f"has no context parallelism: cp is {s.cp}, and must be 1"
    elif s.cp > 1 and s.cp_comm_type not in p.context_parallel:
        yield f"has no context parallelism of kind {s.cp_comm_type}: {listed(p.context_parallel)}"
    if s.cp > 1 and s.pp > 1 and not p.context_pipeline:
        yield f"has no context parallelism under a pipeline: cp {s.cp} needs pp 1, and pp is {s.pp}"
    if s.cp > 1 and s.cp_comm_type == "a2a":
        if s.tp > 1 and not p.ulysses_tensor:
            yield f"has no tensor parallelism beside all-to-all (ulysses {s.ulysses}): tp is {s.tp}, and must be 1"
        if _grouped(s) and not p.ulysses_groups:
            group = f"sharding_group is {s.sharding_group}, and must be 0"
            yield f"shards over all replicas beside all-to-all (ulysses {s.ulysses}): {group}"


def _grouped(s: Strategy) -> bool:
    return s.distributed_optimizer and s.sharding_group > 0


def _experts(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    if s.ep > 1 and not p.expert_parallel:
        yield f"has no expert parallelism: ep is {s.ep}, and must be 1"
    if s.etp > 1 and p.expert_tensor_parallel == "one":
        yield f"does not split an expert: etp is {s.etp}, and must be 1"
    if s.etp > 1 and p.expert_tensor_parallel == "without_bias" and problem.model.bias_mlp:
        yield f"does not split an expert that has a bias: etp is {s.etp}, and must be 1"
    if p.experts_within == "sharding_group":
        group = (s.sharding_group or s.dp * s.cp) if s.distributed_optimizer else s.cp
        if s.tp * group % (s.etp * s.ep):
            size = f"tp {s.tp} x {group} ranks of a sharding group"
            yield f"keeps experts within {size}, which ep {s.ep} x etp {s.etp} must divide"


def _sharding(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    if not s.distributed_optimizer:
        if not p.plain_replicas and s.dp > 1 and max(s.tp, s.cp) > 1:
            yield f"needs sharded replicas with tp {s.tp}, cp {s.cp} and dp {s.dp}: distributed_optimizer must be true"
        if not p.plain_context and s.cp > 1:
            yield f"shards over context-parallel ranks: with cp {s.cp} distributed_optimizer must be true"
        return
    kinds = p.sharded if s.pp == 1 else p.sharded_pipeline
    if s.sharded not in kinds:
        choice = f"sharded may be {listed(kinds)}" if kinds else "distributed_optimizer must be false"
        yield f"does not share out {s.sharded} with pp {s.pp}: {choice}"
    if s.sharding_group and s.sharded not in p.sharding_groups:
        yield f"shares out {s.sharded} over all replicas: sharding_group is {s.sharding_group}, and must be 0"
    elif s.sharding_group and p.whole_context_groups and s.sharding_group % s.cp:
        yield f"needs a sharding group of whole context-parallel groups: {s.sharding_group} is no multiple of cp {s.cp}"
    elif s.sharding_group == s.cp > 1 and not p.context_groups:
        yield f"needs a sharding group of several context-parallel groups: {s.sharding_group} is one of cp {s.cp}"


def _recompute(p: Launcher, problem: Problem, s: Strategy) -> Iterator[str]:
    told = dict.fromkeys(zip(s.recompute, s.recompute_layers, s.recompute_modules, strict=False))
    for kind in dict.fromkeys(kind for kind, *_ in told):
        if kind != "none" and kind not in p.recompute:
            yield f"has no recomputation of kind {kind}: {listed(('none', *p.recompute))}"
    units = [amount for kind, amount, _ in told if kind == "uniform" and amount > 1]
    if units and p.recompute_units == "one":
        yield f"recomputes layer by layer: uniform with {units[0]} layers must be 1"
    free = p.differing(s.vpp, s.cp, _grouped(s))
    odd = [kind for kind, *_ in told if kind not in free]
    if len(told) > 1 and odd:
        words = ((kind, *[str(n)] * (n > 0), *(modules if modules != CORE else ())) for kind, n, modules in told)
        found = ", ".join(map(" ".join, words))
        choice = f"only {listed(free)} may differ" if free else "one choice for all"
        sizes = {"vpp": s.vpp, "cp": s.cp, "sharding_group": s.sharding_group}
        known = p.recompute_by_stage != free
        where = "".join(
            f" with {name} {size}" for name, size in sizes.items() if known and size > (name != "sharding_group")
        )
        yield f"cannot recompute differently by stage{where} ({found}): {choice}"


_PARTS: tuple[Callable[[Launcher, Problem, Strategy], Iterator[str]], ...] = (
    *(_tensor, _attention, _pipeline, _mixture, _context, _experts, _sharding, _recompute),
)
