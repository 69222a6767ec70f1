"""An exact planner for parallel training of large models: how to split the work, how fast it runs and why.

The library in a few lines; docs/python.md has more::

    import cpsolver

    problem = cpsolver.make_problem(
        model="llama2-7b", num_gpus=32, chips="a800", global_batch_size=256, sequence_length=4096
    )
    result = cpsolver.solve(problem)
    best = result.plans[0]
    print(best.evaluation.step_time_s, best.strategy)
    launch = cpsolver.export(problem, best.strategy, "megatron-lm", folder="launch")

Whatever is wrong with an input is raised as one `InputError` that lists every trouble, in the words of the commands.
Importing this module is cheap: what a function needs is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeAlias, overload

if TYPE_CHECKING:
    from cpsolver.doors.export.launch import CannotExpress, Launch
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
    "Evaluation",
    "Favourite",
    "InputError",
    "Launch",
    "Plan",
    "Problem",
    "Result",
    "SearchDisplay",
    "Strategy",
    "Trouble",
    "Violation",
    "check",
    "evaluate",
    "explain",
    "export",
    "load_problem",
    "load_strategy",
    "make_problem",
    "make_strategy",
    "plan_replicas",
    "solve",
]

_HOMES = {
    "Account": "explanation.account",
    "CannotExpress": "doors.export.launch",
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
}
"""Where each type stands; it is imported when somebody asks for it."""

File: TypeAlias = str | PathLike[str]
"""A file's path; "-" is standard input."""
Fields: TypeAlias = Mapping[str, object]
"""A spec, or a section of one, as plain values: what YAML or JSON would hold."""


def __getattr__(name: str) -> Any:
    """A type of the library, imported from where it stands."""
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
    from cpsolver.problem.load import load_problem as load

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
    from cpsolver.problem.load import make_problem as make

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
    from cpsolver.problem.strategy_file import load_strategy as load

    return load(fspath(path), problem, number)


def make_strategy(problem: Problem, **decisions: object) -> Strategy:
    """The plan with some decisions given (`tp=8, pp=4, layers=[20, 20, 20, 20]`), the rest filled in evenly.

    Degrees are 1 and dp is what is left, micro batches are of 1, flags as the spec's launcher has them. Whether it is
    legal is for `check`. Raises InputError.
    """
    from cpsolver.problem.filled import fill_strategy

    return fill_strategy(problem, decisions).strategy


def solve(problem: Problem | Fields | File, *, display: SearchDisplay | None = None) -> Result:
    """The best plans of a problem (or of a spec: its values, or its file), proven; as many as its `search.top`.

    `Result.recommendation` says which to run; plans that it names besides the best are among the plans, marked `added`.

    A result with status "infeasible" has the reasons. Ctrl-C and `search.time_limit_s` end the search with the best
    plans so far and the gap that is left. `display` shows how it goes (by default nothing does). Raises InputError for
    a spec that is wrong.
    """
    from cpsolver.explanation.account import SILENT
    from cpsolver.explanation.account import solve as answer
    from cpsolver.explanation.recommendation import recommend

    found, shown = _problem(problem), display or SILENT
    result = answer(found, shown)
    with shown.waiting("looking for what to recommend: safer and simpler plans"):
        return recommend(found, result)


def plan_replicas(problem: Problem, counts: Counts = "own") -> ReplicasPlan | None:
    """Data parallelism over unequal chips, each chip type with the best share of the batch; None: nothing fits.

    `counts`: whether each kind of replicas has a number of microbatches of its own, or all have the same ("common").
    Raises InputError unless the spec has several chip types, all counted, and no launcher.
    """
    from cpsolver.search.replicas import plan_replicas as share_out

    return share_out(problem, counts)


def evaluate(problem: Problem, strategy: Strategy) -> Evaluation:
    """Step time, throughput and memory of a plan, in parts that sum to the whole.

    Raises InputError for a plan whose sizes do not add up (layers, degrees, batch, chips); other rules that it breaks
    are no error: `check` lists them.
    """
    from cpsolver.evaluation.evaluate import evaluate as judge
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.rules import structure_violations

    wrong = structure_violations(problem, strategy)
    if wrong:
        raise InputError([Trouble("", str(violation)) for violation in wrong])
    return judge(problem, strategy)


def check(problem: Problem, strategy: Strategy) -> tuple[Violation, ...]:
    """Every violation of every rule; none: the plan is legal and fits in memory."""
    from cpsolver.rules import violations

    return tuple(violations(problem, strategy))


@overload
def explain(problem: Problem, strategy: None = None, *, display: SearchDisplay | None = None) -> Account: ...
@overload
def explain(problem: Problem, strategy: Strategy, *, display: SearchDisplay | None = None) -> Favourite: ...
def explain(
    problem: Problem, strategy: Strategy | None = None, *, display: SearchDisplay | None = None
) -> Account | Favourite:
    """Why a spec has no plan, or what its wishes cost and small changes gain; with a strategy, what it breaks or loses.

    All of it is solved, which may take some seconds, at most some 100 beside the search for the best plan.
    """
    from cpsolver.explanation.account import SILENT, explain_plan, explain_spec

    if strategy is None:
        return explain_spec(problem, display or SILENT)
    return explain_plan(problem, strategy, display or SILENT)


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
    from cpsolver.doors.export.judge import launch_of, with_warnings
    from cpsolver.doors.export.launch import check_directory, check_folder, check_target, write_files

    check_target(target)
    if folder is not None:
        check_directory(fspath(folder))
    launch = with_warnings(problem, strategy, launch_of(problem, strategy, target))
    if job is not None:
        from cpsolver.doors.export.jobs import with_job

        launch = with_job(problem, strategy, launch, job)
    if folder is not None:
        check_folder(fspath(folder), launch, force)
        write_files(fspath(folder), launch)
    return launch


def _problem(source: Problem | Fields | File) -> Problem:
    """A problem as it is, or that of a spec."""
    if isinstance(source, Mapping):
        return make_problem(source)
    return load_problem(source) if isinstance(source, str | PathLike) else source
