"""Small changes of a spec that make more of it, alone and in pairs: another batch, more devices, another stack.

Each is solved: its best plan is found and proven, or that it has none as good as the best of its kind, which takes
less. Steps of other batches and on other devices do not compare, so a gain is in tokens a second and device, in dollars
a token or in devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cpsolver.explanation.alternatives import ALONE, ASKED_FOR, KINDS, TIED, Alternative
from cpsolver.explanation.changes import Budget, Changer, Changes, best_plan
from cpsolver.inputs.language import say
from cpsolver.problem.problem import Problem
from cpsolver.search.frontier import INFINITE
from cpsolver.search.objective import deadline_step_s, rank
from cpsolver.search.result import Plan

_SECONDS, _MOST_S = 20.0, 60.0  # for all that is solved: of most specs, and of those whose own search takes long
_SEARCHES = 4  # times as long as the spec's own search it may take
_EACH = 0.4  # of these seconds for one changed spec
_SHOWN = 1.0005  # times the merit: what gains less would be told as 0.0 %
_LEAST = 1.01  # times the merit: what gains less is no advice, nor a pair that gains so little over one of the two
PAIRS = "pairs"
"""What is counted beside the kinds of alternatives."""

Tell = Callable[[int, int], None]
"""Hears how many of how many changes are settled."""


@dataclass(frozen=True)
class Suggestion:
    """One or two alternatives together, the problem so changed and its best plan.

    `merit`: of `merit_of`; `gain`: how much more of it than the spec has, as a share: of tokens a second and device; of
    dollars or devices the share that is saved.
    """

    parts: tuple[Alternative, ...]
    problem: Problem
    plan: Plan
    merit: float
    gain: float

    @property
    def text(self) -> str:
        """The change in words."""
        return say(" and ").join(part.text for part in self.parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What else the user has to know of it."""
        return tuple(part.note for part in self.parts if part.note)

    @property
    def kinds(self) -> frozenset[str]:
        """What it changes."""
        return frozenset(part.kind for part in self.parts)


@dataclass(frozen=True)
class Advice:
    """Suggestions, the best first. `settled`: how many changes were settled by kind, of pairs under PAIRS; `left`: how
    many were not in the time given, or before Ctrl-C.
    """

    found: tuple[Suggestion, ...]
    settled: Mapping[str, int]
    left: Mapping[str, int]
    interrupted: bool = False


INTERRUPTED = Advice((), {}, {}, interrupted=True)
"""Before anything was tried."""


def merit_of(problem: Problem, plan: Plan) -> float:
    """What a spec's plan is worth in its objective, the more the better, whatever its batch and devices.

    Tokens a second and device of the cluster; for cost one over dollars a token, for the fewest devices one over these.
    """
    if problem.spec.search.objective == "throughput":
        return problem.useful_tokens / (problem.num_gpus * plan.evaluation.step_time_s)
    devices, score = rank(problem, plan.strategy, plan.evaluation.step_time_s)
    return 1.0 / (devices or score)


class _Adviser:
    """Solves alternatives of one problem, and counts those that time was too short for."""

    def __init__(self, problem: Problem, best: Plan, seconds: float) -> None:
        self._problem, self._best = problem, best
        self._budget, self._each_s = Budget(seconds), _EACH * seconds
        self._merit = merit_of(problem, best)
        self.found: list[Suggestion] = []
        self.settled: Counter[str] = Counter()

    def alone(self, alternatives: list[Alternative], tell: Callable[[], None]) -> None:
        """The best of each kind and side; one that is farther away than another has to be better by enough."""
        best: dict[tuple[str, int], Suggestion] = {}
        for each in alternatives:
            before = best.get((each.kind, each.side))
            least = self._merit * (_LEAST if each.kind not in ASKED_FOR else _SHOWN)
            if before is not None:
                least = before.merit * (_LEAST if each.size >= before.parts[0].size else 1.0)
            suggestion = self._solved((each,), least)
            if suggestion is not None:
                self.found = [one for one in self.found if one is not before]
                best[each.kind, each.side] = suggestion
                self.found.append(suggestion)
            tell()

    def in_pairs(self, pairs: list[tuple[Suggestion, Alternative]], tell: Callable[[], None]) -> None:
        """The best pair of each two kinds that is better than either alone by enough."""
        for first, second in pairs:
            kinds = first.kinds | {second.kind}
            alone = [one.merit for one in self.found if one.kinds <= kinds]
            suggestion = self._solved((*first.parts, second), max(alone) * _LEAST)
            if suggestion is not None:
                self.found = [one for one in self.found if one.kinds != kinds]
                self.found.append(suggestion)
            tell()

    def _solved(self, parts: tuple[Alternative, ...], least: float) -> Suggestion | None:
        """The alternatives together, where their best plan has that merit at least."""
        kind = PAIRS if len(parts) > 1 else parts[0].kind
        problem = Changer(self._problem, self._budget).changed(merged(parts))
        plan, settled = (None, True) if problem is None else self._plan(problem, least)
        self.settled[kind] += settled
        if problem is None or plan is None or (merit := merit_of(problem, plan)) < least:
            return None
        gain = merit / self._merit - 1 if problem.spec.search.objective == "throughput" else 1 - self._merit / merit
        in_order = tuple(sorted(parts, key=lambda part: list(KINDS).index(part.kind)))
        return Suggestion(in_order, problem, plan, merit, gain)

    def _plan(self, problem: Problem, least: float) -> tuple[Plan | None, bool]:
        """The best plan, None where there is none of that merit, and whether that is proven."""
        own = self._budget.part(self._each_s)
        plan = best_plan(problem, own, self._each_s, score_of_merit(problem, least))
        settled = own.left > 0 and not own.cut_short and (plan is None or plan.proven)
        late = plan is not None and self._misses_deadline(problem, plan)
        return (None if late else plan), settled

    def _misses_deadline(self, problem: Problem, plan: Plan) -> bool:
        """A deadline that the spec's best plan meets, and this one does not."""
        own, limit = deadline_step_s(self._problem), deadline_step_s(problem)
        if own is None or limit is None or self._best.evaluation.step_time_s > own:
            return False
        return plan.evaluation.step_time_s > limit


def score_of_merit(problem: Problem, merit: float) -> float:
    """What a plan's score in a search is below where it has more merit; infinite where the score says nothing of it."""
    objective = problem.spec.search.objective
    if objective == "throughput":
        return problem.useful_tokens / (problem.num_gpus * merit)
    return 1.0 / merit if objective == "cost" else INFINITE


def merged(parts: Iterable[Alternative]) -> Changes:
    """The changes of several alternatives."""
    return {path: value for part in parts for path, value in part.changes.items()}


def _in_turn(alternatives: Iterable[Alternative]) -> list[Alternative]:
    """The most promising of each kind and side first, then the second ones: time may be too short for all."""
    before: Counter[tuple[str, int]] = Counter()
    turns = []
    for each in alternatives:
        before[each.kind, each.side] += 1
        turns.append((before[each.kind, each.side], each))
    return [each for _, each in sorted(turns, key=lambda turn: turn[0])]


def _pairs(found: list[Suggestion]) -> Iterator[tuple[Suggestion, Alternative]]:
    """What each suggestion, the best first, is joined with: the single ones of other kinds, and of TIED kinds the most
    promising alternative on each side for the problem that it makes.
    """
    seen = set()
    joined = [one for one in sorted(found, key=lambda one: -one.merit) if not one.kinds & set(ALONE)]
    single = [part for one in joined for part in one.parts]
    for first in joined:
        for second in (*single, *_tied(first)):
            both = merged((*first.parts, second))
            apart = len(both) == sum(len(part.changes) for part in (*first.parts, second))
            if apart and second.kind not in first.kinds and frozenset(both.items()) not in seen:
                seen.add(frozenset(both.items()))
                yield first, second


def _tied(first: Suggestion) -> Iterator[Alternative]:
    if not first.kinds <= set(TIED):
        return
    for kind in set(TIED) - first.kinds:
        sides = set()
        for second in KINDS[kind](first.problem):
            if second.side not in sides:
                sides.add(second.side)
                yield second


def seconds_for(search_s: float) -> float:
    """The time that advice on a spec may take whose own search took so long."""
    return min(_MOST_S, max(_SECONDS, _SEARCHES * search_s))


def advise(problem: Problem, best: Plan, tell: Tell = lambda _done, _total: None, seconds: float = _SECONDS) -> Advice:
    """What gains a percent or more (of ASKED_FOR: anything that shows) over the spec's best plan, within that many
    seconds; on Ctrl-C what is known so far.

    `tell` hears of the changes alone first; of the pairs nobody knows how many there are before.
    """
    adviser, interrupted = _Adviser(problem, best, seconds), False
    single: list[Alternative] = []
    pairs: list[tuple[Suggestion, Alternative]] = []

    def count() -> None:
        tell(sum(adviser.settled.values()), len(single) + len(pairs))

    try:
        single += _in_turn(each for alternatives in KINDS.values() for each in alternatives(problem))
        adviser.alone(single, count)
        pairs += _pairs(adviser.found)
        adviser.in_pairs(pairs, count)
    except KeyboardInterrupt:
        interrupted = True
    asked = Counter([each.kind for each in single] + [PAIRS] * len(pairs))
    found = tuple(sorted(adviser.found, key=lambda one: -one.merit))
    return Advice(found, adviser.settled, asked - adviser.settled, interrupted)
