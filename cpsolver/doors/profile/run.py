"""A whole run: measuring into the journal, and what comes of it: figures, a chip file, comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpsolver.doors.profile.budget import MeasurementRun, Outcome
from cpsolver.doors.profile.chip_file import DeviceFacts, chip_fields, chip_text, missing
from cpsolver.doors.profile.collectives import CollectiveGroup
from cpsolver.doors.profile.compare import (
    EfficiencyRow,
    ModelComparison,
    byte_comparisons,
    comparison,
    gemm_comparisons,
    layer_comparisons,
)
from cpsolver.doors.profile.device import TorchDevice
from cpsolver.doors.profile.efficiencies import GivenPeaks, MeasuredEfficiency, measured_efficiencies, peaks
from cpsolver.doors.profile.journal import Journal
from cpsolver.doors.profile.measure import Bench
from cpsolver.doors.profile.settings import settings
from cpsolver.doors.profile.shapes import MeasurementScope, tasks
from cpsolver.doors.profile.task import MeasurementSet, MeasurementTask, NotMeasured
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.problem.problem import Problem
from hw_specs import Chip, complete_chip

HEAD = "# Written by `apss-cp profile`"
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Profile:
    """What came of a run. `missing`: why no plan can be made with the file; `entry`: what the file would replace."""

    problem: Problem
    entry: Chip | None
    measured: MeasurementSet
    figures: tuple[MeasuredEfficiency, ...]
    rows: tuple[EfficiencyRow, ...]
    fields: dict[str, Any]
    text: str
    missing: tuple[str, ...]
    products: tuple[ModelComparison, ...]
    layers: tuple[ModelComparison, ...]
    bytes: tuple[ModelComparison, ...]


def journal_of(output: str) -> Path:
    """The journal beside an output file."""
    return Path(f"{output}.journal.jsonl")


def check_output(output: str) -> None:
    """Raises InputError where a file that this command did not write would be lost."""
    path = Path(output)
    if path.is_file() and not path.read_text(encoding="utf-8", errors="replace").startswith(HEAD):
        message = "is there already, and `apss-cp profile` did not write it"
        raise InputError(Trouble("", message, allowed="another --output", file=output))


def measure_all(
    problem: Problem, wanted: MeasurementScope, device: TorchDevice, output: str, budget_s: float, tell: Tell
) -> MeasurementSet:
    """Take every measurement that the budget allows; what the journal has is taken up. Raises InputError."""
    chosen = settings()
    listed = tasks(problem, wanted, device.kind, chosen)
    timing = chosen.times(wanted.quick)
    journal = Journal(journal_of(output), device.provenance, wanted.quick)
    known = dict(journal.found)
    open_ones = [task for task in listed if task.kind == "collective" and task.key not in known]
    group = CollectiveGroup(device.kind, wanted.devices, open_ones, timing)
    bench: list[Bench] = []

    def measure(task: MeasurementTask) -> Outcome:
        if task.kind == "collective":
            return group(task, run.left_s())
        if not bench:
            bench.append(Bench(device, problem.model, timing))
        return bench[0](task)

    calls = timing.warmup + timing.fewest
    run = MeasurementRun(measure, known, journal.add, tell, budget_s, timing.longest_s, calls)
    try:
        run.all(listed)
    finally:
        group.close()
        journal.close()
    told = _not_on(device, wanted)
    wall = time.monotonic() - run.began
    return MeasurementSet(
        tuple(run.found), (*run.left_out, *told), run.taken_up, run.interrupted, wall, dict(device.provenance)
    )


def _not_on(device: TorchDevice, wanted: MeasurementScope) -> tuple[NotMeasured, ...]:
    """What this machine has nothing to measure of."""
    told = [NotMeasured("network between nodes", "one machine has none")]
    if wanted.devices < 2:
        told.append(NotMeasured("collectives", "one device; --devices N for several"))
    if device.kind == "cpu":
        told.append(NotMeasured("host link", "the CPU is the host"))
    return tuple(told)


def conclude(
    problem: Problem,
    wanted: MeasurementScope,
    device: TorchDevice,
    entry: Chip | None,
    given: GivenPeaks,
    name: str,
    measured: MeasurementSet,
) -> Profile:
    """Figures, the chip file's text and the comparisons from what was measured."""
    known = peaks(entry, given, measured, settings())
    stack = problem.stack
    ways = (float(stack.causal_fraction), float(stack.attention_backward_flops_factor))
    found, odd = measured_efficiencies(measured, known, settings(), *ways)
    facts = DeviceFacts(device.kind, device.total_bytes, device.compute_units, wanted.devices, _on(device, measured))
    fields = chip_fields(name, entry, found, known, given, facts)
    chip = complete_chip({**fields, "architecture": None})
    model = problem.model
    has_dense = any(not model.has_experts(index) for index in range(model.layers))
    return Profile(
        problem=problem,
        entry=entry,
        measured=replace(measured, left_out=(*odd, *measured.left_out)),
        figures=tuple(found),
        rows=tuple(comparison(entry, found)),
        fields=fields,
        text=chip_text(fields, facts),
        missing=missing(fields),
        products=tuple(gemm_comparisons(problem, chip, measured)),
        layers=tuple(layer_comparisons(problem, chip, measured)) if has_dense else (),
        bytes=tuple(byte_comparisons(problem, measured)) if has_dense else (),
    )


def _on(device: TorchDevice, measured: MeasurementSet) -> str:
    return f"measured {measured.days} on {device.name} ({device.driver}, torch {device.torch.__version__})"
