"""Which ranks form which group, and where each rank stands: Megatron's order, which the other launchers share.

Two grids lie over the same ranks, the leftmost index varying fastest (core/parallel_state.py, RankGenerator, order
tp-cp-ep-dp-pp): dense layers tp, cp, dp, pp; experts etp, ep, expert-dp, pp. DeepSpeed's topology (pipe, data, model),
torchtitan's mesh (pp, dp_replicate, dp_shard, cp, tp), accelerate's and FlagScale's meshes one after the other are the
same numbering. Mixed chips: ranks of a stage sit on nodes of its chip, so node ranks follow the plan's stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from cpsolver.inputs.language import later
from cpsolver.plans.strategy import Mesh, Strategy
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
    "expert_instance": "replicas of experts that share the states out",
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
            if s.grouped:
                parts = self.expert.reshape(s.pp, s.replicas // s.sharding_ranks, -1, s.ep, s.etp)
                found["expert_instance"] = _along(parts, 2)
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


@dataclass(frozen=True)
class MeshRanks:
    """One mesh of a plan: its chip and degrees, its stages and ranks as the plan counts them; `own`: its map from 0."""

    chip: str
    mesh: Mesh
    stages: range
    ranks: range
    own: RankMap

    @cached_property
    def groups(self) -> dict[str, Ints]:
        """Kind -> one row a group, of the kinds that stay inside the mesh."""
        return {kind: rows + self.ranks[0] for kind, rows in self.own.groups.items() if kind not in ("pp", "model")}


@dataclass(frozen=True)
class Border:
    """Two neighbouring meshes by their places; `pairs` (n, 2): who sends activations, who receives them, by sender."""

    before: int
    after: int
    pairs: Ints


@dataclass(frozen=True)
class MeshMap:
    """The same of a plan whose degrees differ by chip type. A stage's ranks are those of its mesh."""

    strategy: Strategy
    node: int
    experts: bool
    tied: bool

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.strategy.devices

    @cached_property
    def meshes(self) -> tuple[MeshRanks, ...]:
        """The meshes in the pipeline's order."""
        found, stage, rank = list[MeshRanks](), 0, 0
        for mesh, groups in self.strategy.meshes:
            pp = sum(group.num_stages for group in groups)
            alone = replace(self.strategy.of(mesh), pp=pp, groups=tuple(replace(group, mesh=None) for group in groups))
            own = RankMap(alone, self.node, self.experts, tied=False)
            stages, ranks = range(stage, stage + pp), range(rank, rank + own.size)
            found.append(MeshRanks(groups[0].chip, mesh, stages, ranks, own))
            stage, rank = stages.stop, ranks.stop
        return tuple(found)

    @cached_property
    def borders(self) -> tuple[Border, ...]:
        """Where one mesh's last stage sends to the next one's first."""
        found = list[Border]()
        for after, (one, other) in enumerate(pairwise(self.meshes), start=1):
            first = np.array([one.ranks.stop - one.mesh.stage_devices, other.ranks.start])
            found.append(Border(after - 1, after, _passing(one.mesh, other.mesh) + first))
        return tuple(found)

    @cached_property
    def groups(self) -> dict[str, Ints]:
        """Kind -> one row a group, of the kinds that cross meshes: a group for every way through the pipeline.

        A rank at a border to more of the next mesh is in several. `model` has the ways of whole replicas.
        """
        pairs = list(pairwise(mesh.mesh for mesh in self.meshes))
        found = {
            "pp": self._ways("pp", [_passing(one, other) for one, other in pairs]),
            "model": self._ways("model", [_replicas(one, other) for one, other in pairs]),
        }
        if self.tied:
            found["embedding"] = np.unique(found["pp"][:, [0, -1]], axis=0)
        return found

    def _ways(self, kind: str, links: list[Ints]) -> Ints:
        """Groups of that kind in each mesh one after the other; `links`: which of a mesh go with which of the next."""
        rows = [mesh.own.groups[kind] + mesh.ranks[0] for mesh in self.meshes]
        ways = np.arange(len(rows[0]))[:, None]
        for pairs in links:
            first, end = (np.searchsorted(pairs[:, 0], ways[:, -1], side) for side in ("left", "right"))
            way = np.repeat(np.arange(len(ways)), end - first)
            at = np.arange(len(way)) - np.repeat(np.cumsum(end - first) - end, end - first)
            ways = np.column_stack([ways[way], pairs[at, 1]])
        return np.concatenate([groups[ways[:, place]] for place, groups in enumerate(rows)], axis=1)

    def place(self, rank: int) -> Place:
        """Where a rank stands; its index in each dimension but pp is that in its mesh."""
        part = next(mesh for mesh in self.meshes if rank in mesh.ranks)
        own = part.own.place(rank - part.ranks[0])
        return replace(own, rank=rank, node=rank // self.node, device=rank % self.node, pp=own.pp + part.stages[0])

    def places(self) -> Iterator[Place]:
        """Every rank in order."""
        return (self.place(rank) for rank in range(self.size))


def _passing(one: Mesh, other: Mesh) -> Ints:
    """Who sends to whom, by their places in the stages at a border, (n, 2)."""
    return _both(_overlapping(one.dp, other.dp), _overlapping(one.tp * one.cp, other.tp * other.cp), one, other)


def _replicas(one: Mesh, other: Mesh) -> Ints:
    """Which replicas' shards of the sequence go together, by dp x cp in both, (n, 2)."""
    return _both(
        _overlapping(one.dp, other.dp), _overlapping(one.cp, other.cp), replace(one, tp=1), replace(other, tp=1)
    )


def _both(slow: Ints, fast: Ints, one: Mesh, other: Mesh) -> Ints:
    """Pairs of two dimensions as pairs of places, the second dimension the faster, by the first place."""
    sizes = np.array([one.tp * one.cp, other.tp * other.cp])
    pairs: Ints = (slow[:, None, :] * sizes + fast[None, :, :]).reshape(-1, 2)
    order: Ints = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return pairs[order]


def _overlapping(one: int, other: int) -> Ints:
    """Which of `one` equal parts of a whole overlap which of `other`, (n, 2)."""
    pairs = [(i, j) for i in range(one) for j in range(i * other // one, -(-(i + 1) * other // one))]
    return np.array(pairs, dtype=np.int64)


FAST_DOMAIN = later("fast domain")
"""The innermost level: devices that share NVLink or its like."""


def levels_crossed(problem: Problem, s: Strategy, groups: Mapping[str, Ints]) -> dict[str, dict[str, int]]:
    """Kind of group -> level -> how many groups' traffic goes through it, no further; the cheapest level first.

    `groups`: a row a group, of the plan's ranks. A level is there for what leaves the units inside it. Empty without a
    network in the spec.
    """
    if problem.network is None:
        return {}
    found: dict[str, dict[str, int]] = {}
    chips = np.array([problem.chip_names.index(name) for name in s.stage_chips])
    of_rank = np.repeat(chips, s.widths)
    for kind, rows in groups.items():
        counts: dict[str, int] = {}
        for place, supply in enumerate(problem.supplies):
            own = rows[of_rank[rows[:, 0]] == place]
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


def rank_map(problem: Problem, strategy: Strategy) -> RankMap | MeshMap:
    """The rank map of a plan that keeps the rules `degrees` and `experts`."""
    model, made = problem.model, MeshMap if strategy.unequal else RankMap
    return made(strategy, min(problem.node, strategy.devices), model.moe is not None, model.tied_embeddings)


def node_blocks(problem: Problem, strategy: Strategy) -> tuple[NodeBlock, ...]:
    """Nodes in the order of their ranks, those with the same chip and the same stages together.

    Stages smaller than a node share one; where stages fill nodes, each block is one stage.
    """
    node, chips, ends = min(problem.node, strategy.devices), strategy.stage_chips, np.cumsum(strategy.widths)

    def stages(index: int) -> tuple[int, int]:
        ranks = index * node, (index + 1) * node - 1
        first, last = np.searchsorted(ends, ranks, side="right").tolist()
        return first, last

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
