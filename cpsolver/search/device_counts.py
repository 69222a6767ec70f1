"""The numbers of devices that a plan may use, each a problem of its own with a lower bound that costs milliseconds.

One space of layouts holds those of all numbers: tp, cp and dp divide the model's heads, its sequence and its batch, and
there are no more stages than layers. Most numbers have no such layout; the others get the smallest bound of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import ONE_GROUP, OWN_BEST
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.quick import frame_bound, least_seconds
from cpsolver.search.filters import ANY_SIZE, LAYOUT_FILTERS, VARIANT_FILTERS, Filter
from cpsolver.search.frontier import Branch
from cpsolver.search.objective import Objective
from cpsolver.search.pace import Pace
from cpsolver.search.result import DeviceCounts
from cpsolver.search.space import Space, all_variants, divisors, folded_rows, layout_rows, schedule_codes

_RANGE = 4
"""Numbers of devices up to so many times the smallest are bounded together, as if all were that small."""
_ON_THE_STEP = 1e-9
"""Added to a logarithm before it is rounded down: a whole one may come out a few ulps too small, which would put a
number of devices in the step before its own. Logarithms of other numbers are much further from a whole one."""


@dataclass(frozen=True)
class BranchGroups:
    """A branch for each number of devices, in groups: a group matters only where none before it holds a plan.

    `considered`: how many numbers of devices there are in all, those without a branch too.
    """

    groups: list[list[Branch]]
    considered: int


def device_counts(problem: Problem, groups: BranchGroups | None, searched: int, limit: float) -> DeviceCounts | None:
    """How many numbers of devices there are, of which the first so many were searched; those that are not and whose
    bound is below a limit are open. Without groups they all are. None where no devices may idle."""
    if not problem.may_idle:
        return None
    if groups is None:
        considered = problem.num_gpus // problem.node
        return DeviceCounts(considered, 0, 0, considered)
    others = [branch for group in groups.groups for branch in group][searched:]
    still_open = sum(branch.bound < limit for branch in others)
    return DeviceCounts(groups.considered, groups.considered - searched - still_open, searched, still_open)


def branch_groups(problem: Problem, objective: Objective, pace: Pace) -> BranchGroups:
    """A branch for each number of devices that can hold a plan; for the whole cluster alone where nothing may idle.

    Raises OutOfTime where the time is over before all have a bound.
    """
    if not problem.may_idle:
        return BranchGroups([[Branch(problem, objective, 0.0)]], 1)
    counts, bounds = count_bounds(problem, objective, pace)
    branches = [
        Branch(problem.of_size(count), replace(objective, problem=problem.of_size(count)), bound)
        for count, bound in zip(counts.tolist(), bounds.tolist(), strict=True)
        if np.isfinite(bound)
    ]
    fewest = objective.name == "fewest_chips"
    groups = [[branch] for branch in branches] if fewest else [sorted(branches, key=lambda branch: branch.bound)]
    return BranchGroups(groups, problem.num_gpus // problem.node)


def count_bounds(problem: Problem, objective: Objective, pace: Pace | None = None) -> tuple[Ints, Floats]:
    """The numbers of devices, in whole nodes, for which there is a layout, and a bound on the score of their plans."""
    layouts = _layouts(problem)
    devices = layouts.stage_devices * layouts.pp
    counts, place = np.unique(devices, return_inverse=True)
    bounds = np.full(len(counts), np.inf)
    if not len(counts):
        return counts, bounds
    steps = np.floor(np.log(counts[place.ravel()] / counts[0]) / np.log(_RANGE) + _ON_THE_STEP).astype(np.int64)
    for step in np.unique(steps).tolist():
        in_step = steps == step
        smallest = int(devices[in_step].min())
        best = _layout_bounds(_of_nodes(problem, smallest), objective, layouts.take(in_step), pace or Pace(None))
        np.minimum.at(bounds, place.ravel()[in_step], best)
    return counts, bounds


def _of_nodes(problem: Problem, devices: int) -> Problem:
    """The problem as if so few devices were in use, with the chips that there are: compute slows with their number."""
    cluster = problem.spec.cluster.model_copy(update={"num_gpus": devices})
    return replace(problem, spec=problem.spec.model_copy(update={"cluster": cluster}))


def _layouts(problem: Problem) -> Candidates:
    """Every layout that fills whole nodes, as far as the rules on a single degree go."""
    model = problem.model
    sizes = {
        "tp": divisors(model.heads),
        "cp": divisors(max(1, problem.sequence // 2)),
        "dp": divisors(problem.batch),
        "pp": range(1, min(model.layers, problem.num_gpus) + 1),
    }
    allows = problem.spec.search.allows
    left = (np.array([s for s in of_name if allows(name, s)], dtype=np.int64) for name, of_name in sizes.items())
    tp, cp, dp, pp = (axis.ravel() for axis in np.meshgrid(*left))
    devices = tp * cp * dp * pp
    whole = (devices <= problem.num_gpus) & (devices % problem.node == 0)
    rows = layout_rows(problem, tp=tp[whole], cp=cp[whole], pp=pp[whole], dp=dp[whole])
    return rows.take(_allowed(problem, rows, LAYOUT_FILTERS))


def _allowed(problem: Problem, rows: Candidates, filters: dict[str, Filter]) -> Bools:
    """The rows that keep those rules that ask nothing of the number of devices."""
    keep = np.ones(len(rows), dtype=np.bool_)
    for allows in filters.values():
        if allows in ANY_SIZE:
            keep &= allows(problem, rows)
    return keep


def _layout_bounds(problem: Problem, objective: Objective, layouts: Candidates, pace: Pace) -> Floats:
    """The smallest bound over all micro batches, chunks and variants of each layout."""
    variants = _variants(problem, layouts)
    best, sizes = np.full(len(layouts), np.inf), divisors(problem.batch)
    every = Space(
        layouts, np.zeros(len(layouts), dtype=np.int64), variants, np.zeros(len(variants), dtype=np.int64), {}
    )
    least = least_seconds(problem, every, sizes, any_layout=True)
    fitting = np.ones(len(layouts), dtype=np.bool_)  # what does not fit, does not with a larger micro batch
    for mbs in sizes:
        dividing = np.nonzero(fitting & (problem.batch % (layouts.dp * mbs) == 0))[0]
        bounds, fits = np.full(len(dividing), np.inf), np.zeros(len(dividing), dtype=np.bool_)
        for whole, schedule in _orders(problem) if len(dividing) else ():
            pace.check()
            frames = _frames(problem, layouts.take(dividing), mbs, whole, schedule)
            run = np.flatnonzero(_may_run(frames, layouts.pp[dividing]))
            if not len(run):
                continue
            space = replace(every, frames=frames.take(run), frame_layout=np.zeros_like(run))
            found, fit = frame_bound(problem, space, objective.row_bounds, any_chunks=True, least=least)
            bounds[run], fits[run] = np.minimum(bounds[run], found), fits[run] | fit
        fitting[dividing] = fits
        best[dividing] = np.minimum(best[dividing], bounds)
    return best


def _orders(problem: Problem) -> list[tuple[bool, int]]:
    """Whether stages are whole, and the code of the schedule, of frames of which one has the least bound."""
    schedules = schedule_codes(problem)
    ends = (True, False) if problem.mixed else (False,)
    one_group = [DIMENSIONS["schedule"].code(name) for name in ONE_GROUP]
    return [(whole, code) for code in schedules for whole in (ends if code in (1, *one_group) else (True,))]


def _frames(problem: Problem, layouts: Candidates, mbs: int, whole: bool, schedule: int) -> Candidates:
    """Layouts with that micro batch, and with one chunk, or as many as there may be: a bound is least at either end."""
    sizes = np.full_like(layouts.pp, mbs)
    rows = folded_rows(problem, replace(layouts, schedule=np.full_like(layouts.pp, schedule), mbs=sizes))
    chunks: Bools = (rows.pp > 1) & (rows.one_group | (rows.microbatches % rows.pp == 0)) & (not whole)
    vpp = np.where(chunks, (problem.model.layers + 2) // rows.pp, 1)
    return replace(rows, vpp=vpp)


def _may_run(frames: Candidates, pp: Ints) -> Bools:
    """The frames that have a microbatch for each of their replicas; `pp`: stages of their plans, where they are folded
    an even number (rule `schedule`). Nothing that the others are bounded by would hold."""
    return np.asarray((frames.microbatches > 0) & (~frames.both_ways | (pp % 2 == 0)))


def _variants(problem: Problem, layouts: Candidates) -> Candidates:
    """Every variant that a layout with such tp and cp can have: with enough replicas nothing is missing.

    Of the sharding groups all replicas alone, forbidden or not, for no bound here asks which ones share states.
    """
    search = problem.spec.search
    groups = [name for name in OWN_BEST if DIMENSIONS[name].kind == "size_or_all" and getattr(search.pin, name) is None]
    pin = search.pin.model_copy(update=dict.fromkeys(groups, (0,)))
    forbid = search.forbid.model_copy(update=dict.fromkeys(groups))
    problem = problem.with_(search={"pin": pin, "forbid": forbid})
    pairs = np.unique(np.stack([layouts.tp, layouts.cp]), axis=1)
    tp, cp = np.tile(pairs, 2)
    pp = np.repeat([1, 2], pairs.shape[1])
    experts = 1 if problem.model.moe is None else problem.model.moe.experts
    dp = np.full_like(tp, 2 * problem.node * experts)
    rows, _ = all_variants(problem, layout_rows(problem, tp=tp, cp=cp, pp=pp, dp=dp))
    return rows.take(_allowed(problem, rows, VARIANT_FILTERS))
