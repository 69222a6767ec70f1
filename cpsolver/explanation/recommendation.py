"""What to run: of the plans of an answer, and of safer and simpler ones that are looked for, the best once risk counts.

Four roles, of which a plan may have several:

- fastest: the best in the objective, proven.
- run this: the best on average, of the plans whose chance of running out of memory is below `search.risk`. What no run
  has measured costs it (`loss_if_unmeasured`), and where memory runs out after all, the safest plan has to do.
- safest: the best of those with next to no chance of running out of memory that stay where runs were measured.
- simplest: the best of those below `search.risk` that leave every optional decision but recomputation at its default
  (no interleaving, no context parallelism) and split layers evenly.

Each is looked for by a search under stricter limits, so it is as proven as the answer. Where the time limit ended the
search, safer twins of the fastest families alone are looked for, in a little more time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.chances import loss_if_unmeasured, margin_for, out_of_memory_probability
from cpsolver.evidence.nearest import avoidable, unmeasured_values
from cpsolver.explanation.account import SILENT, SearchDisplay, solve
from cpsolver.inputs.language import say
from cpsolver.plans.dimensions import DIMENSIONS, FAMILY, MUST_BE_SAID, ROW
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.found import check_legal
from cpsolver.search.frontier import INFINITE
from cpsolver.search.objective import rank
from cpsolver.search.result import Plan, Recommendation, Result, StopReason
from cpsolver.search.search import search
from cpsolver.search.space import Spaces

_SAFEST = 0.2
"""The safest plan's chance of running out of memory is below this share of the risk that the spec allows."""
_WORSE = 1.25
"""The safest and the simplest plan are looked for only up to so many times the score of the best."""
_CAUTION = 1.03
"""What to run has at most so many times the best score of those whose risk is low enough: staying where runs were
measured may cost no more."""
_LEAST_S = 60.0
"""Each further search may take as long as the first did, or these seconds, which few need: an answer does not depend on
how busy a machine is. What is found unproven is of use, too."""
_TWINS_S, _TWINS_SHARE = 1.0, 0.05
"""What a search for safer twins may take beyond the time limit: seconds, or a share of the limit if that is more."""
_WORST = (sys.maxsize, INFINITE)
"""A rank behind all plans'."""
_DEFAULTS: Mapping[str, Any] = {
    name: DIMENSIONS[name].default
    for name in ROW
    if name != "ep" and DIMENSIONS[name].default not in (None, MUST_BE_SAID)
}
"""What a simple plan has: a file may leave all of it out. Experts are shared out all the same."""
_PLAIN: Mapping[str, Any] = {"degrees_by_chip": False, "dynamic_micro_batches": False}
"""Fields of a spec's search that leave out what no run has had and no simple plan has."""


@dataclass(frozen=True)
class _Candidate:
    """A plan, its rank in the objective, its chance of running out of memory, and how many of its parts are unmeasured
    that another plan could do without.
    """

    plan: Plan
    rank: tuple[int, float]
    risk: float
    unmeasured: int

    def expected(self, fallback: float) -> tuple[int, float]:
        """The rank on average, where a plan of the score `fallback` has to do if memory runs out."""
        score = self.rank[1] * (1.0 + self.unmeasured * loss_if_unmeasured())
        return self.rank[0], (1.0 - self.risk) * score + self.risk * max(score, fallback)


def recommend(problem: Problem, result: Result, spaces: Spaces | None = None) -> Result:
    """The answer with a recommendation; plans that it names besides those of the search follow these, in their order.

    Nothing more is looked for where the search was interrupted, or where `search.risk` is 1. `spaces`: the answer's.
    """
    if not result.plans:
        return result
    stop = result.proof.stop if problem.spec.search.risk < 1.0 else "interrupted"
    try:
        return _Recommender(problem, result, spaces or Spaces(), stop).run()
    except KeyboardInterrupt:
        return replace(_Recommender(problem, result, Spaces(), "interrupted").run(), settled=False)


def recommended(problem: Problem, display: SearchDisplay = SILENT) -> Result:
    """The search's answer, with the reasons where there is no plan, and with a recommendation where there are some."""
    spaces = Spaces()
    result = solve(problem, display, spaces)
    with display.waiting(say("looking for what to recommend: safer and simpler plans")):
        return recommend(problem, result, spaces)


class _Recommender:
    """`stop`: all roles are looked for where it is complete, twins where the limit ended the search, else nothing."""

    def __init__(self, problem: Problem, result: Result, spaces: Spaces, stop: StopReason) -> None:
        self._problem, self._result, self._spaces = problem, result, spaces
        self._risk = problem.spec.search.risk
        self._found = [self._candidate(plan) for plan in result.plans]
        self._searching, self._twins, self._settled = stop == "complete", stop == "time_limit", True
        limit = problem.spec.search.time_limit_s
        self._left_s = float("inf") if limit is None else limit - result.proof.seconds

    def run(self) -> Result:
        """Look for each role's plan in turn."""
        self._spaces.narrowed()
        fastest = self._found[0]
        most = _WORSE * fastest.rank[1]
        careful = self._limited(self._risk)
        if self._twins:
            self._find_twins(careful)
        safe = self._best(careful)
        if safe is not None and safe.unmeasured:
            self._best(_measured(careful), safe.expected(most)[1])
        safest = self._best(_measured(self._limited(_SAFEST * self._risk)), most)
        simplest = self._best(_simple(careful), most)
        roles = self._run_this(safest), fastest, safest, simplest
        return self._answer(roles)

    def _find_twins(self, careful: Problem) -> None:
        """The best plans of the fastest families that keep the risk, while they may beat what else does."""
        search_for = self._problem.spec.search
        left_s = max(_TWINS_S, _TWINS_SHARE * (search_for.time_limit_s or 0.0))
        for each in tuple(self._found):
            safe = min((other.rank for other in self._found if other.risk < self._risk), default=_WORST)
            if each.rank >= safe or left_s <= 0:
                return
            if each.plan.strategy.unequal:
                continue
            pin = careful.spec.search.pin.model_copy(
                update={name: (getattr(each.plan.strategy, name),) for name in FAMILY}
            )
            twins = careful.with_(search={"pin": pin, "time_limit_s": left_s, **_PLAIN})
            result = search(twins, below=INFINITE if search_for.objective == "fewest_chips" else safe[1])
            left_s -= result.proof.seconds
            self._add(result)

    def _answer(self, roles: Sequence[_Candidate | None]) -> Result:
        named = [role.plan for role in sorted(filter(None, roles), key=lambda role: role.rank)]
        plans = list(self._result.plans)
        plans += (plan for place, plan in enumerate(named) if plan not in (*plans, *named[:place]))
        ranked = tuple(replace(plan, rank=place) for place, plan in enumerate(plans, 1))
        told = Recommendation(*(None if role is None else plans.index(role.plan) for role in roles))
        return replace(self._result, plans=ranked, recommendation=told, settled=self._settled)

    def _run_this(self, safest: _Candidate | None) -> _Candidate:
        safe = [each for each in self._found if each.risk < self._risk or self._risk == 1.0]
        if not safe:
            return min(self._found, key=lambda each: (each.risk, each.rank))
        devices, score = min(each.rank for each in safe)
        near = [each for each in safe if each.rank[0] == devices and each.rank[1] <= _CAUTION * score]
        fallback = (safest or max(safe, key=lambda each: each.rank)).rank[1]
        return min(near, key=lambda each: (each.expected(fallback), each.risk))

    def _best(self, limited: Problem, below: float = INFINITE) -> _Candidate | None:
        """The best plan of a problem with more limits: of those found, or one that a search finds below a score."""
        of_devices = self._problem.spec.search.objective == "fewest_chips"  # fewer of them come before a lower score
        below = INFINITE if of_devices else below
        sized = limited.spec.search.dynamic_micro_batches
        good = (each for each in self._found if each.rank[1] < below and (sized or not each.plan.strategy.dynamic))
        known = next((each for each in good if not violations(limited, each.plan.strategy, each.plan.evaluation)), None)
        if known is self._found[0] or not self._searching:
            return known
        if self._left_s <= 0:
            self._settled = False
            return known
        below = below if of_devices or known is None else min(below, known.rank[1])
        seconds = min(self._left_s, max(_LEAST_S, self._result.proof.seconds))
        result = search(limited.with_(search={"time_limit_s": seconds}), below=below, spaces=self._spaces)
        self._left_s -= result.proof.seconds
        self._searching = result.proof.stop != "interrupted"
        self._settled = self._settled and result.proof.complete
        return self._add(result) or known

    def _add(self, result: Result) -> _Candidate | None:
        """The plan of a search of our own among those found, if it has one."""
        if not result.plans:
            return None
        found = self._candidate(self._added(result.plans[0]))
        self._found = sorted([*self._found, found], key=lambda each: each.rank)
        return found

    def _added(self, plan: Plan) -> Plan:
        """A plan of a search of our own, as the problem itself sees it; that of the answer where it has the same."""
        for each in self._found:
            if each.plan.strategy == plan.strategy:
                return each.plan
        evaluation = evaluate(self._problem, plan.strategy)
        check_legal(self._problem, plan.strategy, evaluation)
        return replace(plan, evaluation=evaluation, added=True)

    def _candidate(self, plan: Plan) -> _Candidate:
        problem, strategy = self._problem, plan.strategy
        return _Candidate(
            plan,
            rank(problem, strategy, plan.evaluation.step_time_s),
            out_of_memory_probability(problem, strategy, plan.evaluation),
            avoidable(problem, strategy),
        )

    def _limited(self, risk: float) -> Problem:
        """The problem with a margin for memory that keeps the chance of running out of it below the risk."""
        margin = max(self._problem.memory_margin, margin_for(self._problem, risk))
        return self._problem.with_(search={"top": 1, "diverse": False}, cluster={"memory_margin": margin})


def _measured(problem: Problem) -> Problem:
    """The problem without degrees that no run has had, nor what none has had at all."""
    forbid = problem.spec.search.forbid
    banned = {name: (*(getattr(forbid, name) or ()), *values) for name, values in unmeasured_values(problem).items()}
    return problem.with_(search={"forbid": forbid.model_copy(update=banned), **_PLAIN})


def _simple(problem: Problem) -> Problem:
    """The problem with decisions at their defaults that neither pin nor forbid names, and layers split evenly."""
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    free = {name: (value,) for name, value in _DEFAULTS.items() if not (getattr(pin, name) or getattr(forbid, name))}
    if _DEFAULTS["schedule"] not in (problem.spec.search.schedules or (_DEFAULTS["schedule"],)):
        free.pop("schedule", None)
    split = "even" if not problem.mixed or problem.spec.search.layer_split == "even" else "even_per_chip"
    return problem.with_(search={"pin": pin.model_copy(update=free), "layer_split": split, **_PLAIN})
