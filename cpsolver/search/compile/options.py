"""The options to recompute that a plan's chip types may choose among, as integers; those that no other dominates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cpsolver.cost import both_ways
from cpsolver.cost.memory import activation_bytes
from cpsolver.cost.modules import Modules
from cpsolver.cost.pipeline_events import runs_beside
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.profiles.expert_overlap import recomputes_exchange
from cpsolver.profiles.facts import Split, tied_stages
from cpsolver.profiles.sharing_facts import differing_kinds
from cpsolver.search.bounds.coefficients import Coefficients, allowed_kinds, most_in_flight
from cpsolver.search.bounds.stages import Stages
from cpsolver.spec.search import forbidden_for, pinned_for

Lengths: TypeAlias = NDArray[Any]
"""Times in integer steps, or in seconds."""
Integers = Callable[[Floats], Ints]
"""Seconds as integer steps (`data.Scale.integers`)."""

FREE, NOWHERE = 0, -1
"""Values of `ChipOptions.tie` beside those of options that all stages share."""
_CELLS = 250_000
"""Entries of the arrays in which options are looked at together, at most."""
_AT_ONCE = 32
"""Options that are compared with all before them in one go: as many as make small arrays."""


@dataclass(frozen=True)
class Option:
    """How to recompute: kind and number, the layers of each chunk that it recomputes (`longest` for all), and with
    kind selective the modules that it recomputes in every layer."""

    kind: RecomputeKind
    amount: int
    recomputed: int
    modules: Modules = ()


@dataclass(frozen=True)
class ChipOptions:
    """The options of a chip type's stages, and what each adds to a stage's steps; arrays by option.

    `places` are the stages' positions. `fits[p, o, n]`: the most layers in each chunk of the p-th of them under option
    o where n of the stage's layers are odd (see PlanData), 0 for none. Beside a chunk's own layers, and those that it
    recomputes, option o adds `layer_steps[o]` for each layer and `steps[o]` once. `beyond_mean` (places of a chunk's
    layers + 1): steps that the layers before a place take beyond as many mean ones.

    `tie`: all stages of a plan have options of one tie. FREE options may stand next to each other, every other tie is
    one option; NOWHERE has one that another chip type lacks.
    """

    places: tuple[int, ...]
    options: tuple[Option, ...]
    fits: Ints
    layer_steps: Ints
    steps: Ints
    tie: Ints
    beyond_mean: Ints

    def __len__(self) -> int:
        return len(self.options)

    @cached_property
    def recomputed(self) -> Ints:
        """Layers of a chunk that each option recomputes."""
        return np.array([option.recomputed for option in self.options], dtype=np.int64)

    @cached_property
    def most(self) -> Ints:
        """The most layers in each chunk, were all of the kind that needs least: (stages, options)."""
        return np.asarray(self.fits.max(axis=2))

    @property
    def largest_step(self) -> int:
        """No run of layers takes so many steps more or less than mean ones."""
        return int(self.beyond_mean.max() - self.beyond_mean.min())

    def take(self, options: list[int]) -> ChipOptions:
        """Those with these indices."""
        return replace(
            self,
            options=tuple(self.options[index] for index in options),
            fits=self.fits[:, options],
            layer_steps=self.layer_steps[options],
            steps=self.steps[options],
            tie=self.tie[options],
        )

    def costs(self, recompute: int) -> Costs:
        """What each option costs at so many steps a recomputed layer."""
        return Costs(self.layer_steps[None], self.recomputed[None], self.steps[None], np.array([[recompute]]))


@dataclass(frozen=True)
class Costs:
    """Steps that options add to a chunk of n layers on the chip types that share them, (chip types, options):
    layer_steps * n + recompute * min(recomputed, n) + steps. Or seconds.
    """

    layer_steps: Lengths
    recomputed: Lengths
    steps: Lengths
    recompute: Lengths

    @classmethod
    def side_by_side(cls, parts: list[tuple[Costs, list[int]]]) -> Costs:
        """Those of several chip types, of so many options each."""

        def joined(name: str) -> Lengths:
            return np.concatenate([getattr(own, name)[:, picks] for own, picks in parts])

        recompute = np.concatenate([own.recompute for own, _ in parts])
        return cls(joined("layer_steps"), joined("recomputed"), joined("steps"), recompute)

    def of(self, options: Ints, layers: Ints) -> Lengths:
        """Steps of each option in chunks of its own numbers of layers, (.., numbers): (chip types, ..) of them."""
        each, recomputed, once = (part[:, options, None] for part in (self.layer_steps, self.recomputed, self.steps))
        recompute = self.recompute.reshape(-1, *[1] * layers.ndim)
        return np.asarray(each * layers + recompute * np.minimum(recomputed, layers) + once)

    def as_cheap(self, others: Ints, options: Ints, most: Ints) -> Bools:
        """Which others cost no more than each of some options, with every number of layers up to its most: (options,
        others).

        The difference of two is linear between the numbers of layers from which on either recomputes no more of them.
        """
        other, option, most = np.broadcast_arrays(others[None, :], options[:, None], most[:, None])
        turns = [self.recomputed[0, other], self.recomputed[0, option], np.ones_like(most), most]
        layers = np.clip(np.stack(turns, axis=-1), 1, most[..., None])
        return np.asarray((self.of(other, layers) <= self.of(option, layers)).all(axis=(0, -1)))


@dataclass(frozen=True)
class OddLayers:
    """Layers of a stage that are of another than the common kind, by number n (see `data.odd_layers`): of each sort, of
    BOTH_WAYS in either chunk, (sorts, chunks or 1, n), and the bytes that their states have more, (n,)."""

    by_sort: Ints
    states: Floats


@dataclass(frozen=True)
class PlanRow:
    """A row of the coefficients and a chip type for every stage, (pp,), and the longest chunk of interest.

    The stages of a chip type share their row, and where degrees are equal all do.
    """

    table: Coefficients
    rows: Ints
    chips: Ints
    stages: Stages
    longest: int

    def row(self, chip: int) -> int:
        """The row of a chip type's stages."""
        return int(self.rows[(self.chips == chip).argmax()])

    def at(self, chip: int) -> Ints:
        """The same as an array."""
        return np.array([self.row(chip)])

    @property
    def vpp(self) -> int:
        """Chunks of a stage."""
        return int(self.table.rows.vpp[self.rows[0]])

    @property
    def columns(self) -> Candidates:
        """The first stage's decisions, which the facts of a launcher look at."""
        return self.table.rows.take([self.rows[0]])

    def split(self) -> Split:
        """Which layers by stage the launcher allows, "any" where it rules nothing out for so many stages."""
        problem, pp = self.table.problem, len(self.chips)
        if problem.launcher is None:
            return "any"
        equal, tied = tied_stages(problem.launcher, problem.model, self.columns)
        if equal and pp > 1:
            return "none"
        return "first_last" if tied and pp > 3 else "any"


def options_by_chip(
    row: PlanRow, integers: Integers, odd: Ints, odd_of: Callable[[int, Ints], OddLayers]
) -> dict[int, ChipOptions]:
    """The options worth looking at of every chip type of a plan; `odd` and `odd_of`, of a row: see `data`."""
    problem, chips = row.table.problem, dict.fromkeys(row.chips.tolist())
    tied = problem.launcher is not None and (problem.recompute_by_stage or len(chips) > 1)
    by_chip = {chip: _options(row, chip, integers, odd, partial(odd_of, row.row(chip)), tied) for chip in chips}
    if not tied:
        return by_chip
    by_chip = _tied(row, by_chip)
    recompute = integers(row.vpp * row.stages.recompute[0])
    costs = {chip: own.costs(int(recompute[own.places[0]])) for chip, own in by_chip.items()}
    keep = _undominated_by_chip(by_chip, costs)
    return {chip: own.take(keep[chip]) for chip, own in by_chip.items()}


def _options(
    row: PlanRow, chip: int, integers: Integers, odd: Ints, odd_of: Callable[[Ints], OddLayers], every: bool
) -> ChipOptions:
    """Every option of a chip type, or those that no other dominates on it: the same whatever stands at other places."""
    table, places = row.table, tuple(np.nonzero(row.chips == chip)[0].tolist())
    key = (*row.rows[[0, places[0], -1]].tolist(), len(row.chips), chip, places, row.longest)
    known = table.known(key, lambda: _that_fit(row, chip, places, odd, odd_of))
    if not every:
        known = table.known((*key, "undominated"), lambda: _alone(row, places[0], *known))
    options, modules_s, sharding_s, fits = known
    return ChipOptions(
        places=places,
        options=options,
        fits=fits,
        layer_steps=integers(row.vpp * modules_s),
        steps=integers(sharding_s),
        tie=np.full(len(options), FREE),
        beyond_mean=integers(table.beyond_mean(table.time.kind_layer[chip], row.at(chip))[0]),
    )


_Fitting: TypeAlias = tuple[tuple[Option, ...], Floats, Floats, Ints]
"""Options, the seconds that each adds to a layer and for sharding, and `ChipOptions.fits`."""


def _alone(
    row: PlanRow, place: int, options: tuple[Option, ...], layer_s: Floats, once_s: Floats, fits: Ints
) -> _Fitting:
    """Those of the options of the chip type that stands there that none before dominates, by their seconds."""
    recomputed = np.array([option.recomputed for option in options], dtype=np.int64)
    recompute_s = np.broadcast_to(row.stages.recompute[0], len(row.chips))[place]
    costs = Costs(row.vpp * layer_s[None], recomputed[None], once_s[None], np.array([[row.vpp * recompute_s]]))
    keep = _undominated(costs, fits, list(range(len(options))))
    return tuple(options[index] for index in keep), layer_s[keep], once_s[keep], fits[:, keep]


def _that_fit(
    row: PlanRow, chip: int, places: tuple[int, ...], odd: Ints, odd_of: Callable[[Ints], OddLayers]
) -> _Fitting:
    """All options of a chip type."""
    options = tuple(allowed_options(row, chip))
    modules_s = row.table.modules_s(chip, tuple(option.modules for option in options), row.at(chip))[:, 0]
    possible = np.zeros(int(odd.max()) + 1, dtype=np.bool_)
    for number in np.unique(odd):
        between = odd - number
        possible[between[between >= 0]] = True
    numbers = np.flatnonzero(possible)  # no layers one after another have others
    fits = np.zeros((len(places), len(options), len(possible)), dtype=np.int64)
    fits[:, :, numbers] = _fits(row, np.array(places), options, odd_of(numbers))
    return options, modules_s, _sharding_s(row, chip, options, modules_s), fits


def allowed_options(row: PlanRow, chip: int) -> Iterator[Option]:
    """All options to recompute that the pins leave, cheapest first. Uniform units of 1 equal block over all layers."""
    problem, name, table = row.table.problem, row.table.problem.chip_names[chip], row.table
    pinned = pinned_for(problem.spec.search.pin.recompute_num_layers, name)
    banned = forbidden_for(problem.spec.search.forbid.recompute_num_layers, name)
    # What is pinned beyond a chunk is all of it, however long.
    amounts = [*range(1, row.longest + 1), *sorted(amount for amount in pinned or () if amount > row.longest)]
    allowed, options = allowed_kinds(problem, name), list[Option]()
    if "none" in allowed:
        options.append(Option("none", 0, 0))
    if "selective" in allowed:
        sets = tuple(table.sets[index] for index in table.allowed_sets[chip])
        cheapest_first = np.argsort(table.modules_s(chip, sets, row.at(chip))[:, 0], kind="stable")
        options += [Option("selective", 0, 0, sets[index]) for index in cheapest_first]
    if "block" in allowed:
        options += [Option("block", amount, amount) for amount in amounts]
    if "uniform" in allowed:
        one_unit = problem.launcher is not None and problem.launcher.recompute_units == "one"
        options += [Option("uniform", amount, row.longest) for amount in amounts if not (one_unit and amount > 1)]
    overlaps = bool(table.rows.expert_overlap[row.row(chip)])
    for option in options:
        if overlaps and recomputes_exchange(option.kind, option.modules):
            continue
        if (pinned is None or option.amount in pinned) and option.amount not in banned:
            yield option


def _sharding_s(row: PlanRow, chip: int, options: tuple[Option, ...], modules_s: Floats) -> Floats:
    """Seconds that each option takes beyond the least for sharded weights and gradients (one stage only)."""
    table = row.table
    if len(row.chips) > 1:
        return np.zeros(len(options))
    layers = table.problem.model.layers
    recomputed = np.array([min(option.recomputed, layers) for option in options])
    recompute_s = layers * modules_s + recomputed * table.time.recompute[chip, row.row(chip)]
    seconds = table.sharding(row.at(chip), chip, recompute_s[:, None])[:, 0]
    return np.asarray(seconds - table.least_sharding[chip, row.row(chip)])


def _fits(row: PlanRow, places: Ints, options: tuple[Option, ...], odd: OddLayers) -> Ints:
    """The most layers in a chunk for each place, option and choice of odd layers, by the memory model itself (no linear
    stand-in).
    """
    memory, rows, pp = row.table.memory, row.table.rows, len(row.chips)
    own = row.row(int(row.chips[places[0]]))
    at = np.array([own])
    m = int(most_in_flight(rows, at, pp)[0])
    live = row.table.schedule(own).live_chunks(row.table.problem, pp, row.vpp, m)[places][:, None]
    beside = rows.expert_overlap[own] & runs_beside(live, row.vpp * m)
    layers = np.arange(1, row.longest + 1)[None, :]
    states = (memory.layer_states[own] + memory.kind_states[0, own]) * row.vpp * layers[:, :, None] + odd.states
    slots = np.zeros(pp)
    slots[0] += rows.embedding_slot[own]
    slots[0 if rows.v_shaped[own] else -1] += rows.loss_slot[own]
    # A layer's place without a layer counts as a common one, where the room counts it as a mean one.
    room = row.stages.room[0] - row.table.states_saving(at)[0] - row.table.either_stage(at, pp)[0]
    room = room + slots * memory.kind_states[0, own]
    room = room[places][:, None, None]
    factor = 1.0 + memory.overhead
    most = np.zeros((len(places), len(options), len(odd.states)), dtype=np.int64)
    sets = tuple(option.modules for option in options)
    kept, replayed = memory.stored((*sets, ()), at), memory.replayed(sets, at)[:, 0]
    full = kept.at((-1, 0))
    in_last = ((places == 0) * memory.last_chunk[own])[:, None, None, None] * layers[..., None]
    at_once = _CELLS // max(1, len(places) * layers.size * len(odd.states))
    for kind, part in _parts_by_kind(options, max(1, at_once)):
        amount = np.array([options[index].amount for index in part])[:, None]
        layer, replay = (full, kept.at(part), float(memory.checkpoint[own])), replayed[part][:, None]
        held = activation_bytes(layer, live[:, None], layers, kind, amount, replay, beside[:, None])[..., None]
        held = held + in_last
        if rows.both_ways[own]:
            less = [_of_either_stage(row, places, options[index], odd) for index in part]
            held = held - np.stack(less, axis=1)[:, :, None]
        most[:, part] = (states[:, None] + factor * held <= room[:, None]).cumprod(axis=2).sum(axis=2)
    return most


def _parts_by_kind(options: Sequence[Option], most: int) -> Iterator[tuple[RecomputeKind, list[int]]]:
    """The options' indices by their kinds, no more than so many at once."""
    by_kind: dict[RecomputeKind, list[int]] = {}
    for index, option in enumerate(options):
        by_kind.setdefault(option.kind, []).append(index)
    for kind, indices in by_kind.items():
        yield from ((kind, indices[begin : begin + most]) for begin in range(0, len(indices), most))


def _of_either_stage(row: PlanRow, places: Ints, option: Option, odd: OddLayers) -> Floats:
    """Bytes that stages of BOTH_WAYS hold less in flight than if all layers were of the kind that keeps most, and the
    head kept as much as those in whose place it stands: (places, n); as `evaluate` has it."""
    table, pp = row.table, len(row.chips)
    own = np.array([row.rows[0]])
    less = np.zeros((len(places), len(odd.states)))
    if option.kind not in ("none", "selective"):
        return less
    kept = both_ways.stored_less(table.memory, table.problem.model, (option.modules,), own)[:, 0, 0]
    for at, place in enumerate(places.tolist()):
        less[at] = both_ways.spared(kept, odd.by_sort, both_ways.in_flight(pp)[:, place])
        if place == 0:
            less[at] += table.rows.loss_slot[own[0]] * table.memory.stored((option.modules,), own).most[0, 0]
    return less


def _tied(row: PlanRow, by_chip: dict[int, ChipOptions]) -> dict[int, ChipOptions]:
    """With the ties that the launcher makes between the stages' options."""
    problem = row.table.problem
    assert problem.launcher is not None
    free = differing_kinds(problem.launcher, row.columns)
    shared = {option: tie for tie, option in enumerate(_shared(by_chip), 1)}

    def tie(option: Option) -> int:
        return FREE if option.kind in free else shared.get(option, NOWHERE)

    ties = {chip: np.array([tie(option) for option in own.options], dtype=np.int64) for chip, own in by_chip.items()}
    return {chip: replace(own, tie=ties[chip]) for chip, own in by_chip.items()}


def _shared(by_chip: dict[int, ChipOptions]) -> list[Option]:
    """The options that all chip types have."""
    first, *others = (own.options for own in by_chip.values())
    known = [set(options) for options in others]
    return [option for option in first if all(option in options for options in known)]


def _undominated_by_chip(by_chip: dict[int, ChipOptions], costs: dict[int, Costs]) -> dict[int, list[int]]:
    """The options to keep of each chip type, by index.

    A FREE one stays where no other of its chip type is as good; one that all stages share, where no other of these is
    as good on all chip types together.
    """
    free = {chip: np.nonzero(own.tie == FREE)[0].tolist() for chip, own in by_chip.items()}
    keep = {chip: _undominated(costs[chip], own.fits, free[chip]) for chip, own in by_chip.items()}
    if any((own.tie > FREE).any() for own in by_chip.values()):
        shared = _shared(by_chip)
        index_of = {chip: {option: i for i, option in enumerate(own.options)} for chip, own in by_chip.items()}
        picks = {chip: [index[option] for option in shared] for chip, index in index_of.items()}
        fits = np.concatenate([own.fits[:, picks[chip]] for chip, own in by_chip.items()])
        cost = Costs.side_by_side([(costs[chip], picks[chip]) for chip in by_chip])
        for option in (shared[i] for i in _undominated(cost, fits, list(range(len(shared))))):
            for chip, index in index_of.items():
                keep[chip] += [index[option]] * bool(by_chip[chip].tie[index[option]] > FREE)
    return {chip: sorted(indices) for chip, indices in keep.items()}


def _undominated(costs: Costs, fits: Ints, options: list[int]) -> list[int]:
    """Those of some options for which none before is as cheap and fits as much everywhere.

    Costs are looked at as far as the option fits; `fits` (stages, options, odd).
    """
    chosen = np.array(options, dtype=np.int64)
    chosen = chosen[fits[:, chosen].max(axis=(0, 2), initial=0) > 0]
    keep = np.ones(len(chosen), dtype=np.bool_)
    for begin in range(0, len(chosen), _AT_ONCE):
        part = chosen[begin : begin + _AT_ONCE]
        own, before = fits[:, part], chosen[: begin + len(part)]
        as_good = np.arange(len(before)) < begin + np.arange(len(part))[:, None]
        as_good &= (fits[:, None, before] >= own[:, :, None]).all(axis=(0, 3))
        as_good &= costs.as_cheap(before, part, own.max(axis=(0, 2)))
        keep[begin : begin + len(part)] = ~as_good.any(axis=1)
    return [int(index) for index in chosen[keep]]
