"""What devices show beyond what a run needs: memory that the allocator and the libraries hold while there is room.

Fitted to the runs whose memory was read at the device or at the allocator, after the memory model's own count. The
loss is the relative error, and for meters more than that where the model says too little. A run that was published ran:
what its plan needs beyond the room that there is counts as an error too. What meters show beyond the
need is no part of what must fit; that a plan does not run out is for its fragments and its margin (fit_margin.py),
which is set by the worst readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.profiles.constants import ALL, Fitted
from cpsolver.profiles.stack import load_stack
from hw_specs.units import gib_to_bytes

Floats = NDArray[np.float64]
ALLOWED, WEIGHT, WEIGHT_COUNTED, WEIGHT_RAN = 0.02, 2.0, 0.0, 2.8
"""Saying too little by more than this share counts so many times more; not so for a framework's own count, which is
exact, and where a few runs that are far off would decide. What a run that ran would need beyond the room counts
WEIGHT_RAN times, up to that share: where more is missing, something else is wrong. With 2.5 the rules would refuse
more than the 3 % of published runs that they may (tests/evidence/test_accuracy.py)."""
GROUPS = {
    "megatron-deepspeed-bloom": ("megatron-deepspeed-bloom", "megatron-deepspeed-bloom-bf16"),
    "paddlenlp": ("paddlenlp",),
    ALL: ("megatron-2023",),
}
"""Which stacks' device readings give cached_bytes of which entry; "*" serves all stacks without their own."""
OWN_SHARE = ("fsdp-torchtitan",)
"""Stacks whose allocator was read and whose share of activations is fitted on its own."""


@dataclass(frozen=True)
class Reading:
    """One run, in bytes: what was measured, what it needs in the same terms, what activations and buffers take."""

    stack: str
    kind: str
    measured: float
    needed: float
    moving: float


def fit_memory(runs: Sequence[MeasuredRun], cases: Sequence[PlacedPlan]) -> dict[str, dict[str, Fitted]]:
    """Fitted activation_overhead, cached_share and cached_bytes by stack."""
    readings = [_reading(run, case) for run, case in zip(runs, cases, strict=True) if run.peak_mem_gib]
    counted = [each for each in readings if each.kind == "allocated"]
    ran = [_fullest(case) for case in cases]
    more = float(_solve(_moving(counted), counted, np.array([0.05]), WEIGHT_COUNTED, ran)[0])
    readings = [_with_more(each, more) for each in readings]
    device = [each for each in readings if each.kind == "device"]
    start, names = load_stack("megatron-core"), list(GROUPS)
    members = np.array([[float(each.stack in GROUPS[name]) for name in names] for each in device])
    begin = np.array([start.cached_share, *[start.cached_bytes] * len(names)])
    found = _solve(np.hstack([_moving(device), members]), device, begin)
    tables: dict[str, dict[str, Fitted]] = {ALL: {"activation_overhead": _fitted(more, 0.0, counted)}}
    tables[ALL]["cached_share"] = _fitted(found[0], start.cached_share, device)
    for name, value in zip(names, found[1:], strict=True):
        own = [each for each in device if each.stack in GROUPS[name]]
        tables.setdefault(name, {})["cached_bytes"] = _fitted(value, start.cached_bytes, own)
    for name in OWN_SHARE:
        own = [each for each in readings if each.stack == name and each.kind == "reserved"]
        both = np.hstack([_moving(own), np.ones((len(own), 1))])
        share, held = _solve(both, own, begin[:2])
        tables[name] = {
            "cached_share": _fitted(share, start.cached_share, own),
            "cached_bytes": _fitted(held, start.cached_bytes, own),
        }
    return tables


def _fitted(value: float, start: float, readings: Sequence[Reading]) -> Fitted:
    return Fitted(value=float(value), start=start, error=0.0, rows=len(readings))


def _moving(readings: Sequence[Reading]) -> Floats:
    return np.array([[each.moving] for each in readings])


def _with_more(reading: Reading, share: float) -> Reading:
    more = share * reading.moving
    return replace(reading, needed=reading.needed + more, moving=reading.moving + more)


def _reading(run: MeasuredRun, case: PlacedPlan) -> Reading:
    stage = max(stage_memory(case.problem, case.strategy), key=lambda memory: memory.total)
    needed = {"allocated": stage.allocated, "reserved": stage.allocated + stage.fragments}
    kind = run.peak_mem_kind or ""
    return Reading(
        case.problem.stack.name,
        kind,
        gib_to_bytes(run.peak_mem_gib or 0.0),
        needed.get(kind, stage.total),
        stage.activations + stage.buffers,
    )


def _fullest(case: PlacedPlan) -> Reading:
    """The stage that is nearest to what its devices have, as a reading of all that they have."""
    problem = case.problem
    stages = [
        (memory, problem.capacity_bytes(problem.supply(chip).chip))
        for chip, memory in zip(case.strategy.stage_chips, stage_memory(problem, case.strategy), strict=True)
    ]
    memory, room = max(stages, key=lambda stage: stage[0].total / stage[1])
    return Reading(problem.stack.name, "ran", room, memory.total, memory.activations + memory.buffers)


def _solve(
    design: Floats, readings: Sequence[Reading], start: Floats, weight: float = WEIGHT, ran: Sequence[Reading] = ()
) -> Floats:
    """The positions of least loss; of `ran`, whose design is what moves, only what is beyond the room counts."""
    room, least, moving = (np.array([getattr(each, name) for each in ran]) for name in ("measured", "needed", "moving"))
    measured = np.array([each.measured for each in readings])
    needed = np.array([each.needed for each in readings])
    scale = np.maximum(np.abs(start), 1e-3)

    def loss(position: Floats) -> float:
        error = (needed + design @ (position * scale)) / measured - 1
        short = np.maximum(0.0, -error - ALLOWED)
        beyond = np.clip((least + moving * position[0] * scale[0]) / room - 1, 0.0, ALLOWED) if ran else np.zeros(1)
        return float(np.sum(np.abs(error) + weight * short) + WEIGHT_RAN * np.sum(beyond))

    bounds = [(0.0, 20.0)] * len(start)
    options = {"maxiter": 20000, "xtol": 1e-4, "ftol": 1e-8}
    answer = minimize(loss, np.ones(len(start)), method="Powell", bounds=bounds, options=options)
    return np.asarray(answer.x * scale)
