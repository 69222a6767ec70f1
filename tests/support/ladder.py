"""All the bounds above a plan, held to what brute force finds: a row may be dropped only by a bound that proves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from cpsolver.problem.problem import Problem
from cpsolver.search.arrangements import next_counts
from cpsolver.search.bounds.bottleneck import several_kinds
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.mixes import mix_bound, placed_bound
from cpsolver.search.bounds.quick import frame_bound, quick_bound, too_large
from cpsolver.search.filters import may_mix, most_stages
from cpsolver.search.space import enumerate_rows
from tests.support.oracle import brute_force, grouped_key, small_enough
from tests.support.tables import all_orders, plan_of, quick_tables


class Ladder:
    """All the bounds above every plan of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.space = enumerate_rows(problem)
        self.table = Coefficients(problem, self.space.rows)
        self.quick = quick_bound(self.table) if len(self.table.rows) else np.empty(0)
        self.too_large = too_large(problem, self.table.rows, self.table.memory) if len(self.table.rows) else np.empty(0)
        self.frame = np.repeat(frame_bound(problem, self.space)[0], self.space.rows_of)

    def of(self, row: int, mix: tuple[int, ...], order: np.ndarray) -> list[float]:
        """Bounds of the frame, of the row, quick and good, of each beginning of the mix, and of the plan."""
        rows, at, wide = self.table.rows, np.array([row]), int(self.table.rows.stage_devices[row])
        pp = len(order)
        mixed = bool(may_mix(self.problem, rows.take([row]))[0])
        counts = np.array([most_stages(self.problem, wide, pp, mixed)])
        quick = np.inf if self.too_large[row] else float(self.quick[row])
        found = [float(self.frame[row]), quick, float(mix_bound(self.table, at, np.zeros_like(counts), counts)[0])]
        for known in range(len(mix)):
            least, most = next_counts(self.problem, wide, pp, mix[:known], mixed)
            same = np.nonzero(least[:, known] == mix[known])[0]
            found.append(float(mix_bound(self.table, at, least[same], most[same])[0]))
            found.append(float(quick_bound(self.table.take(at), most=most[same])[0]))
        assert rows.pp[row] == pp
        return [*found, float(plan_bound(self.table, at, order[None, :])[0])]

    def below(self, row: int, mix: tuple[int, ...], order: np.ndarray, limit_s: float) -> list[float]:
        """Those of the mix in its places and of the plan where only what takes less than a limit is of use."""
        at, limit = np.array([row]), np.array([limit_s])
        found = [float(plan_bound(self.table, at, order[None, :], limit)[0])]
        if several_kinds(self.problem):
            found.append(float(placed_bound(self.table, at, np.array([mix]), limit)[0]))
        return found

    def plans(self, row: int) -> list[tuple[tuple[int, ...], np.ndarray]]:
        return all_orders(self.problem, self.table.rows, row)

    def key(self, row: int, chips: np.ndarray) -> tuple[object, ...]:
        return grouped_key(plan_of(self.problem, self.table.rows, row, chips))


def assert_below(bounds: list[float], true: float, what: object) -> None:
    wrong = [place for place, bound in enumerate(bounds) if not bound <= true * (1 + 1e-9)]  # nor is one nan
    assert not wrong, f"{what}: bounds {wrong} of {bounds} are above {true}"


def held_bounds(problem: Problem, seed: int) -> Iterator[tuple[bool, float, list[float]]]:
    """Whether each plan overlaps experts, its best seconds by brute force, and the bounds, none of which is above."""
    best, ladder = brute_force(problem, grouped_key), Ladder(problem)
    for row in range(len(ladder.table.rows)):
        for mix, chips in ladder.plans(row):
            key, bounds = ladder.key(row, chips), ladder.of(row, mix, chips)
            true = best.get(key, np.inf)
            if np.isfinite(true):
                bounds = [*ladder.below(row, mix, chips, true * (1 + 1e-9)), *bounds]
            assert_below(bounds, true, (seed, key))
            yield bool(ladder.table.rows.expert_overlap[row]), true, bounds


def held(make: Callable[[int], Problem], seeds: Iterable[int], largest: int, bend: bool) -> Counter[str]:
    """Plans of the problems that `make` draws of seeds, none better than its bounds: how many fit, of how many of these
    the last bound is within a tenth, how many fit and overlap experts, and how many the last bound rules out."""
    tally: Counter[str] = Counter()
    for seed in seeds:
        problem = make(seed)
        if not small_enough(problem, largest):
            continue
        with quick_tables(seed if bend else None):
            for overlaps, true, bounds in held_bounds(problem, seed):
                fits = bool(np.isfinite(true))
                tally["fit"] += fits
                tally["tight"] += fits and bounds[-1] > 0.9 * true
                tally["overlap"] += fits and overlaps
                tally["cut"] += bool(np.isinf(bounds[-1]))
    return tally
