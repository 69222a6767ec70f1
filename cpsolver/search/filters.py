"""The rules on degrees and flags as masks over many rows: one filter per rule of rules/ with the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd
from typing import Any, Literal

import numpy as np

from cpsolver.cost.adapters import every_adapter, splits_rank
from cpsolver.cost.breadth_first import runs_fold3d
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.recurrence import split_heads
from cpsolver.cost.schedules import V_CHUNKS, has_schedule, shares_table
from cpsolver.cost.shard import Bools, Candidates, Ints
from cpsolver.cost.split_backward import V_MICROBATCHES
from cpsolver.plans.dimensions import DIMENSIONS, names
from cpsolver.problem.problem import Problem
from cpsolver.profiles.expert_overlap import has_exchange
from cpsolver.profiles.framework import Framework
from cpsolver.profiles.judging import allowed_rows

Filter = Callable[[Problem, Candidates], Bools]
Part = Literal["layout", "variant", "frame"]

LAYOUT_FILTERS: dict[str, Filter] = {}
"""Filters on layouts: tp, cp, pp, dp. Rows are counted for the first that refuses them, in the order of this module."""
VARIANT_FILTERS: dict[str, Filter] = {}
"""Filters on variants of a layout: flags, how cp communicates, experts' grid, sharding."""
FRAME_FILTERS: dict[str, Filter] = {}
"""Filters on frames of a layout: micro batch and chunks."""
ANY_SIZE: set[Filter] = set()
"""Those that look at nothing but what all numbers of devices share."""


def mask(rule: str, part: Part, any_size: bool = False) -> Callable[[Filter], Filter]:
    """Register the function below as the rule's filter on a part of the decisions; `any_size`: see ANY_SIZE."""
    filters = {"layout": LAYOUT_FILTERS, "variant": VARIANT_FILTERS, "frame": FRAME_FILTERS}[part]

    def register(allows: Filter) -> Filter:
        filters[rule] = allows
        ANY_SIZE.update([allows] if any_size else [])
        return allows

    return register


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
        allowed &= _choice(rows.unfolded(name), _codes(name, getattr(pin, name)), _codes(name, getattr(forbid, name)))
    return allowed


def _codes(name: str, values: Iterable[Any] | None) -> list[int] | None:
    """Values of a decision as its column has them; None: nothing is asked."""
    return None if values is None else [DIMENSIONS[name].code(value) for value in values]


def _frameworks(part: Part) -> None:
    """Register what the rules `launcher` and `stack` say of a part, by the facts of their frameworks."""
    mask("launcher", part)(lambda problem, rows: _can_run(problem, rows, problem.named_launcher, part))
    mask("stack", part)(lambda problem, rows: _can_run(problem, rows, problem.stack.runs, part))


def _can_run(problem: Problem, rows: Candidates, framework: Framework | None, part: Part) -> Bools:
    if framework is None:
        return np.ones(len(rows), dtype=np.bool_)
    allowed = allowed_rows(framework, problem.model, rows, part)
    mixture = allowed_rows(framework, problem.model, rows, "mixture")
    return np.asarray(allowed & (mixture | _one_type_will_do(problem, rows)))


def may_mix(problem: Problem, rows: Candidates) -> Bools:
    """The rows whose plans may have several chip types, as far as launcher and stack go; what is open hinders none.

    For the others arrangements.py knows mixes of a single type only.
    """
    if problem.launcher is None:
        return np.asarray(~rows.v_shaped)
    return np.asarray(allowed_rows(problem.launcher, problem.model, rows, "mixture") & ~rows.v_shaped)


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


@mask("pin", "layout")
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
    return (
        problem.spec.search.allows("stages", pp, name)
        and (pin.chip_order is None or name in pin.chip_order)
        and forbid.chip_order != (name,)
        and forbid.stage_chips != (name,) * pp
        and (pin.stage_chips is None or pin.stage_chips == (name,) * pp)
    )


@mask("heads", "layout", any_size=True)
def _heads(problem: Problem, rows: Candidates) -> Bools:
    allowed = problem.model.heads % rows.tp == 0
    if problem.encoder is not None and not problem.whole_encoder:
        allowed &= problem.encoder.model.heads % rows.tp == 0
    if problem.model.attention.o_groups is not None:
        allowed &= problem.model.attention.o_groups % rows.tp == 0
    return np.asarray(allowed & _recurrent(problem, rows))


def _recurrent(problem: Problem, rows: Candidates) -> Bools:
    """Where heads and groups of layers without attention are split evenly over tp and cp."""
    allowed, mamba = np.ones(len(rows), dtype=np.bool_), problem.model.mamba
    for count in split_heads(problem.model).values():
        allowed &= count % (rows.tp * rows.cp) == 0
    if mamba is not None:
        groups = np.maximum(1, mamba.groups // rows.tp)
        allowed &= (mamba.groups % rows.tp == 0) & ((groups % rows.cp == 0) | (rows.cp % groups == 0))
    return allowed


@mask("kv_groups", "layout", any_size=True)
def _kv_groups(problem: Problem, rows: Candidates) -> Bools:
    own, allowed = problem.model.attention.global_kv_heads, np.ones(len(rows), dtype=np.bool_)
    for groups in (problem.model.kv_heads, *(() if own is None else (own,))):
        allowed &= (groups % rows.tp == 0) | (rows.tp % groups == 0)
    return np.asarray(allowed)


@mask("feed_forward", "layout", any_size=True)
def _feed_forward(problem: Problem, rows: Candidates) -> Bools:
    model, allowed = problem.model, np.ones(len(rows), dtype=np.bool_)
    if any(part.dense for kind in layer_kinds(model) for part, _ in kind.parts):
        allowed &= model.ffn % rows.tp == 0
    if model.moe is not None and model.moe.shared_experts:
        allowed &= model.moe.shared_width % rows.tp == 0
    return allowed


@mask("adapters", "layout", any_size=True)
def _adapters(problem: Problem, rows: Candidates) -> Bools:
    lora = problem.lora
    if lora is None or not splits_rank(problem):
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray(lora.rank % rows.tp == 0)


@mask("adapters", "variant", any_size=True)
def _whole_adapters(problem: Problem, rows: Candidates) -> Bools:
    every, allowed = every_adapter(problem), np.ones(len(rows), dtype=np.bool_)
    if any(each.routed for each in every):
        allowed &= rows.etp == 1
    if any(each.whole for each in every):
        allowed &= (rows.tp == 1) | ~rows.sequence_parallel
    return allowed


@mask("tensor_nodes", "layout", any_size=True)
def _tensor_nodes(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((problem.node % rows.tp == 0) | (rows.tp % problem.node == 0))


@mask("pipeline_depth", "layout", any_size=True)
def _pipeline_depth(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(rows.pp <= problem.model.layers)


@mask("layer_offload", "layout", any_size=True)
def _layer_offload(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((rows.pp == 1) | (problem.spec.training.offload_layers == 0))


@mask("context_parallel", "layout", any_size=True)
def _context_parallel(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((rows.cp == 1) | (problem.sequence % (2 * rows.cp) == 0))


@mask("batch", "layout", any_size=True)
def _batch(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(problem.batch % rows.dp == 0)


@mask("chip_count", "layout")
def _chip_count(problem: Problem, rows: Candidates) -> Bools:
    sizes = zip(rows.stage_devices.tolist(), rows.pp.tolist(), strict=True)
    return np.array([sum(most_stages(problem, width, p)) >= p for width, p in sizes], dtype=np.bool_)


_frameworks("layout")


# Filters on variants of a layout: flags, how cp communicates, experts' grid, sharding.


@mask("pin", "variant", any_size=True)
def _pinned_variant(problem: Problem, rows: Candidates) -> Bools:
    return _pins(problem, rows, "variant")


@mask("sequence_parallel", "variant", any_size=True)
def _sequence_parallel(problem: Problem, rows: Candidates) -> Bools:
    splits = problem.sequence // rows.cp % rows.tp == 0
    asked = problem.spec.training.recompute_mla_up_proj
    return np.asarray(np.where(rows.sequence_parallel, (rows.tp > 1) & splits, (rows.tp == 1) | (not asked)))


@mask("distributed_optimizer", "variant")
def _distributed_optimizer(_problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(~rows.distributed_optimizer | (rows.replicas > 1))


@mask("optimizer", "variant")
def _optimizer(problem: Problem, rows: Candidates) -> Bools:
    plain_will_do, elements = problem.sharded_switch is None, not problem.spec.training.whole_matrices
    of_all = (rows.sharded == 1) & (rows.sharding_group == 0)
    return np.asarray((rows.distributed_optimizer | (rows.replicas == 1) | plain_will_do) & (elements | of_all))


@mask("context_parallel", "variant")
def _exchange(_problem: Problem, rows: Candidates) -> Bools:
    gathers = (rows.cp > 1) & (rows.ulysses == 1)
    return np.asarray((rows.cp % rows.ulysses == 0) & (~rows.cp_gather | gathers))


@mask("context_exchange", "variant", any_size=True)
def _context_exchange(problem: Problem, rows: Candidates) -> Bools:
    heads, groups = problem.model.heads // rows.tp, np.maximum(1, problem.model.kv_heads // rows.tp)
    repeated = problem.repeats_keys & (groups < rows.ulysses)
    even = (heads % rows.ulysses == 0) & ((groups % rows.ulysses == 0) | repeated)
    if problem.model.attention.indexer is not None:
        exchanged = problem.exchanges_selected & (rows.cp == rows.ulysses)
        even &= (rows.cp == 1) | rows.cp_gather | exchanged
    if problem.model.attention.sliding_window is not None:
        even &= (rows.cp == rows.ulysses) | rows.cp_gather
    return np.asarray(even)


@mask("experts", "variant", any_size=True)
def _experts(problem: Problem, rows: Candidates) -> Bools:
    moe = problem.model.moe
    swapped = problem.spec.training.mla_swap_core_attn_out
    zero = problem.spec.training.moe_zero_memory is not None
    if moe is None:
        return np.asarray((rows.ep == 1) & (rows.etp == 1) & (not zero) & (not swapped))
    apart = (rows.ep > 1) & (problem.dispatcher == "alltoall") if zero or swapped else True
    apart = apart & (rows.etp == 1) if swapped else apart
    divided = apart & (moe.experts % rows.ep == 0) & (moe.expert_ffn % rows.etp == 0) & (rows.tp % rows.etp == 0)
    return np.asarray(divided & (rows.stage_devices % (rows.etp * rows.ep) == 0))


@mask("expert_sequence_parallel", "variant", any_size=True)
def _expert_sequence_parallel(problem: Problem, rows: Candidates) -> Bools:
    if problem.model.moe is None:
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray((rows.tp == 1) | rows.sequence_parallel)


@mask("expert_overlap", "variant", any_size=True)
def _expert_overlap(problem: Problem, rows: Candidates) -> Bools:
    may = has_exchange(problem.model, rows) & (problem.spec.training.moe_zero_memory is None)
    may &= not problem.gathers_tokens
    return np.asarray(~rows.expert_overlap | may)


@mask("sharding", "variant")
def _sharding(problem: Problem, rows: Candidates) -> Bools:
    deep, group = rows.sharded > 1, rows.sharding_group
    allowed = ~deep | (rows.distributed_optimizer & (rows.replicas > 1) & (rows.pp == 1))
    if problem.spec.training.parameter_offload:
        allowed &= rows.distributed_optimizer & (rows.sharded == 3)
    grouped = (group > 1) & (group < rows.replicas) & (rows.replicas % np.maximum(1, group) == 0)
    allowed &= (group == 0) | (rows.distributed_optimizer & grouped)
    if problem.model.moe is not None:
        groups = np.maximum(1, rows.replicas // np.maximum(1, group))
        allowed &= (group == 0) | (rows.expert_replicas % groups == 0)
    return np.asarray(allowed)


_frameworks("variant")


# Filters on frames of a layout: micro batch and chunks.


@mask("pin", "frame")
def _pinned_frame(problem: Problem, rows: Candidates) -> Bools:
    allowed = _pins(problem, rows, "frame")
    pinned = problem.spec.search.pin.layers or ()
    both_ways, fold = rows.both_ways, _folds(pinned)
    allowed &= ~both_ways | (not pinned) | (False if fold is None else rows.loss_slot == fold)
    for stage, count in enumerate(pinned):
        head = np.where(rows.v_shaped, 0, len(pinned) - 1)
        short = (stage == 0) * rows.embedding_slot + (stage == head) * rows.loss_slot
        allowed &= both_ways | ((count + short) % rows.vpp == 0)
    return allowed


def _folds(layers: tuple[int, ...]) -> int | None:
    """By how many layers the last of these stages is short of the first, where all other pairs are alike."""
    pairs = list(zip(layers, reversed(layers), strict=True))
    return layers[0] - layers[-1] if pairs and all(one == other for one, other in pairs[1:-1]) else None


@mask("even_chunks", "frame")
def _even_chunks(problem: Problem, rows: Candidates) -> Bools:
    places, last = rows.places(problem.model.layers), np.maximum(1, rows.loss_slot)  # layers of the last stage's chunks
    last = last + (rows.both_ways & (rows.loss_slot > 0))  # there a layer stands beside the head
    return np.asarray((places % rows.vpp == 0) & ((rows.loss_slot == 0) | (rows.vpp * (rows.pp - 1 + last) <= places)))


@mask("interleaving", "frame")
def _interleaving(problem: Problem, rows: Candidates) -> Bools:
    one_group = rows.one_group & (rows.microbatches >= rows.pp) & (not runs_fold3d(problem))
    whole = rows.v_shaped | one_group | (rows.microbatches % rows.pp == 0)
    return np.asarray((rows.vpp == 1) | rows.both_ways | ((rows.pp > 1) & whole))


@mask("schedule", "frame")
def _schedule(problem: Problem, rows: Candidates) -> Bools:
    has = np.array([False, *(has_schedule(problem, name) for name in DIMENSIONS["schedule"].values)])
    v_shaped = (rows.vpp == V_CHUNKS) & (rows.microbatches >= V_MICROBATCHES * rows.pp) & (not shares_table(problem))
    v_shaped &= _one_type_will_do(problem, rows)
    v_shaped &= problem.lora is None
    others = np.where(rows.one_group, rows.vpp > 1, (rows.vpp == 1) & (problem.lora is None))
    suits = np.where(rows.v_shaped, v_shaped & _folded_whole(problem, rows), others) & (problem.encoder is None)
    beside_passes = rows.schedule == DIMENSIONS["schedule"].code("dualpipev")
    if problem.spec.training.recompute_mla_up_proj:
        suits &= ~(rows.v_shaped | rows.both_ways) | beside_passes
    if problem.spec.training.mla_swap_core_attn_out:
        suits &= beside_passes
    several = (rows.pp > 1) | rows.both_ways
    plain = (rows.schedule == 1) & (not problem.spec.training.mla_swap_core_attn_out)
    return np.asarray(plain | (several & suits & has[rows.schedule]))


def _folded_whole(problem: Problem, rows: Candidates) -> Bools:
    """Rows of BOTH_WAYS whose layouts have an even number of stages and of microbatches; and all others."""
    whole = rows.stage_devices * rows.pp == problem.num_gpus
    whole &= problem.batch % (rows.mbs * rows.dp) == 0
    return np.asarray(~rows.both_ways | (whole & (not problem.mixed)))


@mask("layer_split", "frame")
def _layer_split(problem: Problem, rows: Candidates) -> Bools:
    if problem.spec.search.layer_split != "even":
        free = problem.spec.search.layer_split == "auto"
        return np.asarray(free | ~rows.both_ways | (rows.loss_slot == 0))
    again = problem.spec.training.recompute_mlp_layers
    alike = (rows.embedding_slot == rows.loss_slot) & ((again == 0) | ((rows.schedule == 1) & (again % rows.pp == 0)))
    alike &= (rows.loss_slot == 0) | (rows.pp == 2)  # two stages may each be one layer short
    return np.asarray(alike & (rows.places(problem.model.layers) % (rows.pp * rows.vpp) == 0))


_frameworks("frame")
