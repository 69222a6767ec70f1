"""Fits the free constants to the published runs and writes the calibration that comes with the package.

    python -m benchmarks.fit [--rounds N] [--skip-cross-validation]

The fit: least squares on log(predicted / measured) with outliers bent and every constant pulled to its start
(fit_model.py, fit_constants.yaml). Memory: least absolute deviations that punish too little more than too much
(fit_memory.py). Then every source is left out in turn, the rest fitted anew from the priors, and the source predicted;
and the same with every publisher, who may have several sources.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.fit_memory import fit_memory
from benchmarks.fit_model import Fit, Floats, Free, load_free, positions_of
from benchmarks.fit_residuals import residual_groups
from cpsolver.calibration import PUBLISHED, Calibration, Fitted, Residuals, load_calibration
from cpsolver.measured.case import Case, make_case
from cpsolver.measured.run import MeasuredRun
from cpsolver.measured.table import PUBLISHED as TABLE
from cpsolver.measured.table import read_runs
from cpsolver.yaml_file import load_yaml

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "cpsolver" / "calibrations" / f"{PUBLISHED}.yaml"
LEFT_OUT = HERE / "results" / "left_out.csv"
"""log(predicted / measured) of every run, from fits that have seen nothing of the run's source or publisher."""
SOURCES = TABLE.parent / "sources.yaml"
ROUNDS_LEFT_OUT = 8
"""Most rounds of each fit without some runs; there are some thirty of them, so fewer than for the final one."""
FEWEST_ROWS = 8
"""No constant may serve fewer runs."""
FELT = 0.002
"""A constant serves a run when one standard deviation of it moves the run's prediction by that share or more."""


@click.command()
@click.option("--rounds", default=12, show_default=True, help="Most rounds of the least-squares solver.")
@click.option("--skip-cross-validation", is_flag=True, help="Take the last one's results.")
def main(rounds: int, skip_cross_validation: bool) -> None:
    """Fit, cross-validate, write cpsolver/calibrations/published.yaml."""
    runs = [run for run in read_runs(TABLE).runs if run.complete]
    cases = [make_case(run) for run in runs]
    measured = [run.step_time_s or 0.0 for run in runs]
    free = load_free(HERE / "fit_constants.yaml")
    fit = Fit(cases, measured, free)
    begin = positions_of(free, load_calibration()) if OUTPUT.exists() else np.zeros(len(free))
    positions = fit.run(begin, rounds=rounds)
    errors = fit.errors(positions)
    _say("all runs", errors)
    rows = _enough_rows(fit, positions)
    if not skip_cross_validation:
        publisher = {source: entry["url"] for source, entry in load_yaml(SOURCES).data.items()}
        sources = [run.source for run in runs]
        by_source = cross_validate(runs, cases, measured, free, sources)
        by_publisher = cross_validate(runs, cases, measured, free, [publisher[source] for source in sources])
        save_left_out(by_source, by_publisher)
    calibration = fit.calibration(positions, rows)
    residuals = residual_groups(runs, cases, errors.tolist(), load_left_out())
    _write(calibration, residuals, fit_memory(runs, cases))


def _say(name: str, errors: Floats) -> None:
    off = np.exp(errors) - 1
    text = f"mean {np.abs(off).mean():.3f} median {np.median(np.abs(off)):.3f} bias {off.mean():+.3f}"
    click.echo(f"{name}: {len(off)} runs, {text}")


def load_left_out(column: str = "publisher") -> dict[str, float]:
    """The last cross-validation's errors by the runs' ids, with the run's "source" or its "publisher" left out."""
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row[column]) for row in csv.DictReader(file)}


def save_left_out(source: dict[str, float], publisher: dict[str, float]) -> None:
    """Keep a cross-validation's errors."""
    rows = [f"{name},{source[name]:.4f},{publisher[name]:.4f}" for name in source]
    LEFT_OUT.write_text("\n".join(["id,source,publisher", *rows]) + "\n", encoding="utf-8")


def cross_validate(
    runs: list[MeasuredRun], cases: list[Case], measured: list[float], free: list[Free], groups: Sequence[str]
) -> dict[str, float]:
    """log(predicted / measured) of every run by its id, from a fit that has seen no run of its group.

    Each fit begins at the priors, so that nothing of the runs left out remains in it.
    """
    found: dict[str, float] = {}
    for group in dict.fromkeys(groups):
        inside = [at for at, name in enumerate(groups) if name != group]
        outside = [at for at, name in enumerate(groups) if name == group]
        fit = Fit([cases[at] for at in inside], [measured[at] for at in inside], free)
        positions = fit.run(rounds=ROUNDS_LEFT_OUT)
        held = Fit([cases[at] for at in outside], [measured[at] for at in outside], free)
        errors = held.errors(positions)
        _say(f"without {group}", errors)
        found |= {runs[at].id: float(error) for at, error in zip(outside, errors, strict=True)}
    _say("left out", np.array(list(found.values())))
    return found


def _enough_rows(fit: Fit, positions: Floats) -> list[int]:
    """How many runs each constant serves; ends here when that is too few for one."""
    rows = fit.rows_that_feel(positions, FELT)
    few = [f"{each.group}.{each.name}" for each, count in zip(fit.free, rows, strict=True) if count < FEWEST_ROWS]
    if few:
        sys.exit(f"serve fewer than {FEWEST_ROWS} runs, take them out of fit_constants.yaml: {', '.join(few)}")
    return rows


def _write(calibration: Calibration, residuals: dict[str, Residuals], memory: dict[str, dict[str, Fitted]]) -> None:
    stacks = {name: dict(entries) for name, entries in calibration.stacks.items()}
    for group, entries in memory.items():
        stacks.setdefault(group, {}).update(entries)
    whole = calibration.model_copy(update={"name": PUBLISHED, "stacks": stacks, "residuals": residuals})
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
    stream.write("# Written by benchmarks/fit.py from cpsolver/measured/published_runs.csv: do not edit by hand.\n")
    yaml.dump(plain(document), stream)
    return stream.getvalue()


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if abs(value) > 1e-6 else 0.0


if __name__ == "__main__":
    main()
