"""The best split of one plan's layers by dynamic programming, stage after stage: the exact half of a warm start.

Exact for the integers that the solver gets wherever every stage chooses its recomputation on its own, among options
given to it: then a stage's least time is a table by its layers (and by where they lie, with layers of several kinds),
and nothing else ties stages together but their number of layers and the two maxima in the objective, the slowest stage
and what follows the pipeline. Under limits on these two the least sum of the stages is a shortest path over layers
placed (`_shortest`); `_descend` finds the limits. Where a step is a StepForm more than these two tie stages: chains.py.

What it says is a lower bound on every plan that the solver's model allows: the model has these layers, options, memory
limits and integers, and may only have more constraints (a launcher's split of layers, pins). The solver starts from the
split and stops at once where it is allowed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from cpsolver.cost.shard import Ints
from cpsolver.cost.step_form import PASS_PARTS, StepForm
from cpsolver.search.compile.chains import NEVER, ChainSplits
from cpsolver.search.compile.data import PassSteps, PlanData
from cpsolver.search.compile.options import ChipOptions

Options = tuple[int, ...]
"""Indices of the recomputation options that a stage may have."""
Choice = dict[int, Options]
"""The options of each chip type's stages, each of which takes its own best."""
_TRIES = 400  # boxes of limits that are tried before a lower bound has to do

Box = tuple[int, int, int, int]
"""First and last limit on the slowest stage, first and last limit on what follows: indices, ends included."""


@dataclass(frozen=True)
class Split:
    """A split of a plan's layers and what is proven of all splits, in integer steps.

    `objective` (`PlanData.multiple` times the step time) is the split's own, `chunk` its layers in each chunk and
    `option` its options' indices, by stage; `parts` what a StepForm asks of these. No split has a slowest stage below
    `slowest` or an objective below `lower`.
    """

    objective: int
    slowest: int
    lower: int
    chunk: Ints
    option: Ints
    parts: Ints | None = None


class Splitter:
    """One plan's stages.

    Tables are by stage, length - 1, and the place where the stage ends: one column where all layers are alike.
    """

    def __init__(self, plan: PlanData) -> None:
        self._plan, self._needed = plan, plan.needed
        needed = plan.needed
        self._length = np.arange(1, plan.longest + 1)[:, None]
        end = np.arange(needed + 1)[None, :]
        begin = end - self._length
        self._from = np.where(begin < 0, needed + 1, begin)  # the last entry of a path's lengths: no way to there
        self._of_type: dict[tuple[int, Options], tuple[Ints, Ints]] = {}
        self._pairs = plan.microbatches * plan.vpp - 1
        self._follows = np.asarray(plan.after_layer[:, None] * self._length.T + plan.after_fixed[:, None])[:, :, None]
        self._afters = np.unique(self._follows)
        self._least = np.array([plan.least(position) for position in range(plan.pp)])[:, None, None]
        self._asked = self._length
        if plan.odd is not None:
            self._begin, self._end = np.maximum(begin, 0), end
            self._odd = plan.odd[end] - plan.odd[self._begin]
            self._asked = np.where(begin < 0, NEVER, self._length)  # none is longer than the layers before its end
        self._passes = {name: self._pass_steps(steps) for name, steps in plan.passes.items()}

    def slowest(self, choice: Choice) -> int:
        """The smallest slowest stage of any split with these options, NEVER where memory is too small."""
        return self._smallest(self._tables(choice)[0])

    def least_objective(self, choice: Choice, slowest: int) -> int:
        """No split with these options, or some of them, has a smaller one; `slowest`: as the method of that name."""
        seconds = self._tables(choice)[0]
        if self._plan.form is not None:
            return max(self._chain_splits(self._plan.form, seconds).least(), self._works(slowest))
        total = self._least_sum(seconds)
        if self._plan.odd is not None:
            total = self._shortest(seconds, NEVER - 1, NEVER)[0]
        return self._least_of(slowest, total)

    def _least_of(self, slowest: int, total: int) -> int:
        """No split has a smaller objective than these, the least that there are, make."""
        return self._pairs * slowest + total + self._plan.multiple * int(self._afters[0])

    def _works(self, slowest: int) -> int:
        """What a stage makes a step take at least, whatever the others do, where a step is a StepForm."""
        return self._plan.multiple * (self._plan.microbatches * slowest + int(self._afters[0]))

    def _chain_splits(self, form: StepForm, seconds: Ints) -> ChainSplits:
        """The splits of a plan whose step is a StepForm, by the place where stages begin."""
        fits = (seconds < NEVER) & (self._length >= self._least)
        parts = np.zeros((PASS_PARTS, *seconds.shape), dtype=np.int64)
        for part, table in zip(parts, (np.where(fits, seconds, 0), *self._passes.values()), strict=False):
            part[:] = table
        if self._plan.odd is not None:
            end = np.minimum(np.arange(self._needed + 1) + self._length, self._needed)[None]
            fits = np.take_along_axis(fits, end, axis=2) & (np.arange(self._needed + 1) + self._length <= self._needed)
            parts = np.take_along_axis(parts, end[None], axis=3)
        return ChainSplits(form, parts, fits, self._follows[:, :, 0], self._needed)

    def may_run_within(self, choice: Choice, limit: int) -> bool:
        """Whether some split's schedule, run event by event, might end within a limit in the objective's steps.

        A stage cannot begin before a chunk's forward has passed all stages before it, nor end before the last backward
        has to: that it works on all microbatches, they on one chunk, and what follows the pipeline must fit, and in
        1F1B with what `pipeline_events.detour_s` has.
        """
        seconds, pp = self._tables(choice)[0], self._plan.pp
        all_chunks, follows = self._plan.microbatches * self._plan.vpp, self._plan.vpp * self._follows
        before, behind = self._nothing_placed(), self._least_behind(seconds)
        for stage in range(pp):
            passed = before[self._from]
            fits = (passed < NEVER) & (seconds[stage] < NEVER) & (behind[stage] < NEVER)
            own = all_chunks * seconds[stage]
            if self._plan.turns:
                own = own + np.maximum(0, 2 * behind[stage] - (pp - 1 - stage) * seconds[stage])
            fits &= passed + own + follows[stage] <= limit
            before = self._nothing_placed()
            before[0] = NEVER
            before[:-1] = np.where(fits, passed + seconds[stage], NEVER).min(axis=0)
        return bool(before[self._needed] < NEVER)

    def _least_behind(self, seconds: Ints) -> Ints:
        """The least that all stages behind each take by the place where it ends, NEVER where they hold no such rest:
        (pp, places)."""
        behind = np.full((len(seconds), self._needed + 1), NEVER)
        behind[-1, -1] = 0
        for stage in range(len(seconds) - 1, 0, -1):
            taken = np.minimum(np.broadcast_to(seconds[stage], self._from.shape) + behind[stage], NEVER)
            for length, of_length in enumerate(taken[:, 1:], 1):
                begin = behind[stage - 1, : self._needed + 1 - length]
                np.minimum(begin, of_length[length - 1 :], out=begin)
        return behind

    def best(self, choice: Choice, slowest: int, known: int = NEVER, least: int = 0) -> Split:
        """The best split with these options, of which `slowest` is known, and that none has less than the `least`.

        If none is below the objective `known` any of them, or one of objective NEVER: then `lower` is `known`.
        """
        (seconds, option), parts = self._tables(choice), None
        if self._plan.form is not None:
            splits = self._chain_splits(self._plan.form, seconds)
            objective, lower, chunk = splits.best(slowest, known, max(least, self._works(slowest)))
            parts = splits.parts(chunk)
        elif self._least_of(slowest, self._least_sum(seconds)) >= known:
            objective, lower, chunk = NEVER, known, np.zeros(self._plan.pp, dtype=np.int64)
        else:
            objective, lower, chunk = self._descend(seconds, slowest, known)
        chosen = [table[at] for table, at in zip(option, self._at(seconds, chunk), strict=True)]
        return Split(objective, slowest, lower, chunk, np.array(chosen), parts)

    def parts(self, chunk: Ints, option: Ints) -> Ints:
        """What a StepForm asks of the stages of a split with these options: (PASS_PARTS, pp)."""
        found = np.zeros((PASS_PARTS, len(chunk)), dtype=np.int64)
        for own in self._plan.by_chip.values():
            for place, stage in enumerate(own.places):
                length, end = chunk[stage] - 1, chunk[: stage + 1].sum()
                steps = self._steps(own, int(option[stage]), self._plain_steps(own))
                tables = [steps[place], *(each[stage] for each in self._passes.values())]
                found[: len(tables), stage] = [table[length, min(end, table.shape[1] - 1)] for table in tables]
        return found

    def _longest(self, seconds: Ints, chunk: Ints) -> tuple[int, int]:
        """The slowest stage of a split, and the most that follows the pipeline."""
        longest = max(int(of_stage[at]) for of_stage, at in zip(seconds, self._at(seconds, chunk), strict=True))
        return longest, int(self._follows[np.arange(len(chunk)), chunk - 1, 0].max())

    def _at(self, seconds: Ints, chunk: Ints) -> Iterator[tuple[int, int]]:
        """Where a split's stages stand in their tables."""
        ends = np.minimum(np.cumsum(chunk), seconds.shape[2] - 1)
        return zip((chunk - 1).tolist(), ends.tolist(), strict=True)

    def _descend(self, seconds: Ints, slowest: int, known: int) -> tuple[int, int, Ints]:
        """The least objective (one not below `known` if there is no less), a lower bound, and the split.

        The slowest stage and what follows the pipeline are entries of the tables, so a split lies in a point of a grid
        of limits. In a box of the grid no objective is below `pairs` times the box's first limit + the least sum under
        its last limits + `multiple` times its first limit on what follows: the boxes are taken in the order of such
        bounds until none is below the best. The split of a box's last limits is as good as any in all points from its
        own maxima on, for the least sum only grows as limits fall; what is left of the box lies before one of these
        maxima.
        """
        limits = np.unique(seconds[(seconds >= slowest) & (seconds < NEVER)])
        afters, multiple = self._afters, self._plan.multiple
        best, split = NEVER, np.zeros(self._plan.pp, dtype=np.int64)
        waiting: list[tuple[int, Box]] = [(0, (0, len(limits) - 1, 0, len(afters) - 1))]
        for _ in range(_TRIES):
            if not waiting or waiting[0][0] >= min(best, known):
                break
            a, b, c, d = heappop(waiting)[1]
            total, chunk = self._shortest(seconds, int(limits[b]), int(afters[d]))
            if total >= NEVER:
                continue
            longest, used = self._longest(seconds, chunk)
            objective = self._pairs * longest + total + multiple * used
            if objective < best:
                best, split = objective, chunk
            i, j = int(np.searchsorted(limits, longest)), int(np.searchsorted(afters, used))
            for box in ((a, i - 1, c, d), (max(i, a), b, c, j - 1)):
                for half in self._halves(box, limits):
                    bound = self._pairs * int(limits[half[0]]) + total + multiple * int(afters[half[2]])
                    if bound < min(best, known):
                        heappush(waiting, (bound, half))
        lower = min(best, known, waiting[0][0] if waiting else NEVER)
        return best, lower, split

    def _halves(self, box: Box, limits: Ints) -> Iterator[Box]:
        """A box cut where it is longer in steps of the objective; nothing of an empty one."""
        a, b, c, d = box
        if a > b or c > d:
            return
        slowest, after = (
            self._pairs * (limits[b] - limits[a]),
            self._plan.multiple * (self._afters[d] - self._afters[c]),
        )
        if a == b and c == d:
            yield box
        elif c == d or (a < b and slowest >= after):
            yield from ((a, (a + b) // 2, c, d), ((a + b) // 2 + 1, b, c, d))
        else:
            yield from ((a, b, c, (c + d) // 2), (a, b, (c + d) // 2 + 1, d))

    def _tables(self, choice: Choice) -> tuple[Ints, Ints]:
        """Steps of each stage, the least of its options, and the option that takes them."""
        plan = self._plan
        shape = (plan.pp, plan.longest, 1 if plan.odd is None else self._needed + 1)
        seconds, option = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        for chip, own in plan.by_chip.items():
            key = chip, choice[chip]
            if key not in self._of_type:
                self._of_type[key] = self._best_options(own, choice[chip])
            seconds[list(own.places)], option[list(own.places)] = self._of_type[key]
        return seconds, option

    def _best_options(self, own: ChipOptions, picks: Options) -> tuple[Ints, Ints]:
        """The same of one chip type's stages: (stages, length - 1, end), NEVER where no option fits."""
        plain = self._plain_steps(own)
        seconds, option = np.full(plain.shape, NEVER), np.full(plain.shape, picks[0])
        for pick in picks:
            steps = self._steps(own, pick, plain)
            better = steps < seconds
            np.copyto(seconds, steps, where=better)
            np.copyto(option, pick, where=better)
        return seconds, option

    def _plain_steps(self, own: ChipOptions) -> Ints:
        """Steps of a chip type's stages with nothing recomputed."""
        plan, places = self._plan, np.array(own.places)
        fixed, layer = (part[places][:, None, None] for part in (plan.fixed, plan.layer))
        steps = fixed + layer * self._length
        if plan.odd is not None:
            steps = steps + (own.beyond_mean[self._end] - own.beyond_mean[self._begin])
        return np.asarray(steps)

    def _steps(self, own: ChipOptions, pick: int, plain: Ints) -> Ints:
        """The same under one option."""
        plan, length = self._plan, self._length
        recomputed = np.minimum(own.options[pick].recomputed, length)
        more = plan.recompute[np.array(own.places)][:, None, None] * recomputed
        more = more + (own.layer_steps[pick] * length + own.steps[pick])
        fits = own.most[:, pick][:, None, None] if plan.odd is None else own.fits[:, pick][:, self._odd]
        return np.where(self._asked > fits, NEVER, plain + more)

    def _pass_steps(self, steps: PassSteps) -> Ints:
        """F or W of each stage, as the tables have it."""
        plan = self._plan
        table = steps.layer[:, None, None] * self._length + steps.fixed[:, None, None]
        if plan.odd is None:
            return np.asarray(table)
        more = {chip: beyond[self._end] - beyond[self._begin] for chip, beyond in steps.beyond_mean.items()}
        return np.asarray(table + np.stack([more[chip] for chip in plan.chips]))

    def _smallest(self, seconds: Ints) -> int:
        """The smallest slowest stage of any split, NEVER where there is none."""
        if self._plan.odd is None:
            return self._smallest_of_one_kind(seconds[:, :, 0])
        reached = self._nothing_placed()
        for table in seconds:
            reached[:-1] = np.maximum(reached[self._from], table).min(axis=0)
        return int(reached[self._needed])

    def _smallest_of_one_kind(self, seconds: Ints) -> int:
        """The same where layers are alike: more layers never take less, so a limit allows a stage any number of them up
        to the most, and is enough when the most of all stages are.
        """
        limits = np.unique(seconds[seconds < NEVER])

        def enough(limit: int) -> bool:
            most = (seconds <= limit).sum(axis=1)
            return bool(most.min() > 0 and most.sum() >= self._needed)

        if len(seconds) > self._needed or not len(limits) or not enough(int(limits[-1])):
            return NEVER
        return int(limits[bisect_left(limits, True, key=enough)])

    def _least_sum(self, seconds: Ints) -> int:
        """No split's stages take less in all.

        Where layers are alike: for any price of a layer, stages that may hold any numbers of layers, and are paid for
        each, take the least sum less the price of all layers: prices are tried at which a layer costs as much with
        recomputation, or without.
        """
        if self._plan.odd is not None:
            return 0
        layer, table = self._plan.layer, seconds[:, :, 0]
        prices = np.unique([layer.min(), layer.max(), (layer + self._plan.recompute).min()])
        least = [int((table - price * self._length.T).min(axis=1).sum() + price * self._needed) for price in prices]
        return max(least)

    def _nothing_placed(self) -> Ints:
        reached = np.full(self._needed + 2, NEVER)
        reached[0] = 0
        return reached

    def _shortest(self, seconds: Ints, limit: int, after: int) -> tuple[int, Ints]:
        """The least sum of the stages within the limits, and the chunks that have it."""
        within = np.where((seconds > limit) | (self._follows > after), NEVER, seconds)
        lengths = int(np.nonzero((within < NEVER).any(axis=(0, 2)))[0].max(initial=0)) + 1
        begin, reached = self._from[:lengths], self._nothing_placed()
        taken = []
        for table in within[:, :lengths]:
            paths = reached[begin] + table
            pick = paths.argmin(axis=0)
            reached[:-1] = np.minimum(paths[pick, np.arange(len(pick))], NEVER)
            taken.append(pick + 1)
        chunk, at = np.zeros(len(seconds), dtype=np.int64), self._needed
        if reached[at] < NEVER:
            for p in reversed(range(len(seconds))):
                chunk[p] = taken[p][at]
                at -= int(chunk[p])
        return int(reached[self._needed]), chunk
