"""Fits how far clusters are from predictions that have not seen them, and writes profiles/calibrations/spread.yaml.

    python -m benchmarks.fit_spread

What is fitted is the prior of `apss-cp calibrate` and `apss-cp tune`: how much wider the constants of uncertain.yaml
spread than written there, and how large the misfit is that no constant explains. Greatest marginal likelihood of
log(measured / predicted) of the published runs, a source being a cluster, each run predicted without its publisher
(results/left_out.csv). Readings of memory: root mean square of log(measured / predicted) by kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import click
import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from benchmarks.fit import load_left_out, published_cases
from cpsolver.evaluation.meters import memory_bytes
from cpsolver.evidence.posterior.constants import uncertain_constants
from cpsolver.evidence.posterior.misfit import Locations, Spread, covariance, load_spread, locations
from cpsolver.evidence.posterior.predictions import Floats, Lineariser, PlacedPlan
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.profiles.constants import SPREAD, load_calibration
from hw_specs.units import gib_to_bytes

OUTPUT = SPREAD
HELD = 0.02
"""How strongly shares of the levels are held together: there are sixteen clusters for four of them."""


@dataclass(frozen=True)
class Source:
    """The runs of a source: log(measured / predicted) and its slopes (runs, constants), and where the runs lie."""

    off: Floats
    slope: Floats
    places: Locations


@click.command()
def main() -> None:
    """Fit and write the spread."""
    runs, _ = published_cases()
    found = fit(sources_of(runs, load_left_out()), load_spread())
    write(replace(found, memory={**found.memory, **memory_spread(runs)}))
    click.echo(OUTPUT.read_text(encoding="utf-8"))


def place_of(run: MeasuredRun) -> PlacedPlan:
    """A run as the planner sees it, with the published constants."""
    case = placed_plan(run)
    return PlacedPlan(case.problem.with_constants(load_calibration()), case.strategy)


def sources_of(runs: Sequence[MeasuredRun], left_out: dict[str, float]) -> list[Source]:
    """The runs by source; `left_out`: log(predicted / measured) by id."""
    by_source: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        by_source.setdefault(run.source, []).append(run)
    found = []
    for some in by_source.values():
        places = [place_of(run) for run in some]
        every = uncertain_constants([place.problem for place in places])
        constants = [each for each in every if each.kind != "memory"]
        slope = Lineariser(constants)(places, np.zeros(len(constants))).slope
        found.append(Source(np.array([-left_out[run.id] for run in some]), slope, locations(places)))
    return found


def log_likelihood(source: Source, spread: Spread, level: float) -> float:
    """Of a source's runs, but for a constant, at a level of misfit."""
    constants = spread.scale**2 * source.slope @ source.slope.T
    noise = spread.noise**2 * np.eye(len(source.off))
    factor = np.linalg.cholesky(constants + level**2 * covariance(spread, source.places, source.places) + noise)
    scaled = np.linalg.solve(factor, source.off)
    return float(-0.5 * scaled @ scaled - np.log(np.diag(factor)).sum())


def fit(sources: Sequence[Source], start: Spread) -> Spread:
    """The spread with the greatest likelihood; sizes of levels, noise and memory stay as they are."""
    sizes = list(start.levels)

    def spread_at(at: Floats) -> Spread:
        scale, misfit, reach, leftover = np.exp(at[:4]).tolist()
        shares = np.exp(at[4:] - logsumexp(at[4:])).tolist()
        return replace(start, scale=scale, misfit=misfit, reach=reach, leftover=leftover, levels=_by(sizes, shares))

    def minus(at: Floats) -> float:
        spread = spread_at(at)
        shares = np.log(list(spread.levels.values()))
        logs = np.array([[log_likelihood(source, spread, size) for size in sizes] for source in sources])
        return float(-logsumexp(logs + shares, axis=1).sum() + HELD * (at[4:] ** 2).sum())

    shares = np.log(list(start.levels.values()))
    begin = [log(start.scale), log(start.misfit), log(start.reach), log(start.leftover), *(shares - shares.mean())]
    options = {"maxiter": 6000, "xatol": 1e-3, "fatol": 1e-3}
    return spread_at(np.asarray(minimize(minus, begin, method="Nelder-Mead", options=options).x))


def _by(sizes: Sequence[float], shares: Sequence[float]) -> dict[float, float]:
    return dict(zip(sizes, shares, strict=True))


def memory_spread(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Root mean square of log(measured / predicted) by kind of reading."""
    off: dict[str, list[float]] = {}
    for run in runs:
        if run.peak_mem_gib is not None and run.peak_mem_kind is not None:
            place = place_of(run)
            told = memory_bytes(place.problem, place.strategy, run.peak_mem_kind)
            off.setdefault(run.peak_mem_kind, []).append(log(gib_to_bytes(run.peak_mem_gib) / told))
    return {kind: float(np.sqrt(np.mean(np.square(values)))) for kind, values in off.items()}


def write(spread: Spread) -> None:
    """Put the numbers into spread.yaml, whose comments stay."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 130
    document = yaml.load(OUTPUT.read_text(encoding="utf-8"))
    for name in ("scale", "misfit", "reach", "leftover"):
        document[name] = float(f"{getattr(spread, name):.4g}")
    for size, share in spread.levels.items():
        document["levels"][size] = round(share, 3)
    for kind, value in spread.memory.items():
        document["memory"][kind] = round(value, 3)
    with OUTPUT.open("w", encoding="utf-8") as file:
        yaml.dump(document, file)


if __name__ == "__main__":
    main()
