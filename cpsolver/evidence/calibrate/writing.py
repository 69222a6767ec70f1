"""A lesson as an overlay, and the overlay as a file."""

from __future__ import annotations

import io
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np

from cpsolver.evidence.calibrate.lesson import Lesson, sds_before
from cpsolver.evidence.calibrate.limits import limits
from cpsolver.evidence.posterior.constants import Uncertain
from cpsolver.evidence.posterior.posterior import memory_linear
from cpsolver.profiles.constants import Cover, Errors, Learnt, Overlay, Run, digests

_DIGITS = 7
_HEAD = """\
# What your own runs taught apss-cp, for `--calibration` of solve, evaluate and others; written by `apss-cp calibrate`.
# chips: factors on published efficiencies; stacks: values. docs/calibrate.md says what every field means.
"""


def overlay_of(lesson: Lesson, version: str) -> Overlay:
    """The lesson as an overlay; `version`: of apss-cp."""
    found = lesson.error
    counts = Counter(each.row.group for each in lesson.told)
    chips, stacks = _constants(lesson)
    return Overlay(
        schema=1,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        apss_cp=version,
        runs_file=lesson.file,
        made_with=digests(),
        covers=tuple(Cover(chip=chip, stack=stack, runs=runs) for (chip, stack), runs in counts.items()),
        doubts=tuple(doubt.message for doubt in lesson.doubts),
        errors=Errors(
            before=_short(found.before),
            after=_short(found.after),
            inside_before=_short(found.inside_before),
            inside_after=_short(found.inside_after),
        ),
        chips=chips,
        stacks=stacks,
        runs=_runs(lesson),
    )


def felt_by(lesson: Lesson) -> list[int]:
    """For each constant how many runs feel it: see limits.yaml."""
    belief = lesson.belief
    memory = [each for each in belief.constants if each.kind == "memory"]
    at = belief.mean[len(belief.constants) - len(memory) :]
    readings, needs = memory_linear(belief.seen, memory, at)
    lines = [np.abs(belief.times.slope) * belief.times.prior, np.vstack([np.abs(readings.slope), np.abs(needs.slope)])]
    return [int(count) for line in lines for count in (line >= limits().felt).sum(axis=0)]


Group = dict[str, dict[str, Learnt]]


def _constants(lesson: Lesson) -> tuple[Group, Group]:
    belief = lesson.belief
    chips: Group = {}
    stacks: Group = {}
    sds = np.sqrt(np.diag(belief.covariance))
    told = zip(belief.constants, belief.mean, sds_before(belief), sds, felt_by(lesson), strict=True)
    for each, position, before, sd, rows in told:
        groups = chips if each.kind == "chips" else stacks
        groups.setdefault(each.group, {})[each.name] = _learnt(each, float(position), before, float(sd), rows)
    return chips, stacks


def _learnt(each: Uncertain, position: float, before: float, sd: float, rows: int) -> Learnt:
    return Learnt(
        published=_short(each.start),
        learnt=_short(each.value(position)),
        position=_short(position),
        sd_before=_short(before),
        sd=_short(sd),
        rows=rows,
    )


def _runs(lesson: Lesson) -> tuple[Run, ...]:
    times, constants = lesson.belief.times, lesson.belief.constants
    found = []
    for at, each in enumerate(lesson.told):
        slopes: dict[str, dict[str, float]] = {}
        for constant, slope in zip(constants, times.slope[at], strict=False):  # those of memory have none
            if slope:
                slopes.setdefault(constant.group, {})[constant.name] = _short(float(slope))
        found.append(
            Run(
                id=each.row.run.id,
                cluster=times.spots.clusters[at],
                layout=times.spots.identities[at],
                off=_short(float(times.off[at])),
                at=tuple(_short(float(value)) for value in times.spots.coordinates[at]),
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
