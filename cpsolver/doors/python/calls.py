"""Questions in one call: `plan`, and what `evaluate` and `explain` do where they are asked about a model on chips."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from weakref import ref

from cpsolver.doors.python.answers import JudgedPlan, PlanAnswer
from cpsolver.explanation.account import Account, SearchDisplay, display_of, explain_plan, explain_spec, solve
from cpsolver.explanation.favourite import Favourite
from cpsolver.explanation.recommendation import recommended
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.asked import Asked, Source, check_given, decided
from cpsolver.problem.problem import Problem
from cpsolver.rules import sound_evaluation
from cpsolver.search.space import Spaces

_REMEMBERED = 8
"""Answers that are remembered: a notebook asks the same again whenever it is run."""
_ANSWERS: list[PlanAnswer] = []
"""Those given last, the latest first."""
_SPACES: list[Spaces] = []
"""Those of the last search, with which its recommendation goes on; those of all answers would be too much memory."""


def plan(
    source: Source,
    *,
    on: str | Mapping[str, object] | None = None,
    batch: int | None = None,
    seq: int | None = None,
    launcher: str | None = None,
    stack: str | None = None,
    precision: str | None = None,
    gpus_per_node: int | None = None,
    network: str | Mapping[str, object] | None = None,
    cluster: Mapping[str, object] | None = None,
    training: Mapping[str, object] | None = None,
    calibration: str | PathLike[str] | None = None,
    display: SearchDisplay | None = None,
    **search: object,
) -> PlanAnswer:
    """The best plans for a model on some chips, proven, with a recommendation: `apss-cp plan` and `apss-cp solve`.

        r = cpsolver.plan("llama3.1-70b", on={"h100": 512}, batch=1024, seq=8192)

    Args:
        source: a model, as a name of the catalogue (`apss-cp models`), a repository on Hugging Face, a file or its
            fields. Without `on`, `batch` and `seq`: a whole spec, as a file or its fields, or a Problem.
        on: the chips and how many of each: {"h800": 64, "a800": 64}, or "h800:64,a800:64".
        batch: sequences in one optimizer step.
        seq: tokens in a sequence.
        launcher: only plans that this launcher runs.
        stack: the software stack; None: the launcher's or the chips' own.
        precision: bf16 (the default), fp16, fp8, nvfp4 or fp32.
        gpus_per_node: devices in a node: 8, or all where there are fewer.
        network: the network between nodes, a name of `apss-cp networks` or its figures; None: each chip's own.
        cluster: other fields of a spec's section: {"prices": {"h100": 2.5}} say.
        training: {"tokens": 1e12} say.
        calibration: what `apss-cp calibrate` wrote, to lie on top of the published constants.
        display: shows how the search goes; None: nothing does.
        search: fields of the search section: `top` (3), `time_limit_s`, `pin`, `forbid`, `objective` ...

    Raises InputError with all that is wrong. An answer without plans is none: its `status` and `reasons` say why. What
    to run is looked for when it is asked for, but with a display at once: `PlanAnswer` says which parts tell it. Plans
    that are proven are remembered: without a display one of the last questions again is answered at once.
    """
    asked = Asked(
        on, batch, seq, launcher, stack, precision, gpus_per_node, network, calibration, cluster, training, search
    )
    problem = asked.problem(source)
    known = [answer for answer in _ANSWERS if answer.problem == problem and display is None]
    # The old object is its owner's, who may have changed what it told.
    answer = PlanAnswer(problem, known[0].known, known[0].spaces) if known else _planned(problem, display)
    if answer.searched.plans and answer.proof.complete and answer.searched.settled:
        _ANSWERS[:] = [answer, *(each for each in _ANSWERS if each not in known)][:_REMEMBERED]
    return answer


def _planned(problem: Problem, display: SearchDisplay | None) -> PlanAnswer:
    if display is not None:
        return PlanAnswer(problem, recommended(problem, display_of(display)))
    _SPACES[:] = [spaces := Spaces()]
    return PlanAnswer(problem, solve(problem, spaces=spaces), partial(_taken, ref(spaces)))


def _taken(of_search: Callable[[], Spaces | None]) -> Spaces | None:
    """The spaces of a search for its recommendation, if it was the last one, and once: then they are of others."""
    spaces = of_search()
    if spaces is None or spaces not in _SPACES:
        return None
    _SPACES.remove(spaces)
    return spaces


def judged(problem: Problem, strategy: Strategy | None, decisions: Mapping[str, object]) -> JudgedPlan:
    """A plan of one's own, given whole or by some decisions. Raises InputError where its sizes do not add up."""
    filled = decided(problem, strategy, decisions)
    evaluation = sound_evaluation(problem, filled.strategy)
    return JudgedPlan(problem, filled.strategy, evaluation, filled_in=filled.added)


def explained(
    source: Source | PlanAnswer | JudgedPlan, strategy: Strategy | None, asked: Asked, display: SearchDisplay | None
) -> Account | Favourite:
    """What is to be said of a spec; of a plan where one is given. Raises InputError."""
    if strategy is not None:
        check_given(strategy=strategy)
    if isinstance(source, JudgedPlan):
        return explain_plan(source.problem, source.strategy if strategy is None else strategy, display_of(display))
    problem = asked.problem(source.problem if isinstance(source, PlanAnswer) else source)
    if strategy is None:
        return explain_spec(problem, display_of(display))
    return explain_plan(problem, strategy, display_of(display))
