"""The rules on degrees and flags as masks over many rows: one filter per rule of rules/ with the same name.

Filters stand in the order in which they are asked: a row that several refuse is counted for the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeVar

import numpy as np

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.shard import Bools, Candidates, Ints
from cpsolver.plans.dimensions import DIMENSIONS, Part, names
from cpsolver.problem.problem import Problem
from cpsolver.profiles.launcher import Launcher
from cpsolver.profiles.runnable import allowed_frames, allowed_layouts, allowed_variants, mixed_rows
from cpsolver.profiles.runs import Runs, runs_variants
from cpsolver.spec.search import forbidden_for, pinned_for
from models_zoo import Architecture

Mask = Callable[[Problem, Candidates], Bools]
Profile = TypeVar("Profile", bound=Launcher)


@dataclass(frozen=True)
class Filter:
    """Which rows a rule allows.

    `depends_on_devices` is false where the rule looks at nothing that the number of devices in use decides: layouts of
    all numbers may then be judged together, as device_counts.py does.
    """

    allows: Mask
    depends_on_devices: bool = True

    def __call__(self, problem: Problem, rows: Candidates) -> Bools:
        """True for each row that the rule allows."""
        return self.allows(problem, rows)


LAYOUT_FILTERS: dict[str, Filter] = {}
"""Filters on tp, cp, pp and dp, by rule."""
VARIANT_FILTERS: dict[str, Filter] = {}
"""Filters on variants of a layout: flags, how cp communicates, the experts' grid, sharding."""
FRAME_FILTERS: dict[str, Filter] = {}
"""Filters on frames of a layout: micro batch and chunks."""


def _filter(filters: dict[str, Filter], rule: str, *, depends_on_devices: bool = True) -> Callable[[Mask], Mask]:
    """Enter a mask among the filters under the name of its rule."""

    def enter(allows: Mask) -> Mask:
        filters[rule] = Filter(allows, depends_on_devices)
        return allows

    return enter


def _choice(values: Ints | Bools, pinned: list[int] | None, forbidden: list[int] | None) -> Bools:
    allowed = np.ones(len(values), dtype=np.bool_)
    if pinned is not None:
        allowed &= np.isin(values, pinned)
    if forbidden is not None:
        allowed &= ~np.isin(values, forbidden)
    return allowed


def _pins(problem: Problem, rows: Candidates, part: Part) -> Bools:
    """The rows whose decisions of that part are as pinned, and not as forbidden."""
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    allowed = np.ones(len(rows), dtype=np.bool_)
    for name in names(part):
        allowed &= _choice(getattr(rows, name), _codes(name, getattr(pin, name)), _codes(name, getattr(forbid, name)))
    return allowed


def _codes(name: str, values: Iterable[Any] | None) -> list[int] | None:
    """Values of a decision as its column has them; None: nothing is asked."""
    return None if values is None else [DIMENSIONS[name].code(value) for value in values]


def _enter_profiles(
    filters: dict[str, Filter],
    launcher: Callable[[Launcher, Architecture, Candidates], Bools],
    stack: Callable[[Runs, Architecture, Candidates], Bools],
) -> None:
    """The rules launcher and stack, as far as a layout, a variant or a frame decides them."""
    filters["launcher"] = Filter(lambda problem, rows: _runs(problem, rows, problem.named_launcher, launcher))
    filters["stack"] = Filter(lambda problem, rows: _runs(problem, rows, problem.stack.runs, stack))


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

    For the others arrangements.py knows mixes of a single type only.
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


# Filters on layouts.


@_filter(LAYOUT_FILTERS, "pin")
def _pinned_layout(problem: Problem, rows: Candidates) -> Bools:
    pin = problem.spec.search.pin
    allowed = _pins(problem, rows, "layout")
    for fixed in (pin.layers, pin.stage_chips):
        if fixed is not None:
            allowed &= rows.pp == len(fixed)
    if pin.layers is not None:
        allowed &= sum(pin.layers) == problem.model.layers
    if not problem.mixed:
        allowed &= np.array([_one_chip_allowed(problem, depth) for depth in rows.pp.tolist()], dtype=np.bool_)
    return allowed


def _one_chip_allowed(problem: Problem, pp: int) -> bool:
    """The pins and bans on chips, when one type serves all stages (arrangements.py keeps them for several)."""
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


@_filter(LAYOUT_FILTERS, "heads", depends_on_devices=False)
def _heads(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(problem.model.heads % rows.tp == 0)


@_filter(LAYOUT_FILTERS, "kv_groups", depends_on_devices=False)
def _kv_groups(problem: Problem, rows: Candidates) -> Bools:
    groups = problem.model.kv_heads
    return np.asarray((groups % rows.tp == 0) | (rows.tp % groups == 0))


@_filter(LAYOUT_FILTERS, "feed_forward", depends_on_devices=False)
def _feed_forward(problem: Problem, rows: Candidates) -> Bools:
    model, allowed = problem.model, np.ones(len(rows), dtype=np.bool_)
    if any(not kind.experts for kind in layer_kinds(model)):
        allowed &= model.ffn % rows.tp == 0
    if model.moe is not None and model.moe.shared_experts:
        allowed &= model.moe.shared_experts * (model.moe.shared_ffn or model.moe.expert_ffn) % rows.tp == 0
    return allowed


@_filter(LAYOUT_FILTERS, "tensor_nodes", depends_on_devices=False)
def _tensor_nodes(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((problem.node % rows.tp == 0) | (rows.tp % problem.node == 0))


@_filter(LAYOUT_FILTERS, "pipeline_depth", depends_on_devices=False)
def _pipeline_depth(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(rows.pp <= problem.model.layers)


@_filter(LAYOUT_FILTERS, "context_parallel", depends_on_devices=False)
def _context_parallel(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((rows.cp == 1) | (problem.sequence % (2 * rows.cp) == 0))


@_filter(LAYOUT_FILTERS, "batch", depends_on_devices=False)
def _batch(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(problem.batch % rows.dp == 0)


@_filter(LAYOUT_FILTERS, "chip_count")
def _chip_count(problem: Problem, rows: Candidates) -> Bools:
    sizes = zip(rows.stage_devices.tolist(), rows.pp.tolist(), strict=True)
    return np.array([sum(most_stages(problem, width, p)) >= p for width, p in sizes], dtype=np.bool_)


_enter_profiles(LAYOUT_FILTERS, allowed_layouts, allowed_layouts)


# Filters on variants.


@_filter(VARIANT_FILTERS, "pin", depends_on_devices=False)
def _pinned_variant(problem: Problem, rows: Candidates) -> Bools:
    return _pins(problem, rows, "variant")


@_filter(VARIANT_FILTERS, "sequence_parallel", depends_on_devices=False)
def _sequence_parallel(problem: Problem, rows: Candidates) -> Bools:
    splits = problem.sequence // rows.cp % rows.tp == 0
    return np.asarray(~rows.sequence_parallel | ((rows.tp > 1) & splits))


@_filter(VARIANT_FILTERS, "distributed_optimizer")
def _distributed_optimizer(_problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(~rows.distributed_optimizer | (rows.replicas > 1))


@_filter(VARIANT_FILTERS, "optimizer")
def _optimizer(problem: Problem, rows: Candidates) -> Bools:
    plain_will_do = problem.spec.training.sharded_switch is None
    return np.asarray(rows.distributed_optimizer | (rows.replicas == 1) | plain_will_do)


@_filter(VARIANT_FILTERS, "context_parallel")
def _exchange(_problem: Problem, rows: Candidates) -> Bools:
    gathers = (rows.cp > 1) & (rows.ulysses == 1)
    return np.asarray((rows.cp % rows.ulysses == 0) & (~rows.cp_gather | gathers))


@_filter(VARIANT_FILTERS, "context_exchange", depends_on_devices=False)
def _context_exchange(problem: Problem, rows: Candidates) -> Bools:
    heads, groups = problem.model.heads // rows.tp, np.maximum(1, problem.model.kv_heads // rows.tp)
    even = (heads % rows.ulysses == 0) & (groups % rows.ulysses == 0)
    if problem.model.attention.sliding_window is not None:
        even &= (rows.cp == rows.ulysses) | rows.cp_gather
    return np.asarray(even)


@_filter(VARIANT_FILTERS, "experts", depends_on_devices=False)
def _experts(problem: Problem, rows: Candidates) -> Bools:
    moe = problem.model.moe
    if moe is None:
        return np.asarray((rows.ep == 1) & (rows.etp == 1))
    divided = (moe.experts % rows.ep == 0) & (moe.expert_ffn % rows.etp == 0) & (rows.tp % rows.etp == 0)
    return np.asarray(divided & (rows.stage_devices % (rows.etp * rows.ep) == 0))


@_filter(VARIANT_FILTERS, "expert_sequence_parallel", depends_on_devices=False)
def _expert_sequence_parallel(problem: Problem, rows: Candidates) -> Bools:
    if problem.model.moe is None:
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray((rows.tp == 1) | rows.sequence_parallel)


@_filter(VARIANT_FILTERS, "sharding")
def _sharding(problem: Problem, rows: Candidates) -> Bools:
    deep, group = rows.sharded > 1, rows.sharding_group
    allowed = ~deep | (rows.distributed_optimizer & (rows.replicas > 1) & (rows.pp == 1))
    grouped = (group > 1) & (group < rows.replicas) & (rows.replicas % np.maximum(1, group) == 0)
    allowed &= (group == 0) | (rows.distributed_optimizer & grouped)
    if problem.model.moe is not None:
        each, some = rows.expert_replicas, np.maximum(1, group)
        allowed &= (group == 0) | (each % some == 0) | (some % each == 0)
    return np.asarray(allowed)


_enter_profiles(VARIANT_FILTERS, allowed_variants, runs_variants)


# Filters on frames.


@_filter(FRAME_FILTERS, "pin")
def _pinned_frame(problem: Problem, rows: Candidates) -> Bools:
    allowed = _pins(problem, rows, "frame")
    for stage, count in enumerate(pinned := problem.spec.search.pin.layers or ()):
        short = (stage == 0) * rows.embedding_slot + (stage == len(pinned) - 1) * rows.loss_slot
        allowed &= (count + short) % rows.vpp == 0
    return allowed


@_filter(FRAME_FILTERS, "even_chunks")
def _even_chunks(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(rows.places(problem.model.layers) % rows.vpp == 0)


@_filter(FRAME_FILTERS, "interleaving")
def _interleaving(_problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((rows.vpp == 1) | ((rows.pp > 1) & (rows.microbatches % rows.pp == 0)))


@_filter(FRAME_FILTERS, "layer_split")
def _layer_split(problem: Problem, rows: Candidates) -> Bools:
    if problem.spec.search.layer_split != "even":
        return np.ones(len(rows), dtype=np.bool_)
    slots = rows.embedding_slot + rows.loss_slot
    alike = (slots == 0) | ((slots == 2) & (rows.pp == 2))  # two stages may each be one layer short
    return np.asarray(alike & (rows.places(problem.model.layers) % (rows.pp * rows.vpp) == 0))


_enter_profiles(FRAME_FILTERS, allowed_frames, allowed_frames)
