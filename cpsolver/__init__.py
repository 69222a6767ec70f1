"""An exact planner for parallel training of large models: how to split the work, how fast it runs and why.

The library in a few lines; docs/python.md has more::

    import cpsolver as apss

    r = apss.plan("llama3.1-70b", on={"h100": 512}, batch=1024, seq=8192)
    print(r.best.step_time_s, r.best.tokens_per_s, r.to_frame())
    r.best.export("megatron-lm", "launch/")

    mine = apss.evaluate("llama3.1-70b", on={"h100": 64}, batch=256, seq=4096, tp=8, pp=4)
    print(mine.step_time_s, mine.violations)

Whatever is wrong with an input is raised as one `InputError` that lists every trouble, in the words of the commands.
Importing this module is cheap: what a function needs is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeAlias, overload

if TYPE_CHECKING:
    from cpsolver.doors.export.launch import CannotExpress, Launch
    from cpsolver.doors.python.answers import JudgedPlan, NoPlanError, PlanAnswer
    from cpsolver.doors.python.calls import plan
    from cpsolver.doors.python.sweeps import ComparedOptions, LazySweep, compare, sweep
    from cpsolver.doors.report.schema import answer_schema
    from cpsolver.evaluation.evaluation import Evaluation
    from cpsolver.explanation.account import Account, SearchDisplay
    from cpsolver.explanation.favourite import Favourite
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.plans.strategy import Strategy
    from cpsolver.problem.problem import Problem
    from cpsolver.rules import Violation
    from cpsolver.search.replicas import Counts, ReplicasPlan
    from cpsolver.search.result import Plan, Result

__version__ = "0.2.0"

__all__ = [
    "Account",
    "CannotExpress",
    "ComparedOptions",
    "Evaluation",
    "Favourite",
    "InputError",
    "JudgedPlan",
    "Launch",
    "LazySweep",
    "NoPlanError",
    "Plan",
    "PlanAnswer",
    "Problem",
    "Result",
    "SearchDisplay",
    "Strategy",
    "Trouble",
    "Violation",
    "answer_schema",
    "check",
    "compare",
    "evaluate",
    "explain",
    "export",
    "load_problem",
    "load_strategy",
    "make_problem",
    "make_strategy",
    "plan",
    "plan_replicas",
    "solve",
    "sweep",
    "verify",
]

_HOMES = {
    "Account": "explanation.account",
    "CannotExpress": "doors.export.launch",
    "ComparedOptions": "doors.python.sweeps",
    "JudgedPlan": "doors.python.answers",
    "LazySweep": "doors.python.sweeps",
    "NoPlanError": "doors.python.answers",
    "PlanAnswer": "doors.python.answers",
    "SearchDisplay": "explanation.account",
    "Evaluation": "evaluation.evaluation",
    "Favourite": "explanation.favourite",
    "InputError": "inputs.errors",
    "Launch": "doors.export.launch",
    "Plan": "search.result",
    "Problem": "problem.problem",
    "Result": "search.result",
    "Strategy": "plans.strategy",
    "Trouble": "inputs.errors",
    "Violation": "rules",
    "answer_schema": "doors.report.schema",
    "compare": "doors.python.sweeps",
    "plan": "doors.python.calls",
    "sweep": "doors.python.sweeps",
}
"""Where types, and questions in one call, stand; each is imported when somebody asks for it."""

File: TypeAlias = str | PathLike[str]
"""A file's path; "-" is standard input."""
Fields: TypeAlias = Mapping[str, object]
"""A spec, or a section of one, as plain values: what YAML or JSON would hold."""


def __getattr__(name: str) -> Any:
    """A name of the library, imported from where it stands."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The library's names: what completion shows."""
    return [*__all__, "__version__"]


def load_problem(path: File, *, calibration: File | None = None, **search: object) -> Problem:
    """The problem in a spec file, every name looked up.

    Args:
        path: YAML or JSON; files that the spec names are found from its folder.
        calibration: what `apss-cp calibrate` wrote, to lie on top of the published constants.
        search: fields of the spec's search section to replace, `top` or `time_limit_s` say; None leaves one as it is.

    Raises InputError.
    """
    from cpsolver.problem.asked import check_given
    from cpsolver.problem.load import load_problem as load

    check_given(path=path, calibration=calibration)
    return load(fspath(path), None if calibration is None else fspath(calibration), **search)


def make_problem(
    spec: Fields | None = None,
    *,
    model: str | Fields | None = None,
    num_gpus: int | None = None,
    chips: str | Sequence[str] | Fields | None = None,
    gpus_per_node: int | None = None,
    network: str | Fields | None = None,
    global_batch_size: int | None = None,
    sequence_length: int | None = None,
    stack: str | None = None,
    launcher: str | None = None,
    calibration: File | None = None,
    **search: object,
) -> Problem:
    """The problem in plain values: a whole spec, single fields of one, or a spec with some fields replaced.

    Args:
        spec: what a spec file holds; None: nothing, so that `model`, `num_gpus`, `chips`, `global_batch_size` and
            `sequence_length` have to be given.
        model: a name of the catalogue (`apss-cp models`), a file, or the model's fields.
        num_gpus: devices in the cluster, in nodes of `gpus_per_node` (8).
        network: a name of the catalogue (`apss-cp networks`), or its figures (docs/network.md); None: the chips' own.
        chips: a name of the catalogue (`apss-cp chips`), several, or the most devices of each by name.
        global_batch_size: sequences in a step, of `sequence_length` tokens.
        stack: the software stack's name.
        launcher: only plans that this launcher runs.
        calibration: as for `load_problem`.
        search: fields of the search section: `top`, `objective`, `pin` ...

    Raises InputError.
    """
    from cpsolver.problem.asked import check_given
    from cpsolver.problem.load import make_problem as make

    check_given(spec={} if spec is None else spec, calibration=calibration)
    sections: dict[str, Fields] = {
        "cluster": {"num_gpus": num_gpus, "chips": chips, "gpus_per_node": gpus_per_node, "network": network},
        "training": {"global_batch_size": global_batch_size, "sequence_length": sequence_length},
        "search": search,
    }
    names = {"model": model, "stack": stack, "launcher": launcher}
    return make(spec or {}, names, sections, None if calibration is None else fspath(calibration))


def load_strategy(path: File, problem: Problem | None = None, number: int = 1) -> Strategy:
    """The plan in a file: YAML, JSON, plan `number` of what `solve --json` wrote, or a line of `apss-cp search`.

    With a `problem` its chips must be the problem's. Whether it is legal is for `check`. Raises InputError.
    """
    from cpsolver.problem.asked import check_given
    from cpsolver.problem.strategy_file import load_strategy as load

    check_given(path=path, number=number)
    if problem is not None:
        check_given(problem=problem)
    return load(fspath(path), problem, number)


def make_strategy(problem: Problem, **decisions: object) -> Strategy:
    """The plan with some decisions given (`tp=8, pp=4, layers=[20, 20, 20, 20]`), the rest filled in evenly.

    Degrees are 1 and dp is what is left, micro batches are of 1, flags as the spec's launcher has them. Whether it is
    legal is for `check`. Raises InputError.
    """
    from cpsolver.problem.asked import check_given, filled_in

    check_given(problem=problem)
    return filled_in(problem, decisions).strategy


def solve(problem: Problem | Fields | File, *, display: SearchDisplay | None = None) -> Result:
    """The best plans of a problem (or of a spec: its values, or its file), proven; as many as its `search.top`.

    `Result.recommendation` says which to run; plans that it names besides the best are among the plans, marked `added`.

    A result with status "infeasible" has the reasons. Ctrl-C and `search.time_limit_s` end the search with the best
    plans so far and the gap that is left. `display` shows how it goes (by default nothing does). Raises InputError for
    a spec that is wrong.
    """
    from cpsolver.explanation.account import display_of
    from cpsolver.explanation.recommendation import recommended

    return recommended(_problem(problem), display_of(display))


def verify(problem: Problem, result: Result, *, time_limit_s: float = 60.0) -> Result:
    """The result with a second opinion (`Result.verification`): one CP-SAT model over every plan that is close, solved
    apart from the search, and a sample of what the search's bounds had cut.

    It is finished within `time_limit_s` seconds, or says what it has not looked at. A verdict "contradicted" is a bug.
    """
    from dataclasses import replace

    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.problem.asked import check_given
    from cpsolver.search.result import Result as Known
    from cpsolver.search.verification import verify as look_again

    check_given(problem=problem, time_limit_s=time_limit_s)
    if not isinstance(result, Known):
        raise InputError(Trouble("result", "must be what `solve` gave", result))
    return replace(result, verification=look_again(problem, result, time_limit_s))


def plan_replicas(problem: Problem, counts: Counts = "own") -> ReplicasPlan | None:
    """Data parallelism over unequal chips, each chip type with the best share of the batch; None: nothing fits.

    `counts`: whether each kind of replicas has a number of microbatches of its own, or all have the same ("common").
    Raises InputError unless the spec has several chip types, all counted, and no launcher.
    """
    from cpsolver.problem.asked import check_given
    from cpsolver.search.replicas import plan_replicas as share_out

    check_given(problem=problem)
    return share_out(problem, counts)


@overload
def evaluate(problem: Problem, strategy: Strategy) -> Evaluation: ...
@overload
def evaluate(
    problem: Problem | Fields | File,
    strategy: None = None,
    *,
    on: str | Fields | None = None,
    batch: int | None = None,
    seq: int | None = None,
    launcher: str | None = None,
    stack: str | None = None,
    precision: str | None = None,
    gpus_per_node: int | None = None,
    network: str | Fields | None = None,
    cluster: Fields | None = None,
    training: Fields | None = None,
    calibration: File | None = None,
    **decisions: object,
) -> JudgedPlan: ...
def evaluate(
    problem: Problem | Fields | File,
    strategy: Strategy | None = None,
    *,
    on: str | Fields | None = None,
    batch: int | None = None,
    seq: int | None = None,
    launcher: str | None = None,
    stack: str | None = None,
    precision: str | None = None,
    gpus_per_node: int | None = None,
    network: str | Fields | None = None,
    cluster: Fields | None = None,
    training: Fields | None = None,
    calibration: File | None = None,
    **decisions: object,
) -> Evaluation | JudgedPlan:
    """Step time, throughput and memory of a plan, in parts that sum to the whole.

        cpsolver.evaluate("llama3.1-70b", on={"h100": 64}, batch=256, seq=4096, tp=8, pp=4)

    Args:
        problem: what the plan is for, as in `plan`, whose arguments `on` to `calibration` are.
        strategy: the whole plan; None: `decisions` make it.
        decisions: some decisions of the plan, the rest filled in evenly as by `make_strategy`.

    Of a Problem and a whole plan the numbers alone are given, else a JudgedPlan, with the rules that the plan breaks.
    Raises InputError for what is wrong, and for a plan whose sizes do not add up (layers, degrees, batch, chips);
    other rules that it breaks are no error: `check` lists them.
    """
    from cpsolver.problem.asked import Asked, check_given

    asked = Asked(on, batch, seq, launcher, stack, precision, gpus_per_node, network, calibration, cluster, training)
    whole = asked.problem(problem)
    if whole is problem and strategy is not None and not decisions:
        from cpsolver.rules import sound_evaluation

        check_given(strategy=strategy)
        return sound_evaluation(whole, strategy)
    from cpsolver.doors.python.calls import judged

    return judged(whole, strategy, decisions)


def check(problem: Problem, strategy: Strategy) -> tuple[Violation, ...]:
    """Every violation of every rule; none: the plan is legal and fits in memory."""
    from cpsolver.problem.asked import check_given
    from cpsolver.rules import violations

    check_given(problem=problem, strategy=strategy)
    return tuple(violations(problem, strategy))


@overload
def explain(
    problem: Problem | PlanAnswer, strategy: None = None, *, display: SearchDisplay | None = None
) -> Account: ...
@overload
def explain(problem: Problem, strategy: Strategy, *, display: SearchDisplay | None = None) -> Favourite: ...
@overload
def explain(problem: JudgedPlan, strategy: None = None, *, display: SearchDisplay | None = None) -> Favourite: ...
@overload
def explain(
    problem: Fields | File,
    strategy: None = None,
    *,
    on: str | Fields | None = None,
    batch: int | None = None,
    seq: int | None = None,
    launcher: str | None = None,
    stack: str | None = None,
    precision: str | None = None,
    gpus_per_node: int | None = None,
    network: str | Fields | None = None,
    cluster: Fields | None = None,
    training: Fields | None = None,
    calibration: File | None = None,
    display: SearchDisplay | None = None,
    **search: object,
) -> Account: ...
def explain(
    problem: Problem | PlanAnswer | JudgedPlan | Fields | File,
    strategy: Strategy | None = None,
    *,
    on: str | Fields | None = None,
    batch: int | None = None,
    seq: int | None = None,
    launcher: str | None = None,
    stack: str | None = None,
    precision: str | None = None,
    gpus_per_node: int | None = None,
    network: str | Fields | None = None,
    cluster: Fields | None = None,
    training: Fields | None = None,
    calibration: File | None = None,
    display: SearchDisplay | None = None,
    **search: object,
) -> Account | Favourite:
    """Why a spec has no plan, or what its wishes cost and small changes gain; of a plan, what it breaks or loses.

        cpsolver.explain(cpsolver.evaluate("llama3.1-70b", on={"h100": 64}, batch=256, seq=4096, tp=8, pp=4))

    Args:
        problem: a problem, a model or a spec as in `plan`, whose arguments `on` to `search` are; what `plan` gave; or a
            plan, as `evaluate` gives it or one of an answer.
        strategy: a plan for the problem.

    All of it is solved, which may take some seconds, at most some 100 beside the search for the best plan.
    """
    from cpsolver.doors.python.calls import explained
    from cpsolver.problem.asked import Asked

    asked = Asked(
        on, batch, seq, launcher, stack, precision, gpus_per_node, network, calibration, cluster, training, search
    )
    return explained(problem, strategy, asked, display)


def export(
    problem: Problem,
    strategy: Strategy,
    target: str,
    *,
    folder: File | None = None,
    force: bool = False,
    job: str | None = None,
) -> Launch:
    """What a framework needs to run a plan: arguments, files, environment.

    Args:
        problem: what the plan is for.
        strategy: the plan. Rules that it breaks (memory, say) are notes of the launch.
        target: "megatron-lm" and so on, as `apss-cp export --help` lists them.
        folder: where the files are written, too; None: nowhere.
        force: replace files that the folder has already.
        job: what starts the nodes: "sbatch" and so on, as `apss-cp export --help` lists them; None: the user.

    Raises InputError: CannotExpress where the framework cannot run the plan, with the reasons.
    """
    from cpsolver.doors.export.judge import exported
    from cpsolver.problem.asked import check_given

    check_given(problem=problem, strategy=strategy, target=target, folder=folder, job=job)
    return exported(problem, strategy, target, None if folder is None else fspath(folder), force, job)


def _problem(source: Problem | Fields | File) -> Problem:
    """A problem as it is, or that of a spec."""
    if isinstance(source, Mapping):
        return make_problem(source)
    if isinstance(source, str | PathLike):
        return load_problem(source)
    from cpsolver.problem.asked import check_given

    check_given(problem=source)
    return source
