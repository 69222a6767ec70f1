"""The cost tables of all rows as stage coefficients, for any choice of chip types along the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Literal, TypeVar

import numpy as np

from cpsolver.cost import both_ways
from cpsolver.cost.kinds import counts_before, later_counts_before
from cpsolver.cost.modules import Modules, applicable, incidence, module_sets
from cpsolver.cost.pipeline_events import runs_beside
from cpsolver.cost.schedules import ALTERNATES, HAS_FORM, PipelineSchedule, schedule_of
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, Shard
from cpsolver.cost.stage import ChipTimes, Pipelines
from cpsolver.cost.tables import MemoryTable, TimeTable, memory_table, time_table
from cpsolver.plans.strategy import BESIDE_FUNCTIONS, RECOMPUTE_KINDS, RecomputeKind
from cpsolver.problem.problem import Problem
from cpsolver.profiles.expert_overlap import recomputes_exchange
from cpsolver.profiles.facts import tied_stages
from cpsolver.search.bounds.stages import NO_SET, Stages
from cpsolver.search.recent import Recent
from cpsolver.spec.search import pinned_for

T = TypeVar("T")
PassKind = Literal["forward", "weight", "later", "later_forward", "later_weight"]
"""F and W; and of a V, by how much T, F and W of a stage's second chunk are longer than those of its first."""
_CHUNKS = ("vpp", "embedding_slot", "loss_slot", "v_shaped")
"""What places of layers in chunks depend on."""
_KNOWN = 256
"""So many of the answers that a table was asked for one by one are kept."""


def allowed_kinds(problem: Problem, chip: str) -> tuple[RecomputeKind, ...]:
    """The kinds of recomputation that the launcher, the pins and the bans leave for a chip type."""
    search = problem.spec.search
    known = RECOMPUTE_KINDS if problem.launcher is None else problem.launcher.kinds(RECOMPUTE_KINDS)
    training = problem.spec.training
    if training.no_recomputation:  # rules layer_offload, recompute
        known = tuple(kind for kind in known if kind == "none")
    if training.whole_layers_alone:  # rule recompute
        known = tuple(kind for kind in known if kind in BESIDE_FUNCTIONS)
    if pinned_for(search.pin.recompute_modules, chip):
        known = tuple(kind for kind in known if kind == "selective")
    if not allowed_modules(problem, chip):
        known = tuple(kind for kind in known if kind != "selective")
    # Numbers of layers: block and uniform need 1 or more, the others 0.
    numbers = pinned_for(search.pin.recompute_num_layers, chip)
    if numbers is not None and max(numbers) == 0:
        known = tuple(kind for kind in known if kind not in ("block", "uniform"))
    if not search.allows("recompute_num_layers", 0, chip):
        known = tuple(kind for kind in known if kind in ("block", "uniform"))
    return tuple(kind for kind in known if search.allows("recompute", kind, chip))


def allowed_modules(problem: Problem, chip: str) -> tuple[Modules, ...]:
    """The sets of modules that the model, the launcher, the pins and the bans leave for a chip type."""
    known, allows = set(applicable(problem)), problem.spec.search.allows
    sets = (names for names in module_sets(problem) if known.issuperset(names))
    return tuple(names for names in sets if allows("recompute_modules", names, chip))


def equal_stages(problem: Problem, rows: Candidates) -> Ints:
    """Which stages have equally many layers in all plans: 0 any numbers, 1 all between first and last, 2 all stages."""
    if problem.spec.search.layer_split == "even":
        return np.full(len(rows), 2)
    if problem.launcher is None:
        return np.zeros(len(rows), dtype=np.int64)
    equal, tied = tied_stages(problem.launcher, problem.model, rows)
    return np.asarray(np.zeros(len(rows), dtype=np.int64) + tied + equal)


class _ByRow:
    """What is worked out of rows when it is first asked for."""

    def __init__(self, count: int) -> None:
        self._known: Bools = np.zeros(count, dtype=np.bool_)
        self._values: Floats | None = None

    def of(self, row: Ints, work_out: Callable[[Ints], Floats]) -> Floats:
        """That of some rows, (.., n), which `work_out` gives of those that are new."""
        new = np.unique(row[~self._known[row]])
        if len(new) or self._values is None:
            values = work_out(new)
            if self._values is None:
                self._values = np.empty((*values.shape[:-1], len(self._known)))
            self._values[..., new], self._known[new] = values, True
        return np.asarray(self._values[..., row])

    def take(self, rows: Ints) -> _ByRow:
        """That of some of the rows, with what is known of them."""
        part = _ByRow(0)
        part._known, part._values = self._known[rows], None if self._values is None else self._values[..., rows]
        return part


class Coefficients:
    """The cost tables of all rows on all chip types, and stage coefficients for any choice of chips by position."""

    def __init__(self, problem: Problem, rows: Candidates, memory: MemoryTable | None = None) -> None:
        """`memory`: the rows' own, where it is known."""
        self.problem, self.rows = problem, rows
        times = [time_table(problem, supply, rows) for supply in problem.supplies]
        self.tables = ChipTimes.of(problem, list(problem.supplies), rows, times)
        self.memory = memory_table(problem, rows) if memory is None else memory
        self.capacity = np.array([problem.capacity_bytes(supply.chip) for supply in problem.supplies])
        kinds = [allowed_kinds(problem, name) for name in problem.chip_names]
        self.allowed = {kind: np.array([kind in of_chip for of_chip in kinds]) for kind in RECOMPUTE_KINDS}
        self.sets = module_sets(problem)
        index_of = {names: index for index, names in enumerate(self.sets)}
        allowed = (allowed_modules(problem, name) for name in problem.chip_names)
        self.allowed_sets = [np.array([index_of[names] for names in of_chip], dtype=np.int64) for of_chip in allowed]
        self.least_sharding = self._least_sharding()
        self.equal = equal_stages(problem, rows)
        self._stored_less = self._least_stored_less() if rows.both_ways.any() else None
        self._saving, self._states_saving = _ByRow(len(rows)), _ByRow(len(rows))
        self._known: Recent[tuple[object, ...], Any] = Recent(_KNOWN)

    def known(self, key: tuple[object, ...], work_out: Callable[[], T]) -> T:
        """What is worked out of the table when it is first asked for by a key, which says what of; the last few are
        kept."""
        if key not in self._known:
            self._known[key] = work_out()
        found: T = self._known[key]
        return found

    def take(self, rows: Ints) -> Coefficients:
        """Those of some of the rows."""
        part = copy(self)
        part.tables, part.memory = self.tables.take(rows), self.memory.take(rows)
        part.rows = part.tables.rows
        part.least_sharding, part.equal = self.least_sharding[:, rows], self.equal[rows]
        part._stored_less = None if self._stored_less is None else self._stored_less[:, rows]
        part._saving, part._states_saving = self._saving.take(rows), self._states_saving.take(rows)
        part._known = Recent(_KNOWN)
        return part

    @property
    def time(self) -> TimeTable:
        """Seconds by chip type and row: (chips, rows), or (chips, kinds or modules, rows)."""
        return self.tables.time

    def beyond_mean(self, extra: Floats, row: Ints) -> Floats:
        """What a chunk's layers before its x-th place take beyond as many mean ones: (n, most places + 1).

        `extra` (kinds, rows) is what a layer of each kind takes beyond the mean layer; see `counts_before`.
        """
        rows, extra = self.rows.take(row), extra[:, row]
        if len(extra) == 1:
            return np.zeros((len(rows), 1))
        beyond = np.zeros((len(rows), int((rows.places(self.problem.model.layers) // rows.vpp).max(initial=0)) + 1))
        for counts, same in self.counts(rows):
            beyond[same, : counts.shape[1]] = extra[:, same].T @ counts
            beyond[same, counts.shape[1] :] = beyond[same, counts.shape[1] - 1][:, None]
        return beyond

    def counts(self, rows: Candidates) -> Iterator[tuple[Ints, Bools]]:
        """`counts_before` of all rows, each with the rows that it is of."""
        chunks = np.stack([rows.vpp, rows.embedding_slot, rows.loss_slot, rows.v_shaped])
        code = (2 * chunks[0] + chunks[1]) * (1 + chunks[2].max(initial=0)) + chunks[2]  # the embedding's is 0 or 1
        code = 2 * code + chunks[3]
        _, distinct, which = np.unique(code, return_index=True, return_inverse=True)
        for index, chunk in enumerate(chunks[:, distinct].T.tolist()):
            yield counts_before(self.problem.model, *chunk), which == index

    def saving(self, row: Ints) -> Floats:
        """The most that a run of layers takes less than as many mean layers: seconds, (chips, n)."""

        def work_out(row: Ints) -> Floats:
            first, back = self.rows.take(row).first_of_each((*Shard.__dataclass_fields__, *_CHUNKS))
            parts = [_most_saved(self.beyond_mean(extra, row[first])) for extra in self.time.kind_layer]
            return np.stack(parts)[:, back]

        return self._saving.of(row, work_out)

    def saving_in_all(self, rows: Sequence[Ints], used: Bools) -> Floats:
        """The most that all layers together take less than as many mean layers, each on any chip type that is `used`,
        (n, types), 0 on a single one: seconds, (n,). `rows`: each type's own, (n,) each."""
        counts = counts_before(self.problem.model, 1)[:, -1]
        saved = np.stack([-extra[:, row] for extra, row in zip(self.time.kind_layer, rows, strict=True)])
        return np.asarray(counts @ np.where(used.T[:, None], saved, -np.inf).max(axis=0))

    def spared(self, row: Ints) -> Floats:
        """What all layers cheaper than the mean layer take less than it, on one chip type: seconds, (n,)."""
        counts = counts_before(self.problem.model, 1)[:, -1]
        return np.asarray(counts @ np.maximum(0.0, -self.time.kind_layer[0][:, row]))

    def states_saving(self, row: Ints) -> Floats:
        """The same of states, in bytes: (n,)."""
        return self._states_saving.of(row, lambda row: _most_saved(self.beyond_mean(self.memory.kind_states, row)))

    def _least_stored_less(self) -> Floats:
        """The most that a layer of each sort of `both_ways.other_kinds` keeps less, whatever is recomputed."""
        sets, model = ((), *self.sets), self.problem.model
        less = both_ways.stored_less(self.memory, model, sets, np.arange(len(self.rows)))
        return np.asarray(less.max(axis=1, initial=0.0))

    def either_stage(self, row: Ints, pp: int) -> Floats:
        """The most that stages of BOTH_WAYS hold less in flight than memory counts, as `options` has it: bytes (n, pp);
        0 of all other rows."""
        less = np.zeros((len(row), pp))
        if self._stored_less is None:
            return less
        memory, short = self.memory, self.rows.loss_slot[row]
        for head in np.unique(short[self.rows.both_ways[row]]).tolist():
            own = np.nonzero(self.rows.both_ways[row] & (short == head))[0]
            layers = both_ways.sorts_before(self.problem.model, head)[:, :, -1]
            in_all = np.einsum("sn,sc,cp->np", self._stored_less[:, row[own]], layers, both_ways.in_flight(pp))
            in_all[:, 0] += head * memory.full[row[own]]
            less[own] = (1.0 + memory.overhead) * in_all
        return less

    def _least_sharding(self) -> Floats:
        """The least seconds that one stage alone spends on sharded weights and gradients: (chips, rows).

        All its layers recompute: that leaves the most to hide under.
        """
        time, layers = self.time, self.problem.model.layers
        if not (time.gather.any() or time.scatter.any()):
            return np.zeros(time.layer.shape)
        row, recompute_s = np.arange(len(self.rows)), layers * time.recompute[:, :, None]
        return np.stack([self.sharding(row, chip, recompute_s[chip])[:, 0] for chip in range(len(time.layer))])

    def sharding(self, row: Ints, chip: int, recompute_s: Floats) -> Floats:
        """Seconds that pipelines of one stage spend on sharded weights and gradients: (n, 1), or as `recompute_s`."""
        stage = Pipelines(self.tables, row, np.full((len(row), 1), chip))
        return stage.sharding(float(self.problem.model.layers), recompute_s)

    def stages(self, row: Ints, chips: Ints, any_neighbours: bool = False, fewest: int | None = None) -> Stages:
        """Stage coefficients of rows with the same pp; `chips` (n, pp) holds chip indices by position.

        `row` is (n,), or where chip types have degrees of their own (n, pp), the same on all stages of a type.
        `any_neighbours` as in `Pipelines.p2p`. `fewest`: how many stages the pipelines have at least, where `chips`
        stands for some that have fewer.
        """
        pipelines = Pipelines(self.tables, row, chips)
        at, row, by_chip = pipelines.by_stage, pipelines.by_stage[:, 0], row
        last = np.arange(pipelines.pp)[None, :] == pipelines.head_stage[:, None]
        memory, time = self.memory, self.time
        factor = 1.0 + memory.overhead
        # Coefficients count what stands in a layer's place as a layer: with no places a stage has a layer less.
        no_places = -pipelines.slots
        layer = pipelines.at(time.layer)
        fixed = pipelines.p2p(any_neighbours) + pipelines.host + (no_places * layer + pipelines.ends)
        if pipelines.pp == 1:
            fixed = fixed + pipelines.at(self.least_sharding)
        on_first = factor * (memory.first_stored[row] + memory.first_buffer[row])
        states = pipelines.at_ends(memory.first_states[row] + on_first, memory.last_states[at[:, -1]])
        last_chunk = factor / pipelines.vpp * last * memory.last_chunk[at]
        states = states + no_places * memory.layer_states[at]
        buffer = np.where(last, memory.last_buffer[at], memory.buffer[at])
        fewest = pipelines.pp if fewest is None else fewest
        set_seconds, set_bytes, set_replay = self._by_set(by_chip, chips, fewest)
        saving, states_saving = self._savings(by_chip, chips)
        either_stage = self.either_stage(row, pipelines.pp)
        live = self._in_flight(row, pipelines.pp)
        beside = self.rows.expert_overlap[at] & runs_beside(live, self.rows.microbatches[at])
        return Stages(
            layer=layer,
            recompute=pipelines.at(time.recompute),
            set_seconds=set_seconds,
            fixed=fixed - saving,
            room=self.capacity[chips] - memory.fixed - states - factor * buffer + (states_saving + either_stage),
            states=memory.layer_states[at] + last_chunk,
            live=live,
            beside=beside.astype(np.float64),
            full=factor * self._least_full(by_chip, fewest).reshape(len(at), -1),
            set_bytes=factor * set_bytes,
            set_replay=factor * set_replay,
            checkpoint=factor * memory.checkpoint[at],
            chunks=pipelines.vpp,
            after_layer=pipelines.at(time.sync_layer) + pipelines.at(time.update_layer),
            after_fixed=pipelines.data_parallel(no_places) + pipelines.optimizer(no_places),
            saving=saving,
            allowed={kind: allowed[chips] & self._may_recompute(kind, at) for kind, allowed in self.allowed.items()},
        )

    def _least_by_layer(self, sets: tuple[Modules, ...], row: Ints, pp: int) -> Floats:
        """Bytes for each layer that no chunk of so many stages or more falls below, by set of modules: (sets, n)."""
        rows, kept = self.rows, self.memory.stored(sets, row)
        if len(self.memory.short) == 1:
            return np.asarray(kept.most)
        longest = rows.places(self.problem.model.layers, row) // rows.vpp[row] - (pp - 1)
        return kept.each_at_least(longest)

    def _least_full(self, row: Ints, pp: int) -> Floats:
        """The same where nothing is recomputed: as `row`, (n,) or (n, pp)."""
        if len(self.memory.short) == 1:
            return np.asarray(self.memory.full[row])
        rows, at = np.unique(row, return_inverse=True)
        return np.asarray(self._least_by_layer(((),), rows, pp)[0][at.reshape(row.shape)])

    def _savings(self, row: Ints, chips: Ints) -> tuple[Floats, Floats]:
        """`saving` and `states_saving` by stage, (n, pp) or (n, 1)."""
        if row.ndim == 1:
            return self.saving(row)[chips, np.arange(len(row))[:, None]], self.states_saving(row)[:, None]
        rows, at = np.unique(row, return_inverse=True)
        at = at.reshape(row.shape)
        return self.saving(rows)[chips, at], self.states_saving(rows)[at]

    def _may_recompute(self, kind: RecomputeKind, row: Ints, modules: Modules = ()) -> Bools:
        """The rows that may recompute so whatever the chip type: of those that overlap the experts' exchange only some
        kinds and sets of modules may (rule `expert_overlap`)."""
        return ~self.rows.expert_overlap[row] | (not recomputes_exchange(kind, modules))

    def modules_s(self, chip: int, sets: tuple[Modules, ...], row: Ints) -> Floats:
        """Seconds that recomputing the modules of each set adds to a layer: (sets, n)."""
        return np.asarray(incidence(sets).astype(np.float64) @ self.time.modules[chip][:, row])

    def _by_set(self, row: Ints, chips: Ints, pp: int) -> tuple[Floats, Floats, Floats]:
        """What `Stages` says of the sets of modules, bytes before overhead."""
        used = np.unique(chips).tolist()
        of_chips = list[tuple[Floats, ...]]()
        for chip in used:
            rows, back = np.unique(row_of(row, chips, chip), return_inverse=True)  # plans in hundreds share few of them
            of_chips.append(tuple(part[:, back] for part in self._sets_of(chip, rows, pp)))
        if len(used) == 1:
            seconds, bytes_kept, replay = (part[:, :, None] for part in of_chips[0])
            return seconds, bytes_kept, replay
        count, place = max(len(parts[0]) for parts in of_chips), np.searchsorted(used, chips)
        by_stage = []
        for index, nothing in enumerate(NO_SET.values()):
            table = np.full((len(used), count, len(row)), nothing)
            for chip, parts in enumerate(of_chips):
                table[chip, : len(parts[index])] = parts[index]
            by_stage.append(np.moveaxis(table[place, :, np.arange(len(row))[:, None]], 2, 0))
        return by_stage[0], by_stage[1], by_stage[2]

    def _sets_of(self, chip: int, rows: Ints, pp: int) -> tuple[Floats, Floats, Floats]:
        """`_undominated_sets`, known where one row is asked for: plan after plan is."""
        if len(rows) > 1:
            return self._undominated_sets(chip, rows, pp)
        return self.known(("sets", chip, int(rows[0]), pp), lambda: self._undominated_sets(chip, rows, pp))

    def _undominated_sets(self, chip: int, row: Ints, pp: int) -> tuple[Floats, Floats, Floats]:
        """Seconds, bytes kept and bytes replayed of the sets of modules that no other dominates, (sets, n) each.

        A set is dominated where one that is no slower keeps and replays no more, or where without recomputation a layer
        keeps no more.
        """
        sets = tuple(self.sets[index] for index in self.allowed_sets[chip])
        if not sets:
            return (np.zeros((0, len(row))),) * 3
        memory, seconds = self.memory, self.modules_s(chip, sets, row)
        order = np.argsort(seconds, axis=0, kind="stable")
        may = np.stack([self._may_recompute("selective", row, names) for names in sets])
        stored, replayed = (
            np.where(may, part, np.inf) for part in (self._least_by_layer(sets, row, pp), memory.replayed(sets, row))
        )
        parts = (seconds, stored, replayed)
        seconds, bytes_kept, replay = (np.take_along_axis(part, order, axis=0) for part in parts)
        without = self.allowed["none"][chip] | (self.allowed["block"][chip] & self._may_recompute("block", row))
        least_kept = np.where(without, self._least_full(row, pp), np.inf)
        least_replay = np.zeros(len(row))
        keep = np.zeros(seconds.shape, dtype=np.bool_)
        for index in range(len(seconds)):
            fewer = bytes_kept[index] < least_kept
            keep[index] = fewer | (replay[index] < least_replay)
            least_kept = np.where(fewer, bytes_kept[index], least_kept)
            least_replay = np.where(fewer, replay[index], least_replay)
        count = max(1, int(keep.sum(axis=0).max(initial=0)))
        first = np.argsort(~keep, axis=0, kind="stable")[:count]
        real = np.take_along_axis(keep, first, axis=0)
        blanks = zip((seconds, bytes_kept, replay), NO_SET.values(), strict=True)
        seconds, bytes_kept, replay = (np.where(real, np.take_along_axis(a, first, axis=0), no) for a, no in blanks)
        return seconds, bytes_kept, replay

    def _in_flight(self, row: Ints, pp: int) -> Floats:
        """Microbatches in flight at each stage's peak, chunks counted as their share: shape (n, pp)."""
        vpp, m = self.rows.vpp[row], most_in_flight(self.rows, row, pp)
        code = (vpp * (m.max(initial=0) + 1) + m) * len(HAS_FORM) + self.rows.schedule[row]
        _, first, back = np.unique(code, return_index=True, return_inverse=True)
        schedules = [self.schedule(at) for at in row[first].tolist()]
        totals = [
            schedule.live_chunks(self.problem, pp, int(vpp[n]), int(m[n])) / vpp[n]
            for n, schedule in zip(first.tolist(), schedules, strict=True)
        ]
        return np.asarray(np.stack(totals)[back])

    def schedule(self, row: int) -> PipelineSchedule:
        """A row's schedule."""
        return schedule_of(int(self.rows.schedule[row]))

    def least_ends(self, row: Ints) -> Floats:
        """The least that embedding and head take on any chip types, beyond layers in whose place they stand: (n,)."""
        layer, rows = self.time.layer[:, row], self.rows
        starts = np.maximum(self.time.embedding[:, row] - rows.embedding_slot[row] * layer, 0.0)
        ends = np.maximum(self.time.head[:, row] - rows.loss_slot[row] * layer, 0.0)
        return np.asarray(starts.min(axis=0) + ends.min(axis=0))

    def weights(self, row: Ints) -> tuple[Floats, Floats]:
        """Step time = first * slowest stage + second * sum of stages + what follows; or more, with a StepForm."""
        first, second = weights(self.rows, row)
        by_events = found_by_events(self.problem, self.rows, row)
        return np.where(by_events, self.rows.microbatches[row], first), np.where(by_events, 0.0, second)

    def passes(self, row: Ints, chips: Ints) -> dict[PassKind, tuple[Floats, Floats]]:
        """What StepForms ask beside T of a layer's place, and of a stage with no places: (n, pp); as `stages`."""
        stages = Pipelines(self.tables, row, chips)
        of: dict[PassKind, tuple[Floats, Floats]] = {
            "forward": (stages.forward, stages.forward_ends + stages.p2p() / 2.0),
            "weight": (stages.weight_gradients, stages.weight_ends),
        }
        of = {name: (layer, ends - stages.slots * layer) for name, (layer, ends) in of.items()}
        shares = self.pass_shares(row, chips)
        return of | {name: (0.0 * share, stages.ends_later * share) for name, share in shares.items()}

    def pass_shares(self, row: Ints, chips: Ints) -> dict[PassKind, Floats]:
        """Of what a chunk takes more than the other its whole, F and W: (n, pp), as `passes`."""
        stages = Pipelines(self.tables, row, chips)
        layer = stages.at(self.time.layer)
        shares: dict[PassKind, Floats] = {
            "later": np.ones(layer.shape),
            "later_forward": stages.forward / layer,
            "later_weight": stages.weight_gradients / layer,
        }
        return shares

    def later_beyond_mean(self, chip: int, row: int) -> Floats:
        """Of a V: as `beyond_mean`, by how much second chunks take longer than first ones: (places + 1,)."""
        slots = (int(self.rows.embedding_slot[row]), int(self.rows.loss_slot[row]))
        return np.asarray(self.time.kind_layer[chip, :, row] @ later_counts_before(self.problem.model, slots))


def weights(rows: Candidates, at: Ints | slice = slice(None)) -> tuple[Floats, Floats]:
    """`Coefficients.weights` of those rows."""
    vpp, microbatches, pp = rows.vpp[at].astype(np.float64), rows.microbatches[at], rows.pp[at]
    first, second, codes = microbatches - 1.0 / vpp, 1.0 / vpp, rows.schedule[at]
    by_form = HAS_FORM[codes]
    for code in np.unique(codes[by_form]).tolist() if by_form.any() else ():
        bound = schedule_of(code).bound
        assert bound is not None, f"schedule {code} is not searched"
        own = codes == code
        first[own], second[own] = bound(pp[own], microbatches[own])
    return first, second


def found_by_events(problem: Problem, rows: Candidates, at: Ints | slice = slice(None)) -> Bools:
    """Rows of 1F1B on one chip type, whose steps are those of the schedule run event by event: (n,)."""
    return np.asarray(ALTERNATES[rows.schedule[at]] & (not problem.mixed))


def least_microbatches(rows: Candidates, at: Ints | slice = slice(None)) -> Ints:
    """How often the slowest stage's time counts at least with a StepForm, whatever `weights` say; 0 without."""
    return np.where(HAS_FORM[rows.schedule[at]], rows.microbatches[at], 0)


def turns_at_last(rows: Candidates, at: Ints | slice = slice(None)) -> Bools:
    """Rows of which `pipeline_events.detour_s` is known: 1F1B of whole stages with so many microbatches, which do not
    run beside each other."""
    many = rows.microbatches[at] >= rows.pp[at] + 1
    return np.asarray(ALTERNATES[rows.schedule[at]] & (rows.vpp[at] == 1) & ~rows.expert_overlap[at] & many)


def turned_back(rows: Candidates, at: Ints | slice, behind: Ints | int) -> Ints:
    """Chunks' forwards that a stage of 1F1B with so many stages `behind` runs while its last chunk's first forward
    passes these and comes back, or backwards while the last forward does."""
    vpp, pp, times = rows.vpp[at], rows.pp[at], rows.microbatches[at]
    warm = np.where(vpp == 1, behind, 2 * behind + (vpp - 1) * pp) + rows.expert_overlap[at]
    return np.asarray(np.minimum(warm, vpp * times - 1) - (vpp - 1) * pp)


def events_in_all(rows: Candidates, at: Ints | slice, slowest: Floats, total: Floats) -> Floats:
    """The least seconds of pipelines run event by event by the least of their slowest stage and of all stages: (n,).

    It works on all microbatches. In 1F1B a chunk passes all other stages before or meanwhile, in place of `turned_back`
    of its forwards or of its backwards, of which the shorter take half of a microbatch at most; and of whole stages,
    wherever it stands among others that are no slower, what comes before it and its `detour_s` are at least
    2 * (all others) - (pp - 1) * slowest.
    """
    pp, vpp, times = rows.pp[at], rows.vpp[at], rows.microbatches[at]
    turned = np.where(turns_at_last(rows, at), 2.0 * total - (pp + 1) * slowest, 0.0)
    passed = (total - slowest - turned_back(rows, at, pp - 1) / 2 * slowest) / vpp
    passed = np.where(ALTERNATES[rows.schedule[at]], passed, 0.0)
    return np.asarray(times * slowest + np.maximum(0.0, np.maximum(turned, passed)))


def row_of(row: Ints, chips: Ints, chip: int) -> Ints:
    """The row of a chip type's stages in each of n plans, (n,); any row in plans without it. `row` as in `stages`."""
    return row if row.ndim == 1 else np.asarray(row[np.arange(len(row)), (chips == chip).argmax(axis=1)])


def most_in_flight(rows: Candidates, at: Ints, pp: int) -> Ints:
    """Microbatches that a stage of those rows may hold at once; more than 4 * pp of them change nothing at any vpp, but
    where all of a step are in one group."""
    microbatches = rows.microbatches[at]
    return np.where(rows.one_group[at], microbatches, np.minimum(microbatches, 4 * pp))


def _most_saved(beyond: Floats) -> Floats:
    """The most that any run of layers takes less than as many mean layers, at least 0; `beyond`: see `beyond_mean`."""
    highest = np.maximum.accumulate(beyond, axis=1)
    return np.asarray((highest - beyond).max(axis=1))
