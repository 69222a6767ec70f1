"""A calibration result as an overlay, and the overlay as a file."""

from __future__ import annotations

import io
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cpsolver.evidence.calibrate.checks import limits
from cpsolver.evidence.calibrate.result import CalibrationResult, prior_sds
from cpsolver.evidence.posterior.constants import UncertainConstant
from cpsolver.evidence.posterior.posterior import memory_linear
from cpsolver.inputs.language import ENGLISH, speaking
from cpsolver.profiles.constants import CoveredRuns, Overlay, OverlayConstant, OverlayErrors, OverlayRun, digests

_DIGITS = 7
_HEAD = """\
# What your own runs taught apss-cp, for `--calibration` of solve, evaluate and others; written by `apss-cp calibrate`.
# chips: factors on published efficiencies; stacks: values. docs/calibrate.md says what every field means.
"""


def overlay_of(result: CalibrationResult, version: str) -> Overlay:
    """The result as an overlay; `version`: of apss-cp."""
    found = result.error
    counts = Counter(each.row.group for each in result.runs)
    chips, stacks = _constants(result)
    with speaking(ENGLISH):  # a file outlives the language that its maker was spoken to in
        doubts = tuple(doubt.message for doubt in result.doubts)
    return Overlay(
        schema=1,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        apss_cp=version,
        runs_file=result.file,
        made_with=digests(),
        covers=tuple(CoveredRuns(chip=chip, stack=stack, runs=runs) for (chip, stack), runs in counts.items()),
        doubts=doubts,
        errors=OverlayErrors(
            before=_short(found.before),
            after=_short(found.after),
            inside_before=_short(found.inside_before),
            inside_after=_short(found.inside_after),
        ),
        chips=chips,
        stacks=stacks,
        runs=_runs(result),
    )


def rows_that_feel(result: CalibrationResult) -> list[int]:
    """For each constant how many runs it moves enough to count (`felt` of limits.yaml)."""
    posterior = result.posterior
    memory = [each for each in posterior.constants if each.kind == "memory"]
    at = posterior.mean[len(posterior.constants) - len(memory) :]
    readings, needs = memory_linear(posterior.observations, memory, at)
    of_times = np.abs(posterior.times.slope) * posterior.times.prior
    lines = [of_times, np.vstack([np.abs(readings.slope), np.abs(needs.slope)])]
    return [int(count) for line in lines for count in (line >= limits().felt).sum(axis=0)]


Group = dict[str, dict[str, OverlayConstant]]


def _constants(result: CalibrationResult) -> tuple[Group, Group]:
    posterior = result.posterior
    chips: Group = {}
    stacks: Group = {}
    sds = np.sqrt(np.diag(posterior.covariance))
    told = zip(posterior.constants, posterior.mean, prior_sds(posterior), sds, rows_that_feel(result), strict=True)
    for each, position, before, sd, rows in told:
        groups = chips if each.kind == "chips" else stacks
        groups.setdefault(each.group, {})[each.name] = _overlay_constant(each, float(position), before, float(sd), rows)
    return chips, stacks


def _overlay_constant(each: UncertainConstant, position: float, before: float, sd: float, rows: int) -> OverlayConstant:
    return OverlayConstant(
        published=_short(each.start),
        learnt=_short(each.value(position)),
        position=_short(position),
        sd_before=_short(before),
        sd=_short(sd),
        rows=rows,
    )


def _runs(result: CalibrationResult) -> tuple[OverlayRun, ...]:
    times, constants = result.posterior.times, result.posterior.constants
    found = []
    for at, each in enumerate(result.runs):
        slopes: dict[str, dict[str, float]] = {}
        for constant, slope in zip(constants, times.slope[at], strict=False):  # those of memory have none
            if slope:
                slopes.setdefault(constant.group, {})[constant.name] = _short(float(slope))
        found.append(
            OverlayRun(
                id=each.row.run.id,
                cluster=times.locations.clusters[at],
                layout=times.locations.identities[at],
                off=_short(float(times.off[at])),
                at=tuple(_short(float(value)) for value in times.locations.coordinates[at]),
                slopes=slopes,
            )
        )
    return tuple(found)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def overlay_text(overlay: Overlay) -> str:
    """The file."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 118
    text = io.StringIO()
    yaml.dump(_plain(overlay.model_dump(by_alias=True)), text)
    return _HEAD + text.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
