"""The measured figures beside those of the catalogue's entry, and beside what planning makes of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpsolver.cost.compute import layer_seconds
from cpsolver.cost.device import Device
from cpsolver.cost.kinds import LayerKind, layer_kinds
from cpsolver.cost.memory import layer_bytes
from cpsolver.cost.shard import Shard
from cpsolver.doors.profile.efficiencies import MeasuredEfficiency
from cpsolver.doors.profile.task import Measurement, MeasurementSet
from cpsolver.plans.strategy import MODULES
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from hw_specs import EFFICIENCY_NAMES, Chip, UnknownFigureError


@dataclass(frozen=True)
class EfficiencyRow:
    """One figure. `catalogue`: the entry's; `planned`: that with the factors fitted to published runs; None: has none.

    `measured` is None where it was not measured, `spread` then too.
    """

    name: str
    catalogue: float | None
    planned: float | None
    confidence: str
    measured: float | None
    spread: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over the catalogue's."""
        return None if self.measured is None or self.catalogue is None else self.measured / self.catalogue


def comparison(entry: Chip | None, found: Sequence[MeasuredEfficiency]) -> list[EfficiencyRow]:
    """A row for each figure that was measured or that the entry has of a precision that it knows."""
    measured = {each.name: each for each in found}
    planned = None if entry is None else load_calibration().chip(entry)
    rows = []
    for name in EFFICIENCY_NAMES:
        figure = measured.get(name)
        known = entry is not None and _has(entry, name)
        if figure is None and not known:
            continue
        rows.append(
            EfficiencyRow(
                name,
                entry.efficiency_value(name) if entry is not None and known else None,
                planned.efficiency_value(name) if planned is not None and known else None,
                entry.efficiency[name].confidence if entry is not None and known else "",
                None if figure is None else figure.value,
                None if figure is None else figure.spread,
            )
        )
    return rows


def _has(entry: Chip, name: str) -> bool:
    precision = name.removeprefix("gemm_")
    return precision == name or getattr(entry.peak_tflops, precision) is not None


_PASS = {
    "forward": "forward",
    "input_gradient": "gradient of the input",
    "weight_gradient": "gradient of the weight",
}


@dataclass(frozen=True)
class ModelComparison:
    """What was measured and what the cost model says, in seconds or bytes; `allocated` by the allocator's counters."""

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
    """Every product in the precision that the layers have."""
    try:
        device = Device(problem, chip)
    except UnknownFigureError:
        return []
    return [
        ModelComparison(_named(each), each.median_s, _gemm_seconds(device, each), each.spread)
        for each in measured.of("gemm", precision=problem.spec.training.precision)
    ]


def _named(each: Measurement) -> str:
    m, n, k, batch = (each.number(name) for name in ("m", "n", "k", "batch"))
    times = f"{batch} x " if batch > 1 else ""
    return f"{times}{m} x {n} x {k}, {_PASS[str(each.size['product'])]}"


def _gemm_seconds(device: Device, each: Measurement) -> float:
    m, n, k, batch = (np.array([float(each.number(name))]) for name in ("m", "n", "k", "batch"))
    return float(device.layer_gemm(m, n, k, batch)[0])


def byte_comparisons(problem: Problem, measured: MeasurementSet) -> list[ModelComparison]:
    """What the real layer keeps for backward under each recomputation, against the memory model."""
    found = []
    for each in measured.of("layer_bytes"):
        attention, recompute = str(each.size["attention"]), str(each.size["recompute"])
        predicted = _layer_bytes(problem, each.number("tokens"), attention == "flash", recompute)
        what = f"{attention} attention, recompute {recompute}, {each.number('tokens'):,} tokens"
        found.append(ModelComparison(what, each.bytes or 0.0, predicted, allocated=each.allocated))
    return found


def _layer_bytes(problem: Problem, tokens: int, flash: bool, recompute: str) -> float:
    one, kind = _of_length(problem, tokens), _dense(problem)
    kept = layer_bytes(one, Shard.of(1, 1, False, flash), kind)
    if recompute == "full":
        return float(kept.checkpoint[0])
    freed = float(kept.freed[MODULES.index("core_attn"), 0]) if recompute == "selective" else 0.0
    return float(kept.full[0]) - freed


def layer_comparisons(problem: Problem, chip: Chip, measured: MeasurementSet) -> list[ModelComparison]:
    """Forward and backward of the stack of real layers. The cost model's is without the host's time to launch them
    beyond what the device takes, as the longer of the two counts."""
    return list(_layer_comparisons(problem, chip, measured))


def _layer_comparisons(problem: Problem, chip: Chip, measured: MeasurementSet) -> Iterator[ModelComparison]:
    for each in measured.of("layer_time"):
        one, shard = _of_length(problem, each.number("tokens")), Shard.of(1, 1, False, True)
        try:
            seconds = layer_seconds(one, chip, shard, _dense(problem))
        except UnknownFigureError:
            return
        host = seconds.host if chip.vendor != "cpu" else 0.0
        passes = max(float(seconds.forward[0]), host) + max(float(seconds.backward[0]), host)
        layers = each.number("layers")
        what = f"{layers} layers forward and backward, {each.number('tokens'):,} tokens"
        yield ModelComparison(what, each.median_s, layers * passes, each.spread)


def _of_length(problem: Problem, tokens: int) -> Problem:
    """The same with a sequence of so many tokens."""
    training = problem.spec.training.model_copy(update={"sequence_length": tokens})
    return replace(problem, spec=problem.spec.model_copy(update={"training": training}))


def _dense(problem: Problem) -> LayerKind:
    return next(kind for kind in layer_kinds(problem.model) if not kind.experts)
