"""What the model needs of one plan: integer times, and by chip type the options to recompute and what fits."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cpsolver.cost.both_ways import other_kinds, sorts_before
from cpsolver.cost.kinds import counts_before
from cpsolver.cost.schedules import form_of
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.cost.step_form import PipelineSizes, StepForm
from cpsolver.plans.dimensions import FLAGS, ROW
from cpsolver.plans.strategy import Mesh
from cpsolver.profiles.facts import Split
from cpsolver.search.bounds.coefficients import Coefficients, PassKind, turns_at_last, weights
from cpsolver.search.bounds.stages import WHOLE, Stages
from cpsolver.search.compile.options import ChipOptions, OddLayers, PlanRow, options_by_chip

_RESOLUTION = 2.0**27
"""Integer steps in the slowest stage's time: see `scale_for`."""


@dataclass(frozen=True)
class Scale:
    """One integer step is `unit_s` seconds of step time."""

    unit_s: float

    def integers(self, seconds: Floats) -> Ints:
        """Rounded to the nearest step."""
        return np.asarray(np.rint(np.asarray(seconds) / self.unit_s), dtype=np.int64)

    def error_s(self, first: float, second: float, pp: int, longest: int) -> float:
        """The most by which a decoded objective and the true step time differ.

        A stage's time has a coefficient for layers and one for recomputed layers, each rounded by half a step and
        times at most `longest`, and a constant; so has what follows the pipeline. Kinds of layers add the difference of
        two table entries, sharding one more constant.
        """
        stage = 0.5 * (2 * longest + 4)
        return self.unit_s * (stage * (first + second * pp) + stage + 1.0)


def scale_for(step_time_s: float, weight: float = 8.0) -> Scale:
    """A scale for step times up to that, in which the slowest stage counts `weight` times.

    Fine enough that rounding stays near 1e-7 of a step, and no finer: huge integers are where solvers go wrong.
    """
    return Scale(step_time_s / (weight * _RESOLUTION))


@dataclass(frozen=True)
class PassSteps:
    """What a StepForm asks of the stages, in integer steps: `layer` for each of a chunk's places (so of all chunks) and
    `fixed` besides, (pp,); `beyond_mean` as in ChipOptions, by chip type."""

    layer: Ints
    fixed: Ints
    beyond_mean: dict[int, Ints]


@dataclass(frozen=True)
class PlanData:
    """One plan's coefficients by stage, times in integer steps.

    `needed`: the chunks' layers over all stages, with what stands in the place of some (`slots`, see Candidates). A
    chunk of l layers, r of them recomputed, takes layer * l + recompute * r, and what its option adds (see
    ChipOptions); a stage takes `fixed` besides. `split`: which stages the launcher wants equal.

    `form` says what a step takes of stages' seconds and of `passes`; None: 1F1B's formula does.
    `v_shaped`: the first stage holds the head too. `both_ways`: it stands for two halves (plans/folding.py).
    `turns`: see `coefficients.turns_at_last`.

    `odd`: of layers of several kinds, how many before each place of a chunk's layers are not of the common kind and
    have other states, as `odd_layers` has it; None where all layers are of one kind.
    """

    row: int
    chips: tuple[int, ...]
    vpp: int
    slots: tuple[int, int]
    needed: int
    microbatches: int
    longest: int
    by_chip: dict[int, ChipOptions]
    split: Split
    odd: Ints | None
    layer: Ints
    recompute: Ints
    fixed: Ints
    after_layer: Ints
    after_fixed: Ints
    v_shaped: bool
    both_ways: bool
    form: StepForm | None
    passes: dict[PassKind, PassSteps]
    degrees: tuple[int, ...]
    meshes: dict[int, Mesh]
    error_s: float
    turns: bool = False

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return len(self.chips)

    @property
    def possible(self) -> bool:
        """Every chip type has an option left."""
        return all(len(own) for own in self.by_chip.values())

    def deciding(self, by_stage: bool) -> list[int]:
        """Positions of the stages that choose their option: all, or the first of each chip type for the others too."""
        return list(range(self.pp)) if by_stage else [own.places[0] for own in self.by_chip.values()]

    def slot(self, position: int) -> int:
        """Layers of that stage in whose place the embedding or the head stands."""
        return (position == 0) * self.slots[0] + (position == self.head_stage) * self.slots[1]

    def least(self, position: int) -> int:
        """The fewest places in a chunk of that stage: the head's, and of two halves a layer beside it."""
        slot = self.slot(position)
        return max(1, slot + (self.both_ways and slot > 0))

    def held(self, layers: tuple[int, ...]) -> tuple[int, ...] | None:
        """Layers of every stage of a plan as this one has them; None: it cannot have these."""
        if not self.both_ways:
            return layers
        pairs = list(zip(layers, reversed(layers), strict=True))[: self.pp]
        alike = all(one == other + self.slot(at) for at, (one, other) in enumerate(pairs))
        return tuple(map(sum, pairs)) if len(layers) == 2 * self.pp and alike else None

    @property
    def head_stage(self) -> int:
        """The position that holds the head."""
        return 0 if self.v_shaped else self.pp - 1

    @property
    def multiple(self) -> int:
        """What integer objectives are multiples of the step time by, so that all its coefficients are whole."""
        return self.vpp if self.form is None else self.form.multiple

    @property
    def longest_stage(self) -> int:
        """No stage takes more integer steps for a microbatch."""
        most = (self.layer + self.recompute + self.largest_layer_steps) * self.longest + self.fixed
        return int(most.max()) + self.largest_steps + self.largest_beyond_mean

    @property
    def largest_layer_steps(self) -> int:
        """No option adds more integer steps to a chunk's layer."""
        return max(int(own.layer_steps.max(initial=0)) for own in self.by_chip.values())

    @property
    def largest_steps(self) -> int:
        """No option adds more integer steps once."""
        return max(int(own.steps.max(initial=0)) for own in self.by_chip.values())

    @property
    def largest_beyond_mean(self) -> int:
        """No run of layers takes so many steps more or less than mean ones."""
        return max(own.largest_step for own in self.by_chip.values())

    @property
    def longest_after(self) -> int:
        """Nothing that follows the pipeline takes more integer steps."""
        return int((self.after_layer * self.longest + self.after_fixed).max())


def plan_data(table: Coefficients, row: int | Ints, chips: Ints, scale: Scale, within_s: float) -> PlanData:
    """The data of one plan; layer counts that no step time within `within_s` allows are left out.

    `row`: the plan's row, or where chip types have degrees of their own the row of every stage, (pp,).
    """
    by_stage = np.asarray(row)
    given, rows = by_stage[None], table.rows
    row, row_by_stage = int(by_stage.flat[0]), np.broadcast_to(by_stage, chips.shape)
    stages = table.stages(given, chips[None, :])
    vpp, longest = int(rows.vpp[row]), _longest_chunk(table, row, stages, within_s)
    plan = PlanRow(table, row_by_stage, chips, stages, longest)
    odd = odd_layers(table, row)
    at = np.array([row])
    form = _form(table, row, len(chips))
    first, second = (float(weight[0]) for weight in weights(rows, at))
    if form is not None:  # F and W have rounded coefficients too
        first, second = float(np.abs(form.chains).sum(axis=(1, 2)).max()) / form.multiple, 0.0
    return PlanData(
        row=row,
        chips=tuple(chips.tolist()),
        vpp=vpp,
        slots=(int(rows.embedding_slot[row]), int(rows.loss_slot[row])),
        needed=int(rows.places(table.problem.model.layers, row)) // vpp,
        microbatches=int(rows.microbatches[row]),
        longest=longest,
        by_chip=options_by_chip(plan, scale.integers, odd, lambda row, numbers: odd_of(table, row, numbers)),
        split=plan.split(),
        odd=odd if len(table.memory.kind_states) > 1 else None,
        layer=scale.integers(vpp * stages.layer[0]),
        recompute=scale.integers(vpp * stages.recompute[0]),
        fixed=scale.integers(stages.fixed[0] + stages.saving[0]),
        after_layer=scale.integers(vpp * stages.after_layer[0]),
        after_fixed=scale.integers(stages.after_fixed[0]),
        v_shaped=bool(rows.v_shaped[row]),
        both_ways=bool(rows.both_ways[row]),
        form=form,
        passes={} if form is None else _passes(table, plan, given, scale),
        degrees=_degrees(rows, row_by_stage),
        meshes=_meshes(rows, row_by_stage, chips) if by_stage.ndim else {},
        error_s=scale.error_s(first, second, len(chips), longest),
        turns=bool(turns_at_last(rows, at)[0]),
    )


def _form(table: Coefficients, row: int, pp: int) -> StepForm | None:
    """What a step of the row takes, where that is not 1F1B's formula."""
    rows, beside = table.rows, bool(table.rows.expert_overlap[row])
    sizes = PipelineSizes(pp, int(rows.vpp[row]), int(rows.microbatches[row]), beside)
    return form_of(table.problem, table.schedule(row), sizes)


def _passes(table: Coefficients, plan: PlanRow, given: Ints, scale: Scale) -> dict[PassKind, PassSteps]:
    """Of a plan whose step is a StepForm; what kinds of layers take beyond mean ones splits alike."""
    found, chips = dict[PassKind, PassSteps](), plan.chips[None, :]
    later, v_shaped = table.pass_shares(given, chips), bool(table.rows.v_shaped[int(np.ravel(given)[0])])
    for name, (layer, fixed) in table.passes(given, chips).items():
        if name in later and not v_shaped:
            continue
        beyond = dict[int, Ints]()
        for chip in dict.fromkeys(plan.chips.tolist()):
            place = int((plan.chips == chip).argmax())
            if name in later:
                more = later[name][0, place] * table.later_beyond_mean(chip, plan.row(chip))
            else:
                share = layer[0, place] / table.time.layer[chip, plan.row(chip)]
                more = table.beyond_mean(share * table.time.kind_layer[chip], plan.at(chip))[0]
            beyond[chip] = scale.integers(more)
        found[name] = PassSteps(scale.integers(plan.vpp * layer[0]), scale.integers(fixed[0]), beyond)
    return found


def _degrees(rows: Candidates, row: Ints) -> tuple[int, ...]:
    """The plan's decisions: the first stage's sizes, and a flag where any stage has it."""
    first, flags = int(row[0]), (*FLAGS, "ulysses")
    return tuple(int(getattr(rows, name)[row].max() if name in flags else getattr(rows, name)[first]) for name in ROW)


def _meshes(rows: Candidates, row: Ints, chips: Ints) -> dict[int, Mesh]:
    """Each chip type's degrees."""
    sizes = [field.name for field in fields(Mesh)]
    pairs = zip(chips.tolist(), row.tolist(), strict=True)
    return {chip: Mesh(*(int(getattr(rows, name)[at]) for name in sizes)) for chip, at in dict(pairs).items()}


def odd_layers(table: Coefficients, row: int) -> Ints:
    """Layers before each place of a chunk whose states are not those of the common kind, as one number.

    Where they are of several sorts it has a digit for each, as many as there are of the sort and one being its base:
    the difference of two places' numbers is that of the layers between them. Of BOTH_WAYS either chunk has its own.
    """
    sorts = _sorts(table, row)
    number, unit = np.zeros(_counts(table, row).shape[1], dtype=np.int64), 1
    for of_sort in sorts:
        number, unit = number + unit * of_sort, unit * (int(of_sort[-1]) + 1)
    return number


def _sorts(table: Coefficients, row: int) -> list[Ints]:
    """The layers of each sort, and of BOTH_WAYS of each in either chunk, before each place of a chunk."""
    if table.rows.both_ways[row]:
        sorts = sorts_before(table.problem.model, int(table.rows.loss_slot[row]))
        return [of_chunk for sort in sorts for of_chunk in sort]
    counts = _counts(table, row)
    return [counts[list(kinds)].sum(axis=0, dtype=np.int64) for kinds in other_kinds(table.problem.model)]


def _counts(table: Coefficients, row: int) -> Ints:
    rows = table.rows
    chunks = (int(rows.vpp[row]), int(rows.embedding_slot[row]), int(rows.loss_slot[row]))
    return counts_before(table.problem.model, *chunks, bool(rows.v_shaped[row]))


def odd_of(table: Coefficients, row: int, numbers: Ints) -> OddLayers:
    """Such layers by their numbers, and the bytes of states that they have more."""
    states, left = table.memory.kind_states[:, row], numbers
    model, counts = table.problem.model, list[Ints]()
    for of_sort in _sorts(table, row):
        left, count = np.divmod(left, int(of_sort[-1]) + 1)
        counts.append(count)
    chunks = 1 + int(table.rows.both_ways[row])
    by_sort = np.array(counts, dtype=np.int64).reshape(len(other_kinds(model)), chunks, len(numbers))
    more = np.zeros(len(numbers))
    for kinds, of_sort in zip(other_kinds(model), by_sort, strict=True):
        more = more + of_sort.sum(axis=0) * float(states[kinds[0]] - states[0])
    return OddLayers(by_sort, more)


def _longest_chunk(table: Coefficients, row: int, stages: Stages, within_s: float) -> int:
    """The most layers in a chunk: what the other chunks leave, and what the step time of interest allows; none at all
    where the last chunk's would not even be as many as the head stands for."""
    vpp, pp = int(table.rows.vpp[row]), stages.layer.shape[1]
    left = int(table.rows.places(table.problem.model.layers, row)) // vpp - (pp - 1)
    first, second = (weight[0] for weight in table.weights(np.array([row])))
    slowest = within_s / (first + second)
    in_time = np.floor((slowest - stages.fixed[0]) / (vpp * stages.layer[0]) + WHOLE).max()
    longest = int(max(0, min(left, in_time)))
    return longest if longest >= table.rows.loss_slot[row] else 0
