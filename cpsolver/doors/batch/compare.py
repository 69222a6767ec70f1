"""One decision over specs or clusters: days and dollars of each, break-even prices, a node more and a node less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from cpsolver.doors.report.columns import ShownPlan, shown_plan
from cpsolver.doors.report.outlook import UNKNOWN, Outlook, weighed
from cpsolver.explanation.account import SILENT, SearchDisplay, solve
from cpsolver.inputs.document import Document, load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, retold, say
from cpsolver.problem.flags import in_flags
from cpsolver.problem.load import problem_from
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.constants import Overlay, load_overlay
from cpsolver.search.objective import dollars_per_hour
from cpsolver.search.result import Result
from cpsolver.spec.spec import Spec
from cpsolver.spec.training import MOST

_HOURS = 24.0
_RESIZED, _RESIZED_OF = later("{change} node"), later("{change} node of {chip}")


@dataclass(frozen=True)
class Answer:
    """A problem's best plan, if it has one. `name`: what tells it from the others."""

    name: str
    problem: Problem
    result: Result

    @property
    def plan(self) -> ShownPlan | None:
        """The best plan with its interval and outlook."""
        if not self.result.plans:
            return None
        best = self.result.plans[0]
        return shown_plan(self.problem, self.name, best.strategy, best.evaluation)

    @property
    def outlook(self) -> Outlook:
        """Its days, its dollars, its chance of being in time."""
        return UNKNOWN if self.plan is None else self.plan.outlook

    @property
    def dollars_per_hour(self) -> float | None:
        """Of the devices in use; None without a plan or prices."""
        return None if self.plan is None else dollars_per_hour(self.problem, self.plan.strategy)


@dataclass(frozen=True)
class Option:
    """A spec or cluster to decide on. `resized`: the same with a node more and with a node less of each chip type.

    `break_even`: dollars per device-hour with which it would cost what `rival` does, the place of the cheapest other
    option in time; both None where there is no rival.
    """

    answer: Answer
    resized: tuple[Answer, ...]
    rival: int | None
    break_even: float | None


@dataclass(frozen=True)
class Comparison:
    """The options in the order in which they were given. `front` and `winner`: places among them, as of a sweep's."""

    options: tuple[Option, ...]
    front: tuple[int, ...]
    winner: int | None


@dataclass(frozen=True)
class ComparisonRequest:
    """What to compare: specs, or one on several clusters (`on`: `h100:512@2.5,a800:64@1.2` each).

    A spec is a file, its plain values, or a problem. `tokens` takes the place of the specs' own. `resize`: also with a
    node more and a node less.
    """

    specs: tuple[str | Mapping[str, Any] | Problem, ...]
    on: tuple[str, ...] = ()
    tokens: float | None = None
    resize: bool = True
    time_limit_s: float | None = None
    calibration: str | None = None


def compare(request: ComparisonRequest, display: SearchDisplay = SILENT) -> Comparison:
    """Solve every option, each with a single plan. Raises InputError, for options that train other tokens too."""
    return compare_problems(problems_of(request), request.resize, display)


def compare_problems(
    named: Sequence[tuple[str, Problem]], resize: bool = True, display: SearchDisplay = SILENT
) -> Comparison:
    """As `compare`, of problems for one plan each, by name."""
    solved = [Answer(name, problem, solve(problem, display)) for name, problem in named]
    resized = [
        tuple(Answer(name, other, solve(other, display)) for name, other in resized_of(problem))
        if resize and answer.result.plans
        else ()
        for answer, (_, problem) in zip(solved, named, strict=True)
    ]
    return comparison(solved, resized)


def comparison(answers: Sequence[Answer], resized: Sequence[tuple[Answer, ...]]) -> Comparison:
    """The decision over solved options."""
    outlooks = [answer.outlook for answer in answers]
    front, winner = weighed(outlooks)
    options = []
    for place, (answer, others) in enumerate(zip(answers, resized, strict=True)):
        rest = [UNKNOWN if other == place else outlook for other, outlook in enumerate(outlooks)]
        rival = weighed(rest)[1]
        options.append(Option(answer, others, rival, _break_even(answer, None if rival is None else rest[rival])))
    return Comparison(tuple(options), front, winner)


def _break_even(answer: Answer, rival: Outlook | None) -> float | None:
    days = answer.outlook.days
    if answer.plan is None or days is None or rival is None or rival.dollars is None:
        return None
    return rival.dollars.mean / (days.mean * _HOURS * answer.plan.strategy.devices)


def problems_of(request: ComparisonRequest) -> list[tuple[str, Problem]]:
    """The options by name, each to be solved for one plan."""
    if request.on and len(request.specs) > 1:
        raise InputError(Trouble("--on", later("says on what one spec is compared, and there are several")))
    if len(request.specs) + len(request.on) < 2:
        told = later("is alone: give another one, or clusters (--on h100:512@2.5 --on a800:768@1.2)")
        raise InputError(Trouble("SPEC", told))
    overlay = None if request.calibration is None else load_overlay(request.calibration)
    found: list[tuple[str, Problem]] = []
    wrong: list[Trouble] = []
    for place, spec in enumerate(request.specs, 1):
        try:
            document = _read(spec)
        except InputError as error:
            wrong += error.troubles
            continue
        for on in request.on or (None,):
            try:
                found.append(_option(spec, document, on, place, request, overlay))
            except InputError as error:
                wrong += error.troubles
    if wrong:
        raise InputError(told for place, told in enumerate(wrong) if told not in wrong[:place])  # a spec's own: once
    _same_tokens(found)
    return found


def _read(spec: str | Mapping[str, Any] | Problem) -> Document:
    if isinstance(spec, Problem):
        return Document({})
    return load_yaml(spec) if isinstance(spec, str) else Document(dict(spec))


def _option(
    spec: str | Mapping[str, Any] | Problem,
    document: Document,
    on: str | None,
    place: int,
    request: ComparisonRequest,
    overlay: Overlay | None,
) -> tuple[str, Problem]:
    """A spec as an option, with its name: itself, or on a cluster. What is no file goes by its place."""
    if isinstance(spec, Problem):
        wishes = {"top": 1} if request.time_limit_s is None else {"top": 1, "time_limit_s": request.time_limit_s}
        if on or request.tokens is not None:
            raise InputError(Trouble("on" if on else "tokens", later("is for a spec, and a problem is given")))
        return f"{place}: {spec.model.name} on {spec.num_gpus:,}", spec.with_(search=wishes)
    base = Path(spec).parent if isinstance(spec, str) and spec != "-" else None
    data = _asked(document.data, request, None if on is None else cluster_of(on))
    name = on or (spec if isinstance(spec, str) else f"spec {place}")
    try:
        return name, problem_from(data, None if on else document, base, overlay)
    except InputError as error:
        said = _said(request, on)
        raise InputError(in_flags(trouble, said) for trouble in error.troubles) from None


def _said(request: ComparisonRequest, on: str | None) -> dict[str, str]:
    """The options that stand for fields of the spec."""
    fields = ("cluster.num_gpus", "cluster.chips", "cluster.prices")
    return {
        **({} if on is None else dict.fromkeys(fields, "--on")),
        **({} if request.tokens is None else {"training.tokens": "--tokens"}),
        **({} if request.time_limit_s is None else {"search.time_limit_s": "--time-limit"}),
    }


def _asked(data: Mapping[str, Any], request: ComparisonRequest, cluster: Mapping[str, Any] | None) -> dict[str, Any]:
    """A spec's values with what the request replaces, where its sections are sound."""
    changes: dict[str, dict[str, Any]] = {"search": {"top": 1}}
    if request.time_limit_s is not None:
        changes["search"]["time_limit_s"] = request.time_limit_s
    if request.tokens is not None:
        changes["training"] = {"tokens": request.tokens}
        deadline = (data.get("search") or {}).get("deadline")
        if isinstance(deadline, Mapping):
            changes["search"]["deadline"] = {**deadline, "tokens": None}
    if cluster is not None:
        known = (data.get("cluster") or {}).get("prices")
        kept = {name: known[name] for name in cluster["chips"] if name in known} if isinstance(known, Mapping) else {}
        prices = {**kept, **cluster["prices"]} or (None if isinstance(known, Mapping) else known)
        changes["cluster"] = {**cluster, "prices": prices}
        if not set(cluster["chips"]) <= _chips_of(data):
            changes["cluster"]["network"] = None  # it is that of other chips
    return {**data, **{name: {**(data.get(name) or {}), **fields} for name, fields in changes.items()}}


def _chips_of(data: Mapping[str, Any]) -> set[str]:
    """The chips of a spec's values, whatever form they have."""
    chips = (data.get("cluster") or {}).get("chips") or ()
    return {chips} if isinstance(chips, str) else {str(name) for name in chips}


def cluster_of(text: str) -> dict[str, Any]:
    """Chips, devices and prices of `h100:512@2.5,a800:64`: a price is dollars per device-hour, and may be left out.

    Raises InputError with all that is wrong.
    """
    chips: dict[str, int] = {}
    prices: dict[str, float] = {}
    found: list[Trouble] = []
    for part in text.split(","):
        name, _, rest = part.strip().partition(":")
        number, at, price = rest.partition("@")
        try:
            count, dollars = int(number), float(price) if at else None
        except ValueError:
            told = later("must be CHIP:DEVICES or CHIP:DEVICES@DOLLARS, ...")
            found.append(Trouble("--on", told, text))
            continue
        found += [Trouble("--on", told, text) for told in _wrong_with(name, count, dollars, chips)]
        chips[name] = count
        if dollars is not None:
            prices[name] = dollars
    if found:
        raise InputError(found)
    return {"num_gpus": sum(chips.values()), "chips": chips, "prices": prices}


def _wrong_with(name: str, count: int, dollars: float | None, chips: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with a chip of a cluster, after others of it."""
    if not name:
        yield "names no chip type"
    if name in chips:
        yield later("names {name!r} twice", name=name)
    if count < 1:
        yield later("has {count} of {name}: at least 1", count=count, name=name)
    if count > MOST:
        yield later("has {count} of {name}: at most {most:,}", count=count, name=name, most=MOST)
    if dollars is not None and not 0 < dollars < inf:
        yield later("has a price of {dollars:g} for {name}: more than 0, and finite", dollars=dollars, name=name)


def _same_tokens(named: Sequence[tuple[str, Problem]]) -> None:
    """Raises InputError unless all train on as many tokens."""
    found = {name: problem.spec.tokens for name, problem in named}
    missing = [name for name, tokens in found.items() if tokens is None]
    if missing:
        message = say("is missing in {names}: days and dollars of how many tokens?", names=", ".join(missing))
        allowed = say("{section}, or {option}", section="training: {tokens: 1.0e+12}", option="--tokens 1e12")
        raise InputError(Trouble("training.tokens", message, allowed=allowed))
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name}: {tokens:g}" for name, tokens in found.items())
        told = say("differs ({said}): days and dollars are of other trainings", said=said)
        raise InputError(Trouble("training.tokens", told))


def resized_of(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """The problem with a node more and a node less of each chip type that has a limit, or of all together."""
    data, node = problem.spec.model_dump(mode="json"), problem.node
    chips = data["cluster"]["chips"]
    limited = [name for name, chip in chips.items() if chip["max"] is not None] or [None]
    for name in limited:
        for sign, word in ((1, "+1"), (-1, "-1")):
            size, own = problem.num_gpus + sign * node, dict(chips)
            if name is not None:
                own[name] = {**chips[name], "max": chips[name]["max"] + sign * node}
            if size < node or (name is not None and own[name]["max"] < node):
                continue
            changed = {**data, "cluster": {**data["cluster"], "num_gpus": size, "chips": own}}
            named = _RESIZED_OF if len(limited) > 1 else _RESIZED
            yield named.format(change=word, chip=name), resolve(Spec.model_validate(changed), problem.overlay)


def size_name(name: str) -> str:
    """The name of a resized problem in the language spoken; it is itself in English, as documents have it."""
    return retold(name, (_RESIZED, _RESIZED_OF))
