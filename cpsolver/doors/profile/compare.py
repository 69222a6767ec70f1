"""Compares what was measured with the catalogue's entry, and with the cost model on the measured chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.compute import layer_seconds
from cpsolver.cost.kinds import LayerKind, layer_kinds
from cpsolver.cost.memory import layer_bytes
from cpsolver.cost.shard import Shard
from cpsolver.doors.profile.efficiencies import MeasuredEfficiency
from cpsolver.doors.profile.task import Measurement, MeasurementSet
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import MODULES
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from hw_specs import EFFICIENCY_NAMES, Chip, UnknownFigureError


@dataclass(frozen=True)
class EfficiencyRow:
    """One efficiency. `catalogue`: the entry's; `planned`: that times the factors fitted to published runs; None: none.

    `measured` and `spread` are None where it was not measured.
    """

    name: str
    catalogue: float | None
    planned: float | None
    confidence: str
    measured: float | None
    spread: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over the catalogue's value."""
        return None if self.measured is None or self.catalogue is None else self.measured / self.catalogue


def comparison(entry: Chip | None, measured_figures: Sequence[MeasuredEfficiency]) -> list[EfficiencyRow]:
    """A row for each efficiency that was measured, or that the entry has (for a GEMM: with a known peak)."""
    measured = {figure.name: figure for figure in measured_figures}
    rows = []
    for name in EFFICIENCY_NAMES:
        figure = measured.get(name)
        taken = (None, None) if figure is None else (figure.value, figure.spread)
        if entry is not None and entry.uses_efficiency(name):
            planned = load_calibration().chip(entry).efficiency_value(name)
            confidence = entry.efficiency[name].confidence
            rows.append(EfficiencyRow(name, entry.efficiency_value(name), planned, confidence, *taken))
        elif figure is not None:
            rows.append(EfficiencyRow(name, None, None, "", *taken))
    return rows


_PASS = {
    "forward": later("forward"),
    "input_gradient": later("gradient of the input"),
    "weight_gradient": later("gradient of the weight"),
}


@dataclass(frozen=True)
class ModelComparison:
    """What was measured and what the cost model predicts, in seconds or bytes; `allocated`: by the allocator."""

    what: str
    measured: float
    predicted: float
    spread: float = 0.0
    allocated: float | None = None

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


def gemm_comparisons(problem: Problem, chip: Chip, measured: MeasurementSet) -> list[ModelComparison]:
    """Every GEMM in the precision of the layers."""
    try:
        device = ChipSpeeds(problem, chip)
    except UnknownFigureError:
        return []
    comparisons = []
    for gemm in measured.of("gemm", precision=problem.spec.training.precision):
        m, n, k, batch = (np.array([float(gemm.number(name))]) for name in ("m", "n", "k", "batch"))
        predicted = float(device.layer_gemm(m, n, k, batch)[0])
        comparisons.append(ModelComparison(_named(gemm), gemm.median_s, predicted, gemm.spread))
    return comparisons


def _named(gemm: Measurement) -> str:
    m, n, k, batch = (gemm.number(name) for name in ("m", "n", "k", "batch"))
    times = f"{batch} x " if batch > 1 else ""
    return f"{times}{m} x {n} x {k}{say(', ')}{say(_PASS[str(gemm.size['product'])])}"


def byte_comparisons(problem: Problem, measured: MeasurementSet) -> list[ModelComparison]:
    """The bytes that the real layer saves for backward under each recomputation, against the memory model."""
    comparisons = []
    for measurement in measured.of("layer_bytes"):
        attention, recompute = str(measurement.size["attention"]), str(measurement.size["recompute"])
        predicted = _layer_bytes(problem, measurement.number("tokens"), attention == "flash", recompute)
        what = say(
            "{attention} attention, recompute {recompute}, {tokens:,} tokens",
            attention=attention,
            recompute=recompute,
            tokens=measurement.number("tokens"),
        )
        comparisons.append(ModelComparison(what, measurement.bytes or 0.0, predicted, allocated=measurement.allocated))
    return comparisons


def _layer_bytes(problem: Problem, tokens: int, flash: bool, recompute: str) -> float:
    shortened, kind = _of_length(problem, tokens), _dense(problem)
    saved = layer_bytes(shortened, Shard.of(1, 1, False, flash), kind)
    if recompute == "full":
        return float(saved.checkpoint[0])
    freed = float(saved.freed[MODULES.index("core_attn"), 0]) if recompute == "selective" else 0.0
    return float(saved.full[0]) - freed


def layer_comparisons(problem: Problem, chip: Chip, measured: MeasurementSet) -> list[ModelComparison]:
    """Forward and backward of the stack of real layers. Of the device's time and the host's time to launch the kernels
    the longer one counts, in each pass."""
    comparisons: list[ModelComparison] = []
    for measurement in measured.of("layer_time"):
        shortened, shard = _of_length(problem, measurement.number("tokens")), Shard.of(1, 1, False, True)
        try:
            seconds = layer_seconds(shortened, chip, shard, _dense(problem))
        except UnknownFigureError:
            break
        host = float(seconds.host[0]) if chip.vendor != "cpu" else 0.0
        passes = max(float(seconds.forward[0]), host) + max(float(seconds.backward[0]), host)
        layers = measurement.number("layers")
        what = say(
            "{layers} layers forward and backward, {tokens:,} tokens",
            layers=layers,
            tokens=measurement.number("tokens"),
        )
        comparisons.append(ModelComparison(what, measurement.median_s, layers * passes, measurement.spread))
    return comparisons


def _of_length(problem: Problem, tokens: int) -> Problem:
    """The problem with a sequence of so many tokens."""
    training = problem.spec.training.model_copy(update={"sequence_length": tokens})
    return replace(problem, spec=problem.spec.model_copy(update={"training": training}))


def _dense(problem: Problem) -> LayerKind:
    parts = (part for kind in layer_kinds(problem.model) for part, _ in kind.parts)
    return next(part for part in parts if not part.experts)
