"""The best split of one plan's layers by dynamic programming, stage after stage: the exact half of a warm start.

Exact for the integers that the solver gets wherever every stage chooses its recomputation on its own, among options
given to it: then a stage's least time is a table by its layers (and by where they lie, with layers of several kinds),
and nothing else ties stages together but their number of layers and the two maxima in the objective, the slowest stage
and what follows the pipeline. Under limits on these two the least sum of the stages is a shortest path over layers
placed (`_shortest`); `_descend` finds the limits.

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
from cpsolver.search.compile.data import PassSteps, PlanData
from cpsolver.search.compile.options import ChipOptions

Options = tuple[int, ...]
"""Indices of the recomputation options that a stage may have."""
Choice = dict[int, Options]
"""The options of each chip type's stages, each of which takes its own best."""
NEVER = np.iinfo(np.int64).max // 8
"""More steps than any plan takes."""
_FULL_TRIES = 20  # times that stages are left out because their work alone is too long
_TRIES = 400  # boxes of limits that are tried before a lower bound has to do

Box = tuple[int, int, int, int]
"""First and last limit on the slowest stage, first and last limit on what follows: indices, ends included."""


@dataclass(frozen=True)
class Split:
    """A split of a plan's layers and what is proven of all splits, in integer steps.

    `objective` (`PlanData.multiple` times the step time) is the split's own, `chunk` its layers in each chunk and
    `option` its options' indices, by stage. No split has a slowest stage below `slowest` or an objective below `lower`.
    """

    objective: int
    slowest: int
    lower: int
    chunk: Ints
    option: Ints


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
        if plan.odd is not None:
            self._begin, self._end = np.maximum(begin, 0), end
            self._odd = plan.odd[end] - plan.odd[self._begin]
        self._form = plan.form
        self._passes = {name: self._pass_steps(steps) for name, steps in plan.passes.items()}

    def slowest(self, choice: Choice) -> int:
        """The smallest slowest stage of any split with these options, NEVER where memory is too small."""
        return self._smallest(self._tables(choice)[0])

    def least_objective(self, choice: Choice, slowest: int) -> int:
        """No split with these options, or some of them, has a smaller one; `slowest`: as the method of that name."""
        seconds = self._tables(choice)[0]
        leading, summed = self._counted(seconds)
        total = self._least_sum(summed)
        if self._plan.odd is not None:
            total = self._shortest(leading, summed, NEVER - 1, NEVER)[0]
        return self._least_of(slowest, self._least_leading(leading, slowest), total)

    def _least_leading(self, leading: Ints, slowest: int) -> int:
        return self._pairs * slowest if self._form is None else self._smallest(leading)

    def _least_of(self, slowest: int, leading: int, total: int) -> int:
        """No split has a smaller objective than these, the least that there are, make."""
        least = leading + total
        if self._form is not None:
            least = max(least, self._plan.multiple * self._plan.microbatches * slowest)
        return least + self._plan.multiple * int(self._afters[0])

    def _counted(self, seconds: Ints) -> tuple[Ints, Ints]:
        """What of every stage counts: the largest of the first table, and the sum of the second (NEVER: not at all).

        An objective is both, and what follows the pipeline; where backward is split no less than what stands `_alone`.
        """
        fits, known = seconds < NEVER, np.where(seconds < NEVER, seconds, 0)
        if self._form is None:
            return np.where(fits, self._pairs * known, NEVER), seconds
        summed = sum(int(each) * part for each, part in zip(self._form.summed, self._parts(known), strict=True))
        return np.where(fits, self._longest_form(self._form.leading, known), NEVER), np.where(fits, summed, NEVER)

    def _alone(self, seconds: Ints) -> Ints:
        """What each stage makes a step take at least, whatever the others do, where backward is split."""
        assert self._form is not None
        fits = seconds < NEVER
        return np.where(fits, self._longest_form(self._form.alone, np.where(fits, seconds, 0)), NEVER)

    def _longest_form(self, forms: Ints, seconds: Ints) -> Ints:
        """The longest of the forms, (forms, pp, 3), of tables by stage."""
        parts = self._parts(seconds)
        each = (sum(form[:, part, None, None] * parts[part] for part in range(len(parts))) for form in forms)
        return np.asarray(np.max(list(each), axis=0))

    def _parts(self, seconds: Ints) -> tuple[Ints, Ints, Ints]:
        """T, F and W of every stage."""
        return seconds, self._passes["forward"], self._passes["weight"]

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

    def best(self, choice: Choice, slowest: int, known: int = NEVER) -> Split:
        """The best split with these options, of which `slowest` is known.

        If none is below the objective `known` any of them, or one of objective NEVER: then `lower` is `known`.
        """
        seconds, option = self._tables(choice)
        leading, summed = self._counted(seconds)
        first = self._least_leading(leading, slowest)
        if self._least_of(slowest, first, self._least_sum(summed)) >= known:
            none = np.zeros(self._plan.pp, dtype=np.int64)
            return Split(NEVER, slowest, known, none, none)
        objective, lower, chunk = self._best_of(seconds, first, known)
        chosen = [table[at] for table, at in zip(option, self._at(seconds, chunk), strict=True)]
        return Split(objective, slowest, lower, chunk, np.array(chosen))

    def _best_of(self, seconds: Ints, first: int, known: int) -> tuple[int, int, Ints]:
        """As `_descend`, of what the stages take; `first`: the least that leads.

        Where W passes fill a stage's whole bubble its work alone counts, which `_descend` does not know: then stages
        that long are left out, and what is left of the splits is looked through again. Nor does it know of stages that
        hold a step up together; where they do, its lower bound stands and the solver goes on.
        """
        if self._form is None:
            return self._descend(*self._counted(seconds), first, known)
        alone, multiple = self._alone(seconds), self._plan.multiple
        best, chunk, lower, limit = NEVER, np.zeros(self._plan.pp, dtype=np.int64), NEVER, NEVER
        for _ in range(_FULL_TRIES):
            leading, summed = self._counted(np.where(alone > limit, NEVER, seconds))
            first = self._smallest(leading)
            if first >= NEVER:
                return best, min(best, known), chunk
            objective, lower, split = self._descend(leading, summed, first, min(best, known))
            if objective < NEVER:
                longest, used = self._longest(alone, split)
                longest = max(longest, self._together(seconds, split))
                objective = max(objective, longest + multiple * used)
                best, chunk = (objective, split) if objective < best else (best, chunk)
            further = min(best, known) - 1 - multiple * int(self._afters[0])
            if lower >= min(best, known) or further >= limit:
                break
            limit = further
        return best, min(best, known, lower), chunk

    def _together(self, seconds: Ints, chunk: Ints) -> int:
        """The longest of the sums over all stages that a split makes a step take at least."""
        assert self._form is not None
        tables = [np.broadcast_to(part, seconds.shape) for part in self._parts(seconds)]
        at = list(self._at(seconds, chunk))
        parts = [[int(of_stage[place]) for of_stage, place in zip(table, at, strict=True)] for table in tables]
        return int((self._form.together * np.array(parts).T).sum(axis=(1, 2)).max(initial=0))

    def _longest(self, table: Ints, chunk: Ints) -> tuple[int, int]:
        """The largest entry of a table that a split has, and the most that follows the pipeline."""
        longest = max(int(of_stage[at]) for of_stage, at in zip(table, self._at(table, chunk), strict=True))
        return longest, int(self._follows[np.arange(len(chunk)), chunk - 1, 0].max())

    def _at(self, seconds: Ints, chunk: Ints) -> Iterator[tuple[int, int]]:
        """Where a split's stages stand in their tables."""
        ends = np.minimum(np.cumsum(chunk), seconds.shape[2] - 1)
        return zip((chunk - 1).tolist(), ends.tolist(), strict=True)

    def _descend(self, leading: Ints, summed: Ints, first: int, known: int) -> tuple[int, int, Ints]:
        """The least objective (one not below `known` if there is no less), a lower bound, and the split.

        What leads and what follows the pipeline are entries of the tables, so a split lies in a point of a grid of
        limits. In a box of the grid no objective is below the box's first limit + the least sum under its last limits
        + `multiple` times its first limit on what follows: the boxes are taken in the order of such bounds until none
        is below the best. The split of a box's last limits is as good as any in all points from its own maxima on,
        for the least sum only grows as limits fall; what is left of the box lies before one of these maxima.
        """
        limits = np.unique(leading[(leading >= first) & (leading < NEVER)])
        afters, multiple = self._afters, self._plan.multiple
        best, split = NEVER, np.zeros(self._plan.pp, dtype=np.int64)
        waiting: list[tuple[int, Box]] = [(0, (0, len(limits) - 1, 0, len(afters) - 1))]
        for _ in range(_TRIES):
            if not waiting or waiting[0][0] >= min(best, known):
                break
            a, b, c, d = heappop(waiting)[1]
            total, chunk = self._shortest(leading, summed, int(limits[b]), int(afters[d]))
            if total >= NEVER:
                continue
            longest, used = self._longest(leading, chunk)
            objective = longest + total + multiple * used
            if objective < best:
                best, split = objective, chunk
            i, j = int(np.searchsorted(limits, longest)), int(np.searchsorted(afters, used))
            for box in ((a, i - 1, c, d), (max(i, a), b, c, j - 1)):
                for half in self._halves(box, limits):
                    bound = int(limits[half[0]]) + total + multiple * int(afters[half[2]])
                    if bound < min(best, known):
                        heappush(waiting, (bound, half))
        lower = min(best, known, waiting[0][0] if waiting else NEVER)
        return best, lower, split

    def _halves(self, box: Box, limits: Ints) -> Iterator[Box]:
        """A box cut where it is longer in steps of the objective; nothing of an empty one."""
        a, b, c, d = box
        if a > b or c > d:
            return
        slowest, after = limits[b] - limits[a], self._plan.multiple * (self._afters[d] - self._afters[c])
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
        """The same of one chip type's stages."""
        seconds = self._steps(own, picks[0])
        option = np.full(seconds.shape, picks[0])
        for pick in picks[1:]:
            steps = self._steps(own, pick)
            better = steps < seconds
            seconds, option = np.where(better, steps, seconds), np.where(better, pick, option)
        return seconds, option

    def _steps(self, own: ChipOptions, pick: int) -> Ints:
        """Steps of a chip type's stages under one option: (stages, length - 1, end), NEVER where it does not fit."""
        plan, length, places = self._plan, self._length, np.array(own.places)

        def by_stage(values: Ints) -> Ints:
            return np.asarray(values[places][:, None, None])

        steps = by_stage(plan.fixed) + own.steps[pick] + by_stage(plan.layer) * length
        recomputed = np.minimum(own.options[pick].recomputed, length)
        steps = steps + by_stage(plan.recompute) * recomputed + own.layer_steps[pick] * length
        if plan.odd is None:
            return np.where(length > own.most[:, pick][:, None, None], NEVER, steps)
        steps = steps + own.beyond_mean[self._end] - own.beyond_mean[self._begin]
        fits = own.fits[:, pick][:, self._odd]
        return np.where((length > fits) | (length > self._end), NEVER, steps)

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

    def _shortest(self, leading: Ints, summed: Ints, limit: int, after: int) -> tuple[int, Ints]:
        """The least sum of the stages within the limits, and the chunks that have it."""
        within = np.where((leading > limit) | (self._follows > after), NEVER, summed)
        lengths = int(np.nonzero((within < NEVER).any(axis=(0, 2)))[0].max(initial=0)) + 1
        begin, reached = self._from[:lengths], self._nothing_placed()
        taken = []
        for table in within[:, :lengths]:
            paths = reached[begin] + table
            pick = paths.argmin(axis=0)
            reached[:-1] = np.minimum(paths[pick, np.arange(len(pick))], NEVER)
            taken.append(pick + 1)
        chunk, at = np.zeros(len(summed), dtype=np.int64), self._needed
        if reached[at] < NEVER:
            for p in reversed(range(len(summed))):
                chunk[p] = taken[p][at]
                at -= int(chunk[p])
        return int(reached[self._needed]), chunk
