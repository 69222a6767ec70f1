"""Fits the free constants to the published runs and writes the calibration that comes with the package.

    python -m benchmarks.fit [--rounds N] [--skip-cross-validation]

The fit: least squares on log(predicted / measured) with outliers bent and every constant pulled to its start
(fit_model.py, fit_constants.yaml). Memory: least absolute deviations that punish too little more than too much
(fit_memory.py), and the margins that the worst readings ask for (fit_margin.py). Then every source is left out in turn,
the rest fitted anew, and the source predicted; and the same with every publisher, who may have several sources, every
model, and every eighth of the layouts.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import click
import numpy as np

from benchmarks.fit_margin import fit_margins
from benchmarks.fit_memory import fit_memory
from benchmarks.fit_model import Fit, Floats, load_free, positions_of
from benchmarks.fit_residuals import residual_groups
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.plan import Unpredictable, placed_plan
from cpsolver.evidence.runs.ranking import layout_of
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
LAYOUT_FOLDS = 8
"""How many parts the layouts are left out in."""
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
        save_left_out([run.id for run in runs], cross_validate(fit, positions, groupings(runs)))
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
    """The last cross-validation's errors by the runs' ids, with all runs of its "source", "publisher", "model" or of a
    fold of layouts ("layout") left out."""
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row[column]) for row in csv.DictReader(file)}


def save_left_out(ids: Sequence[str], errors: Mapping[str, Sequence[float]]) -> None:
    """Keep a cross-validation's errors."""
    table = zip(ids, *errors.values(), strict=True)
    rows = [",".join([name, *(f"{error:.4f}" for error in each)]) for name, *each in table]
    LEFT_OUT.write_text("\n".join([",".join(["id", *errors]), *rows]) + "\n", encoding="utf-8")


def groupings(runs: Sequence[MeasuredRun]) -> dict[str, list[Hashable]]:
    """What may be left out together, by the columns of LEFT_OUT: whose the run is, its model, its layout.

    Layouts, some hundreds, fall into LAYOUT_FOLDS folds by a hash of theirs; models are told apart by their sizes,
    since sources name the same one differently.
    """
    publisher = {source: publisher_of(entry) for source, entry in load_yaml(SOURCES).data.items()}
    return {
        "source": [run.source for run in runs],
        "publisher": [publisher[run.source] for run in runs],
        "model": [(run.hidden, run.ffn, run.moe_experts) for run in runs],
        "layout": [crc32(repr((run.model, run.chip, layout_of(run))).encode()) % LAYOUT_FOLDS for run in runs],
    }


def cross_validate(fit: Fit, begin: Floats, groups: Mapping[str, Sequence[Hashable]]) -> dict[str, list[float]]:
    """log(predicted / measured) of every run by grouping, from fits that have seen no run of its group.

    A group of several groupings is left out once.
    """
    members = {name: _members(of) for name, of in groups.items()}
    distinct = list(dict.fromkeys(rows for each in members.values() for rows in each))
    answers = dict(zip(distinct, fit.without(distinct, begin), strict=True))
    found: dict[str, list[float]] = {}
    for name, each in members.items():
        errors = np.zeros(len(fit.cases))
        for rows in each:
            errors[list(rows)] = fit.some_errors(answers[rows], rows)
        _say(f"{name} left out", errors)
        found[name] = errors.tolist()
    return found


def _members(groups: Sequence[Hashable]) -> list[tuple[int, ...]]:
    return [tuple(at for at, each in enumerate(groups) if each == group) for group in dict.fromkeys(groups)]


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
