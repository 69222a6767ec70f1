"""Plans solved exactly, one by one: how many CP-SAT models that took, how long, and what they left open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cpsolver.inputs.errors import InternalError
from cpsolver.search.found import Found
from cpsolver.search.pace import Pace

if TYPE_CHECKING:
    from cpsolver.search.compile.model import Solved


class SolverUse:
    """The account of a search's solved plans.

    Attributes:
        calls: CP-SAT models solved.
        seconds: that plans took.
        unsettled: bounds on the scores of plans of which the best split is not known.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.calls, self.seconds, self.unsettled = 0, 0.0, list[float]()

    def solve(self, bound: float, rate: float, *plan: Any) -> Solved | None:
        """As `compile.model.solve_plan` with the arguments `plan`.

        Args:
            bound: on the plan's score, which is `rate` times its step time.
            rate: score of a second.
            plan: what `solve_plan` is given.
        """
        from cpsolver.search.compile.model import solve_plan

        began = self._pace.seconds
        solved = solve_plan(*plan)
        if solved is None:
            return None
        self.calls += solved.ask is None
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
                    if plan.ask().status == "infeasible":
                        raise InternalError(f"CP-SAT refuses a plan that the search found: {plan.strategy}")
        except KeyboardInterrupt:
            return  # the answer is known
        finally:
            self.seconds += self._pace.seconds - began
