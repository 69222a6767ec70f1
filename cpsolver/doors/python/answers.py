"""Answers that know their problem: the plans of a search, and one plan, each with its figures, tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from cpsolver.doors.report.columns import ShownPlan, role_names, shown_plan
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.explanation.recommendation import recommend
from cpsolver.plans.dimensions import sizes_text
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation, violations
from cpsolver.search.result import Plan, Proof, Result, Status

if TYPE_CHECKING:
    from cpsolver.doors.export.launch import Launch
    from cpsolver.doors.report.html.play import LaunchText
    from cpsolver.search.space import Spaces


class NoPlanError(LookupError):
    """There is no plan to give: proven so, or none was found in time. Its text has the reasons."""


@dataclass(frozen=True, repr=False)
class JudgedPlan:
    """One plan of a problem with what it gives: times in seconds, memory in bytes, rates in tokens a second.

    `rank`, `gap` and `added` are as in `Plan`, where it is one of an `answer`. `filled_in`: the decisions that nobody
    gave, where it was made of some.
    """

    problem: Problem
    strategy: Strategy
    evaluation: Evaluation
    rank: int | None = None
    gap: float | None = None
    added: bool = False
    filled_in: Mapping[str, Any] = field(default_factory=dict)
    answer: PlanAnswer | None = field(default=None, compare=False)

    @property
    def roles(self) -> tuple[str, ...]:
        """What its answer recommends it as: "run this", "fastest", "safest", "simplest", any or none of them."""
        if self.answer is None or self.rank is None:
            return ()
        return role_names(self.problem, self.answer.result)[self.rank - 1]

    @property
    def step_time_s(self) -> float:
        """Predicted seconds of one optimizer step."""
        return self.evaluation.step_time_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """Between what seconds the true step time lies, four times in five."""
        return self._shown.interval.low_s, self._shown.interval.high_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all devices."""
        return self.evaluation.tokens_per_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens a second and device."""
        return self.evaluation.tokens_per_s_per_gpu

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, 0 to 1."""
        return self.evaluation.mfu

    @property
    def breakdown_s(self) -> Mapping[str, float]:
        """The parts of the step time; they sum to it."""
        return self.evaluation.breakdown_s

    @property
    def memory_bytes(self) -> Mapping[str, float]:
        """Bytes of a device on the fullest stage, for each chip type."""
        return self.evaluation.memory_bytes_by_chip

    @property
    def capacity_bytes(self) -> Mapping[str, float]:
        """Bytes of a device that a plan may fill, for each chip type."""
        return {name: self.problem.capacity_bytes(self.problem.supply(name).chip) for name in self.memory_bytes}

    @property
    def out_of_memory_probability(self) -> float:
        """The chance that it runs out of memory, 0 to 1."""
        return self._shown.out_of_memory

    @cached_property
    def violations(self) -> tuple[Violation, ...]:
        """Every rule that it breaks; none: it is legal and fits in memory."""
        return tuple(violations(self.problem, self.strategy))

    @property
    def legal(self) -> bool:
        """It breaks no rule, that of the memory among them."""
        return not self.violations

    @cached_property
    def _shown(self) -> ShownPlan:
        return shown_plan(self.problem, "", self.strategy, self.evaluation)

    def export(
        self, target: str, folder: str | PathLike[str] | None = None, *, force: bool = False, job: str | None = None
    ) -> Launch:
        """What a framework needs to run it: arguments, files, environment; with a folder the files are written too.

        Args:
            target: "megatron-lm" and so on, as `apss-cp export --help` lists them.
            folder: made where it is missing.
            force: replace files that the folder has already.
            job: what starts the nodes: "sbatch" and so on; None: the user.

        Raises InputError: CannotExpress where the framework cannot run the plan, with the reasons.
        """
        from cpsolver.doors.export.judge import exported
        from cpsolver.problem.asked import check_given

        check_given(target=target, folder=folder, job=job)
        into = None if folder is None else fspath(folder)
        return exported(self.problem, self.strategy, target, into, force, job)

    @cached_property
    def _document(self) -> dict[str, Any]:
        from cpsolver.doors.report.document import evaluation_document
        from cpsolver.doors.report.open_switches import open_of_plan

        left_open = open_of_plan(self.problem, self.strategy, self.evaluation)
        told = evaluation_document(self.problem, self.strategy, self.evaluation, self.violations, left_open)
        return {**told, "filled_in": dict(self.filled_in)} if self.filled_in else told

    def to_dict(self) -> dict[str, Any]:
        """What `evaluate --json` prints, in plain values."""
        return dict(self._document)

    def to_frame(self) -> Any:
        """A pandas.DataFrame of one row: decisions and key figures. Raises InputError where pandas is missing."""
        from cpsolver.doors.report.frame import data_frame, plan_record

        return data_frame([plan_record(self.strategy, self._document["plans"][0])])

    def to_html(self) -> str:
        """The page that `evaluate --html` writes."""
        from cpsolver.doors.report.html.page import evaluation_page

        launch = _launch_text(self) if self.legal else None
        return evaluation_page(self.problem, self.strategy, self.evaluation, self.violations, launch)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from cpsolver.doors.report.html.fragment import plan_fragment

        return plan_fragment(self.problem, self.strategy, self.evaluation, self.violations, self._document)

    def __repr__(self) -> str:
        rank = "" if self.rank is None else f" {self.rank}"
        given = self.evaluation
        legal = "" if self.rank is not None or self.legal else ", not legal"
        return (
            f"<plan{rank}: {sizes_text(self.strategy)}: {given.step_time_s:.4g} s a step, MFU {given.mfu:.1%}{legal}>"
        )


def _no_spaces() -> None:
    """Those of an answer whose search nobody has any more."""


@dataclass(frozen=True, repr=False)
class PlanAnswer:
    """What planning came to: the plans in order of the objective, and what is proven of them.

    `searched` is the search's own answer. What to run is looked for when something is first asked for that tells it:
    `best`, `status`, `proof` and `reasons` do not. As the last line of a notebook's cell it is shown as a table with
    pictures. `spaces` gives those of the search, or None where nobody has them any more.
    """

    problem: Problem
    searched: Result
    spaces: Callable[[], Spaces | None] = field(default=_no_spaces, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: with what to run where that is known, without the search's spaces."""
        known = {"result": self.known} if self.known is not self.searched else {}
        return {"problem": self.problem, "searched": self.searched, "spaces": _no_spaces, **known}

    @cached_property
    def result(self) -> Result:
        """The search's answer with a recommendation; plans that it names besides the best are among the plans."""
        if self.searched.recommendation is not None:
            return self.searched
        return recommend(self.problem, self.searched, self.spaces())

    @property
    def known(self) -> Result:
        """The answer with its recommendation where that has been looked for and settled, or else `searched`."""
        result: Result = self.__dict__.get("result", self.searched)
        return result if result.settled else self.searched

    @cached_property
    def plans(self) -> tuple[JudgedPlan, ...]:
        """The plans by rank; those that are `added` follow the K best."""
        return tuple(self._judged(plan) for plan in self.result.plans)

    def _judged(self, plan: Plan) -> JudgedPlan:
        own = plan.strategy, plan.evaluation, plan.rank, plan.gap, plan.added
        return JudgedPlan(self.problem, *own, answer=self)

    @cached_property
    def best(self) -> JudgedPlan:
        """The best plan in the objective: the fastest. Raises NoPlanError with the reasons where there is none."""
        self._check_plans()
        return self._judged(self.searched.plans[0])

    @property
    def run_this(self) -> JudgedPlan:
        """The plan to run once risk counts; the best where none is recommended. Raises NoPlanError."""
        self._check_plans()
        told = self.result.recommendation
        return self.plans[0 if told is None or told.run_this is None else told.run_this]

    def _check_plans(self) -> None:
        if not self.searched.plans:
            found = "there is no plan" if self.status == "infeasible" else "no plan was found in the time given"
            raise NoPlanError("\n".join([found, *self.reasons]))

    @property
    def status(self) -> Status:
        """ "optimal": the plans are proven; "feasible": stopped early; "infeasible": proven that there is none;
        "unknown": none was found in time."""
        return self.searched.status

    @property
    def proof(self) -> Proof:
        """How every candidate ended."""
        return self.searched.proof

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is no plan, and changes that would help; empty where there is one."""
        return self.searched.reasons

    def verify(self, *, time_limit_s: float = 60.0) -> PlanAnswer:
        """The answer with a second opinion, `result.verification`: as `cpsolver.verify`."""
        from cpsolver.search.verification import verify

        told = verify(self.problem, self.result, time_limit_s)
        return PlanAnswer(self.problem, replace(self.result, verification=told))

    @cached_property
    def _document(self) -> dict[str, Any]:
        from cpsolver.doors.report.document import result_document
        from cpsolver.doors.report.open_switches import open_of_result

        return result_document(self.problem, self.result, open_of_result(self.problem, self.result))

    def to_dict(self) -> dict[str, Any]:
        """What `solve --json` prints, in plain values; its shape is docs/answer.schema.json."""
        return dict(self._document)

    def to_frame(self) -> Any:
        """A pandas.DataFrame with a row for each plan: decisions and key figures. Raises InputError without pandas."""
        from cpsolver.doors.report.frame import data_frame, plan_columns, plan_records

        return data_frame(plan_records(self.problem, self.result, self._document), plan_columns())

    def to_html(self) -> str:
        """The page that `solve --html` writes."""
        from cpsolver.doors.report.html.page import result_page

        return result_page(self.problem, self.result, [_launch_text(plan) for plan in self.plans])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from cpsolver.doors.report.html.fragment import answer_fragment

        return answer_fragment(self.problem, self.result, self._document)

    def __repr__(self) -> str:
        if not self.searched.plans:
            return f"<answer: {self.status}, no plan>"
        return f"<answer: {self.status}, {len(self.plans)} plans, the best {self.best!r}>"


def _launch_text(plan: JudgedPlan) -> LaunchText | None:
    """What the plan is started with, for a page."""
    from cpsolver.doors.export.judge import usual_launch
    from cpsolver.doors.report.html.play import LaunchText

    launch = usual_launch(plan.problem, plan.strategy)
    return None if launch is None else LaunchText(launch.target, *launch.start)
