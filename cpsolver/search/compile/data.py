"""What the model needs of one plan: integer times, recomputation options, and the layers that fit under each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.kinds import counts_before, layer_kinds
from cpsolver.cost.memory import activation_bytes
from cpsolver.cost.modules import Modules
from cpsolver.cost.schedule import peak_live_total
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.plans.dimensions import ROW
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.problem.problem import Problem
from cpsolver.profiles.facts import Split, differing_kinds, tied_stages
from cpsolver.search.bounds.coefficients import Coefficients, Stages, allowed_kinds
from cpsolver.search.compile.scaling import Scale
from cpsolver.spec.search import forbidden_for, pinned_for


@dataclass(frozen=True)
class Option:
    """One way to recompute: kind and number, the layers of each chunk that it runs twice (`longest` for all), and with
    kind selective the modules that it runs again in every layer."""

    kind: RecomputeKind
    amount: int
    repeats: int
    modules: Modules = ()


@dataclass(frozen=True)
class Kinds:
    """Layers of several kinds. All tables run over places 0 .. C in a chunk's layers (see `counts_before`).

    `before[chip]`: integer steps that the layers before a place take more than so many mean layers. `odd`: how many of
    them are of the kind with other states than the common one; `fits[chip][p, o, n]`: the most layers in each chunk
    where n of the stage's are odd.
    """

    before: dict[int, Ints]
    odd: Ints
    fits: dict[int, Ints]

    @property
    def largest(self) -> int:
        """No run of layers takes so many steps more or less than mean ones."""
        return max(int(table.max() - table.min()) for table in self.before.values())


@dataclass(frozen=True)
class PlanData:
    """One plan's coefficients by stage, times in integer steps.

    `needed`: the chunks' layers over all stages, with what stands in the place of one (`slots`, see Candidates).
    `fits[chip][p, o]`: the most layers in each chunk of the chip's p-th stage under option o (0: none). A chunk of l
    layers, r of them recomputed, adds layer * l + repeat * r; option o adds `again[chip][o]` for each layer, and
    `extra[chip][o]`. `kinds` says more where
    layers are of several kinds: then `fits` is for the kinds that need least.

    `split` and `ways` are the launcher's: which stages are equal, and the way to recompute that an option belongs to,
    by chip and option. All stages go one way: 0 has the options that may stand next to each other, others one each.
    """

    row: int
    chips: tuple[int, ...]
    vpp: int
    slots: tuple[int, int]
    needed: int
    microbatches: int
    longest: int
    options: dict[int, tuple[Option, ...]]
    ways: dict[int, tuple[int, ...]]
    split: Split
    fits: dict[int, Ints]
    again: dict[int, Ints]
    extra: dict[int, Ints]
    kinds: Kinds | None
    layer: Ints
    repeat: Ints
    fixed: Ints
    after_layer: Ints
    after_fixed: Ints
    degrees: tuple[int, ...]
    error_s: float

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return len(self.chips)

    def slot(self, position: int) -> int:
        """1 where the embedding or the head stands in the place of a layer of that stage."""
        return (position == 0) * self.slots[0] + (position == self.pp - 1) * self.slots[1]

    @property
    def longest_stage(self) -> int:
        """No stage takes more integer steps for a microbatch."""
        most = (self.layer + self.repeat + self.most_again) * self.longest + self.fixed
        more = max(int(extra.max(initial=0)) for extra in self.extra.values())
        return int(most.max()) + more + (0 if self.kinds is None else self.kinds.largest)

    @property
    def most_again(self) -> int:
        """No option's modules take more integer steps of a chunk's layer."""
        return max(int(again.max(initial=0)) for again in self.again.values())

    @property
    def longest_after(self) -> int:
        """Nothing that follows the pipeline takes more integer steps."""
        return int((self.after_layer * self.longest + self.after_fixed).max())

    def places(self, chip: int) -> list[int]:
        """Positions of the stages on that chip type."""
        return [position for position, index in enumerate(self.chips) if index == chip]


def plan_data(table: Coefficients, row: int, chips: Ints, scale: Scale, within_s: float) -> PlanData:
    """The data of one plan; layer counts that no step time within `within_s` allows are left out."""
    problem, rows = table.problem, table.rows
    stages = table.stages(np.array([row]), chips[None, :])
    vpp, pp = int(rows.vpp[row]), len(chips)
    longest = _longest_chunk(table, row, stages, within_s)
    odd, odd_states = _odd_layers(table, row)
    told = {chip: _options(table, row, chip, longest) for chip in dict.fromkeys(chips.tolist())}
    fits: dict[int, Ints] = {}
    for chip, some in told.items():
        places = np.nonzero(chips == chip)[0]
        each = [_fits(table, row, stages, places, some, longest, n * odd_states) for n in range(odd.max() + 1)]
        fits[chip] = np.stack(each, axis=2)
    here = rows.take([row])
    ways = _ways(problem, told, here)
    again = {chip: scale.integers(vpp * _again(table, row, chip, some)) for chip, some in told.items()}
    extra = {chip: scale.integers(_extra(table, row, chip, some)) for chip, some in told.items()}
    repeat = scale.integers(vpp * stages.recompute[0])
    costs = {
        chip: _costs(some, again[chip], extra[chip], int(repeat[chips.tolist().index(chip)]), longest)
        for chip, some in told.items()
    }
    keep = _useful(told, fits, ways, costs)
    options = {chip: tuple(some[i] for i in keep[chip]) for chip, some in told.items()}
    fits = {chip: most[:, keep[chip]] for chip, most in fits.items()}
    first, second = (float(weight[0]) for weight in table.weights(np.array([row])))
    several = len(table.memory.kind_states) > 1
    return PlanData(
        row=row,
        chips=tuple(chips.tolist()),
        vpp=vpp,
        slots=(int(rows.embedding_slot[row]), int(rows.loss_slot[row])),
        needed=int(rows.places(problem.model.layers)[row]) // vpp,
        microbatches=int(rows.microbatches[row]),
        longest=longest,
        options=options,
        ways={chip: tuple(ways[chip][i] for i in keep[chip]) for chip in told},
        split=_split(problem, here, pp),
        fits={chip: most.max(axis=2) for chip, most in fits.items()},
        again={chip: steps[keep[chip]] for chip, steps in again.items()},
        extra={chip: steps[keep[chip]] for chip, steps in extra.items()},
        kinds=_kinds(table, row, scale, odd, fits) if several else None,
        layer=scale.integers(vpp * stages.layer[0]),
        repeat=repeat,
        fixed=scale.integers(stages.fixed[0] + stages.slack[0]),
        after_layer=scale.integers(vpp * stages.after_layer[0]),
        after_fixed=scale.integers(stages.after_fixed[0]),
        degrees=tuple(int(getattr(rows, name)[row]) for name in ROW),
        error_s=scale.error_s(first, second, pp, longest),
    )


def _odd_layers(table: Coefficients, row: int) -> tuple[Ints, float]:
    """Layers before each place of a chunk whose states are not those of the common kind; bytes that one has more."""
    model = table.problem.model
    rows = table.rows
    way = (int(rows.vpp[row]), int(rows.embedding_slot[row]), int(rows.loss_slot[row]))
    kinds, counts = layer_kinds(model), counts_before(model, *way)
    other = [index for index, kind in enumerate(kinds) if kind.experts != kinds[0].experts]
    if not other:
        return np.zeros(counts.shape[1], dtype=np.int64), 0.0
    states = table.memory.kind_states[:, row]
    return counts[other].sum(axis=0), float(states[other[0]] - states[0])


def _kinds(table: Coefficients, row: int, scale: Scale, odd: Ints, fits: dict[int, Ints]) -> Kinds:
    at = np.array([row])
    before = {chip: scale.integers(table.before(table.kind_layer[chip], at)[0]) for chip in fits}
    return Kinds(before, odd, fits)


def _again(table: Coefficients, row: int, chip: int, options: list[Option]) -> Floats:
    """Seconds of a layer that each option's modules take again."""
    return table.again(chip, tuple(option.modules for option in options), np.array([row]))[:, 0]


def _costs(options: list[Option], again: Ints, extra: Ints, repeat: int, longest: int) -> Ints:
    """Steps that each option adds to a chunk of 1, 2, .. `longest` layers: (options, longest)."""
    layers, repeats = np.arange(1, longest + 1)[None, :], np.array([option.repeats for option in options])[:, None]
    return np.asarray(again[:, None] * layers + repeat * np.minimum(repeats, layers) + extra[:, None])


def _extra(table: Coefficients, row: int, chip: int, options: list[Option]) -> Floats:
    """Seconds that each option takes beyond the least for sharded weights and gradients (one stage only)."""
    if table.rows.pp[row] > 1:
        return np.zeros(len(options))
    layers = table.problem.model.layers
    time = {name: column[chip, row] for name, column in table.time.items()}
    modules = layers * _again(table, row, chip, options)
    repeated = [
        modules[index] + min(option.repeats, layers) * time["recompute"] for index, option in enumerate(options)
    ]
    seconds = np.array([float(table.sharding_seconds(time, again)) for again in repeated])
    return np.asarray(seconds - table.sharding[chip, row])


def _longest_chunk(table: Coefficients, row: int, stages: Stages, within_s: float) -> int:
    """The most layers in a chunk: what the other chunks leave, and what the step time of interest allows."""
    vpp, pp = int(table.rows.vpp[row]), stages.layer.shape[1]
    left = int(table.rows.places(table.problem.model.layers)[row]) // vpp - (pp - 1)
    first, second = (weight[0] for weight in table.weights(np.array([row])))
    slowest = within_s / (first + second)
    in_time = np.floor((slowest - stages.fixed[0]) / (vpp * stages.layer[0]) + 1e-6).max()
    return int(max(0, min(left, in_time)))


def _options(table: Coefficients, row: int, index: int, longest: int) -> list[Option]:
    """All ways to recompute that the pins leave, cheapest first. Uniform units of 1 equal block over all layers."""
    problem, chip = table.problem, table.problem.chip_names[index]
    kinds = allowed_kinds(problem, chip)
    found: list[Option] = []
    if "none" in kinds:
        found.append(Option("none", 0, 0))
    if "selective" in kinds:
        sets = tuple(table.sets[place] for place in table.may[index])
        seconds = table.again(index, sets, np.array([row]))[:, 0]
        found += [Option("selective", 0, 0, sets[place]) for place in np.argsort(seconds, kind="stable")]
    pinned = pinned_for(problem.spec.search.pin.recompute_num_layers, chip)
    more = sorted(amount for amount in pinned or () if amount > longest)  # more than a chunk has: all of it
    amounts = [*range(1, longest + 1), *more]
    if "block" in kinds:
        found += [Option("block", amount, amount) for amount in amounts]
    if "uniform" in kinds:
        found += [Option("uniform", amount, longest) for amount in amounts]
    banned = forbidden_for(problem.spec.search.forbid.recompute_num_layers, chip)
    one = problem.launcher is not None and problem.launcher.recompute_units == "one"
    found = [o for o in found if not (one and o.kind == "uniform" and o.amount > 1)]
    return [o for o in found if (pinned is None or o.amount in pinned) and o.amount not in banned]


def _split(problem: Problem, row: Candidates, pp: int) -> Split:
    """Which layers by stage the launcher allows in that row, "any" where it rules nothing out for so many stages."""
    if problem.launcher is None:
        return "any"
    equal, tied = tied_stages(problem.launcher, problem.model, row)
    if equal and pp > 1:
        return "none"
    return "first_last" if tied and pp > 3 else "any"


def _ways(problem: Problem, options: dict[int, list[Option]], row: Candidates) -> dict[int, list[int]]:
    """The way of each option (see PlanData); -1 where a chip type cannot go that way with the others."""
    launcher = problem.launcher
    if launcher is None or not (problem.recompute_by_stage or len(options) > 1):
        return {chip: [0] * len(some) for chip, some in options.items()}
    free = differing_kinds(launcher, row)
    tied = {o: way for way, o in enumerate(_shared(options), 1) if o.kind not in free}
    return {chip: [0 if o.kind in free else tied.get(o, -1) for o in some] for chip, some in options.items()}


def _shared(options: dict[int, list[Option]]) -> list[Option]:
    """The options that all chip types have."""
    first, *others = options.values()
    known = [set(some) for some in others]
    return [option for option in first if all(option in some for some in known)]


def _useful(
    options: dict[int, list[Option]], fits: dict[int, Ints], ways: dict[int, list[int]], costs: dict[int, Ints]
) -> dict[int, list[int]]:
    """The options to keep of each chip type: those that may differ where no other of these is as good, and those that
    all stages have to share where no other is as good for all of them.
    """
    keep = {
        chip: _undominated(costs[chip], fits[chip], [i for i, way in enumerate(ways[chip]) if not way])
        for chip in options
    }
    if any(way > 0 for each in ways.values() for way in each):
        shared = _shared(options)
        at = {chip: {option: i for i, option in enumerate(some)} for chip, some in options.items()}
        picks = {chip: [places[option] for option in shared] for chip, places in at.items()}
        together = np.concatenate([fits[chip][:, picks[chip]] for chip in options])
        cost = np.stack([costs[chip][picks[chip]] for chip in options], axis=1)
        for option in (shared[i] for i in _undominated(cost, together, list(range(len(shared))))):
            for chip, places in at.items():
                keep[chip] += [places[option]] * (ways[chip][places[option]] > 0)
    return {chip: sorted(kept) for chip, kept in keep.items()}


def _fits(
    table: Coefficients, row: int, stages: Stages, places: Ints, options: list[Option], longest: int, odd_states: float
) -> Ints:
    """The most layers in a chunk for each place and option, by the memory model itself (no linear stand-in).

    `odd_states`: bytes that layers of another than the common kind add to a stage.
    """
    memory, vpp = table.memory, int(table.rows.vpp[row])
    pp = stages.layer.shape[1]
    m = min(int(table.rows.microbatches[row]), 4 * pp)
    live = peak_live_total(pp, vpp, m)[places][:, None]
    layers = np.arange(1, longest + 1)[None, :]
    full, checkpoint = float(memory.full[row]), float(memory.checkpoint[row])
    states = (memory.layer_states[row] + memory.kind_states[0, row]) * vpp * layers + odd_states
    slots = np.zeros(pp)
    slots[0], slots[-1] = table.rows.embedding_slot[row], slots[-1] + table.rows.loss_slot[row]
    # A layer's place without a layer counts as a common one, where the room counts it as a mean one.
    room = stages.room[0] - table.slack_states(np.array([row]))[0] + slots * memory.kind_states[0, row]
    room = room[places][:, None]
    factor = 1.0 + memory.overhead
    most = np.zeros((len(places), len(options)), dtype=np.int64)
    for index, option in enumerate(options):
        one, at = (option.modules,), np.array([row])
        kept, replay = float(memory.kept(one, at)[0, 0]), float(memory.replayed(one, at)[0, 0])
        held = activation_bytes((full, kept, checkpoint), live, layers, option.kind, np.array(option.amount), replay)
        most[:, index] = (states + factor * held <= room).cumprod(axis=1).sum(axis=1)
    return most


def _undominated(costs: Ints, fits: Ints, some: list[int]) -> list[int]:
    """Those of some options for which none before is as cheap and fits as much everywhere.

    `costs` (options, .., layers of a chunk) are looked at as far as the option fits; `fits` (stages, options, odd).
    """
    keep: list[int] = []
    for index in some:
        most = int(fits[:, index].max())
        if not most:
            continue
        cheap = (costs[keep, ..., :most] <= costs[index, ..., :most]).all(axis=tuple(range(1, costs.ndim)))
        roomy = (fits[:, keep] >= fits[:, [index]]).all(axis=(0, 2))
        if not (cheap & roomy).any():
            keep.append(index)
    return keep
