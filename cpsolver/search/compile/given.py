"""Plans whose layers the spec or the launcher leaves few splits of: each of them is tried.

Stages that have to be alike make such plans: those of a chip type (`search.layer_split`), all, or all but the first and
the last (a launcher's rule); and so does a pinned split. What is tried are the splits that the solver's model allows
(`constraints`: layers, layer_split, launcher, pin), and the best of them under a choice of options is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from cpsolver.cost.shard import Ints
from cpsolver.problem.problem import Problem
from cpsolver.search.compile.chains import NEVER
from cpsolver.search.compile.data import PlanData
from cpsolver.search.compile.exact import Choice, Split, Splitter

_MOST_SPLITS = 5_000
"""Splits that are tried at most: more are left to the solver."""


@dataclass(frozen=True)
class _Alike:
    """Stages that have to be alike: their positions, and by how much their chunks are longer than the first's."""

    stages: list[int]
    more: Ints


def allowed_splits(problem: Problem, plan: PlanData) -> Ints | None:
    """The layers in each chunk of every split that is allowed, (splits, pp); None: any is, or they are too many."""
    pinned, none = problem.spec.search.pin.layers, np.empty((0, plan.pp), dtype=np.int64)
    alike = [groups for groups in (_of_spec(problem, plan), _of_launcher(plan)) if groups is not None]
    if not all(alike):
        return none  # the embedding's place makes equal stages impossible
    if pinned is not None:
        splits: Ints | None = _pinned(plan, pinned)
    else:
        splits = _of_groups(plan, alike[0]) if alike else None
    if splits is None:
        return None
    layers, banned = plan.vpp * splits - _slots(plan), problem.spec.search.forbid.layers
    good = (splits >= [plan.least(stage) for stage in range(plan.pp)]).all(axis=1)
    good &= (splits <= plan.longest).all(axis=1) & (splits.sum(axis=1) == plan.needed)
    for group in chain.from_iterable(alike):
        good &= (splits[:, group.stages] == splits[:, group.stages[:1]] + group.more).all(axis=1)
    unwanted = None if banned is None else plan.held(banned)
    if unwanted is not None and len(unwanted) == plan.pp:
        good &= np.asarray(layers != np.array(unwanted)).any(axis=1)
    return np.asarray(splits[good])


def _slots(plan: PlanData) -> Ints:
    return np.array([plan.slot(stage) for stage in range(plan.pp)])


def _of_spec(problem: Problem, plan: PlanData) -> list[_Alike] | None:
    """The stages that the spec wants to have as many layers: none where they cannot, None where it wants nothing."""
    split = problem.spec.search.layer_split
    if split == "auto":
        return None
    by_chip = [list(own.places) for own in plan.by_chip.values()]
    groups, slots = [list(range(plan.pp))] if split == "even" else by_chip, _slots(plan)
    more = [slots[group] - slots[group[0]] for group in groups]
    if any((beside % plan.vpp).any() for beside in more):
        return []
    return [_Alike(group, beside // plan.vpp) for group, beside in zip(groups, more, strict=True)]


def _of_launcher(plan: PlanData) -> list[_Alike] | None:
    """The stages whose chunks the launcher wants equal; None: any may differ."""
    if plan.split == "any":
        return None
    ends = [0, plan.pp - 1] if plan.split == "first_last" else []
    middle = [stage for stage in range(plan.pp) if stage not in ends]
    return [_Alike(group, np.zeros(len(group), dtype=np.int64)) for group in ([end] for end in ends)] + [
        _Alike(middle, np.zeros(len(middle), dtype=np.int64))
    ]


def _pinned(plan: PlanData, layers: tuple[int, ...]) -> Ints:
    """The split that is pinned, if the plan can have it."""
    held = plan.held(layers)
    if held is None or len(held) != plan.pp:
        return np.empty((0, plan.pp), dtype=np.int64)
    places = np.array([held]) + _slots(plan)
    return np.asarray(places[(places % plan.vpp == 0).all(axis=1)] // plan.vpp)


def _of_groups(plan: PlanData, groups: list[_Alike]) -> Ints | None:
    """Every split that gives each group's stages one length, and what some have more; None: they are too many."""
    sizes = np.array([len(group.stages) for group in groups])
    left = plan.needed - sum(int(group.more.sum()) for group in groups)
    most = np.clip((left - (sizes.sum() - sizes)) // sizes, 0, plan.longest)[:-1]
    if np.prod(most.astype(np.float64)) > _MOST_SPLITS:
        return None
    lengths = np.indices(most).reshape(len(most), int(np.prod(most))).T + 1
    last, rest = np.divmod(left - lengths @ sizes[:-1], sizes[-1])
    lengths = np.column_stack([lengths, last])[(rest == 0) & (last >= 1)]
    splits = np.empty((len(lengths), plan.pp), dtype=np.int64)
    for group, length in zip(groups, lengths.T, strict=True):
        splits[:, group.stages] = length[:, None] + group.more
    return splits


class GivenSplitter(Splitter):
    """One plan's stages with these splits alone, (splits, pp): bounds that spare work elsewhere are of no use here."""

    def __init__(self, plan: PlanData, splits: Ints) -> None:
        super().__init__(plan)
        self._splits, self._ends = splits, np.cumsum(splits, axis=1)

    def slowest(self, choice: Choice) -> int:
        """The smallest slowest stage of any of them with these options, NEVER where none fits."""
        return int(self._of_splits(self._tables(choice)[0]).max(axis=1).min(initial=NEVER))

    def least_objective(self, choice: Choice, _slowest: int) -> int:
        """No split has a smaller one with these options, or some of them."""
        return int(self._objectives(self._tables(choice)[0]).min(initial=NEVER))

    def best(self, choice: Choice, slowest: int, _known: int = NEVER, _least: int = 0) -> Split:
        """The best split with these options."""
        seconds, option = self._tables(choice)
        objectives = self._objectives(seconds)
        at = int(objectives.argmin())
        chunk, objective = self._splits[at], int(objectives[at])
        chosen = np.array([table[place] for table, place in zip(option, self._at(seconds, chunk), strict=True)])
        parts = self.parts(chunk, chosen) if self._plan.form is not None and objective < NEVER else None
        return Split(objective, slowest, objective, chunk, chosen, parts)

    def _of_splits(self, table: Ints) -> Ints:
        """What each split's stages have in a table by stage, length - 1, and end: (splits, pp)."""
        end = np.minimum(self._ends, table.shape[2] - 1)
        return np.asarray(table[np.arange(self._plan.pp), self._splits - 1, end])

    def _objectives(self, seconds: Ints) -> Ints:
        """Of every split, NEVER where it does not fit."""
        own, form, multiple = self._of_splits(seconds), self._plan.form, self._plan.multiple
        fits = np.asarray((own < NEVER).all(axis=1))
        own = np.where(fits[:, None], own, 0)
        if form is None:
            steps = self._pairs * own.max(axis=1) + own.sum(axis=1)
        else:
            parts = np.stack([own, *(self._of_splits(table) for table in self._passes.values())])
            chains = np.einsum("csp,pns->nc", form.chains[:, :, : len(parts)], parts)
            steps = np.maximum(chains.max(axis=1), multiple * form.microbatches * own.max(axis=1))
        return np.where(fits, steps + multiple * self._of_splits(self._follows).max(axis=1), NEVER)
