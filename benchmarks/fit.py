"""Fits the free constants to the published runs and writes the calibration that comes with the package.

    python -m benchmarks.fit [--rounds N] [--skip-cross-validation]

The fit: least squares on log(predicted / measured) with outliers bent and every constant pulled to its start
(fit_model.py, fit_constants.yaml). Memory: least absolute deviations that punish too little more than too much
(fit_memory.py), and the margins that the worst readings ask for (fit_margin.py). Then every source is left out in turn,
the rest fitted anew, and the source predicted; and the same with every publisher, who may have several sources.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.fit_margin import fit_margins
from benchmarks.fit_memory import fit_memory
from benchmarks.fit_model import Fit, Floats, load_free, positions_of
from benchmarks.fit_residuals import residual_groups
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.plan import Unpredictable, placed_plan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import PUBLISHED as TABLE
from cpsolver.evidence.runs.table import read_runs
from cpsolver.inputs.document import load_yaml
from cpsolver.profiles.constants import PUBLISHED_FIT, Calibration, Fitted, load_calibration

HERE = Path(__file__).parent
OUTPUT = PUBLISHED_FIT
LEFT_OUT = HERE / "results" / "left_out.csv"
"""log(predicted / measured) of every run, from fits that have seen nothing of the run's source or publisher."""
SOURCES = TABLE.parent / "sources.yaml"
ROUNDS_LEFT_OUT = 4
"""Most rounds of each fit without some runs; there are some thirty of them, so fewer than for the final one."""
FEWEST_ROWS = 8
"""No constant may serve fewer runs."""
FELT = 0.002
"""A constant serves a run when one standard deviation of it moves the run's prediction by that share or more."""


@click.command()
@click.option("--rounds", default=12, show_default=True, help="Most rounds of the least-squares solver.")
@click.option("--skip-cross-validation", is_flag=True, help="Take the last one's results.")
def main(rounds: int, skip_cross_validation: bool) -> None:
    """Fit, cross-validate, write cpsolver/profiles/calibrations/published.yaml."""
    runs, cases = published_cases()
    measured = [run.step_time_s or 0.0 for run in runs]
    free = load_free(HERE / "fit_constants.yaml")
    fit = Fit(cases, measured, free)
    begin = positions_of(free, load_calibration()) if OUTPUT.exists() else np.zeros(len(free))
    positions = fit.run(begin, rounds=rounds)
    errors = fit.errors(positions)
    _say("all runs", errors)
    rows = _enough_rows(fit, positions)
    if not skip_cross_validation:
        publisher = {source: publisher_of(entry) for source, entry in load_yaml(SOURCES).data.items()}
        sources = [run.source for run in runs]
        publishers = [publisher[source] for source in sources]
        save_left_out([run.id for run in runs], *cross_validate(fit, positions, [sources, publishers]))
    calibration = fit.calibration(positions, rows)
    residuals = residual_groups(runs, cases, errors.tolist(), load_left_out())
    calibration = _with(calibration.model_copy(update={"residuals": residuals}), fit_memory(runs, cases))
    margins = {name: {"memory_margin": margin} for name, margin in fit_margins(runs, cases, calibration).items()}
    _write(_with(calibration, margins))


def published_cases() -> tuple[list[MeasuredRun], list[PlacedPlan]]:
    """The complete published runs and how the cost model sees them; runs beyond it are told and left out."""
    runs, cases = [], []
    for run in (run for run in read_runs(TABLE).runs if run.complete):
        try:
            cases.append(placed_plan(run))
        except Unpredictable as error:
            click.echo(f"without {run.id}: {error}")
        else:
            runs.append(run)
    return runs, cases


def publisher_of(source: Mapping[str, str]) -> str:
    """Who measured a source's runs, by its entry in sources.yaml."""
    return source.get("publisher", source["url"])


def _say(name: str, errors: Floats) -> None:
    off = np.exp(errors) - 1
    text = f"mean {np.abs(off).mean():.3f} median {np.median(np.abs(off)):.3f} bias {off.mean():+.3f}"
    click.echo(f"{name}: {len(off)} runs, {text}")


def load_left_out(column: str = "publisher") -> dict[str, float]:
    """The last cross-validation's errors by the runs' ids, with the run's "source" or its "publisher" left out."""
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row[column]) for row in csv.DictReader(file)}


def save_left_out(ids: Sequence[str], source: Sequence[float], publisher: Sequence[float]) -> None:
    """Keep a cross-validation's errors."""
    rows = [f"{name},{one:.4f},{other:.4f}" for name, one, other in zip(ids, source, publisher, strict=True)]
    LEFT_OUT.write_text("\n".join(["id,source,publisher", *rows]) + "\n", encoding="utf-8")


def cross_validate(fit: Fit, begin: Floats, groupings: Sequence[Sequence[str]]) -> list[list[float]]:
    """log(predicted / measured) of every run by grouping, from fits that have seen no run of its group.

    Each fit goes on from `begin`, the answer for all runs, to the best for the runs that are left. Where it ends hardly
    depends on where it begins: from the priors, in three times the time, the mean error differed by 0.1 to 0.3 % for
    the three sources where both were tried. A group of several groupings is left out once.
    """
    found: dict[tuple[int, ...], Floats] = {}
    answers = []
    for groups in groupings:
        errors = np.zeros(len(groups))
        for group in dict.fromkeys(groups):
            outside = tuple(at for at, name in enumerate(groups) if name == group)
            if outside not in found:
                positions = fit.without(outside, begin).run(begin, rounds=ROUNDS_LEFT_OUT)
                found[outside] = np.array(fit.some_errors(positions, outside))
                _say(f"without {group}", found[outside])
            errors[list(outside)] = found[outside]
        _say("left out", errors)
        answers.append(errors.tolist())
    return answers


def _enough_rows(fit: Fit, positions: Floats) -> list[int]:
    """How many runs each constant serves; ends here when that is too few for one."""
    rows = fit.rows_that_feel(positions, FELT)
    few = [f"{each.group}.{each.name}" for each, count in zip(fit.free, rows, strict=True) if count < FEWEST_ROWS]
    if few:
        sys.exit(f"serve fewer than {FEWEST_ROWS} runs, take them out of fit_constants.yaml: {', '.join(few)}")
    return rows


def _with(calibration: Calibration, more: dict[str, dict[str, Fitted]]) -> Calibration:
    """The calibration with further constants of stacks."""
    stacks = {name: dict(entries) for name, entries in calibration.stacks.items()}
    for group, entries in more.items():
        stacks[group] = {**stacks.get(group, {}), **entries}
    return calibration.model_copy(update={"stacks": stacks})


def _write(calibration: Calibration) -> None:
    whole = calibration.model_copy(update={"name": OUTPUT.stem})
    OUTPUT.write_text(_as_yaml(whole), encoding="utf-8")
    click.echo(f"wrote {OUTPUT.relative_to(HERE.parent)}")


def _as_yaml(calibration: Calibration) -> str:
    from io import StringIO

    from ruamel.yaml import YAML

    def plain(value: Any) -> Any:
        if isinstance(value, Fitted):
            return {key: _short(entry) for key, entry in value.model_dump().items()}
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        return _short(value)

    document = {name: getattr(calibration, name) for name in Calibration.model_fields}
    document["residuals"] = {key: group.model_dump() for key, group in calibration.residuals.items()}
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 110
    stream = StringIO()
    stream.write(
        "# Written by benchmarks/fit.py from cpsolver/evidence/runs/published_runs.csv: do not edit by hand.\n"
    )
    yaml.dump(plain(document), stream)
    return stream.getvalue()


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if abs(value) > 1e-6 else 0.0


if __name__ == "__main__":
    main()
