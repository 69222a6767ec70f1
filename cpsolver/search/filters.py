"""The rules on degrees and flags as masks over many rows: one filter per rule of rules/ with the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd
from typing import TypeVar

import numpy as np

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.shard import Bools, Candidates, Ints
from cpsolver.problem.problem import Problem
from cpsolver.profiles.launcher import Launcher
from cpsolver.profiles.runnable import allowed_frames, allowed_layouts, allowed_variants, mixed_rows
from cpsolver.profiles.runs import Runs, runs_variants
from cpsolver.spec.search import forbidden_for, pinned_for
from models_zoo import Architecture

Filter = Callable[[Problem, Candidates], Bools]
Profile = TypeVar("Profile", bound=Launcher)


def _choice(values: Ints | Bools, pinned: Iterable[object] | None, forbidden: Iterable[object] | None) -> Bools:
    allowed = np.ones(len(values), dtype=np.bool_)
    if pinned is not None:
        allowed &= np.isin(values, list(pinned))  # type: ignore[arg-type]
    if forbidden is not None:
        allowed &= ~np.isin(values, list(forbidden))  # type: ignore[arg-type]
    return allowed


def _pins(problem: Problem, rows: Candidates, names: Iterable[str]) -> Bools:
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    allowed = np.ones(len(rows), dtype=np.bool_)
    for name in names:
        allowed &= _choice(getattr(rows, name), getattr(pin, name), getattr(forbid, name))
    return allowed


def _launcher(part: Callable[[Launcher, Architecture, Candidates], Bools]) -> Filter:
    """The part of the rule launcher that a layout, a variant or a frame decides."""
    return lambda problem, rows: _runs(problem, rows, problem.named_launcher, part)


def _stack(part: Callable[[Runs, Architecture, Candidates], Bools]) -> Filter:
    """The same of the rule stack."""
    return lambda problem, rows: _runs(problem, rows, problem.stack.runs, part)


def _runs(
    problem: Problem,
    rows: Candidates,
    profile: Profile | None,
    part: Callable[[Profile, Architecture, Candidates], Bools],
) -> Bools:
    if profile is None:
        return np.ones(len(rows), dtype=np.bool_)
    allowed = part(profile, problem.model, rows)
    return np.asarray(allowed & (mixed_rows(profile, rows) | _one_type_will_do(problem, rows)))


def may_mix(problem: Problem, rows: Candidates) -> Bools:
    """The rows whose plans may have several chip types, as far as launcher and stack go; what is open hinders none.

    For the others plans.py knows mixes of a single type only.
    """
    if problem.launcher is None:
        return np.ones(len(rows), dtype=np.bool_)
    return mixed_rows(problem.launcher, rows)


def _one_type_will_do(problem: Problem, rows: Candidates) -> Bools:
    """The rows all of whose stages some chip type can serve."""
    if not problem.mixed:
        return np.ones(len(rows), dtype=np.bool_)
    sizes, back = np.unique(np.stack([rows.stage_devices, rows.pp]), axis=1, return_inverse=True)
    enough = [max(most_stages(problem, width, pp, mixed=False)) == pp for width, pp in sizes.T.tolist()]
    return np.array(enough, dtype=np.bool_)[back.ravel()]


def stage_step(node: int, stage_devices: int) -> int:
    """A chip type that shares the cluster fills whole nodes: its number of stages is a multiple of this."""
    return node // gcd(stage_devices, node)


def most_stages(problem: Problem, stage_devices: int, pp: int, mixed: bool = True) -> list[int]:
    """The most stages that each chip type can serve, whole nodes only (all stages need no other type's share).

    Where types may not be mixed it is all stages or none.
    """
    step = stage_step(problem.node, stage_devices)
    pin = problem.spec.search.pin
    named = pin.chip_order if pin.stage_chips is None else pin.stage_chips
    counts = (
        min(pp, supply.limit // stage_devices) if named is None or supply.name in named else 0
        for supply in problem.supplies
    )
    return [count if count == pp else count // step * step * mixed for count in counts]


# Filters on layouts: tp, cp, pp, dp.


def _heads(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(problem.model.heads % rows.tp == 0)


def _kv_groups(problem: Problem, rows: Candidates) -> Bools:
    groups = problem.model.kv_heads
    return np.asarray((groups % rows.tp == 0) | (rows.tp % groups == 0))


def _feed_forward(problem: Problem, rows: Candidates) -> Bools:
    model, allowed = problem.model, np.ones(len(rows), dtype=np.bool_)
    if any(not kind.experts for kind in layer_kinds(model)):
        allowed &= model.ffn % rows.tp == 0
    if model.moe is not None and model.moe.shared_experts:
        allowed &= model.moe.shared_experts * (model.moe.shared_ffn or model.moe.expert_ffn) % rows.tp == 0
    return allowed


def _tensor_nodes(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((problem.node % rows.tp == 0) | (rows.tp % problem.node == 0))


def _pipeline_depth(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(rows.pp <= problem.model.layers)


def _context_parallel(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((rows.cp == 1) | (problem.sequence % (2 * rows.cp) == 0))


def _batch(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(problem.batch % rows.dp == 0)


def _chip_count(problem: Problem, rows: Candidates) -> Bools:
    sizes = zip(rows.stage_devices.tolist(), rows.pp.tolist(), strict=True)
    return np.array([sum(most_stages(problem, width, p)) >= p for width, p in sizes], dtype=np.bool_)


def _pinned_layout(problem: Problem, rows: Candidates) -> Bools:
    pin = problem.spec.search.pin
    allowed = _pins(problem, rows, ("tp", "cp", "pp", "dp"))
    for fixed in (pin.layers, pin.stage_chips):
        if fixed is not None:
            allowed &= rows.pp == len(fixed)
    if pin.layers is not None:
        allowed &= sum(pin.layers) == problem.model.layers
    if not problem.mixed:
        allowed &= np.array([_one_chip_allowed(problem, depth) for depth in rows.pp.tolist()], dtype=np.bool_)
    return allowed


def _one_chip_allowed(problem: Problem, pp: int) -> bool:
    """The pins and bans on chips, when one type serves all stages (plans.py keeps them for several)."""
    name = problem.chip_names[0]
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    wanted = pinned_for(pin.stages, name)
    return (
        (wanted is None or pp in wanted)
        and pp not in forbidden_for(forbid.stages, name)
        and (pin.chip_order is None or name in pin.chip_order)
        and forbid.chip_order != (name,)
        and forbid.stage_chips != (name,) * pp
        and (pin.stage_chips is None or pin.stage_chips == (name,) * pp)
    )


LAYOUT_FILTERS: dict[str, Filter] = {
    "pin": _pinned_layout,
    "heads": _heads,
    "kv_groups": _kv_groups,
    "feed_forward": _feed_forward,
    "tensor_nodes": _tensor_nodes,
    "pipeline_depth": _pipeline_depth,
    "context_parallel": _context_parallel,
    "batch": _batch,
    "chip_count": _chip_count,
    "launcher": _launcher(allowed_layouts),
    "stack": _stack(allowed_layouts),
}


# Filters on variants of a layout: flags, how cp exchanges, experts' grid, sharding.


_VARIANT_PINS = ("sequence_parallel", "distributed_optimizer", "flash_attention", "ulysses", "cp_gather", "ep", "etp")


def _pinned_variant(problem: Problem, rows: Candidates) -> Bools:
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    allowed = _pins(problem, rows, (*_VARIANT_PINS, "sharding_group"))
    depth = {name: index for index, name in enumerate(("optimizer", "gradients", "parameters"), 1)}
    wanted = None if pin.sharded is None else [depth[name] for name in pin.sharded]
    banned = None if forbid.sharded is None else [depth[name] for name in forbid.sharded]
    return allowed & _choice(rows.sharded, wanted, banned)


def _sequence_parallel(problem: Problem, rows: Candidates) -> Bools:
    splits = problem.sequence // rows.cp % rows.tp == 0
    return np.asarray(~rows.sequence_parallel | ((rows.tp > 1) & splits))


def _distributed_optimizer(_problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(~rows.distributed_optimizer | (rows.replicas > 1))


def _exchange(_problem: Problem, rows: Candidates) -> Bools:
    gathers = (rows.cp > 1) & (rows.ulysses == 1)
    return np.asarray((rows.cp % rows.ulysses == 0) & (~rows.cp_gather | gathers))


def _optimizer(problem: Problem, rows: Candidates) -> Bools:
    plain_will_do = problem.spec.training.sharded_switch is None
    return np.asarray(rows.distributed_optimizer | (rows.replicas == 1) | plain_will_do)


def _context_exchange(problem: Problem, rows: Candidates) -> Bools:
    heads, groups = problem.model.heads // rows.tp, np.maximum(1, problem.model.kv_heads // rows.tp)
    even = (heads % rows.ulysses == 0) & (groups % rows.ulysses == 0)
    if problem.model.attention.sliding_window is not None:
        even &= (rows.cp == rows.ulysses) | rows.cp_gather
    return np.asarray(even)


def _experts(problem: Problem, rows: Candidates) -> Bools:
    moe = problem.model.moe
    if moe is None:
        return np.asarray((rows.ep == 1) & (rows.etp == 1))
    divided = (moe.experts % rows.ep == 0) & (moe.expert_ffn % rows.etp == 0) & (rows.tp % rows.etp == 0)
    return np.asarray(divided & (rows.stage_devices % (rows.etp * rows.ep) == 0))


def _expert_sequence_parallel(problem: Problem, rows: Candidates) -> Bools:
    if problem.model.moe is None:
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray((rows.tp == 1) | rows.sequence_parallel)


def _sharding(problem: Problem, rows: Candidates) -> Bools:
    deep, group = rows.sharded > 1, rows.sharding_group
    allowed = ~deep | (rows.distributed_optimizer & (rows.replicas > 1) & (rows.pp == 1))
    grouped = (group > 1) & (group < rows.replicas) & (rows.replicas % np.maximum(1, group) == 0)
    allowed &= (group == 0) | (rows.distributed_optimizer & grouped)
    if problem.model.moe is not None:
        each, some = rows.expert_replicas, np.maximum(1, group)
        allowed &= (group == 0) | (each % some == 0) | (some % each == 0)
    return np.asarray(allowed)


VARIANT_FILTERS: dict[str, Filter] = {
    "pin": _pinned_variant,
    "sequence_parallel": _sequence_parallel,
    "distributed_optimizer": _distributed_optimizer,
    "optimizer": _optimizer,
    "context_parallel": _exchange,
    "context_exchange": _context_exchange,
    "experts": _experts,
    "expert_sequence_parallel": _expert_sequence_parallel,
    "sharding": _sharding,
    "launcher": _launcher(allowed_variants),
    "stack": _stack(runs_variants),
}


# Filters on frames of a layout: micro batch and chunks.


def _pinned_frame(problem: Problem, rows: Candidates) -> Bools:
    allowed = _pins(problem, rows, ("mbs", "vpp"))
    for stage, count in enumerate(pinned := problem.spec.search.pin.layers or ()):
        short = (stage == 0) * rows.embedding_slot + (stage == len(pinned) - 1) * rows.loss_slot
        allowed &= (count + short) % rows.vpp == 0
    return allowed


def _interleaving(_problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((rows.vpp == 1) | ((rows.pp > 1) & (rows.microbatches % rows.pp == 0)))


def _even_chunks(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(rows.places(problem.model.layers) % rows.vpp == 0)


def _layer_split(problem: Problem, rows: Candidates) -> Bools:
    if problem.spec.search.layer_split != "even":
        return np.ones(len(rows), dtype=np.bool_)
    slots = rows.embedding_slot + rows.loss_slot
    alike = (slots == 0) | ((slots == 2) & (rows.pp == 2))  # two stages may each be one layer short
    return np.asarray(alike & (rows.places(problem.model.layers) % (rows.pp * rows.vpp) == 0))


FRAME_FILTERS: dict[str, Filter] = {
    "pin": _pinned_frame,
    "even_chunks": _even_chunks,
    "interleaving": _interleaving,
    "layer_split": _layer_split,
    "launcher": _launcher(allowed_frames),
    "stack": _stack(allowed_frames),
}
