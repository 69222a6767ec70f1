"""Plans solved exactly, one by one: how many CP-SAT was asked about, how long that took, and what they left open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cpsolver.inputs.errors import InternalError
from cpsolver.search.found import Found
from cpsolver.search.pace import Pace

if TYPE_CHECKING:
    from cpsolver.search.compile.model import Solved


class SolverUse:
    """The account of a search's solved plans.

    Attributes:
        calls: plans that CP-SAT was asked about.
        seconds: that plans took.
        unsettled: bounds on the scores of plans of which the best split is not known.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.calls, self.seconds, self.unsettled = 0, 0.0, list[float]()

    def solve(self, bound: float, rate: float, plan: Callable[[], Solved | None]) -> Solved | None:
        """What `plan` gives, taken into account; None where a plan was seen to be of no use without solving it.

        Args:
            bound: on the plan's score.
            rate: score of a second of its step time.
            plan: solves it, by `compile.model.solve_plan`.
        """
        began = self._pace.seconds
        solved = plan()
        if solved is None:
            return None
        self.calls += solved.asked
        self.seconds += self._pace.seconds - began
        if solved.status in ("unknown", "feasible"):
            self.unsettled.append(max(solved.bound_s * rate, bound))
        return solved

    def ask_about(self, plans: Iterable[Found]) -> None:
        """Have CP-SAT look at plans that it was not asked about, while there is time: their splits are known to be the
        best without it.

        Raises:
            InternalError: it does not agree.
        """
        began = self._pace.seconds
        try:
            for plan in plans:
                if plan.ask is not None and not self._pace.late:
                    self.calls += 1
                    if plan.ask(self._pace.left_s).status == "infeasible":
                        raise InternalError(f"CP-SAT refuses a plan that the search found: {plan.strategy}")
        except KeyboardInterrupt:
            return  # the answer is known
        finally:
            self.seconds += self._pace.seconds - began
