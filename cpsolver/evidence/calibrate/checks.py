"""What speaks against learning from runs: too few, readings that contradict each other, nothing that carries over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean

from cpsolver.evidence.calibrate.leave_one_out import LeaveOneOut
from cpsolver.evidence.calibrate.memory import RanOut
from cpsolver.evidence.calibrate.observations import Evidence, ObservedRun
from cpsolver.evidence.posterior.misfit import Spread
from cpsolver.evidence.posterior.posterior import NEED, Posterior
from cpsolver.inputs.data import package_schema
from cpsolver.inputs.errors import Trouble
from cpsolver.inputs.language import say

_FILE = Path(__file__).parent / "limits.yaml"


@dataclass(frozen=True)
class RefusalLimits:
    """When runs are refused, and what counts as learnt: limits.yaml says why each number is what it is."""

    fewest_runs: int
    repeats_apart: float
    unexplained: float
    implausible: float
    ran_out: float
    felt: float
    learnt: float


def limits() -> RefusalLimits:
    """The limits that come with the package."""
    return package_schema(_FILE, RefusalLimits)


def too_few(evidence: Evidence, file: str) -> Iterator[Trouble]:
    """Chips and stacks with fewer runs with a step time than can be learnt from."""
    counts: dict[tuple[str, str], list[str]] = {row.group: [] for row in evidence.rows}
    for row in evidence.timed:
        counts[row.group].append(row.run.id)
    for (chip, stack), ids in counts.items():
        if len(ids) < limits().fewest_runs:
            have = (
                say("{count} with a step time ({ids})", count=len(ids), ids=", ".join(ids))
                if ids
                else say("none with a step time")
            )
            message = say("too few runs of {chip} with the stack {stack}: {have}", chip=chip, stack=stack, have=have)
            yield Trouble(
                "",
                message,
                allowed=say("{count} or more of each chip and stack", count=limits().fewest_runs),
                file=file,
            )


def contradictions(evidence: Evidence, spread: Spread, file: str) -> Iterator[Trouble]:
    """Readings of one layout that no noise sets so far apart, and layouts that both fit and did not."""
    most = limits().repeats_apart * sqrt(2) * spread.noise
    for rows in _same_layouts(evidence.rows):
        timed = [(row.run.id, row.run.step_time_s) for row in rows if row.run.step_time_s is not None]
        for (first, one), (second, other) in combinations(timed, 2):
            if abs(log(one / other)) > most:
                message = say(
                    "rows {first} and {second} are the same layout, and took {one:g} s and {other:g} s: "
                    "{apart:.1%} apart; noise explains {noise:.1%}",
                    first=first,
                    second=second,
                    one=one,
                    other=other,
                    apart=exp(abs(log(one / other))) - 1,
                    noise=exp(most) - 1,
                )
                yield Trouble("", message, file=file)
        short = [row.run.id for row in rows if row.run.outcome == "oom"]
        if short and timed:
            fitted = ", ".join(name for name, _ in timed)
            message = say(
                "rows {fitted} and {short} are the same layout, which fitted and ran out of memory",
                fitted=fitted,
                short=", ".join(short),
            )
            yield Trouble("", message, file=file)


def _same_layouts(rows: Sequence[ObservedRun]) -> list[list[ObservedRun]]:
    found: dict[str, list[ObservedRun]] = {}
    for row in rows:
        found.setdefault(repr(row.layout), []).append(row)
    return [same for same in found.values() if len(same) > 1]


def unexplained(runs: Sequence[LeaveOneOut], file: str) -> Iterator[Trouble]:
    """The run that lies farthest from what the others say, farther than any level of misfit allows.

    Others that do too are only named: a wrong row draws what the others say, so that good ones seem off as well.
    """
    most = limits().unexplained
    found = sorted((each for each in runs if each.score > most), key=lambda each: -each.score)
    for each in found[:1]:
        others = ", ".join(other.row.run.id for other in found[1:])
        message = say(
            "row {id} took {measured_s:g} s, and by the other runs {middle_s:.3g} s: {score:.1f} "
            "standard deviations off, of which at most {most:g} are believed; is it of another version, "
            "chip, network or unit?",
            id=each.row.run.id,
            measured_s=each.measured_s,
            middle_s=each.middle_s,
            score=each.score,
            most=most,
        ) + (say(" Also off, perhaps for its sake: {others}", others=others) if others else "")
        yield Trouble("", message, file=file)


def apart(runs: Sequence[LeaveOneOut], file: str) -> Iterator[Trouble]:
    """The runs predict each other worse than clusters that were never seen are predicted: they are of several kinds.

    Runs that all have one factor in common do go together (`common_factor`), though constants may not reach so far.
    """
    if common_factor(runs) is not None:
        return
    usual = fmean(log(each.row.high_s / each.row.low_s) / 2 for each in runs)
    off = fmean(abs(log(each.constants_s / each.measured_s)) for each in runs)
    if off > usual:
        worst = sorted(runs, key=lambda each: -abs(log(each.constants_s / each.measured_s)))[:3]
        message = say(
            "these runs do not go together: left out in turn, they are predicted {off:.0%} off by the "
            "others, and four in five published runs of any cluster within {usual:.0%}; are all of this "
            "chip, network and version? Farthest off: {ids}",
            off=exp(off) - 1,
            usual=exp(usual) - 1,
            ids=", ".join(each.row.run.id for each in worst),
        )
        yield Trouble("", message, file=file)


def common_factor(runs: Sequence[LeaveOneOut]) -> str | None:
    """In words, that all times are off to one side of the published predictions, each beyond its 80 % interval."""
    slower = [each.measured_s > each.row.high_s for each in runs]
    faster = [each.measured_s < each.row.low_s for each in runs]
    if len(runs) < limits().fewest_runs or not (all(slower) or all(faster)):
        return None
    factors = sorted(each.measured_s / each.row.published_s for each in runs)
    return say(
        "all {count} step times are {least:.3g} to {most:.3g} times as long as published clusters "
        "would take, beyond what these scatter by: are they of another chip or clock, in another "
        "unit, or of several steps?",
        count=len(runs),
        least=factors[0],
        most=factors[-1],
    )


def implausible(posterior: Posterior, sds: Sequence[float], file: str) -> Iterator[Trouble]:
    """Constants that would have to be where no cluster has them; `sds`: what each may be off, without runs."""
    most = limits().implausible
    for each, position, sd in zip(posterior.constants, posterior.mean, sds, strict=True):
        if abs(position) > most * sd:
            message = say(
                "{name} of {group} would have to be {position:.3g}, and {start:.3g} was published: {off:.1f} "
                "standard deviations off, of which at most {most:g} are believed",
                name=each.name,
                group=each.group,
                position=each.value(position),
                start=each.start,
                off=abs(position) / sd,
                most=most,
            )
            yield Trouble("", message, file=file)


def fitting(found: Sequence[RanOut], spread: Spread, file: str) -> Iterator[Trouble]:
    """Runs that ran out of memory, and are said to need far less, whatever was learnt."""
    least = exp(-limits().ran_out * spread.memory[NEED])
    for each in found:
        if each.after < least:
            message = say(
                "row {name} ran out of memory, and should need {before:.0%} of the device as published and "
                "{after:.0%} by what was learnt: did something else run out, or is its layout another?",
                name=each.name,
                before=each.before,
                after=each.after,
            )
            yield Trouble("", message, file=file)


def no_improvement(before: float, after: float, file: str) -> Iterator[Trouble]:
    """Left out in turn, the runs are predicted no better by the others than by the published constants."""
    if after >= before:
        message = say(
            "these runs teach nothing that carries over: left out in turn, they are predicted "
            "{after:.1%} off by the others, and {before:.1%} off with the published constants",
            after=after,
            before=before,
        )
        yield Trouble("", message, file=file)
