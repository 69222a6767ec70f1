"""A whole run: measuring into the journal, and what comes of it: figures, a chip file, comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpsolver.doors.profile.chip_file import DeviceFacts, chip_fields, chip_text, missing
from cpsolver.doors.profile.collectives import Group
from cpsolver.doors.profile.compare import Row, comparison
from cpsolver.doors.profile.device import Device
from cpsolver.doors.profile.figures import Figure, Given, figures, peaks
from cpsolver.doors.profile.journal import Journal
from cpsolver.doors.profile.measure import Bench
from cpsolver.doors.profile.plan import Outcome, Run
from cpsolver.doors.profile.predicted import Pair, byte_pairs, layer_pairs, product_pairs
from cpsolver.doors.profile.settings import settings
from cpsolver.doors.profile.shapes import Wanted, tasks
from cpsolver.doors.profile.task import LeftOut, Measured, Task
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
    measured: Measured
    figures: tuple[Figure, ...]
    rows: tuple[Row, ...]
    fields: dict[str, Any]
    text: str
    missing: tuple[str, ...]
    products: tuple[Pair, ...]
    layers: tuple[Pair, ...]
    bytes: tuple[Pair, ...]


def journal_of(output: str) -> Path:
    """The journal beside an output file."""
    return Path(f"{output}.journal.jsonl")


def check_output(output: str) -> None:
    """Raises InputError where a file that this command did not write would be lost."""
    path = Path(output)
    if path.is_file() and not path.read_text(encoding="utf-8", errors="replace").startswith(HEAD):
        message = "is there already, and `apss-cp profile` did not write it"
        raise InputError(Trouble("", message, allowed="another --output", file=output))


def measure_all(problem: Problem, wanted: Wanted, device: Device, output: str, budget_s: float, tell: Tell) -> Measured:
    """Take every measurement that the budget allows; what the journal has is taken up. Raises InputError."""
    chosen = settings()
    listed = tasks(problem, wanted, device.kind, chosen)
    timing = chosen.times(wanted.quick)
    journal = Journal(journal_of(output), device.provenance, wanted.quick)
    known = dict(journal.found)
    open_ones = [task for task in listed if task.kind == "collective" and task.key not in known]
    group = Group(device.kind, wanted.devices, open_ones, timing)
    bench: list[Bench] = []

    def measure(task: Task) -> Outcome:
        if task.kind == "collective":
            return group(task, run.left_s())
        if not bench:
            bench.append(Bench(device, problem.model, timing))
        return bench[0](task)

    calls = timing.warmup + timing.fewest
    run = Run(measure, known, journal.add, tell, budget_s, timing.longest_s, calls)
    try:
        run.all(listed)
    finally:
        group.close()
        journal.close()
    told = _not_on(device, wanted)
    wall = time.monotonic() - run.began
    return Measured(
        tuple(run.found), (*run.left_out, *told), run.taken_up, run.interrupted, wall, dict(device.provenance)
    )


def _not_on(device: Device, wanted: Wanted) -> tuple[LeftOut, ...]:
    """What this machine has nothing to measure of."""
    told = [LeftOut("network between nodes", "one machine has none")]
    if wanted.devices < 2:
        told.append(LeftOut("collectives", "one device; --devices N for several"))
    if device.kind == "cpu":
        told.append(LeftOut("host link", "the CPU is the host"))
    return tuple(told)


def conclude(
    problem: Problem, wanted: Wanted, device: Device, entry: Chip | None, given: Given, name: str, measured: Measured
) -> Profile:
    """Figures, the chip file's text and the comparisons from what was measured."""
    known = peaks(entry, given, measured, settings())
    stack = problem.stack
    ways = (float(stack.causal_fraction), float(stack.attention_backward_flops_factor))
    found, odd = figures(measured, known, settings(), *ways)
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
        products=tuple(product_pairs(problem, chip, measured)),
        layers=tuple(layer_pairs(problem, chip, measured)) if has_dense else (),
        bytes=tuple(byte_pairs(problem, measured)) if has_dense else (),
    )


def _on(device: Device, measured: Measured) -> str:
    return f"measured {measured.days} on {device.name} ({device.driver}, torch {device.torch.__version__})"
