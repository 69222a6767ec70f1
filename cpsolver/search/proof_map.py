"""The proof as a map: for every tp and pp how the candidates ended, and what no plan there is better than.

Made when it is asked for: candidates are made once more to tell which rule refused them where. All else was counted by
the search (`Proof.tallies`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cpsolver.cost.shard import Ints
from cpsolver.problem.problem import Problem
from cpsolver.search.cells import count_cells
from cpsolver.search.filters import Part
from cpsolver.search.found import found_by_s
from cpsolver.search.objective import objective_of
from cpsolver.search.result import Cell, Result
from cpsolver.search.space import enumerate_rows

Ending = Literal["plan", "open", "solved", "bounded", "memory", "refused"]
"""What a cell is shown as: the first of these that any of its candidates came to."""


@dataclass(frozen=True)
class MapCell:
    """The candidates of one tp and pp, by how they ended, each in one way.

    `refused`: by rule; `rule`: where these are all, the one that left nothing. `bound`: on the objective's score; no
    plan here is better (over several chip types: by the closed form), and where it is infinite there is none. `plans`:
    the ranks of the answer's plans that are here.
    """

    tp: int
    pp: int
    refused: Mapping[str, int]
    memory: int
    bounded: int
    solved: int
    open: int
    bound: float
    plans: tuple[int, ...]
    rule: str | None = None

    @property
    def considered(self) -> int:
        """Candidates in all."""
        return sum(self.refused.values()) + self.memory + self.bounded + self.solved + self.open

    @property
    def ending(self) -> Ending:
        """What the cell is shown as."""
        if self.plans:
            return "plan"
        counts: dict[Ending, int] = {"open": self.open, "solved": self.solved, "bounded": self.bounded}
        return next((name for name, count in counts.items() if count), "memory" if self.memory else "refused")


@dataclass(frozen=True)
class ProofMap:
    """All cells by tp and pp, and the unit of their bounds. Plans whose chip types have degrees of their own are in no
    cell, and where devices may idle candidates are those of the numbers of devices that were searched.
    """

    cells: tuple[MapCell, ...]
    unit: str


def proof_map(problem: Problem, result: Result) -> ProofMap | None:
    """The map of a search's answer; None where the search kept no tallies."""
    tallies = result.proof.tallies
    if tallies is None:
        return None
    known = _Candidates()
    for devices in tallies.devices:
        known.add(problem.of_size(devices) if problem.may_idle else problem)
    plans = _plans(problem, result)
    cells = []
    for cell in sorted({*known.legal, *known.refused, *plans}):
        memory, solved, left = (counts.get(cell, 0) for counts in (tallies.memory, tallies.solved, tallies.open))
        found = plans.get(cell, {})
        bound = min([result.proof.bound, *found.values()])
        if not left:  # what is open may have no bound of its own as yet
            bound = max(bound, tallies.least.get(cell, float("inf")))
        bounded = known.legal[cell] - memory - solved - left
        refused, rule = known.refused.get(cell, Counter[str]()), known.rule(cell)
        cells.append(MapCell(*cell, refused, memory, bounded, solved, left, bound, tuple(found), rule))
    return ProofMap(tuple(cells), objective_of(problem).unit)


class _Candidates:
    """How many candidates no rule refuses, and how many each rule does, by cell."""

    def __init__(self) -> None:
        self.legal, self._frames = Counter[Cell](), Counter[Cell]()
        self.refused: dict[Cell, Counter[str]] = defaultdict(Counter)
        self._by_part: dict[tuple[bool, Cell], Counter[str]] = defaultdict(Counter)

    def add(self, problem: Problem) -> None:
        """The candidates of one number of devices."""
        space = enumerate_rows(problem, self._refuse)
        tp, pp = space.frames.tp, space.frames.unfolded("pp")
        self.legal += count_cells(tp, pp, space.rows_of)
        self._frames += count_cells(tp, pp)

    def _refuse(self, part: Part, rule: str, tp: Ints, pp: Ints) -> None:
        for cell, count in count_cells(tp, pp).items():
            self.refused[cell][rule] += count
            self._by_part[part == "variant", cell][rule] += count

    def rule(self, cell: Cell) -> str | None:
        """The rule that left nothing of a cell: of those on its sizes where no frame is left, else on its variants."""
        if self.legal[cell]:
            return None
        rules = self._by_part.get((self._frames[cell] > 0, cell), self.refused[cell])
        return rules.most_common(1)[0][0] if rules else None


def _plans(problem: Problem, result: Result) -> dict[Cell, dict[int, float]]:
    """The scores of the answer's plans by rank, by cell: of what plans are found by, as bounds are."""
    objective, found = objective_of(problem), defaultdict[Cell, dict[int, float]](dict)
    for plan in result.plans:
        strategy = plan.strategy
        if not strategy.unequal:
            score = objective.score(strategy, found_by_s(problem, strategy, plan.evaluation))
            found[strategy.tp, strategy.pp][plan.rank] = score
    return found
