"""What `apss-cp calibrate` would have taught on published runs that the constants had not seen.

    OMP_NUM_THREADS=1 nice python -m benchmarks.calibrate_published

For each group of one chip and stack in results/withheld.yaml: its runs are a user's own, the constants those of a fit
without them. Some runs, drawn at random, are learnt from as the product does, and the group's other runs are predicted.
Writes results/calibrate_published.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np

from benchmarks.fit_model import calibration, load_free
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evidence.calibrate.leave_one_out import leave_out
from cpsolver.evidence.intervals import half_width, spread
from cpsolver.evidence.posterior.constants import UncertainConstant, moved, uncertain_constants
from cpsolver.evidence.posterior.misfit import load_spread, locations
from cpsolver.evidence.posterior.posterior import Posterior, learn
from cpsolver.evidence.posterior.predictions import Floats, Linear, Lineariser, Observation, PlacedPlan
from cpsolver.evidence.posterior.time_posterior import unlearnt
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.profiles.constants import load_calibration

HERE = Path(__file__).parent
OUTPUT = HERE / "results" / "calibrate_published.md"
SIZES = (5, 10, 20)
SEEDS = 5


class Straight(Lineariser):
    """Predictions whose slopes are those at the published constants, worked out once: they hardly change from there."""

    def __init__(self, constants: Sequence[UncertainConstant], places: Sequence[PlacedPlan]) -> None:
        super().__init__(constants)
        self._memory = {place: stage_memory(place.problem, place.strategy) for place in places}
        found = super().__call__(places, np.zeros(len(self.constants)))
        self._slopes = dict(zip(places, found.slope, strict=True))

    def __call__(self, places: Sequence[PlacedPlan], at: Floats) -> Linear:
        """Values at the positions exactly."""
        values = []
        for place in places:
            problem = moved(place.problem, self.constants, at, "learnt")
            values.append(log(evaluate(problem, place.strategy, self._memory[place]).step_time_s))
        slopes = np.array([self._slopes[place] for place in places]).reshape(len(places), len(at))
        return Linear(at, np.array(values), slopes)


@dataclass(frozen=True)
class Score:
    """On runs that were not learnt from: mean errors by the constants and by the middle, share inside the interval,
    half the interval's width as a logarithm. `refused`: whether leaving out says that the runs teach nothing."""

    constants: float
    middle: float
    inside: float
    half: float
    refused: float


@dataclass(frozen=True)
class Group:
    """The runs of a chip and stack, with the constants of a fit that has not seen them."""

    name: str
    runs: Sequence[MeasuredRun]
    places: Sequence[PlacedPlan]
    lineariser: Lineariser
    published_half: Floats

    @property
    def log_seconds(self) -> Floats:
        """As measured."""
        return np.array([log(run.step_time_s or 1.0) for run in self.runs])


@click.command()
def main() -> None:
    """Score every group and write the table."""
    began, found = time.process_time(), {}
    for entry in _read(HERE / "results" / "withheld.yaml"):
        if " with " in entry["name"]:
            group = load_group(entry)
            found[group.name] = scores(group)
            click.echo(f"{group.name}: {found[group.name]} ({time.process_time() - began:.0f} s of CPU)")
    OUTPUT.write_text(table(found), encoding="utf-8")


def _read(path: Path) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def load_group(entry: dict[str, Any]) -> Group:
    """A group of withheld.yaml, its predictions linearised once."""
    base = calibration(load_free(HERE / "fit_constants.yaml"), entry["positions"])
    known = {run.id: run for run in read_runs(PUBLISHED).runs}
    runs = [known[name] for name in entry["runs"]]
    places = []
    for run in runs:
        case = placed_plan(run)
        places.append(PlacedPlan(case.problem.with_constants(base), case.strategy))
    constants = uncertain_constants(place.problem for place in places)
    lineariser = Straight([each for each in constants if each.kind != "memory"], places)
    return Group(entry["name"], runs, places, lineariser, _published_half(places))


def _published_half(places: Sequence[PlacedPlan]) -> Floats:
    """Half the interval that comes without runs: the group was left out of the fit, so that of left-out publishers."""
    ends = [spread(place.problem, place.strategy, load_calibration())[:2] for place in places]
    return np.array([(high - low) / 2 for low, high in ends])


def scores(group: Group) -> dict[int, Score]:
    """Number of runs learnt from -> the mean score over the seeds. The same runs are held out for all numbers."""
    found: dict[int, list[Score]] = {}
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(group.runs)).tolist()
        for size in (0, *SIZES):
            found.setdefault(size, []).append(score(group, order[:size], order[max(SIZES) :]))
    return {
        size: Score(*(fmean(getattr(each, name) for each in some) for name in Score.__dataclass_fields__))
        for size, some in found.items()
    }


def score(group: Group, learnt: Sequence[int], held_out: Sequence[int]) -> Score:
    """Learn from some runs and predict others."""
    seen = [Observation(group.runs[at].id, group.places[at], group.runs[at].step_time_s) for at in learnt]
    posterior = learn(seen, [place.problem for place in group.places], lineariser=group.lineariser)
    others = [group.places[at] for at in held_out]
    measured, noise = group.log_seconds[list(held_out)], load_spread().noise ** 2
    linear = posterior.linear(others)
    mean, covariance = posterior.step_times(others, linear)
    _, before = unlearnt(load_spread(), posterior.times.prior).forecast(locations(others), linear)
    sds, befores = (np.sqrt(np.diag(each) + noise) for each in (covariance, before))
    halves = [
        half_width(float(sd), float(sd_before), float(half))
        for sd, sd_before, half in zip(sds, befores, group.published_half[list(held_out)], strict=True)
    ]
    if not seen:  # what the planner says without runs
        mean, halves = linear.value, list(group.published_half[list(held_out)])
    return Score(
        float(np.abs(np.exp(linear.value - measured) - 1).mean()),
        float(np.abs(np.exp(mean - measured) - 1).mean()),
        float((np.abs(measured - mean) <= halves).mean()),
        float(np.mean(halves)),
        float(_refused(posterior)),
    )


def _refused(posterior: Posterior) -> bool:
    """As cpsolver.evidence.calibrate.checks.nothing_learnt has it."""
    if not posterior.observations:
        return False
    off, left = posterior.times.off, leave_out(posterior.times)
    before, after = (float(np.abs(np.exp(each) - 1).mean()) for each in (-off, left.constants - off))
    return after >= before


def table(found: dict[str, dict[int, Score]]) -> str:
    """The results in Markdown."""
    lines = [
        "<!-- Written by benchmarks/calibrate_published.py: do not edit by hand. -->",
        "",
        "| published runs of | learnt from | off, constants | off, middle | inside 80 % interval | interval "
        "| refused |",
        "|---|---|---|---|---|---|---|",
    ]
    sizes = (0, *SIZES)
    for name, scores in found.items():
        lines += [_line(name if size == 0 else "", size, scores[size]) for size in sizes]
    for size in sizes:
        every = [scores[size] for scores in found.values()]
        mean = Score(*(fmean(getattr(each, name) for each in every) for name in Score.__dataclass_fields__))
        lines.append(_line("**mean of the groups**" if size == 0 else "", size, mean))
    return "\n".join(lines) + "\n"


def _line(name: str, size: int, each: Score) -> str:
    errors = f"{each.constants:.1%} | {each.middle:.1%}".replace("%", " %")
    refused = f"{each.refused * 100:.0f} %" if size else ""
    wide = f"±{np.expm1(each.half) * 100:.0f} %"
    return f"| {name} | {size or 'nothing'} | {errors} | {each.inside * 100:.0f} % | {wide} | {refused} |"


if __name__ == "__main__":
    main()
