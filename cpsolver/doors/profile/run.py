"""A whole run: measures into the journal, and makes efficiencies, a chip file and comparisons of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpsolver.doors.profile import compare
from cpsolver.doors.profile.budget import MeasurementRun, Outcome
from cpsolver.doors.profile.chip_file import DeviceFacts, chip_fields, chip_text, missing
from cpsolver.doors.profile.collectives import CollectiveGroup
from cpsolver.doors.profile.device import TorchDevice
from cpsolver.doors.profile.efficiencies import (
    AttentionWork,
    GivenPeaks,
    MeasuredEfficiency,
    measured_efficiencies,
    peaks,
)
from cpsolver.doors.profile.journal import Journal
from cpsolver.doors.profile.measure import Bench
from cpsolver.doors.profile.settings import settings
from cpsolver.doors.profile.shapes import MeasurementScope, tasks
from cpsolver.doors.profile.task import MeasurementSet, MeasurementTask, NotMeasured
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say
from cpsolver.problem.problem import Problem
from hw_specs import Chip, complete_chip
from models_zoo import special_layers

HEAD = "# Written by `apss-cp profile`"
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Profile:
    """The results of a run. `missing`: why no plan can be made with the file; `entry`: what the file would replace."""

    problem: Problem
    entry: Chip | None
    measured: MeasurementSet
    figures: tuple[MeasuredEfficiency, ...]
    rows: tuple[compare.EfficiencyRow, ...]
    fields: dict[str, Any]
    text: str
    missing: tuple[str, ...]
    gemms: tuple[compare.ModelComparison, ...]
    layers: tuple[compare.ModelComparison, ...]
    bytes: tuple[compare.ModelComparison, ...]


def journal_of(output: str) -> Path:
    """The path of an output file's journal."""
    return Path(f"{output}.journal.jsonl")


def check_output(output: str) -> None:
    """Raises InputError where a file that this command did not write would be lost."""
    path = Path(output)
    if path.is_file() and not path.read_text(encoding="utf-8", errors="replace").startswith(HEAD):
        message = say("is there already, and `apss-cp profile` did not write it")
        raise InputError(Trouble("", message, allowed=say("another --output"), file=output))


def measure_all(
    problem: Problem, wanted: MeasurementScope, device: TorchDevice, output: str, budget_s: float, tell: Tell
) -> MeasurementSet:
    """Take the measurements that the journal lacks, as far as the budget allows. Raises InputError."""
    how = settings()
    ordered = tasks(problem, wanted, device.kind, how)
    timing = how.times(wanted.quick)
    journal = Journal(journal_of(output), device.provenance, wanted.quick)
    earlier = dict(journal.measurements)
    collectives = [task for task in ordered if task.kind == "collective" and task.key not in earlier]
    group = CollectiveGroup(device.kind, wanted.devices, collectives, timing)
    bench: list[Bench] = []

    def measure(task: MeasurementTask) -> Outcome:
        if task.kind == "collective":
            return group(task, run.left_s())
        if not bench:
            bench.append(Bench(device, problem.model, timing))
        return bench[0](task)

    calls = timing.warmup + timing.fewest
    run = MeasurementRun(measure, earlier, journal.add, tell, budget_s, timing.longest_s, calls)
    try:
        run.all(ordered)
    finally:
        group.close()
        journal.close()
    absent = _not_on(device, wanted)
    wall_s = time.monotonic() - run.began
    left_out, how_ended = (*run.left_out, *absent), (run.taken_up, run.interrupted, wall_s)
    return MeasurementSet(tuple(run.measurements), left_out, *how_ended, dict(device.provenance))


def _not_on(device: TorchDevice, wanted: MeasurementScope) -> tuple[NotMeasured, ...]:
    """What cannot be measured on this machine."""
    absent = [NotMeasured(say("network between nodes"), say("one machine has none"))]
    if wanted.devices < 2:
        absent.append(NotMeasured(say("collectives"), say("one device; --devices N for several")))
    if device.kind == "cpu":
        absent.append(NotMeasured(say("host link"), say("the CPU is the host")))
    return tuple(absent)


def conclude(
    problem: Problem,
    wanted: MeasurementScope,
    device: TorchDevice,
    entry: Chip | None,
    given: GivenPeaks,
    name: str,
    measured: MeasurementSet,
) -> Profile:
    """Efficiencies, the text of the chip file and the comparisons, from the measurements."""
    known_peaks = peaks(entry, given, measured, settings())
    stack = problem.stack
    work = AttentionWork(
        float(stack.causal_fraction), float(stack.masked_keys), float(stack.attention_backward_flops_factor)
    )
    measured_figures, rejected = measured_efficiencies(measured, known_peaks, settings(), work)
    origin = f"measured {measured.days} on {device.name} ({device.driver}, torch {device.torch.__version__})"
    facts = DeviceFacts(device.kind, device.total_bytes, device.compute_units, wanted.devices, origin)
    fields = chip_fields(name, entry, measured_figures, known_peaks, given, facts)
    chip = complete_chip({**fields, "architecture": None, "variant": None})
    model = problem.model
    has_dense = not special_layers(model) and not all(map(model.has_experts, range(model.layers)))
    return Profile(
        problem=problem,
        entry=entry,
        measured=replace(measured, left_out=(*rejected, *measured.left_out)),
        figures=tuple(measured_figures),
        rows=tuple(compare.comparison(entry, measured_figures)),
        fields=fields,
        text=chip_text(fields, facts),
        missing=missing(fields),
        gemms=tuple(compare.gemm_comparisons(problem, chip, measured)),
        layers=tuple(compare.layer_comparisons(problem, chip, measured)) if has_dense else (),
        bytes=tuple(compare.byte_comparisons(problem, measured)) if has_dense else (),
    )
