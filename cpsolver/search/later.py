"""What is searched once plans of equal degrees and microbatches are a limit: degrees by chip type, and sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cpsolver.cost.schedules import searches_sizes
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.found import Ask
from cpsolver.search.frontier import INFINITE, Limits
from cpsolver.search.meshes.search import MeshPlan, MeshSearch
from cpsolver.search.pace import Pace
from cpsolver.search.result import MeshCounts, SizeCounts
from cpsolver.search.solver_use import SolverUse
from cpsolver.search.space import Spaces

if TYPE_CHECKING:
    from cpsolver.search.sizes.search import SizesSearch

CLOSE = 1 - 1e-12
"""A bound within this of the limit is no better: bounds and plans of equal length may differ by rounding, and not every
plan that is as good as the K-th must be solved."""


class Later:
    """The parts of a search that come later, as far as its problem has them.

    `limits`: what plans have to beat, asked again after each. `keep` takes a plan that was found, and what asks CP-SAT
    about it; `tell` says how it goes.
    """

    def __init__(
        self,
        problem: Problem,
        limits: Callable[[], Limits],
        pace: Pace,
        solver: SolverUse,
        keep: Callable[[Strategy, Ask | None], None],
        tell: Callable[[str], None],
    ) -> None:
        self._problem, self._limits, self._pace, self._solver = problem, limits, pace, solver
        self._keep, self._tell = keep, tell
        self._meshes: MeshSearch | None = None
        self._sizes: SizesSearch | None = None
        self._mesh_solves = 0
        # Nothing is known of these as yet.
        self._meshes_wait, self._sizes_wait = problem.degrees_by_chip, searches_sizes(problem)
        if problem.model.moe is None:  # with experts there are many ways: that takes its time
            self._make_meshes()

    @property
    def lowest(self) -> float:
        """No plan that is left has a smaller score."""
        meshes, sizes = (INFINITE if each is None else each.lowest for each in (self._meshes, self._sizes))
        return 0.0 if self._meshes_wait or self._sizes_wait else min(meshes, sizes)

    def mesh_counts(self, complete: bool) -> MeshCounts | None:
        """How the search over degrees by chip type went."""
        return None if self._meshes is None else self._meshes.counts(self._mesh_solves, complete)

    def size_counts(self, complete: bool) -> SizeCounts | None:
        """How the one over sizes went."""
        return None if self._sizes is None else self._sizes.counts(complete)

    def settle(self, spaces: Spaces) -> bool:
        """Work until nothing is left that could matter; False: no time is left."""
        if self._meshes_wait and self._pace.late:
            return False
        self._make_meshes()
        done = self._meshes is None or self._settle_meshes(self._meshes)
        if done and self._sizes_wait:
            from cpsolver.search.sizes.search import SizesSearch

            self._sizes = SizesSearch(self._problem, spaces.of(self._problem), self._limits, self._pace)
            self._sizes_wait = False
        return done and (self._sizes is None or self._settle_sizes(self._sizes))

    def _make_meshes(self) -> None:
        if self._meshes_wait:
            self._meshes = MeshSearch(self._problem, self._limits)
            self._meshes_wait = False

    def _settle_meshes(self, meshes: MeshSearch) -> bool:
        while meshes.lowest < self._limits().limit * CLOSE:
            if self._pace.late:
                return False
            if found := meshes.step():
                self._solve_meshes(meshes, *found)
                meshes.drop_plan()
            self._tell(f"degrees by chip type: {meshes.waiting} parts")
        return True

    def _solve_meshes(self, meshes: MeshSearch, bound: float, plan: MeshPlan) -> None:
        """Solve a plan of meshes for anything better than the K-th best, or than the best of its family."""
        from cpsolver.search.compile.model import solve_plan

        limits = self._limits()
        limit = min(limits.limit, limits.families.get(meshes.family(plan), INFINITE))
        if bound >= limit:
            return
        exactly = partial(solve_plan, *meshes.exactly(plan), plan.chips, bound, limit, self._pace.left_s)
        solved = self._solver.solve(bound, 1.0, exactly)
        if solved is None:
            return
        self._mesh_solves += 1
        if solved.strategy is not None:
            self._keep(solved.strategy, solved.ask)

    def _settle_sizes(self, sizes: SizesSearch) -> bool:
        while sizes.lowest < self._limits().limit * CLOSE:
            if self._pace.late:
                return False
            found = sizes.step()
            if found is not None:
                self._keep(found, None)
            self._tell(f"microbatches of different sizes: {sizes.waiting} rows")
        return True
