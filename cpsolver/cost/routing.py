"""Seconds that a layer's experts take to receive their tokens and send the results back.

Megatron's order (core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher): an all-to-all over the ranks
that shard the experts, an all-gather over those that share an expert; results go back by a reduce-scatter and an
all-to-all. MoEAllGatherTokenDispatcher gathers all tokens on both at once, and sums all results where they belong.
Experts have a grid of their own: an expert's `etp` ranks are neighbours, its `ep` groups stand `etp` devices apart.
"""

from __future__ import annotations

from math import comb

import numpy as np

from cpsolver.cost.collectives import collective_seconds, ranks_inside, tensor_parallel_seconds
from cpsolver.cost.gemms import copies_sent, routed_load
from cpsolver.cost.shard import Floats, Ints, Shard
from cpsolver.problem.problem import Problem
from hw_specs import Chip
from models_zoo.schema import Moe


def routing_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Tokens to their experts and back, in seconds, one direction of the model, hidden or not: two all-to-alls, or an
    all-gather and a reduce-scatter.

    Every device sends the tokens it holds, with sequence parallelism its share of them; the one whose experts are asked
    most receives more than it sends, and all wait for it.
    """
    if problem.gathers_tokens:
        every, near = gathered_tokens(problem, shard) * problem.model.expert_width, np.ones_like(shard.ep)
        payload, ranks = every * problem.element_bytes, shard.ep * shard.etp
        there = collective_seconds(problem, chip, "all_gather", payload, ranks, near)
        return there + collective_seconds(problem, chip, "reduce_scatter", payload, ranks, near)
    back = _exchange_seconds(problem, chip, shard, problem.element_bytes)
    same = problem.dispatch_bytes == problem.element_bytes
    return np.asarray((back if same else dispatch_seconds(problem, chip, shard)) + back)


def gathered_tokens(problem: Problem, shard: Shard) -> Floats:
    """Tokens that the ranks which share experts out hold together: where they are gathered, what each of them gets."""
    return shard.tokens(problem.sequence) / shard.sequence_split * shard.ep * shard.etp


def dispatch_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Tokens to their experts alone, in seconds: one all-to-all."""
    return _exchange_seconds(problem, chip, shard, problem.dispatch_bytes)


def _exchange_seconds(problem: Problem, chip: Chip, shard: Shard, bytes_each: float) -> Floats:
    own = shard.tokens(problem.sequence) / shard.sequence_split
    each = own * _copies_sent(problem, chip, shard) * _load(problem, shard) * problem.model.expert_width
    return collective_seconds(problem, chip, "all_to_all", each * bytes_each, shard.ep, shard.etp)


def hidden_seconds(problem: Problem, shard: Shard, exchange: Floats, compute: Floats) -> Floats:
    """Of an exchange in one direction, what travels under another microbatch's compute where the plan overlaps.

    The stack's share of it, and no more than there is to travel under: of both passes over a layer, `compute` seconds
    each in the mean, whose exchanges travel beside the passes of another microbatch.
    """
    hidden = np.minimum(problem.stack.routing_overlap * exchange, compute)
    return np.asarray(np.where(shard.expert_overlap, hidden, 0.0))


def expert_tensor_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Hidden states communicated by the ranks that share an expert, in seconds, one direction of the model.

    A device receives the tokens of one tensor-parallel rank, once for each expert that a token visits; its group
    brings `etp` times that together. Shared experts are cut by `tp` whatever `etp`, and communicate the hidden states
    once; where the two sizes are equal this is left out, as it was when the constants were fitted.
    """
    tokens, model = shard.tokens(problem.sequence), problem.model
    whole = tokens * model.hidden * problem.element_bytes
    latent = tokens * model.expert_width * problem.element_bytes
    received = latent * (shard.etp / shard.tp) * _load(problem, shard)
    routed = copies_sent(problem) * tensor_parallel_seconds(problem, chip, shard, received, shard.etp)
    if problem.gathers_tokens:  # by the same collectives as over ep
        routed = np.zeros(len(shard.tp))
    if not _moe(problem).shared_experts:
        return routed
    shared = tensor_parallel_seconds(problem, chip, shard, whole, shard.tp)
    return routed + np.where(shard.etp == shard.tp, 0.0, shared)


def reordered_rows(problem: Problem, shard: Shard) -> Floats:
    """Hidden states that a device reads and writes to bring tokens into the experts' order and back, in one direction
    of the model, for each token that it holds.

    A kernel reads a token once and writes it wherever it goes; on the way back it reads all copies and writes their sum
    (Transformer Engine d0067d0, common/triton/permutation.py). The all-to-all dispatcher makes copies before it sends
    them, and sorts what arrives where a device has several experts. The others make copies where they arrive
    (Megatron-LM d98e8a6, core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher and _DeepepManager). A
    device that gathers all tokens writes sums for all of them, also for those that none of its experts has.
    """
    copies = copies_sent(problem)
    if problem.gathers_tokens:
        return np.asarray(shard.etp * (_places_reached(problem, shard.ep) + 2.0 * copies + shard.ep))
    if problem.copies_once:
        return np.asarray(2.0 * shard.etp * (_places_reached(problem, shard.ep) + copies))
    sorted_rows = np.where(_moe(problem).experts > shard.ep, 4.0 * shard.etp * copies, 0.0)
    return 2.0 * (1 + copies) + sorted_rows


def _copies_sent(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Copies of a token that leave its device: one to each expert, or where the dispatcher can, one to each node.

    Where one node has all experts, one to each rank.
    """
    if not problem.copies_once:
        return np.full(len(shard.ep), copies_sent(problem))
    inside = ranks_inside(problem, chip, shard.ep, shard.etp)
    nodes = np.maximum(1, shard.ep // inside)
    return _places_reached(problem, np.where(nodes > 1, nodes, shard.ep))


def _places_reached(problem: Problem, places: Ints) -> Floats:
    """Of so many places with as many experts each, how many have one of a token's: the mean over routers' choices.

    The router takes `top_groups` of its groups, any of them, and experts anywhere in these. A place has whole groups,
    or a group lies in several places (arXiv:2412.19437, 2.1.2, "node-limited").
    """
    moe = _moe(problem)
    groups, taken, travels = moe.groups, moe.top_groups, copies_sent(problem) / moe.top_k
    if taken == groups:
        return np.asarray(places * (1 - (1 - travels / places) ** moe.top_k))
    inside = np.maximum(1, groups // places)  # groups of a place
    share = np.minimum(1.0, groups / places)  # of a group, that a place has
    missed = np.zeros(len(places))
    for here in range(taken + 1):  # of the groups taken, so many are the place's: hypergeometric
        ways = [comb(own, here) * comb(groups - own, taken - here) / comb(groups, taken) for own in range(groups + 1)]
        missed = missed + np.array(ways)[inside] * (1 - travels * here * share / taken) ** moe.top_k
    return np.asarray(places * (1 - missed))


def _load(problem: Problem, shard: Shard) -> Floats:
    """Tokens that the most loaded device receives against the mean; a device that holds all experts receives all."""
    return np.where(shard.ep > 1, routed_load(problem), 1.0)


def _moe(problem: Problem) -> Moe:
    moe = problem.model.moe
    assert moe is not None
    return moe
