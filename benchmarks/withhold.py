"""Fits the constants without some of the published runs, for what is to be shown on runs that a fit has not seen.

    python -m benchmarks.withhold

Withheld in turn: every task that was run in five layouts or more (which `apss-cp tune` is replayed on), and the runs of
every chip and software stack with 25 or more (which `apss-cp calibrate` learns from). Each fit goes on from the
published constants, as the cross-validation in fit.py does. Writes results/withheld.yaml.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks.fit import published_cases
from benchmarks.fit_model import Fit, load_free, positions_of
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.ranking import layout_of, task_of
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.profiles.constants import load_calibration

HERE = Path(__file__).parent
OUTPUT = HERE / "results" / "withheld.yaml"
FEWEST_LAYOUTS = 5
FEWEST_RUNS = 25


@click.command()
def main() -> None:
    """Fit without each group of runs and keep the constants."""
    runs, cases = published_cases()
    free = load_free(HERE / "fit_constants.yaml")
    fit = Fit(cases, [run.step_time_s or 0.0 for run in runs], free)
    begin = positions_of(free, load_calibration())
    found = []
    groups = [*task_groups(runs), *stack_groups(runs, cases)]
    for (name, rows), positions in zip(groups, fit.without([rows for _, rows in groups], begin), strict=True):
        off = np.exp(fit.some_errors(positions, rows)) - 1
        click.echo(f"{name}: {len(rows)} runs, mean error {np.abs(off).mean():.1%}, bias {off.mean():+.1%}")
        constants = [round(float(each), 4) for each in positions]
        found.append({"name": name, "runs": [runs[at].id for at in rows], "positions": constants})
    save(found)


def task_groups(runs: Sequence[MeasuredRun]) -> list[tuple[str, list[int]]]:
    """Places of the runs of every task that was run in FEWEST_LAYOUTS different layouts or more."""
    groups = _grouped([task_of(run) for run in runs])
    many = [rows for rows in groups if len({layout_of(runs[at]) for at in rows}) >= FEWEST_LAYOUTS]
    return [(f"{runs[rows[0]].model} on {runs[rows[0]].num_gpus} {runs[rows[0]].chip}", rows) for rows in many]


def stack_groups(runs: Sequence[MeasuredRun], cases: Sequence[PlacedPlan]) -> list[tuple[str, list[int]]]:
    """Places of the runs of every chip and stack with FEWEST_RUNS or more."""
    groups = _grouped([(run.chip, case.problem.stack.name) for run, case in zip(runs, cases, strict=True)])
    many = [rows for rows in groups if len(rows) >= FEWEST_RUNS]
    return [(f"{runs[rows[0]].chip} with {cases[rows[0]].problem.stack.name}", rows) for rows in many]


def _grouped(keys: Sequence[Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for at, key in enumerate(keys):
        groups.setdefault(key, []).append(at)
    return list(groups.values())


def save(found: Sequence[Mapping[str, object]]) -> None:
    """Write the constants' positions, in the order of fit_constants.yaml."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 110
    with OUTPUT.open("w", encoding="utf-8") as file:
        file.write("# Written by benchmarks/withhold.py: do not edit by hand.\n")
        yaml.dump(list(found), file)


if __name__ == "__main__":
    main()
