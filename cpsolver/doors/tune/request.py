"""From the command line's options to an open state with everything that a tuning needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cpsolver.doors.export.judge import for_target
from cpsolver.doors.tune import ask_tell
from cpsolver.doors.tune.choosers import DEFAULT_POLICY, POLICIES, ChooserSettings, make_chooser
from cpsolver.doors.tune.display import StderrDisplay
from cpsolver.doors.tune.jobs import JobBuilder, target_of
from cpsolver.doors.tune.logs import default_skip
from cpsolver.doors.tune.loop import TrialLimits, tune
from cpsolver.doors.tune.measured_runs import EarlierRuns, read_earlier_runs, write_runs
from cpsolver.doors.tune.report import state_name
from cpsolver.doors.tune.result import TuningResult
from cpsolver.doors.tune.state import Binding, State, command_meaning, spec_meaning, stored_template
from cpsolver.doors.tune.template import check_command, parse_template
from cpsolver.doors.tune.trial import Chooser, Trial, TrialMemory
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.language import later, say
from cpsolver.inputs.output import check_files
from cpsolver.problem.load import load_problem
from cpsolver.problem.problem import Problem

_KEPT = ("policy", "top", "gain", "chance", "runs", "trial_time_limit", "skip_iterations", "iterations")
"""Options that must be given again to go on with a state."""


@dataclass(frozen=True)
class TuneRequest:
    """The options of `apss-cp tune`, by their names."""

    spec: str
    template: str | None = None
    shell: bool = False
    target: str | None = None
    state: str | None = None
    policy: str | None = None
    top: int | None = None
    gain: float | None = None
    chance: float | None = None
    seed: int = 0
    runs: str | None = None
    max_trials: int | None = None
    max_hours: float | None = None
    trial_time_limit: float | None = None
    skip_iterations: int | None = None
    iterations: int | None = None
    ask: bool = False
    count: int | None = None
    tell: int | None = None
    log: str | None = None
    step_time: float | None = None
    peak_memory: float | None = None
    memory_kind: TrialMemory | None = None
    oom: bool = False
    failed: str | None = None
    runs_csv: str | None = None

    @property
    def folder(self) -> Path:
        """Where the state is."""
        return state_name(self.spec) if self.state is None else Path(self.state)

    @property
    def reported(self) -> ask_tell.ReportedResult:
        """What the user says of a trial."""
        return ask_tell.ReportedResult(
            self.log, self.step_time, self.oom, self.failed, self.peak_memory, self.memory_kind
        )

    def resume_command(self) -> str:
        """The command that goes on with the same state, which has the template."""
        words = ["apss-cp", "tune", self.spec, "--state", str(self.folder)]
        words += ["--seed", str(self.seed)] if self.seed else []
        for name in _KEPT:
            if (value := getattr(self, name)) is not None:
                words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
        return shlex.join(words)

    def check(self) -> None:
        """Raises InputError with every option that does not go with the others."""
        troubles = list(self._troubles())
        if troubles:
            raise InputError(troubles)
        if self.tell is not None:
            ask_tell.check_report(self.reported)

    def _troubles(self) -> Iterator[Trouble]:
        if self.ask and self.tell is not None:
            yield Trouble("--ask", later("does not go with --tell: give one of them"))
        if self.count is not None and not self.ask:
            yield Trouble("--count", later("says how many plans to ask for, and --ask is missing"))
        if self.tell is None:
            for name, given in (
                ("--log", self.log is not None),
                ("--step-time", self.step_time is not None),
                ("--peak-memory", self.peak_memory is not None),
                ("--memory-kind", self.memory_kind is not None),
                ("--oom", self.oom),
                ("--failed", self.failed is not None),
            ):
                if given:
                    yield Trouble(name, later("says what came of a trial, and --tell NUMBER is missing"))
        if self.shell and self.template is None:
            yield Trouble("--shell", later("says how --run is run, and --run is missing"))
        for name in ("max_trials", "max_hours", "trial_time_limit", "iterations") if self.ask else ():
            if getattr(self, name) is not None:
                yield Trouble(f"--{name.replace('_', '-')}", later("does not go with --ask, which runs nothing"))
        for name in ("runs", "gain", "chance") if self.policy == "top" else ():
            if getattr(self, name) is not None:
                yield Trouble(f"--{name}", later("does not go with --policy top, which learns nothing"))
        if self.policy is not None and self.policy not in POLICIES:
            near = nearest_names(self.policy, POLICIES)
            yield Trouble("--policy", later("is no policy"), self.policy, ", ".join(POLICIES), near)


@dataclass(frozen=True)
class OpenTuning:
    """A request with its state open and its plans' way to a command."""

    request: TuneRequest
    problem: Problem
    state: State
    builder: JobBuilder
    earlier: EarlierRuns

    def chooser(self) -> Chooser:
        """Who chooses: among the plans that the target runs, where the spec names no launcher."""
        there = None if self.builder.target is None else for_target(self.problem, self.builder.target)
        policy = self.request.policy or DEFAULT_POLICY
        request = self.request
        settings = ChooserSettings(
            top=request.top,
            gain=None if request.gain is None else request.gain / 100,
            chance=None if request.chance is None else request.chance / 100,
            seed=request.seed,
            earlier=self.earlier.observations,
        )
        return make_chooser(policy, there or self.problem, settings)

    def ask(self) -> tuple[list[Trial], str | None]:
        """Plans given out, and why there are no more."""
        return ask_tell.ask(self.state, self.chooser(), self.builder, self.request.count)

    def tell(self) -> Trial:
        """Keep what came of a trial."""
        number = self.request.tell
        assert number is not None
        return ask_tell.tell(self.state, self.builder, number, self.request.reported, self._skip)

    def tune(self) -> TuningResult:
        """Run trials, and say what was found."""
        chooser, request = self.chooser(), self.request
        limits = TrialLimits(
            skip=self._skip,
            max_trials=request.max_trials,
            max_hours=request.max_hours,
            trial_s=request.trial_time_limit,
            iterations=request.iterations,
        )
        reason = tune(self.state, chooser, self.builder, limits, StderrDisplay())
        trials = tuple(self.state.trials())
        estimates = tuple(chooser.estimates(trials))
        return TuningResult(
            self.problem,
            trials,
            estimates,
            reason,
            self.state.folder,
            request.resume_command(),
            chooser.best(trials),
        )

    @property
    def measured(self) -> bool:
        """Some trial was."""
        return any(trial.measured for trial in self.state.trials())

    @property
    def _skip(self) -> int:
        given = self.request.skip_iterations
        return default_skip() if given is None else given

    def write_runs(self) -> list[str]:
        """Write --runs-csv; a word on each trial that is not in it, and on each row of --runs that is not used."""
        path = self.request.runs_csv
        told = [] if path is None else write_runs(self.problem, self.state.trials(), path)
        return [*self.earlier.notes, *told]


@contextmanager
def opened(request: TuneRequest) -> Iterator[OpenTuning]:
    """The request's state, open. Raises InputError for all that would only show when a trial runs; nothing is written.

    The folder keeps the template: where a state is there already, none need be given.
    """
    problem = load_problem(request.spec)
    template = None if request.template is None else parse_template(request.template, request.shell)
    target = target_of(problem, template, request.target)
    if template is not None:
        check_command(template)
    check_files({"--runs-csv": request.runs_csv}, request.spec)
    earlier = EarlierRuns((), ()) if request.runs is None else read_earlier_runs(request.runs, problem)
    there = request.folder.exists()
    if not there and (request.tell is not None or (template is None and not request.ask)):
        message = say("is needed: there is no state yet in {folder}", folder=request.folder)
        name = "--ask" if request.tell is not None else "--run"
        raise InputError(Trouble(name, message, allowed=say("--run TEMPLATE, or --ask and --tell")))
    with State(request.folder) as state:
        meaning = None if template is None else command_meaning(template, target)
        stored = state.bind(Binding(spec_meaning(problem), meaning))
        if stored is not None and template is None:
            template, target = stored_template(stored)
            if request.target not in (None, target):
                raise InputError(
                    Trouble("--to", later("is not the target of the trials there"), request.target, target)
                )
            check_command(template)
        if template is None and not request.ask and request.tell is None and request.max_trials != 0:
            message = say("is needed: the trials in {folder} were asked for, not run", folder=request.folder)
            raise InputError(Trouble("--run", message))
        yield OpenTuning(request, problem, state, JobBuilder(problem, template, target), earlier)
