"""A problem from the arguments of a call: a model on some chips, or a whole spec with some of its fields replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.filled import Filled, fill_strategy
from cpsolver.problem.flags import ARGUMENT_OF, OneLine
from cpsolver.problem.load import make_problem, plain
from cpsolver.problem.problem import Problem

Source: TypeAlias = Problem | Mapping[str, Any] | str | PathLike[str]
"""What a question is about: a model (a name, a repository, a file, its fields) where the question says on which chips;
else a problem, or a whole spec (a file, its fields)."""

_OF_A_MODEL = ("on", "batch", "seq")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "source": ((Problem, Mapping, str, PathLike), "must be a model, a spec or a problem"),
    "on": ((str, Mapping), "must be chips and how many of each"),
    "cluster": ((Mapping,), "must be a mapping of fields"),
    "training": ((Mapping,), "must be a mapping of fields"),
    "calibration": ((str, PathLike), "must be the name of a file"),
}


_ONE: dict[str, tuple[tuple[type, ...], str]] = {
    "path": ((str, PathLike), "must be the name of a file"),
    "folder": ((str, PathLike), "must be the name of a folder"),
    "calibration": _KINDS["calibration"],
    "db": _KINDS["calibration"],
    "spec": ((Mapping,), "must be a mapping of fields"),
    "problem": ((Problem,), "must be a problem: load_problem and make_problem make one"),
    "target": ((str,), "must be the name of a target"),
    "job": ((str,), "must be the name of a kind of job"),
    "number": ((int,), "must be a whole number"),
    "time_limit_s": ((int, float), "must be a number of seconds"),
    "strategy": ((Strategy,), "must be a plan: load_strategy and make_strategy make one"),
}
_MAY_BE_LEFT_OUT = ("calibration", "folder", "job")


def check_given(**given: object) -> None:
    """Raises InputError for arguments of these names that are of no kind that they may be; None is one of those that a
    call may leave out."""
    found = []
    for name, one in given.items():
        kinds, told = _ONE[name]
        if not isinstance(one, kinds) and not (one is None and name in _MAY_BE_LEFT_OUT):
            found.append(Trouble(name, told, one))
    if found:
        raise InputError(found)


def check_kinds(**given: object) -> None:
    """Raises InputError for arguments of these names that are of no kind that they may be, each entry of a list too.

    None stands for what is not said; the source is always said.
    """
    found = []
    for name, value in given.items():
        kinds, told = _KINDS[name]
        several = value if isinstance(value, list | tuple) else (value,) * (value is not None or name == "source")
        found += [Trouble(name, told, one) for one in several if not isinstance(one, kinds)]
    if found:
        raise InputError(found)


@dataclass(frozen=True)
class Asked:
    """What a call says beside its first argument; None: not said, so that the spec or its default holds.

    `on`: chips and how many of each, a mapping or `h800:64,a800:64`; `batch`: sequences in a step, of `seq` tokens.
    `cluster`, `training` and `search` are fields of these sections of a spec.
    """

    on: str | Mapping[str, Any] | None = None
    batch: int | None = None
    seq: int | None = None
    launcher: str | None = None
    stack: str | None = None
    precision: str | None = None
    gpus_per_node: int | None = None
    network: str | Mapping[str, Any] | None = None
    calibration: str | PathLike[str] | None = None
    cluster: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    search: Mapping[str, Any] = field(default_factory=dict)

    def problem(self, source: Source) -> Problem:
        """The problem that is asked about. Raises InputError with every trouble, in the names of the arguments."""
        alone = {name: getattr(self, name) for name in _KINDS if name != "source"}
        found = [name for name, value in {"source": source, **alone}.items() if isinstance(value, list | tuple)]
        if found:
            raise InputError(Trouble(name, "is a list: one is asked about") for name in found)
        check_kinds(source=source, **alone)
        of_a_model = [name for name in _OF_A_MODEL if getattr(self, name) is not None]
        if isinstance(source, Problem):
            return self._same(source)
        spec = isinstance(source, Mapping) and "model" in source
        if of_a_model and not spec:
            return self._of_model(source)
        if of_a_model:
            told = later("says on what a model is trained, and a whole spec is given")
            raise InputError(Trouble(name, later("{told}: change the spec itself", told=told)) for name in of_a_model)
        names, sections = {"launcher": self.launcher, "stack": self.stack}, self._sections()
        overlay = self._overlay()
        if isinstance(source, Mapping):
            return make_problem(source, names, sections, overlay)
        document = load_yaml(fspath(source), collect=True)
        folder = None if fspath(source) == "-" else Path(source).parent
        return make_problem(document.data, names, sections, overlay, document, folder)

    def _same(self, problem: Problem) -> Problem:
        """A problem as it is: it has all that a call could say."""
        said = [name for name, value in vars(self).items() if value not in (None, {})]
        if said:
            told = later("is an argument for a model or a spec, and a problem is given")
            raise InputError(Trouble(name, later("{told}: make_problem takes it", told=told)) for name in said)
        return problem

    def _of_model(self, source: Mapping[str, Any] | str | PathLike[str]) -> Problem:
        missing = [name for name in _OF_A_MODEL if getattr(self, name) is None]
        if self.on is None or missing:
            raise InputError(Trouble(name, "is required, and missing") for name in missing)
        line = OneLine(
            source if isinstance(source, Mapping) else fspath(source),
            plain(self.on),
            self.batch,
            self.seq,
            launcher=self.launcher,
            stack=self.stack,
            precision=self.precision,
            gpus_per_node=plain(self.gpus_per_node),
            network=plain(self.network),
            names=ARGUMENT_OF,
        )
        sections = {"cluster": self.cluster or {}, "training": self.training or {}}
        return line.problem(self._overlay(), sections, **self.search)

    def _overlay(self) -> str | None:
        return None if self.calibration is None else fspath(self.calibration)

    def _sections(self) -> dict[str, dict[str, Any]]:
        """The fields of a spec's sections that the call replaces."""
        own = {"gpus_per_node": self.gpus_per_node, "network": self.network}
        return {
            "cluster": {**own, **(self.cluster or {})},
            "training": {"precision": self.precision, **(self.training or {})},
            "search": dict(self.search),
        }


def filled_in(problem: Problem, decisions: Mapping[str, Any]) -> Filled:
    """The plan with some decisions, the rest filled in evenly; troubles name the decisions, not flags.

    Raises InputError.
    """
    given = plain(decisions)
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    try:
        return fill_strategy(problem, listed)
    except InputError as error:
        raise InputError(_of_a_call(trouble) for trouble in error.troubles) from None


def decided(problem: Problem, strategy: Strategy | None, decisions: Mapping[str, Any]) -> Filled:
    """The plan that a call gives whole, or by some decisions. Raises InputError where it gives both."""
    if strategy is None:
        return filled_in(problem, decisions)
    check_given(strategy=strategy)
    if decisions:
        raise InputError(Trouble(name, "is a decision, and a whole plan is given") for name in decisions)
    return Filled(strategy, {})


def _of_a_call(trouble: Trouble) -> Trouble:
    return replace(trouble, where=trouble.where.removeprefix("--set").strip())
