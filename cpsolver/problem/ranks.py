"""Which ranks form which group, and where each rank stands: Megatron's order, which the other launchers share.

Two grids lie over the same ranks, the leftmost index varying fastest (core/parallel_state.py, RankGenerator, order
tp-cp-ep-dp-pp): dense layers tp, cp, dp, pp; experts etp, ep, expert-dp, pp. DeepSpeed's topology (pipe, data, model),
torchtitan's mesh (pp, dp_replicate, dp_shard, cp, tp), accelerate's and FlagScale's meshes one after the other are the
same numbering. Mixed chips: ranks of a stage sit on nodes of its chip, so node ranks follow the plan's stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem, Supply

Ints = NDArray[np.int64]

MEANINGS = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "cp_a2a": "context parallel, all-to-all part",
    "cp_p2p": "context parallel, ring part",
    "dp": "data parallel",
    "dp_cp": "data x context parallel: gradients of dense layers",
    "instance": "replicas that share the states out",
    "pp": "pipeline parallel",
    "model": "all ranks of one replica's shard of cp (tp x pp)",
    "embedding": "first and last stage, with tied embeddings",
    "ep": "expert parallel",
    "etp": "expert tensor parallel",
    "edp": "expert data parallel: gradients of experts",
}
"""Kind of group -> what it is."""


@dataclass(frozen=True)
class Place:
    """One rank: its node and device there, its chip, and its index in each dimension of both grids."""

    rank: int
    node: int
    device: int
    chip: str
    pp: int
    dp: int
    cp: int
    tp: int
    edp: int
    ep: int
    etp: int


@dataclass(frozen=True)
class NodeBlock:
    """Neighbouring nodes with the same chip and the same stages; all three count from 0."""

    chip: str
    nodes: range
    stages: range
    ranks: range


@dataclass(frozen=True)
class RankMap:
    """Groups and places of every rank of a plan. `node`: devices in a node."""

    strategy: Strategy
    node: int
    experts: bool
    tied: bool

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.strategy.devices

    @property
    def expert_replicas(self) -> int:
        """Size of expert data parallelism; ZeroDivisionError and remainders are for the rule `experts`."""
        s = self.strategy
        return s.stage_devices // (s.etp * s.ep)

    @cached_property
    def dense(self) -> Ints:
        """Ranks by [pp, dp, cp, tp]."""
        s = self.strategy
        return np.arange(self.size).reshape(s.pp, s.dp, s.cp, s.tp)

    @cached_property
    def expert(self) -> Ints:
        """Ranks by [pp, expert dp, ep, etp]."""
        s = self.strategy
        return np.arange(self.size).reshape(s.pp, self.expert_replicas, s.ep, s.etp)

    @cached_property
    def groups(self) -> dict[str, Ints]:
        """Kind -> one row a group, rows by their first rank. Kinds that the plan does not have are left out."""
        s, found = self.strategy, {"tp": _along(self.dense, 3), "cp": _along(self.dense, 2)}
        if s.cp_comm_type == "a2a+p2p":
            rings = s.cp // s.ulysses
            nested = self.dense.reshape(s.pp, s.dp, rings, s.ulysses, s.tp)
            found |= {"cp_a2a": _along(nested, 3), "cp_p2p": _along(nested, 2)}
        replicas = self.dense.reshape(s.pp, s.replicas, s.tp)
        found |= {"dp": _along(self.dense, 1), "dp_cp": _along(replicas, 1)}
        if s.grouped:
            parts = replicas.reshape(s.pp, -1, s.sharding_ranks, s.tp)
            found["instance"] = _along(parts, 2)
        shards = self.dense.transpose(1, 2, 0, 3).reshape(s.dp * s.cp, s.pp * s.tp)
        found |= {"pp": _along(self.dense, 0), "model": _sorted(shards)}
        if self.tied and s.pp > 1:
            found["embedding"] = found["pp"][:, [0, -1]]
        if self.experts:
            found |= {"ep": _along(self.expert, 2), "etp": _along(self.expert, 3), "edp": _along(self.expert, 1)}
        return found

    def place(self, rank: int) -> Place:
        """Where a rank stands."""
        s = self.strategy
        pp, dp, cp, tp = (int(index) for index in np.unravel_index(rank, self.dense.shape))
        _, edp, ep, etp = (int(index) for index in np.unravel_index(rank, self.expert.shape))
        return Place(rank, rank // self.node, rank % self.node, s.stage_chips[pp], pp, dp, cp, tp, edp, ep, etp)

    def places(self) -> Iterator[Place]:
        """Every rank in order."""
        return (self.place(rank) for rank in range(self.size))


FAST_DOMAIN = "fast domain"
"""The innermost level: devices that share NVLink or its like."""


def levels_crossed(problem: Problem, ranks: RankMap) -> dict[str, dict[str, int]]:
    """Kind of group -> level -> how many groups' traffic goes through it, no further; the cheapest level first.

    A level is there for what leaves the units inside it. Empty without a network in the spec.
    """
    if problem.network is None:
        return {}
    found: dict[str, dict[str, int]] = {}
    chips = np.array([problem.chip_names.index(name) for name in ranks.strategy.stage_chips])
    of_rank = np.repeat(chips, ranks.size // len(chips))
    for kind, groups in ranks.groups.items():
        counts: dict[str, int] = {}
        for place, supply in enumerate(problem.supplies):
            own = groups[of_rank[groups[:, 0]] == place]
            for name, number in _through(problem, supply, own):
                counts[name] = counts.get(name, 0) + number
        found[kind] = counts
    return found


def _through(problem: Problem, supply: Supply, groups: Ints) -> Iterator[tuple[str, int]]:
    """The groups, whose first ranks are on that chip, by the outermost level that their traffic goes through."""
    assert problem.network is not None
    left, name = groups, FAST_DOMAIN
    for tier in problem.network.tiers(supply.chip):
        crosses = (left // tier.unit != left[:, :1] // tier.unit).any(axis=1)
        if not crosses.all():
            yield name, int((~crosses).sum())
        left, name = left[crosses], tier.name
    if len(left):
        yield name, len(left)


def rank_map(problem: Problem, strategy: Strategy) -> RankMap:
    """The rank map of a plan that keeps the rules `degrees` and `experts`."""
    model = problem.model
    return RankMap(strategy, min(problem.node, strategy.devices), model.moe is not None, model.tied_embeddings)


def node_blocks(problem: Problem, strategy: Strategy) -> tuple[NodeBlock, ...]:
    """Nodes in the order of their ranks, those with the same chip and the same stages together.

    Stages smaller than a node share one; where stages fill nodes, each block is one stage.
    """
    node = min(problem.node, strategy.devices)
    per_stage, chips = strategy.stage_devices, strategy.stage_chips

    def stages(index: int) -> tuple[int, int]:
        return index * node // per_stage, ((index + 1) * node - 1) // per_stage

    found = []
    for (first, last), alike in groupby(range(strategy.devices // node), key=stages):
        nodes = list(alike)
        block, ranks = range(nodes[0], nodes[-1] + 1), range(nodes[0] * node, (nodes[-1] + 1) * node)
        found.append(NodeBlock(chips[first], block, range(first, last + 1), ranks))
    return tuple(found)


def _along(grid: Ints, axis: int) -> Ints:
    return _sorted(np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]))


def _sorted(groups: Ints) -> Ints:
    return groups[np.argsort(groups[:, 0], kind="stable")]
