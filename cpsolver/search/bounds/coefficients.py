"""The cost tables of all rows as stage coefficients, for any choice of chip types along the pipeline."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property

import numpy as np

from cpsolver.cost.collectives import fast_domain
from cpsolver.cost.kinds import counts_before
from cpsolver.cost.modules import Modules, applicable, incidence, module_sets
from cpsolver.cost.schedule import peak_live_total
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.cost.tables import MemoryTable, TimeTable, crosses_domain, memory_table, time_table
from cpsolver.plans.strategy import RECOMPUTE_KINDS, RecomputeKind
from cpsolver.problem.problem import Problem
from cpsolver.profiles.facts import tied_stages
from cpsolver.search.bounds.stages import OF_SETS
from cpsolver.search.bounds.stages import Stages as Stages
from cpsolver.spec.search import forbidden_for, pinned_for


def allowed_kinds(problem: Problem, chip: str) -> tuple[RecomputeKind, ...]:
    """The kinds of recomputation that the launcher, the pins and the bans leave for a chip type."""
    pinned = pinned_for(problem.spec.search.pin.recompute, chip)
    banned = forbidden_for(problem.spec.search.forbid.recompute, chip)
    known = RECOMPUTE_KINDS if problem.launcher is None else problem.launcher.kinds(RECOMPUTE_KINDS)
    if pinned_for(problem.spec.search.pin.recompute_modules, chip):
        known = tuple(kind for kind in known if kind == "selective")
    if not allowed_modules(problem, chip):
        known = tuple(kind for kind in known if kind != "selective")
    known = tuple(kind for kind in known if _has_number(problem, chip, kind))
    return tuple(kind for kind in known if (pinned is None or kind in pinned) and kind not in banned)


def _has_number(problem: Problem, chip: str, kind: RecomputeKind) -> bool:
    """Whether the pins and bans leave a number of layers for that kind: 0, or with block and uniform 1 or more."""
    pinned = pinned_for(problem.spec.search.pin.recompute_num_layers, chip)
    if kind in ("block", "uniform"):
        return pinned is None or max(pinned) > 0
    return (pinned is None or 0 in pinned) and 0 not in forbidden_for(
        problem.spec.search.forbid.recompute_num_layers, chip
    )


def allowed_modules(problem: Problem, chip: str) -> tuple[Modules, ...]:
    """The sets of modules that the model, the launcher, the pins and the bans leave for a chip type."""
    pinned = pinned_for(problem.spec.search.pin.recompute_modules, chip)
    banned = forbidden_for(problem.spec.search.forbid.recompute_modules, chip)
    known = set(applicable(problem))
    return tuple(
        names
        for names in module_sets(problem)
        if known.issuperset(names) and (pinned is None or names in pinned) and names not in banned
    )


def equal_stages(problem: Problem, rows: Candidates) -> Ints:
    """Which stages have equally many layers in all plans: 0 any numbers, 1 all between first and last, 2 all stages."""
    if problem.spec.search.layer_split == "even":
        return np.full(len(rows), 2)
    if problem.launcher is None:
        return np.zeros(len(rows), dtype=np.int64)
    equal, tied = tied_stages(problem.launcher, problem.model, rows)
    return np.asarray(np.zeros(len(rows), dtype=np.int64) + tied + equal)


class Coefficients:
    """The cost tables of all rows on all chip types, and stage coefficients for any choice of chips by position."""

    def __init__(self, problem: Problem, rows: Candidates) -> None:
        self.problem, self.rows = problem, rows
        tables = [time_table(problem, supply, rows) for supply in problem.supplies]
        columns = {
            field.name: np.stack([getattr(table, field.name) for table in tables]) for field in fields(TimeTable)
        }
        self.kind_layer, self.modules = columns.pop("kind_layer"), columns.pop("modules")
        self.time = {name: column for name, column in columns.items() if column.ndim == 2}
        self.memory: MemoryTable = memory_table(problem, rows)
        self.capacity = np.array([problem.capacity_bytes(supply.chip) for supply in problem.supplies])
        self.domain = np.array([fast_domain(problem, supply.chip) for supply in problem.supplies])
        kinds = [allowed_kinds(problem, name) for name in problem.chip_names]
        self.allowed = {kind: np.array([kind in some for some in kinds]) for kind in RECOMPUTE_KINDS}
        self.sets = module_sets(problem)
        may = [allowed_modules(problem, name) for name in problem.chip_names]
        self.may = [np.array([i for i, names in enumerate(self.sets) if names in some], dtype=np.int64) for some in may]
        self.sharding = self._least_sharding()
        self.equal = equal_stages(problem, rows)

    def before(self, extra: Floats, row: Ints) -> Floats:
        """What the layers before the x-th of a chunk take more than so many mean layers: (n, most layers + 1).

        `extra` (kinds, rows) is what a layer of each kind takes more than the mean; see `counts_before`.
        """
        rows, extra = self.rows.take(row), extra[:, row]
        model = self.problem.model
        if len(extra) == 1:
            return np.zeros((len(rows), 1))
        ways = np.stack([rows.vpp, rows.embedding_slot, rows.loss_slot])
        distinct, which = np.unique(ways, axis=1, return_inverse=True)
        found = np.zeros((len(rows), int((rows.places(model.layers) // rows.vpp).max(initial=0)) + 1))
        for index, way in enumerate(distinct.T.tolist()):
            counts, some = counts_before(model, *way), which.ravel() == index
            found[some, : counts.shape[1]] = extra[:, some].T @ counts
            found[some, counts.shape[1] :] = found[some, counts.shape[1] - 1][:, None]
        return found

    def slack(self, row: Ints) -> Floats:
        """The most that a run of layers takes less than as many mean layers: seconds, (chips, n)."""
        return np.stack([most_saved(self.before(extra, row)) for extra in self.kind_layer])

    def slack_states(self, row: Ints) -> Floats:
        """The same of states, in bytes: (n,)."""
        return most_saved(self.before(self.memory.kind_states, row))

    @cached_property
    def total_saving(self) -> Floats:
        """What all layers that are cheaper than the mean take less than it: (chips, rows)."""
        counts = counts_before(self.problem.model, 1)[:, -1]
        return np.asarray((np.maximum(0.0, -self.kind_layer) * counts[None, :, None]).sum(axis=1))

    def _least_sharding(self) -> Floats:
        """The least seconds that one stage alone spends on sharded weights and gradients: (chips, rows)."""
        layers, time = self.problem.model.layers, self.time
        return self.sharding_seconds(time, layers * time["recompute"])

    def sharding_seconds(self, time: dict[str, Floats], repeated: Floats) -> Floats:
        """Gathering weights and sharing gradients out in a pipeline of one stage, less what compute hides.

        `repeated`: seconds of recomputation, under which more is hidden (see evaluate's account of it).
        """
        layers = self.problem.model.layers
        forward = layers * time["recompute"]
        backward = np.maximum(0.0, layers * time["layer"] - forward + repeated)
        gather = layers * time["gather"] + time["gather_ends"]
        both = gather + layers * time["scatter"] + time["scatter_ends"]
        share = float(self.problem.stack.sharding_overlap)
        return np.asarray(gather + both - share * (np.minimum(gather, forward) + np.minimum(both, backward)))

    def links(self, row: Ints, chips: Ints, relaxed: bool) -> Floats:
        """Seconds per microbatch that each stage spends on transfers, shape (n, pp) (see evaluate's account of it).

        `relaxed` takes the faster of both kinds of link everywhere, so that neighbours may be any chips.
        """
        pp = chips.shape[1]
        if pp == 1:
            return np.zeros(chips.shape)
        near, far = self.time["hop_near"][chips, row[:, None]], self.time["hop_far"][chips, row[:, None]]
        vpp = self.rows.vpp[row][:, None].astype(np.float64)
        if relaxed:
            link = np.minimum(near, far)
            forward, wrap = link[:, :-1], link[:, :1]
        else:
            forward, wrap = self._forward_links(row, chips, near, far)
        share = np.where(vpp == 1, 1.0, 1.0 - self.problem.stack.pipeline_overlap_interleaved)
        share = share * self.problem.stack.pipeline_transfers / 2.0
        back = wrap * (vpp - 1)
        into = np.concatenate([back, vpp * forward], axis=1)
        out = np.concatenate([vpp * forward, back], axis=1)
        return np.asarray(share * (into + out))

    def _forward_links(self, row: Ints, chips: Ints, near: Floats, far: Floats) -> tuple[Floats, Floats]:
        pp = chips.shape[1]
        width = self.rows.stage_devices[row][:, None]
        domain = self.domain[chips]
        other = chips[:, :-1] != chips[:, 1:]
        crossing = other | crosses_domain(np.arange(pp - 1)[None, :], width, domain[:, :-1])
        forward = np.where(crossing, np.maximum(far[:, :-1], far[:, 1:]), np.maximum(near[:, :-1], near[:, 1:]))
        ends = chips[:, :1] != chips[:, -1:]
        outside = ends | (pp * width > domain[:, -1:])
        wrap = np.where(outside, np.maximum(far[:, :1], far[:, -1:]), np.maximum(near[:, :1], near[:, -1:]))
        return forward, wrap

    def stages(self, row: Ints, chips: Ints, relaxed: bool = False) -> Stages:
        """Stage coefficients of rows with the same pp; `chips` (n, pp) holds chip indices by position."""
        pp, at = chips.shape[1], row[:, None]
        time = {name: values[chips, at] for name, values in self.time.items()}
        first = (np.arange(pp) == 0)[None, :]
        last = (np.arange(pp) == pp - 1)[None, :]
        memory = self.memory
        factor = 1.0 + memory.overhead
        # What stands in a layer's place is counted as one: a layer less, and what it takes beyond one.
        slots = first * self.rows.embedding_slot[at] + last * self.rows.loss_slot[at]
        starts = np.maximum(time["embedding"] - self.rows.embedding_slot[at] * time["layer"], 0.0)
        ends = np.maximum(time["head"] - self.rows.loss_slot[at] * time["layer"], 0.0)
        states = first * memory.first_states[at] + last * memory.last_states[at] - slots * memory.layer_states[at]
        buffer = np.where(last, memory.last_buffer[at], memory.buffer[at])
        alone = self.sharding[chips, at] if pp == 1 else np.zeros(chips.shape)
        slack = self.slack(row)[chips, np.arange(len(row))[:, None]]
        selective, kept, replay = self._by_set(row, chips)
        return Stages(
            layer=time["layer"],
            recompute=time["recompute"],
            selective=selective,
            fixed=self.links(row, chips, relaxed)
            + self.rows.vpp[at] * time["chunk"]
            + first * starts
            + last * ends
            + alone
            - slack,
            room=self.capacity[chips] - memory.fixed - states - factor * buffer + self.slack_states(row)[:, None],
            states=memory.layer_states[at],
            live=self._live(row, pp),
            full=factor * memory.full[at],
            kept_selective=factor * kept,
            replay=factor * replay,
            checkpoint=factor * memory.checkpoint[at],
            least=self.rows.vpp[at].astype(np.float64),
            after_layer=time["sync_layer"] + time["update_layer"],
            after_fixed=time["sync_stage"]
            + time["update_stage"]
            + first * (time["sync_first"] + time["update_first"])
            + last * (time["sync_last"] + time["update_last"])
            - slots * (time["sync_layer"] + time["update_layer"]),
            slack=slack,
            allowed={kind: may[chips] for kind, may in self.allowed.items()},
        )

    def again(self, chip: int, sets: tuple[Modules, ...], row: Ints) -> Floats:
        """Seconds of a layer that the modules of each set take again, (sets, n)."""
        return np.asarray(incidence(sets).astype(np.float64) @ self.modules[chip][:, row])

    def _by_set(self, row: Ints, chips: Ints) -> tuple[Floats, Floats, Floats]:
        """What `Stages` says of the sets of modules, bytes before overhead."""
        used = np.unique(chips).tolist()
        each = [self._useful_sets(chip, row) for chip in used]
        if len(used) == 1:
            selective, kept, replay = (part[:, :, None] for part in each[0])
            return selective, kept, replay
        count, place = max(len(part[0]) for part in each), np.searchsorted(used, chips)
        found = []
        for index, nothing in enumerate(OF_SETS.values()):
            table = np.full((len(used), count, len(row)), nothing)
            for chip, part in enumerate(each):
                table[chip, : len(part[index])] = part[index]
            found.append(np.moveaxis(table[place, :, np.arange(len(row))[:, None]], 2, 0))
        return found[0], found[1], found[2]

    def _useful_sets(self, chip: int, row: Ints) -> tuple[Floats, Floats, Floats]:
        """Seconds, bytes kept and bytes replayed of the sets of modules that no other beats, (sets, n) each.

        A set is beaten where one that is no slower keeps and replays no more, or where nothing need run again for it.
        """
        sets = tuple(self.sets[index] for index in self.may[chip])
        if not sets:
            return (np.zeros((0, len(row))),) * 3
        memory, seconds = self.memory, self.again(chip, sets, row)
        order = np.argsort(seconds, axis=0, kind="stable")
        parts = (seconds, memory.kept(sets, row), memory.replayed(sets, row))
        seconds, kept, replay = (np.take_along_axis(part, order, axis=0) for part in parts)
        plain = self.allowed["none"][chip] or self.allowed["block"][chip]
        least, beside = np.where(plain, memory.full[row], np.inf), np.zeros(len(row))
        keep = np.zeros(seconds.shape, dtype=np.bool_)
        for index in range(len(seconds)):
            keep[index] = (kept[index] < least) | (replay[index] < beside)
            fewer = kept[index] < least
            least, beside = np.where(fewer, kept[index], least), np.where(fewer, replay[index], beside)
        count = max(1, int(keep.sum(axis=0).max(initial=0)))
        first = np.argsort(~keep, axis=0, kind="stable")[:count]
        good = np.take_along_axis(keep, first, axis=0)
        blanks = zip((seconds, kept, replay), OF_SETS.values(), strict=True)
        selective, kept, replay = (np.where(good, np.take_along_axis(a, first, axis=0), no) for a, no in blanks)
        return selective, kept, replay

    def _live(self, row: Ints, pp: int) -> Floats:
        """Microbatches in flight at each stage's peak, chunks counted as their share: shape (n, pp)."""
        vpp, m = self.rows.vpp[row], np.minimum(self.rows.microbatches[row], 4 * pp)
        pairs, back = np.unique(np.stack([vpp, m]), axis=1, return_inverse=True)
        totals = [peak_live_total(pp, v, count) / v for v, count in pairs.T.tolist()]
        return np.asarray(np.stack(totals)[back.ravel()])

    def least_ends(self, row: Ints) -> Floats:
        """The least that embedding and head take on any chip types, beyond layers in whose place they stand: (n,)."""
        layer, rows = self.time["layer"][:, row], self.rows
        starts = np.maximum(self.time["embedding"][:, row] - rows.embedding_slot[row] * layer, 0.0)
        ends = np.maximum(self.time["head"][:, row] - rows.loss_slot[row] * layer, 0.0)
        return np.asarray(starts.min(axis=0) + ends.min(axis=0))

    def weights(self, row: Ints) -> tuple[Floats, Floats]:
        """Step time = first * slowest stage + second * sum of stages + what follows."""
        vpp = self.rows.vpp[row].astype(np.float64)
        return self.rows.microbatches[row] - 1.0 / vpp, 1.0 / vpp


def most_saved(before: Floats) -> Floats:
    """The most that any run of layers takes less than as many mean layers, from the values of `before`; at least 0."""
    highest = np.maximum.accumulate(before, axis=1)
    return np.asarray((highest - before).max(axis=1))
